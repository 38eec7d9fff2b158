"""The linear dynamical system for text, trained on counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pplseq.recipes.recipe import Job, Question, Recipe, RunSettings, register
from pplseq.recipes.text_settings import QUESTIONS, AskSettings
from pplseq.runs.progress import Watch


@dataclass(frozen=True)
class TextLDSRecipe(Recipe):
    """A model of words whose states are vectors."""

    asking = AskSettings

    @property
    def questions(self) -> Mapping[str, Question]:
        """Those about words."""
        return {name: QUESTIONS[name] for name in ("score", "next-word", "continue")}

    def query(
        self, folder: Path, question: str, lines: str | Path | Iterable[str | bytes], settings: Any, watch: Watch
    ) -> Iterator[dict[str, Any]]:
        from pplseq.models.text_lds import answers
        from pplseq.recipes.text_answers import query

        return query(folder, question, lines, settings, self.questions[question].reads, answers)

    def train(self, job: Job) -> dict[str, Any]:
        raise ValueError(
            "a text_lds is fitted to counts, not to batches of text: `pplseq count SOURCE --max-lag 7 --out COUNTS`, then "
            "`pplseq lds fit COUNTS --out RUN`"
        )

    def evaluate(self, folder: Path, data: str | None, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
        raise ValueError("a text_lds has densities of words, not probabilities: use `pplseq lds evaluate`")

    def report(self, folder: Path, settings: Any, watch: Watch) -> Iterator[Path]:
        raise ValueError(
            "a text_lds has no discrete states to report on: use `pplseq lds pairs` and `pplseq lds evaluate`"
        )

    def readable(self, answer: dict[str, Any]) -> str:
        from pplseq.recipes.text_readable import readable

        return readable(answer)


register(
    TextLDSRecipe(
        "text-lds",
        "linear dynamical system for text, by EM on counts",
        "a folder of counts that `pplseq count` wrote",
        RunSettings,
        saved_as="text_lds",
        limits="a text_lds has vectors as states, not numbered ones; `pplseq lds embed` gives their posterior means",
    )
)
