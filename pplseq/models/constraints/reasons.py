"""Why a constraint cannot be satisfied, as shortly as it can be said."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from pplseq.data.vocabulary import Vocabulary
from pplseq.infer.discrete.constrained.moves import WordMoves

if TYPE_CHECKING:
    from pplseq.models.constraints.constraint import Constraint


def lengths_of(moves: WordMoves, longest: int) -> set[int]:
    """The numbers of words, up to ``longest``, of texts that are accepted."""
    reached = moves.reached(torch.tensor([moves.start]), longest) & moves.accepting
    return set(reached.any(-1).nonzero().squeeze(-1).tolist())


def why_impossible(
    constraint: Constraint, vocabulary: Vocabulary, shortest: int, longest: int, end: int | None = None
) -> str | None:
    """The reason for which no text of shortest to longest words is accepted: one part, else two of them, else all; or None."""

    def inside(some: Constraint) -> WordMoves:
        moves = some.over(vocabulary)
        kept = torch.arange(len(moves.classes)) != (-1 if end is None else end)
        return moves._replace(classes=moves.classes[kept])

    wanted = set(range(shortest, longest + 1))
    moves = inside(constraint)
    if lengths_of(moves, longest) & wanted:
        return None
    allowed = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    for size in (1, 2):
        for some in itertools.combinations(constraint.parts, size):
            whole = some[0] if size == 1 else some[0] & some[1]
            found = _why(inside(whole), wanted, longest, size, allowed)
            if found:
                return f"{' and '.join(part.text for part in some)}: {found}"
    return f"{constraint.text}: {_why(moves, wanted, longest, 3, allowed)}"


def _why(moves: WordMoves, wanted: set[int], longest: int, size: int, allowed: str) -> str | None:
    # what accepts anything accepts something shorter than its states are many, and what accepts texts without end one among
    # any so many lengths that follow each other
    most = longest + moves.num_states
    lengths = lengths_of(moves, most)
    if not lengths:
        return "no text of the model's words satisfies " + ("it" if size == 1 else "both" if size == 2 else "all of it")
    if lengths & wanted:
        return None
    least = min(lengths)
    takes = f"takes {least} word{'' if least == 1 else 's'} or more" if least > longest else "takes another number of words"
    if max(lengths) < min(wanted):
        takes = f"takes {max(lengths)} word{'' if max(lengths) == 1 else 's'} at most"
    return f"{takes}, and the length allows {allowed}"
