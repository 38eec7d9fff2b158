"""Fitting a linear dynamical system to the lag counts of a text: subspace identification, then EM without the text.

An iteration of EM costs the same for a short text and a long one. Fits with a folder write a checkpoint as they go, can be
interrupted between two iterations, and are resumed to the same numbers.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: algorithm 1.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pplseq.data.lag_counts import LagCounts
from pplseq.data.text import Corpus, Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.folder import replace_folder, whole_folder
from pplseq.models.text_lds.asos import asos_likelihood, asos_statistics, maximize
from pplseq.models.text_lds.embeddings import as_lines
from pplseq.models.text_lds.lag_covariances import LagCovariances
from pplseq.models.text_lds.realisation import Realisation, realise
from pplseq.models.text_lds.steady_state import SteadyState, TextParameters
from pplseq.models.text_lds.subspace import subspace_identification
from pplseq.runs.checkpoint import TRAINING
from pplseq.runs.metrics_log import MetricsLog
from pplseq.runs.settings import NonFiniteLoss
from pplseq.runs.signals import Stopped, StopSignals

if TYPE_CHECKING:
    from pplseq.models.text_lds.program import TextLDS

STARTS = ("restricted", "line_search", "paper", "consistent")
UNSEEN = 0.5  # added to the counts of the unigram, whose words must all be possible
SLACK = 1e-4, 1e-3  # falls of the training gain that truncation explains, nats: horizons from 4 on, and shorter ones
ARRAYS = ("transition", "emission", "state_noise", "reduction")


@dataclass(frozen=True)
class FitSettings:
    """How to fit.

    Args:
        num_states: h.
        pseudo_counts: added to every word's count.
        num_iterations: of EM on all words.
        start: from subspace identification to parameters: "restricted" (EM in the subspace that was found, which costs
            almost nothing), or a realisation alone: "line_search", "paper", "consistent".
        restricted_iterations: of the EM in the subspace.
        blocks: block rows r of the Hankel matrix; needs lags 1..2r-1.
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
    num_iterations: int = 50
    start: str = "restricted"
    restricted_iterations: int = 150
    blocks: int = 4
    horizon: int | None = None
    update_state_noise: bool = True
    patience: int | None = None
    max_time: float | None = None
    seed: int = 0
    dtype: str = "float64"
    num_threads: int = 1
    checkpoint_interval: float = 10.0

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}; got {self.start!r}")
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype must be float64 or float32, got {self.dtype!r}")
        for name, low in (("num_states", 1), ("num_iterations", 0), ("restricted_iterations", 1), ("pseudo_counts", 0)):
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


def as_counts(x: Any, lengths: Any = None, *, num_words: int, max_lag: int, name: str = "x") -> LagCounts:
    """Lag counts of a text.

    Args:
        x: :class:`~pplseq.data.lag_counts.LagCounts`, a :class:`~pplseq.data.text.Text`, the training text of a
            :class:`~pplseq.data.text.Corpus`, a list of sequences of word ids, or padded ids (B, T) with lengths.
        name: of the argument, for messages.

    Raises:
        ValueError: for words outside of the vocabulary, missing ones too: pairs need words.
    """
    if isinstance(x, Corpus):
        x = x.train
    if not isinstance(x, (LagCounts, Text)):
        tokens, line_starts = as_lines(x, lengths)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < num_words:
            raise ValueError(f"{name} must hold word ids 0..{num_words - 1}, got {tokens.min()}..{tokens.max()}")
        names = Vocabulary(tuple(map(str, range(num_words))), unknown=None)
        x = Text(tokens.astype(np.int32), line_starts, np.array([0, len(line_starts) - 1]), names, name)
    counts = x if isinstance(x, LagCounts) else LagCounts.from_text(x, max_lag)
    if counts.num_words != num_words:
        raise ValueError(f"{name}: its vocabulary ({counts.num_words} words) is not that of the model, num_words={num_words}")
    return counts


