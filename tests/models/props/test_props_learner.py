"""PROPS on a stream: sources predict before they observe; folders, interruption, merging."""


import tracemalloc

import numpy as np
import pytest
import torch
from support.grids import grid
from support.stored import rewrite, rewrite_tensors

from pplseq.models import PROPS, PROPSLearner, StreamingHMM
from pplseq.models.props.queries import log_likelihood_ratio
from pplseq.models.props.storage import load_stream, merge_streams, save_stream
from pplseq.sources import UnigramCache


class Bigram:
    """A source with a state: it favours the word behind the last one."""

    num_words = 7

    def __init__(self, weight=0.7):
        self.weight, self.last, self.calls = weight, None, []

    def predict(self):
        self.calls.append("predict")
        probs = np.full(7, 1 / 7)
        if self.last is not None:
            probs = (1 - self.weight) * probs
            probs[(self.last + 1) % 7] += self.weight
        return probs

    def observe(self, y):
        self.calls.append(y)
        self.last = y

    def reset(self):
        self.last = None

    def state_dict(self):
        return {"last": self.last, "weights": np.array([self.weight]), "nested": [{"tensor": torch.tensor([2])}]}

    def load_state_dict(self, state):
        assert state["nested"][0]["tensor"].tolist() == [2]
        self.last, self.weight = state["last"], float(state["weights"][0])


def uniform(prefix):
    return np.full(7, 1 / 7)


def words(num, seed=0):
    """A stream that goes up by one, but for personal words 0 and 1."""
    random = np.random.default_rng(seed)
    stream, last = [], 0
    for _ in range(num):
        last = int(random.integers(2)) if random.random() < 0.4 else (last + 1) % 7
        stream.append(last)
    return stream


def test_sources_predict_before_they_observe():
    source, stream = Bigram(), words(30)
    learner = PROPSLearner([source], 7, seed=0)
    for t, y in enumerate(stream):
        if t % 3 == 0:  # asking costs no second prediction
            assert abs(learner.predict_proba_one().sum() - 1) < 1e-9
            assert abs(np.exp(learner.score_one(y)) - learner.predict_proba_one()[y]) < 1e-12
            assert learner.predict_one() == learner.predict_proba_one().argmax()
        learner.learn_one(y)
    assert source.calls == [call for y in stream for call in ("predict", y)]


def test_what_is_no_source_is_refused_before_anything_is_learned():
    class Deaf:
        predict = staticmethod(lambda: np.full(7, 1 / 7))
        reset = staticmethod(lambda: None)

    source = Bigram()
    for sources, error, message in (
        (source, TypeError, r"sources must be a list, got Bigram; write \[source\]"),
        ([uniform, object()], TypeError, r"source 1 \(object\) has no observe\(\)"),
        ([Deaf()], TypeError, r"source 0 \(Deaf\) has no observe\(\)"),
        ([source, uniform, source], ValueError, r"source 2 \(Bigram\) is there twice"),
    ):
        with pytest.raises(error, match=message):
            PROPSLearner(sources, 7)
    with pytest.raises(TypeError, match="source 0 is a function, which can only be one of words"):
        PROPSLearner([uniform], num_features=2)


@pytest.mark.parametrize("unknown_id", [7, -1, 1.5, True, "the"])
def test_the_unknown_word_is_a_word(unknown_id):
    with pytest.raises(ValueError, match=r"unknown_id must be a word id in 0\.\.6, or None; got"):
        PROPSLearner([], 7, unknown_id=unknown_id)


@pytest.mark.parametrize("y", [1.0, np.float32(1), np.array(1.5), torch.tensor(1.5), True, "the", None, [1]], ids=repr)
@pytest.mark.parametrize("unknown_id", [None, 0])
def test_only_whole_numbers_are_words(y, unknown_id):
    learner = PROPSLearner([], 7, unknown_id=unknown_id, seed=0)
    with pytest.raises(TypeError, match="y must be a word id"):
        learner.learn_one(y)
    for number in (np.int8(3), torch.tensor(3), np.array(3)):
        learner.learn_one(number)
    assert learner.num_steps == 3


