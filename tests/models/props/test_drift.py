"""Streams that become other ones: a detector of surprise moves the step size back."""

import numpy as np
import pytest

from pplseq.models import PROPSLearner
from pplseq.models.props.drift import SurpriseDetector, detector_from


def shifted(num_words=30, size=1500, seed=0):
    """Words of two distributions, one after the other."""
    random = np.random.default_rng(seed)
    first, second = random.dirichlet(np.full(num_words, 0.1), 2)
    return np.r_[random.choice(num_words, size, p=first), random.choice(num_words, size, p=second)].tolist()


def test_the_detector_is_its_formula():
    random = np.random.default_rng(0)
    values = np.r_[random.gamma(2.0, size=300), random.gamma(2.0, size=60) + 3]
    detector, total, alarm = SurpriseDetector(threshold=15.0, slack=0.5, warm_up=40), 0.0, None
    for t, x in enumerate(values):
        detector.update(float(x))
        if t >= 40:
            past = values[:t]
            total = max(0.0, total + min((x - past.mean()) / past.std(ddof=1), 3.0) - 0.5)
        if total > 15.0:
            alarm = t
            break
        assert detector.total == pytest.approx(total) and not detector.drift_detected
    assert alarm is not None and 300 < alarm < 330 and detector.drift_detected and detector.count == 0
    detector.update(1.0)
    assert not detector.drift_detected


def test_a_detector_is_put_back_and_saved_with_its_arguments(tmp_path):
    words = shifted(size=150)
    learner = PROPSLearner(num_words=30, drift=SurpriseDetector(threshold=5.0, slack=0.5, warm_up=20), seed=0)
    learner.learn_many(words[:200])
    back, before = learner.mark(), learner.detector.state_dict()
    infos = [learner.learn_one(y).log_prob for y in words[200:260]]
    assert learner.detector.state_dict() != before and back is not None
    back()
    assert learner.detector.state_dict() == before
    assert [learner.learn_one(y).log_prob for y in words[200:260]] == infos
    loaded = PROPSLearner.load(learner.save(tmp_path / "learner"))
    assert loaded.detector.state_dict() == learner.detector.state_dict() and loaded.detector.threshold == 5.0


def test_false_alarms_are_rare():
    random, alarms = np.random.default_rng(1), 0
    detector = SurpriseDetector()
    for x in random.exponential(size=50_000).tolist():
        alarms += detector.update(x).drift_detected
    assert alarms <= 2


def test_a_stream_that_shifts_is_learned_anew():
    """As good as the falling step before the shift; behind it better than that, and than a constant one before it."""
    words, scores = shifted(), {}
    for name, options in {"falling": {}, "drift": {"drift": True}, "constant": {"step_size": 0.01}}.items():
        learner = PROPSLearner([], 30, num_perturbations=1, seed=0, **{"exponent": 0.8} | options)
        values = np.array([learner.learn_one(y).log_prob for y in words])
        scores[name] = values[:1500].mean(), values[1500:2500].mean()
    assert scores["drift"][0] == scores["falling"][0] > scores["constant"][0]
    assert scores["drift"][1] > scores["falling"][1] + 0.1
    assert learner.detector is None


def test_it_is_saved_and_told_what_it_needs(tmp_path):
    words = shifted(size=60)
    learner = PROPSLearner([], 30, num_perturbations=1, seed=0, drift=True)
    for y in words[:90]:
        learner.learn_one(y)
    again = PROPSLearner.load(learner.save(tmp_path / "state"))
    assert again.detector.state_dict() == learner.detector.state_dict() and again.state.clock == learner.state.clock
    assert [again.learn_one(y).log_prob for y in words[90:]] == [learner.learn_one(y).log_prob for y in words[90:]]
    learner.state.forget(7)
    assert learner.state.clock == 7 and learner.num_steps == 120

    class Told:
        drift_detected, heard = False, ()

        def update(self, x):
            self.heard = (*self.heard, x)
            self.drift_detected = len(self.heard) == 110

    own = PROPSLearner([], 30, num_perturbations=1, seed=0, drift=Told())
    infos = [own.learn_one(y) for y in [*words[:109], -1, words[109]]]
    assert own.detector.heard == tuple(-info.log_prob for info in infos if info.log_prob != 0.0)
    assert own.state.clock == 100 and own.num_steps == 111
    beside = PROPSLearner([lambda prefix: np.full(30, 1 / 30)], 30, seed=0, guard=0, drift=Told())
    infos = [beside.learn_one(y) for y in words[:50]]  # surprise beyond the source's
    np.testing.assert_allclose(beside.detector.heard, [-np.log(30) - info.log_prob for info in infos], atol=1e-12)
    never = PROPSLearner([lambda prefix: np.eye(30)[3]], 30, seed=0, drift=Told())
    assert np.isfinite([never.learn_one(y).log_prob for y in (4, 5)]).all() and never.detector.heard == ()
    with pytest.warns(UserWarning, match="detector of your own is not saved"):
        own.save(tmp_path / "own")
    with pytest.raises(TypeError, match="drift must be True"):
        PROPSLearner([], 5, drift="adwin")
    for options in ({"step_size": 0.1}, {"averaging": "recent"}):
        with pytest.raises(ValueError, match=f"drift: .*{next(iter(options))}"):
            PROPSLearner([], 5, drift=True, **options)
    with pytest.raises(ValueError, match="finite"):
        SurpriseDetector().update(np.inf)


@pytest.mark.parametrize("share", [0.01, 0.03])
def test_words_that_the_source_excludes_do_not_deafen_it(share):
    """Whether it says never (and is left out), or all but never."""
    random, words = np.random.default_rng(0), shifted(num_words=29, size=1500)
    stream = [29 if random.random() < share else y for y in words]
    for least in (0.0, np.exp(-80.0)):
        said = np.r_[np.full(29, (1 - least) / 29), least]
        learner = PROPSLearner([lambda prefix, said=said: said], 30, num_perturbations=1, exponent=0.8, seed=0, drift=True)
        alarms = [t for t, y in enumerate(stream) if learner.learn_one(y) and learner.detector.drift_detected]
        assert len(alarms) == 1 and 1500 < alarms[0] < 1800, alarms


def test_a_detector_that_heard_something_else_begins_anew(tmp_path):
    uniform = lambda prefix: np.full(30, 1 / 30)  # noqa: E731
    learner = PROPSLearner([uniform], 30, seed=0, drift=True)
    learner.learn_many(shifted(size=60))
    saved = learner.detector.state_dict()
    again = PROPSLearner.load(learner.save(tmp_path / "new"), [uniform])
    assert again.detector.state_dict() == saved
    for old in (saved, {"count": 3, "mean": 1.0, "squares": 1.0, "total": 0.0}):
        with pytest.warns(UserWarning, match="drift: the detector that was saved heard the surprise itself"):
            assert detector_from(old, True).count == 0
    assert detector_from(saved, False).state_dict() == saved
