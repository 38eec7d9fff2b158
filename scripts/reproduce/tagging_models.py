"""Word and token embeddings for tagging: functions from encoded text to (N, h) arrays, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tagging_text import lag_counts, word2vec

from pplseq.data import Text
from pplseq.runs.metrics_log import read_metrics

Embed = Callable[[Text], np.ndarray]


def embedders(
    names: Sequence[str], text: Text, options, tagged: Text | None = None
) -> Iterator[tuple[str, Embed, dict[str, Any]]]:
    """(name, embed, facts) of each feature in turn, learned from `text`; one model is in memory at a time.

    With options.embedding_share below 1, embeddings are whitened by their moments over the words of `tagged`.
    """
    if "word2vec" in names:
        vectors, facts = word2vec(
            text, options.cache, options.num_states, window=options.window, epochs=options.word2vec_epochs,
            threads=options.threads, seed=options.seed,
        )  # fmt: skip
        yield "word2vec", lambda part: vectors[part.tokens], facts
    for how, uses in {
        "ssid": ("ssid",),
        "restricted": ("restricted",),
        "em": ("em", "em-filtered", "em-types", "em-steady"),
        "em-from-ssid": ("em-from-ssid",),
        "em-from-random": ("em-from-random",),
    }.items():
        wanted = [name for name in uses if name in names]
        if not wanted:
            continue
        model, facts = text_lds(how, text, options)
        if getattr(options, "embedding_share", 1.0) != 1.0:
            model.set_embedding_share(options.embedding_share, tagged)
        for name in wanted:
            yield name, _embed(model, name), facts


def text_lds(how: str, text: Text, options):
    """A `TextLDS` and what it took; kept in the cache, where an EM run that was stopped goes on.

    Args:
        how: "ssid" and "restricted": no EM on all words. "em": after restricted EM; "em-from-ssid", "em-from-random".
    """
    from lds_starts import random_parameters

    from pplseq.models import TextLDS
    from pplseq.models.text_lds.lag_covariances import LagCovariances
    from pplseq.models.text_lds.realisation import realise
    from pplseq.models.text_lds.subspace import subspace_identification

    only_start = how in ("ssid", "restricted")
    settings = dict(
        pseudo_counts=options.pseudo_counts,
        max_iterations=0 if only_start else options.iterations,
        start="restricted" if how in ("em", "restricted") else "paper",
        blocks=options.blocks,
        seed=options.seed,
        dtype=options.dtype,
        num_threads=options.threads,
    )
    key = f"{text.vocabulary.fingerprint()[:8]}_{options.num_states}_{options.pseudo_counts:g}_{settings['max_iterations']}"
    folder = options.cache / f"lds_{how}_{key}{options.run_label}"
    metrics, last = folder / "metrics.jsonl", folder / "last"
    counts, counting_seconds = lag_counts(text, options.cache, options.max_lag)
    initial = None
    if how == "em-from-random" and not last.is_dir():
        cov = LagCovariances.from_counts(
            counts, options.pseudo_counts, dtype=np.dtype(options.dtype), num_threads=options.threads
        )
        found = subspace_identification(cov, options.num_states, blocks=options.blocks, seed=options.seed)
        initial = random_parameters(cov, realise(found, cov, "paper").parameters, options.seed)
        del cov, found
    TextLDS.from_counts(
        counts, options.num_states, folder=folder, resume=last.is_dir(), initial=initial, **settings,
        on_record=lambda record: print(how, record, flush=True),
    )  # fmt: skip
    records = read_metrics(metrics)
    facts = {
        "counting_seconds": counting_seconds,
        "fit_seconds": records[-1]["seconds"],
        "iterations": records[-1]["step"],
        "gain_per_token": [round(record["gain_per_token"], 4) for record in records],
    }
    return TextLDS.load(folder / "best"), facts


def _embed(model, name: str) -> Embed:
    if name == "em-types":
        types = model.type_embeddings()
        return lambda part: types[part.tokens]
    if name == "em-steady":
        return lambda part: _steady(model).embed_tokens(part)
    kind = "filtered" if name == "em-filtered" else "smoothed"
    return lambda part: model.embed_tokens(part, kind=kind)


def _steady(model):
    """The model with the paper's steady-state passes from the first word on."""
    from pplseq.models import TextLDS

    steady = TextLDS.from_config(model.config | {"initial": "steady"}, model.state_dict())
    steady.load_state_dict(model.state_dict())
    return steady.eval()