def test_sources_that_cannot_be_saved_are_told(tmp_path):
    class Silent:
        predict, observe, reset = Bigram.predict, Bigram.observe, Bigram.reset

        def __init__(self):
            self.weight, self.last, self.calls = 0.7, None, []

    learner = PROPSLearner([Silent(), Bigram()], 7, seed=0)
    learner.learn_many(words(30))
    with pytest.warns(UserWarning, match=r"source 0 \(Silent\) has no state_dict\(\) and is not saved"):
        folder = learner.save(tmp_path / "state")
    loaded = PROPSLearner.load(folder, [learner.sources[0], Bigram()])
    assert loaded.score_one(3) == learner.score_one(3)
    with pytest.raises(TypeError, match=r"source 1 \(Silent\) has no load_state_dict"):
        PROPSLearner.load(folder, [Bigram(), Silent()])
    with pytest.raises(ValueError, match=r"source 1 \(cache\) does not know the state"):
        PROPSLearner.load(folder, [Silent(), UnigramCache(7)])
    rewrite(folder, without=("sources",))
    with pytest.raises(ValueError, match="sources missing in config.json; the file is damaged"):
        PROPSLearner.load(folder, [Silent(), Bigram()])


def test_the_learner_is_the_stream():
    stream, source = words(100), Bigram()
    learner = PROPSLearner([Bigram(), uniform], 7, seed=3, exponent=0.8, guard=0)
    state = PROPS(7, num_sources=2, seed=3).start(exponent=0.8)
    for t, y in enumerate(stream):
        if t == 50:
            learner.new_sequence(), state.new_sequence(), source.reset()
        expected = state.step(y, [np.log(source.predict()[y]), -np.log(7)])
        source.observe(y)
        info = learner.learn_one(y)
        assert abs(info.log_prob - expected.log_prob) < 1e-12
    assert learner.num_steps == 100 and learner.num_sources == 2


def test_it_learns_what_the_source_does_not_know():
    stream = words(1500)
    source = Bigram(0.9)
    learner = PROPSLearner([Bigram(0.9)], 7, seed=0, num_perturbations=1)
    gain = log_likelihood_ratio(learner, source, stream)
    assert gain[500:].mean() > 0.3
    assert learner.state.emission()[0, :2].sum() > 0.8
    personal = [learner.learn_one(0).perturbation for _ in range(3)]
    assert min(personal[1:]) > 0.9  # 0 never follows 0 by the source
    learner.learn_one(1)
    assert learner.learn_one(2).log_odds < 0


def test_a_source_that_is_shifted_by_one_helps_less():
    stream = words(600)

    class Late(Bigram):
        """Predicts from the token before the last one."""

        def observe(self, y):
            self.last, self.next = getattr(self, "next", None), y

    totals = [sum(i.log_prob for i in PROPSLearner([s], 7, seed=0).learn_many(stream)) for s in (Bigram(), Late())]
    assert totals[0] > totals[1] + 50


def test_unknown_and_missing_tokens():
    learner = PROPSLearner([Bigram()], 7, unknown_id=6, seed=0)
    learner.learn_many(words(50))
    assert learner.score_one(99) == learner.score_one(6)
    learner.learn_one(99)
    assert learner.sources[0].last == 6
    before = learner.sources[0].calls.copy()
    assert learner.learn_one(-1).log_prob == 0.0 and learner.sources[0].calls == before
    with pytest.raises(ValueError, match="unknown_id"):
        PROPSLearner([Bigram()], 7, seed=0).learn_one(7)
    with pytest.raises(ValueError, match="unknown_id"):
        PROPSLearner([], 7, unknown_id=7)
    with pytest.raises(TypeError, match="word id"):
        learner.learn_one("word")


@pytest.mark.parametrize(
    "probs, message",
    [
        (np.full(7, np.nan), "nan"),
        (np.array([-0.1, 0.3, 0.2, 0.2, 0.2, 0.1, 0.1]), "negative|-0.1"),
        (np.full(7, 0.2), "sum to 1.4"),
        (np.full(6, 1 / 6), r"\(7,\)"),
    ],
)
def test_bad_sources_are_named_and_change_nothing(probs, message):
    state = {"bad": False}

    def sometimes(prefix):
        return probs if state["bad"] else np.full(7, 1 / 7)

    good = Bigram()
    learner = PROPSLearner([good, sometimes], 7, seed=0)
    learner.learn_many(words(30))
    before, calls = learner.state.copy(), len(good.calls)
    state["bad"] = True
    with pytest.raises(ValueError, match=f"source 1.*({message})"):
        learner.learn_one(1)
    np.testing.assert_array_equal(learner.state.rho, before.rho)
    assert good.calls[calls:] in ([], ["predict"])  # asked, not told
    state["bad"] = False
    learner.learn_one(1)


