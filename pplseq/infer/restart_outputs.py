"""Outputs of an input-output model with R parameter sets at once: likelihoods of what was seen, and maximisers given visits.

Weights are {"emission": those of the output network, "noise": those of Gaussian covariances}, restarts last.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.infer.climbing import Climber
from pplseq.infer.restart_networks import Penalty, RestartNetwork, Rows, _inner
from pplseq.infer.weighted_glm import residual_covariance

Parameters = dict[str, dict[str, Tensor]]


class Seen(NamedTuple):
    """The M distinct (input, target, known state) of emissions. rows: the network's, with index (M,); y: (M[, D]);
    known: (M,) where there is a target; states: (M,) observed, negative where unknown, or None."""

    rows: Rows
    y: Tensor
    known: Tensor
    states: Tensor | None


class Outputs:
    """No output network: targets are states, which stand in ``seen.states``."""

    names: tuple[str, ...] = ()

    def __init__(self, num_states: int):
        self.num_states = num_states
        self.network: RestartNetwork | None = None

    def log_likelihood(self, parameters: Parameters, seen: Seen, num_restarts: int) -> Tensor:
        """(Z, M, R) log p(y | z, u), nats: 0 without a target, -inf for states other than the observed one; differentiable."""
        value = self._density(parameters, seen, num_restarts)
        if not bool(seen.known.all()):
            value = value.masked_fill(~seen.known.unsqueeze(-1), 0.0)
        if seen.states is not None:
            other = torch.arange(self.num_states, device=seen.y.device).unsqueeze(-1) != seen.states
            value = value.masked_fill((other & (seen.states >= 0)).unsqueeze(-1), -math.inf)
        return value

    def _density(self, parameters, seen, num_restarts) -> Tensor:
        like = next(iter(parameters["transition"].values()))
        return like.new_zeros(self.num_states, len(seen.y), num_restarts)

    def maximize(self, parameters: Parameters, seen: Seen, visits: Tensor, penalty: Penalty, gradient: bool) -> tuple:
        """New parameters of the outputs under visits (Z, M, R), and (R,) restarts where a variance met its floor.

        ``gradient`` True takes steps uphill also where there is a formula.
        """
        return {}, None

    def right(self, parameters: Parameters, seen: Seen, entry: Tensor, states: Tensor) -> Tensor:
        """(N, R) whether the most probable output of each step is its target (True where there is none).

        Args:
            entry: (N,) which of ``seen`` each step is. states: (Z, N, R) probabilities of the states.

        Raises:
            ValueError: for outputs that are not discrete.
        """
        if seen.states is None:
            return torch.ones_like(states[0], dtype=torch.bool)
        target = seen.states[entry].unsqueeze(-1)
        return (states.argmax(0) == target) | (target < 0)

    def log_prior(self, parameters: Parameters, penalty: Penalty) -> Tensor | float:
        """(R,) nats, up to a constant."""
        return self.network.log_prior(parameters["emission"], penalty) if self.network is not None else 0.0

    def forget(self) -> None:
        """Forgets what is remembered between steps."""
        if self.network is not None:
            self.network.forget()

    def take(self, restarts: Tensor) -> None:
        """Keeps what is remembered between steps for some restarts only."""
        if self.network is not None:
            self.network.take(restarts)


class CategoricalOutputs(Outputs):
    """y in 0..V-1."""

    names = ("emission",)

    def __init__(self, network: RestartNetwork):
        super().__init__(network.num_sources)
        self.network = network

    def _density(self, parameters, seen, num_restarts):
        return self.network.log_probs(parameters["emission"], seen.rows)[:, seen.y, seen.rows.index]

    def maximize(self, parameters, seen, visits, penalty, gradient):
        num_words, count = self.network.num_outcomes, seen.rows.count
        which = (seen.rows.index * num_words + seen.y)[seen.known]
        counts = visits.new_zeros(self.num_states, count * num_words, visits.shape[-1])
        counts = counts.index_add_(1, which, visits[:, seen.known]).unflatten(1, (count, num_words)).transpose(1, 2)
        fit = self.network.climb_softmax if gradient else self.network.fit_softmax
        return {"emission": fit(parameters["emission"], seen.rows, counts, penalty)}, None

    def right(self, parameters, seen, entry, states):
        probs = self.network.log_probs(parameters["emission"], seen.rows).exp()
        expected = _mixed(states, probs, seen.rows.index[entry])
        return (expected.argmax(0) == seen.y[entry].unsqueeze(-1)) | ~seen.known[entry].unsqueeze(-1)

    def log_prior(self, parameters, penalty):
        return self.network.log_prior(parameters["emission"], penalty, softmax=True)


class BernoulliOutputs(Outputs):
    """y in {0, 1}^D, independent given state and input."""

    names = ("emission",)

    def __init__(self, network: RestartNetwork):
        super().__init__(network.num_sources)
        self.network = network

    def _density(self, parameters, seen, num_restarts):
        logits = self.network.values(parameters["emission"], seen.rows)
        log_one, log_zero = (
            torch.nn.functional.logsigmoid(value)[:, :, seen.rows.index] for value in (logits, -logits)
        )
        return torch.where(seen.y.T.unsqueeze(-1) > 0.5, log_one, log_zero).sum(1)

    def maximize(self, parameters, seen, visits, penalty, gradient):
        shape = (self.num_states, seen.rows.count, visits.shape[-1])
        index, visits, y = seen.rows.index[seen.known], visits[:, seen.known], seen.y[seen.known]
        ones, zeros = (
            torch.stack(
                [visits.new_zeros(shape).index_add_(1, index, visits * column.unsqueeze(-1)) for column in columns], 1
            )
            for columns in (y.T, 1 - y.T)
        )
        fit = self.network.climb_bernoulli if gradient else self.network.fit_bernoulli
        return {"emission": fit(parameters["emission"], seen.rows, ones, zeros, penalty)}, None

    def right(self, parameters, seen, entry, states):
        probs = self.network.values(parameters["emission"], seen.rows).sigmoid()
        expected = _mixed(states, probs, seen.rows.index[entry])
        target = seen.y[entry].T.unsqueeze(-1) > 0.5
        return ((expected > 0.5) == target).all(0) | ~seen.known[entry].unsqueeze(-1)

    def log_prior(self, parameters, penalty):
        return self.network.log_prior(parameters["emission"], penalty, bernoulli=True)


def _mixed(states: Tensor, probs: Tensor, index: Tensor) -> Tensor:
    """(V, N, R) sum_z states (Z, N, R) probs (Z, V, L, R) at each step's entry."""
    return sum(own * table[:, index] for own, table in zip(states, probs, strict=True))


