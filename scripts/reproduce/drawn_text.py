"""Text drawn from a neural language model, beside the text it was trained on: more text for a model that overfits.

    pplseq train lstm $PPLSEQ_DATA/ptb --hidden-size 512 --dropout 0.4 --batch-size 32 --lr 0.002 --schedule time \\
        --max-time 50m --threads 2 --epochs 1000 --validate-per-epoch 1 --normalizer-dtype bfloat16 --out runs/lstm_ptb_512
    python scripts/reproduce/drawn_text.py ptb runs/lstm_ptb_512 --tokens 7000000 --copies 4 --rows 1024 --threads 2
    python scripts/reproduce/vlhmm.py ptb --num-states 65536 --text runs/ptb_drawn ...

Each word is drawn from a mixture of the network and a Kneser-Ney 5-gram of the same training text, whose weight is the best on
validation. Writes runs/<corpus>_drawn, a corpus whose training text is that many copies of the true one and the drawn lines,
and whose validation text is the true one; there is no test text in it. Nothing but the corpus's own training text is learnt
from: the network saw no other. Deoras, Mikolov, Kombrink, Karafiat, Khudanpur (2011), Variational approximation of long-span
language models for LVCSR, do so with n-gram models.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]
from record import ROOT, data_folder  # noqa: E402
from vlhmm import mixture  # noqa: E402

from pplseq.baselines import LSTM, KneserNey, NeuralLanguageModel  # noqa: E402
from pplseq.data.text import load_corpus  # noqa: E402
from pplseq.kernels.precision import has_bfloat16_tensors  # noqa: E402
from pplseq.runs.evaluation import score_text  # noqa: E402


@torch.no_grad()
def draw(
    model: NeuralLanguageModel, rows: int, steps: int, seed: int, *, five_gram: KneserNey | None = None, weight: float = 0.0
) -> torch.Tensor:
    """(rows, steps) ids, each row a text of its own from its start on, by ancestral sampling.

    Each word is drawn from the 5-gram with probability `weight`, from the network otherwise.
    """
    torch.manual_seed(seed)
    random, lines = np.random.default_rng(seed), [[] for _ in range(rows)]
    model.eval()
    words = torch.full((rows,), model.eos_id)
    state = model.initial_state(rows)
    drawn = torch.empty(rows, steps, dtype=torch.int32)
    fast = torch.autocast("cpu", torch.bfloat16) if has_bfloat16_tensors() else contextlib.nullcontext()
    began = time.perf_counter()
    for step in range(steps):
        with fast:
            features, state = model(words.unsqueeze(1), state)
            logits = model.logits(features[:, 0])
        cumulated = functional.softmax(logits.float(), -1).cumsum(-1)
        uniform = torch.rand(rows, 1) * cumulated[:, -1:]
        words = torch.searchsorted(cumulated, uniform).squeeze(1).clamp(max=cumulated.shape[1] - 1)
        if five_gram is not None:
            for row in np.flatnonzero(random.random(rows) < weight):
                cumulated_row = np.exp(five_gram.next_word(lines[row])).cumsum()
                words[row] = int(cumulated_row.searchsorted(random.random() * cumulated_row[-1]))
            for line, word in zip(lines, words.tolist(), strict=True):
                if word == model.eos_id:
                    line.clear()
                else:
                    line.append(word)
        drawn[:, step] = words
        if step % 500 == 499:
            print(f"{(step + 1) * rows:,} tokens in {time.perf_counter() - began:.0f} s", flush=True)
    return drawn


def whole_lines(row: torch.Tensor, eos: int, words: list[str]) -> list[str]:
    """The lines that a row ends; what stands behind the last is cut off."""
    lines, line = [], []
    for token in row.tolist():
        if token == eos:
            lines.append(" ".join(line))
            line = []
        else:
            line.append(words[token])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["ptb"])
    parser.add_argument("run", type=Path, help="of an LSTM")
    parser.add_argument("--tokens", type=int, default=7_000_000)
    parser.add_argument("--copies", type=int, default=4, help="of the true training text")
    parser.add_argument("--rows", type=int, default=512, help="drawn side by side")
    parser.add_argument("--weight", type=float, help="of the 5-gram, 0 for the network alone (default: the best on validation)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = LSTM.load(options.run / "best")
    corpus = load_corpus(data_folder() / options.corpus, vocabulary=model.vocabulary)
    five_gram, score = KneserNey(5).fit(corpus.train), score_text(model, corpus.valid, "carried").token_log_probs
    theirs = five_gram.log_prob(corpus.valid)
    weight = options.weight
    if weight is None:
        weight = float(min(np.linspace(0, 0.99, 100), key=lambda w: mixture(score, theirs, w)))
    print(f"validation: {mixture(score, theirs, 0):.2f}, with {weight:.2f} of a 5-gram {mixture(score, theirs, weight):.2f}")
    steps = options.tokens // options.rows
    drawn = draw(model, options.rows, steps, options.seed, five_gram=five_gram if weight else None, weight=weight)
    out = options.out or ROOT / "runs" / f"{options.corpus}_drawn"
    out.mkdir(parents=True, exist_ok=True)
    source = data_folder() / options.corpus
    true = (source / f"{options.corpus}.train.txt").read_text(encoding="utf-8")
    with (out / f"{options.corpus}.train.txt").open("w", encoding="utf-8") as file:
        file.write(true * options.copies)
        for row in drawn:
            file.writelines(f" {line} \n" for line in whole_lines(row, model.eos_id, model.vocabulary.words) if line)
    (out / f"{options.corpus}.valid.txt").write_bytes((source / f"{options.corpus}.valid.txt").read_bytes())
    print(f"{out}: {options.copies} copies of the training text and {drawn.numel():,} drawn tokens")


if __name__ == "__main__":
    main()
