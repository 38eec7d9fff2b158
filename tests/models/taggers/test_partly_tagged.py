"""EM on partly tagged text is checked on held-out sentences, and says what it found."""

import itertools

import pytest
import torch
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.dictionary import DictionaryTagger
from pplseq.models.taggers.substates import partly_tagged
from pplseq.models.taggers.substates.partly_tagged import PartlyTaggedTagger

TRAIN, TEST = tagged_sentences(60), tagged_sentences(40, seed=1)
WORDS = [sentence.words for sentence in TEST]


def without_tags(sentences):
    return [TaggedSentence(words, (None,) * len(words)) for words, _ in sentences]


def told(monkeypatch, alone, counted, both):
    """What held-out sentences tell, part by part."""
    right = itertools.cycle([alone, counted, both])
    monkeypatch.setattr(partly_tagged, "num_right", lambda tagger, sentences: next(right))


@pytest.mark.parametrize("validation", [None, TRAIN[40:]])
def test_harmful_sentences_are_not_used(monkeypatch, validation):
    told(monkeypatch, 9, 8, 5)
    few = TRAIN[:6]
    with pytest.warns(RuntimeWarning, match="lack tags are not used: with them .* words of held-out") as said:
        found = PartlyTaggedTagger().fit(few + without_tags(TRAIN[6:]), validation)
    assert len(said) == 1 and found.tag(WORDS) == DictionaryTagger.semi_supervised().fit(few).tag(WORDS)
    assert found.get_params()["num_folds"] == 3


def test_helpful_sentences_are_used_and_a_better_system_is_named(monkeypatch):
    few, rest = TRAIN[:6], without_tags(TRAIN[6:])
    told(monkeypatch, 1, 9, 5)
    with pytest.warns(RuntimeWarning, match="counts the sentences with all tags is better: 27 words .* 15 with this") as said:
        found = PartlyTaggedTagger().fit(few + rest)
    assert len(said) == 1 and found.tag(WORDS) == DictionaryTagger.semi_supervised().fit(few + rest).tag(WORDS)


def test_without_whole_sentences_it_says_that_nothing_was_checked():
    partly = [TaggedSentence(words, (*tags[:-1], None)) for words, tags in TRAIN]
    for text in (partly, [TRAIN[0], *partly]):
        with pytest.warns(RuntimeWarning, match="too few sentences have all tags to check"):
            PartlyTaggedTagger().fit(text)
    PartlyTaggedTagger(num_folds=0).fit(partly)
    PartlyTaggedTagger().fit(TRAIN)
    with pytest.raises(ValueError, match="num_folds"):
        PartlyTaggedTagger(num_folds=1)


def test_resumed_behind_its_check_it_is_the_same(tmp_path, monkeypatch):
    told(monkeypatch, 9, 8, 5)
    text = TRAIN[:6] + without_tags(TRAIN[6:])

    def learn(stop):
        tagger = PartlyTaggedTagger(max_iterations=3)
        run = tagger.training(text)
        run.begin()
        for number in itertools.count():
            if number == stop or run.ended():
                (tensors, state), ended = run.learned(), run.ended()
                run = tagger.training(text)
                run.relearn(tensors, state)
                if ended:
                    break
                run.begin()
            run.iterate()
        run.publish()
        return tagger

    first, again = learn(-1), learn(2)
    torch.testing.assert_close(first.hmm.emission, again.hmm.emission, rtol=0, atol=0)
    loaded = type(first).load(first.save(tmp_path / "tagger"))
    assert loaded.tag(WORDS) == first.tag(WORDS) and loaded.get_params() == first.get_params()
