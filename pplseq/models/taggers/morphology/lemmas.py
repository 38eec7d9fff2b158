"""Lemmas: each is a rule that turns the word into it, and rules are guessed from tags and endings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, NamedTuple

CASES: dict[str, Callable[[str], str]] = {"same": str, "lower": str.lower, "title": str.title, "upper": str.upper}
MAX_SUFFIX = 6  # letters of an ending that may tell the rule


class LemmaRule(NamedTuple):
    """How a word becomes its lemma.

    Attributes:
        cut: letters that are taken away at the beginning and the end. front, back: what comes in their place.
        case: of the letters that stay, a name of CASES.
        whole: the lemma itself, where it has nothing to do with the word; all else is empty then.
    """

    cut: tuple[int, int] = (0, 0)
    front: str = ""
    back: str = ""
    case: str = "same"
    whole: str | None = None

    def __call__(self, word: str) -> str | None:
        """The lemma of a word; None where the rule does not fit it."""
        if self.whole is not None:
            return self.whole
        kept = word[self.cut[0] : len(word) - self.cut[1]]
        return None if not kept else self.front + CASES[self.case](kept) + self.back


@lru_cache(maxsize=1 << 16)
def lemma_rule(word: str, lemma: str) -> LemmaRule:
    """The rule that keeps the longest part that word and lemma have in common, whatever its case.

    Source: Straka, Strakova and Hajic (2019), UDPipe at SIGMORPHON 2019, section 3.1 (lemma rules); Chrupala (2006), Simple
        data-driven context-sensitive lemmatization (edit scripts as classes).
    """
    same = SequenceMatcher(None, word.lower(), lemma.lower(), autojunk=False)
    i, j, size = same.find_longest_match()
    if size and len(word.lower()) == len(word) and len(lemma.lower()) == len(lemma):
        kept, wanted = word[i : i + size], lemma[j : j + size]
        for name, change in CASES.items():
            if change(kept) == wanted:
                return LemmaRule((i, len(word) - i - size), lemma[:j], lemma[j + size :], name)
    return LemmaRule(whole=lemma)


class LemmaGuesser:
    """The most probable lemma of a word with a tag.

    Of words and tags of the training text it is the most frequent one; of others, the most probable rule given the tag and the
    ending, smoothed from short endings to long ones, among those that fit:

        p(rule | tag, s_i) = (n(rule, tag, s_i) + theta p(rule | tag, s_{i-1})) / (n(tag, s_i) + theta)

    with s_i the last i letters in lower case, and counts of different words.

    Args:
        tokens: (word, tag, lemma) of all words that have a lemma.
        theta: weight of the shorter ending.

    Source: T. Brants (2000), TnT, section 2.3 (endings); Witten and Bell (1991) (the estimate).
    """

    def __init__(self, tokens: Iterable[tuple[str, str, str]], theta: float = 0.5):
        self.theta = theta
        seen = Counter(tokens)
        best: dict[tuple[str, str], Counter[str]] = {}
        for (word, tag, lemma), count in seen.items():
            best.setdefault((word, tag), Counter())[lemma] += count
        self.known = {key: _first(counts) for key, counts in best.items()}
        self._count_endings()

    def _count_endings(self) -> None:
        self._endings: dict[tuple[str, str], Counter[LemmaRule]] = {}
        for (word, tag), lemma in self.known.items():
            rule = lemma_rule(word, lemma)
            for ending in _endings(word):
                self._endings.setdefault((tag, ending), Counter())[rule] += 1

    def __call__(self, word: str, tag: str) -> str:
        """The lemma of a word with a tag; the word itself for a tag that was never seen."""
        found = self.known.get((word, tag))
        return self._guess(word, tag) if found is None else found

    def _guess(self, word: str, tag: str) -> str:
        probs: dict[LemmaRule, float] = {}
        for ending in _endings(word):
            counts = self._endings.get((tag, ending))
            if counts is None:
                break
            total = counts.total() + self.theta
            probs = {rule: self.theta * prob / total for rule, prob in probs.items()}
            for rule, count in counts.items():
                probs[rule] = probs.get(rule, 0.0) + count / total
        fitting = {rule: prob for rule, prob in probs.items() if rule.whole is None and rule(word) is not None}
        return word if not fitting else str(_first(fitting)(word))

    # ---------------------------------------------------------------- on disk
    def state(self) -> dict[str, Any]:
        """JSON-able, for :meth:`from_state`."""
        return {"theta": self.theta, "known": [[word, tag, lemma] for (word, tag), lemma in self.known.items()]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LemmaGuesser:
        """What :meth:`state` was called on."""
        return cls(((word, tag, lemma) for word, tag, lemma in state["known"]), state["theta"])


def _endings(word: str) -> Sequence[str]:
    """Of no letters, of one, ..., in lower case."""
    lower = word.lower()
    return [lower[len(lower) - n :] for n in range(min(MAX_SUFFIX, len(lower)) + 1)]


def _first(weights: Mapping[Any, float]) -> Any:
    """The one with the largest weight; of equals the first in order."""
    return min(weights, key=lambda key: (-weights[key], str(key)))