def test_fast_answers_are_checked_too():
    class Wrong(Bigram):
        def log_prob_of(self, y):
            return 0.5

    with pytest.raises(ValueError, match=r"source 0 \(Wrong\).*0.5"):
        PROPSLearner([Wrong()], 7).learn_one(0)
    with pytest.raises(ValueError, match="has 7 words"):
        PROPSLearner([Bigram()], 8)


def test_vectors_with_a_source_that_predicts_densities():
    random, loc = np.random.default_rng(0), np.array([3.0, -3.0])

    class Walk:
        num_words = None

        def __init__(self):
            self.last = torch.zeros(2).double()

        def predict(self):
            return torch.distributions.MultivariateNormal(self.last, torch.eye(2).double())

        def observe(self, y):
            self.last = torch.as_tensor(y)

        def reset(self):
            self.last = torch.zeros(2).double()

    learner = PROPSLearner([Walk()], num_features=2, num_perturbations=1, covariance="full", seed=0)
    last, own = np.zeros(2), []
    for _ in range(600):
        personal = random.random() < 0.5
        last = (loc if personal else last) + (0.1 if personal else 1.0) * random.normal(size=2)
        info = learner.learn_one(last)
        own.append((personal, info.perturbation))
    np.testing.assert_allclose(learner.state.loc[0], loc, atol=0.3)
    assert np.mean([p for personal, p in own[300:] if personal]) > 0.8
    assert learner.predict_one().shape == (2,) and np.isfinite(learner.score_one(np.zeros(2)))
    with pytest.raises(TypeError, match="density"):
        learner.predict_proba_one()
    with pytest.raises(ValueError, match="shape"):
        learner.learn_one([1.0])


# ---------------------------------------------------------------- folders and merging
@grid({"averaging": [None, "recent"], "num_before": [5, 200]})
def test_an_interrupted_stream_goes_on_exactly(tmp_path, num_before, averaging):
    stream = words(300)
    options = dict(seed=0, averaging=averaging, exponent=0.8, unknown_id=6, prior_tokens=4.0)
    through = PROPSLearner([Bigram(), uniform], 7, **options)
    expected = through.learn_many(stream)
    first = PROPSLearner([Bigram(), uniform], 7, **options)
    first.learn_many(stream[:num_before])
    first.save(tmp_path / "state")
    second = PROPSLearner.load(tmp_path / "state", sources=[Bigram(0.0), uniform])
    found = second.learn_many(stream[num_before:])
    for one, other in zip(found, expected[num_before:], strict=True):
        assert one.log_prob == other.log_prob  # to the last digit
        np.testing.assert_array_equal(one.filter, other.filter)
    np.testing.assert_array_equal(second.state.emission(), through.state.emission())
    assert second.unknown_id == 6
    with pytest.raises(ValueError, match="2 sources, got 1"):
        PROPSLearner.load(tmp_path / "state", sources=[Bigram()])


def test_vector_streams_are_saved(tmp_path):
    random = np.random.default_rng(0)
    stream = StreamingHMM(2, num_features=2, seed=0).start(averaging=5)
    for _ in range(40):
        stream.step(random.normal(size=2))
    loaded = load_stream(save_stream(stream, tmp_path / "state"))
    y = random.normal(size=2)
    assert loaded.step(y).log_prob == stream.step(y).log_prob
    np.testing.assert_array_equal(loaded.loc, stream.loc)


def test_damaged_states_are_refused(tmp_path):
    learner = PROPSLearner([], 7, num_perturbations=2, seed=0)
    learner.learn_many(words(50))
    folder = learner.save(tmp_path / "state")
    header = (folder / "config.json").read_text()
    with pytest.raises(ValueError, match="expected 'props stream'"):
        load_stream(folder)
    tensors = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(tensors[:-40])
    with pytest.raises(ValueError, match="cut short"):
        PROPSLearner.load(folder)
    (folder / "model.safetensors").write_bytes(tensors)
    rewrite(folder, without=("options",))
    with pytest.raises(ValueError, match="damaged"):
        PROPSLearner.load(folder)
    (folder / "config.json").write_text(header[:100])
    with pytest.raises(ValueError, match="JSON"):
        PROPSLearner.load(folder)
    with pytest.raises(FileNotFoundError):
        PROPSLearner.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("filter", lambda x: x * torch.nan, "filter does not hold probabilities of 2 states"),
        ("transition", lambda x: -x, "transition does not hold"),
        ("rho", lambda x: x * torch.inf, "rho holds numbers that are not finite"),
        ("cold_words", lambda x: x + 1000, "words outside of 0..6"),
        ("free", lambda x: x * 0, "slots of words"),
    ],
)
def test_numbers_that_no_stream_holds_are_refused(tmp_path, name, change, message):
    learner = PROPSLearner([], 7, seed=0)
    learner.learn_many(words(60))
    folder = learner.save(tmp_path / "state")
    rewrite_tensors(folder, lambda tensors: tensors | {name: change(tensors[name])})
    with pytest.raises(ValueError, match=f"{message}.*the file is damaged"):
        PROPSLearner.load(folder)


