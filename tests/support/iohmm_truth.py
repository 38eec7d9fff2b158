"""An input-output HMM by the paper's equations, one row and one state at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rows_of(network, part_inputs, row: int, step: int) -> Tensor:
    """The network's value at one step, from that step's inputs alone."""
    return network(None if part_inputs is None else part_inputs[row, step])


class Truth:
    """Start, transitions phi[t][j, i] and outputs eta[t][i] of one row, each softmax written out.

    Source: Y. Bengio and P. Frasconi (1995), An input output HMM architecture, section 2.
    """

    def __init__(self, model, x: Tensor, inputs, row: int, length: int):
        self.model, self.x, self.length = model, x[row, :length], length
        seen = model.format.network_inputs(x, inputs)
        self.eta, self.phi = [], []
        for t in range(length):
            logits = rows_of(model.transition_network, seen["transition"], row, t)
            self.phi.append(torch.stack([self.softmax(logits[j], self.successors(j)) for j in range(model.num_states)]))
            if model.outputs == "states":
                self.eta.append(torch.eye(model.num_states).double())
                continue
            values = rows_of(model.emission_network, seen["emission"], row, t)
            everything = [True] * model.num_outputs
            if model.outputs == "categorical":
                values = torch.stack([self.softmax(value, everything) for value in values])
            elif model.outputs == "bernoulli":
                values = 1 / (1 + (-values).exp())
            elif model.outputs == "columns":
                values = self.means(values)
            self.eta.append(values)
        first = None if seen["initial"] is None else seen["initial"][row]
        allowed = [True] * model.num_states if model.start_states is None else model.start_states.tolist()
        self.start = self.softmax(model.initial_network(first), allowed)
        # z_0, one step before the first output; without it the start distribution is that of the first state
        self.first = self.start @ self.phi[0] if model.initial == "transition" and length else self.start

    def successors(self, state: int) -> list[bool]:
        graph = self.model.graph
        return [True] * self.model.num_states if graph is None else graph[state].tolist()

    @staticmethod
    def softmax(logits: Tensor, allowed: list[bool]) -> Tensor:
        total = sum(logits[i].exp() for i, yes in enumerate(allowed) if yes)
        return torch.stack([logits[i].exp() / total if yes else 0 * logits[i] for i, yes in enumerate(allowed)])

    def means(self, predictors: Tensor) -> Tensor:
        """Of each state and column; of classes their probabilities."""
        half = torch.full((), 0.5).double()
        inverse = {
            "identity": lambda eta: eta, "log": torch.exp, "sqrt": lambda eta: eta**2,
            "logit": lambda eta: 1 / (1 + (-eta).exp()),
            "probit": lambda eta: half * (1 + torch.erf(eta * half**half)), "cloglog": lambda eta: 1 - (-eta.exp()).exp(),
        }  # fmt: skip
        parts = []
        for column in self.model.columns.columns:
            own = predictors[:, column.first : column.first + column.size]
            if column.family == "categorical":
                parts.append(torch.stack([self.softmax(row, [True] * column.size) for row in own]))
            else:
                parts.append(column.trials * inverse[column.link](own))
        return torch.cat(parts, -1)

    def column_densities(self, x: Tensor, means: Tensor) -> Tensor:
        """Each written out, as Poisson's e^-mu mu^x / x!."""
        result = torch.ones(len(means)).double()
        for column in self.model.columns.columns:
            value, mu = x[column.number], means[:, column.first]
            if bool(value.isnan()):
                continue
            own = torch.ones(()).double()
            if column.place is not None:
                own = self.model.noise.raw[:, column.place].exp()
            factorial = torch.lgamma(value + 1).exp()
            if column.family == "categorical":
                density = means[:, column.first + int(value)]
            elif column.family == "poisson":
                density = (-mu).exp() * mu**value / factorial
            elif column.family == "negative_binomial":
                ways = (torch.lgamma(value + own) - torch.lgamma(own)).exp() / factorial
                density = ways * (own / (own + mu)) ** own * (mu / (own + mu)) ** value
            elif column.family == "gamma":
                density = (own / mu) ** own * value ** (own - 1) * (-own * value / mu).exp() / torch.lgamma(own).exp()
            elif column.family == "exponential":
                density = (-value / mu).exp() / mu
            elif column.family in ("bernoulli", "binomial"):
                n, p = column.trials, mu / column.trials
                density = math.comb(n, int(value)) * p**value * (1 - p) ** (n - value)
            else:
                density = (-(((value - mu) / own) ** 2) / 2).exp() / (own * math.sqrt(2 * math.pi))
            result = result * density
        return result

    def density(self, t: int) -> Tensor:
        """f(x_t; eta_i) of each state, 1 where there is no target."""
        x, eta, model = self.x[t], self.eta[t], self.model
        ones = torch.ones(model.num_states).double()
        if model.format.discrete:
            return ones if int(x) < 0 else eta[:, int(x)]
        seen = ~x.isnan()
        if not bool(seen.any()):
            return ones
        if model.outputs == "columns":
            return self.column_densities(x, eta)
        x, eta = x[seen], eta[:, seen]
        if model.outputs == "bernoulli":
            return (eta**x * (1 - eta) ** (1 - x)).prod(-1)
        densities = []
        for mean, covariance in zip(eta, model.noise.covariances(), strict=True):
            apart, covariance = x - mean, covariance[seen][:, seen]
            quadratic = apart @ torch.linalg.inv(covariance) @ apart
            norm = (2 * math.pi) ** len(x) * torch.linalg.det(covariance)
            densities.append((-quadratic / 2).exp() / norm.sqrt())
        return torch.stack(densities)

    def forward(self) -> list[Tensor]:
        """alpha_t,i = p(x_1..x_t, z_t = i | u), equation 10."""
        alpha = [self.first * self.density(0)]
        for t in range(1, self.length):
            alpha.append(self.density(t) * (alpha[-1] @ self.phi[t]))
        return alpha

    def backward(self) -> list[Tensor]:
        """beta_t,i = p(x_t..x_T | z_t = i, u): it contains x_t, equation 11."""
        beta = [self.density(self.length - 1)]
        for t in reversed(range(self.length - 1)):
            beta.insert(0, self.density(t) * (self.phi[t + 1] @ beta[0]))
        return beta

    def likelihood(self) -> Tensor:
        return self.forward()[-1].sum() if self.length else torch.ones(()).double()

    def transitions(self) -> Tensor:
        """(T-1, Z, Z) h_t = p(z_{t-1}, z_t | x, u)."""
        alpha, beta = self.forward(), self.backward()
        steps = range(1, self.length)
        return torch.stack([alpha[t - 1].unsqueeze(-1) * self.phi[t] * beta[t] for t in steps]) / self.likelihood()

    def open_loop(self) -> tuple[Tensor, Tensor]:
        """zeta (T, Z) and eta (T, out): equations 2 to 4."""
        zeta = [self.first]
        for t in range(1, self.length):
            zeta.append(zeta[-1] @ self.phi[t])
        return torch.stack(zeta), torch.stack([z @ eta for z, eta in zip(zeta, self.eta, strict=True)])

    def closed_loop(self) -> tuple[Tensor, Tensor]:
        """The same given past outputs."""
        alpha = self.forward()
        states = [self.first] + [(a / a.sum()) @ phi for a, phi in zip(alpha[:-1], self.phi[1:], strict=True)]
        return torch.stack(states), torch.stack([z @ eta for z, eta in zip(states, self.eta, strict=True)])
