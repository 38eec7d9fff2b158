"""Training models of words on text: the corpus of a run, the family that learns it, and what the run says in the end."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pplseq import checks
from pplseq.data.text import Corpus, check_no_table, describe_corpus, load_corpus
from pplseq.distributions.drawing import seeded
from pplseq.models.texts import check_same_text, introduction, make_batches, validator
from pplseq.recipes.recipe import FitWatch, Job
from pplseq.recipes.text import growing
from pplseq.recipes.text.corpus import corpus_of_run, draw_corpus, is_drawn
from pplseq.recipes.text.settings import reading
from pplseq.runs import processes
from pplseq.runs.cost import estimate
from pplseq.runs.memory import keep_freed_memory
from pplseq.runs.settings import History, TrainSettings, perplexity
from pplseq.runs.training import train as descend

TOLERANCE = 1e-4  # nats per token that an iteration of EM gains at least


# ---------------------------------------------------------------- the training
def train(name: str, job: Job) -> dict[str, Any]:
    """Train a vlhmm, an hmm or a network in a run's folder; the summary."""
    check_no_table(job.data)
    if getattr(job.settings, "grow", ()):
        growing.grow(job, lambda stage: train(name, stage))
    settings, folder = job.settings, job.folder
    if checks.device(settings.device).type == "cpu":
        keep_freed_memory()
    together = processes.current()
    if is_drawn(job.data):
        if not hasattr(settings, "num_samples"):
            raise ValueError(f"{job.data}: samples of a language model are for vlhmm and hmm, which steer it; got {name}")
        with job.preparing(f"drawing {settings.num_samples:,} texts"), together.one_first():
            draw_corpus(folder, job.data, settings, job.watch.say)
    with job.preparing(f"reading {Path(job.data).name}"):
        corpus = corpus_of_run(folder, job.data, **reading(settings))
    if together.several and (name == "hmm" or settings.protocol != "carried"):
        raise ValueError("several processes train on streams (--protocol carried), by gradients; start one without torchrun")
    board = TensorBoard(folder / "tensorboard") if settings.tensorboard else None
    try:
        history = (_fit_vlhmm if name == "vlhmm" else _fit_other)(name, corpus, job, None if board is None else board.record)
    finally:
        if board is not None:
            board.close()
    progress = history.progress
    summary = {"stop_reason": history.stop_reason, "steps": progress.step, "seconds": round(progress.seconds, 1)}
    if math.isfinite(progress.best):
        summary |= {
            "protocol": protocol_of(settings),
            "best_step": progress.best_step,
            "nats_per_token": progress.best,
            "perplexity": perplexity(progress.best),
        }
    return summary


