"""Groups of sequences that differ: a random intercept in the outputs, or in the transitions, of an input-output HMM.

Each group, such as a person or a vehicle, has an effect eta_g ~ Normal(0, 1) of its own, the same in all of its sequences.
It stands beside the inputs: in the outputs it adds spread_d eta_g to the linear predictor of dimension d in every state, so
that intercepts of groups are Normal(0, spread_d^2); in the transitions each has a weight of its own for it, as for an input.
States are summed out exactly for each value of an effect, and the effect by adaptive Gauss-Hermite quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.models.iohmm.data import Inputs, Source
from pplseq.models.iohmm.networks import GaussianNoise
from pplseq.models.iohmm.program import IOHMM

PARTS = ("emission", "transition")
FIRST = 0.5  # weights of effects to begin with, in deviations of what they add to
ZOOMS = 12  # adaptations of the nodes to begin with, each of which at most halves their spread
STEPS = 20  # of the optimiser between two adaptations


class _Data(NamedTuple):
    """Sequences as tensors, the inputs of each part, and the number of the group of each."""

    x: Tensor
    lengths: Tensor | None
    inputs: dict[str, Tensor]
    group: Tensor
    names: list[Hashable]


class RandomEffects:
    """An input-output HMM in which groups differ, as :func:`fit_random_effects` has fitted it.

    Attributes:
        model: the model given the effects, which are further inputs of the part, the last ones: ``inputs`` makes them.
        part: "emission" or "transition".
        spread: (D,) standard deviations of the intercepts of outputs; of transitions (Z, Z), the weights of the effect.
        num_free_parameters: those of the spread included.
        log_likelihood: log p(x), effects summed out, nats. converged: whether it came to rest.
    """

    def __init__(
        self, model: IOHMM, part: str, spread: Tensor, num_free_parameters: int, num_nodes: int, source: Source | None
    ):
        self.model, self.part, self.num_free_parameters, self.num_nodes = model, part, num_free_parameters, num_nodes
        self._spread, self._source = nn.Parameter(spread), source  # what the part sees beside the effects
        self.log_likelihood, self.converged = -math.inf, False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(part={self.part!r}, spread={self.spread.tolist()})"

    @property
    def spread(self) -> Tensor:
        if self.part == "emission":
            return self._spread.detach().abs()
        return self.model.network("transition").get_parameter("weight").detach()[:, -2]

    @torch.no_grad()
    def score(self, x, groups: Sequence[Hashable], lengths=None, *, inputs: Any = None) -> float:
        """log p(x), effects of the groups summed out, nats; groups need not be those of the fit."""
        data = self._data(x, groups, lengths, inputs)
        mean, scale = self._adapted(data)
        return float(self._log_marginal(data, mean, scale)[0].sum())

    @torch.no_grad()
    def effects(
        self, x, groups: Sequence[Hashable], lengths=None, *, inputs: Any = None
    ) -> dict[Hashable, tuple[float, float]]:
        """Mean and standard deviation of each group's eta given its sequences; times ``spread``, its intercepts."""
        data = self._data(x, groups, lengths, inputs)
        mean, scale = self._adapted(data)
        return dict(zip(data.names, zip(mean.tolist(), scale.tolist(), strict=True), strict=True))

    @torch.no_grad()
    def inputs(self, x, groups: Sequence[Hashable], lengths=None, *, inputs: Any = None) -> dict[str, Tensor]:
        """Inputs of ``model`` by part, with the mean effect of each group given its sequences, for further questions."""
        data = self._data(x, groups, lengths, inputs)
        return self._joined(data, self._adapted(data)[0][data.group])

    # ---------------------------------------------------------------- quadrature
    def _data(self, x, groups, lengths, inputs) -> _Data:
        form = self.model.format
        plain = form._replace(sources=dict(form.sources) | {self.part: self._source})
        batch = plain.batch(x, lengths, inputs=inputs)
        if isinstance(groups, str) or len(groups) != len(batch.x):
            raise ValueError(f"groups: expected one for each of {len(batch.x)} sequences, got {groups!r}")
        names = list(dict.fromkeys(groups))
        place = {name: number for number, name in enumerate(names)}
        group = torch.tensor([place[name] for name in groups], device=batch.x.device)
        checked = plain.check_inputs(batch.inputs, tuple(batch.x.shape[:2]), batch.lengths)
        return _Data(batch.x, batch.lengths, checked, group, names)

    @property
    def _num_columns(self) -> int:
        return self.model.num_outputs if self.part == "emission" else 1

    def _joined(self, data: _Data, effect: Tensor) -> dict[str, Tensor]:
        """Inputs with effects (B,), or those of K nodes one behind the other, (K B,)."""
        times = len(effect) // len(data.x)
        inputs = {part: value.repeat(times, *[1] * (value.dim() - 1)) for part, value in data.inputs.items()}
        column = effect[:, None, None] * (self._spread if self.part == "emission" else 1.0)
        column = column.expand(-1, data.x.shape[1], self._num_columns)
        known = inputs.get(self.part)
        inputs[self.part] = column if known is None else torch.cat([known, column], -1)
        return inputs

    def _log_prob(self, data: _Data, nodes: Tensor) -> Tensor:
        """(G, K) log p(sequences of the group | its effect), at nodes (G, K); differentiable."""
        number = nodes.shape[1]
        effect = nodes[data.group].T.reshape(-1)  # (K B,)
        x = data.x.repeat(number, *[1] * (data.x.dim() - 1))
        lengths = None if data.lengths is None else data.lengths.repeat(number)
        chain = self.model.direct_chain(x, lengths, inputs=self._joined(data, effect))
        assert chain is not None
        found = chain.log_prob().reshape(number, len(data.x)).T
        return found.new_zeros(nodes.shape).index_add(0, data.group, found)

    def _log_marginal(self, data: _Data, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(G,) log p(sequences of a group), the nodes (G, K) around the mean, and how much each counts, which sums to 1."""
        place, weight = np.polynomial.hermite.hermgauss(self.num_nodes)
        places, log_weights = mean.new_tensor(place), mean.new_tensor(np.log(weight) + place**2)
        nodes = mean[:, None] + math.sqrt(2) * scale[:, None] * places
        log_prior = -(nodes**2) / 2 - math.log(2 * math.pi) / 2
        terms = self._log_prob(data, nodes) + log_prior + log_weights + (math.sqrt(2) * scale[:, None]).log()
        return terms.logsumexp(1), nodes, terms.softmax(1)

    @torch.no_grad()
    def _adapted(
        self, data: _Data, mean: Tensor | None = None, scale: Tensor | None = None, rounds: int = ZOOMS
    ) -> tuple[Tensor, Tensor]:
        """(G,) mean and standard deviation of effects given their sequences, where nodes are then put.

        Source: J. C. Naylor and A. F. M. Smith (1982), Applications of a method for the efficient computation of posterior
            distributions. A deviation at most halves at once, lest all but one node miss a narrow posterior.
        """
        if mean is None or scale is None:
            mean, scale = (make(len(data.names)) for make in (self._spread.new_zeros, self._spread.new_ones))
        for _ in range(rounds):
            _, nodes, share = self._log_marginal(data, mean, scale)
            mean = (share * nodes).sum(1)
            variance = (share * (nodes - mean[:, None]) ** 2).sum(1)
            scale = torch.maximum(variance.sqrt(), scale / 2)
        return mean, scale


def fit_random_effects(
    model: IOHMM,
    x,
    groups: Sequence[Hashable],
    lengths=None,
    *,
    inputs: Inputs | Any = None,
    part: str = "emission",
    num_nodes: int = 9,
    max_rounds: int = 50,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> RandomEffects:
    """Maximum likelihood of a model in which groups of sequences differ by a random intercept, from a fitted model on.

    Args:
        model: fitted; it is left as it is. Outputs are "gaussian", "bernoulli" or columns without classes.
        x, lengths, inputs: B sequences, as the model's ``fit`` takes them.
        groups: the group of each.
        part: where effects enter: "emission" (outputs) or "transition".
        num_nodes: of the quadrature; 1 is Laplace's approximation but for the place of the node.
        max_rounds: of the optimiser, each followed by new places of the nodes.
        tolerance: nats per step that a round must gain to go on.
        seed: of the first weights in transitions.

    Raises:
        ValueError: for groups of another number than sequences, priors, feedback, and parts that are no regressions (lookup
            tables of symbols, hidden layers, embeddings, networks of the user's, classes).

    Source: J. C. Pinheiro and D. M. Bates (1995), Approximations to the log-likelihood function in the nonlinear mixed-effects
        model, section 2.4 (adaptive quadrature); R. M. Altman (2007), Mixed hidden Markov models.

    Cost: num_nodes times the steps of x, for every evaluation of the likelihood, 20 or so in a round.
    """
    checks.choice("part", part, PARTS)
    checks.count("num_nodes", num_nodes)
    checks.count("max_rounds", max_rounds)
    model.check_fitted()
    wide = _widened(model, part, torch.Generator().manual_seed(seed))
    free = model.num_free_parameters + model.num_outputs if part == "emission" else wide.num_free_parameters
    spread = model.reference.new_full((model.num_outputs if part == "emission" else 1,), FIRST)
    if part == "emission" and model.outputs == "gaussian":
        spread = FIRST * _deviations(model)
    found = RandomEffects(wide, part, spread, free, num_nodes, model.sources[part])
    data = found._data(x, groups, lengths, inputs)
    parameters, mean, scale = list(wide.parameters()), *found._adapted(data)
    hook = None
    if part == "emission":  # the columns of the effects stand for themselves
        parameters.append(found._spread)
        weight = wide.network("emission").get_parameter("weight")
        kept = torch.ones_like(weight)
        kept[:, -1 - found._num_columns : -1] = 0.0
        hook = weight.register_hook(lambda gradient: gradient * kept)
    steps = data.x.shape[0] * data.x.shape[1] if data.lengths is None else int(data.lengths.sum())
    for _ in range(max_rounds):
        optimiser = torch.optim.LBFGS(parameters, max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-12)

        def loss(own_mean: Tensor = mean, own_scale: Tensor = scale, optimiser=optimiser) -> Tensor:
            optimiser.zero_grad()
            value = -found._log_marginal(data, own_mean, own_scale)[0].sum()
            value.backward()
            return value

        optimiser.step(loss)
        mean, scale = found._adapted(data, mean, scale, 3)
        with torch.no_grad():
            value = float(found._log_marginal(data, mean, scale)[0].sum())
        gain, found.log_likelihood = value - found.log_likelihood, value
        if not math.isfinite(value):
            raise FloatingPointError("the likelihood is not finite; scale inputs and outputs to similar spreads")
        if gain <= tolerance * steps:
            found.converged = True
            break
    if hook is not None:
        hook.remove()
    wide.zero_grad()
    wide.is_fitted = True
    return found


def _deviations(model: IOHMM) -> Tensor:
    """(D,) of Gaussian outputs around their means, over states."""
    assert isinstance(model.noise, GaussianNoise)
    return model.noise.covariances().diagonal(dim1=-2, dim2=-1).mean(0).sqrt()


def _widened(model: IOHMM, part: str, generator: torch.Generator) -> IOHMM:
    """The same model with inputs of a part for the effects: of outputs one a dimension, which adds itself to it."""
    network = model.network(part)
    named = {"table": "a lookup table of symbols; give symbols as numbers 0 and 1", "layered": "with hidden layers"}
    named |= {"embedded": "with embeddings", "module": "of your own"}
    if model.priors is not None or model.feedback:
        what = "priors" if model.priors is not None else "feedback"
        raise ValueError(f"model: random effects are of models without priors and feedback; this one has {what}")
    classes = model.format.discrete or model.columns is not None and model.columns.width != len(model.columns)
    if part == "emission" and classes:
        raise ValueError(f"part: effects on outputs that are classes or states have no one intercept; got {model.outputs!r}")
    if network.kind in named:
        raise ValueError(f"part: expected {part} to be a regression on its inputs, got a network {named[network.kind]}")
    number = model.num_outputs if part == "emission" else 1
    sources = dict(model.sources)
    before = sources[part]
    sources[part] = ("vectors", number + (0 if before is None else before[1]))
    sizes = {
        kind: {own: source[1] for own, source in sources.items() if source is not None and source[0] == kind}
        for kind in ("vectors", "symbols")
    }
    config: dict[str, Any] = dict(model.config) | {"num_inputs": sizes["vectors"], "num_symbols": sizes["symbols"] or None}
    config |= {"mealy": sources["emission"] is not None, "input_names": None, "formulas": None}
    wide = IOHMM(**config).to(model.reference.device)
    like = network.get_parameter("logits" if network.kind == "constant" else "weight").detach()
    if network.kind == "constant":
        like = like.unsqueeze(1)
    if part == "emission":
        block = torch.eye(number).to(like).expand(len(like), -1, -1)
    else:
        block = FIRST * torch.randn(like[:, :1].shape, generator=generator, dtype=torch.float64).to(like)
    state = {name: value for name, value in model.state_dict().items() if not name.startswith(f"{part}_network.")}
    state[f"{part}_network.weight"] = torch.cat([like[:, :-1], block, like[:, -1:]], 1)
    wide.load_state_dict(state)
    return wide