class GaussianOutputs(Outputs):
    """y in R^D with means from the network and covariances of each state (or one for all)."""

    names = ("emission", "noise")

    def __init__(self, network: RestartNetwork, covariance: str, floor: float, num_climbs: int = 10):
        super().__init__(network.num_sources)
        self.network, self.covariance, self.floor, self.num_climbs = network, covariance, floor, num_climbs
        self.climber: Climber | None = None

    def _density(self, parameters, seen, num_restarts):
        means = self.network.values(parameters["emission"], seen.rows)[:, :, seen.rows.index]  # (Z, D, M, R)
        residual = seen.y.T.unsqueeze(-1) - means
        size, noise = residual.shape[1], parameters["noise"]
        if "log_scale" in noise:
            log_scale = noise["log_scale"].expand(-1, size, -1).unsqueeze(2)
            return -((residual / log_scale.exp()) ** 2 / 2 + log_scale + math.log(2 * math.pi) / 2).sum(1)
        tril = scale_tril(noise["scale_tril"].movedim(-1, -3))  # ([Z,] R, D, D)
        white = torch.linalg.solve_triangular(tril, residual.permute(0, 3, 1, 2), upper=False)  # (Z, R, D, M)
        log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # ([Z,] R)
        density = -(white**2).sum(-2) / 2 - log_det.unsqueeze(-1) - size * math.log(2 * math.pi) / 2
        return density.transpose(1, 2)

    def maximize(self, parameters, seen, visits, penalty, gradient):
        if gradient or penalty.precision or not self.network.exact:
            return self._climb(parameters, seen, visits, penalty), None
        known = seen.known
        rows = seen.rows._replace(index=seen.rows.index[known])
        targets, mass, network = seen.y[known], visits[:, known], self.network
        emission = network.fit_means(parameters["emission"], rows, targets, mass)
        # the covariances of what is left, as of a regression on one column of nothing
        means = network.values(emission, rows)[:, :, rows.index].permute(0, 3, 2, 1).flatten(0, 1)  # (Z R, M, D)
        each = mass.transpose(1, 2)
        if self.covariance == "tied":  # problems of one restart together
            shape = (len(mass), -1)
            means, each = means.unflatten(0, shape).transpose(0, 1).flatten(0, 1), each.transpose(0, 1)
        covariances, floored = residual_covariance(
            targets - means, each.reshape(-1, len(targets)), self.covariance, self.floor, group=self.num_states
        )
        if self.covariance == "tied":
            covariances, floored = (value.unflatten(0, (-1, self.num_states))[:, 0] for value in (covariances, floored))
        else:
            covariances, floored = (value.unflatten(0, (self.num_states, -1)) for value in (covariances, floored))
        noise = self._raw(covariances, parameters["noise"])
        return {"emission": emission, "noise": noise}, floored if floored.dim() == 1 else floored.any(0)

    def right(self, parameters, seen, entry, states):
        raise ValueError(
            "select: 'smallest_consistent' asks whether outputs are right; Gaussian ones never are exactly"
        )

    def _raw(self, covariances: Tensor, before: dict[str, Tensor]) -> dict[str, Tensor]:
        """The noise's parameters from covariances ([Z,] R, D, D); NaN keeps what was before."""
        if "log_scale" in before:
            value = covariances.diagonal(dim1=-2, dim2=-1).log().movedim(-1, 1) / 2  # (Z, D, R)
            value = value[:, : before["log_scale"].shape[1]]
            return {"log_scale": torch.where(value.isnan(), before["log_scale"], value)}
        known = torch.isfinite(covariances).all(-1).all(-1)[..., None, None]
        eye = torch.eye(covariances.shape[-1], dtype=covariances.dtype, device=covariances.device)
        tril = torch.linalg.cholesky(torch.where(known, covariances, eye))
        raw = tril.tril(-1) + torch.diag_embed(tril.diagonal(dim1=-2, dim2=-1).log())
        return {"scale_tril": torch.where(known.movedim(-3, -1), raw.movedim(-3, -1), before["scale_tril"])}

    def _climb(self, parameters, seen, visits, penalty):
        flat = {f"{part}.{name}": value for part in self.names for name, value in parameters[part].items()}
        if self.climber is None:
            self.climber = Climber(flat)
        counts = visits * seen.known.unsqueeze(-1)

        def objective(own):
            split = {
                part: {k.split(".", 1)[1]: v for k, v in own.items() if k.startswith(part + ".")} for part in self.names
            }
            return _inner(counts, self._density(split, seen, visits.shape[-1])) + self.log_prior(split, penalty)

        found = self.climber.climb(flat, objective, self.num_climbs)
        lowest = math.log(self.floor) / 2
        if "noise.log_scale" in found:  # the floor holds on this way, too
            found["noise.log_scale"] = found["noise.log_scale"].clamp_min(lowest)
        return {
            part: {k.split(".", 1)[1]: v for k, v in found.items() if k.startswith(part + ".")} for part in self.names
        }

    def log_prior(self, parameters, penalty):
        total = self.network.log_prior(parameters["emission"], penalty)
        if penalty.noise_precision:
            squares = sum((value**2).flatten(0, -2).sum(0) for value in parameters["noise"].values())
            total = total - penalty.noise_precision / 2 * squares
        return total

    def forget(self):
        super().forget()
        self.climber = None

    def take(self, restarts):
        super().take(restarts)
        if self.climber is not None:
            self.climber.take(restarts)


def scale_tril(raw: Tensor) -> Tensor:
    """Cholesky factors (..., D, D) from lower triangular matrices with the logarithms of their diagonals."""
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())
