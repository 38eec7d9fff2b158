"""What a switching regression tells: of regimes instead of histories, and of the numbers to come."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.infer.discrete.mixtures import PathMixture, Quantiles, intervals_of, step_of
from pplseq.infer.frames import forecast_frame, frame_html
from pplseq.models.lds.arguments import inputs_ahead, one_to_come, to_come
from pplseq.models.regimes import RegimeQueries
from pplseq.models.switching.parameters import SwitchingParameters


class SwitchingForecast(NamedTuple):
    """What comes after the numbers: p(x_{T+k} | x_1..x_T), k = 1..K.

    means, variances: (B, K). regimes: (B, K, R) probabilities. quantiles: what :meth:`intervals` asks. column_names: of the
    series or column the model was fitted to. times: of each row the times of the steps, where the numbers came as series that
    say how theirs go on. sequences: what these are called.
    """

    means: Tensor
    variances: Tensor
    regimes: Tensor
    quantiles: Quantiles | None = None
    column_names: tuple[str, ...] | None = None
    times: tuple[Any, ...] | None = None
    sequences: tuple[str, tuple[Any, ...]] | None = None

    def intervals(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (B, K) of intervals that hold each number with this probability: exact quantiles of the mixture
        over paths of regimes.

        Raises:
            ValueError: for more steps than paths can be gone through; for a level outside of (0, 1).
        """
        low, high = intervals_of(self.quantiles, level)
        return low.squeeze(-1), high.squeeze(-1)

    _repr_html_ = frame_html

    def frame(self, row: int | None = None, level: float = 0.95) -> Any:
        """The forecast of K steps as a frame of pandas: the mean, and the ends of its interval beside it.

        Args:
            row: one sequence; None for all, with a first column that says which where they are several. level: of intervals.

        Raises:
            ValueError: for a single step (of ``predict_next``), and where :meth:`intervals` raises it.
        """
        return forecast_frame(
            self.means.unsqueeze(-1), lambda: intervals_of(self.quantiles, level), row, self.column_names, self.times,
            self.sequences,
        )  # fmt: skip


class SwitchingQueries(RegimeQueries, SwitchingParameters):
    """Queries of a switching regression; probabilities of the first ``order`` steps are those of their start."""

    def predict_next(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, lengths=None, *, inputs=None, next_inputs=None
    ) -> SwitchingForecast:
        """:meth:`forecast` of one step; next_inputs: (B, U), or (U,) for all rows."""
        return step_of(self.forecast(x, 1, lengths, inputs=inputs, future_inputs=one_to_come(self, next_inputs)), 0)

    @torch.no_grad()
    def forecast(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, num_steps: int | None = None, lengths=None, *, inputs=None, future_inputs=None
    ) -> SwitchingForecast:
        """Means and variances of the next K = num_steps numbers, exactly: moments of the lags travel with every regime.

        Args:
            x, lengths, inputs: the past. future_inputs: (B, K, U), or (K, U) for all rows; num_steps may then be left out.

        Source: O. L. V. Costa, M. D. Fragoso and R. P. Marques (2005), Discrete-time Markov jump linear systems, section 3.2.
        Cost: N (p + 1)^3 a step for N histories.
        """
        ahead, num_steps = inputs_ahead(self, x, num_steps, future_inputs, lengths)
        batch, chain = self._posterior(x, lengths, inputs=inputs)
        rows, order = len(batch.x), self.order
        future = to_come(ahead, rows, num_steps, self.num_inputs, self.reference)
        ends = batch.x.new_full((rows,), batch.x.shape[1], dtype=torch.long) if batch.lengths is None else batch.lengths
        if bool((ends < order).any()):
            raise ValueError(f"x: a forecast goes on from the last {order} numbers; the shortest row has {int(ends.min())}")
        recent = torch.stack([ends - 1 - lag for lag in range(order)], -1) if order else ends.new_zeros(rows, 0)
        values = self.observed(batch.x)[0][..., 0]
        recent = values.gather(1, recent.to(values.device))
        about = recent[:, 0] if order else self.level().expand(rows)  # moments about it do not cancel
        vector = torch.cat([values.new_ones(rows, 1), recent - about.unsqueeze(-1)], -1)  # 1 and the last p
        states = chain.filtered().log_probs.exp().reshape(rows, -1)
        second = states[..., None, None] * (vector.unsqueeze(-1) * vector.unsqueeze(-2)).unsqueeze(1)
        weights, scale = self.coefficients()
        matrix = self.moves()[1].exp()
        seen = None
        if future is not None and batch.inputs is not None:
            steps = ends.unsqueeze(-1) - order + torch.arange(order, device=ends.device)
            old = batch.inputs.gather(1, steps.to(values.device).unsqueeze(-1).expand(-1, -1, self.num_inputs))
            seen = torch.cat([old, future], 1)
        means, variances, regimes, travelled, last = [], [], [], [], states
        for step in range(num_steps):
            states, second = states @ matrix, torch.einsum("ij,biuv->bjuv", matrix, second)
            row = weights[:, : 1 + order].expand(rows, -1, -1).clone()
            if seen is not None:
                lags = order + 1 if self.lags_of == "deviations" else 1
                parts = torch.cat([seen[:, order + step - lag] for lag in range(lags)], -1)
                row[..., 0] += parts @ weights[:, 1 + order :].T
            row[..., 0] += (row[..., 1:].sum(-1) - 1) * about.unsqueeze(-1)
            keep = torch.eye(1 + order).to(row)
            move = torch.cat([keep[:1].expand(*row.shape[:2], 1, -1), row.unsqueeze(-2)], -2)
            move = torch.cat([move, keep[1:order].expand(*row.shape[:2], -1, -1)], -2)  # the oldest number is dropped
            travelled.append(move)
            joint = move @ second @ move.mT
            joint[..., 1, 1] += states * scale.square()
            mean = joint[..., 0, 1].sum(-1)
            means.append(mean + about)
            variances.append(joint[..., 1, 1].sum(-1) - mean.square())
            regimes.append(self.regimes(states))
            second = joint[..., : 1 + order, : 1 + order]
        paths = PathMixture(last, matrix, vector, travelled, scale.square().reshape(-1, 1, 1), about.unsqueeze(-1))
        found = SwitchingForecast(torch.stack(means, 1), torch.stack(variances, 1), torch.stack(regimes, 1), paths)
        return self._labelled(found, x, lengths, num_steps, ahead=future_inputs)
