"""How a VLHMM is learned: blocks of words that have like neighbours, and descent on the nats per token of a text.

Source: J. Chiu and A. M. Rush (2020), Scaling Hidden Markov Language Models, EMNLP, sections 3 and 4.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data import clustering
from pplseq.data.clusters import Clusters
from pplseq.data.text import Corpus, Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.blocks import share_states
from pplseq.distributions.drawing import seeded
from pplseq.folder import write_with_sum
from pplseq.infer.fit.held import frozen, restored
from pplseq.models.fitted import told_held
from pplseq.models.fitting import digest_of_text
from pplseq.models.storage import MODEL, read_model
from pplseq.models.texts import as_texts, check_same_text, introduction, make_batches, validator
from pplseq.models.vlhmm.counts import check_start, start_from_counts
from pplseq.models.vlhmm.topics import KeptTopics, start_topics, with_topics
from pplseq.runs import processes
from pplseq.runs.checkpoint import is_held_here, only_one_run
from pplseq.runs.cost import check_fits, vlhmm_cost
from pplseq.runs.loop import check_resumed, check_same_run, digest
from pplseq.runs.progress import TrainingBar, Watch
from pplseq.runs.settings import TrainSettings
from pplseq.runs.status import run_status, say_status
from pplseq.runs.training import train

BLOCKS = ("brown", "uniform", "none")
BLOCK_SIZES = ("even", "frequency")
MOST_BLOCKS = 128  # unless they are asked for
LAYOUT = ("blocks", "num_blocks", "block_sizes", "eos_block", "exchange_passes", "reset")
OF_FIT = ("num_words", "reset_id", "states_per_block")  # of a model's config, where the fit finds them
FREE = ("state_dropout", "feature_dropout", "topic_decay")  # of its config, which a resumed run may be given anew


def fit(
    model: Any,
    x: Any,
    lengths: Any = None,
    *,
    validation: Any = None,
    folder: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    progress: bool = False,
    warm_start: bool = False,
    fixed: str | Sequence[str] | Mapping[str, Any] = (),
    topics: Any = None,
    device: str | torch.device | None = None,
    min_count: int | None = None,
    blocks: str = "brown",
    num_blocks: int | None = None,
    block_sizes: str = "even",
    eos_block: bool = True,
    exchange_passes: int = 0,
    reset: bool = True,
    protocol: str | None = None,
    shuffle: str = "line",
    start: str = "random",
    batch_size: int | None = None,
    segment_length: int = 32,
    batch_tokens: int = 512,
    lr: float | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    watch: Watch | None = None,
    began: float | None = None,
    draws: contextlib.AbstractContextManager[Any] | None = None,
    **settings: Any,
) -> None:
    """Gives a model its words, blocks and parameters where it has none yet, and trains it.

    Args:
        model: a :class:`~pplseq.models.vlhmm.program.VLHMM`.
        x, lengths, validation, min_count: see :func:`~pplseq.models.texts.as_texts`.
        folder: of a run: ``best/`` and ``last/``, ``metrics.jsonl``, ``clusters.paths``; None keeps nothing.
        resume: go on where the run in the folder stopped, to the same numbers.
        seed: of initial parameters, the order of batches and dropout; None draws from torch's generator, and is 0 for a run,
            which has to be resumable.
        progress: a bar on stderr.
        warm_start: train on from the parameters as they stand, instead of drawing them anew.
        fixed: what keeps its values, by the names of ``named_parameters()``, of a model that has its words.
        topics: that are known, one for each line of x, or each article: numbers from 0, None (NaN, -1) where it is not known.
            Topics start at a clustering of these parts, in the place of windows over the text.
        device: where to train; None: where the model is.
        blocks, num_blocks, eos_block, exchange_passes: see :func:`make_clusters`; for a model without words. num_blocks None is
            the largest number up to 128 that divides the states.
        block_sizes: states of a block: "even", or "frequency", more for blocks of frequent words.
        reset: after ``<eos>`` the state starts afresh, in training and evaluation; for a model without words.
        protocol, shuffle, batch_size, segment_length, batch_tokens: see :func:`~pplseq.models.texts.make_batches`; without a
            protocol it is "carried" for text whose lines end in ``<eos>``, else "sentence". batch_size and lr: see
            :func:`batching`.
        start: of the parameters: "random", as the model's ``initialization`` says, or "counts", class bigrams of the text
            (:func:`~pplseq.models.vlhmm.counts.start_from_counts`; with hierarchical transitions).
        on_record: called with every record of the metrics.
        watch: who is told of what comes before the first step, and of every step; in the place of the bar.
        began: ``time.monotonic()`` when the time of ``max_time`` began; None: now.
        draws: a block :func:`~pplseq.distributions.drawing.seeded` by the seed, where the model was drawn from it, as by
            :meth:`VLHMM.split`, so that training goes on with the numbers behind those; None: a new one.
        **settings: of :class:`~pplseq.runs.settings.TrainSettings`: epochs, max_time, patience, early_stop, clip, ...

    The model ends with the parameters that were best on held-out text, or the last ones where there is none, also when Ctrl-C
    ends the training (which is raised once they are in place). Its ``history`` says what happened.

    Raises:
        ValueError, TypeError: for data, sizes or settings that do not fit; before anything is computed.
        NonFiniteLoss: naming the step.
    """
    began = time.monotonic() if began is None else began
    schedule = _settings(settings if lr is None else settings | {"lr": lr})
    checks.function("on_record", on_record, "a record")
    fresh = model.num_words is None
    check_start(start, model.config["transition"])
    if start != "random" and warm_start:
        raise ValueError(f"start = {start}: a warm start trains on from the parameters as they stand; leave one of both out")
    if fresh and fixed:
        raise ValueError(
            f"fixed: this VLHMM gets its words and parameters from the text, so there is no value of {checks.shown(fixed)} to "
            "keep; fit it first, or make it with num_words"
        )
    own = {
        "blocks": blocks != "brown", "num_blocks": num_blocks is not None, "block_sizes": block_sizes != "even",
        "eos_block": not eos_block, "exchange_passes": exchange_passes != 0, "reset": not reset,
        "min_count": min_count is not None,
    }  # fmt: skip
    if not fresh and any(own.values()):
        name = next(name for name, changed in own.items() if changed)
        raise ValueError(f"{name}: the model has its words and blocks already; make one without num_words to give it others")
    train_text, valid_text, has_words = as_texts(
        x, lengths, validation, vocabulary=model.vocabulary, num_words=model.num_words, min_count=min_count
    )
    labelled, starts = train_text, None
    if topics is not None and model.num_topics == 1:
        raise ValueError("topics: the model has one topic; make it with num_topics")
    if topics is not None:
        labelled, starts = with_topics(train_text, topics, model.num_topics)
    of = x.name if isinstance(x, Corpus) else train_text.name
    vocabulary = train_text.vocabulary
    if not fresh and model.num_words != len(vocabulary):
        raise ValueError(f"x has a vocabulary of {len(vocabulary)} words, but the model has {model.num_words}")
    protocol = protocol or ("carried" if vocabulary.eos_id is not None else "sentence")
    resets = reset and vocabulary.eos_id is not None if fresh else model.reset_id is not None
    if topics is not None and protocol == "carried" and not resets:
        raise ValueError(
            "topics: in a text without resets the topic never changes; leave reset=False out, or use protocol='sentence'"
        )
    if seed is None and folder is not None:
        seed = 0
    batch_size, rate = batching(train_text.num_tokens, protocol, batch_size, segment_length, lr)
    schedule = replace(schedule, lr=rate)
    batch_seed = int(torch.randint(2**31, ())) if seed is None else checks.seed("seed", seed)
    device = checks.device(device or ("cpu" if fresh else model.block_of_word.device))
    batches = make_batches(
        labelled, protocol, shuffle=shuffle, batch_size=batch_size, segment_length=segment_length,
        batch_tokens=batch_tokens, seed=batch_seed,
    )  # fmt: skip
    if not fresh:
        num_blocks = int(model.block_of_word.max()) + 1
    elif num_blocks is None:
        num_blocks = most_blocks(model.config["num_states"], len(vocabulary))
    if fresh:
        own_block = eos_block and vocabulary.eos_id is not None
        check_blocks(model.config["num_states"], len(vocabulary), blocks, num_blocks, block_sizes, own_block)
    tokens = batch_size * segment_length if protocol == "carried" else batch_tokens
    check_fits(vlhmm_cost(**cost_sizes(model, len(vocabulary), 1 if blocks == "none" else num_blocks, tokens)), str(device))
    holds = {} if fresh else model._held_by(fixed)
    drawn = () if fresh or resume else model._random_parameters
    together = processes.current()
    with _run_folder(folder, resume) as place, draws or seeded(seed), contextlib.ExitStack() as stack:
        watch = watch or (stack.enter_context(contextlib.closing(TrainingBar())) if progress else Watch())
        if place is not None and together.writes:
            check_same_text(place, labelled, resume, of)
        about = {"protocol": protocol, "shuffle": shuffle, "batch_size": batch_size, "segment_length": segment_length}
        by_config = ["topic_kept"] if model.config["topic_persistence"] is not None else []  # which a model without words lacks
        about |= {"batch_tokens": batch_tokens, "lr": schedule.lr}
        about |= {"frozen": [name for name in frozen(model) if name not in by_config]}
        about |= {"fixed": told_held(holds)} if holds else {}
        about |= {"seed": batch_seed, "validation": None if valid_text is None else digest_of_text(valid_text)}
        layout, has_eos = {}, vocabulary.eos_id is not None
        if fresh:
            layout = told_layout(blocks, num_blocks, block_sizes, eos_block and has_eos, exchange_passes, reset and has_eos)
        about |= layout
        check_same = None
        if resume and place is not None:
            about = check_resumed(place, about, ("seed", "validation", *LAYOUT))
            check_same = partial(check_same_model, place, MODEL.read(place / "last"))
            check_same(model, layout)
        clusters = None
        if fresh and blocks != "none":
            cluster = make_clusters if place is None else partial(cached_clusters, place)
            with watch.preparing(f"clustering {len(vocabulary):,} words"), together.one_first():
                clusters = cluster(
                    train_text, blocks, num_blocks, eos_block=eos_block, exchange_passes=exchange_passes, seed=batch_seed
                )
        elif place is not None and model.clusters is not None and together.writes:
            keep_clusters(place, model.clusters, vocabulary)
        with watch.preparing("building the model"):
            if fresh:
                lay_out(model, vocabulary, clusters, block_sizes=block_sizes, reset=reset)
                if check_same is not None:
                    check_same(model)
            elif not (warm_start or resume):
                model.draw_anew(holds)
            stack.enter_context(model._keeping(holds, "sgd", drawn))
            with restored(model):
                if start == "counts" and not resume:
                    start_from_counts(model, train_text)
                if model.num_topics > 1 and not (warm_start or resume):
                    start_topics(model, labelled, starts)
            if has_words:
                model.vocabulary = vocabulary
            else:
                model.clusters = None  # which are of words
            model.to(device)
        watch.say(introduction(f"{model.name}: {model.config['num_states']:,} states", model, train_text, of))
        best: dict[str, Tensor] = {}
        measure, keep = validator(model, valid_text, protocol), lambda: None
        if model.num_topics > 1 and (protocol == "sentence" or shuffle == "line"):
            model._learns_lines_apart = True
            stack.callback(setattr, model, "_learns_lines_apart", False)
            if model.reset_id is not None and model.topic_kept.requires_grad and "topic_kept" not in holds:
                keep = KeptTopics(model, labelled.tokens)

        def score() -> Mapping[str, Any]:
            assert measure is not None, "it is asked where there is text to score"
            keep()
            return measure()

        def save(to: Path) -> None:
            keep()
            model.save(to)

        def record(found: dict[str, Any]) -> None:
            if place is None and found.get("best"):
                best.update({name: value.clone() for name, value in model.state_dict().items()})
            watch.record(found)
            if on_record is not None:
                on_record(found)

        watch.begin(schedule.epochs * len(batches) if schedule.max_time is None else None)
        try:
            model.is_fitted = True
            model.history = train(
                model, batches, evaluate=None if measure is None else score, settings=schedule, folder=place, save=save,
                resume=resume, began=began, about=about, on_step=watch.step, on_record=record,
            )  # fmt: skip
        finally:
            if place is not None and together.writes and valid_text is not None and (place / "best").exists():
                best = read_model(place / "best").state_dict()
            if best:
                model.load_state_dict(best)
            else:
                keep()
            model.eval()


def cost_sizes(model: Any, num_words: int, num_blocks: int, num_tokens: int) -> dict[str, Any]:
    """What the cost of a training depends on, as :func:`~pplseq.runs.cost.vlhmm_cost` takes it.

    Args:
        num_words, num_blocks: that the model has or is to get. num_tokens: of a step.
    """
    sizes = {name: model.config[name] for name in inspect.signature(vlhmm_cost).parameters if name in model.config}
    return sizes | {"num_words": num_words, "num_blocks": num_blocks, "num_tokens": num_tokens}


def lay_out(
    model: Any, vocabulary: Vocabulary, clusters: Clusters | None, *, block_sizes: str = "even", reset: bool = True
) -> None:
    """Gives a model its words and their blocks, and draws its parameters.

    Args:
        clusters: blocks of the words; None for a single one.
        block_sizes, reset: as of :func:`fit`.
    """
    blocks = sizes = None
    if clusters is not None:
        blocks = torch.as_tensor(clusters.block_of_word)
        if block_sizes == "frequency":
            counts = np.bincount(clusters.block_of_word, weights=clusters.counts, minlength=clusters.num_blocks)
            sizes = share_states(model.config["num_states"], np.sqrt(counts)).tolist()
        else:
            check_divisible(model.config["num_states"], clusters.num_blocks)
    model.lay_out(len(vocabulary), blocks, states_per_block=sizes, reset_id=vocabulary.eos_id if reset else None)
    model.clusters = clusters


# ---------------------------------------------------------------- what a run is resumed with
def told_layout(
    blocks: str, num_blocks: int, block_sizes: str, eos_block: bool, exchange_passes: int, reset: bool
) -> dict[str, Any]:
    """What the layout of a model without words depends on, as a run's folder says it; arguments as of :func:`fit`."""
    if blocks == "none":
        return {"blocks": blocks, "num_blocks": 1, "reset": reset}
    told: dict[str, Any] = {"blocks": blocks, "block_sizes": block_sizes, "reset": reset}
    if blocks not in BLOCKS:  # a file, which has its number of blocks
        return told | {"blocks": str(Path(blocks).resolve()), "eos_block": eos_block}
    found = {"eos_block": eos_block, "exchange_passes": exchange_passes} if blocks == "brown" else {}
    return told | {"num_blocks": num_blocks} | found