def arguments_of(settings: Any, *of: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of models, of fits and of schedules that settings hold: they bear the same names."""
    names = [name for each in of for name in inspect.signature(each).parameters]
    return {name: getattr(settings, name) for name in names if hasattr(settings, name)}


def _fit_vlhmm(name: str, corpus: Corpus, job: Job, on_record: Callable[[dict[str, Any]], None] | None) -> History:
    from pplseq.models.vlhmm.fit import fit

    settings = job.settings
    options = arguments_of(settings, fit, TrainSettings)
    del options["min_count"]  # which is of reading
    if settings.grow_from is None or job.resume:
        more = growing.inherited(job.folder) if settings.grow_from is not None else {}
        model = _vlhmm(settings, **more)
    else:
        draws = seeded(settings.seed)  # of one stream: dropout would else repeat the numbers that set copies apart
        with job.preparing("growing"):
            model = growing.grown(settings, corpus.vocabulary, draws)
        options = {name: value for name, value in options.items() if name not in growing.OF_WORDS}
        options |= {"warm_start": True, "draws": draws}
    model.fit(
        corpus, folder=job.folder, resume=job.resume, watch=FitWatch(job), began=job.started, on_record=on_record, **options
    )
    return model.history


def _vlhmm(settings: Any, **more: Any) -> Any:
    """Without words yet, so that nothing of its size is allocated."""
    from pplseq.models.vlhmm.program import VLHMM

    given = arguments_of(settings, VLHMM) | more
    del given["blocks"]  # which these settings name, and the fit finds
    return VLHMM(**given)


def _fit_other(name: str, corpus: Corpus, job: Job, on_record: Callable[[dict[str, Any]], None] | None) -> History:
    """An HMM or a network, which learn from batches of the same kinds."""
    from pplseq.baselines import NETWORKS

    settings, text = job.settings, corpus.train
    by_em = getattr(settings, "method", "sgd") == "em"
    device, vocabulary = checks.device(settings.device), corpus.vocabulary
    if processes.current().writes:
        check_same_text(job.folder, text, job.resume, corpus.name)
    with seeded(settings.seed):
        with job.preparing("building the model"):
            if name in NETWORKS:
                model: Any = NETWORKS[name](vocabulary, **arguments_of(settings, NETWORKS[name]))
                model.precision = "bfloat16" if settings.normalizer_dtype == "bfloat16" else "full"
            else:
                from pplseq.models import HMM

                # EM needs a little smoothing: a word that no state of a held-out sentence emits would be impossible.
                smooth = {table: settings.concentration for table in ("initial", "transition", "emission")}
                model = HMM(settings.num_states, priors=smooth if by_em else None, vocabulary=vocabulary)
            model = model.to(device)
        size = f"{settings.hidden_size:,} units" if name in NETWORKS else f"{settings.num_states:,} states"
        job.watch.say(introduction(f"{name}: {size}", model, text, corpus.name))
        batches = None if by_em else make_batches(text, **arguments_of(settings, make_batches))
        steps = 1 if batches is None else len(batches)  # of an epoch
        job.watch.begin(settings.epochs * steps if settings.max_time is None else None)

        def record(found: dict[str, Any]) -> None:
            job.watch.record(found)
            if on_record is not None:
                on_record(found)

        common: dict[str, Any] = dict(folder=job.folder, resume=job.resume, began=job.started, on_record=record)
        if by_em:
            model.fit(
                text, method="em", warm_start=True, max_iterations=settings.epochs, tolerance=TOLERANCE,
                validation=corpus.valid, early_stop=settings.early_stop, max_time=settings.max_time, **common,
            )  # fmt: skip
            return model.history.run
        common |= {
            "settings": TrainSettings(**arguments_of(settings, TrainSettings)),
            "evaluate": validator(model, corpus.valid, protocol_of(settings)),
        }
        if name in NETWORKS:
            from pplseq.baselines.neural import MaximumLikelihood

            common["elbo"] = MaximumLikelihood
        return descend(model, batches, on_step=job.watch.step, **common)


def protocol_of(settings: Any) -> str:
    """How a run validates: EM goes through sentences, whatever the batches of gradient training would be."""
    return "sentence" if getattr(settings, "method", "sgd") == "em" else settings.protocol


# ---------------------------------------------------------------- before it
def info(name: str, data: str, settings: Any) -> dict[str, Any]:
    """Sizes of a corpus; for a vlhmm what one of these sizes takes in memory and time on this machine.

    Nothing of the model's size is allocated: the estimate comes from operation counts and a short timing of the kernel that
    dominates.
    """
    check_no_table(data)
    if is_drawn(data):
        raise ValueError(f"{data}: samples are drawn where a run is trained; give a text of about that size")
    if name != "vlhmm":
        return describe_corpus(load_corpus(data, **reading(settings)))
    from pplseq.models.vlhmm.fit import batching, check_divisible, cost_sizes

    model = _vlhmm(settings)
    num_blocks = 1 if settings.blocks == "none" else settings.num_blocks
    check_divisible(settings.num_states, num_blocks)
    corpus = load_corpus(data, **reading(settings))
    tokens, streams = corpus.train.num_tokens, settings.protocol == "carried"
    batch_size, _ = batching(tokens, settings.protocol, settings.batch_size, settings.segment_length, settings.lr)
    num_tokens = batch_size * settings.segment_length if streams else settings.batch_tokens
    sizes = cost_sizes(model, len(corpus.vocabulary), num_blocks, num_tokens)
    return describe_corpus(corpus) | {"estimate": estimate(tokens, device=checks.device(settings.device), **sizes)}


# ---------------------------------------------------------------- beside it
class TensorBoard:
    """Every number of metrics.jsonl as a TensorBoard scalar."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                f'tensorboard needs the package of that name: pip install "pplseq[tensorboard]" ({error})'
            ) from error
        self.writer = SummaryWriter(str(folder))

    def record(self, record: dict[str, Any]) -> None:
        """A record, as it is written."""
        for name, value in record.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
                self.writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
