"""Models of words that are trained on text: vlhmm, hmm, and the networks lstm, awd-lstm, ff and rnn.

Names and settings; what works stands in `training`, `answers` and `report`, which import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pplseq.recipes.recipe import Job, Recipe, register
from pplseq.recipes.text.settings import (
    CONSTRAINED_QUESTIONS,
    GROWN,
    QUESTIONS,
    AskSettings,
    AWDLSTMSettings,
    ConstrainedAsking,
    EvaluationSettings,
    FeedForwardSettings,
    HMMRNNSettings,
    HMMSettings,
    LSTMSettings,
    NetworkReportSettings,
    NetworkSettings,
    TextReportSettings,
    VLHMMSettings,
)
from pplseq.runs.progress import Watch


@dataclass(frozen=True)
class TextRecipe(Recipe):
    """A model of words with hidden states."""

    several_processes = True
    evaluation = EvaluationSettings
    asking = ConstrainedAsking
    reporting = TextReportSettings

    questions = CONSTRAINED_QUESTIONS

    def using(self) -> Any:
        from pplseq.recipes.text import answers

        return answers

    def train(self, job: Job) -> dict[str, Any]:
        from pplseq.recipes.text.training import train

        return train(self.name, job)

    def has_begun(self, folder: Path) -> bool:
        return super().has_begun(folder) or any((folder / GROWN).glob("*/last"))

    def prepared(self, folder: Path) -> Iterable[Path]:
        return tuple(folder / f"{name}{end}" for name in ("clusters.paths", "samples.npz") for end in ("", ".sha256"))

    def report(self, folder: Path, about: dict[str, Any], settings: Any, watch: Watch) -> Iterator[Path]:
        from pplseq.recipes.text.report import report

        return report(folder, settings, watch)

    def info(self, data: str, settings: Any) -> dict[str, Any]:
        from pplseq.recipes.text.training import info

        return info(self.name, data, settings)

    def readable(self, answer: dict[str, Any]) -> str:
        from pplseq.recipes.text.readable import readable

        return readable(answer) or super().readable(answer)


@dataclass(frozen=True)
class NetworkRecipe(TextRecipe):
    """A network, which has no states to ask about and reads from left to right."""

    asking = AskSettings
    reporting = NetworkReportSettings
    report = Recipe.report

    questions = {name: QUESTIONS[name] for name in ("score", "next-word")}

    def viewing(self) -> Any:
        from pplseq.recipes.text import view

        return view


DRAWN = "; or what is drawn from a language model: samples:RUN (of a network) or samples:hf:NAME (extra `huggingface`)"
CORPUS = "builtin:python, builtin:generated, hf:NAME[/CONFIG], a folder, or a text file"
register(TextRecipe("vlhmm", "block-sparse HMM of 2^16 states and more, by gradient", CORPUS + DRAWN, VLHMMSettings))
register(TextRecipe("hmm", "dense HMM, by EM or gradient", CORPUS + DRAWN, HMMSettings))
LIMITS = "a network has no states and reads from left to right"
for name, text, settings in (
    ("lstm", "LSTM language model", LSTMSettings),
    ("awd-lstm", "LSTM with dropped weights", AWDLSTMSettings),
    ("ff", "feed-forward network over n-grams", FeedForwardSettings),
    ("rnn", "simple recurrent network", NetworkSettings),
    ("hmm-rnn", "network with an HMM's recurrence", HMMRNNSettings),
):
    register(NetworkRecipe(name, text, CORPUS, settings, limits=LIMITS))
