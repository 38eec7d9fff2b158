"""What a chain needs to know of an automaton over words: classes of words that move it alike, and where they lead."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class WordMoves(NamedTuple):
    """A deterministic automaton over word ids.

    Attributes:
        classes: (V,) the class of each word, 0..C-1; words of a class move the automaton alike.
        moves: (D, C) the state after each state and class.
        accepting: (D,) bool.
        start: the state before the first word.
    """

    classes: Tensor
    moves: Tensor
    accepting: Tensor
    start: int = 0

    @classmethod
    def of(cls, classes, moves, accepting, start: int = 0) -> WordMoves:
        """The same from anything that tensors are made of, checked.

        Raises:
            ValueError: for shapes that do not fit, or numbers that name no class or state.
        """
        classes, moves = (torch.as_tensor(value, dtype=torch.long) for value in (classes, moves))
        accepting = torch.as_tensor(accepting, dtype=torch.bool)
        if moves.dim() != 2 or accepting.shape != moves.shape[:1] or classes.dim() != 1 or not len(moves):
            raise ValueError(
                "moves: expected classes (V,), moves (D, C) and accepting (D,), got shapes "
                f"{tuple(classes.shape)}, {tuple(moves.shape)} and {tuple(accepting.shape)}"
            )
        for name, value, size in (("classes", classes, moves.shape[1]), ("moves", moves, len(moves))):
            if value.numel() and not 0 <= int(value.min()) <= int(value.max()) < size:
                raise ValueError(
                    f"{name}: expected numbers in 0..{size - 1}, got {int(value.min())}..{int(value.max())}"
                )
        if not 0 <= start < len(moves):
            raise ValueError(f"start: expected a state in 0..{len(moves) - 1}, got {start}")
        return cls(classes, moves, accepting, int(start))

    @classmethod
    def anything(cls, num_words: int) -> WordMoves:
        """The one of all texts."""
        return cls.of(torch.zeros(num_words, dtype=torch.long), [[0]], [True])

    @property
    def num_states(self) -> int:
        """D"""
        return len(self.moves)

    @property
    def num_classes(self) -> int:
        """C"""
        return self.moves.shape[1]

    def to(self, device: torch.device) -> WordMoves:
        """The same on another device."""
        return self._replace(
            classes=self.classes.to(device), moves=self.moves.to(device), accepting=self.accepting.to(device)
        )

    def read(self, state: Tensor, words: Tensor) -> Tensor:
        """(...) states after words (...), from states (...)."""
        return self.moves[state, self.classes[words]]

    def run(self, words: Tensor) -> Tensor:
        """(B,) states after texts (B, T)."""
        state = torch.full((len(words),), self.start, device=words.device)
        for step in range(words.shape[1]):
            state = self.read(state, words[:, step])
        return state

    # ---------------------------------------------------------------- changes
    def alone(self, word: int) -> WordMoves:
        """The same with a class of its own for a word."""
        mates = self.classes == self.classes[word]
        if int(mates.sum()) == 1:
            return self
        classes = self.classes.clone()
        classes[word] = self.num_classes
        return self._replace(
            classes=classes, moves=torch.cat([self.moves, self.moves[:, self.classes[word], None]], -1)
        )

    def ended_by(self, word: int) -> WordMoves:
        """The automaton of its texts with the end word behind them: what an end word does inside a text is forgotten.

        The last two states are new: behind the end word, and where no text is that has begun like this.
        """
        own, size = self.alone(word), self.num_states
        ended, dead = size, size + 1
        moves = torch.cat([own.moves, own.moves.new_full((2, own.num_classes), dead)])
        moves[:size, own.classes[word]] = torch.where(self.accepting, ended, dead)
        accepting = torch.zeros(size + 2, dtype=torch.bool, device=moves.device)
        accepting[ended] = True
        return own._replace(moves=moves, accepting=accepting)

    # ---------------------------------------------------------------- what can still come
    def _used(self) -> Tensor:
        """(D, C') moves by classes that have words."""
        return self.moves[:, torch.unique(self.classes)]

    def reached(self, starts: Tensor, num_steps: int) -> Tensor:
        """(N+1, D) bool: states in which texts of 0..N words can end, from any of the states ``starts``."""
        moves = self._used()
        now = torch.zeros(self.num_states, dtype=torch.bool, device=moves.device)
        now[starts] = True
        every = [now]
        for _ in range(num_steps):
            after = torch.zeros_like(now)
            after[moves[every[-1]].reshape(-1)] = True
            every.append(after)
        return torch.stack(every)

    def hopeful(self, may_stop: Tensor) -> Tensor:
        """(N+1, D) bool: states after s words from which a text may still be accepted, given where it may stop (N+1,)."""
        moves = self._used()
        now = self.accepting & may_stop[-1]
        every = [now]
        for stop in may_stop.flip(0)[1:]:
            every.append(every[-1][moves].any(-1) | (self.accepting & stop))
        return torch.stack(every[::-1])

    def settled(self) -> Tensor:
        """(D,) bool: accepting states that no word leads out of, so that whatever comes is accepted."""
        own = torch.arange(self.num_states, device=self.moves.device)
        return self.accepting & (self._used() == own.unsqueeze(-1)).all(-1)

    def shortest(self, num_steps: int) -> int | None:
        """The fewest words of a text that is accepted, up to ``num_steps``; None for more."""
        start = torch.tensor([self.start], device=self.moves.device)
        found = (self.reached(start, num_steps) & self.accepting).any(-1).nonzero()
        return int(found[0]) if len(found) else None
