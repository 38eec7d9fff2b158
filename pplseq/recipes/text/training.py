"""Training models of words on text: corpus, clusters, model, batches, validation, and what a run's folder keeps of them."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pplseq import checks
from pplseq.baselines import NETWORKS
from pplseq.data.batches import SentenceBatches
from pplseq.data.text import Corpus, Text, check_no_table, describe_corpus, load_corpus
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.loading import load_text_model
from pplseq.models.texts import check_same_text, make_batches, validator
from pplseq.models.vlhmm.counts import check_start, start_from_counts
from pplseq.models.vlhmm.fit import batching, cached_clusters, check_blocks, check_divisible, lay_out
from pplseq.models.vlhmm.topics import start_topics
from pplseq.recipes.recipe import Job
from pplseq.recipes.text.corpus import corpus_of_run, draw_corpus, is_drawn
from pplseq.recipes.text.settings import GROWN, reading
from pplseq.runs import processes
from pplseq.runs.cost import check_fits, estimate, vlhmm_cost
from pplseq.runs.memory import keep_freed_memory
from pplseq.runs.settings import History, TrainSettings, perplexity
from pplseq.runs.signals import TimeOver
from pplseq.runs.training import model_device
from pplseq.runs.training import train as descend


# ---------------------------------------------------------------- the training
def train(name: str, job: Job) -> dict[str, Any]:
    """Train a vlhmm, an hmm or a network in a run's folder; the summary."""
    check_no_table(job.data)
    if getattr(job.settings, "grow", ()):
        grow(job, partial(train, name))
    settings, folder = job.settings, job.folder
    device = checks.device(settings.device)
    if device.type == "cpu":
        keep_freed_memory()
    together = processes.current()
    if is_drawn(job.data):
        if not hasattr(settings, "num_samples"):
            raise ValueError(f"{job.data}: samples of a language model are for vlhmm and hmm, which steer it; got {name}")
        with job.preparing(f"drawing {settings.num_samples:,} texts"), together.one_first():
            draw_corpus(folder, job.data, settings, job.watch.say)
    with job.preparing(f"reading {Path(job.data).name}"):
        corpus = corpus_of_run(folder, job.data, **reading(settings))
    if name == "vlhmm":
        settings = job.settings = batched(settings, corpus)
    if together.several and (name == "hmm" or settings.protocol != "carried"):
        raise ValueError("several processes train on streams (--protocol carried), by gradients; start one without torchrun")
    if together.writes:
        check_same_text(folder, corpus.train, job.resume, corpus.name)
    clusters = None
    small = None
    if name == "vlhmm":
        check_fits(vlhmm_cost(**_sizes(settings, corpus)), device)
        check_start(settings.start, settings.transition)
        if settings.grow_from is not None and not job.resume:
            small = _to_grow(settings, corpus.vocabulary)
    if name == "vlhmm" and settings.blocks != "none":
        num_words, sizes = len(corpus.vocabulary), (settings.num_blocks, settings.block_sizes)
        own_block = settings.eos_block and corpus.vocabulary.eos_id is not None
        check_blocks(settings.num_states, num_words, settings.blocks, *sizes, own_block)
        options = {option: getattr(settings, option) for option in ("eos_block", "exchange_passes", "seed")}
        blocks = settings.blocks if small is None else str(job.settings.grow_from / "clusters.paths")
        with job.preparing(f"clustering {num_words:,} words"), together.one_first():
            clusters = cached_clusters(folder, corpus.train, blocks, settings.num_blocks, **options)
    with seeded(settings.seed):
        with job.preparing("building the model"):
            if small is None:
                model = build_model(name, settings, corpus.train, clusters).to(device)
            else:
                factor = settings.num_states // small.config["num_states"]
                model = small.split(factor, transition=settings.transition, state_dropout=settings.state_dropout).to(device)
        size = f"{settings.hidden_size:,} units" if name in NETWORKS else f"{settings.num_states:,} states"
        job.watch.say(
            f"{name}: {size}, {len(corpus.vocabulary):,} words, {sum(p.numel() for p in model.parameters()):,} weights, "
            f"{device}; {corpus.name}: {corpus.train.num_tokens:,} training tokens"
        )
        if name not in NETWORKS:  # which have their vocabulary with them
            model.vocabulary, model.clusters = corpus.vocabulary, clusters
        history = _fit(name, model, corpus, job)
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