@pytest.mark.parametrize("averaging", [None, "recent"])
def test_merged_statistics_are_sums_weighted_by_tokens(averaging):
    streams = []
    for seed, length in ((0, 60), (1, 150), (2, 0)):
        learner = PROPSLearner([Bigram()], 7, seed=0, averaging=averaging, transition_prior=0.0)
        learner.learn_many(words(length, seed))
        streams.append(learner.state)
    merged = merge_streams(streams)
    assert merged.num_steps == 210 and merged.fresh
    for averaged in (False, True) if averaging else (False,):
        total = 0.0
        for state in streams[:2]:
            rows, weight = (state._mean_rows(), state.total_weight) if averaged else (state.rows, None)
            counts, seen = np.zeros((7, 2)), state.emissions.counts(rows[state.num_fixed :], weight)
            counts[seen[0]] = seen[1]
            total = total + state.num_steps / 210 * counts
        expected = (total + 0.05 / 7) / (total.sum(0) + 0.05)
        np.testing.assert_allclose(merged.parameters(averaged).emission, expected.T, rtol=1e-9)
    moves = sum(s.num_steps * s.rows[:9].reshape(3, 3) for s in streams[:2])
    np.testing.assert_allclose(merged.transition, moves / moves.sum(1, keepdims=True))
    before = merged.num_steps
    merged.step(3, [np.log(1 / 7)])
    assert merged.num_steps == before + 1
    one = merge_streams(streams[:1])
    np.testing.assert_allclose(one.parameters(False).emission, streams[0].parameters(False).emission, rtol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_merging_vectors_and_what_does_not_fit(covariance):
    random = np.random.default_rng(0)
    model = StreamingHMM(2, num_features=2, seed=0, covariance=covariance, covariance_floor=1e-9)
    streams = [model.start(averaging="recent") for _ in range(3)]
    for stream in streams[:2]:
        for _ in range(30):
            stream.step(random.normal(size=2))
    merged, (one, other) = merge_streams(streams), streams[:2]
    np.testing.assert_allclose(merged.transition, merge_streams([other, one]).transition)
    for averaged in (False, True):

        def told(stream, averaged=averaged):
            """Weights, means and second moments about 0 of states."""
            rows = (stream._mean_rows() if averaged else stream.rows)[stream.num_fixed :]
            found = stream.parameters(averaged)
            second = found.covariances - 1e-9 * np.eye(2) + found.loc[:, :, None] * found.loc[:, None]
            return rows.reshape(2, -1)[:, 0], found.loc, second

        weights, means, seconds = zip(told(one), told(other), strict=True)
        weight, mean, second = told(merged)
        np.testing.assert_allclose(weight, sum(weights) / 2)
        np.testing.assert_allclose(weight[:, None] * mean, sum(w[:, None] * m for w, m in zip(weights, means, strict=True)) / 2)
        together = sum(w[:, None, None] * s for w, s in zip(weights, seconds, strict=True)) / 2
        kept = np.ones((2, 2), bool) if covariance == "full" else np.eye(2, dtype=bool)
        np.testing.assert_allclose((weight[:, None, None] * second)[:, kept], together[:, kept])
    for model in (
        StreamingHMM(2, num_features=2, seed=0, covariance=covariance).start(exponent=0.9),
        StreamingHMM(2, num_features=2, seed=1, covariance=covariance, covariance_floor=1e-9).start(averaging="recent"),
        StreamingHMM(2, num_features=2, seed=0, covariance=covariance).start(averaging="recent"),
    ):
        with pytest.raises(ValueError, match="stream 1 has other"):
            merge_streams([one, model])
    even, uneven = (StreamingHMM(2, 7, seed=0, initial=initial).start() for initial in ([0.5, 0.5], [0.9, 0.1]))
    with pytest.raises(ValueError, match="stream 1 has other sizes, options or first parameters"):
        merge_streams([even, uneven])
    with pytest.raises(ValueError, match="nothing to merge"):
        merge_streams([])


def test_fit_and_score_of_sequences():
    """Scores are those of following token by token, and leave the learner and its sources as they were."""
    from pplseq.sources import UnigramCache

    sequences = [[1, 2, 0, 1], [2, 2, 1], [0, -1, 1]]
    learner, other = (PROPSLearner([UnigramCache(3)], num_words=3, seed=0) for _ in range(2))
    assert learner.fit(sequences) is learner
    for ys in sequences:
        other.new_sequence()
        other.learn_many(ys)
    before = learner.predict_proba_one()
    expected = 0.0
    for ys in sequences:
        other.new_sequence()
        expected += sum(other.follow_one(y).log_prob for y in ys)
    assert learner.score(sequences) == pytest.approx(expected, abs=1e-12)
    assert learner.score(sequences, per_token=True) == pytest.approx(expected / 9, abs=1e-12)
    np.testing.assert_array_equal(learner.predict_proba_one(), before)
    assert learner.learn_one(1).log_prob == pytest.approx(np.log(before[1]))
    assert "10 tokens" in repr(learner) or "tokens learned" in repr(learner)
    assert "cache" in repr(learner) and "num_perturbations=2" in repr(learner)


def test_a_stream_begins_at_its_sources():
    """The first words cost next to nothing against the source alone, where an even start costs log 3 a word."""
    random = np.random.default_rng(0)
    words, cost = random.integers(500, size=20), {}
    for share in (1 / 3, None):
        chosen = {"guard": 0} if share is None else {"source_share": share, "guard": 0}
        learner = PROPSLearner([lambda prefix: np.r_[np.full(250, 3.0), np.ones(250)] / 1000], 500, seed=0, **chosen)
        assert learner.state.initial.tolist() == learner.state.first_transition[2].tolist()
        likely = words % 250  # three times as likely to the source as to what is to be learned
        cost[share] = 20 * np.log(3 / 1000) - sum(learner.learn_one(int(y)).log_prob for y in likely)
    assert 0 < cost[None] < 2.0 < 4.0 < cost[1 / 3]
    with pytest.raises(ValueError, match=r"source_share must lie in \(0, 1\)"):
        PROPSLearner([], 5, source_share=1.0)
    assert StreamingHMM(3, 5).initial.tolist() == pytest.approx([1 / 3] * 3)


def test_sharper_predictions_say_the_likely_more():
    """Powers of what is predicted: the mean probability rises, up to the share of words that are guessed right."""
    stream, mean, guessed = words(400), {1.0: [], 2.0: [], 60.0: []}, []
    learner = PROPSLearner([Bigram()], 7, seed=0)
    for y in stream:
        probs = learner.predict_proba_one()
        for sharpness, found in mean.items():
            sharp = learner.predict_proba_one(sharpness)
            np.testing.assert_allclose(sharp, probs**sharpness / (probs**sharpness).sum(), rtol=1e-9)
            found.append(sharp[y])
        guessed.append(learner.predict_one() == y)
        learner.learn_one(y)
    assert np.mean(mean[1.0]) < np.mean(mean[2.0]) < np.mean(mean[60.0])
    assert np.mean(mean[60.0]) == pytest.approx(np.mean(guessed), abs=0.02)
    with pytest.raises(ValueError, match="sharpness must be"):
        learner.predict_proba_one(0.0)


def test_users_share_the_table_they_begin_with():
    """What a user keeps does not grow with the vocabulary."""
    num_words = 50_000
    first = PROPSLearner([], num_words, num_perturbations=2, seed=3)
    tracemalloc.start()
    try:
        users = [PROPSLearner([], num_words, num_perturbations=2, seed=3) for _ in range(3)]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(user.state.emissions.table is first.state.emissions.table for user in users)
    assert kept < 3 * 50_000 < 8 * 2 * num_words and not first.state.emissions.table.flags.writeable
    other = PROPSLearner([], num_words, num_perturbations=2, seed=4)
    assert other.state.emissions.table is not first.state.emissions.table
    for y in (3, 5, 3):
        users[0].learn_one(y)
    assert users[1].learn_one(3).log_prob == first.learn_one(3).log_prob
