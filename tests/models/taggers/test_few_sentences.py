"""Tags of a few sentences without a chain are those of the chain."""

import random

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq.data.columns import TaggedSentence
from pplseq.data.tag_formats import Word
from pplseq.distributions.dense import DenseTransition
from pplseq.kernels import compiled
from pplseq.models import Constraint, CRFTagger, HMMTagger, LatentTagger
from pplseq.models.taggers.columns import Columns
from pplseq.models.taggers.few_sentences import WordRows
from pplseq.models.taggers.tagger import load_tagger

pytestmark = pytest.mark.skipif(not compiled.available(), reason="without numba all sentences go by chains")

WORDS = ("the", "a", "dog", "cats", "Barks", "barks", "in", "New", "York", "B-52", "12", ".")
TAGS = ("B-X", "I-X", "O", "B-Y")
NEW = ([], ["the"], ["Unheard-of"], ["The", "the", "dogs", "12,5", "."], ["Ünïcödé", "日本語", "", "in", "NEW", "york"], [])


def text(seed, num_sentences=40):
    draw = random.Random(seed)
    found = []
    for _ in range(num_sentences):
        words, tags, before = [], [], "O"
        for _ in range(draw.randint(1, 9)):
            word = draw.choice(WORDS)
            allowed = [tag for tag in TAGS if not tag.startswith("I-") or before in ("B-X", "I-X")]
            before = allowed[(len(word) + draw.randint(0, 1)) % len(allowed)]
            words.append(Word(word, {1: word[-1:] or "?"}))
            tags.append(before)
        found.append(TaggedSentence(tuple(words), tuple(tags)))
    return found


TRAIN = text(0)
SENTENCES = [list(sentence.words) for sentence in text(1, 12)] + [[Word(w, {1: "e"}) for w in words] for words in NEW]
LISTS = {"clusters": {"dog": "0101", "cats": "0111", "in": "10"}, "gazetteers": {"places": ("New York", "York")}}
LEXICON = {"Unheard-of": ["B-X"], "york": ["O", "B-Y"], "Barks": ["I-X"]}
FITTED = {}


def crf(**options):
    return lambda: CRFTagger(**{"l2": 0.1, "max_iterations": 8, **options})


MAKERS = {
    "crf": crf(),
    "crf, float64": crf(dtype="float64"),
    "crf, all pairs, lists": crf(pairs="all", **LISTS),
    "crf, columns of words": crf(word_columns=(1,), min_count=2),
    "crf of spans": crf(spans="bio"),
    "crf, features of a lexicon": crf(lexicon=LEXICON, lexicon_limits=False),
    "hmm, trigrams": HMMTagger.tnt,
    "hmm, lexicon": lambda: HMMTagger(lexicon=LEXICON, lower_case=True),
    "hmm, enhanced": HMMTagger.enhanced,
    "hmm, bigrams": HMMTagger.bigram,
    "hmm, plain": HMMTagger.plain,
    "latent": lambda: LatentTagger(num_substates=4, max_iterations=3),
    "latent, lexicon": lambda: LatentTagger(num_substates=2, max_iterations=2, lexicon=LEXICON, lexicon_strength=2.0),
    "latent, one state": lambda: LatentTagger(num_substates=1, max_iterations=1),
}


@pytest.fixture(params=MAKERS)
def tagger(request):
    if request.param not in FITTED:
        FITTED[request.param] = MAKERS[request.param]().fit(TRAIN)
    return FITTED[request.param]


def no_few(monkeypatch, tagger):
    monkeypatch.setattr(type(tagger), "tag_few", lambda *_: None)


def test_tags_are_those_of_the_chain(tagger, monkeypatch):
    some = [words for words in SENTENCES if words]
    for batch in (*([words] for words in some), some):
        assert tagger.tag_few(batch, tagger.decoder) is not None
    few = [tagger.tag([words])[0] for words in SENTENCES], tagger.tag(SENTENCES)
    assert few[0] == few[1]
    with compiled.twins_only():
        assert tagger.tag(SENTENCES) == few[0]
    no_few(monkeypatch, tagger)
    assert tagger.tag(SENTENCES) == few[0] == [tagger.tag([words])[0] for words in SENTENCES]


def test_saved_taggers_go_the_same_way(tmp_path):
    for name in ("crf of spans", "hmm, trigrams", "latent"):
        tagger = FITTED.setdefault(name, MAKERS[name]().fit(TRAIN))
        loaded = load_tagger(tagger.save(tmp_path / tagger.name))
        assert loaded.tag_few(SENTENCES[:3], tagger.decoder) == tagger.tag_few(SENTENCES[:3], tagger.decoder)


