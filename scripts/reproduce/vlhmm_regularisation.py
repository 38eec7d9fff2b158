"""Which regularisation lets a very large HMM generalise: curves on an eighth of Penn Treebank, where it soon overfits.

    python scripts/reproduce/vlhmm_regularisation.py --name "weight decay 0.2" --weight-decay 0.2 --steps 2000

2^13 states in 128 blocks (of the whole training text), h = 128, 32 streams of 32 tokens, learning rate .006 that falls to zero
over the last 60 % of the steps. Validation is the first half of the validation text. Rows are added to
results/vlhmm_regularisation.json: [step, training perplexity since the last row (with dropout), validation, processor seconds].
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from record import ROOT, data_folder, record  # noqa: E402

from pplseq import checks  # noqa: E402
from pplseq.data.batches import StreamBatches  # noqa: E402
from pplseq.data.clustering import brown_clusters  # noqa: E402
from pplseq.data.text import load_corpus  # noqa: E402
from pplseq.kernels.precision import matmul_precision  # noqa: E402
from pplseq.models import VLHMM  # noqa: E402
from pplseq.runs.evaluation import score_text  # noqa: E402
from pplseq.runs.memory import keep_freed_memory  # noqa: E402

BLOCKS, RATE, DECAY = 128, 0.006, 0.6


def curve(options) -> list[list[float]]:
    corpus = load_corpus(data_folder() / "ptb")
    vocabulary, eos = corpus.vocabulary, corpus.vocabulary.eos_id
    train, valid = (
        replace(text, tokens=text.tokens[:size]) for text, size in ((corpus.train, 116_000), (corpus.valid, 36_000))
    )
    clusters = brown_clusters(corpus.train.tokens, len(vocabulary), BLOCKS, own_block=[eos])
    torch.manual_seed(0)
    model = VLHMM(
        8192, num_words=len(vocabulary), blocks=torch.as_tensor(clusters.block_of_word), hidden_size=128,
        transition="hierarchical",
        shared_layer=True, reset_id=eos, state_dropout=options.dropout, feature_dropout=options.feature_dropout,
    )  # fmt: skip
    model.vocabulary = vocabulary
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=options.weight_decay, fused=True)
    began, belief, rows, nats, tokens, step = time.process_time(), None, [], 0.0, 0, 0
    batches = StreamBatches(train, 32, 32)
    while True:
        for batch in batches:
            model.train()
            optimizer.param_groups[0]["lr"] = RATE * min(1.0, (1 - step / options.steps) / DECAY)
            optimizer.zero_grad()
            with checks.trusted(), matmul_precision("auto"):
                model(batch.x, None, None if batch.is_first else belief)
                loss = -model.chain.log_prob().sum()
                (loss / batch.x.numel()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            belief, step = model.chain.filtered().detach(), step + 1
            nats, tokens = nats + loss.item(), tokens + batch.x.numel()
            if step % options.validate_every == 0:
                model.eval()
                found = score_text(model, valid, "carried").perplexity
                rows.append([step, round(math.exp(nats / tokens), 1), round(found, 2), round(time.process_time() - began)])
                print(rows[-1], flush=True)
                nats, tokens = 0.0, 0
            if step == options.steps:
                return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    for name, value in (("dropout", 0.5), ("feature-dropout", 0.0), ("weight-decay", 0.0)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--validate-every", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    path = ROOT / "results" / "vlhmm_regularisation.json"
    rows = json.loads(path.read_text())["results"] if path.exists() else []
    rows.append({**vars(options), "curve": curve(options), "load_average": [round(value, 2) for value in os.getloadavg()]})
    record("vlhmm_regularisation", rows, folder=".")


if __name__ == "__main__":
    main()
