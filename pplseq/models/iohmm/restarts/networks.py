"""Networks of an input-output model with R sets of weights at once, and their maximisers given expected counts.

Weights are those of the model's networks (:mod:`pplseq.models.iohmm.networks`), by the same names, with the restarts behind:
logits (S, K, R), (L, S, K, R), weight (S, U + 1, K, R). S are source states (absent for starts), K outcomes.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pplseq.models.iohmm.restarts.climbing import Climber
from pplseq.models.iohmm.restarts.regressions import bernoulli_regression, linear_regression, softmax_regression

Weights = dict[str, Tensor]

LOOKED_AT = 4  # columns that may show that few rows repeat
ROUNDING = 1e-12  # deviations, of the largest number, of a column that does not vary


class Rows(NamedTuple):
    """The distinct inputs of a network. values: (N[, U]) or None (one row, or every symbol once); entry: which of them each
    packed step or row takes, None for one each in order; size: N, or how many symbols."""

    values: Tensor | None
    entry: Tensor | None
    size: int

    @property
    def features(self) -> Tensor:
        """The values of networks that are functions of vectors."""
        if self.values is None:
            raise TypeError("values: lookup tables and constants have none")
        return self.values

    def every(self, count: int) -> Tensor:
        """(count,) the entry of each step."""
        if self.entry is not None:
            return self.entry
        device = None if self.values is None else self.values.device
        return torch.zeros(count, dtype=torch.long, device=device) if self.size == 1 else torch.arange(count, device=device)


class Penalty(NamedTuple):
    """Priors of a part. concentration: (R,), at least 1, of a symmetric Dirichlet prior of tables' rows (Beta for bits), or
    None. precision, noise_precision: of Normal priors of all weights and of the noise's parameters, 0 for none.
    """

    concentration: Tensor | None = None
    precision: float = 0.0
    noise_precision: float = 0.0


class RestartNetwork:
    """A network of the model seen as R of it.

    Args:
        network: the model's; its ``kind`` says what its weights are, and only "layered" and "module" are called.
        allowed: (Z, Z) or (Z,) bool, which outcomes a softmax normalises over; None for all.
    """

    def __init__(self, network, allowed: Tensor | None = None, num_climbs: int = 10):
        self.network, self.kind, self.shape = network, network.kind, tuple(network.shape)
        self.forbidden = None if allowed is None or bool(allowed.all()) else ~allowed
        self.num_climbs = num_climbs
        self.climber: Climber | None = None

    @property
    def exact(self) -> bool:
        """Whether its maximum given counts is found by a formula or by Newton's method."""
        return self.kind in ("constant", "table", "linear")

    @property
    def module(self) -> nn.Module | None:
        """A module of the user's, which may draw, and do something else in training."""
        return getattr(self.network, "module", None)

    @property
    def num_sources(self) -> int:
        return self.shape[0] if len(self.shape) == 2 else 1

    @property
    def num_outcomes(self) -> int:
        return self.shape[-1]

    # ---------------------------------------------------------------- rows
    def rows(self, inputs: Tensor | None) -> Rows:
        """The distinct ones of packed inputs (N[, U])."""
        if self.kind == "constant":
            return Rows(None, None, 1)
        if self.kind == "table":
            return Rows(None, inputs, self.network.logits.shape[0])
        if inputs is None:
            raise ValueError("inputs: this network sees some, got None")
        values, entry = distinct(inputs)
        if self.kind == "linear":
            values = torch.cat([values, values.new_ones(len(values), 1)], -1)
        return Rows(values, entry, len(values))

    # ---------------------------------------------------------------- values
    def values(self, weights: Weights, rows: Rows) -> Tensor:
        """(S, K, N, R) logits or means; differentiable."""
        if self.kind == "constant":
            return weights["logits"].reshape(self.num_sources, self.num_outcomes, 1, -1)
        if self.kind == "table":
            logits = weights["logits"]
            return logits.reshape(len(logits), self.num_sources, self.num_outcomes, -1).movedim(0, 2)
        if self.kind == "linear":
            return rows.features @ self._glm(weights).transpose(1, 2)
        of_all = vmap(lambda own: functional_call(self.network, own, (rows.values,)), -1, -1, randomness="different")
        value = of_all(weights)
        return value.reshape(rows.size, self.num_sources, self.num_outcomes, -1).movedim(0, 2)

    def log_probs(self, weights: Weights, rows: Rows) -> Tensor:
        """(S, K, N, R) log softmax over the allowed outcomes, -inf elsewhere."""
        logits = self.values(weights, rows)
        if self.forbidden is not None:
            logits = logits.masked_fill(self._mask()[:, :, None, None], -torch.inf)
        return torch.log_softmax(logits, 1)

    def _mask(self) -> Tensor:
        return cast(Tensor, self.forbidden).reshape(-1, self.num_outcomes)

    def _glm(self, weights: Weights) -> Tensor:
        """(S, U + 1, K, R)."""
        weight = weights["weight"]
        return weight.reshape(self.num_sources, -1, *weight.shape[-2:])

    def log_prior(
        self, weights: Weights, penalty: Penalty, *, softmax: bool = False, bernoulli: bool = False
    ) -> Tensor:
        """(R,) nats, up to a constant; ``softmax`` and ``bernoulli`` say what a table's logits are, and that they have a
        Dirichlet or Beta prior where the penalty has one."""
        like = next(iter(weights.values()))
        total = like.new_zeros(like.shape[-1])
        if penalty.precision:
            total = total - penalty.precision / 2 * sum((v**2).flatten(0, -2).sum(0) for v in weights.values())
        if penalty.concentration is not None and self.kind in ("constant", "table") and (softmax or bernoulli):
            if softmax:
                log_probs = self.log_probs(weights, Rows(None, None, 0))
            else:
                logits = self.values(weights, Rows(None, None, 0))
                log_probs = torch.nn.functional.logsigmoid(torch.cat([logits, -logits], 1))
            extra = (penalty.concentration - 1.0).expand(log_probs.shape)
            if softmax and self.forbidden is not None:
                extra = extra.masked_fill(self._mask()[:, :, None, None], 0.0)
            total = total + inner(extra, log_probs)
        return total

    # ---------------------------------------------------------------- maximisers
    def fit_softmax(self, weights: Weights, rows: Rows, counts: Tensor, penalty: Penalty) -> Weights:
        """argmax (or, for layers, uphill in) sum counts * log_probs + prior, given counts (S, K, N, R)."""
        if self.kind in ("constant", "table") and not penalty.precision:
            before = self.log_probs(weights, rows)
            mass = counts
            if penalty.concentration is not None:
                mass = counts + (penalty.concentration - 1.0)
                if self.forbidden is not None:
                    mass = mass.masked_fill(self._mask()[:, :, None, None], 0.0)
            total = mass.sum(1, keepdim=True)
            return self._from_table(torch.where(total > 0, (mass / total).log(), before), weights)
        if not self.exact:
            return self.climb_softmax(weights, rows, counts, penalty)
        if self.kind == "linear":
            num_restarts = counts.shape[-1]
            glm, forbidden = self._glm(weights).permute(0, 3, 1, 2).flatten(0, 1), None
            if self.forbidden is not None:
                forbidden = self._mask().repeat_interleave(num_restarts, 0)
            own = counts.permute(0, 3, 2, 1).flatten(0, 1)
            found = softmax_regression(rows.features, own, glm, forbidden=forbidden, ridge=penalty.precision).weights
            found = found.unflatten(0, (-1, num_restarts)).permute(0, 2, 3, 1)
            return {"weight": found.reshape(weights["weight"].shape)}
        # a table whose logits have a prior: a regression of each row on a one
        logits = self.values(weights, rows).movedim(1, -1)  # (S, N, R, K)
        forbidden = None
        if self.forbidden is not None:
            forbidden = self._mask()[:, None, None].expand(logits.shape).flatten(0, 2)
        found = softmax_regression(
            logits.new_ones(1, 1), counts.movedim(1, -1).reshape(-1, 1, self.num_outcomes),
            logits.reshape(-1, 1, self.num_outcomes), forbidden=forbidden, ridge=penalty.precision,
        ).weights  # fmt: skip
        return self._from_table(found.reshape(logits.shape).movedim(-1, 1), weights)

    def fit_bernoulli(self, weights: Weights, rows: Rows, ones: Tensor, zeros: Tensor, penalty: Penalty) -> Weights:
        """The same for sum ones * log p + zeros * log(1 - p), both (Z, D, N, R), p = sigmoid of the values."""
        if self.kind in ("constant", "table") and not penalty.precision:
            before = self.values(weights, rows)
            if penalty.concentration is not None:
                ones, zeros = (value + (penalty.concentration - 1.0) for value in (ones, zeros))
            return self._from_table(torch.where(ones + zeros > 0, (ones / zeros).log(), before), weights)
        if not self.exact:
            return self.climb_bernoulli(weights, rows, ones, zeros, penalty)
        if self.kind == "linear":
            glm = self._glm(weights).transpose(1, 2).movedim(-1, 2).flatten(0, 2)  # (Z D R, U + 1)
            ones, zeros = (value.movedim(-1, 2).flatten(0, 2) for value in (ones, zeros))
            found = bernoulli_regression(rows.features, ones, zeros, glm, ridge=penalty.precision).weights
            found = found.unflatten(0, (self.num_sources, self.num_outcomes, -1)).permute(0, 3, 1, 2)
            return {"weight": found.reshape(weights["weight"].shape)}
        logits = self.values(weights, rows)
        found = bernoulli_regression(
            logits.new_ones(1, 1), ones.reshape(-1, 1), zeros.reshape(-1, 1), logits.reshape(-1, 1),
            ridge=penalty.precision,
        ).weights  # fmt: skip
        return self._from_table(found.reshape(logits.shape), weights)

    def fit_means(self, weights: Weights, rows: Rows, entry: Tensor, targets: Tensor, mass: Tensor) -> Weights:
        """Weighted least squares: means of targets (M, D) or (Z, R, M, D) under mass (Z, R, M); entry (M,) says where each
        belongs."""
        num_restarts = mass.shape[1]
        if self.kind == "linear":
            features = rows.features[entry]
            glm = self._glm(weights).permute(0, 3, 1, 2).flatten(0, 1)
            own = targets if targets.dim() == 2 else targets.flatten(0, 1)
            found = linear_regression(features, own, mass.flatten(0, 1), previous=glm)
            found = found.unflatten(0, (-1, num_restarts)).permute(0, 2, 3, 1)
            return {"weight": found.reshape(weights["weight"].shape)}
        sums = mass.new_zeros(*mass.shape[:2], rows.size, targets.shape[-1])
        sums = sums.index_add_(2, entry, mass.unsqueeze(-1) * targets)
        total = mass.new_zeros(*mass.shape[:2], rows.size).index_add_(2, entry, mass)
        mean = (sums / total.unsqueeze(-1)).permute(0, 3, 2, 1)
        total = total.transpose(1, 2).unsqueeze(1)
        return self._from_table(torch.where(total > 0, mean, self.values(weights, rows)), weights)

    def _from_table(self, table: Tensor, weights: Weights) -> Weights:
        """Weights of a table (S, K, L, R) of logits."""
        return {"logits": table.movedim(2, 0).reshape(weights["logits"].shape)}

    def climb_softmax(self, weights: Weights, rows: Rows, counts: Tensor, penalty: Penalty) -> Weights:
        """:meth:`fit_softmax` by a few steps uphill."""

        def objective(own):
            return inner(counts, self.log_probs(own, rows)) + self.log_prior(own, penalty, softmax=True)

        return self._climb(weights, objective)

    def climb_bernoulli(self, weights: Weights, rows: Rows, ones: Tensor, zeros: Tensor, penalty: Penalty) -> Weights:
        """:meth:`fit_bernoulli` by a few steps uphill."""

        def objective(own):
            logits = self.values(own, rows)
            log_one, log_zero = (torch.nn.functional.logsigmoid(value) for value in (logits, -logits))
            return inner(ones, log_one) + inner(zeros, log_zero) + self.log_prior(own, penalty, bernoulli=True)

        return self._climb(weights, objective)

    def _climb(self, weights: Weights, objective) -> Weights:
        if self.climber is None:
            self.climber = Climber(weights)
        return self.climber.climb(weights, objective, self.num_climbs)

    def forget(self) -> None:
        """Forgets what is remembered between steps."""
        self.climber = None

    def take(self, restarts: Tensor) -> None:
        """Keeps what is remembered between steps for some restarts only."""
        if self.climber is not None:
            self.climber.take(restarts)


