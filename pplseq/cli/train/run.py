"""From settings to what `train` needs: corpus, blocks, model, batches."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pplseq.baselines import NETWORKS
from pplseq.checks import nearest
from pplseq.cli.train.config import RunConfig, read_config
from pplseq.data import clustering
from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.data.text import Corpus, Text, load_corpus
from pplseq.data.vocabulary import Vocabulary
from pplseq.runs.evaluation import score_text

if TYPE_CHECKING:
    from pplseq.infer.fit.em import Batch


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


def build_corpus(config: RunConfig, vocabulary: Vocabulary | None = None) -> Corpus:
    """Read the corpus.

    Without `min_count`, words seen once become <unk> where held-out text has words that training never saw and the
    text has no <unk> of its own.
    """
    load = partial(
        load_corpus,
        config.data,
        vocabulary=vocabulary,
        max_vocabulary=config.max_vocabulary,
        lower=config.lower,
        seed=config.seed,
    )
    if config.min_count is not None:
        return load(min_count=config.min_count)
    try:
        return load()
    except ValueError:
        # Either held-out words are unknown, and this cures it, or the text is bad, and this says so again.
        return load(min_count=2)


def check_sizes(config: RunConfig, num_words: int) -> None:
    """Raise ValueError for sizes that do not fit together, before anything is clustered or allocated."""
    if config.model != "vlhmm" or config.blocks == "none":
        return
    if config.blocks in ("brown", "uniform"):
        if config.num_blocks > num_words:
            raise ValueError(
                f"num_blocks = {config.num_blocks} is more than the {num_words} words of the vocabulary; "
                f"choose at most {num_words}"
            )
        if config.block_sizes == "even":
            check_divisible(config.num_states, config.num_blocks)


def check_divisible(num_states: int, num_blocks: int) -> None:
    """Every block gets Z / M states; raise ValueError with the nearest sizes where that is no whole number."""
    if num_states % num_blocks:
        below = num_states // num_blocks * num_blocks
        sizes = [str(size) for size in (below, below + num_blocks) if size]
        raise ValueError(
            f"states = {num_states} is not divisible by num_blocks = {num_blocks}: "
            f"the nearest sizes are {' and '.join(sizes)}"
        )


def build_clusters(config: RunConfig, corpus: Corpus, folder: Path) -> clustering.Clusters | None:
    """Blocks of words as the settings say; computed once, and kept in the run's folder as `clusters.paths`."""
    if config.model != "vlhmm" or config.blocks == "none":
        return None
    cached = folder / "clusters.paths"
    if cached.exists():
        return clustering.read_paths(cached, corpus.vocabulary)
    clusters = make_clusters(
        config.blocks,
        config.num_blocks,
        corpus.train,
        eos_block=config.eos_block,
        exchange_passes=config.exchange_passes,
        seed=config.seed,
    )
    folder.mkdir(parents=True, exist_ok=True)
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
            text.tokens,
            len(vocabulary),
            num_blocks,
            own_block=own_block,
            exchange_passes=exchange_passes,
            progress=sys.stderr.isatty(),
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


def build_model(config: RunConfig, vocabulary: Vocabulary, clusters: clustering.Clusters | None) -> torch.nn.Module:
    """A fresh model; the caller has set the seed."""
    from pplseq.distributions.blocks import share_states
    from pplseq.models import HMM, VLHMM

    if config.model in NETWORKS:
        kind = NETWORKS[config.model]
        options = {"lstm": {"num_layers": config.layers}, "ff": {"order": config.order}}.get(config.model, {})
        if config.model != "rnn":
            options["dropout"] = config.dropout
        return kind(vocabulary, config.hidden, seed=config.seed, **options)
    if config.model == "hmm":
        # EM needs a little smoothing: a word that no state of a held-out sentence emits would be impossible.
        smooth = {name: config.concentration for name in ("initial", "transition", "emission")}
        priors = smooth if config.method == "em" else None
        return HMM(config.num_states, num_words=len(vocabulary), priors=priors)
    states_per_block = None
    if clusters is not None and config.block_sizes == "frequency":
        counts = np.bincount(clusters.block_of_word, weights=clusters.counts, minlength=clusters.num_blocks)
        states_per_block = share_states(config.num_states, np.sqrt(counts)).tolist()
    elif clusters is not None:
        check_divisible(config.num_states, clusters.num_blocks)
    return VLHMM(
        len(vocabulary),
        config.num_states,
        None if clusters is None else torch.as_tensor(clusters.block_of_word),
        hidden_size=config.hidden,
        parameterization=config.parameterization,
        tied=config.tied,
        state_dropout=config.dropout,
        reset_id=vocabulary.eos_id if config.reset else None,
        initialization=config.init,
        init_scale=config.init_scale,
        temperature=config.temperature,
        states_per_block=states_per_block,
        normalizer_dtype=config.normalizer_dtype,
    )


def build_em_batches(text: Text, device: torch.device, batch_tokens: int = 4096) -> list[Batch]:
    """The whole text as sentences, in pieces for EM."""
    from pplseq.infer.fit.em import Batch

    return [Batch(b.x.to(device), b.lengths.to(device)) for b in SentenceBatches(text, batch_tokens)]


def build_batches(config: RunConfig, text: Text) -> StreamBatches | SentenceBatches:
    """Training batches under the chosen protocol."""
    if config.protocol == "sentence":
        return SentenceBatches(text, config.batch_tokens, shuffle=config.shuffle != "none", seed=config.seed)
    shuffle = None if config.shuffle == "none" else config.shuffle
    return StreamBatches(text, config.batch_size, config.segment_length, shuffle=shuffle, seed=config.seed)


def validation(config: RunConfig, model: Any, text: Text | None) -> Any:
    """What the training loop calls on its schedule: perplexity of the validation text under the training protocol."""
    return None if text is None else lambda: score_text(model, text, protocol_of(config)).summary()


def protocol_of(config: RunConfig) -> str:
    """How a run validates: EM goes through sentences, whatever the batches of gradient training would be."""
    return "sentence" if config.model == "hmm" and config.method == "em" else config.protocol


def saved_config(run: Path) -> RunConfig:
    """The settings of a run's folder."""
    path = run / "config.toml"
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run of `pplseq train`: it has no config.toml")
    return RunConfig(**read_config(path))
