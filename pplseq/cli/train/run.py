"""From settings to what `train` needs: corpus, blocks, model, batches."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pplseq.baselines import NETWORKS
from pplseq.cli.train.config import RunConfig, read_config
from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.data.clusters import Clusters
from pplseq.data.text import Corpus, Text, load_corpus
from pplseq.data.vocabulary import Vocabulary
from pplseq.models.texts import make_batches
from pplseq.models.vlhmm.fit import cached_clusters, check_blocks, lay_out

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
    if config.model == "vlhmm":
        check_blocks(config.num_states, num_words, config.blocks, config.num_blocks, config.block_sizes)


def build_clusters(config: RunConfig, corpus: Corpus, folder: Path) -> Clusters | None:
    """Blocks of words as the settings say; computed once, and kept in the run's folder as `clusters.paths`."""
    if config.model != "vlhmm" or config.blocks == "none":
        return None
    return cached_clusters(
        folder,
        corpus.train,
        config.blocks,
        config.num_blocks,
        eos_block=config.eos_block,
        exchange_passes=config.exchange_passes,
        seed=config.seed,
        progress=sys.stderr.isatty(),
    )


def build_model(config: RunConfig, vocabulary: Vocabulary, clusters: Clusters | None) -> torch.nn.Module:
    """A fresh model; the caller has set the seed."""
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
    model = VLHMM(
        num_states=config.num_states,
        hidden_size=config.hidden,
        parameterization=config.parameterization,
        tied=config.tied,
        state_dropout=config.dropout,
        initialization=config.init,
        init_scale=config.init_scale,
        temperature=config.temperature,
        normalizer_dtype=config.normalizer_dtype,
    )
    lay_out(model, vocabulary, clusters, block_sizes=config.block_sizes, reset=config.reset)
    return model


def build_em_batches(text: Text, device: torch.device, batch_tokens: int = 4096) -> list[Batch]:
    """The whole text as sentences, in pieces for EM."""
    from pplseq.infer.fit.em import Batch

    return [Batch(b.x.to(device), b.lengths.to(device)) for b in SentenceBatches(text, batch_tokens)]


def build_batches(config: RunConfig, text: Text) -> StreamBatches | SentenceBatches:
    """Training batches under the chosen protocol."""
    names = ("protocol", "shuffle", "batch_size", "segment_length", "batch_tokens", "seed")
    return make_batches(text, **{name: getattr(config, name) for name in names})


def protocol_of(config: RunConfig) -> str:
    """How a run validates: EM goes through sentences, whatever the batches of gradient training would be."""
    return "sentence" if config.model == "hmm" and config.method == "em" else config.protocol


def saved_config(run: Path) -> RunConfig:
    """The settings of a run's folder."""
    path = run / "config.toml"
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run of `pplseq train`: it has no config.toml")
    return RunConfig(**read_config(path))
