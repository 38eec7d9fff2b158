"""Exact evaluation of the PTB test set at 2^15 states, row normalisers included: seconds and memory.

The parameters are random: the cost does not depend on them.

    python scripts/bench/vlhmm_evaluation.py [--num-states 32768] [--threads 2]
"""

from __future__ import annotations

import argparse
import time

import torch
from record import data_folder, peak_gigabytes, record

from pplseq.data.clustering import brown_clusters
from pplseq.data.text import load_corpus
from pplseq.models import VLHMM
from pplseq.runs.evaluation import score_carried, score_sentences


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-states", type=int, default=1 << 15)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    corpus = load_corpus(data_folder() / "ptb")
    clusters = brown_clusters(corpus.train.tokens, len(corpus.vocabulary), 128)
    blocks = torch.as_tensor(clusters.block_of_word)
    result = {"states": options.num_states, "threads": options.threads, "tokens": corpus.test.num_tokens}
    for protocol, score in (("carried", score_carried), ("sentence", score_sentences)):
        torch.manual_seed(0)
        # a fresh model each time, so that each figure includes the normalisers
        model = VLHMM(
            options.num_states, num_words=len(corpus.vocabulary), blocks=blocks, reset_id=corpus.vocabulary.eos_id,
            init_scale=0.3
        )
        start = time.perf_counter()
        perplexity = score(model, corpus.test).perplexity
        result[f"{protocol}_seconds"] = time.perf_counter() - start
        result[f"{protocol}_perplexity_of_random_weights"] = perplexity
        result[f"peak_gb_after_{protocol}"] = peak_gigabytes()
        del model
    print(result)
    record(f"vlhmm_evaluation_{options.num_states}", result)


if __name__ == "__main__":
    main()
