"""A text to come that satisfies a constraint: everything that can be asked of it, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.block import BlockTransition
from pplseq.distributions.state import Emission, Transition
from pplseq.infer.discrete.constrained.best import best_texts
from pplseq.infer.discrete.constrained.marginals import text_marginals
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.results import TextMarginals, Texts, TextSoFar
from pplseq.infer.discrete.constrained.steps import KEPT_BYTES, wide_steps
from pplseq.infer.discrete.constrained.table import BackwardTable
from pplseq.infer.discrete.constrained.words import CELLS, ClassEmission
from pplseq.kernels.log_semiring import logsumexp
from pplseq.kernels.path_scan import sample_log
from pplseq.threads import once


class ConstrainedChain:
    """The words to come of a chain whose text an automaton accepts; ``chain.constrained(...)`` makes one.

    The product of both is never formed: see :class:`~pplseq.infer.discrete.constrained.table.BackwardTable` for how, and at
    which cost. Everything is exact, in nats, batch first.

    Args:
        transition, emission: the chain's specs; the emission is of words.
        first: (B, Z) log p(z of the first word to come | what was seen).
        moves: the automaton. start: (B,) its states before the first word; by default ``moves.start``.
        log_stop: (N+1,) what a text that ends after s words counts, in logs: 0 for one number of words alone, -inf where it
            must not end. Where several are allowed and no end word tells them apart these are log-probabilities of lengths.
        end: the word that ends texts in the automaton, for who asks.
        kept_bytes: of transition probabilities that are kept between steps; beyond, they are made anew.
    """

    def __init__(
        self,
        transition: Transition,
        emission: Emission,
        first: Tensor,
        moves: WordMoves,
        log_stop: Tensor,
        *,
        start: Tensor | None = None,
        end: int | None = None,
        kept_bytes: float = KEPT_BYTES,
    ):
        if not hasattr(emission, "num_words") or getattr(emission, "takes_inputs", False) or emission.batch_shape:
            raise TypeError(
                "emission: constraints are about words, of one table for all steps and rows; got "
                f"{type(emission).__name__}"
            )
        if len(moves.classes) != emission.num_words:
            raise ValueError(f"moves: made for {len(moves.classes)} words, but the emission has {emission.num_words}")
        if log_stop.dim() != 1 or len(log_stop) < 1:
            raise ValueError(f"log_stop: expected (N+1,) for N words at most, got shape {tuple(log_stop.shape)}")
        self.steps = wide_steps(transition, kept_bytes)
        reset_id = transition.reset_id if isinstance(transition, BlockTransition) else None
        moves = moves.to(first.device)
        self.moves = moves if reset_id is None else moves.alone(reset_id)
        self.words = ClassEmission(emission, self.moves, reset_id)
        self.first, self.stop, self.end = first, log_stop.to(first), end
        self.num_steps = len(log_stop) - 1
        self.start = torch.full((len(first),), moves.start, device=first.device) if start is None else start
        rows = int(self.moves.reached(self.start, self.num_steps).sum())
        checks.fits(
            "constraint", rows * first.shape[-1] * first.element_size(),
            f"{self.moves.num_states} states of the automaton and {self.num_steps} words; a smaller automaton, or fewer words",
        )  # fmt: skip

    @once
    def _table(self) -> BackwardTable:
        return self._make_table()

    def _make_table(self, maximum: bool = False) -> BackwardTable:
        return BackwardTable(self.steps, self.words, self.moves, self.stop, self.start, maximum)

    # ---------------------------------------------------------------- probabilities
    def log_prob(self) -> Tensor:
        """(B,) log p(the text to come satisfies the constraint | what was seen), -inf where it cannot; differentiable."""
        return self.ahead(self.begin())

    def begin(self) -> TextSoFar:
        """Before the first word."""
        return TextSoFar(0, self.first, self.start)

    def ahead(self, at: TextSoFar) -> Tensor:
        """(B,) log p(constraint | words read)."""
        stop = self.stop_at(at)
        if at.step == self.num_steps:
            return stop
        go_on = logsumexp(at.states + self._weights(self._table, at.step, at.automaton), -1)
        return logsumexp(torch.stack([stop, go_on]), 0)

    def stop_at(self, at: TextSoFar) -> Tensor:
        """(B,) what it counts, in logs, that the text ends here; -inf where it must not."""
        return self._table.stop_at(at.step, at.automaton)

    def _weights(self, table: BackwardTable, step: int, states: Tensor) -> Tensor:
        distinct, which = states.unique(return_inverse=True)
        return table.weights(step, distinct)[which]

    def words_ahead(self, at: TextSoFar) -> Tensor:
        """(B, V) log p(next word, constraint | words read)."""
        return self.words_from(at.states, at.automaton, at.step)

    def words_from(self, score: Tensor, states: Tensor, step: int) -> Tensor:
        """(R, V) log sum_z exp(score_z) p(x | z) V_{s+1}(move(d, x), z), for rows (R, Z) and automaton states (R,)."""
        table, classes = self._table, self.moves.classes
        if step == self.num_steps:
            return score.new_full((len(score), len(classes)), -torch.inf)
        after = self.moves.moves[states]  # (R, C)
        keys = torch.arange(len(states), device=after.device).unsqueeze(-1) * self.moves.num_states + after
        distinct, which = keys.unique(return_inverse=True)
        row, next_state = distinct // self.moves.num_states, distinct % self.moves.num_states
        parts = []
        for some in torch.arange(len(distinct), device=after.device).split(max(1, CELLS // score.shape[-1])):
            worth, again = table.ahead(step + 1, next_state[some])
            words = self.words.word_log_prob(score[row[some]] + worth)
            if again is not None:
                plain = self.words.word_log_prob(score[row[some]])[:, self.words.reset_id]
                words[:, self.words.reset_id] = plain + again
            parts.append(words)
        places = which[:, classes]  # (R, V)
        return torch.cat(parts)[places, torch.arange(len(classes), device=after.device)]

    @torch.no_grad()
    def read(self, at: TextSoFar, words: Tensor) -> TextSoFar:
        """One word (B,) further.

        Raises:
            ValueError: no word's id, or a word that the model cannot say here, behind which nothing has a probability.
        """
        outside = ((words < 0) | (words >= len(self.moves.classes))).nonzero()
        if len(outside):
            row = int(outside[0, 0])
            raise ValueError(
                f"words: row {row}, word {at.step}: expected an id in 0..{len(self.moves.classes) - 1}, got {int(words[row])}; "
                "leave out the -1 behind a text's end"
            )
        joint = at.states + self.words.emission.log_likelihood(words)
        lost = torch.isneginf(joint).all(-1).nonzero()
        if len(lost):
            row = int(lost[0, 0])
            raise ValueError(f"words: row {row}, word {at.step}: the model gives id {int(words[row])} probability zero here")
        said = torch.log_softmax(joint, -1)
        states = self.steps.forward(said)
        if self.words.reset_id is not None:
            states = torch.where((words == self.words.reset_id).unsqueeze(-1), self.steps.initial, states)
        return TextSoFar(at.step + 1, states, self.moves.read(at.automaton, words))

    @torch.no_grad()
    def after_each_word(self, words: Tensor) -> Tensor:
        """(B, T+1) log p(constraint | what was seen, the first t words), t = 0..T, of texts (B, T) of at most N words."""
        if words.dim() != 2 or len(words) != len(self.first) or words.shape[1] > self.num_steps:
            raise ValueError(
                f"words: expected ({len(self.first)}, T) ids with T up to {self.num_steps}, got shape {tuple(words.shape)}"
            )
        at = self.begin()
        found = [self.ahead(at)]
        for step in range(words.shape[1]):
            at = self.read(at, words[:, step])
            found.append(self.ahead(at))
        return torch.stack(found, 1)

    @torch.no_grad()
    def next(self) -> Tensor:
        """(B, V) log p(next word | what was seen, constraint); where the text may end at once, the rest is the end's."""
        return self.words_ahead(self.begin()) - self._possible().unsqueeze(-1)

    def _possible(self) -> Tensor:
        log_prob = self.log_prob()
        impossible = torch.isneginf(log_prob).nonzero()
        if len(impossible):
            least = self.moves.shortest(self.num_steps)
            why = (
                "no text of so many words is accepted"
                if least is None
                else "the model gives all such texts probability zero"
            )
            raise ValueError(
                f"constraint: row {int(impossible[0])} cannot satisfy it within {self.num_steps} words: {why}"
            )
        return log_prob

    # ---------------------------------------------------------------- texts
    @torch.no_grad()
    def sample(self, num_samples: int = 1) -> Texts:
        """Texts and their states (S, B, N), drawn from their exact joint posterior: all of them satisfy the constraint.

        Cost: S B (Z h + V) a word, behind the table.
        """
        checks.count("num_samples", num_samples)
        self._possible()
        rows = torch.arange(len(self.first), device=self.first.device).repeat(num_samples)
        most = max(1, 2 * CELLS // max(self.first.shape[-1], len(self.moves.classes)))
        parts = [self._draw(some) for some in rows.split(most)]
        shape = (num_samples, len(self.first))
        words, states = (torch.cat(part).view(*shape, self.num_steps) for part in zip(*parts, strict=True))
        return Texts(words, states, (words >= 0).sum(-1))

    def _draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(R, N) words and states."""
        table, automaton, score = self._table, self.start[rows], self.first[rows]
        going = torch.ones_like(rows, dtype=torch.bool)
        words, states = rows.new_full((2, len(rows), self.num_steps), -1)
        for step in range(self.num_steps):
            joint = score + self._weights(table, step, automaton[going])
            stop = table.stop_at(step, automaton[going])
            go_on = torch.logsumexp(joint, -1)
            goes = sample_log(torch.stack([stop, go_on], -1)) == 1
            joint = joint[goes]
            going[going.clone()] = goes
            if not bool(going.any()):
                break
            state = sample_log(joint)
            word = sample_log(self.words_of(table, step, automaton[going], state))
            words[going, step], states[going, step] = word, state
            automaton[going] = self.moves.read(automaton[going], word)
            score = self.steps.rows(state)
            if self.words.reset_id is not None:
                score = torch.where((word == self.words.reset_id).unsqueeze(-1), self.steps.initial, score)
        return words, states

    def words_of(self, table: BackwardTable, step: int, automaton: Tensor, state: Tensor) -> Tensor:
        """(R, V) log p(x | z) and what is worth what it leads to, for chain states (R,) at the next word."""
        after = self.moves.moves[automaton]  # (R, C)
        row = table.row[step + 1][after]
        worth = table.values[step + 1][row, state.unsqueeze(-1)][:, self.moves.classes]
        again = table.restart[step + 1]
        if again is not None:
            worth[:, self.words.reset_id] = again[row[:, self.moves.classes[self.words.reset_id]]]
        return self.words.word_rows(state) + worth

    @once
    def _best_table(self) -> BackwardTable:
        return self._make_table(maximum=True)

    @torch.no_grad()
    def k_best(self, k: int) -> Texts:
        """The k most probable pairs of text and states, (k, B, N), -1 throughout and log_prob -inf where there are fewer.

        Cost: a table of maxima, then about k N rows of the transition a row.
        """
        checks.count("k", k)
        return best_texts(self, self._best_table, k)

    @torch.no_grad()
    def viterbi(self) -> Texts:
        """The most probable pair of text and states, (1, B, N)."""
        self._possible()
        return self.k_best(1)

    @torch.no_grad()
    def marginals(self) -> TextMarginals:
        """p(state), p(word), p(length), p(automaton's state) at every step, given the constraint. Cost: B D steps forward."""
        return text_marginals(self, self._table, self._possible())
