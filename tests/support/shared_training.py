"""A training that several processes share: run as a script by each of them, with RANK and WORLD_SIZE set as torchrun does."""

import os
import sys
from pathlib import Path

import torch

from pplseq.data.batches import StreamBatches
from pplseq.data.text import Text
from pplseq.models import VLHMM
from pplseq.models.texts import validator
from pplseq.runs import processes
from pplseq.runs.settings import TrainSettings
from pplseq.runs.training import train


def text() -> Text:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(7, (9, 21), generator=generator).tolist()
    return Text.from_lines([[f"w{word}" for word in line] for line in words])


def learn(folder: Path, epochs: int, *, resume: bool = False, dies_at: int | None = None, resets: bool = True):
    """The model after so many epochs of four streams, in float64, with state dropout and resets."""
    torch.manual_seed(5)
    data = text()
    num_words = len(data.vocabulary)
    model = VLHMM(12, num_words=num_words, blocks=[word % 3 for word in range(num_words)], hidden_size=4, init_scale=1.0,
                  transition="hierarchical", state_dropout=0.5, num_topics=1 if resets else 2,
                  reset_id=data.vocabulary.eos_id if resets else None).double()  # fmt: skip
    batches = StreamBatches(data, 4, 5, shuffle="line", seed=1)
    model.vocabulary = data.vocabulary

    def on_step(progress, num_tokens):
        if progress.step == dies_at and processes.current().rank == 1:
            os._exit(9)

    settings = TrainSettings(epochs=epochs, validate_per_epoch=1, log_interval=4, lr=0.01)
    with processes.started():
        history = train(
            model, batches, evaluate=validator(model, data, "carried"), settings=settings, folder=folder, resume=resume,
            on_step=on_step,
        )  # fmt: skip
    return model, history


if __name__ == "__main__":
    place, number, how, dies_at = sys.argv[1:]
    learn(Path(place), int(number), resume=how == "resume", dies_at=int(dies_at) or None, resets=how != "without resets")