@grid({"spans": [None, "bio"], "dtype": ["float32", "float64"]})
def test_ties_go_as_in_the_chain(dtype, spans, monkeypatch):
    """Weights that are few small whole numbers: many taggings are equally good."""
    tagger = CRFTagger(l2=1.0, max_iterations=1, dtype=dtype, spans=spans).fit(TRAIN)
    random_numbers = torch.Generator().manual_seed(0)
    for most in (1, 2):
        with torch.no_grad():
            for part in (tagger.weights.weights, tagger.weights.transition):
                part.copy_(torch.randint(most, part.shape, generator=random_numbers))
        few = [tagger.tag([words])[0] for words in SENTENCES]
        with monkeypatch.context() as patch:
            no_few(patch, tagger)
            assert few == tagger.tag(SENTENCES) == [tagger.tag([words])[0] for words in SENTENCES]


def test_ties_of_trigrams_go_as_in_the_chain(monkeypatch):
    for order in (1, 2):
        tagger = HMMTagger(order=order, smoothing="add", unknown="none").fit(
            [TaggedSentence(("a", "b"), tags) for tags in ("XY", "YX")] * 2 + [TaggedSentence(("a",), ("Z",))] * 2
        )
        sentences = [["a"], ["b"], ["new"], ["a", "b", "a", "b"], ["new", "a", "new", "b", "b", "new"]]
        few = [tagger.tag([words])[0] for words in sentences]
        with monkeypatch.context() as patch:
            no_few(patch, tagger)
            assert few == [tagger.tag([words])[0] for words in sentences]


def test_what_is_changed_is_noticed(monkeypatch):
    crf_tagger, latent = (MAKERS[name]().fit(TRAIN) for name in ("crf", "latent"))
    before = crf_tagger.tag(SENTENCES)
    with torch.no_grad():
        crf_tagger.weights.weights.neg_()
    changed = crf_tagger.tag(SENTENCES)
    first = latent.tag(SENTENCES)
    initial, matrix = latent.transition.initial, latent.transition.matrix
    latent.transition = DenseTransition(initial, matrix.flip(-1).roll(1, -1).log_softmax(-1))
    second = latent.tag(SENTENCES)
    latent.transition.matrix.numpy()[:] = matrix.numpy()  # which torch does not know of
    assert latent.tag(SENTENCES) == first != second and changed != before
    latent.transition.matrix.copy_(matrix.flip(-1).roll(1, -1).log_softmax(-1))
    for tagger, found in ((crf_tagger, changed), (latent, second)):
        no_few(monkeypatch, tagger)
        assert tagger.tag(SENTENCES) == found
    monkeypatch.undo()
    found = latent.fit(text(5)).tag(SENTENCES)
    assert found == LatentTagger(num_substates=4, max_iterations=3).fit(text(5)).tag(SENTENCES)


def test_a_tagger_with_ways_of_its_own_is_asked_for_its_chain():
    class Own(HMMTagger):
        def _word_log_prob(self, word):
            return np.zeros(len(self.tags))

    found = FITTED.setdefault("hmm, trigrams", HMMTagger.tnt().fit(TRAIN))
    some = SENTENCES[:2]
    assert Own().fit(TRAIN).tag_few(some, "viterbi") is None and found.tag_few(some, "posterior") is None
    own = HMMTagger.tnt().fit(TRAIN)
    vars(own)["word_log_probs"] = lambda types: torch.zeros(len(types), len(own.tags) + 1)
    assert own.tag_few(some, "viterbi") is None
    tagger = CRFTagger(l2=0.1, max_iterations=2).fit(TRAIN)
    assert tagger.tag_few(some, "viterbi") is not None and tagger.tag_few(some, "posterior") is None
    vars(tagger.weights)["scores"] = lambda data: torch.zeros(len(data.features), len(tagger.tags)).double()
    assert tagger.tag_few(some, "viterbi") is None and set(tagger.tag(some)[0]) <= set(tagger.tags)
    under = found.under(Constraint.containing("B-Y"))
    assert all("B-Y" in tags for words, tags in zip(SENTENCES[:12], under.tag(SENTENCES[:12]), strict=True))


def test_columns_go_by_the_chain():
    def columns(sentences):
        return Columns(np.ones((sum(map(len, sentences)), 2)))

    columns.num_columns, columns.sparse = 2, False
    tagger = CRFTagger(l2=0.1, max_iterations=2, columns=columns).fit(TRAIN)
    assert tagger.tag_few(SENTENCES[:2], "viterbi") is None and len(tagger.tag(SENTENCES[:2])[0]) == len(SENTENCES[0])


def test_mistakes_are_named_as_ever(tagger):
    for wrong in ("the dog", ["the dog"], [["the", 3]]):
        with pytest.raises(TypeError, match="words"):
            tagger.tag(wrong)
    assert tagger.tag([]) == [] and tagger.tag([[], ()]) == [(), ()]


def test_rows_of_words_are_remembered_up_to_a_number(monkeypatch):
    from pplseq.models.taggers import few_sentences

    monkeypatch.setattr(few_sentences, "KEPT_NUMBERS", 8)
    rows, asked = WordRows(), []

    def compute(words):
        asked.extend(words)
        return [np.full(3, float(word)) for word in words]

    for words in (["1", "2", "1"], ["2", "3"], ["1", "4"]):
        assert [row[0] for row in rows.of(words, compute)] == [float(word) for word in words]
    assert asked == ["1", "2", "3", "1", "4"]
