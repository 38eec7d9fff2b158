"""Many users at once against the same users one by one."""

import math

import numpy as np
import pytest
import torch

from pplseq.models.props.online_batch import BatchStream
from pplseq.models.props.online_em import start_stream
from pplseq.models.props.seen_words import SeenWords
from pplseq.models.props.settings import OnlineEM

USERS = 4


def problem(num_sources, num_own, num_words, num_steps, seed=0):
    random = np.random.default_rng(seed)
    num_states = num_sources + num_own
    tables = {
        "initial": random.dirichlet(np.ones(num_states)),
        "transition": random.dirichlet(np.ones(num_states), num_states),
        "emission": random.dirichlet(np.ones(num_words), num_own),
    }
    words = (num_words * random.random((num_steps, USERS)) ** 2).astype(int)
    words[random.random((num_steps, USERS)) < 0.1] = -1
    logs = np.log(random.random((num_steps, USERS, num_sources)))
    active = random.random((num_steps, USERS)) < 0.8
    boundary = random.random((num_steps, USERS)) < 0.03
    return tables, words, logs, active, boundary


def batch_of(tables, options):
    tensors = {name: torch.as_tensor(value) for name, value in tables.items()}
    return BatchStream(**tensors, num_users=USERS, options=options, window=256)


OPTIONS = {
    "decreasing": OnlineEM(),
    "recent": OnlineEM(exponent=0.8, averaging="recent", prior_tokens=10.0),
    "constant, averaged": OnlineEM(step_size=0.2, averaging=30, warm_up=5, prior_tokens=1.0),
    "constant": OnlineEM(step_size=0.3, warm_up=1, smoothing=0.5, transition_smoothing=0.1),
}
SIZES = [(1, 2, 9), (0, 3, 7), (2, 1, 50), (0, 1, 1)]


