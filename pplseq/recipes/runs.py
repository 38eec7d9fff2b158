"""Train in a folder, and evaluate, ask, report on and look at what is there: for every model, by its recipe.

A run's folder says in config.toml which recipe made it, of what data, with which settings; the file is also one that
`pplseq train --config` reads. A model's own folder says which model it holds.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pplseq.checks import nearest
from pplseq.files import check_name
from pplseq.recipes.recipe import RECIPES, Job, Lines, Recipe, recipe_named
from pplseq.recipes.run_folder import RECORD, Record, check_folder, differs, held, read_record, record_of, write_record
from pplseq.recipes.settings import fill, options_of, read_sealed_toml
from pplseq.recipes.streams import PERSONALIZED
from pplseq.runs import processes
from pplseq.runs.progress import Watch
from pplseq.runs.signals import TimeOver, all_as_interrupts
from pplseq.runs.status import STATUS, UNFINISHED, run_status, say_status, unfinished
from pplseq.sources.stream_state import describe_state, has_state


# ---------------------------------------------------------------- training
def train(
    model: str | None = None,
    data: str | Path | None = None,
    *,
    folder: str | Path,
    resume: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train a model on data in a folder, as `pplseq train MODEL DATA --out FOLDER` does.

    The folder gets config.toml (all settings), what the training records, and the checkpoints of the model. Ctrl-C and SIGTERM
    stop between two steps, after saving; ``resume`` goes on, to the numbers of a run that was never stopped.

    Args:
        model: name of a recipe: "vlhmm", "lstm", ... (`pplseq.recipes.recipe.RECIPES`). data: as the recipe reads it.
        folder: the run's: a new one, or with ``resume`` that of a run, which has its model, data and settings.
        watch: who is told how it goes on, as :class:`~pplseq.runs.progress.TrainingBar` is, which draws; nobody by default.
        **settings: of the recipe (`pplseq train MODEL --help`); when resuming those that are free to change.

    Returns:
        the summary that the command prints: the run, why it stopped, steps, seconds, and the best of its validation. Where
        ``max_time`` passed before the first step there are 0 steps, and no model.

    Raises:
        ValueError, TypeError, FileNotFoundError: settings, data or a folder that will not do; nothing is left behind.

    Example:
        >>> import pplseq  # doctest: +SKIP
        >>> pplseq.train("vlhmm", "builtin:python", folder="runs/first", num_states=1024, max_time="60s")
    """
    started = time.monotonic()
    folder, watch = Path(folder), watch or Watch()
    check_name(folder)
    if resume:
        recipe, data, chosen = _resumed(folder, model, data, settings)
    else:
        if model is None or data is None or not str(data):
            raise ValueError(
                "give a model and data, for example: train('vlhmm', 'builtin:python', folder='runs/first')"
            )
        recipe = recipe_named(model)
        chosen = fill(recipe.settings, settings)
        data = str(Path(data).resolve()) if str(data) != "-" and Path(data).exists() else str(data)
    if processes.asked_for() > 1:
        _check_shared(recipe, data)
    try:
        with processes.started() as together:
            if not together.writes:
                return _train_beside(recipe, data, chosen, folder, together, started)
            summary = _train_in(recipe, data, chosen, folder, resume, watch, started, together)
            if resume and summary.get("stop_reason") == "max_time" and settings.get("max_time") is None:
                watch.say(
                    f"it stopped at its own limit of {chosen.max_time:g} s, which holds over all resumptions; give it more: "
                    f"pplseq train --resume {folder} --max-time {_longer(chosen.max_time)}"
                )
            return summary
    finally:
        watch.close()


def _longer(seconds: float) -> str:
    """A limit that lets a run go on: twice as long, and an hour at least."""
    return f"{max(1, math.ceil(seconds / 1800))}h"