def inner(counts: Tensor, log_probs: Tensor) -> Tensor:
    """(R,) sum counts * log_probs, where 0 * -inf is 0 and has no gradient."""
    return (counts * log_probs.masked_fill(counts == 0, 0.0)).flatten(0, -2).sum(0)


def in_units_of(inputs: Tensor, weight: Tensor) -> None:
    """Changes weights (..., U + 1, K, R), drawn as for inputs of mean 0 and deviation 1, to what they are for inputs (N, U) in
    other units: far from 0 or wide, they would begin where one outcome is all but certain at every step. An input that does not
    vary has no slope."""
    mean = inputs.mean(0)
    spread = (inputs - mean).square().mean(0).sqrt()
    varies = spread > ROUNDING * inputs.abs().amax(0)
    weight[..., :-1, :, :] *= torch.where(varies, 1 / spread, 0.0)[:, None, None]
    weight[..., -1, :, :] -= torch.einsum("...ukr,u->...kr", weight[..., :-1, :, :], mean)


def distinct(values: Tensor) -> tuple[Tensor, Tensor | None]:
    """The distinct rows of (N[, U]) and which of them each row is; the rows as they are and None where few repeat."""
    if values.dim() == 2 and not values.shape[1]:  # no inputs: all rows are the same one
        return values[:1], torch.zeros(len(values), dtype=torch.long, device=values.device)
    for column in values.T[:LOOKED_AT] if values.dim() == 2 else ():  # numbers are compared many times faster than rows
        if column.device.type == "cpu" and 2 * _num_distinct(column) > len(values):
            return values, None
        found, index = torch.unique(column, return_inverse=True)
        if 2 * len(found) > len(values):
            return values, None
        if values.shape[1] == 1:
            return found.unsqueeze(-1), index
    rows, index = torch.unique(values, dim=0, return_inverse=True)
    if 2 * len(rows) > len(values):
        return values, None
    return rows, index


def _num_distinct(column: Tensor) -> int:
    """How many numbers (N,) there are, a NaN each; their places among them take ten times as long to find."""
    ordered = np.sort(column.detach().numpy())
    return len(ordered) and 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
