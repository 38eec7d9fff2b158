"""Groups of sequences that differ: a random intercept in the outputs, or in the transitions, of an input-output HMM.

    from random_effects import fit_random_effects  # this folder on the path

    found = fit_random_effects(model, x, groups, inputs=inputs)  # a fitted IOHMM, and the group of each sequence

Each group, such as a person or a vehicle, has an effect eta_g ~ Normal(0, 1) of its own, the same in all of its sequences.
It stands beside the inputs: in the outputs it adds spread_d eta_g to the linear predictor of dimension d in every state, so
that intercepts of groups are Normal(0, spread_d^2), and those of two dimensions go together or against each other, as the signs
of their spreads say; in the transitions each has a weight of its own for it, as for an input.
States are summed out exactly for each value of an effect, and the effect by adaptive Gauss-Hermite quadrature.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.models.iohmm.data import Inputs
from pplseq.models.iohmm.networks import GaussianNoise
from pplseq.models.iohmm.program import IOHMM

PARTS = ("emission", "transition")
FIRST = 0.5  # weights of effects to begin with, in deviations of what they add to
ZOOMS = 60  # adaptations of the nodes at most, each of which at most halves their spread
REST = 1e-3  # change of a deviation, as a share of it, below which the nodes stay
FEWEST = 5  # nodes; fewer do not tell the deviation of an effect, so that they would never find their places
STEPS = 20  # of the optimiser in a round


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
        spread: (D,) what outputs add of the effect: standard deviations of their intercepts, the first positive, and others
            negative where they go down as the first goes up; of transitions (Z, Z), [from, to], the weights of the effect in
            the logits: of each state they sum to 0 over the moves that are allowed, the first that is not 0 is positive.
        num_free_parameters: those of the spread included; ``model`` by itself takes effects for inputs like others, so that
            its own number, its AIC and BIC, and the standard errors of its summary are not those of the whole.
        log_likelihood: log p(x), effects summed out, nats. converged: whether it came to rest.
    """

    def __init__(
        self, model: IOHMM, part: str, spread: Tensor, num_free_parameters: int, num_nodes: int, plain: IOHMM
    ):
        self.model, self.part, self.num_free_parameters, self.num_nodes = model, part, num_free_parameters, num_nodes
        self._spread, self._plain = nn.Parameter(spread), plain  # which reads data: names of columns, formulas
        self.log_likelihood, self.converged = -math.inf, False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(part={self.part!r}, spread={self.spread.tolist()})"

    @property
    def spread(self) -> Tensor:
        if self.part == "emission":
            return self._spread.detach()
        return self.model.network("transition").get_parameter("weight").detach()[:, -2]

    @torch.no_grad()
    def score(self, x, groups: Sequence[Hashable], lengths=None, *, inputs: Any = None) -> float:
        """log p(x), effects of the groups summed out, nats; groups need not be those of the fit.

        Warns:
            RuntimeWarning: where the nodes of the quadrature do not come to rest, so that the integral is not exact.
        """
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

    @torch.no_grad()
    def _rewrite(self) -> None:
        """The same distribution, with weights of transitions that sum to 0 and the first number positive."""
        own = self._spread
        if self.part == "transition":
            own = self.model.network("transition").get_parameter("weight")[:, -2]
            allowed = torch.ones_like(own) if self.model.graph is None else self.model.graph.to(own)
            own.copy_((own - (own * allowed).sum(1, keepdim=True) / allowed.sum(1, keepdim=True)) * allowed)
        if any(value := own[own != 0].tolist()) and value[0] < 0:
            own.neg_()

    # ---------------------------------------------------------------- quadrature
    def _data(self, x, groups, lengths, inputs) -> _Data:
        batch = self._plain._as_batch(x, lengths, inputs=inputs)
        of_rows = checked_groups(groups, len(batch.x))
        names = list(dict.fromkeys(of_rows))
        place = {name: number for number, name in enumerate(names)}
        group = torch.tensor([place[name] for name in of_rows], device=batch.x.device)
        checked = self._plain.format.check_inputs(batch.inputs, tuple(batch.x.shape[:2]), batch.lengths)
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
        chain = self.model._direct_chain(x, lengths, inputs=self._joined(data, effect))
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
        self, data: _Data, mean: Tensor | None = None, scale: Tensor | None = None, quiet: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(G,) mean and standard deviation of effects given their sequences, where nodes are then put.

        Raises:
            FloatingPointError: where the likelihood is not finite, or effects are known more precisely than numbers of the
                model's type are.

        Source: J. C. Naylor and A. F. M. Smith (1982), Applications of a method for the efficient computation of posterior
            distributions. A deviation at most halves at once, lest all but one node miss a narrow posterior, and doubles
            where the posterior lies outside the nodes.
        """
        if mean is None or scale is None:
            mean, scale = self._spread.new_zeros(len(data.names)), self._spread.new_ones(len(data.names))
        before = scale
        for _ in range(ZOOMS):
            _, nodes, share = self._log_marginal(data, mean, scale)
            if not bool(share.isfinite().all()):
                raise FloatingPointError("the likelihood is not finite; scale inputs and outputs to similar spreads")
            mean = (share * nodes).sum(1)
            variance = (share * (nodes - mean[:, None]) ** 2).sum(1)
            outside = share[:, [0, -1]].sum(1) > 0.5
            before, scale = scale, torch.where(outside, 2 * scale, torch.maximum(variance.sqrt(), scale / 2))
            blurred = scale < 100 * torch.finfo(scale.dtype).eps * mean.abs().clamp_min(1)
            if bool(blurred.any()):
                raise FloatingPointError(
                    f"groups: the effect of {data.names[int(blurred.nonzero()[0])]!r} is known more precisely than numbers of "
                    f"{scale.dtype} are; expected deviations that such numbers tell: take a model of dtype 'float64', or let "
                    "inputs tell the groups apart"
                )
            if bool(((scale - before).abs() <= REST * before).all()):
                return mean, scale
        if not quiet:
            moving = data.names[int(((scale - before).abs() / before).argmax())]
            warnings.warn(
                f"the quadrature's nodes do not come to rest, first of all for group {moving!r}, whose effect may have several "
                f"likely values: log-likelihoods and effects are approximate; give more than num_nodes = {self.num_nodes}",
                RuntimeWarning,
                stacklevel=3,
            )
        return mean, scale


def checked_groups(groups: Any, number: int) -> list[Hashable]:
    """The group of each of so many sequences, from a list, array, tensor or series.

    Raises:
        ValueError: for another number of them, and groups that are missing or cannot be told apart (lists, arrays).
    """
    expected = f"groups: expected one for each of {number} sequences, such as a number or a name"
    if hasattr(groups, "tolist") and getattr(getattr(groups, "dtype", None), "kind", "") not in ("m", "M"):
        groups = groups.tolist()  # of tensors the elements are else each one of a kind
    if isinstance(groups, (str, bytes)) or not hasattr(groups, "__len__") or not hasattr(groups, "__iter__"):
        raise ValueError(f"{expected}, in a list, array or series, got {checks.shown(groups)}")
    if len(groups) != number:
        raise ValueError(f"{expected}, got {len(groups)}: {checks.shown(groups)}")
    found: list[Any] = [each.tolist() if isinstance(each, (Tensor, np.ndarray)) else each for each in groups]
    for row, each in enumerate(found):
        if not isinstance(each, Hashable) or isinstance(each, tuple) and any(not isinstance(e, Hashable) for e in each):
            raise ValueError(f"{expected}, got {checks.shown(each)} for sequence {row}; give each group a number or a name")
        if each is None or type(each).__name__ == "NAType" or each != each:
            raise ValueError(
                f"{expected}, got {checks.shown(each)} for sequence {row}; a sequence of unknown group is one of its own"
            )
    return found


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
        groups: the group of each, a number or a name; a list, array, tensor or series.
        part: where effects enter: "emission" (outputs) or "transition".
        num_nodes: of the quadrature, 5 or more.
        max_rounds: of the optimiser, each of 20 steps.
        tolerance: nats per step that a round must gain to go on.
        seed: of the first weights in transitions.

    Raises:
        ValueError: for groups of another number than sequences or missing ones, priors, feedback, embeddings, parts that are no
            regressions (lookup tables of symbols, hidden layers, networks of the user's, classes), and for "transition" a
            stationary start, and graphs in which no state has two successors.
        FloatingPointError: where the likelihood is not finite, or effects are known more precisely than numbers are.

    Warns:
        RuntimeWarning: where the rounds run out, so that weights and spread are not yet those of maximum likelihood;
            where the nodes of the quadrature do not come to rest, so that the integral is not exact.

    Source: J. C. Pinheiro and D. M. Bates (1995), Approximations to the log-likelihood function in the nonlinear mixed-effects
        model, section 2.4 (adaptive quadrature); R. M. Altman (2007), Mixed hidden Markov models.

    Cost: num_nodes times the steps of x, for every evaluation of the likelihood, 20 or so in a round, and each of the two or
        more by which nodes then find their places.
    """
    checks.choice("part", part, PARTS)
    if checks.count("num_nodes", num_nodes) < FEWEST:
        raise ValueError(f"num_nodes: expected {FEWEST} or more, by which nodes find their places, got {num_nodes}")
    checks.count("max_rounds", max_rounds)
    model._check_fitted()
    wide = _widened(model, part, torch.Generator().manual_seed(seed))
    free = model.num_free_parameters + model.num_outputs if part == "emission" else wide.num_free_parameters
    spread = model.reference.new_full((model.num_outputs if part == "emission" else 1,), FIRST)
    if part == "emission" and model.outputs == "gaussian":
        spread = FIRST * _deviations(model)
    plain = copy.deepcopy(model)
    found = RandomEffects(wide, part, spread, free, num_nodes, plain)
    with plain._naming(x, True, inputs):
        data = found._data(x, groups, lengths, inputs)
    wide.column_names = plain.column_names
    parameters, mean, scale = list(wide.parameters()), *found._adapted(data, quiet=True)
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

        def loss(optimiser=optimiser) -> Tensor:
            nonlocal mean, scale
            optimiser.zero_grad()
            with contextlib.suppress(FloatingPointError):  # a step of the line search may go too far: nodes then stay
                mean, scale = found._adapted(data, mean, scale, quiet=True)
            value = -found._log_marginal(data, mean, scale)[0].sum()
            value.backward()
            return value

        optimiser.step(loss)
        mean, scale = found._adapted(data, mean, scale, quiet=True)
        with torch.no_grad():
            value = float(found._log_marginal(data, mean, scale)[0].sum())
        gain, found.log_likelihood = value - found.log_likelihood, value
        if not math.isfinite(value):
            raise FloatingPointError("the likelihood is not finite; scale inputs and outputs to similar spreads")
        if abs(gain) <= tolerance * steps:  # it may fall where nodes were far from their places
            found.converged = True
            break
    if not found.converged:
        warnings.warn(
            f"max_rounds = {max_rounds} ran out while the likelihood still changed: weights and spread are not those of "
            "maximum likelihood; give more rounds, or a larger tolerance",
            RuntimeWarning,
            stacklevel=2,
        )
    if hook is not None:
        hook.remove()
    found._rewrite()
    with torch.no_grad():
        found.log_likelihood = float(found._log_marginal(data, *found._adapted(data))[0].sum())
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
    if model.embeddings:
        raise ValueError(f"model: random effects are of models without embeddings; this one has {model.embeddings}")
    if part == "transition":
        if model.initial == "stationary":
            raise ValueError(
                "part: expected 'emission' for a model with a stationary start, which transitions that differ by group have "
                "not in common, got 'transition'; make the model with initial='constant'"
            )
        if model.num_states == 1 or model.graph is not None and int(model.graph.sum(1).max()) == 1:
            raise ValueError(
                "part: expected 'emission' for a model in which no state has two successors, got 'transition'; there is "
                "nothing for effects to change"
            )
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
