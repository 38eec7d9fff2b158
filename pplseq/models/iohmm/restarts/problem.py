"""What there is to be learned: data and networks of an input-output HMM, for many parameter sets at once.

All restarts are one batch: every tensor has them last, and each goes its own way, as if it were fitted alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pplseq.kernels.restart_scan import Expectation, Lattice, expectation, log_prob, production
from pplseq.models.iohmm.restarts.climbing import Climber
from pplseq.models.iohmm.restarts.networks import Penalty, RestartNetwork, Rows, distinct
from pplseq.models.iohmm.restarts.outputs import Outputs, Parameters, Seen
from pplseq.models.iohmm.restarts.stationary import StationaryStart

PARTS = ("initial", "transition", "emission")
Penalties = dict[str, Penalty]


class RestartProblem:
    """Data and the networks that shall explain them, for any number R of parameter sets.

    Args:
        initial, transition: networks of the start and of transitions.
        outputs: output family with its network.
        x: (B, T[, D]) targets, anything where there is none; NaN in dimensions that are missing.
        known: (B, T) where there is a target.
        inputs: part -> (B[, U]) for "initial", (B, T[, U]) for "transition" and "emission", or None where a part sees none;
            "sizes" -> (B, T, D) trials and exposures.
        held: parts whose parameters stay as they are: "initial", "transition", "emission", "noise".
        lengths: (B,) at least 1. states: (B, T) observed states, negative where unknown, or None.
        before_first: whether a transition is taken before the first output (the start distribution is of z_0).
    """

    def __init__(
        self, initial: RestartNetwork, transition: RestartNetwork, outputs: Outputs, *, x: Tensor, known: Tensor,
        inputs: Mapping[str, Tensor | None], lengths: Tensor, states: Tensor | None = None, before_first: bool = False,
        held: frozenset[str] = frozenset(),
    ):  # fmt: skip
        self.initial, self.transition, self.outputs, self.held = initial, transition, outputs, held
        transition_inputs, emission_inputs, sizes = (inputs.get(name) for name in ("transition", "emission", "sizes"))
        if before_first:  # a step without a target in front of each row
            x = torch.cat([x[:, :1], x], 1)
            transition_inputs, emission_inputs, sizes = (
                value if value is None else torch.cat([value[:, :1], value], 1)
                for value in (transition_inputs, emission_inputs, sizes)
            )
            known = torch.cat([torch.zeros_like(known[:, :1]), known], 1)
            states = states if states is None else torch.cat([torch.full_like(states[:, :1], -1), states], 1)
            lengths = lengths + 1
        self.lattice = Lattice(lengths)
        pack = self.lattice.pack
        self.num_steps = int(lengths.sum()) - before_first * len(lengths)
        self.num_targets = int(pack(known).sum())
        self.start_rows = initial.rows(inputs.get("initial"))
        if self.start_rows.size > 1:
            self.lattice.init_index = self.start_rows.every(len(lengths))[self.lattice.order]
        self.rows = transition.rows(None if transition_inputs is None else pack(transition_inputs))
        if self.rows.size == 1 and self.rows.entry is None:
            self.lattice.pair_index = torch.zeros(self.lattice.num_packed, dtype=torch.long, device=x.device)
        else:
            self.lattice.pair_index = self.rows.entry
        states = None if states is None or not bool((pack(states) >= 0).any()) else pack(states)
        beside = (None if value is None else pack(value) for value in (emission_inputs, sizes))
        self.seen = self._seen(pack(x), pack(known), states, *beside)

    def _seen(
        self, x: Tensor, known: Tensor, states: Tensor | None, inputs: Tensor | None, sizes: Tensor | None
    ) -> Seen:
        """The distinct things to be explained, and which of them each packed step is."""
        count = len(x)
        rows = self.outputs.network.rows(inputs) if self.outputs.names else Rows(None, None, 1)
        entry = rows.every(count).to(x.device)
        there = ~x.isnan() & known.unsqueeze(-1) if x.dim() == 2 else None  # of each dimension
        if there is not None and not bool((there.any(-1) & ~there.all(-1)).any()):
            there = None  # each is seen whole or not at all
        x = x.nan_to_num(0.0) if x.is_floating_point() else x
        columns = [entry.unsqueeze(-1), known.unsqueeze(-1)]
        columns += [torch.where(known.view(-1, *[1] * (x.dim() - 1)), x, 0).reshape(count, -1)]
        columns += [] if there is None else [there]
        columns += [] if sizes is None else [sizes]
        columns += [] if states is None else [states.unsqueeze(-1)]
        keys, index = distinct(torch.cat([column.double() for column in columns], -1))
        self.lattice.emit_index = index
        size = columns[2].shape[1]
        present = keys[:, 2 + size : 2 + 2 * size] > 0 if there is not None else None
        x = (keys[:, 2] if x.dim() == 1 else keys[:, 2 : 2 + size]).to(x.dtype)
        known_states = None if states is None else keys[:, -1].long()
        at = 2 + size * (1 if there is None else 2)
        own = None if sizes is None else keys[:, at : at + size].to(sizes.dtype)
        return Seen(rows, keys[:, 0].long(), x, keys[:, 1] > 0, known_states, present, own)

    # ---------------------------------------------------------------- the two steps
    def tables(self, parameters: Parameters) -> tuple[Tensor, Tensor, Tensor]:
        """Start (Z, I, R), pair (Z, Z, L, R) and emission (Z, M, R) log-probabilities; differentiable."""
        pair = self.transition.log_probs(parameters["transition"], self.rows)
        if isinstance(self.initial, StationaryStart):
            init = self.initial.log_probs(parameters["transition"], self.start_rows).squeeze(0)
        else:
            init = self.initial.log_probs(parameters["initial"], self.start_rows).squeeze(0)
        return init, pair, self.outputs.log_likelihood(parameters, self.seen, init.shape[-1])

    @torch.no_grad()
    def expect(self, parameters: Parameters) -> Expectation:
        """The E-step."""
        init, pair, emit = (table.contiguous() for table in self.tables(parameters))
        return expectation(init, pair, emit, self.lattice)

    @torch.no_grad()
    def log_prob(self, parameters: Parameters) -> Tensor:
        """(B, R) log p(x | u) of each row, nats."""
        init, pair, emit = (table.contiguous() for table in self.tables(parameters))
        return log_prob(init, pair, emit, self.lattice)

    @torch.no_grad()
    def consistent(self, parameters: Parameters) -> Tensor:
        """(R,) whether the most probable output given the inputs so far is the target, wherever there is one."""
        init, pair, _ = self.tables(parameters)
        states, entry = production(init.contiguous(), pair.contiguous(), self.lattice), self.lattice.emit_index
        entry = torch.arange(states.shape[1], device=states.device) if entry is None else entry
        return self.outputs.right(parameters, self.seen, entry, states).all(0)

    @torch.no_grad()
    def maximize(
        self, parameters: Parameters, expected: Expectation, penalties: Penalties, *, gradient: bool = False
    ) -> tuple[Parameters, Tensor | None]:
        """The M-step: exact for tables, generalised linear models and Gaussians; uphill for networks with layers.

        Args:
            gradient: take steps uphill everywhere.

        Returns:
            New parameters, and (R,) restarts where a variance met its floor, or None.
        """
        init, transition = self.initial, self.transition
        names = "climb_softmax" if gradient else "fit_softmax"
        if isinstance(init, StationaryStart):
            moved = init.fit(parameters["transition"], self.rows, expected, penalties["transition"], gradient)
            found = {"initial": {}, "transition": moved}
        else:
            found = {
                "initial": getattr(init, names)(
                    parameters["initial"], self.start_rows, expected.start.unsqueeze(0), penalties["initial"]
                ),
                "transition": getattr(transition, names)(
                    parameters["transition"], self.rows, expected.pair, penalties["transition"]
                ),
            }
        if set(self.outputs.names) <= self.held:
            outputs, floored = {}, None
        else:
            outputs, floored = self.outputs.maximize(parameters, self.seen, expected.emit, penalties["emission"], gradient)
        return found | outputs | {part: parameters[part] for part in self.held}, floored

    @torch.no_grad()
    def log_prior(self, parameters: Parameters, penalties: Penalties) -> Tensor | float:
        """(R,) nats, up to a constant."""
        return (
            self.initial.log_prior(parameters["initial"], penalties["initial"], softmax=True)
            + self.transition.log_prior(parameters["transition"], penalties["transition"], softmax=True)
            + self.outputs.log_prior(parameters, penalties["emission"])
        )

    def gradient(self, parameters: Parameters) -> tuple[Tensor, Parameters]:
        """(R,) log-likelihoods, and each one's gradient in its own parameters.

        Fisher's identity: the gradient of log p(x) is that of the expected complete-data log-likelihood, so that nothing is
        differentiated through time. Modules of the user's are in training: both are of what their dropout leaves.
        """
        with torch.enable_grad(), self._training():
            leaves = {p: {k: v.detach().requires_grad_() for k, v in w.items()} for p, w in parameters.items()}
            tables = self.tables(leaves)
            init, pair, emit = (table.detach().contiguous() for table in tables)
            expected = expectation(init, pair, emit, self.lattice)
            flat = [value for weights in leaves.values() for value in weights.values()]
            # a table that nothing depends on (targets are states) has no gradient
            used = [(t, c) for t, c in zip(tables, expected[1:], strict=True) if t.requires_grad]
            grads = iter(torch.autograd.grad([t for t, _ in used], flat, [c for _, c in used], allow_unused=True))
        result = {p: {k: _zero_if_none(next(grads), v) for k, v in w.items()} for p, w in parameters.items()}
        for part in self.held:
            result[part] = {name: torch.zeros_like(value) for name, value in parameters[part].items()}
        return expected.log_prob.sum(0), result

    @property
    def modules(self) -> list[nn.Module]:
        """Modules of the user's among the networks."""
        networks = [self.initial, self.transition, *([self.outputs.network] if self.outputs.names else [])]
        return [own for network in networks if (own := getattr(network, "module", None)) is not None]

    @contextmanager
    def _training(self) -> Iterator[None]:
        """A block in which the user's modules are in training; elsewhere in a fit they are not."""
        modules = self.modules
        for module in modules:
            module.train()
        try:
            yield
        finally:
            for module in modules:
                module.eval()

    def forget(self) -> None:
        """Forgets what networks remember between steps."""
        for part in (self.initial, self.transition, self.outputs):
            part.forget()

    def memory(self) -> list[dict[str, Any] | None]:
        """What networks remember between steps."""
        return [None if part.climber is None else vars(part.climber) for part in self._climbing()]

    def remember(self, memory: list[dict[str, Any] | None]) -> None:
        """Puts back what :meth:`memory` said."""
        for part, state in zip(self._climbing(), memory, strict=True):
            part.climber = None if state is None else Climber.of(state)

    def _climbing(self) -> list[Any]:
        parts = [self.initial, self.transition, self.outputs, *([self.outputs.network] if self.outputs.names else [])]
        return [part for part in parts if hasattr(part, "climber")]

    def take(self, restarts: Tensor) -> None:
        """Keeps what networks remember between steps for some restarts only."""
        for part in (self.initial, self.transition, self.outputs):
            part.take(restarts)


def _zero_if_none(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def take(parameters: Parameters, restarts: Tensor) -> Parameters:
    """The parameters of some restarts (a mask or positions)."""
    return {
        part: {name: value[..., restarts] for name, value in weights.items()} for part, weights in parameters.items()
    }


def moved(value: Any, device) -> Any:
    """The same on a device: a tensor, or what dictionaries and lists of tensors hold."""
    if isinstance(value, dict):
        return {name: moved(each, device) for name, each in value.items()}
    if isinstance(value, list):
        return [moved(each, device) for each in value]
    return value.to(device) if isinstance(value, Tensor) else value


def put(into: Parameters, restarts: Tensor, parameters: Parameters) -> None:
    """Writes the parameters of some restarts (positions) among all."""
    for part, weights in parameters.items():
        for name, value in weights.items():
            into[part][name][..., restarts] = value