def _train_in(recipe, data, chosen, folder, resume, watch, started, together) -> dict[str, Any]:
    resume = resume or _is_taken_over(recipe, data, chosen, folder, watch)
    check_folder(recipe, folder, resume)
    _set_threads(chosen.threads)
    with held(recipe, folder):
        check_folder(recipe, folder, resume)  # again: another process may have been faster
        write_record(recipe, data, chosen, folder)
        job = Job(data, folder, chosen, resume and recipe.has_begun(folder), watch, started)
        if together.several:
            together.said_first(job.resume)
        with all_as_interrupts(), _deterministic(chosen.deterministic):
            return {"run": str(folder), **_train(recipe, job)}


def _train_beside(recipe, data, chosen, folder, together, started) -> dict[str, Any]:
    """The part of a process that writes nothing: the first one has looked at the folder, and says whether to go on with it."""
    _set_threads(chosen.threads)
    job = Job(data, folder, chosen, together.said_first(None), Watch(), started)
    with all_as_interrupts(), _deterministic(chosen.deterministic):
        return {"run": str(folder), **recipe.train(job)}


@contextlib.contextmanager
def _deterministic(asked: bool) -> Iterator[None]:
    """One thread, loops from the first step on, and no algorithm that adds up in another order every time, while a training
    that asks for it runs."""
    if not asked:
        yield
        return
    import torch

    from pplseq.kernels import compiled

    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with compiled.always():
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def _train(recipe: Recipe, job: Job) -> dict[str, Any]:
    before = run_status(job.folder)
    done = before.get("step", 0)  # which holds where a loop has nothing left to do
    say_status(job.folder, "running", step=done, num_records=before.get("num_records"))
    status, reason = "failed", ""
    try:
        summary = recipe.train(job)
        status, reason = "finished", str(summary.get("stop_reason", ""))
        return summary
    except TimeOver:
        status, reason = "stopped", "max_time"
        job.watch.say(f"the time was up while {job.stage}, before the first step; give it more with --max-time")
        return {"stop_reason": "max_time", "steps": 0, "seconds": round(time.monotonic() - job.started, 1)}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    except (KeyboardInterrupt, SystemExit):
        status, reason = "stopped", "signal"
        if recipe.has_begun(job.folder):
            job.watch.say(f"\nstopped and saved; continue with: pplseq train --resume {job.folder}")
        else:
            job.watch.say("\nstopped before the first step; nothing was saved")
        raise
    finally:
        said = run_status(job.folder)
        if said["status"] == "running":
            if status == "finished" and said["reason"]:  # as the loop has ended
                reason, seconds = said["reason"], said["seconds"]
            else:
                seconds = time.monotonic() - job.started
            say_status(job.folder, status, reason, said.get("step", done), seconds, said.get("num_records"))


def _is_taken_over(recipe: Recipe, data: str | Path | None, settings: Any, folder: Path, watch: Watch) -> bool:
    """Whether a folder holds this very run, begun and not finished: the same command goes on with it."""
    if not (folder / RECORD).is_file() or not recipe.has_begun(folder):
        return False
    if run_status(folder)["status"] not in UNFINISHED and recipe.has_all(folder):
        return False
    if differs(recipe, data, settings, read_record(folder)):
        return False
    watch.say(f"{folder} holds this run, not finished: it goes on from its last checkpoint")
    return True


def _resumed(folder: Path, model: str | None, data: str | Path | None, given: Mapping[str, Any]) -> Record:
    record = read_record(folder)
    if data is not None or model not in (None, record.recipe.name):
        raise ValueError(
            f"{folder} is a run of {record.recipe.name} on {record.data}, and is resumed as such: leave out model and data"
        )
    options = options_of(record.recipe.settings)
    free = [name for name, option in options.items() if option.free]
    if fixed := sorted(name for name in given if name in options and name not in free):
        raise ValueError(
            f"a resumed run goes on with its own settings, so {', '.join(fixed)} cannot change; only these can: "
            f"{', '.join(sorted(free))}"
        )
    saved = {name: getattr(record.settings, name) for name in options}
    return record._replace(settings=fill(record.recipe.settings, {**saved, **given}))


