#!/usr/bin/env python
"""Train a very large HMM on a text, from corpus to model folder, in Python.

    python scripts/train_vlhmm.py runs/example --data builtin:python --num-states 1024 --blocks 64 --minutes 1

`VLHMM(num_states=1024).fit(corpus, num_blocks=64, folder=...)` does the same in one line, and the command `pplseq train` with
more options; this is what they come down to.
"""

import argparse
from pathlib import Path

import pyro

from pplseq import VLHMM, load, load_corpus
from pplseq.models.texts import make_batches, validator
from pplseq.models.vlhmm.fit import lay_out, make_clusters
from pplseq.runs.evaluation import score_text
from pplseq.runs.settings import TrainSettings
from pplseq.runs.training import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the new run")
    parser.add_argument("--data", default="builtin:python", help="built-in corpus, folder or text file")
    parser.add_argument("--num-states", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--minutes", type=float, default=1.0, help="at most")
    parser.add_argument("--epochs", type=int, default=50, help="passes over the text, at most")
    options = parser.parse_args()

    # A text, its vocabulary, and blocks of words with similar neighbours; <eos> has a block of its own.
    corpus = load_corpus(options.data)
    clusters = make_clusters(corpus.train, "brown", options.blocks, progress=True)

    # A Pyro program. Word w is emitted only by the Z / M states of its block, so the exact likelihood is cheap.
    pyro.set_rng_seed(0)
    model = VLHMM(num_states=options.num_states, hidden_size=options.hidden_size, state_dropout=0.25)
    lay_out(model, corpus.vocabulary, clusters)
    model.vocabulary = corpus.vocabulary  # saved with it

    # 16 streams of 32 tokens a step; the filtered belief is carried from one segment to the next.
    history = train(
        model,
        make_batches(corpus.train, "carried", batch_size=16, segment_length=32),
        evaluate=validator(model, corpus.valid, "carried"),
        settings=TrainSettings(max_time=60 * options.minutes, epochs=options.epochs),
        folder=options.folder,
        on_record=lambda record: print(f"step {record['step']:5d}  {record['kind']:<10}  {record['perplexity']:9.2f}"),
    )
    print(f"stopped by {history.stop_reason} after {history.progress.step} steps")

    best = load(options.folder)
    for protocol in ("carried", "sentence"):
        score = score_text(best, corpus.test, protocol)
        print(f"test perplexity, {protocol}: {score.perplexity:.2f} over {score.num_tokens:,} tokens")


if __name__ == "__main__":
    main()
