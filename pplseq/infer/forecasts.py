"""What every model tells of the steps to come: distributions, intervals, and the same as a table."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.discrete.mixtures import Quantiles, Shares
from pplseq.infer.frames import framed


class Forecast(NamedTuple):
    """The K steps behind each row, p(z_{T+k}, x_{T+k} | x_1..x_T), k = 1..K; of the next step alone without the axis K.

    state_log_probs: (B, K, Z) nats, of states, or of the regimes that they stand for. word_log_probs: (B, K, V) nats, of words.
    means: (B, K, D) of numbers, covariances: (B, K, D, D), uncertainty about the state included. quantiles: what
    :meth:`intervals` asks where numbers are no Gaussians. column_names: of a frame's columns, where the model was fitted to
    one. times: of each row the times of the steps, where the observations came as frames that say how theirs go on. sequences:
    what the rows are called, and what the column is that said so. state_means: (B, K, h), state_covariances: (B, K, h, h), of
    states that are vectors. None where a model has no such thing.
    """

    # tensors or None: who asks a model knows which
    state_log_probs: Any = None
    word_log_probs: Any = None
    means: Any = None
    covariances: Any = None
    quantiles: Quantiles | None = None
    column_names: tuple[str, ...] | None = None
    times: tuple[Any, ...] | None = None
    sequences: tuple[str, tuple[Any, ...]] | None = None
    state_means: Any = None
    state_covariances: Any = None

    def step(self, number: int) -> Self:
        """One of the K steps, from 0."""
        return self._make(part if part is None or isinstance(part, tuple) else part[:, number] for part in self)

    def intervals(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (B, K, D) of intervals that hold each number with this probability (of counts, at least), as
        much of the rest on each side: exact quantiles of the mixture over states, or over paths of them.

        Raises:
            ValueError: for words and angles, which have no order; for more steps than paths can be gone through; for a level
                outside of (0, 1).
        """
        checks.share("level", level, "(0, 1)")
        if self.state_means is not None:  # Gaussian
            half = self.covariances.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
            half = half * 2**0.5 * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
            return self.means - half, self.means + half
        if self.quantiles is None:
            raise ValueError(
                "intervals: this forecast is of no numbers whose distribution is known; draw from the model (sample)"
            )
        return self.quantiles.quantiles((1 - level) / 2), self.quantiles.quantiles((1 + level) / 2)

    def _repr_html_(self) -> str | None:
        """The frame, for notebooks; None where there is none, as without pandas."""
        try:
            return self.frame().to_html(max_rows=20)
        except (ImportError, ValueError):
            return None

    def frame(self, row: int | None = None, level: float = 0.95) -> Any:
        """The forecast of K steps as a frame of pandas: of each column (by default x0, x1, ...) the mean, and the ends of its
        interval beside it; of words x0, x1, ... the probability of each word, and whether it comes.

        Args:
            row: which of the B sequences; None for all, one behind the other, with a first column that says which where they
                are several: by their own names, or "sequence", 0, 1, ... level: of intervals.

        Raises:
            ImportError: without pandas. ValueError: for a single step (of ``predict_next``): ask forecast; for a row that is
                not there; and where :meth:`intervals` raises it.
        """
        if self.means is None and self.word_log_probs is not None:
            probs = self.word_log_probs.exp()
            return self._replace(means=probs, word_log_probs=None, quantiles=Shares(probs)).frame(row, level)
        if self.means is None or self.means.dim() != 3:
            raise ValueError("frame: the steps of a forecast, (B, K, D), are its rows, and one step no rows: ask forecast")
        size = self.means.shape[-1]
        low, high = self.intervals(level)
        given = self.column_names
        names = given if given is not None and len(given) == size else [f"x{k}" for k in range(size)]
        ends = (("", self.means), (" low", low), (" high", high))
        tables = [
            {f"{name}{what}": part[one, :, k].tolist() for k, name in enumerate(names) for what, part in ends}
            for one in range(len(self.means))
        ]
        return framed(row, tables, self.times, self.sequences)