# all options of one size, all sizes of one option, and each of the others once more
@pytest.mark.parametrize(
    "sizes, name",
    [*(((1, 2, 9), name) for name in OPTIONS), *((sizes, "recent") for sizes in SIZES[1:]), (SIZES[1], "constant, averaged"),
     (SIZES[2], "constant"), (SIZES[3], "decreasing")],
)  # fmt: skip
def test_a_batch_is_its_users(sizes, name):
    options = OPTIONS[name]
    tables, words, logs, active, boundary = problem(*sizes, num_steps=60)
    batch = batch_of(tables, options)
    alone = [start_stream(**tables, options=options) for _ in range(USERS)]
    for t in range(60):
        learn = not (20 <= t < 23 or 50 <= t < 55)  # before and after averaging begins
        batch.new_sequence(torch.as_tensor(boundary[t]))
        info = batch.step(words[t], logs[t], learn, torch.as_tensor(active[t]))
        for user, stream in enumerate(alone):
            if boundary[t, user]:
                stream.new_sequence()
            if not active[t, user]:
                continue
            single = stream.step(int(words[t, user]), logs[t, user], learn)
            for name in single._fields:
                if name != "residual":
                    np.testing.assert_allclose(getattr(info, name)[user], getattr(single, name), rtol=1e-9, atol=1e-11)
    for user, stream in enumerate(alone):
        np.testing.assert_allclose(batch.transition[user], stream.transition, rtol=0, atol=1e-12)
        np.testing.assert_allclose(batch.emission()[user], stream.parameters(False).emission, rtol=0, atol=1e-12)
        taken = batch.user(user)
        for found, expected in zip(taken.parameters()[:3], stream.parameters()[:3], strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
        one = tuple(s.copy().step(0, np.full(sizes[0], -1.0)).log_prob for s in (taken, stream))
        np.testing.assert_allclose(one[0], one[1], rtol=0, atol=1e-9)
    uniform = np.full((USERS, sizes[0], sizes[2]), 1 / sizes[2])
    probs = batch.word_probs(torch.as_tensor(uniform))
    for user, stream in enumerate(alone):
        np.testing.assert_allclose(probs[user], stream.word_probs(uniform[user], averaged=False), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_sources_all_but_exclude_has_numbers(dtype):
    """And what perturbations exclude, or have no share of, is infinitely far off."""
    options = OnlineEM(smoothing=0.0, fixed=("initial", "transition", "emission"))
    tables = {"initial": [0.5, 0.2, 0.3], "transition": [[0.2, 0.3, 0.5]] * 3, "emission": [[0.6, 0.4, 0.0]]}
    tensors = {name: torch.tensor(value, dtype=dtype) for name, value in tables.items()}
    batch = BatchStream(**tensors, num_users=USERS, options=options)
    alone = [start_stream(**{name: np.array(value) for name, value in tables.items()}, options=options) for _ in range(USERS)]
    words, logs = [0, 1, 2, -1], np.array([[-900.0, -1000.0], [-math.inf, -math.inf], [-1.0, -110.0], [0.0, 0.0]])
    for _ in range(2):
        info = batch.step(words, logs)
        for user, stream in enumerate(alone):
            single = stream.step(words[user], logs[user])
            for name in ("log_odds", "source_anomaly", "perturbation_anomaly"):
                np.testing.assert_allclose(getattr(info, name)[user], getattr(single, name), rtol=1e-5, atol=1e-5)


def test_a_window_that_is_too_short_is_told():
    tables, words, logs, *_ = problem(1, 2, 9, 60)
    batch = batch_of(tables, OnlineEM(window=3))
    alone = start_stream(**tables, options=OnlineEM(window=3))
    for t in range(60):
        info = batch.step(words[t], logs[t])
        alone.step(int(words[t, 0]), logs[t, 0])
    assert (info.residual > 0).all() and batch.user(0).residual == float(info.residual[0])
    np.testing.assert_allclose(float(info.residual[0]), alone.residual, rtol=0.5)


@pytest.mark.parametrize("averaging", [None, "recent"])
def test_a_user_taken_out_goes_on_where_the_window_is_full(averaging):
    tables, words, logs, *_ = problem(1, 2, 9, 60)
    options = OnlineEM(window=8, averaging=averaging)
    batch, alone = batch_of(tables, options), start_stream(**tables, options=options)
    for t in range(50):
        batch.step(words[t], logs[t])
        alone.step(int(words[t, 0]), logs[t, 0])
    taken = batch.user(0)
    for t in range(50, 60):
        found, expected = (s.step(int(words[t, 0]), logs[t, 0]).log_prob for s in (taken, alone))
        # the one evicts as words come, the other when columns are equal
        assert found == pytest.approx(expected, abs=1e-6)


def test_what_cannot_be_is_refused_and_changes_nothing():
    tables, words, logs, *_ = problem(1, 2, 9, 30)
    batch = batch_of(tables, OnlineEM(smoothing=0.0, warm_up=2))
    for t in range(3):
        batch.step(words[t], logs[t])
    before = {name: getattr(batch, name).clone() for name in ("filter", "initial", "rho", "rows", "num_steps")}
    unseen = next(w for w in range(9) if w not in words[:3, 2])
    good = np.full((USERS, 1), -1.0)
    bad, hopeless = good.copy(), good.copy()
    bad[3], hopeless[2] = np.nan, -np.inf
    for y, given, message in (
        ([0, 9, 0, 0], good, "user 1: must be a word id in 0..8"),
        ([0, 0, 0], good, "each of the 4 users"),
        ([0, 0, 0, 0], good[:2], "must have shape"),
        ([0, 0, 0, 0], bad, "user 3: source 0 gives nan"),
        ([words[0, 0].clip(0), 0, unseen, 0], hopeless, "user . ?: token|user .: token . is impossible"),
    ):
        with pytest.raises(ValueError, match=message):
            batch.step(y, given)
    with pytest.raises(TypeError, match="word ids"):
        batch.step([0.0] * USERS, good)
    for name, value in before.items():
        assert torch.equal(getattr(batch, name), value), name
    with pytest.raises(ValueError, match="num_users"):
        BatchStream(*(torch.as_tensor(v) for v in tables.values()), num_users=0, options=OnlineEM())


@pytest.mark.gpu
def test_on_a_gpu():
    tables, words, logs, *_ = problem(1, 2, 9, 80)
    tensors = [torch.as_tensor(value) for value in tables.values()]
    here = BatchStream(*tensors, num_users=USERS, options=OnlineEM(averaging="recent"))
    there = BatchStream(*(v.cuda() for v in tensors), num_users=USERS, options=OnlineEM(averaging="recent"))
    for t in range(80):
        first, second = here.step(words[t], logs[t]), there.step(words[t], logs[t])
        torch.testing.assert_close(second.log_prob.cpu(), first.log_prob, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(there.emission().cpu(), here.emission(), rtol=0, atol=1e-12)


def test_what_a_user_keeps_grows_with_the_words_seen_and_not_with_all_words():
    num_words, users = 100_000, 8
    tables, _, logs, *_ = problem(1, 2, 5, 200)
    table = torch.full((2, num_words), 1 / num_words, dtype=torch.float64)
    tensors = {name: torch.as_tensor(tables[name]) for name in ("initial", "transition")}
    batch = BatchStream(**tensors, emission=table, num_users=users, options=OnlineEM())
    random = np.random.default_rng(0)
    for t in range(200):
        batch.step(random.integers(num_words, size=users), np.tile(logs[t, :1], (users, 1)))
    sizes = [batch.cold.keys, *batch.cold.columns.values(), batch.rho, batch.rows]
    assert sum(part.numel() for part in sizes) / users < 5000 < num_words
    taken = batch.user(3)
    assert len(taken.emissions.cold.places) > 100


@pytest.mark.parametrize("num_words", [1, 40, 3000])
def test_a_table_of_seen_words_is_a_dictionary_a_user(num_words):
    random, users = np.random.default_rng(0), 5
    seen = SeenWords(users, {"a": 2, "b": 1}, torch.zeros(1, dtype=torch.float64))
    truth = [dict() for _ in range(users)]
    for _ in range(400):
        words, wanted = random.integers(num_words, size=users) * 1024, random.random(users) < 0.7
        a, b = random.normal(size=(users, 2)), random.normal(size=(users, 1))
        given = {"a": torch.as_tensor(a), "b": torch.as_tensor(b)}
        seen.add(torch.as_tensor(words), given, torch.as_tensor(wanted))
        for user in np.flatnonzero(wanted):
            old = truth[user].get(words[user], np.zeros(3))
            truth[user][words[user]] = old + np.r_[a[user], b[user]]
        asked = random.integers(num_words, size=users) * 1024
        found = torch.cat(seen.get(torch.as_tensor(asked), ["a", "b"]), 1).numpy()
        expected = [truth[user].get(asked[user], np.zeros(3)) for user in range(users)]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    for user in range(users):
        kept = seen.user(user)
        assert kept["words"].tolist() == sorted(truth[user])
        np.testing.assert_allclose(kept["a"].numpy(), [truth[user][w][:2] for w in sorted(truth[user])], atol=1e-12)
    assert seen.keys.shape[1] < 8 * max(map(len, truth)) + 32
