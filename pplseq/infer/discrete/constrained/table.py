"""What each state of an automaton is worth beside each state of a chain, for every number of words to come."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.steps import WideSteps
from pplseq.infer.discrete.constrained.words import ClassEmission
from pplseq.kernels.log_semiring import logsumexp


class BackwardTable:
    """log p(the text to come is accepted | s words are said, automaton state d, chain state z), by the backward recursion

        V_s(d, z) = stop_s [d accepts] + sum_z' p(z' | z) W_s(d, z'),    W_s(d, z') = sum_x p(x | z') V_{s+1}(move(d, x), z').

    Rows are made of states that can be reached and from which there is hope only; of states in which everything is accepted the
    value is known.

    Args:
        steps, words, moves: the chain's and the automaton's.
        stop: (N+1,) the logarithm of what a text that ends after s words counts, 0 or a log-weight; -inf where it must not end.
        starts: states of the automaton before the first word.
        maximum: the best text and path in the place of the sum over all.

    Cost: D chain steps of all states for each word to come, for the D rows there are; the transition is made once for all.

    Source: H. Zhang et al., Adaptable logical control for large language models (2024), equation 4.
    """

    def __init__(
        self,
        steps: WideSteps,
        words: ClassEmission,
        moves: WordMoves,
        stop: Tensor,
        starts: Tensor,
        maximum: bool = False,
    ):
        self.steps, self.words, self.moves, self.stop, self.maximum = steps, words, moves, stop, maximum
        self.num_steps = len(stop) - 1
        reached, hopeful = moves.reached(starts, self.num_steps), moves.hopeful(stop > -torch.inf)
        self.active = reached & hopeful
        self._settled = moves.settled() & (not maximum)
        # row 0 is without hope
        self.row: list[Tensor] = [torch.empty(0)] * (self.num_steps + 1)
        self.values: list[Tensor] = [torch.empty(0)] * (self.num_steps + 1)
        self.restart: list[Tensor | None] = [None] * (self.num_steps + 1)
        for step in range(self.num_steps, 0, -1):
            self._fill(step)

    def _fill(self, step: int) -> None:
        here, moves = self.active[step], self.moves
        settled, open_ = (here & self._settled).nonzero().squeeze(-1), (here & ~self._settled).nonzero().squeeze(-1)
        states = torch.cat([settled, open_])
        row = torch.zeros(moves.num_states, dtype=torch.long, device=states.device)
        row[states] = torch.arange(1, len(states) + 1, device=states.device)
        initial = self.steps.initial
        known = torch.logsumexp(self.stop[step:], 0)
        parts = [initial.new_full((1, len(initial)), -torch.inf), known.expand(len(settled), len(initial))]
        again = [initial.new_full((1,), -torch.inf), known.expand(len(settled))]
        if len(open_):
            stop = torch.where(moves.accepting[open_], self.stop[step], -torch.inf)
            values = stop.unsqueeze(-1).expand(-1, len(initial))
            if step < self.num_steps:
                weight = self.weights(step, open_)
                values = self._or(values, self.steps.best_backward(weight) if self.maximum else self.steps.backward(weight))
                fresh = initial + weight
                stop = self._or(stop, fresh.amax(-1) if self.maximum else logsumexp(fresh, -1))
            parts.append(values)
            again.append(stop)
        self.row[step], self.values[step] = row, torch.cat(parts)
        self.restart[step] = None if self.words.reset is None else torch.cat(again)

    def _or(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.maximum(a, b) if self.maximum else logsumexp(torch.stack([a, b]), 0)

    def weights(self, step: int, states: Tensor) -> Tensor:
        """(R, Z) W_s of automaton states (R,): log p(a word that leads on is said, and all is accepted | z')."""
        after = step + 1
        return self.words.into(states, self.values[after], self.row[after], self.restart[after], self.maximum)

    def ahead(self, step: int, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """(R, Z) V_s of automaton states (R,), and (R,) what they are worth behind the reset word."""
        row, again = self.row[step][states], self.restart[step]
        return self.values[step][row], None if again is None else again[row]

    def stop_at(self, step: int, states: Tensor) -> Tensor:
        """(R,) what it counts to stop here."""
        return torch.where(self.moves.accepting[states], self.stop[step], -torch.inf)
