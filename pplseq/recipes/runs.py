"""Train in a folder, and evaluate, ask, report on and look at what is there: for every model, by its recipe.

A run's folder says in config.toml which recipe made it, of what data, with which settings; the file is also one that
`pplseq train --config` reads. A model's own folder says which model it holds.
"""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pplseq.checks import nearest
from pplseq.files import write_text
from pplseq.recipes.recipe import RECIPES, Job, Lines, Recipe, UseSettings, recipe_named
from pplseq.recipes.settings import fill, options_of, read_toml, to_toml
from pplseq.runs import processes
from pplseq.runs.progress import Watch
from pplseq.runs.signals import TimeOver, all_as_interrupts
from pplseq.runs.status import LOCK, STATUS, UNFINISHED, run_status, say_status, unfinished
from pplseq.sources.stream_state import describe_state, has_state

RECORD = "config.toml"
PERSONALIZED = Recipe("personalize", "", "", UseSettings, limits="it is the state of a stream")  # not trained as others are


class Record(NamedTuple):
    """What a run's folder says of itself."""

    recipe: Recipe
    data: str
    settings: Any


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
        model: name of a recipe: "vlhmm", "lstm", ... (`pplseq.recipes.RECIPES`). data: as the recipe reads it.
        folder: the run's: a new one, or with ``resume`` that of a run, which has its model, data and settings.
        watch: who is told how it goes on; nobody by default.
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
            return _train_in(recipe, data, chosen, folder, resume, watch, started, together)
    finally:
        watch.close()


def _train_in(recipe, data, chosen, folder, resume, watch, started, together) -> dict[str, Any]:
    resume = resume or _is_taken_over(recipe, data, chosen, folder, watch)
    _check_folder(recipe, folder, resume)
    _set_threads(chosen.threads)
    existed = folder.exists()
    from pplseq.runs.checkpoint import only_one_run

    try:
        with only_one_run(folder):
            _check_folder(recipe, folder, resume)  # again: another process may have been faster
            _write_record(recipe, data, chosen, folder)
            job = Job(data, folder, chosen, resume and recipe.has_begun(folder), watch, started)
            if together.several:
                together.said_first(job.resume)
            with all_as_interrupts(), _deterministic(chosen.deterministic):
                return {"run": str(folder), **_train(recipe, job)}
    except Exception:
        _clear_away(recipe, folder, existed)
        raise


def _train_beside(recipe, data, chosen, folder, together, started) -> dict[str, Any]:
    """The part of a process that writes nothing: the first one has looked at the folder, and says whether to go on with it."""
    _set_threads(chosen.threads)
    job = Job(data, folder, chosen, together.said_first(None), Watch(), started)
    with all_as_interrupts(), _deterministic(chosen.deterministic):
        return {"run": str(folder), **recipe.train(job)}


@contextlib.contextmanager
def _deterministic(asked: bool) -> Iterator[None]:
    """One thread, and no algorithm that adds up in another order every time, while a training that asks for it runs."""
    if not asked:
        yield
        return
    import torch

    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def _same_numbers(deterministic: bool) -> str:
    """What a run is reproducible over, for its record."""
    import torch

    threads = "any number of threads" if deterministic else f"{torch.get_num_threads()} threads"
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return f"# The same numbers come with: {threads}, a processor like this ({kind}), torch {torch.__version__}\n"


def _train(recipe: Recipe, job: Job) -> dict[str, Any]:
    done = run_status(job.folder).get("step", 0)  # which holds where a loop has nothing left to do
    say_status(job.folder, "running", step=done)
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
        if run_status(job.folder)["status"] == "running":  # the loop of a training has not said how it ended
            say_status(job.folder, status, reason, step=done, seconds=time.monotonic() - job.started)


def _is_taken_over(recipe: Recipe, data: str | Path | None, settings: Any, folder: Path, watch: Watch) -> bool:
    """Whether a folder holds this very run, begun and not finished: the same command goes on with it."""
    if not (folder / RECORD).is_file() or not recipe.has_begun(folder):
        return False
    if run_status(folder)["status"] not in UNFINISHED and recipe.has_all(folder):
        return False
    if _differs(recipe, data, settings, read_record(folder)):
        return False
    watch.say(f"{folder} holds this run, not finished: it goes on from its last checkpoint")
    return True


def _differs(recipe: Recipe, data: str | Path | None, settings: Any, before: Record) -> bool:
    fixed = [name for name, option in options_of(recipe.settings).items() if not option.free]
    same = all(getattr(before.settings, name) == getattr(settings, name) for name in fixed)
    return (before.recipe, before.data) != (recipe, str(data)) or not same


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