def check_same_model(folder: Path, last: Any, model: Any, layout: Mapping[str, Any] | None = None) -> None:
    """Raises ValueError where the model of a run is another one than the one that it is resumed with.

    Args:
        last: what ``MODEL.read`` gives of the run's checkpoint.
        layout: that a model without words is to get, from :func:`told_layout`.
    """
    header, tensors, *_ = last
    check_same_run(folder, {"model": header.get("model")}, {"model": model.name})
    config, block_of_word = header["config"], tensors["block_of_word"]
    left_out = (*FREE, *OF_FIT) if model.num_words is None else FREE
    now = {name: value for name, value in model.config.items() if name in config and name not in left_out}
    was = {name: config[name] for name in now}
    if model.num_words is None:
        found = {"num_blocks": int(block_of_word.max()) + 1, "reset": config.get("reset_id") is not None}
        found["block_sizes"] = "even" if config.get("states_per_block") is None else "frequency"
        told = {name: value for name, value in (layout or {}).items() if name in found}
        was, now = was | {name: found[name] for name in told}, now | told
    else:
        was, now = was | {"blocks": digest(block_of_word)}, now | {"blocks": digest(model.block_of_word)}
    check_same_run(folder, was, now)


# ---------------------------------------------------------------- blocks of words
def make_clusters(
    text: Text,
    blocks: str = "brown",
    num_blocks: int = MOST_BLOCKS,
    *,
    eos_block: bool = True,
    exchange_passes: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> Clusters:
    """A partition of a text's words.

    Args:
        text: whose neighbours of words count.
        blocks: "brown" (P. F. Brown and others, 1992), "uniform", or a `paths` file.
        num_blocks: M; of a file, what it has.
        eos_block: give ``<eos>`` a block of its own.
        exchange_passes: passes that improve Brown clusters word by word.
        seed: of uniform blocks.
        progress: show a bar.

    Raises:
        ValueError: no such file, or words that it lacks.
    """
    vocabulary = text.vocabulary
    if blocks == "uniform":
        return clustering.uniform_clusters(np.bincount(text.tokens, minlength=len(vocabulary)), num_blocks, seed)
    if blocks == "brown":
        own_block = [vocabulary.eos_id] if eos_block and vocabulary.eos_id is not None else []
        options: dict[str, Any] = dict(own_block=own_block, exchange_passes=exchange_passes, progress=progress)
        return clustering.brown_clusters(text.tokens, len(vocabulary), num_blocks, **options)
    if not Path(blocks).exists() or Path(blocks).is_dir():
        raise ValueError(
            f"blocks must be brown, uniform, none or an existing paths file, got "
            f"{checks.shown(blocks)}.{checks.nearest(blocks, BLOCKS)}"
        )
    with open(blocks, "rb") as file:
        in_file = {line.split(b"\t")[1].decode("utf-8", "replace") for line in file if line.count(b"\t") == 2}
    # Published clusters were often made without <eos>; any other word they lack is an error.
    only_eos = eos_block and {word for word in vocabulary if word not in in_file} == {vocabulary.eos}
    return clustering.read_paths(blocks, vocabulary, missing="own" if only_eos else "error")


def cached_clusters(folder: Path, text: Text, blocks: str, num_blocks: int, **options: Any) -> Clusters:
    """:func:`make_clusters`, computed once and kept in a run's folder as `clusters.paths`, beside the checksum of that file.

    Raises:
        FolderError: the file is not what was written.
    """
    cached = folder / "clusters.paths"
    if cached.exists():
        return clustering.read_paths(cached, text.vocabulary)
    clusters = make_clusters(text, blocks, num_blocks, **options)
    keep_clusters(folder, clusters, text.vocabulary)
    return clusters


def keep_clusters(folder: Path, clusters: Clusters, vocabulary: Vocabulary) -> None:
    """Writes a run's blocks where :func:`cached_clusters` finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_with_sum(folder / "clusters.paths", lambda new: clustering.write_paths(new, clusters, vocabulary))


def most_blocks(num_states: int, num_words: int) -> int:
    """The largest number of blocks up to 128 that divides the states and is not more than the words."""
    return next(m for m in range(min(MOST_BLOCKS, num_states, num_words), 0, -1) if num_states % m == 0)


def check_blocks(
    num_states: int, num_words: int, blocks: str, num_blocks: int, block_sizes: str = "even", own_block: bool = False
) -> None:
    """Raise ValueError for sizes that do not fit together, before anything is clustered or allocated.

    Args:
        own_block: whether ``<eos>`` gets a block of its own.
    """
    checks.choice("block_sizes", block_sizes, BLOCK_SIZES)
    if blocks not in ("brown", "uniform"):
        return
    if checks.count("num_blocks", num_blocks) > num_words:
        raise ValueError(
            f"num_blocks = {num_blocks} is more than the {num_words} words of the vocabulary; choose at most {num_words}"
        )
    if num_blocks == 1 and own_block and blocks == "brown":
        raise ValueError(
            "num_blocks = 1, and <eos> has a block of its own: choose at least 2, eos_block=False, or blocks = none for one"
        )
    if block_sizes == "even":
        check_divisible(num_states, num_blocks)


def check_divisible(num_states: int, num_blocks: int) -> None:
    """Every block gets Z / M states; raise ValueError with the nearest sizes where that is no whole number."""
    if num_states % num_blocks:
        below = num_states // num_blocks * num_blocks
        sizes = [str(size) for size in (below, below + num_blocks) if size]
        near = f"the nearest sizes are {' and '.join(sizes)}" if len(sizes) > 1 else f"use at least {sizes[0]}"
        raise ValueError(f"num_states = {num_states} is not divisible by num_blocks = {num_blocks}: {near}")


MANY_STEPS = 100  # of 64 streams in an epoch: a shorter text is better read by 16


def batching(
    num_tokens: int, protocol: str, batch_size: int | None, segment_length: int, lr: float | None
) -> tuple[int, float]:
    """Streams of a batch and learning rate, where they are not given.

    In the same processor time on Penn Treebank, 64 streams at .006 come to validation perplexity 190.6 where 16 at .003 come to
    222.5 (results/vlhmm_defaults.md). So a text gets 64 streams if that leaves 100 steps an epoch, else 16, and the rate
    goes with the root of the batch; sentences get .003.
    """
    if batch_size is None:
        batch_size = 64 if num_tokens >= MANY_STEPS * 64 * segment_length else 16
    checks.count("batch_size", batch_size)
    if lr is None:
        lr = 0.003 * math.sqrt(batch_size / 16) if protocol == "carried" else 0.003
    return batch_size, lr


def _settings(given: dict[str, Any]) -> TrainSettings:
    checks.no_bounds("VLHMM.fit", given, "hold layers by fixed=, or take an HMM, whose tables have bounds")
    for name in given:
        if name not in TrainSettings.__dataclass_fields__:
            known = [*inspect.signature(fit).parameters][3:-1] + [*TrainSettings.__dataclass_fields__]
            raise TypeError(f"VLHMM.fit has no option {name!r}.{checks.nearest(name, known)} There are: {', '.join(known)}")
    return TrainSettings(**given)


@contextlib.contextmanager
def _run_folder(folder: str | Path | None, resume: bool) -> Iterator[Path | None]:
    """The folder of a run, kept from other processes."""
    if folder is None:
        if resume:
            raise ValueError("resume: give the folder of the run")
        yield None
        return
    place = Path(folder)
    if not processes.current().writes:
        yield place
        return
    by_command = is_held_here(place)
    with only_one_run(place, within=True):
        if not resume and (place / "last").exists():
            raise ValueError(f"{place} already holds a run; resume it, or choose another folder")
        if not resume and not by_command:  # which knows whether it is of the same settings
            (place / "clusters.paths").unlink(missing_ok=True)  # of a run that failed before its first step
        yield place
        said = run_status(place)
        if not by_command and said["status"] == "running":  # as the loop leaves it where there is more to do around it
            say_status(place, "finished", said["reason"], said["step"], said["seconds"], said["num_records"])
