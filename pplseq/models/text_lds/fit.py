"""Fitting a linear dynamical system to the lag counts of a text: subspace identification, then EM without the text.

An iteration of EM costs the same for a short text and a long one. Fits with a folder write a checkpoint as they go, can be
interrupted between two iterations, and are resumed to the same numbers.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: algorithm 1.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pplseq import checks
from pplseq.data.lag_counts import LagCounts
from pplseq.data.text import Corpus, Text
from pplseq.data.vocabulary import Vocabulary, WordForms
from pplseq.models.batch import holds_words
from pplseq.models.forms import in_form, splitting
from pplseq.models.text_lds.asos_em import AsosTraining, Evaluated
from pplseq.models.text_lds.embeddings import as_lines
from pplseq.models.text_lds.lag_covariances import LagCovariances
from pplseq.models.text_lds.parameters import rewritten
from pplseq.models.text_lds.realisation import Realisation, realise
from pplseq.models.text_lds.steady_state import TextParameters
from pplseq.models.text_lds.subspace import subspace_identification
from pplseq.runs.loop import run_training
from pplseq.runs.progress import recorder
from pplseq.runs.signals import TimeOver

if TYPE_CHECKING:
    from pplseq.models.text_lds.program import TextLDS

STARTS = ("restricted", "line_search", "paper", "consistent")
BLOCKS = 4  # block rows of the Hankel matrix, unless told otherwise
LEAST_BLOCKS = 2  # one would not show A
UNSEEN = 0.5  # added to the counts of the unigram, whose words must all be possible
ARRAYS = ("transition", "emission", "state_noise", "reduction")


@dataclass(frozen=True)
class FitSettings:
    """How to fit.

    Args:
        num_states: h.
        pseudo_counts: added to every word's count.
        max_iterations: of EM on all words.
        start: from subspace identification to parameters: "restricted" (EM in the subspace that was found, which costs
            almost nothing), or a realisation alone: "line_search", "paper", "consistent".
        restricted_iterations: of the EM in the subspace.
        blocks: block rows r of the Hankel matrix, which needs lags 1..2r-1; None: 4, or as many as the counted lags
            and the longest line allow.
        horizon: lags that EM uses; None for all.
        update_state_noise: estimate Q and rebase (False: the paper's partial M-step).
        patience: stop after so many iterations without a new best (held-out, else training) gain; None never does.
        max_time: seconds, over all resumptions; None has no limit.
        seed: of the randomised decomposition.
        dtype: of what has the vocabulary's size, "float64" or "float32".
        num_threads: that share products with the covariances.
        checkpoint_interval: seconds between two checkpoints.
    """

    num_states: int
    pseudo_counts: float = 1000.0
    max_iterations: int = 50
    start: str = "restricted"
    restricted_iterations: int = 150
    blocks: int | None = None
    horizon: int | None = None
    update_state_noise: bool = True
    patience: int | None = None
    max_time: float | None = None
    seed: int = 0
    dtype: str = "float64"
    num_threads: int = 1
    checkpoint_interval: float = 10.0

    def __post_init__(self) -> None:
        checks.choice("start", self.start, STARTS)
        checks.seed("seed", self.seed)
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype must be float64 or float32, got {self.dtype!r}")
        for name, low in (("num_states", 1), ("max_iterations", 0), ("restricted_iterations", 1), ("pseudo_counts", 0)):
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        for name in ("patience", "max_time"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive or None, got {value}")


@dataclass
class TextFit:
    """The course of a fit.

    records: one a parameter set: step, gain_per_token (training text, nats over words without context),
    held_out_gain_per_token, seconds, remarks. best, best_step: the best gain, of held-out text where there was some, and its
    iteration. stop_reason: "iterations", "patience", "max_time" or "fell": the training gain fell, so that more iterations
    would do harm (too few pseudo-counts, too many states).
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = 0
    stop_reason: str = ""


def as_counts(
    x: Any, lengths: Any = None, *, num_words: int, max_lag: int, name: str = "x", vocabulary: Vocabulary | None = None,
    forms: WordForms | None = None,
) -> LagCounts:  # fmt: skip
    """Lag counts of a text.

    Args:
        x: :class:`~pplseq.data.lag_counts.LagCounts`, a :class:`~pplseq.data.text.Text`, the training text of a
            :class:`~pplseq.data.text.Corpus`, sentences (strings, or lists of words), or word ids in any form of
            :func:`~pplseq.models.forms.in_form`.
        name: of the argument, for messages. vocabulary: of sentences; None: all their words, and ``<eos>``. forms: how words
            of sentences are rewritten before.

    Raises:
        ValueError: for words outside of the vocabulary, missing ones too: pairs need words.
    """
    if isinstance(x, Corpus):
        x = x.train
    if not isinstance(x, (LagCounts, Text)):
        x, lengths = in_form(x, lengths, num_features=None, name=name, split=splitting(vocabulary))
    if holds_words(x):
        lines = rewritten(x, forms or WordForms(), vocabulary)
        counts = LagCounts.from_text(Text.from_lines(lines, vocabulary, name=name), max_lag)
        counts = replace(counts, forms=forms or WordForms())
    elif isinstance(x, LagCounts):
        counts = x
    elif isinstance(x, Text):
        counts = LagCounts.from_text(x, max_lag)
    else:
        tokens, line_starts = as_lines(x, lengths)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < num_words:
            raise ValueError(f"{name} must hold word ids 0..{num_words - 1}, got {tokens.min()}..{tokens.max()}")
        names = Vocabulary(tuple(map(str, range(num_words))), unknown=None)
        text = Text(tokens.astype(np.int32), line_starts, np.array([0, len(line_starts) - 1]), names, name)
        counts = LagCounts.from_text(text, max_lag)
    if counts.num_words != num_words:
        raise ValueError(f"{name}: its vocabulary ({counts.num_words} words) is not that of the model, num_words={num_words}")
    return counts


def up_to_the_longest(counts: LagCounts, blocks: int | None = None) -> LagCounts:
    """Counts of those lags alone at which there are pairs of words: in short sentences there are none far apart.

    Args:
        blocks: block rows that were asked for; None for as many as the lags allow.

    Raises:
        ValueError: where the longest line is too short for these, or for any.
    """
    found = int((counts.num_pairs > 0).sum())  # lag k has pairs where lag k + 1 has some
    if found == counts.max_lag:
        return counts
    longest = f"the longest {counts.unit} has {found + 1} words"
    if found < 2 * LEAST_BLOCKS - 1:
        raise ValueError(
            f"x: {longest}, and dynamics are learned from words up to {2 * LEAST_BLOCKS - 1} places apart: expected one of "
            f"{2 * LEAST_BLOCKS} words or more (<eos> counts), or unit='article'"
        )
    if blocks is not None and found < 2 * blocks - 1:
        raise ValueError(
            f"blocks: {blocks} need words up to {2 * blocks - 1} places apart, but {longest}; give {(found + 1) // 2} at most, "
            "or leave it out"
        )
    return replace(counts, lags=counts.lags[:found])


def fit_counts(
    like: TextLDS,
    counts: LagCounts,
    settings: FitSettings,
    *,
    validation: LagCounts | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    initial: TextParameters | None = None,
    progress: bool = False,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    began: float | None = None,
) -> tuple[TextLDS, TextFit]:
    """The best parameters (by held-out text where there is some, else the last), as a model, and how the fit went.

    Args:
        like: a model of the same kind, whose parameters do not matter.
        counts: of the training text.
        settings: see :class:`FitSettings`.
        validation: counts of other text, of the same vocabulary, whose likelihood decides which parameters are best.
        folder: gets metrics.jsonl and the model folders last/ and best/; None keeps everything in memory.
        resume: go on with what is in the folder.
        initial: parameters to start EM from, instead of subspace identification.
        progress: show a bar. on_record: called with every record. began: see :func:`~pplseq.runs.loop.run_training`.

    Raises:
        ValueError: for counts that do not fit (another vocabulary, too few lags, a word that never occurs and no
            pseudo-counts), or a folder that holds a run already.
        NonFiniteLoss: naming the iteration; the checkpoint is from before it.
        SaveError, FolderError: the folder cannot be written, or not be read.
        TimeOver: `max_time` was over before there were any parameters.
    """
    if validation is not None and validation.vocabulary.words != counts.vocabulary.words:
        raise ValueError(
            f"validation: its vocabulary ({validation.num_words} words) is not that of the training counts ({counts.num_words} "
            "words); count it with the training text's vocabulary"
        )
    training = _CountTraining(like, counts, settings, validation, initial)
    with recorder(progress, on_record, settings.max_iterations) as record:
        history = run_training(
            training, folder=folder, resume=resume, max_time=settings.max_time,
            checkpoint_interval=settings.checkpoint_interval, on_record=record, began=began,
        )  # fmt: skip
    if training.best is None:
        raise TimeOver(f"max_time: {settings.max_time} s were over before there were any parameters; give more")
    fit = TextFit(history.records, training.best_gain, training.progress.best_step, history.stop_reason)
    best: Any = training.best
    return training.model_of(best), fit


def initial_parameters(cov: LagCovariances, settings: FitSettings) -> tuple[TextParameters, Realisation]:
    """Parameters by subspace identification, as ``settings.start`` says, and how they came about."""
    blocks = settings.blocks or max(LEAST_BLOCKS, min(BLOCKS, (cov.max_lag + 1) // 2))
    found = subspace_identification(cov, settings.num_states, blocks=blocks, seed=settings.seed)
    realisation = realise(
        found, cov, settings.start, max_iterations=settings.restricted_iterations, horizon=settings.horizon
    )
    assert realisation.parameters is not None
    return realisation.parameters.rebased(), realisation


class _CountTraining(AsosTraining):
    """EM on counts, as a run that a folder holds."""

    def __init__(self, like: TextLDS, counts, settings: FitSettings, validation, initial: TextParameters | None) -> None:
        counted = counts.max_lag
        counts = up_to_the_longest(counts, settings.blocks)
        self.shorter = f"lags 1..{counts.max_lag}: no line is longer" if counts.max_lag < counted else None
        self.like, self.counts, self.settings = like, counts, settings
        self.about = {"initial": like.initial, "measure": like.measure}  # which the models of its folder say
        cov = LagCovariances.from_counts(
            counts, settings.pseudo_counts, dtype=np.dtype(settings.dtype), num_threads=settings.num_threads
        )
        super().__init__(
            cov, initial, max_iterations=settings.max_iterations, update_state_noise=settings.update_state_noise,
            evaluate=None if validation is None else LagCovariances.from_counts(validation, probs_from=cov),
            patience=settings.patience, horizon=settings.horizon,
        )  # fmt: skip

    def begin(self) -> None:
        if self.parameters is None:
            self.parameters, realisation = initial_parameters(self.cov, self.settings)
            if realisation.fit is not None and realisation.fit.stop_reason == "interrupted":
                raise KeyboardInterrupt  # a start that was cut short is none that another run would find
            self.remarks = [f"start by {realisation.method}: {realisation.report.reason}"]
            if self.shorter is not None:
                self.remarks.append(self.shorter)

    def model_of(self, found: Evaluated | TextLDS) -> TextLDS:
        """A model of parameters."""
        if not isinstance(found, Evaluated):
            return found
        model = self.like.from_parameters(
            found.parameters, self.cov.probs, moments=found.moments, dtype=getattr(torch, self.settings.dtype),
            forms=self.counts.forms, initial=self.like.initial, measure=self.like.measure,
        )  # fmt: skip
        smoothed = self.counts.counts + UNSEEN
        model.set_unigram(smoothed / smoothed.sum(), self.cov.shrinkage)
        model.vocabulary = self.counts.vocabulary
        return model

    # ---------------------------------------------------------------- checkpoints
    def save_model(self, folder: Path) -> Path:
        assert self.now is not None, "there is a start before anything is saved"
        return self.model_of(self.now).save(folder)

    def save_best(self, folder: Path) -> Path:
        assert self.best is not None
        return self.model_of(self.best).save(folder)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors = {name: torch.from_numpy(np.array(getattr(self.parameters, name))) for name in ARRAYS}
        if self.gram is not None:
            tensors["emission_gram"] = torch.from_numpy(np.array(self.gram))
        state = {"best_gain": self.best_gain, "gain": self.gain_before, "remarks": self.remarks}
        return tensors, {**state, "settings": asdict(self.settings), "fingerprint": self._fingerprint()}

    def restore(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        if state["fingerprint"] != self._fingerprint():
            raise ValueError(
                "the counts are no longer those of the run (vocabulary, numbers or pseudo-counts); restore them, or start a "
                "new run"
            )
        fixed = ("num_states", "start", "horizon", "update_state_noise", "dtype")
        if changed := [name for name in fixed if state["settings"][name] != getattr(self.settings, name)]:
            raise ValueError(f"{', '.join(changed)} cannot change when a run is resumed")
        self.parameters = TextParameters(*(tensors[name].numpy() for name in ARRAYS))
        self.gram = tensors["emission_gram"].numpy() if "emission_gram" in tensors else None
        self.best_gain, self.gain_before, self.remarks = state["best_gain"], state["gain"], state["remarks"]

    def restore_best(self, folder: Path) -> None:
        self.best = self.like.load(folder)

    def _fingerprint(self) -> str:
        """Of what must not change between two parts of a run."""
        content = hashlib.sha256(self.counts.vocabulary.fingerprint().encode())
        content.update(np.ascontiguousarray(self.counts.counts).tobytes())
        content.update(json.dumps([self.settings.pseudo_counts, self.counts.num_pairs.tolist()]).encode())
        return content.hexdigest()
