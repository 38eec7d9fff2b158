"""Outputs of an input-output model with R parameter sets at once: likelihoods of what was seen, and maximisers given visits.

Weights are {"emission": those of the output network, "noise": those of Gaussian covariances}, restarts last.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.models.iohmm.restarts.climbing import Climber
from pplseq.models.iohmm.restarts.networks import Penalty, RestartNetwork, Rows, inner

Parameters = dict[str, dict[str, Tensor]]


class Seen(NamedTuple):
    """The M distinct (input, target, known state) of emissions. rows: the network's; entry: (M,) which
    of them each is; x: (M[, D]);
    known: (M,) where there is a target; states: (M,) observed, negative where unknown, or None; present: (M, D) dimensions that
    there are, or None for all; sizes: (M, D) trials and exposures, or None."""

    rows: Rows
    entry: Tensor
    x: Tensor
    known: Tensor
    states: Tensor | None
    present: Tensor | None = None
    sizes: Tensor | None = None


class Outputs:
    """Targets are states, which stand in ``seen.states``; families of outputs with a network build on it.

    Attributes:
        names: parts of the parameters that are of the outputs; none of states, which have no network.
    """

    names: tuple[str, ...] = ()
    network: RestartNetwork

    def __init__(self, num_states: int):
        self.num_states = num_states

    def log_likelihood(self, parameters: Parameters, seen: Seen, num_restarts: int) -> Tensor:
        """(Z, M, R) log p(x | z, u), nats: 0 without a target, -inf for states other than the observed one; differentiable."""
        value = self._density(parameters, seen, num_restarts)
        if not bool(seen.known.all()):
            value = value.masked_fill(~seen.known.unsqueeze(-1), 0.0)
        if seen.states is not None:
            other = torch.arange(self.num_states, device=seen.x.device).unsqueeze(-1) != seen.states
            value = value.masked_fill((other & (seen.states >= 0)).unsqueeze(-1), -math.inf)
        return value

    def _density(self, parameters, seen, num_restarts) -> Tensor:
        like = next(iter(parameters["transition"].values()))
        return like.new_zeros(self.num_states, len(seen.x), num_restarts)

    def maximize(self, parameters: Parameters, seen: Seen, visits: Tensor, penalty: Penalty, gradient: bool) -> tuple:
        """New parameters of the outputs under visits (Z, M, R), and (R,) restarts where a variance met its floor.

        ``gradient`` True takes steps uphill also where there is a formula.
        """
        return {}, None

    def inside(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights on a way uphill, by "part.name", brought back to where they may be."""
        return weights

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
        return self.network.log_prior(parameters["emission"], penalty) if self.names else 0.0

    def forget(self) -> None:
        """Forgets what is remembered between steps."""
        if self.names:
            self.network.forget()

    def take(self, restarts: Tensor) -> None:
        """Keeps what is remembered between steps for some restarts only."""
        if self.names:
            self.network.take(restarts)


class CategoricalOutputs(Outputs):
    """x in 0..V-1."""

    names = ("emission",)

    def __init__(self, network: RestartNetwork):
        super().__init__(network.num_sources)
        self.network = network

    def _density(self, parameters, seen, num_restarts):
        return self.network.log_probs(parameters["emission"], seen.rows)[:, seen.x, seen.entry]

    def maximize(self, parameters, seen, visits, penalty, gradient):
        num_words, count = self.network.num_outcomes, seen.rows.size
        which = (seen.entry * num_words + seen.x)[seen.known]
        counts = visits.new_zeros(self.num_states, count * num_words, visits.shape[-1])
        counts = counts.index_add_(1, which, visits[:, seen.known]).unflatten(1, (count, num_words)).transpose(1, 2)
        fit = self.network.climb_softmax if gradient else self.network.fit_softmax
        return {"emission": fit(parameters["emission"], seen.rows, counts, penalty)}, None

    def right(self, parameters, seen, entry, states):
        probs = self.network.log_probs(parameters["emission"], seen.rows).exp()
        expected = _mixed(states, probs, seen.entry[entry])
        return (expected.argmax(0) == seen.x[entry].unsqueeze(-1)) | ~seen.known[entry].unsqueeze(-1)

    def log_prior(self, parameters, penalty):
        return self.network.log_prior(parameters["emission"], penalty, softmax=True)


