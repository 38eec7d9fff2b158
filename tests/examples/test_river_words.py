"""A personal model among river's estimators."""

import numpy as np
import pytest

from pplseq.data import Vocabulary
from pplseq.models import PROPSLearner
from pplseq.sources import UnigramCache

pytestmark = pytest.mark.slow  # no part of the library


def test_a_classifier_of_the_next_word():
    river = pytest.importorskip("river")
    from river import drift, evaluate, metrics
    from river_words import RiverWordClassifier

    words = Vocabulary(("a", "b", "c"))
    model = RiverWordClassifier(PROPSLearner([UnigramCache(3)], 3, num_perturbations=1, seed=0), words)
    stream = [({}, "aab"[t % 3]) for t in range(200)]
    metric = evaluate.progressive_val_score(stream, model, metrics.Accuracy())
    assert metric.get() > 0.6 and model.learner.num_steps == 200
    probs = model.predict_proba_one({})
    assert set(probs) == set(words.words) and sum(probs.values()) == pytest.approx(1.0)
    assert model.predict_one({}) == max(probs, key=probs.get)
    assert isinstance(model, river.base.Classifier) and model._multiclass
    learner = PROPSLearner([], 3, num_perturbations=1, seed=0, drift=drift.PageHinkley(threshold=20.0))
    for y in np.random.default_rng(0).integers(3, size=50).tolist():
        learner.learn_one(y)
    with pytest.raises(TypeError, match="has vectors"):
        RiverWordClassifier(PROPSLearner([], num_features=2))
