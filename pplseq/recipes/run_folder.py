"""A run's folder beside its checkpoints: its record, config.toml, and what a training that failed leaves there."""

from __future__ import annotations

import contextlib
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pplseq.files import write_text
from pplseq.folder import sound
from pplseq.recipes.recipe import Recipe, recipe_named
from pplseq.recipes.settings import fill, options_of, read_sealed_toml, seal_toml, to_toml
from pplseq.runs.provenance import code_version
from pplseq.runs.status import LOCK, STATUS

RECORD = "config.toml"
REFUSALS = (ValueError, TypeError, FileNotFoundError, ImportError)  # of what was asked for, which another call has to change


class Record(NamedTuple):
    """What a run's folder says of itself."""

    recipe: Recipe
    data: str
    settings: Any


def read_record(run: str | Path) -> Record:
    """The recipe, the data and the settings of a run; FileNotFoundError or ValueError where it is none."""
    path = Path(run) / RECORD
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run of `pplseq train`: it has no {RECORD}")
    table = read_sealed_toml(path)
    with sound(str(path), "put back what was changed"):
        recipe = recipe_named(str(table.pop("model", None)))
        data = str(table.pop("data", ""))
        return Record(recipe, data, fill(recipe.settings, table))


def differs(recipe: Recipe, data: str | Path | None, settings: Any, before: Record) -> bool:
    """Whether a run that is asked for is another than the one of a record, beside what may be given anew."""
    fixed = [name for name, option in options_of(recipe.settings).items() if not option.free]
    same = all(getattr(before.settings, name) == getattr(settings, name) for name in fixed)
    return (before.recipe, before.data) != (recipe, str(data)) or not same


def check_folder(recipe: Recipe, folder: Path, resume: bool) -> None:
    """Refuse a folder that would lose a run or something else."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: expected a folder for the run, got a file or a device; give another name")
    if resume or not folder.is_dir():
        return
    if recipe.has_begun(folder):
        raise ValueError(f"{folder} already holds a run; continue it with --resume {folder}, or choose another folder")
    if not (folder / RECORD).exists() and any(not _is_left_over(path.name) for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no run; give a new folder, so that nothing is overwritten")


def _is_left_over(name: str) -> bool:
    """Whether a process that was killed may have left this in a run's folder."""
    return name.startswith(".") and name.endswith((".new", ".old", ".lck", LOCK))


def record_of(folder: Path) -> Record | None:
    """What a run says of itself; None of a model's own folder."""
    return read_record(folder) if (folder / RECORD).exists() else None


def write_record(recipe: Recipe, data: str, settings: Any, folder: Path) -> None:
    """Write config.toml; what was prepared for a run of other settings that has not begun is dropped."""
    path = folder / RECORD
    if path.exists() and not recipe.has_begun(folder):
        if differs(recipe, data, settings, read_record(folder)):
            for file in recipe.prepared(folder):
                file.unlink(missing_ok=True)
    text = (
        "# The settings of this run; again: pplseq train --config config.toml --out ANOTHER_FOLDER\n"
        f"# Trained by pplseq {code_version()}\n{_same_numbers(settings.deterministic)}"
        + to_toml(settings, model=recipe.name, data=data)
    )
    try:
        write_text(path, seal_toml(text))
    except UnicodeEncodeError:
        raise ValueError(f"{data!a}: its name, or one among the settings, is not UTF-8 text; give it another name") from None


def _same_numbers(deterministic: bool) -> str:
    """What a run is reproducible over, for its record."""
    import torch

    threads = "any number of threads" if deterministic else f"{torch.get_num_threads()} threads"
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return f"# The same numbers come with: {threads}, a processor like this ({kind}), torch {torch.__version__}\n"


@contextlib.contextmanager
def held(recipe: Recipe, folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run's folder, which is made; a training that fails before it has begun leaves nothing.

    What took long to prepare is left where another call can go on with it: where nothing that was asked for was refused.

    Raises:
        ValueError: another process is training there.
    """
    from pplseq.runs.checkpoint import only_one_run

    made = [place for place in (folder.resolve(), *folder.resolve().parents) if not place.exists()]
    try:
        with only_one_run(folder):
            before = set(folder.iterdir())
            try:
                yield
            except Exception as error:
                if not recipe.has_begun(folder):
                    _clear_away(set(folder.iterdir()) - before, isinstance(error, REFUSALS))
                raise
    except Exception:
        for place in made:
            with contextlib.suppress(OSError):  # it is not empty
                place.rmdir()
        raise


def _clear_away(new: set[Path], refused: bool) -> None:
    """Remove what a training has made; `refused`: also what takes long to prepare."""
    if refused or {path.name for path in new} <= {RECORD, STATUS}:
        for path in new:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
