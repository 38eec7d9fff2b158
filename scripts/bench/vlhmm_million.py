"""A model of 2^20 states in 4,096 blocks with hierarchical transitions: saved, loaded, trained a step, evaluated on PTB test.

The blocks are uniform and the parameters fresh: what is measured is time and memory, not the perplexity.

    python scripts/bench/vlhmm_million.py [--hidden-size 64] [--threads 2]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

from record import data_folder, peak_gigabytes, record  # before torch: it keeps threads from spinning

# isort: split
import numpy as np
import torch

from pplseq.data.batches import StreamBatches
from pplseq.data.clustering import uniform_clusters
from pplseq.data.text import load_corpus
from pplseq.kernels.precision import matmul_precision
from pplseq.models import VLHMM
from pplseq.runs.evaluation import score_text
from pplseq.runs.memory import release_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-states", type=int, default=1 << 20)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    corpus = load_corpus(data_folder() / "ptb")
    vocabulary = corpus.vocabulary
    counts = np.bincount(corpus.train.tokens, minlength=len(vocabulary))
    clusters = uniform_clusters(counts, options.blocks, 0)
    model = VLHMM(
        options.num_states, num_words=len(vocabulary), blocks=torch.as_tensor(clusters.block_of_word),
        hidden_size=options.hidden_size,
        transition="hierarchical", shared_layer=True, state_dropout=0.5, reset_id=vocabulary.eos_id,
    )  # fmt: skip
    model.vocabulary, model.is_fitted = vocabulary, True
    found: dict = {}

    def measured(name: str, run):
        wall, clock = time.perf_counter(), time.process_time()
        result = run()
        seconds = {"processor": round(time.process_time() - clock, 2), "wall": round(time.perf_counter() - wall, 2)}
        found[name] = seconds | {"peak_gb": round(peak_gigabytes(), 3)}
        print(name, found[name], flush=True)
        return result

    with tempfile.TemporaryDirectory() as folder:
        measured("save", lambda: model.save(f"{folder}/model"))
        del model
        model = measured("load", lambda: VLHMM.load(f"{folder}/model"))
    model.train()
    batch = next(iter(StreamBatches(corpus.train, 64, 32)))

    def step():
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.0, fused=True)
        with matmul_precision("auto"):
            loss = -model._direct_chain(batch.x).log_prob().sum() / batch.x.numel()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    found["first_loss"] = measured("step of 64 x 32 tokens", step)
    release_freed_memory()
    model.eval()
    score = measured("PTB test, carried", lambda: score_text(model, corpus.test, "carried", segment_length=32))
    found |= {"perplexity": score.perplexity, "num_tokens": score.num_tokens}
    found |= {"load_average": os.getloadavg(), **vars(options), "weights": sum(p.numel() for p in model.parameters())}
    record("vlhmm_million", found)


if __name__ == "__main__":
    main()
