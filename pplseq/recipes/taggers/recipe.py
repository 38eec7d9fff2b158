"""Taggers, trained on tagged sentences; what works stands in `training` and `tagging`, which import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pplseq.folder import unsealed
from pplseq.recipes.recipe import Recipe, register
from pplseq.recipes.taggers.settings import QUESTIONS, RECORD, TaggerAsking, TaggerEvaluation, TaggerSettings


@dataclass(frozen=True)
class TaggerRecipe(Recipe):
    """A tagger of one of the named systems."""

    evaluation = TaggerEvaluation
    asking = TaggerAsking
    cpu_only = one_model = True

    questions = QUESTIONS
    scored_on = "a file of sentences with the right tags"

    def has_all(self, folder: Path) -> bool:
        return (folder / RECORD).is_file()  # which is written behind the last checkpoint

    def summary(self, folder: Path) -> Mapping[str, Any] | None:
        return unsealed(folder / RECORD, "remove it, and go on with the run") if self.has_all(folder) else None

    def training(self) -> Any:
        from pplseq.recipes.taggers import training

        return training

    def viewing(self) -> Any:
        from pplseq.recipes.taggers import view

        return view


register(
    TaggerRecipe(
        "tagger",
        "part-of-speech tagger: hmm, latent, crf, memm, NLTK's, ... (--system)",
        "a file of tagged sentences: CoNLL-U, columns as CoNLL-2000's, or word_TAG a sentence a line; .gz and .xz as well",
        TaggerSettings,
    )
)
