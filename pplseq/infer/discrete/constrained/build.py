"""From a chain and an automaton to a constrained chain: how long the text may be, and what ends it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.state import Emission, Transition
from pplseq.infer.discrete.constrained.chain import ConstrainedChain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.steps import KEPT_BYTES


def constrain(
    transition: Transition,
    emission: Emission,
    moves: WordMoves,
    longest: int,
    shortest: int | None = None,
    *,
    first: Tensor | None = None,
    start: Tensor | None = None,
    end: int | None = None,
    log_lengths: Tensor | None = None,
    kept_bytes: float = KEPT_BYTES,
) -> ConstrainedChain:
    """The texts of a model that an automaton accepts.

    Args:
        transition, emission: specs, with the graph of their parameters where gradients are wanted.
        moves: the automaton.
        longest: words at most, without the end word. shortest: at least; default: longest, so that texts have one length.
        first: (B, Z) log p(z of the first word); default: the start distribution, one row.
        start: (B,) the automaton's states before it; default: its start.
        end: the word that ends a text, ``<eos>``; how long a text is is then the model's own choice within the bounds.
        log_lengths: (longest - shortest + 1,) log p(length), where no word ends texts; default: all alike.
        kept_bytes: as for :class:`ConstrainedChain`.

    Raises:
        ValueError, TypeError: for lengths that cannot be, and specs of kinds that are not offered.
    """
    checks.count("longest", longest, 0)
    shortest = longest if shortest is None else checks.count("shortest", shortest, 0)
    if shortest > longest:
        raise ValueError(f"shortest: expected at most longest = {longest}, got {shortest}")
    count = longest - shortest + 1
    if end is not None:
        if not 0 <= end < len(moves.classes):
            raise ValueError(f"end: expected a word id in 0..{len(moves.classes) - 1}, got {end}")
        if log_lengths is not None:
            raise ValueError("log_lengths: the end word says how long a text is; leave one of the two out")
        moves = moves.ended_by(end)
        stop = torch.full((longest + 2,), -math.inf)
        stop[shortest + 1 :] = 0.0
    else:
        if log_lengths is None:
            log_lengths = torch.full((count,), -math.log(count), dtype=torch.float64)
        if log_lengths.shape != (count,):
            raise ValueError(
                f"log_lengths: expected ({count},), one for each of {shortest}..{longest} words, got "
                f"{tuple(log_lengths.shape)}"
            )
        stop = torch.full((longest + 1,), -math.inf, dtype=log_lengths.dtype)
        stop[shortest:] = log_lengths
    if first is None:
        first = transition.initial_log_prob().unsqueeze(0)
    return ConstrainedChain(transition, emission, first, moves, stop, start=start, end=end, kept_bytes=kept_bytes)
