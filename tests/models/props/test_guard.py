"""A learned stream beside its first source as it is: what it can lose to it at most."""

import math

import numpy as np
import pytest

from pplseq.models import PROPSLearner
from pplseq.models.props.guard import SourceGuard


def slow(source, model, least, start, back):
    """The same in probabilities, one expert beside the other."""
    weight, values = max(start, least), []
    for a, b in zip(np.exp(source), np.exp(model), strict=True):
        values.append(math.log(weight * a + (1 - weight) * b))
        weight = max(least, (1 - back) * weight * a / (weight * a + (1 - weight) * b))
    return np.array(values), weight


@pytest.mark.parametrize("least, start, back", [(0.02, 0.9, 0.002), (0.3, 0.0, 0.0001), (0.001, 0.5, 0.2)])
def test_the_guard_is_its_formula(least, start, back):
    source, model = np.log(np.random.default_rng(0).beta(0.5, 5, (2, 300)))
    guard = SourceGuard(least, start=start, back=back)
    asked, told = zip(*((guard.mixed(a, b), guard.take(a, b)) for a, b in zip(source, model, strict=True)), strict=True)
    expected, weight = slow(source, model, least, start, back)
    np.testing.assert_allclose(told, expected, rtol=1e-9)
    assert asked == told and guard.weight == pytest.approx(weight, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_stretch_loses_more_than_was_promised(seed):
    """Models that are better and worse by turns; worst of all one that is sure of what does not come once it was heard."""
    random = np.random.default_rng(seed)
    good = random.random(600) < np.repeat(random.random(12), 50)
    source, model = np.full(600, math.log(0.1)), np.where(good, math.log(0.9), -80.0 if seed % 2 else math.log(0.01))
    if seed == 3:
        model = np.where(np.arange(600) < 300, 0.0, -math.inf)
    guard = SourceGuard(0.05, back=0.004)
    gains = np.array([guard.take(a, b) for a, b in zip(source, model, strict=True)]) - source
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    for size in (1, 7, 200, 600):
        assert (sums[size:] - sums[:-size]).min() >= -guard.bound(size) - 1e-9
    assert guard.bound(1) == pytest.approx(-math.log(0.05))
    if seed == 3:  # the promise is no larger than it has to be
        assert (sums[1:] - sums[:-1]).min() == pytest.approx(-guard.bound(1))
    assert sums.min() >= math.log(0.9) + 599 * math.log1p(-0.004)  # whatever came, from the beginning on


def words(size=200, seed=0):
    return np.random.default_rng(seed).choice(5, size, p=[0.6, 0.2, 0.1, 0.05, 0.05]).tolist()


def skewed(prefix):
    return np.array([0.05, 0.05, 0.1, 0.2, 0.6]) if len(prefix) % 3 else np.full(5, 0.2)


def test_a_learner_mixes_and_its_model_stays_as_it_is():
    """Filters and parameters are those without a guard; what is asked beforehand is what is said afterwards."""
    guarded, plain = (PROPSLearner([skewed], 5, seed=0, num_perturbations=1, guard=g) for g in (0.1, 0))
    by_hand, prefix = SourceGuard(0.1), []
    assert plain.guard is None and guarded.guard is not None
    for t, y in enumerate(words()):
        scores = [guarded.score_one(w) for w in range(5)]
        np.testing.assert_allclose(guarded.predict_proba_one(), np.exp(scores), rtol=1e-12)
        np.testing.assert_allclose(np.exp(scores).sum(), 1)
        missing = t % 17 == 5
        info, other = (learner.learn_one(-1 if missing else y) for learner in (guarded, plain))
        if missing:
            assert info.log_prob == 0 and by_hand.weight == guarded.guard.weight
            continue
        expected = by_hand.take(math.log(skewed(prefix)[y]), other.log_prob)
        assert info.log_prob == pytest.approx(expected, abs=1e-12) == pytest.approx(scores[y], abs=1e-12)
        assert info.anomaly == -info.log_prob and info.perturbation == other.perturbation
        np.testing.assert_array_equal(info.filter, other.filter)
        prefix.append(y)
    np.testing.assert_array_equal(guarded.state.emission(), plain.state.emission())


def test_the_weight_is_put_back_saved_and_scored_with(tmp_path):
    learner = PROPSLearner([skewed], 5, seed=0)
    learner.learn_many(words(60))
    weight = learner.guard.weight
    back = learner.mark()
    learner.learn_one(4)
    assert learner.guard.weight != weight
    back()
    assert learner.guard.weight == weight
    score = learner.score([words(9), words(5)])
    assert learner.guard.weight == weight and learner.score([words(9), words(5)]) == score
    again = PROPSLearner.load(learner.save(tmp_path / "learner"), [skewed])
    assert again.guard.state_dict() == learner.guard.state_dict()
    assert [again.learn_one(y).log_prob for y in words(30, 1)] == [learner.learn_one(y).log_prob for y in words(30, 1)]
    none = PROPSLearner.load(PROPSLearner([skewed], 5, guard=0).save(tmp_path / "none"), [skewed])
    assert none.guard is None


def test_vectors_are_mixed_too():
    class Here:
        def predict(self):
            import torch

            return torch.distributions.Independent(torch.distributions.Normal(torch.full((2,), 3.0).double(), 1.0), 1)

        def observe(self, y):
            pass

        def reset(self):
            pass

    learner = PROPSLearner([Here()], num_features=2, seed=0, guard=0.1)
    random = np.random.default_rng(0)
    for y in random.normal(1, 1, (50, 2)):
        expected = learner.score_one(y)
        assert learner.learn_one(y).log_prob == pytest.approx(expected)
    weight, prior = learner.guard.weight, learner.state.predicted_states(False)
    model = prior[0] * np.full(2, 3.0) + prior[1:] @ learner.state.loc
    np.testing.assert_allclose(learner.predict_one(), weight * 3.0 + (1 - weight) * model)


def test_who_says_where_a_stream_begins_is_not_overruled():
    assert PROPSLearner([skewed], 5).guard.weight == 0.9
    assert PROPSLearner([skewed], 5, num_perturbations=1, initial=[0.5, 0.5], guard=0.04).guard.weight == 0.04
    assert PROPSLearner([], 5).guard is None  # nothing to keep to
    for wrong in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"guard must lie in \[0, 1\)"):
            PROPSLearner([skewed], 5, guard=wrong)
    with pytest.raises(ValueError, match=r"back must lie in \(0, 1\)"):
        SourceGuard(back=0.0)
    with pytest.raises(ValueError, match="num_tokens"):
        SourceGuard().bound(0)


def test_where_there_is_no_source_a_guard_is_refused():
    assert PROPSLearner([], 5).guard is None and PROPSLearner([], 5, guard=0).guard is None
    with pytest.raises(ValueError, match="guard: it is the least weight of the first source, and there is none.*got 0.5"):
        PROPSLearner([], 5, guard=0.5)
    for wrong in (-0.1, 1.0):
        with pytest.raises(ValueError, match="guard"):
            PROPSLearner([], 5, guard=wrong)
