"""P(word | substate) from expected counts, smoothed, with room for words that were never seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pplseq.models.taggers.lexicon import ListedTags
from pplseq.models.taggers.rare_words import FormModel
from pplseq.models.taggers.substates.split_merge import filled_slots

TINY = 1e-300
CELLS = 1 << 21  # words x states that are summed at a time


class SubstateWords:
    """P(word | substate), normalised over the training words and as many new ones as there are words seen once.

        count(word, state) = n(word, tag) p(state | word, tag) + weight p(tag | form of word) p(state | tag, rare)
        p(state | word, tag) = (n(word, state) + substate_count p(state | tag)) / (n(word, tag) + substate_count)

    with expected counts n. A new word has the second term only, and case_count p(state | the word in lower case) besides if
    that is known, as "Bush" is not "bush". The new words of the event space are stand-ins that look like
    the words seen once: which forms they have is not modelled, only which states a form points to.

    Args:
        words: V words. of_symbol: (S, 2) word and tag of each symbol, the boundary's last, which is no word (-1).
        counts: (S, K) expected counts of the symbol with each substate of its tag.
        sizes: (M,) substates of each tag.
        forms: p(tag | form of a word).
        form_count: pseudo-count of what a word's form says.
        substate_count: pseudo-count of p(state | tag).
        case_count: pseudo-count of what the same word in lower case says of a new one.
        max_count: words up to this frequent are rare.
        listed: tags of words by a lexicon, or None. The tags of a new word are those that its form and the word in lower case
            suggest, and the lexicon.
    """

    def __init__(
        self,
        words: Sequence[str],
        of_symbol: Tensor,
        counts: Tensor,
        sizes: Tensor,
        forms: FormModel,
        *,
        form_count: float,
        substate_count: float,
        case_count: float = 0.5,
        max_count: float = 10,
        listed: ListedTags | None = None,
    ):
        self.words, self.forms, self.form_count, self.case_count = words, forms, form_count, case_count
        self.listed = ListedTags({}, ()) if listed is None else listed
        self.number = {word: i for i, word in enumerate(words)}
        word, tag = of_symbol[:-1].T
        self.tag_of_symbol = tag
        filled = filled_slots(sizes, counts.shape[1])
        self.tag_of_state = filled.nonzero()[:, 0]
        self.num_states = len(self.tag_of_state)
        # numbers of states by tag and slot; a padded slot's is one behind the last
        states = torch.full(filled.shape, self.num_states)
        states[filled] = torch.arange(self.num_states)
        counts, total = counts[:-1], counts[:-1].sum(-1, keepdim=True)
        visits = counts.new_zeros(filled.shape).index_add(0, tag, counts)
        visits[-1, 0] = 1.0
        share = visits / visits.sum(-1, keepdim=True).clamp_min(TINY)
        self.joint = total * (counts + substate_count * share[tag]) / (total + substate_count)  # (S - 1, K)
        self.states_of_symbol = states[tag]
        # symbols of each word, in one row
        order = word.argsort(stable=True)
        self.symbols, self.num_symbols = order, torch.bincount(word, minlength=len(words))
        self.first = self.num_symbols.cumsum(0) - self.num_symbols
        of_word = counts.new_zeros(len(words)).index_add(0, word, total.squeeze(-1))
        rare = (of_word <= max_count)[word]
        rare_visits = counts.new_zeros(filled.shape).index_add(0, tag[rare], counts[rare])
        rare_share = (rare_visits + share) / (rare_visits.sum(-1, keepdim=True) + 1)
        self.rare_share = rare_share[filled].clamp_min(TINY)
        self.known_forms = forms.log_probs(words).exp()
        norm, some = counts.new_zeros(self.num_states), max(CELLS // self.num_states, 1)
        for numbers in torch.arange(len(words)).split(some):
            norm += self._known(numbers).sum(0)
        for numbers in (of_word <= 1.0 + 1e-3).nonzero().squeeze(-1).split(some):
            norm += self.form_count * self._substates(self.known_forms[numbers]).sum(0)
        self.log_norm = norm.clamp_min(TINY).log()

    def by_form(self, words: Sequence[str]) -> Tensor:
        """(n, Z) p(state | form of each word); the boundary has none."""
        return self._substates(self.forms.log_probs(words).exp())

    def _substates(self, tag_probs: Tensor) -> Tensor:
        """(n, Z) from (n, M - 1)."""
        probs = torch.cat([tag_probs, tag_probs.new_zeros(len(tag_probs), 1)], -1)
        return probs[:, self.tag_of_state] * self.rare_share

    def _known(self, numbers: Tensor) -> Tensor:
        """(n, Z) counts of known words."""
        sizes = self.num_symbols[numbers]
        row = torch.arange(len(numbers)).repeat_interleave(sizes)
        ends = sizes.cumsum(0)
        within = torch.arange(len(row)) - (ends - sizes).repeat_interleave(sizes)
        symbol = self.symbols[self.first[numbers].repeat_interleave(sizes) + within]
        table = self.joint.new_zeros(len(numbers), self.num_states + 1)
        table.index_put_((row.unsqueeze(-1), self.states_of_symbol[symbol]), self.joint[symbol], accumulate=True)
        table = table[:, :-1]
        of_tag = self.form_count * self.known_forms[numbers]
        words: Any = [self.words[i] for i in numbers.tolist()]
        if any(word in self.listed for word in words):
            sightings = torch.from_numpy(self.listed.sightings(words))
            if self.listed.limits:
                possible = sightings > 0
                possible[row, self.tag_of_symbol[symbol]] = True
                of_tag = of_tag.where(possible | ~(sightings > 0).any(-1, keepdim=True), 0.0)
            of_tag = of_tag + sightings
        return table + self._substates(of_tag)

    def log_probs(self, words: Sequence[str]) -> Tensor:
        """(n, Z) log p(word | state) of words; -inf for the boundary."""
        number = torch.tensor([self.number.get(word, -1) for word in words], dtype=torch.long)
        known = number >= 0
        table = self.joint.new_empty(len(words), self.num_states)
        table[known] = self._known(number[known])
        unknown: Any = [words[i] for i in (~known).nonzero().squeeze(-1).tolist()]
        table[~known] = self._new(unknown)
        return table.log_() - self.log_norm

    def _new(self, words: Sequence[str]) -> Tensor:
        """(n, Z) counts of new words."""
        table = (self.form_count or 1.0) * self.by_form(words)
        lower = torch.tensor([self.number.get(word.lower(), -1) for word in words], dtype=torch.long)
        seen = (lower >= 0).nonzero().squeeze(-1)
        if len(seen) and self.case_count > 0:
            counts = self._known(lower[seen])
            table[seen] += self.case_count * counts / counts.sum(-1, keepdim=True)
        rows = torch.tensor([i for i, word in enumerate(words) if word in self.listed], dtype=torch.long)
        if len(rows):
            old = table.new_zeros(len(rows), int(self.tag_of_state[-1]) + 1).index_add(1, self.tag_of_state, table[rows])
            total = old.sum(1, keepdim=True)
            guesses = (old / total)[:, :-1].numpy()
            listed: Any = [words[i] for i in rows.tolist()]
            probs = torch.from_numpy(self.listed.tag_probs(listed, guesses))
            table[rows] *= (torch.cat([probs * total, total * 0], 1) / old.clamp_min(TINY))[:, self.tag_of_state]
        return table
