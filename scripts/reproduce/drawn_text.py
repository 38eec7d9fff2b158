"""Text drawn from a neural language model, beside the text it was trained on: more text for a model that overfits.

    pplseq train lstm $PPLSEQ_DATA/ptb --hidden-size 512 --dropout 0.4 --batch-size 32 --lr 0.002 --schedule time \\
        --max-time 42m --epochs 1000 --validate-per-epoch 1 --normalizer-dtype bfloat16 --out runs/lstm_ptb_512
    python scripts/reproduce/drawn_text.py ptb runs/lstm_ptb_512 --tokens 7000000 --copies 4
    python scripts/reproduce/vlhmm.py ptb --num-states 65536 --text runs/ptb_drawn ...

Writes runs/<corpus>_drawn, a corpus whose training text is that many copies of the true one and the drawn lines, and whose
validation text is the true one; there is no test text in it. Nothing but the corpus's own training text is used: the network
saw no other. Deoras, Mikolov, Kombrink, Karafiat, Khudanpur (2011), Variational approximation of long-span language models
for LVCSR, do so with n-gram models.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, data_folder  # noqa: E402

from pplseq.baselines import LSTM, NeuralLanguageModel  # noqa: E402
from pplseq.kernels.precision import has_bfloat16_tensors  # noqa: E402


@torch.no_grad()
def draw(model: NeuralLanguageModel, rows: int, steps: int, seed: int) -> torch.Tensor:
    """(rows, steps) ids, each row a text of its own from its start on, by ancestral sampling."""
    torch.manual_seed(seed)
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = LSTM.load(options.run / "best")
    drawn = draw(model, options.rows, options.tokens // options.rows, options.seed)
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
