"""Words of Penn Treebank by HMMs whose states each may have every word, and whose transition is a product: perplexities.

    OMP_NUM_THREADS=1 python scripts/reproduce/dense_emissions.py ptb --sizes 128 128 --minutes 40 [--write]

What stands beside the first source's tables, where a state has the words of its block alone. The product starts from two dense
HMMs that had an eighth of the time each; all learn by stepwise EM. Sentences are scored on their own, their ends too. The round
with the best validation is kept; with --write it is read on the test text, once.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import torch
from characters import learn
from record import data_folder, peak_gigabytes, record

from pplseq import HMM
from pplseq.data.batches import SentenceBatches
from pplseq.data.text import Text, load_corpus
from pplseq.runs.evaluation import score_text


def sentences(text: Text) -> tuple[torch.Tensor, torch.Tensor]:
    """All of a text as rows (N, longest) and lengths (N,)."""
    batches = list(SentenceBatches(text, 4096))
    longest = max(batch.x.shape[1] for batch in batches)
    rows = [torch.nn.functional.pad(batch.x, (0, longest - batch.x.shape[1])) for batch in batches]
    return torch.cat(rows), torch.cat([batch.lengths for batch in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus")
    parser.add_argument("--sizes", type=int, nargs=2, default=[128, 128])
    parser.add_argument("--minutes", type=float, default=40.0, help="of processor time to learn")
    parser.add_argument("--rows", type=int, default=2048, help="sentences of a step of EM of the product")
    parser.add_argument("--emission", type=float, default=1.01, help="Dirichlet concentration")
    parser.add_argument("--rounds", type=int, default=6, help="looks at the validation text")
    parser.add_argument("--write", action="store_true", help="to results/dense_emissions_CORPUS.json, with the test text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    corpus = load_corpus(data_folder() / options.corpus)
    x, lengths = sentences(corpus.train)
    began, seconds, curve = time.process_time(), 60 * options.minutes, []

    def look(name: str, model: HMM, seen: int) -> float:
        row = {"model": name, "seconds": round(time.process_time() - began, 1), "words_read": seen}
        curve.append(row | {"validation": score_text(model, corpus.valid, "sentence").perplexity})
        print(curve[-1], flush=True)
        return curve[-1]["validation"]

    parts, total = [], 0
    priors = {"emission": options.emission, "transition": 1.0001}
    for size in options.sizes:
        part = HMM(size, num_words=len(corpus.vocabulary), dtype="float32", priors=priors)
        total += learn(part, x, lengths, seconds / 8, 256)[0]
        look(f"dense {size}", part, total)
        parts.append(part)
    model = parts[0].product(parts[1])
    look("product of both", model, total)
    best, kept, step = math.inf, model, 0
    for _ in range(options.rounds):
        read, step = learn(model, x, lengths, 0.75 * seconds / options.rounds, options.rows, True, step)
        total += read
        if (now := look(f"product {options.sizes[0]} x {options.sizes[1]}", model, total)) >= best:
            break
        best, kept = now, copy.deepcopy(model)
    results = {"states": kept.num_states, "parameters": kept.num_free_parameters, "validation": best, "curve": curve}
    if options.write:
        results["test"] = score_text(kept, corpus.test, "sentence").perplexity
        record(f"dense_emissions_{options.corpus}", results, folder=".", peak_gb=peak_gigabytes())
    print(results)


if __name__ == "__main__":
    main()
