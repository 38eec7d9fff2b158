"""A small tagged language for tests of taggers: ambiguous words, endings that tell, capitals."""

import numpy as np

from pplseq.data.columns import TaggedSentence

WORDS = {
    "DET": ["the", "a", "The"],
    "ADJ": ["old", "green", "small", "careful"],
    "NOUN": ["dog", "walk", "house", "station", "nation", "dogs"],
    "VERB": ["walk", "sees", "barks", "walked", "jumped"],
    "PUNCT": [".", "!"],
}
NEXT = {
    None: {"DET": 0.7, "NOUN": 0.3},
    "DET": {"ADJ": 0.4, "NOUN": 0.6},
    "ADJ": {"ADJ": 0.2, "NOUN": 0.8},
    "NOUN": {"VERB": 0.8, "PUNCT": 0.2},
    "VERB": {"DET": 0.5, "PUNCT": 0.5},
}


def tagged_sentences(number: int = 120, seed: int = 0) -> list[TaggedSentence]:
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(number):
        words, tags, tag = [], [], None
        while tag != "PUNCT":
            tag = str(rng.choice(list(NEXT[tag]), p=list(NEXT[tag].values())))
            words.append(str(rng.choice(WORDS[tag])))
            tags.append(tag)
        sentences.append(TaggedSentence(tuple(words), tuple(tags)))
    return sentences
