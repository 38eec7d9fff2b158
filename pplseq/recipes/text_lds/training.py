"""Training the linear dynamical system for text on counts, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pplseq.data.lag_files import load_counts
from pplseq.models.text_lds.program import TextLDS
from pplseq.recipes.recipe import Job
from pplseq.runs.progress import Watch


def train(job: Job) -> dict[str, Any]:
    """EM from a subspace start, with a checkpoint last/, and best/ if it is the best so far; the summary."""
    settings = job.settings
    with job.preparing(f"reading {Path(job.data).name}"):
        counts = read_counts(Path(job.data), "counts", job.watch)
        validation = None if settings.validation is None else read_counts(Path(settings.validation), "validation", job.watch)
    model = TextLDS(settings.num_states, num_words=counts.num_words)
    job.watch.stage("finding a start")
    begun = False

    def on_record(record: dict[str, Any]) -> None:
        nonlocal begun
        if not begun:
            job.watch.begin(settings.max_iterations if settings.max_time is None else None)
        begun = True
        job.watch.record(record)

    names = ("pseudo_counts", "start", "restricted_iterations", "blocks", "horizon", "patience", "dtype", "seed")
    model.fit(
        counts,
        validation=validation,
        folder=job.folder,
        resume=job.resume,
        on_record=on_record,
        max_iterations=settings.max_iterations,
        update_state_noise=settings.update_state_noise,
        num_threads=settings.threads or 1,
        max_time=settings.max_time,
        began=job.started,
        **{name: getattr(settings, name) for name in names},
    )
    history = model.history
    last = history.records[-1]
    return {
        "stop_reason": history.stop_reason,
        "steps": last["step"],
        "best_step": history.best_step,
        "gain_per_token": last["gain_per_token"],
        **({"best_held_out_gain_per_token": history.best} if validation is not None else {}),
        "seconds": last["seconds"],
    }


def info(data: str, settings: Any) -> dict[str, Any]:
    """Sizes of counts, and of the tables (V, h) that training holds a few of."""
    counts = read_counts(Path(data), "counts", Watch())
    size = {"float64": 8, "float32": 4}[settings.dtype]
    stored = sum(matrix.nnz for matrix in counts.lags)
    return {
        "num_words": counts.num_words, "num_tokens": counts.num_tokens, "lags": counts.max_lag, "unit": counts.unit,
        "pairs": counts.num_pairs.tolist(), "distinct_pairs": stored,
        "bytes_of_a_table_of_words": counts.num_words * settings.num_states * size,
    }  # fmt: skip


def read_counts(folder: Path, name: str, watch: Watch) -> Any:
    """Counts, with a remark where not the whole text was counted."""
    try:
        counts = load_counts(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{name}: {error}, or count a text first: pplseq count TEXT --out COUNTS") from None
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from None
    if counts.missing:
        watch.say(f"Note: {name}: not the whole text was counted: without {', '.join(map(str, counts.missing))}")
    return counts