def _check_folder(recipe: Recipe, folder: Path, resume: bool) -> None:
    """Refuse a folder that would lose a run or something else."""
    if resume or not folder.is_dir():
        return
    if recipe.has_begun(folder):
        raise ValueError(f"{folder} already holds a run; continue it with --resume {folder}, or choose another folder")
    if not (folder / RECORD).exists() and any(not _is_left_over(path.name) for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no run; give a new folder, so that nothing is overwritten")


def _is_left_over(name: str) -> bool:
    """Whether a process that was killed may have left this in a run's folder."""
    return name.startswith(".") and name.endswith((".new", ".old", ".lock", LOCK))


def _write_record(recipe: Recipe, data: str, settings: Any, folder: Path) -> None:
    path = folder / RECORD
    if path.exists() and not recipe.has_begun(folder):
        if _differs(recipe, data, settings, read_record(folder)):
            for file in recipe.prepared(folder):
                file.unlink(missing_ok=True)
    write_text(
        path,
        "# The settings of this run; again: pplseq train --config config.toml --out ANOTHER_FOLDER\n"
        f"{_same_numbers(settings.deterministic)}"
        f"model = {json.dumps(recipe.name)}\ndata = {json.dumps(data, ensure_ascii=False)}\n{to_toml(settings)}",
    )


def _clear_away(recipe: Recipe, folder: Path, existed: bool) -> None:
    """A failed training that had not begun leaves nothing behind."""
    if folder.is_dir() and not recipe.has_begun(folder) and {path.name for path in folder.iterdir()} <= {RECORD, STATUS}:
        for name in (RECORD, STATUS):
            (folder / name).unlink(missing_ok=True)
        if not existed:
            folder.rmdir()


# ---------------------------------------------------------------- what there is
def read_record(run: str | Path) -> Record:
    """The recipe, the data and the settings of a run; FileNotFoundError or ValueError where it is none."""
    path = Path(run) / RECORD
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run of `pplseq train`: it has no {RECORD}")
    table = read_toml(path)
    recipe = recipe_named(str(table.pop("model", None)))
    data = str(table.pop("data", ""))
    return Record(recipe, data, fill(recipe.settings, table, where=f"{path}: "))


def recipe_of(folder: str | Path) -> Recipe:
    """The recipe of a run's folder, or of the folder of a model that was saved from Python.

    Raises:
        FileNotFoundError: nothing there. ValueError: something else.
    """
    folder = Path(folder)
    if has_state(folder):
        return PERSONALIZED
    if (folder / RECORD).is_file():
        return recipe_named(str(read_toml(folder / RECORD).get("model")))
    if not folder.exists() and not folder.with_name(f".{folder.name}.old").exists():
        raise FileNotFoundError(f"{folder}: no such run or model folder")
    from pplseq.baselines.loading import model_folder
    from pplseq.models.storage import MODEL

    model = MODEL.read_header(model_folder(folder)).get("model")
    for recipe in RECIPES.values():
        if model == (recipe.saved_as or recipe.name):
            return recipe
    raise ValueError(f"{folder} holds a {model}, which no recipe is about")


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
    with processes.started():
        for record in recipe.evaluate(Path(run), None if data is None else str(data), chosen, watch or Watch()):
            found.append(record)
            if each is not None:
                each(record)
    return found


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
        what: a run's folder, or the name of a recipe with `data` and its settings.
    """
    if str(what) in RECIPES:
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
    return found | {"questions": list(recipe.questions)}


def _course(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """How a run went, and the best it came to."""
    from pplseq.runs.metrics_log import read_metrics

    course: dict[str, Any] = {"status": run_status(folder)}
    if (summary := recipe.summary(folder)) is not None:  # a training without a loop of steps
        reason = summary["stop_reason"]
        if course["status"]["status"] == "absent":
            course["status"] = {"status": "stopped" if reason == "interrupted" else "finished", "reason": reason}
        course["summary"] = {name: value for name, value in summary.items() if name not in ("stop_reason", "sizes")}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        course["best"] = next(
            (record for record in reversed(read_metrics(folder / "metrics.jsonl")) if record.get("best")), None
        )
    return course


def _note_unfinished(run: str | Path, watch: Watch | None) -> None:
    """Who uses a run that has not come to its end is told so."""
    if watch is not None and (note := unfinished(run)) is not None:
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