def fit_text_lds(
    like: TextLDS,
    counts: LagCounts,
    settings: FitSettings,
    *,
    held_out: LagCounts | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    initial: TextParameters | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[TextLDS, TextFit]:
    """The best parameters (by held-out text where there is some, else the last), as a model, and how the fit went.

    Args:
        like: a model of the same kind, whose parameters do not matter.
        counts: of the training text.
        settings: see :class:`FitSettings`.
        held_out: counts of other text, of the same vocabulary, whose likelihood decides which parameters are best.
        folder: gets metrics.jsonl and the model folders last/ and best/; None keeps everything in memory.
        resume: go on with what is in the folder.
        initial: parameters to start EM from, instead of subspace identification.
        on_record: called with every record.

    Raises:
        ValueError: for counts that do not fit (another vocabulary, too few lags, a word that never occurs and no
            pseudo-counts), or a folder that holds a run already.
        NonFiniteLoss: naming the iteration; the checkpoint is from before it.
        SaveError, FolderError: the folder cannot be written, or not be read.
    """
    if held_out is not None and held_out.vocabulary.words != counts.vocabulary.words:
        raise ValueError(
            f"held_out: its vocabulary ({held_out.num_words} words) is not that of the training counts ({counts.num_words} "
            "words); count it with the training text's vocabulary"
        )
    run = _Fit(like, counts, settings, held_out, None if folder is None else Path(folder), on_record or (lambda record: None))
    if resume:
        run.load()
    elif run.folder is not None and whole_folder(run.folder / "last").exists():
        raise ValueError(f"{folder} already holds a run; resume it, or choose another folder")
    return run.run(initial)


def initial_parameters(cov: LagCovariances, settings: FitSettings) -> tuple[TextParameters, Realisation]:
    """Parameters by subspace identification, as ``settings.start`` says, and how they came about."""
    found = subspace_identification(cov, settings.num_states, blocks=settings.blocks, seed=settings.seed)
    realisation = realise(
        found, cov, settings.start, num_iterations=settings.restricted_iterations, horizon=settings.horizon
    )
    return realisation.parameters.rebased(), realisation


class _Fit:
    def __init__(self, like: TextLDS, counts, settings, held_out, folder, on_record) -> None:
        self.like, self.counts, self.settings, self.folder, self.on_record = like, counts, settings, folder, on_record
        self.cov = LagCovariances.from_counts(
            counts, settings.pseudo_counts, dtype=np.dtype(settings.dtype), num_threads=settings.num_threads
        )
        self.held_out = None if held_out is None else LagCovariances.from_counts(held_out, probs_from=self.cov)
        self.parameters: TextParameters | None = None
        self.gram: np.ndarray | None = None
        self.step, self.seconds_before, self.resumed_at = 0, 0.0, None
        self.gain: float | None = None  # of the parameters before these
        self.fell = False
        self.remarks: list[str] = []
        self.fit = TextFit()
        self.state: tuple | None = None  # parameters, and moments of the means under them
        self.best_state: tuple | TextLDS | None = None
        self.best_saved = True
        self.signals = StopSignals()

    # ---------------------------------------------------------------- the loop
    def run(self, initial: TextParameters | None) -> tuple[TextLDS, TextFit]:
        self.started = self.saved_at = time.monotonic()
        self.log = None if self.folder is None else MetricsLog(self.folder / "metrics.jsonl", self.resumed_at)
        if self.log is not None:
            self.fit.records = self.log.records
        try:
            with self.signals:
                if self.parameters is None:
                    with self.signals.immediate():
                        self.parameters = initial or self._identify()
                self._iterate()
        except Stopped:
            pass
        finally:
            if self.log is not None:
                self.log.close()
        self.signals.reraise()
        return self._model(self.best_state), self.fit

    def _identify(self) -> TextParameters:
        parameters, realisation = initial_parameters(self.cov, self.settings)
        if realisation.fit is not None and realisation.fit.stop_reason == "interrupted":
            raise KeyboardInterrupt  # a start that was cut short is none that another run would find
        self.remarks = [f"start by {realisation.method}: {realisation.report.reason}"]
        return parameters

    def _iterate(self) -> None:
        settings = self.settings
        while True:
            try:
                with np.errstate(all="ignore"):
                    steady = SteadyState(self.parameters, emission_gram=self.gram)
                    statistics = asos_statistics(steady, self.cov, horizon=settings.horizon)
                if not math.isfinite(statistics.likelihood.gain):
                    raise ArithmeticError("the likelihood is not finite")
                if np.linalg.eigvalsh(self.parameters.reduction)[0] < 0:
                    raise ArithmeticError("the states' second moment is not positive definite")
            except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
                if self.step == 0:
                    raise ValueError(f"the starting parameters cannot be used: {error}") from error
                self._save_best()
                raise NonFiniteLoss(
                    f"EM failed in iteration {self.step}: {error}; use more pseudo_counts or fewer states"
                ) from error
            self.state = self.parameters, (statistics.smoothed_moment, statistics.filtered_moment)
            self._record(steady, statistics)
            reason = self._reason()
            due = time.monotonic() - self.saved_at >= settings.checkpoint_interval
            if reason or due or self.step == 0 or self.signals.received is not None:
                self._save()
            self.signals.check()
            if reason:
                self.fit.stop_reason = reason
                return
            noise = None if settings.update_state_noise else self.parameters.state_noise
            self.parameters, self.gram, self.remarks = maximize(statistics, self.cov, state_noise=noise)
            self.step += 1

    def _record(self, steady: SteadyState, statistics: Any) -> None:
        record: dict[str, Any] = {"kind": "fit", "step": self.step, "gain_per_token": statistics.likelihood.gain}
        value = gain = record["gain_per_token"]
        slack = SLACK[(self.settings.horizon or self.cov.max_lag) < 4]
        self.fell = self.gain is not None and gain < self.gain - slack
        self.gain_before, self.gain = self.gain, gain  # resumption evaluates these parameters again
        if self.held_out is not None:
            horizon = None if self.settings.horizon is None else min(self.settings.horizon, self.held_out.max_lag)
            value = record["held_out_gain_per_token"] = asos_likelihood(steady, self.held_out, horizon=horizon).gain
        improved = value > self.fit.best
        if improved:
            self.fit.best, self.fit.best_step = value, self.step
        if improved or (self.held_out is None and not self.fell):  # without held-out text the last ones are the best
            self.best_state, self.best_saved = self.state, False
        record |= {"best": improved, "seconds": round(self._clock(), 3)}
        if self.remarks:
            record["remarks"] = self.remarks
        if self.log is None:
            self.fit.records.append(record)
        elif self.resumed_at is None or self.step > self.resumed_at:
            self.log.write(record)
        self.on_record(record)

    def _reason(self) -> str:
        settings = self.settings
        if self.fell:
            return "fell"
        if self.step >= settings.num_iterations:
            return "iterations"
        if settings.patience is not None and self.step - self.fit.best_step >= settings.patience:
            return "patience"
        if settings.max_time is not None and self._clock() >= settings.max_time:
            return "max_time"
        return ""

    def _clock(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _model(self, state: tuple | TextLDS) -> TextLDS:
        if not isinstance(state, tuple):
            return state  # as it was read from the folder
        parameters, moments = state
        model = self.like.from_parameters(
            parameters, self.cov.probs, moments=moments, dtype=getattr(torch, self.settings.dtype),
            forms=self.counts.forms, initial=self.like.initial, measure=self.like.measure,
        )  # fmt: skip
        smoothed = self.counts.counts + UNSEEN
        model.set_unigram(smoothed / smoothed.sum(), self.cov.shrinkage)
        model.vocabulary = self.counts.vocabulary
        return model

    # ---------------------------------------------------------------- checkpoints
    def _save(self) -> None:
        self.saved_at = time.monotonic()
        if self.folder is None:
            return
        self._save_best()

        tensors = {name: torch.from_numpy(np.array(getattr(self.parameters, name))) for name in ARRAYS}
        if self.gram is not None:
            tensors["emission_gram"] = torch.from_numpy(np.array(self.gram))
        state = {
            "step": self.step,
            "best": self.fit.best,
            "best_step": self.fit.best_step,
            "seconds": self._clock(),
            "settings": asdict(self.settings),
            "fingerprint": self._fingerprint(),
            "remarks": self.remarks,
            "gain": self.gain_before,
        }

        def write_model(new: Path) -> None:
            self._write_model(new, self.state)

        TRAINING.write(self.folder / "last", {"state": state}, tensors=tensors, more=write_model)

    def _save_best(self) -> None:
        if self.folder is not None and not self.best_saved:
            replace_folder(self.folder / "best", lambda new: self._write_model(new, self.best_state))
            self.best_saved = True

    def _write_model(self, folder: Path, state: tuple | TextLDS) -> None:
        self._model(state).save(folder)

    def load(self) -> None:
        if self.folder is None:
            raise ValueError("resume: give the folder of the run")
        header, tensors, *_ = TRAINING.read(self.folder / "last")
        state = header["state"]
        if state.get("fingerprint") != self._fingerprint():
            raise ValueError(
                f"{self.folder}: the counts are no longer those of the run (vocabulary, numbers or pseudo-counts); restore "
                "them, or start a new run"
            )
        fixed = ("num_states", "start", "horizon", "update_state_noise", "dtype")
        if changed := [name for name in fixed if state["settings"][name] != getattr(self.settings, name)]:
            raise ValueError(f"{self.folder}: {', '.join(changed)} cannot change when a run is resumed")
        self.parameters = TextParameters(*(tensors[name].numpy() for name in ARRAYS))
        self.gram = tensors["emission_gram"].numpy() if "emission_gram" in tensors else None
        self.step = self.resumed_at = state["step"]
        self.seconds_before, self.remarks, self.gain = state["seconds"], state["remarks"], state["gain"]
        self.fit.best, self.fit.best_step = state["best"], state["best_step"]
        self.best_state = self.like.load(self.folder / "best")

    def _fingerprint(self) -> str:
        """Of what must not change between two parts of a run."""
        import hashlib

        content = hashlib.sha256(self.counts.vocabulary.fingerprint().encode())
        content.update(np.ascontiguousarray(self.counts.counts).tobytes())
        content.update(json.dumps([self.settings.pseudo_counts, self.counts.num_pairs.tolist()]).encode())
        return content.hexdigest()