def _fit(name: str, model: Any, corpus: Corpus, job: Job) -> History:
    settings, by_em = job.settings, _by_em(job.settings)
    shared = {
        field: getattr(settings, field) for field in TrainSettings.__dataclass_fields__ if hasattr(settings, field)
    }
    chosen = TrainSettings(**shared)
    if by_em:
        batches: Any = em_batches(corpus.train, model_device(model))
    else:
        names = ("protocol", "shuffle", "batch_size", "segment_length", "batch_tokens", "seed")
        batches = make_batches(corpus.train, **{option: getattr(settings, option) for option in names})
    job.watch.begin(settings.epochs * (1 if by_em else len(batches)) if settings.max_time is None else None)
    board = TensorBoard(job.folder / "tensorboard") if settings.tensorboard else None

    def on_record(record: dict[str, Any]) -> None:
        job.watch.record(record)
        if board is not None:
            board.record(record)

    common: dict[str, Any] = {"settings": chosen, "folder": job.folder, "resume": job.resume, "began": job.started}
    common |= {"evaluate": validator(model, corpus.valid, protocol_of(settings)), "on_record": on_record}
    try:
        if by_em:
            from pplseq.runs.fits import train_em

            return train_em(model, batches, **common)
        if name in NETWORKS:
            from pplseq.baselines.neural import MaximumLikelihood

            model.precision = "bfloat16" if settings.normalizer_dtype == "bfloat16" else "full"
            common["elbo"] = MaximumLikelihood
        return descend(model, batches, on_step=job.watch.step, **common)
    finally:
        if board is not None:
            board.close()


# ---------------------------------------------------------------- its parts
def build_model(name: str, settings: Any, text: Text, clusters: Any) -> Any:
    """A fresh model of the words of the training text; the caller has set the seed."""
    from pplseq.models import HMM, VLHMM

    vocabulary = text.vocabulary
    if name in NETWORKS:
        return NETWORKS[name](vocabulary, **_options(NETWORKS[name], settings))
    if name == "hmm":
        # EM needs a little smoothing: a word that no state of a held-out sentence emits would be impossible.
        smooth = {table: settings.concentration for table in ("initial", "transition", "emission")}
        return HMM(settings.num_states, num_words=len(vocabulary), priors=smooth if _by_em(settings) else None)
    options = _options(VLHMM, settings)
    del options["blocks"]  # which these settings name, and lay_out finds
    model = VLHMM(**options)
    lay_out(model, vocabulary, clusters, block_sizes=settings.block_sizes, reset=settings.reset)
    if settings.start == "counts":
        start_from_counts(model, text)
    if model.num_topics > 1:
        start_topics(model, text)
    return model


def _options(kind: Callable, settings: Any) -> dict[str, Any]:
    """The arguments of a model, or of its cost, that settings hold: they bear the same names."""
    return {name: getattr(settings, name) for name in inspect.signature(kind).parameters if hasattr(settings, name)}


def _to_grow(settings: Any, vocabulary: Vocabulary) -> Any:
    """The model that this run's grows from.

    Raises:
        ValueError: it is no vlhmm, of other words or blocks, or its states are no whole part of these.
    """
    folder = settings.grow_from
    if settings.start != "random":
        raise ValueError(f"grow_from: the parameters come from {folder}; leave start = {settings.start} out")
    small = load_text_model(folder)
    if getattr(small, "name", None) != "vlhmm" or not (folder / "clusters.paths").is_file():
        raise ValueError(f"grow_from: {folder} is not a run of a vlhmm with blocks of words")
    if small.vocabulary.fingerprint() != vocabulary.fingerprint():
        raise ValueError(f"grow_from: {folder} was trained on other words; grow on the text it knows")
    config = small.config
    names = ("hidden_size", "parameterization", "tied", "shared_layer", "temperature", "num_topics")
    there = {name: config[name] for name in names} | {"num_blocks": int(small.block_of_word.max()) + 1}
    there |= {"block_sizes": "even" if config["states_per_block"] is None else "frequency", "reset": small.reset_id is not None}
    for name, value in there.items():
        if (given := getattr(settings, name)) != value:
            raise ValueError(f"grow_from: {folder} has {name} = {value}, and this run {given}; make them equal")
    if there["block_sizes"] != "even":
        raise ValueError(f"grow_from: blocks of {folder} are uneven; grow it in Python, by model.split(factor)")
    states = config["num_states"]
    if settings.num_states % states:
        below = settings.num_states // states * states
        near = " and ".join(str(size) for size in (below, below + states) if size)
        raise ValueError(f"grow_from: {settings.num_states} states are no multiple of the {states} of {folder}; use {near}")
    return small


