"""Parameters of an autoregressive HMM, the data it takes, and where a fit starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.conditional import ConditionalEmission
from pplseq.distributions.dense import DenseTransition, GaussianEmission
from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.held import Ends, Slot, held
from pplseq.models.hmm.tables import DTYPES
from pplseq.models.lds.parameters import scale_of
from pplseq.models.parts.durations import moves_config, moves_of
from pplseq.models.parts.emissions import smallest_variances
from pplseq.models.regressed import RegressedSteps

FLOOR = 1e-6  # the smallest variance of a state, of that of the data


class ARHMMParameters(RegressedSteps):
    """What an autoregressive HMM learns; see the class that has the program.

    Weights are those of x - centre, the mean of the data fitted, so that digits are kept where data lie far from zero;
    ``estimates`` and ``set_parameters`` speak of x.
    """

    centre: Tensor
    regime_of: Tensor
    num_words = None
    steps_are = "vectors"

    def __init__(
        self, num_states: int, num_features: int, order: int, num_inputs: int, durations: Mapping[str, Any],
        state_names: Sequence[str] | None, dtype: str,
    ):  # fmt: skip
        super().__init__()
        self.num_regimes, told = checks.count("num_states", num_states), moves_config(**durations)
        self.num_features = checks.count("num_features", num_features)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.order, self.num_inputs = checks.count("order", order, 0), checks.count("num_inputs", num_inputs, 0)
        real, size = DTYPES[checks.choice("dtype", dtype, DTYPES)], 1 + self.order * num_features + self.num_inputs
        checks.fits("order", float(num_states * size**2), "choose a smaller order, or fewer states")
        self.moves = moves_of(num_states, told, "learned", real, "num_states")
        self.num_states = self.moves.num_states
        self.register_buffer("regime_of", self.moves.regime_of.clone(), persistent=False)
        self.weights = nn.Parameter(0.1 * torch.randn(num_states, num_features, size, dtype=real))  # of (1, lags, inputs)
        self.scale = nn.Parameter(torch.zeros(num_states, num_features, num_features, dtype=real))  # logs on the diagonal
        self.register_buffer("centre", torch.zeros(num_features, dtype=real))  # of the data fitted
        self._config: dict[str, Any] = dict(
            num_states=self.num_regimes, num_features=self.num_features, order=self.order, num_inputs=self.num_inputs
        ) | told
        self._name_states(state_names)
        self.drawn()

    # ---------------------------------------------------------------- values
    @property
    def scale_tril(self) -> Tensor:
        """(Z, D, D) factors of the covariances."""
        return self.scale.tril(-1) + torch.diag_embed(self.scale.diagonal(dim1=-2, dim2=-1).exp())

    @property
    def covariances(self) -> Tensor:
        """(Z, D, D) of what the regressions leave."""
        factor = self.scale_tril
        return factor @ factor.mT

    def estimates(self) -> dict[str, Tensor]:
        """Parameters by name, differentiable: transition (Z, Z), initial (Z,), constants (Z, D), lags (Z, p, D, D), of which
        [z, l - 1, i, j] is the weight of x_j l steps before in x_i, inputs (Z, D, U), covariances (Z, D, D)."""
        return self.moves.values() | self.by_name(self.weights) | {"covariances": self.covariances}

    def by_name(self, weights: Tensor) -> dict[str, Tensor]:
        """Weights (Z, D, K) of all regressors as constants, lags and inputs."""
        order, size, centre = self.order, self.num_features, self.centre.to(weights)
        constants, lags, inputs = weights.split([1, order * size, self.num_inputs], -1)
        found = {"constants": constants.squeeze(-1) + centre}
        if order:
            found["lags"] = lags.unflatten(-1, (order, size)).transpose(1, 2)
            found["constants"] = found["constants"] - found["lags"].sum(1) @ centre
        return found | ({"inputs": inputs} if self.num_inputs else {})

    @torch.no_grad()
    def set_parameters(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, transition=None, initial=None, duration=None, constants=None, lags=None, inputs=None, covariances=None
    ) -> Self:  # fmt: skip
        """Sets parameters in the shapes that :meth:`estimates` has; those that are not given stay.

        Raises:
            ValueError: for what this model has not, other shapes, rows that are no probabilities, and matrices that are no
                covariances.
        """
        given = dict(transition=transition, initial=initial, duration=duration, constants=constants, lags=lags, inputs=inputs)
        given["covariances"] = covariances
        values = self._values_given(given)
        factors = [scale_of(f"covariances[{z}]", value) for z, value in enumerate(values["covariances"])]
        if not all(bool((factor.diagonal() > 0).all()) for factor in factors):
            raise ValueError("covariances must be positive definite, got a singular one")
        constants = values["constants"] - self.centre
        if self.order:
            constants = constants + values["lags"].sum(1) @ self.centre
        parts = [constants.unsqueeze(-1)] + ([values["lags"].transpose(1, 2).flatten(2)] if self.order else [])
        self.weights.copy_(torch.cat(parts + ([values["inputs"]] if self.num_inputs else []), -1))
        factor = torch.stack(factors)
        self.scale.copy_(factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1).log()))
        return self

    def _parameter_units(self) -> dict[str, Tensor]:
        """How much the numbers of each parameter vary, by name: what L-BFGS measures its steps in."""
        deviations = self.covariances.detach().diagonal(dim1=-2, dim2=-1).sqrt()  # (Z, D)
        lags = (1 / deviations).repeat(1, self.order)
        rows = torch.cat([torch.ones_like(deviations[:, :1]), lags, deviations.new_ones(len(lags), self.num_inputs)], -1)
        scale = deviations.unsqueeze(-1).expand_as(self.scale).clone()
        scale.diagonal(dim1=-2, dim2=-1).fill_(1.0)  # logarithms
        return {"weights": deviations.unsqueeze(-1) * rows.unsqueeze(-2), "scale": scale}

    @property
    def num_free_parameters(self) -> int:
        size = self.num_features
        own = self.weights.numel() + self.num_regimes * size * (size + 1) // 2
        return self.moves.num_free + own - self._num_held

    @property
    def slots(self) -> dict[str, Slot]:
        """``weights`` are those of all regressors: the constant, lags and inputs, (Z, D, 1 + p D + U)."""
        return self.moves.slots | {
            "weights": Slot(self.weights, raw_of=Tensor.clone, clips=False, value_of=Tensor.clone, of_states=True),
            "covariances": Slot(self.scale, triangle=True),
        }  # fmt: skip

    def _check_held(self, method: str) -> None:
        super()._check_held(method)
        mask = held(self.weights)
        if method == "em" and mask is not None and not bool((mask == mask[:, :1]).all()):
            raise ValueError("fixed: 'em' holds weights of all columns of a regressor alike; use method 'lbfgs'")

    # ---------------------------------------------------------------- data
    def regressors(self, past: Tensor, inputs: Tensor | None) -> Tensor:
        """(B, T, K) of 1, the lags about the centre and inputs; see the class of all such models."""
        steps, past = past.shape[1] - self.order, past - self.centre
        parts = [past.new_ones(len(past), steps, 1)]
        parts += [past[:, self.order - lag : self.order - lag + steps] for lag in range(1, self.order + 1)]
        return torch.cat(parts if inputs is None else [*parts, inputs], -1)

    @torch.no_grad()
    def _check_data(self, batch: Batch) -> None:
        """Refuses data of which nothing can be learned, and goes over to their mean: parameters stay what they are."""
        x, seen = self._explained(batch)
        rows = x[seen]
        if len(rows) <= self.weights.shape[-1]:
            raise ValueError(f"x: {self.weights.shape[-1]} weights of every number need more than {len(rows)} vectors")
        flat = (rows == rows[0]).all(0).nonzero().flatten().tolist()
        if flat:
            raise ValueError(f"x: columns {flat} (from 0) hold one value only, so nothing can be learned of them")
        values = self.by_name(self.weights)
        self.centre.copy_(rows.mean(0))
        about = values["lags"].sum(1) @ self.centre if self.order else 0.0
        self.weights[..., 0] = values["constants"] - self.centre + about

    def _ends(self, batches: Sequence[Batch]) -> Ends:
        """The smallest logarithms of the scales of what regressions leave; see
        :func:`~pplseq.infer.fit.gradients.ends_of`."""
        rows = torch.cat([x[seen] for x, seen in map(self._explained, batches)])
        ends = smallest_variances(rows, FLOOR).log() / 2
        low = torch.full_like(self.scale[0].double(), -torch.inf).diagonal_scatter(ends)
        return {"scale": (low, low.new_tensor(torch.inf))}

    _entry_axes: ClassVar[dict[str, Sequence[str]]] = {
        "constants": ("columns",), "lags": ("", "columns", "columns"), "inputs": ("columns", "inputs"),
        "covariances": ("columns", "columns"),
    }  # fmt: skip

    # ---------------------------------------------------------------- distributions
    def level(self) -> Tensor:
        return self.centre

    def _regressions_ahead(self, about: Tensor, before: Tensor | None, num_steps: int) -> tuple[list[Tensor], Tensor]:
        order, size = self.order, self.num_features
        constants, lags, inputs = self.weights.split([1, order * size, self.num_inputs], -1)
        summed = lags.unflatten(-1, (order, size)).sum(-2)
        level = constants.squeeze(-1) + self.centre + (summed @ (about - self.centre)[:, None, :, None]).squeeze(-1)
        found = []
        for step in range(num_steps):
            constant = level - about.unsqueeze(1)
            if before is not None:
                constant = constant + (inputs @ before[:, order + step, None, :, None]).squeeze(-1)
            row = torch.cat([constant.unsqueeze(-1), lags.expand(len(about), -1, -1, -1)], -1)
            found.append(row[:, self.regime_of])
        return found, self.covariances[self.regime_of]

    def specs(self) -> tuple[DenseTransition, ConditionalEmission]:
        """Transition of states, and emission given regressors (B, K)."""
        weights, factor, centre = self.weights, self.scale_tril, self.centre
        has_durations = self.num_states > self.num_regimes
        if has_durations:
            weights, factor = weights[self.regime_of], factor[self.regime_of]

        def build(regressors: Tensor) -> GaussianEmission:
            loc = (weights @ regressors[..., None, :, None]).squeeze(-1) + centre
            return GaussianEmission(loc, scale_tril=factor.expand(*loc.shape, loc.shape[-1]))

        moves = self.moves.initial_logits, torch.log_softmax(self.moves.transition_logits, -1)
        emission = ConditionalEmission(build, self.num_states, event_shape=(self.num_features,))
        return DenseTransition(*moves, self.regime_of if has_durations else None), emission
