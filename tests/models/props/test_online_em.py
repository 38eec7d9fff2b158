"""Online EM: the dense recursion against forward-backward, the fast form against the dense recursion."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from support.grids import grid
from support.oracles.props import DenseGaussianStream, DenseStream, averaged

from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.pinned import PinnedEmission
from pplseq.distributions.state import MISSING
from pplseq.infer.discrete.build import build_chain
from pplseq.models.parts.emissions import CategoricalEmission
from pplseq.models.props.online_em import start_stream
from pplseq.models.props.settings import OnlineEM

SIZES = [(0, 3, 7), (1, 2, 20), (2, 1, 5), (1, 1, 1), (0, 1, 4), (3, 4, 11)]  # K_s, K_p, V


def problem(num_sources, num_own, num_words, num_steps=150, seed=0):
    """Random parameters, words and what sources give to them."""
    random = np.random.default_rng(seed)
    num_states = num_sources + num_own
    tables = {
        "initial": random.dirichlet(np.ones(num_states)),
        "transition": random.dirichlet(np.ones(num_states), num_states),
        "emission": random.dirichlet(np.ones(num_words), num_own),
    }
    words = (num_words * random.random(num_steps) ** 2).astype(int)
    given = random.dirichlet(np.ones(num_words), (num_steps, num_sources)).reshape(num_steps, num_sources, num_words)
    return tables, words, np.take_along_axis(given, words[:, None, None], 2)[..., 0]


def dense_stream(tables, options):
    def prior(tokens):
        return (lambda t: tokens / t) if tokens is not None else None

    return DenseStream(
        **tables, step_sizes=options.gain, warm_up=options.warm_up, smoothing=options.smoothing_at,
        transition_prior=prior(options.transition_prior or None), initial_prior=prior(options.initial_prior),
    )  # fmt: skip


def run_both(tables, words, given, options, boundaries=()):
    """The dense and the fast stream after all words, compared after each."""
    dense = dense_stream(tables, options)
    fast = start_stream(**tables, options=options)
    for t, (word, probs) in enumerate(zip(words.tolist(), given, strict=True)):
        if t in boundaries:
            dense.fresh = True
            fast.new_sequence()
        predictive = dense.step(word, probs)
        info = fast.step(word, np.log(probs))
        np.testing.assert_allclose(np.exp(info.log_prob), predictive if word >= 0 else 1.0, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(info.filter, dense.filter, rtol=0, atol=1e-12)
        np.testing.assert_allclose(fast.transition, dense.transition, rtol=0, atol=1e-12)
        np.testing.assert_allclose(fast.initial, dense.initial, rtol=0, atol=1e-12)
    return dense, fast


@pytest.mark.parametrize("sizes", SIZES)
def test_with_steps_1_over_t_the_recursion_is_forward_backward(sizes):
    tables, words, given = problem(*sizes, num_steps=60)
    words[[3, 20, 21, 40]] = MISSING
    boundaries = [0, 25, 26, 60]
    dense = DenseStream(**tables, step_sizes=lambda t: 1 / t, warm_up=None)
    transition = DenseTransition.from_probs(*(torch.as_tensor(tables[name]) for name in ("initial", "transition")))
    own = CategoricalEmission.from_probs(torch.as_tensor(tables["emission"]))
    emission = PinnedEmission(own, sizes[0]) if sizes[0] else own
    moves, counts = 0, np.zeros((sum(sizes[:2]), sizes[2]))
    for first, last in zip(boundaries[:-1], boundaries[1:], strict=True):
        log_prob = 0.0
        for t in range(first, last):
            dense.fresh = t == first
            log_prob += np.log(dense.step(words[t], given[t]))
        x = torch.as_tensor(words[first:last]).unsqueeze(-1)
        chain = build_chain(
            transition, emission, x, seen=x != MISSING,
            emission_inputs=torch.as_tensor(given[first:last]).log().unsqueeze(1) if sizes[0] else None,
        )  # fmt: skip
        np.testing.assert_allclose(log_prob, float(chain.log_prob()), rtol=1e-12, atol=1e-12)
        expected = chain.expected_counts()
        moves = moves + expected.transition.numpy()
        probs = expected.marginals.probs[0].numpy()
        np.add.at(counts.T, words[first:last][words[first:last] >= 0], probs[words[first:last] >= 0])
    np.testing.assert_allclose(60 * dense.transition_statistics, moves, rtol=0, atol=1e-12)
    np.testing.assert_allclose(60 * dense.emission_statistics, counts, rtol=0, atol=1e-12)


@grid({
    "options": [
        OnlineEM(),
        OnlineEM(exponent=0.8, smoothing=1e-6),
        OnlineEM(step_size=0.1, warm_up=1),
        OnlineEM(exponent=1.0, smoothing=2.0),
        OnlineEM(smoothing=0.0, prior_tokens=5.0),
        OnlineEM(transition_prior=0.0, initial_prior=None),
        OnlineEM(transition_prior=0.0, initial_prior=0.0, step_size=0.1, warm_up=5),
    ],
    "sizes": [SIZES[0], SIZES[-1]],
})
def test_the_fast_stream_is_the_dense_one(sizes, options):
    tables, words, given = problem(*sizes)
    dense, fast = run_both(tables, words, given, options, boundaries=(40, 41, 90))
    np.testing.assert_allclose(fast.emission(), dense.emission, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fast.emission().sum(1), 1.0, rtol=1e-12)
    assert fast.residual == 0.0 and fast.num_steps == len(words)


def test_many_words_cost_no_accuracy():
    tables, words, given = problem(1, 2, 500, num_steps=1500)
    dense, fast = run_both(tables, words, given, OnlineEM(exponent=0.8))
    np.testing.assert_allclose(fast.emission(), dense.emission, rtol=0, atol=1e-12)
    assert len(fast.emissions.hot) < 100 < len(fast.emissions.cold.places)


@grid({"step_size": [None, 0.2], "averaging": ["recent", 0, 100]})
def test_missing_words_boundaries_and_means_of_statistics(averaging, step_size):
    tables, words, given = problem(1, 2, 9, num_steps=200)
    words[[0, 7, 8, 60, 61, 150]] = MISSING
    options = OnlineEM(averaging=averaging, step_size=step_size, warm_up=10, prior_tokens=3.0)
    first = tables["initial"][:, None] * tables["transition"]
    dense, fast = run_both(tables, words, given, options, boundaries=(5, 60, 61, 100))
    moves, counts = averaged(dense.history, [options.weight(t + 1) for t in range(200)])
    mean = fast.parameters()
    moves = moves + options.transition_prior / 200 * first
    np.testing.assert_allclose(mean.transition, moves / moves.sum(1, keepdims=True), rtol=0, atol=1e-12)
    counts = counts[1:] + options.smoothing_at(200) / 9
    np.testing.assert_allclose(mean.emission, counts / counts.sum(1, keepdims=True), rtol=0, atol=1e-12)
    np.testing.assert_allclose(fast.parameters(averaged=False).emission, dense.emission, rtol=0, atol=1e-12)
    # following uses the means, a word at a time
    before = fast.copy()
    expected = fast.word_probs([np.full(9, 1 / 9)])
    for word in range(9):
        info = before.copy().step(word, [np.log(1 / 9)], learn=False)
        np.testing.assert_allclose(np.exp(info.log_prob), expected[word], rtol=1e-12)


def test_following_changes_no_parameters_and_learning_goes_on():
    tables, words, given = problem(1, 2, 9)
    stream = start_stream(**tables)
    for word, probs in zip(words[:100], given[:100], strict=True):
        stream.step(int(word), np.log(probs))
    before = stream.parameters()
    for word, probs in zip(words[100:120], given[100:120], strict=True):
        stream.step(int(word), np.log(probs), learn=False)
    after = stream.parameters()
    np.testing.assert_array_equal(before.transition, after.transition)
    np.testing.assert_array_equal(before.emission, after.emission)
    assert stream.num_steps == 100
    rows = stream.rows.copy()
    stream.step(int(words[120]), np.log(given[120]))
    # statistics stay those of 101 tokens: the old ones shrink, transitions into the new token enter
    gain = stream.options.gain(101)
    np.testing.assert_allclose(stream.rows[:9].sum(), (1 - gain) * rows[:9].sum() + gain, rtol=1e-12)


def test_a_capped_window_says_what_it_costs():
    tables, words, given = problem(0, 3, 9, num_steps=300)
    tables["transition"] = 0.99 * np.eye(3) + 0.01 / 3
    dense, exact = run_both(tables, words, given, OnlineEM(warm_up=400, transition_prior=0.0, initial_prior=None))
    errors, residuals = [], []
    for window in (2, 8, 64):
        stream = start_stream(**tables, options=OnlineEM(warm_up=400, transition_prior=0.0, initial_prior=None, window=window))
        for word in words:
            stream.step(int(word))
        assert len(stream.emissions.hot) < window + 1
        counts = stream.emissions.counts(stream.rows[stream.num_fixed :], None)[1]
        errors.append(abs(counts - exact.emissions.counts(exact.rows[exact.num_fixed :], None)[1]).max())
        residuals.append(stream.residual)
    assert errors[0] > errors[1] > errors[2] and residuals[0] > residuals[1] > residuals[2] > 0.0
    assert exact.residual < residuals[2]


def test_a_state_that_cannot_be_reached_and_one_never_left():
    tables, words, given = problem(1, 2, 6)
    tables["transition"] = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    tables["initial"] = np.array([0.5, 0.5, 0.0])
    stream = start_stream(**tables, options=OnlineEM(smoothing=0.0))
    for word, probs in zip(words, given, strict=True):
        info = stream.step(int(word), np.log(probs))
        assert info.filter[2] == 0.0 and np.isfinite(info.log_prob)
    np.testing.assert_array_equal(stream.transition[2], [0, 0, 1])
    assert np.isfinite(stream.emission()).all()


def test_starved_states_vanish_in_peace_or_are_kept_alive():
    random = np.random.default_rng(0)
    tables, *_ = problem(1, 2, 40)
    weights = []
    for transition_smoothing in (0.0, 1e-3):
        options = OnlineEM(step_size=0.2, averaging="recent", transition_smoothing=transition_smoothing, transition_prior=0.0)
        stream = start_stream(**tables, options=options)
        for word in random.integers(40, size=4000).tolist():
            info = stream.step(word, [-0.5])  # better than anything that can be learned
        assert np.isfinite(info.log_prob) and np.isfinite(stream.parameters().emission).all() and stream.residual == 0.0
        weights.append(stream.filter[1:].sum())
    assert weights[0] < 1e-100 < 1e-6 < weights[1]


@pytest.mark.parametrize("full", [True, False])
def test_vectors(full):
    random = np.random.default_rng(0)
    loc = random.normal(size=(2, 3))
    tables = {"initial": np.ones(3) / 3, "transition": random.dirichlet(np.ones(3), 3), "loc": loc}
    tables["covariances"] = np.stack([np.eye(3), np.eye(3) * 2])
    y = 100 + random.normal(size=(120, 3)) * (1 + random.integers(0, 2, (120, 1)))  # far from 0: digits must not be lost
    tables["loc"] = tables["loc"] + 100
    densities = np.exp(-0.1 * random.random((120, 1)))
    options = OnlineEM(warm_up=30, transition_prior=0.0, initial_prior=None)
    stream = start_stream(**tables, full=full, floor=0.0, options=options)
    if full:
        dense = DenseGaussianStream(**tables, step_sizes=options.gain, warm_up=30)
        for vector, density in zip(y, densities, strict=True):
            predictive = dense.step(vector, density)
            info = stream.step(vector, np.log(density))
            np.testing.assert_allclose(np.exp(info.log_prob), predictive, rtol=1e-7)
        np.testing.assert_allclose(stream.loc, dense.loc, rtol=1e-8)
        np.testing.assert_allclose(stream.covariances, dense.covariances, rtol=0, atol=1e-7)
    else:
        for vector, density in zip(y, densities, strict=True):
            info = stream.step(vector, np.log(density))
        assert (stream.covariances[:, ~np.eye(3, dtype=bool)] == 0).all()
    before = stream.copy()
    stream.step(np.full(3, np.nan))
    np.testing.assert_allclose(stream.filter, before.filter @ before.transition)
    prior, (loc, covariances) = before.predicted_states(), (before.loc, before.covariances)
    far = before.step(np.full(3, 1e5), np.zeros(1))  # only the source can have made it
    assert far.perturbation == 0.0 and abs(far.log_prob) < 10
    own = [stats.multivariate_normal.logpdf(np.full(3, 1e5), *each) for each in zip(loc, covariances, strict=True)]
    own = np.logaddexp(*(np.log(prior[1:]) + own))  # a density that underflows has a logarithm
    np.testing.assert_allclose(far.log_odds, own - np.log(prior[0]), rtol=1e-7)
    np.testing.assert_allclose(far.perturbation_anomaly, np.log(prior[1:].sum()) - own, rtol=1e-7)


def test_a_source_that_is_far_off_has_an_anomaly():
    tables, *_ = problem(1, 2, 4)
    info = start_stream(**tables).step(1, [-2000.0])
    assert info.source_anomaly == pytest.approx(2000.0) and info.log_odds > 1900


@pytest.mark.parametrize("full", [True, False])
def test_moments_keep_their_digits_wherever_the_vectors_lie(full):
    x = np.random.default_rng(0).normal(size=(100, 2))
    tables = dict(initial=[1.0], transition=[[1.0]], loc=[[0.5, -0.5]], covariances=np.eye(2)[None])
    for averaging in (None, "recent"):
        found = []
        for place in (0.0, 1e8):
            stream = start_stream(**tables, full=full, options=OnlineEM(averaging=averaging))
            for vector in x:
                stream.step(vector + place)
            found.append((stream.loc - place, stream.covariances))
        np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-6)
        np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-6)


def test_vectors_with_steps_1_over_t_are_weighted_moments():
    random = np.random.default_rng(1)
    tables = {"initial": np.ones(2) / 2, "transition": random.dirichlet(np.ones(2), 2), "loc": random.normal(size=(2, 2))}
    tables["covariances"] = np.stack([np.eye(2)] * 2)
    y = random.normal(size=(50, 2))
    dense = DenseGaussianStream(**tables, step_sizes=lambda t: 1 / t, warm_up=None)
    for vector in y:
        dense.step(vector)
    density = [-0.5 * ((y - m) ** 2).sum(1) for m in tables["loc"]]
    emission = CategoricalEmission(torch.tensor(np.stack(density)).log_softmax(-1))  # steps as words: any factor will do
    transition = DenseTransition.from_probs(*(torch.as_tensor(tables[name]) for name in ("initial", "transition")))
    emission.log_probs = torch.tensor(np.stack(density))
    probs = build_chain(transition, emission, torch.arange(50).unsqueeze(-1)).marginals().probs[0].numpy()
    moments = np.concatenate([np.ones((50, 1)), y, (y[:, :, None] * y[:, None]).reshape(50, -1)], 1)
    np.testing.assert_allclose(dense.rho_moments @ dense.filter, probs.T @ moments / 50, rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", [1e6, 1e8])
def test_vectors_far_from_the_first_means_do_not_stop_the_stream(place):
    stream = start_stream(
        initial=[0.5, 0.5],
        transition=np.full((2, 2), 0.5),
        loc=[[0.0, 0.0], [1.0, 0.0]],
        covariances=np.stack([np.eye(2)] * 2),
    )
    random = np.random.default_rng(0)
    for t in range(200):
        stream.step(random.normal(size=2) * [1.0, 0.0] + (place if t % 50 else -place))
    assert np.linalg.eigvalsh(stream.covariances).min() > 0
    with (pytest.raises(ValueError, match="is impossible .*divide all vectors by their scale"), np.errstate(over="ignore")):
        stream.step([1e300, 0.0])


def test_a_drifting_stream_is_followed_by_a_constant_step():
    random = np.random.default_rng(0)
    tables, *_ = problem(0, 1, 4)
    losses = []
    for step_size in (None, 0.05):
        stream = start_stream(**tables, options=OnlineEM(exponent=1.0, step_size=step_size))
        for t in range(600):
            info = stream.step(int(random.choice(4, p=[0.7, 0.1, 0.1, 0.1] if t < 400 else [0.1, 0.1, 0.1, 0.7])))
        losses.append(stream.word_probs()[3])
    assert losses[0] < 0.4 < 0.55 < losses[1]
    assert info.log_odds == np.inf and info.source_anomaly == np.inf and info.anomaly == -info.log_prob


def test_info_adds_up():
    tables, words, given = problem(2, 2, 9)
    stream = start_stream(**tables)
    for word, probs in zip(words, given, strict=True):
        prior = stream.predicted_states()
        score = stream.score(int(word), np.log(probs))
        own = stream.emissions.probs(int(word), stream.rows[stream.num_fixed :], stream.maximized, None).copy()
        info = stream.step(int(word), np.log(probs))
        assert abs(score - info.log_prob) < 1e-12
        by_source, by_own = prior[:2] @ probs, prior[2:] @ own
        np.testing.assert_allclose(info.log_prob, np.log(by_source + by_own))
        np.testing.assert_allclose(info.perturbation, info.filter[2:].sum())
        np.testing.assert_allclose(info.log_odds, np.log(by_own / by_source))
        np.testing.assert_allclose(info.source_anomaly, -np.log(by_source / prior[:2].sum()))
        np.testing.assert_allclose(info.perturbation_anomaly, -np.log(by_own / prior[2:].sum()))


def test_what_cannot_be_is_refused_and_changes_nothing():
    tables, words, given = problem(1, 2, 9)
    stream = start_stream(**tables, options=OnlineEM(smoothing=0.0, warm_up=2))
    for word, probs in zip(words[:5], given[:5], strict=True):
        stream.step(int(word), np.log(probs))
    before, fields = stream.copy(), ("filter", "rho", "rows", "transition")
    unseen = next(w for w in range(9) if w not in words[:5])
    for y, logs, message in (
        (9, [-1.0], "y must be a word id in 0..8"),
        (-2, [-1.0], "unknown_id"),
        (1, [], "one number for each of the 1 sources"),
        (1, [float("nan")], "source 0 gives nan"),
        (1, [0.5], "source 0 gives 0.5"),
        (unseen, [-np.inf], "impossible"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.step(y, logs)
    for y in (1.0, np.float32(1), "a", None, True):
        with pytest.raises(TypeError, match="y must be a word id"):
            stream.step(y, [-1.0])
    for name in fields:
        np.testing.assert_array_equal(getattr(stream, name), getattr(before, name))
    with pytest.raises(ValueError, match="keeps no means"):
        stream.parameters(averaged=True)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"exponent": 0.5}, "exponent"),
        ({"step_size": 1.0}, "step_size"),
        ({"warm_up": 0}, "warm_up"),
        ({"window": 2.5}, "window"),
        ({"smoothing": -1.0}, "smoothing"),
        ({"averaging": "half"}, "averaging"),
        ({"averaging": True}, "averaging"),
    ],
)
def test_options_are_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(OnlineEM(), **wrong)