class BernoulliOutputs(Outputs):
    """x in {0, 1}^D, independent given state and input."""

    names = ("emission",)

    def __init__(self, network: RestartNetwork):
        super().__init__(network.num_sources)
        self.network = network

    def _density(self, parameters, seen, num_restarts):
        logits = self.network.values(parameters["emission"], seen.rows)
        log_one, log_zero = (torch.nn.functional.logsigmoid(value)[:, :, seen.entry] for value in (logits, -logits))
        value = torch.where(seen.x.T.unsqueeze(-1) > 0.5, log_one, log_zero)
        if seen.present is not None:
            value = value.masked_fill(~seen.present.T.unsqueeze(-1), 0.0)
        return value.sum(1)

    def maximize(self, parameters, seen, visits, penalty, gradient):
        shape = (self.num_states, seen.rows.size, visits.shape[-1])
        index, visits, x = seen.entry[seen.known], visits[:, seen.known], seen.x[seen.known]
        there = torch.ones_like(x) if seen.present is None else seen.present[seen.known].to(x)
        ones, zeros = (
            torch.stack(
                [visits.new_zeros(shape).index_add_(1, index, visits * column.unsqueeze(-1)) for column in columns], 1
            )
            for columns in ((there * x).T, (there * (1 - x)).T)
        )
        fit = self.network.climb_bernoulli if gradient else self.network.fit_bernoulli
        return {"emission": fit(parameters["emission"], seen.rows, ones, zeros, penalty)}, None

    def right(self, parameters, seen, entry, states):
        probs = self.network.values(parameters["emission"], seen.rows).sigmoid()
        expected = _mixed(states, probs, seen.entry[entry])
        target = seen.x[entry].T.unsqueeze(-1) > 0.5
        right = (expected > 0.5) == target
        if seen.present is not None:
            right = right | ~seen.present[entry].T.unsqueeze(-1)
        return right.all(0) | ~seen.known[entry].unsqueeze(-1)

    def log_prior(self, parameters, penalty):
        return self.network.log_prior(parameters["emission"], penalty, bernoulli=True)


class NoisyOutputs(Outputs):
    """Outputs with parameters beside those of the network: covariances, or dispersions.

    Args:
        num_climbs: steps uphill in an M-step where there is no formula.
    """

    names = ("emission", "noise")

    def __init__(self, network: RestartNetwork, num_climbs: int = 10):
        super().__init__(network.num_sources)
        self.network, self.num_climbs = network, num_climbs
        self.climber: Climber | None = None

    def climb(self, parameters: Parameters, seen: Seen, visits: Tensor, penalty: Penalty) -> Parameters:
        """All parameters of the outputs after some steps uphill."""
        flat = {f"{part}.{name}": value for part in self.names for name, value in parameters[part].items()}
        if self.climber is None:
            self.climber = Climber(flat)
        counts = visits * seen.known.unsqueeze(-1)

        def objective(own):
            split = self._split(own)
            return inner(counts, self._density(split, seen, visits.shape[-1])) + self.log_prior(split, penalty)

        return self._split(self.climber.climb(flat, objective, self.num_climbs, self.inside))

    def _split(self, flat: dict[str, Tensor]) -> Parameters:
        return {
            part: {name.split(".", 1)[1]: value for name, value in flat.items() if name.startswith(part + ".")}
            for part in self.names
        }

    def right(self, parameters, seen, entry, states):
        raise ValueError(
            "select: 'smallest_consistent' asks whether outputs are right; numbers never are exactly"
        )

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


def _mixed(states: Tensor, probs: Tensor, index: Tensor) -> Tensor:
    """(V, N, R) sum_z states (Z, N, R) probs (Z, V, L, R) at each step's entry."""
    each = (own * table[:, index] for own, table in zip(states, probs, strict=True))
    return functools.reduce(operator.add, each)
