"""What a family of models brings so that it can be trained, evaluated, asked, reported on and sized up from disk.

A recipe is registered by name; `pplseq train NAME`, `evaluate`, `query`, `report` and `info`, and the functions of
`pplseq.recipes.runs` behind them, find everything in it. How to bring a family:

1. Write `pplseq/recipes/FAMILY/recipe.py`. It must not import torch when it is imported (`pplseq train NAME --help` is
   instant), so what works stands in another file, or is imported inside the methods.
2. Write the settings of its training as a dataclass that inherits :class:`RunSettings` (`pplseq/recipes/settings.py` says how
   fields become options), of evaluation, questions, reports as dataclasses that inherit :class:`UseSettings`.
3. Write a class that inherits :class:`Recipe`, whose :meth:`Recipe.training` and :meth:`Recipe.using` import those files, and
   ``register`` one of it for each name. Add it to the imports of `pplseq/recipes/__init__.py`. There is nothing to do in
   `pplseq/cli/`.

What the frame does, so that a recipe does not: it reads and checks settings, writes them into RUN/config.toml and finds the
recipe there again; keeps a second process out of the folder; refuses a folder that holds something else; says how to go on
after Ctrl-C; clears away what a training left that failed before it began. A recipe's training does all that comes before its
first step inside ``with job.preparing("reading ..."):``, which shows that in the bar and keeps --max-time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pplseq import checks
from pplseq.checks import nearest
from pplseq.folder import whole_folder
from pplseq.recipes.settings import Duration, setting
from pplseq.runs.progress import Watch
from pplseq.runs.signals import TimeOver, alarm

Lines = str | Path | Iterable[str | bytes]  # to be asked about, or the name of a file of them


@dataclass(kw_only=True)
class RunSettings:
    """The run.

    Args:
        seed: of all that is random: initial weights, the order of batches, dropout, draws.
        device: where it is computed: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.
        threads: CPU threads (default: torch's own choice).
        max_time: stop after this long, preparation included: 90s, 10m, 2h, or seconds.
        deterministic: the same bits whatever --threads says, by one thread and deterministic algorithms alone.
    """

    seed: int = setting(0, check=checks.seed)
    device: str = setting("auto", free=True)
    threads: int | None = setting(None, free=True, check=checks.count)
    max_time: Duration | None = setting(None, free=True)
    deterministic: bool = False


@dataclass(kw_only=True)
class UseSettings:
    """The run.

    Args:
        checkpoint: of a run: the best by its validation, or the last.
        device: where it is computed: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.
        threads: CPU threads (default: torch's own choice).
    """

    checkpoint: Literal["best", "last"] = "best"
    device: str = "auto"
    threads: int | None = setting(None, check=checks.count)


@dataclass(kw_only=True)
class ReportSettings(UseSettings):
    """The report.

    Args:
        out: the page, FILE.html, or a folder for report.html (default: RUN/report.html).
        data: measure on these data (default: the run's own held-out data, else its training data, which the page then says).
    """

    out: Path | None = None
    data: str | None = None


@dataclass
class Job:
    """A training: what is to be done, where, and who watches.

    Attributes:
        data: a path, made absolute, or another name of data ("builtin:python").
        folder: the run's; it exists.
        settings: of the recipe's class.
        resume: whether `folder` holds something to go on from.
        watch: who is told.
        started: `time.monotonic()` when the command began, for `began=` of a training loop. stage: what is prepared.
    """

    data: str
    folder: Path
    settings: Any
    resume: bool = False
    watch: Watch = field(default_factory=Watch)
    started: float = field(default_factory=time.monotonic)
    stage: str = "beginning"

    @property
    def time_left(self) -> float | None:
        """Seconds until `max_time` has passed since the command began; None without a limit."""
        limit = self.settings.max_time
        return None if limit is None else limit - (time.monotonic() - self.started)

    @contextlib.contextmanager
    def preparing(self, what: str) -> Iterator[None]:
        """Around a part of what comes before the first step: shows it, and ends it by TimeOver where the time is up.

        What runs inside is cut off wherever it is (in the main thread of a system that has alarms; elsewhere the time is looked
        at afterwards), so it must leave nothing half done behind.
        """
        self.stage = what
        self.watch.stage(what)
        with alarm(self.time_left):
            yield
        if self.time_left is not None and self.time_left <= 0:
            raise TimeOver


class FitWatch(Watch):
    """Whom a model's ``fit`` tells in a job: the one who watches it, and the clock, which ends its preparation in time."""

    def __init__(self, job: Job) -> None:
        self.preparing, watch = job.preparing, job.watch
        self.say, self.stage, self.begin = watch.say, watch.stage, watch.begin
        self.step, self.record = watch.step, watch.record


@dataclass(frozen=True)
class Question:
    """A question to a trained model.

    Attributes:
        text: a line for --help.
        reads: fields of the recipe's `asking` that it has besides those of :class:`UseSettings`.
        takes: what it is asked about: "lines", a "table" (a file that is handed on by name), or "nothing".
    """

    text: str
    reads: tuple[str, ...] = ()
    takes: Literal["lines", "table", "nothing"] = "lines"


@dataclass(frozen=True)
class Recipe:
    """A kind of training, by name. Subclasses bring the methods.

    Attributes:
        name: as in `pplseq train NAME`. text: a line for --help. data: what DATA is, for --help.
        settings: the dataclass of its training, inheriting RunSettings.
        limits: why it answers no more questions than it does, for messages.
        saved_as: the "model" in config.json of the folders of its models; its name where empty.
    """

    name: str
    text: str
    data: str
    settings: type
    saved_as: str = ""
    limits: str = ""

    questions: ClassVar[Mapping[str, Question]] = {}  # that its models answer
    scored_on: ClassVar[str] = ""  # what `evaluate` must be given; empty where the run's own data will do
    evaluation: ClassVar[type] = UseSettings
    asking: ClassVar[type] = UseSettings
    reporting: ClassVar[type] = ReportSettings
    cpu_only: ClassVar[bool] = False  # whether its models are evaluated and asked on the CPU alone
    several_processes: ClassVar[bool] = False  # whether torchrun may start several that train together
    one_model: ClassVar[bool] = False  # whether a run keeps one model, instead of a best and a last one

    def training(self) -> Any:
        """The file, imported when it is needed, with functions `train` and `info` as the methods are."""
        raise NotImplementedError

    def using(self) -> Any:
        """The file with `load`, `evaluate` and `query`; that of :meth:`training` by default."""
        return self.training()

    def viewing(self) -> Any:
        """The file with `view`: what a report shows beside facts, scores beside a rival's and sentences; None for nothing."""
        return None

    def train(self, job: Job) -> dict[str, Any]:
        """Train, leaving a model in RUN/best and RUN/last or wherever :meth:`load` looks.

        Returns:
            what the command prints as a JSON line, without "run": at least "stop_reason", "steps" and "seconds".
        """
        return self.training().train(job)

    def has_begun(self, folder: Path) -> bool:
        """Whether a folder holds something that :meth:`train` goes on from, and that a new run would destroy."""
        return whole_folder(folder / "last").exists()

    def has_all(self, folder: Path) -> bool:
        """Whether a folder whose training has come to its end holds all that it leaves; it is finished otherwise."""
        return True

    def summary(self, folder: Path) -> Mapping[str, Any] | None:
        """What :meth:`train` returned, where a run keeps it; None where it keeps none."""
        return None

    def prepared(self, folder: Path) -> Iterable[Path]:
        """Files that training keeps of its preparation, to be dropped when it begins anew with other settings."""
        return ()

    def load(self, folder: Path, settings: Any) -> Any:
        """The model of a run's folder or of its own, with `vocabulary` where it has one."""
        return self.using().load(folder, settings)

    def evaluate(self, folder: Path, data: str | None, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
        """A record for each figure of merit; `data` is None where none was given."""
        if data is None and self.scored_on:
            raise ValueError(
                f"give DATA: {self.scored_on}; without, a run is evaluated on the held-out data that it was given, and this "
                "one has none"
            )
        return self.using().evaluate(folder, data, settings, watch)

    def query(self, folder: Path, question: str, lines: Lines, settings: Any) -> Iterator[dict[str, Any]]:
        """An answer for each line; one that cannot be answered is {"line": number from 1, "error": why}."""
        return self.using().query(folder, question, lines, settings)

    def questions_of(self, folder: Path) -> Mapping[str, Question]:
        """Those that the model of a folder answers."""
        return self.questions

    def question(self, name: str) -> Question:
        """The question of a name; ValueError (with those it answers) where it has no answer to it."""
        if name not in self.questions:
            why = f" ({self.limits})" if self.limits else ""
            elsewhere = any(name in recipe.questions for recipe in RECIPES.values())
            hint = f" It answers {', '.join(self.questions)}" if elsewhere else nearest(name, self.questions)
            raise ValueError(f"{self.name} does not answer {name!r}{why}.{hint}")
        return self.questions[name]

    def report(self, folder: Path, about: dict[str, Any], settings: Any, watch: Watch) -> Iterator[Path]:
        """Writes the report, a file after the other; by default a page of `about`, what `info` says, and the records."""
        from pplseq.recipes.run_report import report

        shown = self.viewing()
        return report(folder, about, settings, None if shown is None else shown.view(folder, settings))

    def info(self, data: str, settings: Any) -> dict[str, Any]:
        """Sizes of data, and what training with these settings would cost."""
        return self.training().info(data, settings)

    def readable(self, answer: dict[str, Any]) -> str:
        """An answer, a score or what `info` found, for people."""
        return "\n".join(_lines(answer))


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """A line for each value that is there, those of a mapping moved in."""
    for name, value in answer.items():
        if isinstance(value, Mapping):
            yield f"{name.replace('_', ' ')}:"
            yield from (f"  {line}" for line in _lines(value))
        elif value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            yield f"{name.replace('_', ' ')}: {shown}"


RECIPES: dict[str, Recipe] = {}


def register(recipe: Recipe) -> Recipe:
    """Make a recipe known by its name."""
    if RECIPES.setdefault(recipe.name, recipe) is not recipe:
        raise ValueError(f"there is a recipe {recipe.name!r} already")
    return recipe


def recipe_named(name: str) -> Recipe:
    """The recipe of a name; ValueError (naming the nearest) where there is none."""
    known = name.replace("_", "-")
    if known not in RECIPES:
        raise ValueError(f"unknown model {name!r}.{nearest(name, RECIPES)}")
    return RECIPES[known]
