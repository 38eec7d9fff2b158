"""Training models of words on text: corpus, clusters, model, batches, validation, and what a run's folder keeps of them."""

from __future__ import annotations

import hashlib
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

from pplseq.baselines import NETWORKS
from pplseq.checks import nearest
from pplseq.data import clustering
from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.data.text import Corpus, Text, describe_corpus, load_corpus
from pplseq.data.vocabulary import Vocabulary
from pplseq.recipes.recipe import Job, TimeIsUp
from pplseq.recipes.tensorboard import TensorBoard
from pplseq.runs.evaluation import score_text
from pplseq.runs.settings import History, TrainSettings
from pplseq.runs.training import train as descend


# ---------------------------------------------------------------- the training
def train(name: str, job: Job) -> dict[str, Any]:
    """Train a vlhmm, an hmm or a network in a run's folder; the summary."""
    settings, folder = job.settings, job.folder
    device = choose_device(settings.device)
    with job.preparing(f"reading {Path(job.data).name}"):
        corpus = read_corpus(job.data, settings)
    check_data(corpus, folder, job.resume)
    clusters = None
    if name == "vlhmm" and settings.blocks != "none":
        check_blocks(settings, len(corpus.vocabulary))
        with job.preparing(f"clustering {len(corpus.vocabulary):,} words"):
            clusters = cached_clusters(settings, corpus, folder)
    with job.preparing("building the model"):
        pyro.clear_param_store()
        pyro.set_rng_seed(settings.seed)
        model = build_model(name, settings, corpus.vocabulary, clusters).to(device)
    size = f"{settings.hidden:,} units" if name in NETWORKS else f"{settings.states:,} states"
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
            "perplexity": math.exp(progress.best),
        }
    return summary


def _fit(name: str, model: Any, corpus: Corpus, job: Job) -> History:
    settings, by_em = job.settings, _by_em(job.settings)
    if job.time_left is not None and job.time_left <= 0:
        raise TimeIsUp("building the model")
    shared = {
        field: getattr(settings, field) for field in TrainSettings.__dataclass_fields__ if hasattr(settings, field)
    }
    chosen = TrainSettings(**{**shared, "max_time": job.time_left})
    batches: Any = em_batches(corpus.train, device_of(model)) if by_em else build_batches(settings, corpus.train)
    job.watch.begin(settings.epochs * (1 if by_em else len(batches)) if settings.max_time is None else None)
    board = TensorBoard(job.folder / "tensorboard") if settings.tensorboard else None

    def on_record(record: dict[str, Any]) -> None:
        job.watch.record(record)
        if board is not None:
            board.record(record)

    common: dict[str, Any] = {"settings": chosen, "folder": job.folder, "resume": job.resume}
    common |= {"evaluate": validation(settings, model, corpus.valid), "on_record": on_record}
    try:
        if by_em:
            from pplseq.runs.em_training import train_em

            return train_em(model, batches, **common)
        if name in NETWORKS:
            from pplseq.baselines.neural import MaximumLikelihood

            model.precision = "bfloat16" if settings.normalizer_dtype == "bfloat16" else "full"
            common["elbo"] = MaximumLikelihood
        return descend(model, batches, on_step=job.watch.step, **common)
    finally:
        if board is not None:
            board.close()


def check_data(corpus: Corpus, folder: Path, resume: bool) -> None:
    """Raise ValueError if a resumed run would go on with another text or vocabulary than it began with."""
    path = folder / "data.json"
    data = {
        "name": corpus.name,
        "vocabulary": corpus.vocabulary.fingerprint(),
        "training_text": hashlib.sha256(corpus.train.tokens.tobytes()).hexdigest(),
    }
    if resume and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        for key in ("vocabulary", "training_text"):
            if before[key] != data[key]:
                raise ValueError(
                    f"the {key.replace('_', ' ')} of {corpus.name} is no longer the one {folder} was trained with; "
                    "restore the data, or start a new run"
                )
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- its parts
def choose_device(name: str) -> torch.device:
    """The named device; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this machine or this build of torch has no CUDA; use cpu")
    return device


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device


def read_corpus(data: str, settings: Any, vocabulary: Vocabulary | None = None) -> Corpus:
    """Read the corpus.

    Without `min_count`, words seen once become <unk> where held-out text has words that training never saw and the
    text has no <unk> of its own.

    Args:
        data: as `load_corpus` takes it. settings: with min_count, max_vocabulary and lower, and a seed for the split of a file.
    """
    load = partial(
        load_corpus,
        data,
        vocabulary=vocabulary,
        max_vocabulary=settings.max_vocabulary,
        lower=settings.lower,
        seed=getattr(settings, "seed", 0),
    )
    if settings.min_count is not None:
        return load(min_count=settings.min_count)
    try:
        return load()
    except ValueError:
        # Either held-out words are unknown, and this cures it, or the text is bad, and this says so again.
        return load(min_count=2)


def check_blocks(settings: Any, num_words: int) -> None:
    """Raise ValueError for sizes that do not fit together, before anything is clustered or allocated."""
    if settings.blocks in ("brown", "uniform"):
        if settings.num_blocks > num_words:
            raise ValueError(
                f"num_blocks = {settings.num_blocks} is more than the {num_words} words of the vocabulary; "
                f"choose at most {num_words}"
            )
        if settings.block_sizes == "even":
            check_divisible(settings.states, settings.num_blocks)


def check_divisible(num_states: int, num_blocks: int) -> None:
    """Every block gets Z / M states; raise ValueError with the nearest sizes where that is no whole number."""
    if num_states % num_blocks:
        below = num_states // num_blocks * num_blocks
        sizes = [str(size) for size in (below, below + num_blocks) if size]
        raise ValueError(
            f"states = {num_states} is not divisible by num_blocks = {num_blocks}: "
            f"the nearest sizes are {' and '.join(sizes)}"
        )


def cached_clusters(settings: Any, corpus: Corpus, folder: Path) -> clustering.Clusters:
    """Blocks of words as the settings say; computed once, and kept in the run's folder as `clusters.paths`."""
    cached = folder / "clusters.paths"
    if cached.exists():
        return clustering.read_paths(cached, corpus.vocabulary)
    clusters = make_clusters(
        settings.blocks,
        settings.num_blocks,
        corpus.train,
        eos_block=settings.eos_block,
        exchange_passes=settings.exchange_passes,
        seed=settings.seed,
    )
    partly = cached.with_suffix(".new")
    clustering.write_paths(partly, clusters, corpus.vocabulary)
    partly.replace(cached)
    return clusters


