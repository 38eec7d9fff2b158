"""The simplest taggers: the most frequent tag of every word, and regular expressions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain as chained

from pplseq import checks
from pplseq.baselines.adapters import Adapter
from pplseq.data.columns import TaggedSentence

# (pattern, universal tag, Penn Treebank tag); the first pattern that a whole word matches decides
ENGLISH_RULES = (
    (r"[.!?]+", "PUNCT", "."),
    (r"[:;]|--+|\.\.+|…|–|—", "PUNCT", ":"),
    (r",", "PUNCT", ","),
    (r"[(\[{]|-L[RSC]B-", "PUNCT", "-LRB-"),
    (r"[)\]}]|-R[RSC]B-", "PUNCT", "-RRB-"),
    (r"``|“|‘", "PUNCT", "``"),
    (r"''|\"|”|’", "PUNCT", "''"),
    (r"-", "PUNCT", "HYPH"),
    (r"\$|€|£|US\$", "SYM", "$"),
    (r"[%&+=*/<>#@|~^]+|[:;=]-?[()DPp]", "SYM", "SYM"),
    (r"(https?://|www\.).*|\S+@\S+\.\S+", "X", "ADD"),
    (r"[-+]?[0-9][0-9.,:/-]*|(?i:one|two|three|four|five|six|seven|eight|nine|ten|hundred|thousand|million|billion)",
     "NUM", "CD"),
    (r"[0-9]+(st|nd|rd|th)", "ADJ", "JJ"),
    (r"(?i:the|a|an|this|that|these|those|every|each|some|any|no|another)", "DET", "DT"),
    (r"(?i:i|you|he|she|it|we|they|me|him|her|us|them|myself|yourself|himself|herself|itself|ourselves|themselves)",
     "PRON", "PRP"),
    (r"(?i:my|your|his|its|our|their)", "PRON", "PRP$"),
    (r"(?i:who|whom|what|whoever)", "PRON", "WP"),
    (r"(?i:which)", "PRON", "WDT"),
    (r"(?i:and|or|but|nor|&)", "CCONJ", "CC"),
    (r"(?i:to)", "PART", "TO"),
    (r"(?i:not|n't)", "PART", "RB"),
    (r"'s|'", "PART", "POS"),
    (r"(?i:will|would|can|could|shall|should|may|might|must|ca|wo|'ll|'d)", "AUX", "MD"),
    (r"(?i:is|'s|has|does)", "AUX", "VBZ"),
    (r"(?i:are|am|'re|'m|have|'ve|do)", "AUX", "VBP"),
    (r"(?i:was|were|had|did)", "AUX", "VBD"),
    (r"(?i:be)", "AUX", "VB"),
    (r"(?i:been)", "AUX", "VBN"),
    (r"(?i:because|if|while|although|since|whether|unless)", "SCONJ", "IN"),
    (r"(?i:of|in|for|on|with|at|from|by|about|as|into|through|after|over|between|out|against|during|without|before|under)",
     "ADP", "IN"),
    (r"(?i:where|when|how|why)", "ADV", "WRB"),
    (r"(?i:very|also|just|so|now|then|there|here|too|never|always|often|again|still|even)|[a-z]+ly", "ADV", "RB"),
    (r"(?i:oh|yes|yeah|hi|hello|please|thanks|wow)", "INTJ", "UH"),
    (r"[A-Z].*s", "PROPN", "NNPS"),
    (r"[A-Z].*", "PROPN", "NNP"),
    (r"[a-z-]+(able|ible|al|ful|ous|ive|less|ish|ic|ary)", "ADJ", "JJ"),
    (r"[a-z-]+ing", "VERB", "VBG"),
    (r"[a-z-]+ed", "VERB", "VBD"),
    (r"[a-z-]+(ness|ment|tion|sion|ity|ship|ism|ance|ence|er|or|ist)", "NOUN", "NN"),
    (r"[a-z-]+(ise|ize|ify|ate)", "VERB", "VB"),
    (r"[a-z-]+(s)", "NOUN", "NNS"),
)  # fmt: skip
UNKNOWN = ("all", "rare")


class MostFrequentTagger(Adapter):
    """Every word's most frequent tag in training; of equals the first in the alphabet.

    Args:
        unknown: what words that training has not get: "all", the most frequent tag of all, or "rare", that of words which
            occur once, whose tags those of new words are like.
        lower: look up the lower-cased word where the word itself is not known.
    """

    name = "most-frequent"
    needs_tags = False

    def __init__(self, unknown: str = "all", lower: bool = False):
        self.unknown, self.lower = checks.choice("unknown", unknown, UNKNOWN), bool(lower)
        self.tag_of: dict[str, str] = {}
        self.default = ""

    def _train(self, sentences, tags, progress):
        counts: dict[str, Counter] = {}
        for word, tag in _tokens(sentences):
            counts.setdefault(word, Counter())[tag] += tag is not None
        for found in counts.values():
            found.pop(None, None)
        self.tag_of = {word: _most_frequent(found) for word, found in counts.items() if found}
        rare = [found for found in counts.values() if found.total() == 1]
        among = rare if self.unknown == "rare" and rare else counts.values()
        self.default = _most_frequent(sum(among, Counter()))

    def _tag(self, sentences):
        return [[self._tag_of(word) for word in words] for words in sentences]

    def _tag_of(self, word: str) -> str:
        found = self.tag_of.get(word)
        if found is None and self.lower:
            found = self.tag_of.get(word.lower())
        return self.default if found is None else found

    def _pack(self):
        return {"default": self.default, "tag_of": self.tag_of}, {}

    def _unpack(self, config, tensors):
        self.default, self.tag_of = config["default"], config["tag_of"]


class RuleTagger(Adapter):
    """Regular expressions: the first one that matches a whole word gives its tag. Nothing is learned but a default.

    Args:
        rules: (pattern, tag), in order. None takes :data:`ENGLISH_RULES`, with universal or Penn Treebank tags, whichever the
            training text has more of.
        default: of words that no pattern matches; None takes the most frequent tag of such words in training.
    """

    name = "rules"
    needs_tags = False

    def __init__(self, rules: Sequence[tuple[str, str]] | None = None, default: str | None = None):
        self.rules = None if rules is None else _checked(rules)
        self.default = default
        self._rules: list[tuple[re.Pattern, str]] = []
        self._default = ""
        self._found: dict[str, str | None] = {}

    def _train(self, sentences, tags, progress):
        self._take(self.rules if self.rules is not None else english_rules(tags))
        tokens = [(word, tag) for word, tag in _tokens(sentences) if tag is not None]
        rest = Counter(tag for word, tag in tokens if self._match(word) is None)
        self._default = self.default or _most_frequent(rest or Counter(tag for _, tag in tokens))
        return tuple(sorted({*tags, self._default, *(tag for _, tag in self._rules)}))

    def _tag(self, sentences):
        return [[self._match(word) or self._default for word in words] for words in sentences]

    def _take(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = [(re.compile(pattern), tag) for pattern, tag in rules]
        self._found = {}

    def _match(self, word: str) -> str | None:
        if word not in self._found:
            self._found[word] = next((tag for pattern, tag in self._rules if pattern.fullmatch(word)), None)
        return self._found[word]

    def _pack(self):
        rules = [(pattern.pattern, tag) for pattern, tag in self._rules]
        return {"learned": {"rules": rules, "default": self._default}}, {}

    def _unpack(self, config, tensors):
        self._take(config["learned"]["rules"])
        self._default = config["learned"]["default"]


def english_rules(tags: Iterable[str]) -> list[tuple[str, str]]:
    """:data:`ENGLISH_RULES` with the tags of the set, universal or Penn Treebank, that holds more of `tags`."""
    tags = set(tags)
    universal = len(tags & {rule[1] for rule in ENGLISH_RULES})
    column = 1 if universal >= len(tags & {rule[2] for rule in ENGLISH_RULES}) else 2
    return [(rule[0], rule[column]) for rule in ENGLISH_RULES]


def _checked(rules: Iterable) -> list[tuple[str, str]]:
    checked = []
    for i, rule in enumerate(rules):
        if not isinstance(rule, (tuple, list)) or len(rule) != 2 or not all(isinstance(part, str) for part in rule):
            raise ValueError(f"rules: number {i} is {checks.shown(rule)}; expected a pattern and a tag, both strings")
        try:
            re.compile(rule[0])
        except re.error as error:
            raise ValueError(f"rules: the pattern {rule[0]!r} is no regular expression ({error})") from None
        checked.append((rule[0], rule[1]))
    return checked


def _tokens(sentences: Sequence[TaggedSentence]):
    return chained.from_iterable(zip(words, tags, strict=True) for words, tags in sentences)


def _most_frequent(counts: Counter) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))