def em_batches(text: Text, device: torch.device, batch_tokens: int = 4096) -> list[Any]:
    """The whole text as sentences, in pieces for EM."""
    from pplseq.infer.fit.em import Batch

    return [Batch(b.x.to(device), b.lengths.to(device)) for b in SentenceBatches(text, batch_tokens)]


def protocol_of(settings: Any) -> str:
    """How a run validates: EM goes through sentences, whatever the batches of gradient training would be."""
    return "sentence" if _by_em(settings) else settings.protocol


def _by_em(settings: Any) -> bool:
    return getattr(settings, "method", "sgd") == "em"


# ---------------------------------------------------------------- before it
def info(name: str, data: str, settings: Any) -> dict[str, Any]:
    """Sizes of a corpus; for a vlhmm what one of these sizes takes in memory and time on this machine.

    Nothing of the model's size is allocated: the estimate comes from operation counts and a short timing of the kernel that
    dominates.
    """
    num_blocks = 1 if name != "vlhmm" or settings.blocks == "none" else settings.num_blocks
    if name == "vlhmm":
        check_divisible(settings.num_states, num_blocks)
    check_no_table(data)
    if is_drawn(data):
        raise ValueError(f"{data}: samples are drawn where a run is trained; give a text of about that size")
    corpus = load_corpus(data, **reading(settings))
    facts = describe_corpus(corpus)
    if name == "vlhmm":
        sizes = _sizes(batched(settings, corpus), corpus)
        facts["estimate"] = estimate(corpus.train.num_tokens, device=checks.device(settings.device), **sizes)
    return facts


def batched(settings: Any, corpus: Corpus) -> Any:
    """The settings of a vlhmm with streams and learning rate for a text of this length, where they are not given."""
    chosen = settings.protocol, settings.batch_size, settings.segment_length, settings.lr
    batch_size, lr = batching(corpus.train.num_tokens, *chosen)
    return replace(settings, batch_size=batch_size, lr=lr)


def _sizes(settings: Any, corpus: Corpus) -> dict[str, Any]:
    """What the cost of a vlhmm depends on, as `vlhmm_cost` takes it."""
    step = settings.batch_size * settings.segment_length
    return _options(vlhmm_cost, settings) | {
        "num_words": len(corpus.vocabulary),
        "num_blocks": 1 if settings.blocks == "none" else settings.num_blocks,
        "num_tokens": step if settings.protocol == "carried" else settings.batch_tokens,
    }


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


# ---------------------------------------------------------------- sizes that grow
def grow(job: Job, train: Callable[[Job], dict[str, Any]]) -> None:
    """Trains the smaller sizes, and makes the job that of the last one: each has twice the time of the one before.

    Args:
        job: of a run with ``grow``. train: trains one size.
    """
    settings = job.settings
    if processes.current().several:
        raise ValueError("grow: several processes do not grow together; train the sizes one by one, with --grow-from")
    last = replace(settings, grow=(), num_states=settings.grow[-1])  # but for what it grows from
    smaller: Path | None = stage_folder(job.folder, settings.grow[-2])
    if not (job.folder / "last").is_dir():
        # a smaller size learns what it can hold in less time, and a step of it is cheaper
        first = None if settings.max_time is None else settings.max_time / (2 ** len(settings.grow) - 1)
        smaller, seconds = None, 0.0
        for rank, size in enumerate(settings.grow[:-1]):
            folder = stage_folder(job.folder, size)
            folder.mkdir(parents=True, exist_ok=True)
            job.stage = f"training {size:,} states"
            job.watch.say(f"growing: {size:,} states")
            share = None if first is None else 2**rank * first
            stage = replace(_growing(last, smaller), num_states=size, max_time=share)
            started = time.monotonic() if seconds else job.started
            try:
                seconds += train(Job(job.data, folder, stage, (folder / "last").is_dir(), job.watch, started))["seconds"]
                smaller = folder
            except TimeOver:  # before its first step; the sizes to come have time of their own
                seconds += time.monotonic() - started
                job.watch.say(f"no time for {size:,} states: reading and clustering took {seconds:.0f} s")
        job.watch.say(f"growing: {settings.grow[-1]:,} states")
        job.resume, job.started = False, time.monotonic() - seconds
    job.settings = _growing(last, smaller)


def _growing(settings: Any, smaller: Path | None) -> Any:
    """Settings of a size that grows from a smaller one, or begins by itself."""
    return settings if smaller is None else replace(settings, grow_from=smaller, start="random")


def stage_folder(folder: Path, size: int) -> Path:
    """Where the training of a smaller size stands."""
    return folder / GROWN / str(size)