def make_clusters(
    blocks: str, num_blocks: int, text: Text, *, eos_block: bool, exchange_passes: int = 0, seed: int = 0
) -> clustering.Clusters:
    """Brown or uniform clusters of a text's words, or those of a `paths` file."""
    vocabulary = text.vocabulary
    own_block = [vocabulary.eos_id] if eos_block and vocabulary.eos_id is not None else []
    if blocks == "uniform":
        counts = np.bincount(text.tokens, minlength=len(vocabulary))
        return clustering.uniform_clusters(counts, num_blocks, seed)
    if blocks == "brown":
        return clustering.brown_clusters(
            text.tokens, len(vocabulary), num_blocks, own_block=own_block, exchange_passes=exchange_passes
        )
    if not Path(blocks).exists():
        raise ValueError(
            f"blocks must be brown, uniform, none or an existing paths file, got {blocks!r}."
            f"{nearest(blocks, ['brown', 'uniform', 'none'])}"
        )
    with open(blocks, "rb") as file:
        in_file = {line.split(b"\t")[1].decode("utf-8", "replace") for line in file if line.count(b"\t") == 2}
    # Published clusters were often made without <eos>; any other word they lack is an error.
    only_eos = eos_block and {word for word in vocabulary if word not in in_file} == {vocabulary.eos}
    return clustering.read_paths(blocks, vocabulary, missing="own" if only_eos else "error")


def build_model(name: str, settings: Any, vocabulary: Vocabulary, clusters: Any) -> Any:
    """A fresh model; the caller has set the seed."""
    from pplseq.distributions.blocks import share_states
    from pplseq.models import HMM, VLHMM

    if name in NETWORKS:
        more = {"lstm": {"layers": "num_layers", "dropout": "dropout"}, "ff": {"order": "order", "dropout": "dropout"}}
        options = {theirs: getattr(settings, ours) for ours, theirs in more.get(name, {}).items()}
        return NETWORKS[name](vocabulary, settings.hidden, seed=settings.seed, **options)
    if name == "hmm":
        # EM needs a little smoothing: a word that no state of a held-out sentence emits would be impossible.
        smooth = {table: settings.concentration for table in ("initial", "transition", "emission")}
        return HMM(settings.states, num_words=len(vocabulary), priors=smooth if _by_em(settings) else None)
    states_per_block = None
    if clusters is not None and settings.block_sizes == "frequency":
        counts = np.bincount(clusters.block_of_word, weights=clusters.counts, minlength=clusters.num_blocks)
        states_per_block = share_states(settings.states, np.sqrt(counts)).tolist()
    elif clusters is not None:
        check_divisible(settings.states, clusters.num_blocks)
    return VLHMM(
        len(vocabulary),
        settings.states,
        None if clusters is None else torch.as_tensor(clusters.block_of_word),
        hidden_size=settings.hidden,
        parameterization=settings.parameterization,
        tied=settings.tied,
        state_dropout=settings.dropout,
        reset_id=vocabulary.eos_id if settings.reset else None,
        initialization=settings.init,
        init_scale=settings.init_scale,
        temperature=settings.temperature,
        states_per_block=states_per_block,
        normalizer_dtype=settings.normalizer_dtype,
    )


def em_batches(text: Text, device: torch.device, batch_tokens: int = 4096) -> list[Any]:
    """The whole text as sentences, in pieces for EM."""
    from pplseq.infer.fit.em import Batch

    return [Batch(b.x.to(device), b.lengths.to(device)) for b in SentenceBatches(text, batch_tokens)]


def build_batches(settings: Any, text: Text) -> StreamBatches | SentenceBatches:
    """Training batches under the chosen protocol."""
    if settings.protocol == "sentence":
        return SentenceBatches(text, settings.batch_tokens, shuffle=settings.shuffle != "none", seed=settings.seed)
    shuffle = None if settings.shuffle == "none" else settings.shuffle
    return StreamBatches(text, settings.batch_size, settings.segment_length, shuffle=shuffle, seed=settings.seed)


def validation(settings: Any, model: Any, text: Text | None) -> Any:
    """What the training loop calls on its schedule: perplexity of the validation text under the training protocol."""
    return None if text is None else lambda: score_text(model, text, protocol_of(settings)).summary()


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
        check_divisible(settings.states, num_blocks)
    corpus = read_corpus(data, settings)
    facts = describe_corpus(corpus)
    if name == "vlhmm":
        from pplseq.runs.cost import estimate

        step = settings.batch_size * settings.segment_length
        facts["estimate"] = estimate(
            corpus.train.num_tokens,
            step if settings.protocol == "carried" else settings.batch_tokens,
            choose_device(settings.device),
            num_words=len(corpus.vocabulary),
            num_states=settings.states,
            num_blocks=num_blocks,
            hidden_size=settings.hidden,
            state_dropout=settings.dropout,
            tied=settings.tied,
        )
    return facts
