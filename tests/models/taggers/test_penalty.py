"""The penalty of taggers with features, chosen on held-out sentences; stop and resume."""

import numpy as np
import pytest
import torch
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.models import CRFTagger, MEMMTagger
from pplseq.models.taggers import penalty
from pplseq.models.taggers.tagger import load_tagger

TEXT, DEV = tagged_sentences(12), tagged_sentences(6, seed=3)
TEMPLATES = ("word[0]", "suffix2[0]")


def right(tagger, sentences):
    pairs = zip(tagger.tag([s.words for s in sentences]), sentences, strict=True)
    return sum(a == b for tags, gold in pairs for a, b in zip(tags, gold.tags, strict=True))


@pytest.mark.parametrize("kind", [CRFTagger, MEMMTagger])
def test_the_penalty_is_that_of_most_right_tags(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(penalty, "PENALTIES", (30.0, 3.0, 0.3))
    tagger = kind(TEMPLATES, dtype="float64").fit(TEXT, DEV)
    each = {}
    for l2 in penalty.PENALTIES:
        each[l2] = right(kind(TEMPLATES, l2=l2, dtype="float64").fit(TEXT), DEV)
    assert each[tagger.l2] == max(each.values()) > each[30.0]
    # the weights are those of a training with this penalty alone
    alone = kind(TEMPLATES, l2=tagger.l2, dtype="float64").fit(TEXT)
    assert tagger.history[-1] == pytest.approx(alone.history[-1], rel=1e-3)
    loaded = load_tagger(tagger.save(tmp_path / "tagger"))
    assert loaded.l2 == tagger.l2 and loaded.settings.l2 is None and loaded.get_params()["l2"] is None


def test_where_there_is_no_other_text_a_tenth_is_held_out(monkeypatch):
    few = CRFTagger(TEMPLATES, max_iterations=5).fit(TEXT)
    assert few.l2 == penalty.PENALTIES[0]
    monkeypatch.setattr(penalty, "FEW", 10)
    training = CRFTagger(TEMPLATES, max_iterations=5).training(TEXT)
    assert training.held_out == [TEXT[9]] and training.part.num_sentences == 11 and training.data.num_sentences == 12
    # of a longer text every second sentence, or third, ... is tried on, and all are learned from in the end
    with monkeypatch.context() as shorter:
        shorter.setattr(penalty, "ENOUGH", int(training.part.lengths.sum()) - 1)
        thinned = CRFTagger(TEMPLATES, period=5).training(TEXT)
    assert thinned.part.num_sentences == 6 and thinned.data.num_sentences == 12
    while not thinned.ended():
        thinned.iterate()
    assert len(thinned.right) == len(penalty.PENALTIES) and thinned.search.data is thinned.data
    assert thinned.tagger.l2 == penalty.PENALTIES[np.argmax(thinned.right)]
    given = CRFTagger(TEMPLATES, max_iterations=5, l2=0.7).training(TEXT, DEV)
    assert given.penalties == [0.7] and given.final
    # tags that training lacks are simply wrong
    strange = [TaggedSentence(("the", "dog"), ("DET", "NEW"))]
    assert CRFTagger(TEMPLATES, max_iterations=5).fit(TEXT, strange).l2 in penalty.PENALTIES
    with pytest.raises(ValueError, match="l2: expected 0 or more, got -1.0; None chooses it"):
        CRFTagger(l2=-1.0)


@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
def test_stopped_anywhere_it_is_resumed_to_the_same_numbers(method):
    def learn(*stops):
        tagger = CRFTagger(TEMPLATES, method=method, period=4, max_iterations=12, epochs=4, dtype="float64")
        run, steps = tagger.training(TEXT, DEV), 0
        while not run.ended():
            if steps in stops:
                tensors, state = run.learned()
                tensors = {name: value.clone() for name, value in tensors.items()}
                run = tagger.training(TEXT, DEV)
                run.relearn(tensors, state)
            run.iterate()
            steps += 1
        return tagger, steps

    (whole, steps), (stopped, again) = learn(), learn(1, 2, 4, 6, 7)
    assert steps == again > 4 and whole.l2 == stopped.l2
    np.testing.assert_allclose(stopped.weights.weights.detach(), whole.weights.weights.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(stopped.weights.transition, whole.weights.transition)
