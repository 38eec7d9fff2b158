"""Latent taggers that learn from text without tags: guesses given known tags, the check that they help, stop and resume."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.latent import LatentTagger
from pplseq.models.taggers.substates import self_training
from pplseq.models.taggers.substates.self_training import SelfTrainedTagger

TRAIN, TEST = tagged_sentences(60), tagged_sentences(40, seed=1)
SMALL = {"num_substates": 2, "max_iterations": 3}


def without_tags(sentences):
    return [TaggedSentence(words, (None,) * len(words)) for words, _ in sentences]


def accuracy(tagger):
    pairs = zip(tagger.tag([s.words for s in TEST]), TEST, strict=True)
    return np.mean([a == b for tags, gold in pairs for a, b in zip(tags, gold.tags, strict=True)])


@pytest.mark.parametrize("known", [(None, None, None), ("DET", None, None), (None, "VERB", None), (None, None, "PUNCT")])
def test_guesses_are_those_of_all_taggings_one_by_one(known):
    tagger = LatentTagger(num_substates=4, max_iterations=4).fit(TRAIN)
    words = ("the", "walk", "walked")
    total = {}
    for tags, log_prob in tagger.n_best(words, len(tagger.tags) ** 3):
        if all(given in (None, tag) for given, tag in zip(known, tags, strict=True)):
            for place in enumerate(tags):
                total[place] = total.get(place, 0.0) + np.exp(log_prob)
    best = tuple(max(tagger.tags, key=lambda tag: total.get((t, tag), 0.0)) for t in range(3))
    sentence = TaggedSentence(words, known)
    assert tagger.fill_tags([TRAIN[0], sentence, TaggedSentence((), ())]) == [
        TRAIN[0], TaggedSentence(words, best), TaggedSentence((), ()),
    ]  # fmt: skip
    # p(words, known tags) = p(words) p(known tags | words)
    share = sum(value for (t, _), value in total.items() if t == 0)
    log_prob = float(tagger.chain_given([sentence]).log_prob())
    np.testing.assert_allclose(log_prob, tagger.log_prob([words])[0] + np.log(share), atol=1e-9)
    with pytest.raises(ValueError, match="number 0 has the tag 'X'; expected None or one of: ADJ"):
        tagger.fill_tags([TaggedSentence(("the",), ("X",))])


def test_text_without_tags_helps():
    few, rest = TRAIN[:4], without_tags(TRAIN[4:] + tagged_sentences(100, seed=5))
    alone = LatentTagger(**SMALL).fit(few)
    both = SelfTrainedTagger(**SMALL).fit(few + rest)
    assert accuracy(both) > accuracy(alone) + 0.02
    assert both.known_words > alone.known_words and both.get_params()["num_folds"] == 3
    again = SelfTrainedTagger(**SMALL).fit(few + rest, validation=TRAIN[40:])  # two trainings instead of eight
    assert accuracy(again) == accuracy(both)


@pytest.mark.parametrize("validation", [None, TRAIN[40:]])
def test_harmful_guesses_are_not_used(monkeypatch, validation):
    turn = dict(zip("DET ADJ NOUN VERB PUNCT".split(), "ADJ NOUN VERB PUNCT DET".split(), strict=True))
    honest = self_training.filled

    def lies(lacking, source):
        return [TaggedSentence(words, tuple(map(turn.get, tags))) for words, tags in honest(lacking, source)]

    monkeypatch.setattr(self_training, "filled", lies)
    few = TRAIN[:10]
    with pytest.warns(RuntimeWarning, match="lack tags are not used: with them .* words of held-out sentences"):
        tagger = SelfTrainedTagger(**SMALL).fit(few + without_tags(TRAIN[10:]), validation)
    alone = LatentTagger(**SMALL).fit(few)
    torch.testing.assert_close(tagger.transition.matrix, alone.transition.matrix, rtol=0, atol=0)
    assert tagger.tag([s.words for s in TEST]) == alone.tag([s.words for s in TEST])


def test_a_sentence_or_none_with_all_tags():
    partly = [TaggedSentence(words, (*tags[:-1], None)) for words, tags in TRAIN]
    for text in (partly, [TRAIN[0], *partly]):
        with pytest.warns(RuntimeWarning, match="too few sentences have all tags"):
            tagger = SelfTrainedTagger(**SMALL).fit(text)
        assert set(tagger.tags) == {tag for s in text for tag in s.tags} - {None} and accuracy(tagger) > 0.7
    with pytest.raises(ValueError, match="not one word has a tag"):
        SelfTrainedTagger(**SMALL).fit(without_tags(TRAIN))
    with pytest.raises(ValueError, match="num_folds"):
        SelfTrainedTagger(num_folds=1)


def test_known_tags_are_kept_and_full_text_is_learned_as_ever():
    sentence = TaggedSentence(("the", "new", "dog"), ("DET", None, "STRANGE"))
    found = self_training.filled([sentence], LatentTagger(**SMALL).fit(TRAIN))
    assert found[0].tags[0] == "DET" and found[0].tags[1] in ("ADJ", "NOUN") and found[0].tags[2] == "STRANGE"
    whole, plain = SelfTrainedTagger(**SMALL).fit(TRAIN), LatentTagger(**SMALL).fit(TRAIN)
    torch.testing.assert_close(whole.transition.matrix, plain.transition.matrix, rtol=0, atol=0)


def test_stopped_anywhere_it_is_resumed_to_the_same_numbers():
    text = TRAIN[:9] + without_tags(TRAIN[9:30])

    def learn(*stops):
        tagger = SelfTrainedTagger(num_substates=2, max_iterations=2, num_folds=2)
        run = tagger.training(text)
        for number in itertools.count():
            if run.ended():
                break
            if number in stops:
                tensors, state = run.learned()
                run = tagger.training(text)
                run.relearn(tensors, state)
            run.iterate()
        tensors, state = run.learned()  # after its end too
        run = tagger.training(text)
        run.relearn(tensors, state)
        assert run.ended() == "finished"
        run.publish()
        return tagger, number

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (whole, steps), (stopped, _) = learn(), learn(1, 3, 5, 6, 9, 11)
    assert steps == 12
    torch.testing.assert_close(stopped.transition.matrix, whole.transition.matrix, rtol=0, atol=0)
