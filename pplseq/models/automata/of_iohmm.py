"""Between input-output HMMs of symbols and automata: an automaton read off a model, a model of learnt tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pplseq.models.automata.automaton import LABELS, Automaton
from pplseq.models.automata.em import SymbolTables
from pplseq.models.iohmm.program import IOHMM


def model_of_tables(tables: SymbolTables) -> IOHMM:
    """The model of one restart's tables: start (Z,), transition (L, Z, Z), output (Z, Y).

    A transition comes before the first output, so the empty string's label is that of the start state.
    """
    num_symbols, num_states, _ = tables.transition.shape
    num_labels = tables.output.shape[-1]
    model = IOHMM(
        num_states, num_symbols=num_symbols, outputs="categorical", num_outputs=num_labels, initial="transition"
    )
    return model._set_tables(initial=tables.start, transition=tables.transition, emission=tables.output)


def extract_automaton(
    model: IOHMM,
    symbols: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    *,
    pos_label: str | None = None,
    empty: int = 0,
) -> Automaton:
    """The automaton of a model's likeliest moves and outputs, in its smallest form.

    Args:
        model: with lookup tables of symbols for transitions; outputs "categorical", "states" or one "bernoulli", Moore or
            Mealy (a Mealy machine's label is that of its last state and symbol).
        symbols: names of the L symbols; default: "0", "1", ...
        labels: names of the outputs; default: "reject" and "accept" of two, else numbers.
        pos_label: the label of accepted strings; default: "accept", or what usual words say.
        empty: the label of the empty string, for models that answer it from no state: all but Moore machines with
            ``initial="transition"``.

    Raises:
        ValueError: a model with other inputs or outputs, or with feedback; wrong numbers of names.

    Source: Bengio and Frasconi (1995), section 5.
    """
    moves = model.transition_network
    if moves.kind != "table" or model.feedback:
        found = "feedback of outputs" if model.feedback else f"a {moves.kind} network"
        raise ValueError(f"model: expected lookup tables of symbols for its transitions (num_symbols=), got {found}")
    if model.outputs not in ("categorical", "states") and not (model.outputs == "bernoulli" and model.num_outputs == 1):
        raise ValueError(
            f"model: expected categorical outputs, states or one bit, got {model.num_outputs} of {model.outputs}"
        )
    num_symbols = len(moves.logits)
    symbols = tuple(map(str, range(num_symbols))) if symbols is None else tuple(symbols)
    if len(symbols) != num_symbols:
        raise ValueError(f"symbols: expected {num_symbols} names, got {len(symbols)}")
    # [symbol, from] -> to, among allowed moves
    following = _allowed(moves.logits, model.graph).argmax(-1)
    outputs, num_labels = _output_table(model, num_symbols)
    if labels is None:
        labels = LABELS if num_labels == 2 else tuple(map(str, range(num_labels)))
    if len(labels) != num_labels:
        raise ValueError(f"labels: expected {num_labels} names, got {len(labels)}")
    first = _first_states(model, following, num_symbols)
    if model.initial == "transition" and not model.mealy:
        start = int(_allowed(model.initial_network.logits, model.start_states).argmax())
        return Automaton(symbols, following.T.numpy(), outputs[0].numpy(), start, tuple(labels), pos_label).minimise()
    # state 1 + symbol Z + z: where the last symbol led to; state 0: the empty string
    own = torch.arange(num_symbols).unsqueeze(-1) * model.num_states + 1
    after = torch.cat([(first + own.squeeze(-1)).unsqueeze(-1), (following + own).repeat(1, num_symbols)], 1)
    outputs = torch.cat([torch.tensor([empty]), outputs.reshape(-1)])
    return Automaton(symbols, after.T.numpy(), outputs.numpy(), 0, tuple(labels), pos_label).minimise()


def _allowed(logits: Tensor, allowed: Tensor | None) -> Tensor:
    logits = logits.detach().cpu()
    return logits if allowed is None else logits.masked_fill(~allowed.cpu(), -torch.inf)


def _output_table(model: IOHMM, num_symbols: int) -> tuple[Tensor, int]:
    """(L, Z) the label of each state after each symbol, and how many labels there are."""
    if model.outputs == "states":
        return torch.arange(model.num_states).expand(num_symbols, -1), model.num_states
    network = model.emission_network
    if network.kind not in ("constant", "table"):
        raise ValueError(f"model: expected outputs that see symbols or nothing, got a {network.kind} network")
    logits = network.logits.detach().cpu()
    label = (logits.squeeze(-1) > 0).long() if model.outputs == "bernoulli" else logits.argmax(-1)
    label = label.expand(num_symbols, -1) if network.kind == "constant" else label
    return label, 2 if model.outputs == "bernoulli" else model.num_outputs


def _first_states(model: IOHMM, following: Tensor, num_symbols: int) -> Tensor:
    """(L,) the state after the first symbol."""
    network = model.initial_network
    if network.kind not in ("constant", "table"):
        raise ValueError(f"model: expected a start that sees symbols or nothing, got a {network.kind} network")
    first = _allowed(network.logits, model.start_states).argmax(-1).expand(num_symbols)
    return following[torch.arange(num_symbols), first] if model.initial == "transition" else first
