"""Input-output HMMs, trained on tables or on labelled strings; what works stands in files that import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pplseq.folder import FolderError
from pplseq.recipes.iohmm.settings import (
    AUTOMATON,
    BEST,
    OF_STRINGS,
    QUESTIONS,
    RUN,
    SIZE,
    STRING_SETTINGS,
    TABLES,
    IOHMMAsking,
    IOHMMSettings,
    check_automaton,
)
from pplseq.recipes.recipe import Job, Question, Recipe, register
from pplseq.recipes.settings import options_of


@dataclass(frozen=True)
class IOHMMRecipe(Recipe):
    """A model of outputs given inputs, or of which strings are accepted."""

    asking = IOHMMAsking
    cpu_only = one_model = True

    questions = QUESTIONS
    scored_on = "a table or labelled strings as in training"

    def using(self) -> Any:
        from pplseq.recipes.iohmm import answers

        return answers

    def questions_of(self, folder: Path) -> Mapping[str, Question]:
        """Strings have no outputs on their way, and tables no automaton."""
        strings = RUN.is_at(folder / BEST) and RUN.read_header(folder / BEST)["kind"] == "strings"
        return {name: each for name, each in QUESTIONS.items() if (name in OF_STRINGS if strings else name != "automaton")}

    def has_begun(self, folder: Path) -> bool:
        """A model of a size, or a size that is being fitted, or the checkpoint of automata."""
        return RUN.is_at(folder / BEST) or any(folder.glob(f"{SIZE}*/last")) or super().has_begun(folder)

    def has_all(self, folder: Path) -> bool:
        """A run from strings ends with its automaton, which is written behind the last checkpoint and the model."""
        if not RUN.is_at(folder / BEST):
            return False
        record = RUN.read_header(folder / BEST)
        if record["kind"] != "strings":
            return True
        try:
            check_automaton(folder)
        except (FileNotFoundError, FolderError):
            return False
        return "stop_reason" in record["summary"] and (folder / "automaton.dot").is_file()

    def summary(self, folder: Path) -> Mapping[str, Any] | None:
        if (folder / AUTOMATON).exists():
            check_automaton(folder)
        found = RUN.read_header(folder / BEST)["summary"] if RUN.is_at(folder / BEST) else {}
        return found if "stop_reason" in found else None  # until it ends it has none

    def train(self, job: Job) -> dict[str, Any]:
        """Sizes one after the other: the folder holds the best of those finished, and a resumed run does the others."""
        settings = job.settings
        if self.is_table(job.data, settings):
            from pplseq.recipes.iohmm.tables import train_table

            return train_table(job)
        options = options_of(IOHMMSettings)
        changed = [name for name, option in options.items() if getattr(settings, name) != option.default]
        if settings.device not in ("cpu", "auto"):
            raise ValueError(f"device: automata are learned on the CPU; got {settings.device!r}")
        if foreign := sorted(set(changed) - STRING_SETTINGS):
            raise ValueError(
                f"{job.data} is read as labelled strings, which {', '.join(foreign)} does not apply to; a table needs "
                "--outputs, and ends in .csv, .tsv or .parquet"
            )
        from pplseq.recipes.iohmm.strings import train_strings

        return train_strings(job)

    @staticmethod
    def is_table(data: str, settings: Any) -> bool:
        """Whether data are a table; ValueError for one without columns of outputs."""
        table = settings.outputs or data == "-" or data.lower().endswith(TABLES)
        if table and not settings.outputs:
            raise ValueError(f"{data} is a table: name the columns of its outputs with --outputs (and --inputs)")
        return bool(table)

    def info(self, data: str, settings: Any) -> dict[str, Any]:
        from pplseq.recipes.iohmm import strings, tables

        return tables.info(data, settings) if self.is_table(data, settings) else strings.info(data)

    def viewing(self) -> Any:
        from pplseq.recipes.iohmm import view

        return view


register(
    IOHMMRecipe(
        "iohmm",
        "input-output HMM, or the automaton of labelled strings",
        "a table (.csv, .tsv, .parquet, - for CSV on stdin) with columns named by --inputs and --outputs, an empty output "
        "being a missing one; or a file of labelled strings (`+ 0101`, or `0101<TAB>1`), from which the smallest consistent "
        "automaton is learned",
        IOHMMSettings,
    )
)