# ---------------------------------------------------------------- what there is
def recipe_of(folder: str | Path) -> Recipe:
    """The recipe of a run's folder, or of the folder of a model that was saved from Python.

    Raises:
        FileNotFoundError: nothing there. ValueError: something else.
    """
    folder = Path(folder)
    if has_state(folder):
        return PERSONALIZED
    if (folder / RECORD).is_file():
        return recipe_named(str(read_sealed_toml(folder / RECORD).get("model")))
    if not folder.exists() and not folder.with_name(f".{folder.name}.old").exists():
        raise FileNotFoundError(f"{folder}: no such run or model folder")
    from pplseq.loading import model_folder
    from pplseq.models.storage import MODEL

    model = MODEL.read_header(model_folder(folder)).get("model")
    for recipe in RECIPES.values():
        if model == (recipe.saved_as or recipe.name):
            return recipe
    raise ValueError(
        f"{folder} holds a {model}, which has no commands: ask it from Python, pplseq.load({str(folder)!r}); models with "
        f"commands are {', '.join(RECIPES)}"
    )


# ---------------------------------------------------------------- using it
def evaluate(
    run: str | Path,
    data: str | Path | None = None,
    *,
    watch: Watch | None = None,
    each: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """How good the model of a run (or a saved model) is on data, as `pplseq evaluate RUN DATA` says it.

    Under torchrun each process scores its share of the sentences or streams of a text, and the first one says the figures.

    Args:
        run: a folder. data: as the recipe reads it; None where the run's own will do.
        watch: who is told remarks. each: called with every record as soon as it is there.
        **settings: of the recipe's evaluation (`pplseq evaluate RUN --help`).

    Returns:
        the records that the command prints; for models of text one for each protocol, with nats_per_token and perplexity.
    """
    recipe, found = recipe_of(run), []
    if processes.asked_for() > 1:
        _check_shared(recipe, data)
    if not processes.is_first():
        watch = each = None
    _note_unfinished(run, watch)
    chosen = _using(recipe, recipe.evaluation, settings)
    if data is None and recipe.scored_on:
        data = _held_out(Path(run), watch)
    with processes.started():
        for record in recipe.evaluate(Path(run), None if data is None else str(data), chosen, watch or Watch()):
            found.append(record)
            if each is not None:
                each(record)
    return found


def _held_out(run: Path, watch: Watch | None) -> str | None:
    """The data by which a training chose, where it was given some that are still there."""
    record = record_of(run)
    if record is None:
        return None
    path = getattr(record.settings, "validation", None)
    if path is None or not Path(path).is_file():
        return None
    if watch is not None:
        watch.say(f"on {Path(path).name}, the held-out data by which the training chose; DATA names others")
    return str(path)


def _check_shared(recipe: Recipe, data: str | Path | None) -> None:
    """Refuse what several processes cannot do together."""
    if not recipe.several_processes:
        several = ", ".join(name for name, other in RECIPES.items() if other.several_processes)
        raise ValueError(f"{recipe.name} is used in one process, without torchrun; several work on {several}")
    if data is not None and str(data) == "-":
        raise ValueError("DATA: several processes cannot share standard input; give a file, or start one without torchrun")


def query(
    run: str | Path, question: str, lines: Lines = (), *, watch: Watch | None = None, **settings: Any
) -> Iterator[dict[str, Any]]:
    """Answers to a question about every line, as `pplseq query RUN QUESTION` gives them.

    Args:
        run: the folder of a run or of a saved model. question: one of `recipe_of(run).questions`.
        lines: text or JSON, or the name of a file of them ("-" is standard input).
        **settings: that the question reads (`pplseq query RUN QUESTION --help`).

    Yields:
        JSON-able answers; a line that cannot be answered gives {"line": its number, "error": why}.
    """
    recipe = recipe_of(run)
    recipe.question(question)
    names = asked(recipe, question)
    if foreign := [name for name in settings if name not in names]:
        raise ValueError(f"{question} does not read {foreign[0]!r}.{nearest(foreign[0], names)}")
    chosen = _using(recipe, recipe.asking, settings)
    _note_unfinished(run, watch)
    if recipe.questions[question].takes == "table" and not isinstance(lines, (str, Path)):
        raise TypeError(f"lines: {question} is about a table; give the name of its file, got {type(lines).__name__}")
    yield from recipe.query(Path(run), question, lines, chosen)


def asked(recipe: Recipe, question: str) -> list[str]:
    """Names of the settings that a question reads: its own, and those of all questions."""
    special = {name for other in recipe.questions.values() for name in other.reads}
    own = recipe.question(question).reads
    return [name for name in options_of(recipe.asking) if name in own or name not in special]


def report(run: str | Path, *, watch: Watch | None = None, **settings: Any) -> list[Path]:
    """Write the report on a run (or a saved model): the files, a page first."""
    recipe = recipe_of(run)
    _note_unfinished(run, watch)
    return list(recipe.report(Path(run), info(run), _using(recipe, recipe.reporting, settings), watch or Watch()))


def info(what: str | Path, data: str | Path | None = None, **settings: Any) -> dict[str, Any]:
    """What a run is; or, of a model's name and data, how large the data are and what training would cost.

    Args:
        what: a run's folder, or the name of a recipe with `data` and its settings. A folder may be called as a recipe is.
    """
    if str(what) in RECIPES and not (data is None and not settings and Path(what).is_dir()):
        if data is None:
            raise ValueError(f"give the data that {what} would be trained on")
        recipe = RECIPES[str(what)]
        chosen = fill(recipe.settings, settings)
        _set_threads(chosen.threads)
        return recipe.info(str(data), chosen)
    if data is not None or settings:
        raise ValueError(f"unknown model {str(what)!r}.{nearest(str(what), RECIPES)}")
    recipe = recipe_of(what)
    found: dict[str, Any] = {"run": str(what), "model": recipe.name}
    if recipe is PERSONALIZED:
        return found | describe_state(Path(what))
    if (Path(what) / RECORD).is_file():
        record = read_record(what)
        options = options_of(recipe.settings)
        values = {name: getattr(record.settings, name) for name in options}
        found |= {"data": record.data, **_course(Path(what), recipe)}
        found["settings"] = {name: value for name, value in values.items() if value != options[name].default}
    elif (Path(what) / STATUS).is_file():
        found["settings"] = f"{RECORD} is missing"
    return found | {"questions": list(recipe.questions_of(Path(what)))}


def _course(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """How a run went, and the best it came to."""
    from pplseq.runs.metrics_log import metrics_of

    course: dict[str, Any] = {"status": run_status(folder)}
    absent = course["status"]["status"] == "absent"
    if absent:
        course["status"]["reason"] = f"{STATUS} is missing"
    if (summary := recipe.summary(folder)) is not None:  # a training without a loop of steps
        reason = summary["stop_reason"]
        if absent:
            course["status"] |= {"status": "stopped" if reason == "interrupted" else "finished"}
        course["summary"] = {name: value for name, value in summary.items() if name not in ("stop_reason", "sizes")}
    with contextlib.suppress(OSError):
        metrics = metrics_of(folder / "metrics.jsonl")
        course["best"] = next((record for record in reversed(metrics.records) if record.get("best")), None)
        course |= {} if metrics.damage is None else {"metrics.jsonl": metrics.damage}
    return course


def _note_unfinished(run: str | Path, watch: Watch | None) -> None:
    """Who uses a run that has not come to its end is told so."""
    note = unfinished(run)
    if note is None and (Path(run) / RECORD).is_file() and run_status(run)["status"] == "absent":
        note = f"{run}/{STATUS} is missing, so it is not known whether the training came to its end"
    if watch is not None and note is not None:
        watch.say(f"Note: {note}")


def _using(recipe: Recipe, kind: type, given: Mapping[str, Any]) -> Any:
    chosen = fill(kind, given)
    if recipe.cpu_only and chosen.device not in ("auto", "cpu"):
        raise ValueError(f"device: a model of {recipe.name} is used on the CPU; got {chosen.device!r}")
    if recipe.one_model and chosen.checkpoint != "best":
        raise ValueError(f"checkpoint: a run of {recipe.name} keeps one model; got {chosen.checkpoint!r}, leave it out")
    _set_threads(chosen.threads)
    return chosen


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
