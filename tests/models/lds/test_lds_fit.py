"""Fitting linear dynamical systems: what it finds, in every way of fitting, on every shape of data."""

import copy

import numpy as np
import pytest
import torch
from support.dense_lds import values

from pplseq.models.lds.program import LDS

F64 = torch.float64
close = torch.testing.assert_close
H, N = 2, 3


@pytest.fixture(scope="module")
def truth():
    """A slow rotation seen through noise."""
    angle = 0.4
    turn = 0.95 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return LDS(H, N).set_parameters(
        transition=turn, state_noise=0.3 * np.eye(H), emission=[[1.0, 0.0], [0.5, 1.0], [-1.0, 0.7]],
        emission_noise=[[0.3, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.2]], emission_offset=[1.0, -3.0, 10.0],
    )  # fmt: skip


@pytest.fixture(scope="module")
def sequences(truth):
    """Ragged, with some values missing."""
    x = truth.sample(60, 12, seed=1)[0].numpy()
    rng = np.random.default_rng(0)
    x[rng.random(x.shape[:2]) < 0.05] = np.nan
    x[rng.random(x.shape) < 0.03] = np.nan
    return [row[: 60 - 3 * k] for k, row in enumerate(x)]


def test_it_finds_the_truth(truth, sequences):
    model = LDS(H, N).fit(sequences, seed=0, max_iterations=40)
    history = model.history
    assert (np.diff(history.log_likelihoods) > 0).all()
    # fitted parameters lie above the truth on what they were fitted to, by about half a nat a parameter
    gain = model.score(sequences) - truth.score(sequences)
    assert 0 < gain < 2 * model.num_free_parameters
    held_out, *_ = truth.sample(60, 20, seed=7)
    assert model.score(held_out, per_token=True) > truth.score(held_out, per_token=True) - 0.03
    spectrum = np.sort_complex(torch.linalg.eigvals(model.transition.detach()).numpy())
    np.testing.assert_allclose(spectrum, 0.95 * np.exp([-0.4j, 0.4j]), atol=0.05)
    np.testing.assert_allclose(model.emission_noise.detach(), truth.emission_noise.detach(), atol=0.1)


@pytest.mark.parametrize("method", ["sgd", "lbfgs"])
def test_gradients_come_as_far(method, truth, sequences):
    model = LDS(H, N)
    sequences = list(truth.sample(60, 6, seed=4)[0].numpy())
    steps = dict(num_steps=100, lr=0.1) if method == "sgd" else dict(num_steps=30)
    model.fit(sequences, method=method, seed=0, **steps)
    assert model.score(sequences) > truth.score(sequences) - 5
    assert model.history.method == method and model.history.losses[-1] < model.history.losses[0]


def test_the_start_says_much_already(truth, sequences):
    scores = {}
    for how in ("subspace", "pca", "random"):
        model = LDS(H, N)
        torch.manual_seed(0)
        model.initialize(model._as_batch(sequences), how)
        scores[how] = model.score(sequences, per_token=True)
    best = truth.score(sequences, per_token=True)
    assert all(best > score > scores["random"] + 1 for how, score in scores.items() if how != "random")


@pytest.mark.filterwarnings("ignore:.*met its floor:RuntimeWarning")  # of 13 numbers, or not: by rounding
@pytest.mark.parametrize(
    ("sizes", "how"),
    [((1, 1), "subspace"), ((4, 1), "subspace"), ((3, 5), "subspace"), ((4, 1), "pca"), ((3, 5), "pca"), ((4, 1), "random")],
)
def test_any_sizes_and_short_sequences(sizes, how):
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(length, sizes[1])) for length in (4, 3, 1, 5)]
    model = LDS(*sizes, state_prior=dict(count=1.0, strength=0.1), emission_prior=dict(count=1.0, strength=0.1))
    model.fit(x, initialization=how, max_iterations=4, seed=2)
    assert np.isfinite(model.score(x)) and (np.diff(model.history.log_posteriors) > 0).all()


def test_ragged_is_padded_is_batched(sequences):
    model = LDS(H, N)
    x = torch.full((12, 60, N), torch.inf, dtype=F64)
    lengths = torch.tensor([len(row) for row in sequences])
    for row, sequence in zip(x, sequences, strict=True):
        row[: len(sequence)] = torch.from_numpy(sequence)
        row[len(sequence) :] = 7.0
    fits = [
        copy.deepcopy(model).fit(*data, warm_start=True, max_iterations=3, batch_size=size)
        for data, size in (([sequences], None), ([x, lengths], None), ([sequences], 5))
    ]
    for other in fits[1:]:
        close(dict(other.named_parameters()), dict(fits[0].named_parameters()), atol=1e-8, rtol=1e-8)
    close(fits[0].transform(sequences)[3], fits[0].transform(x, lengths)[3, : lengths[3]])
    assert fits[0].score(sequences) == pytest.approx(fits[0].score(x, lengths))


@pytest.mark.parametrize(
    ("method", "fixed"),
    [*((how, ("transition",)) for how in ("em", "sgd", "lbfgs")), ("em", ("emission", "emission_offset")),
     ("em", ("state_noise", "initial_mean")), ("sgd", ("state_noise", "initial_mean"))],
)  # fmt: skip
def test_fixed_parameters_stay(method, fixed, truth, sequences):
    model = LDS(H, N).set_parameters(**{k: v for k, v in values(truth).items() if k in fixed})
    before, start = values(model), model.score(sequences)
    model.fit(sequences, method=method, fixed=fixed, **{"max_iterations" if method == "em" else "num_steps": 5})
    after = values(model)
    for name in fixed:
        np.testing.assert_array_equal(after[name], before[name])
    moved = {name for name, value in after.items() if value is not None and not np.array_equal(value, before[name])}
    assert len(moved) == 8 - len(fixed) and model.score(sequences) > start
    assert all(value.requires_grad for value in model.parameters())


def test_autoregression_with_singular_noise_is_fitted():
    """AR(2) in companion form: the memory row and its zero noise are held, the noise's size is not."""
    rng = np.random.default_rng(0)
    x = np.zeros((400, 1))
    for t in range(2, 400):
        x[t] = 1.2 * x[t - 1] - 0.5 * x[t - 2] + rng.normal()
    model = LDS(2, 1, offsets="none", initial="stationary", noise_floor=1e-8)
    model.set_parameters(
        transition=[[1.0, -0.3], [1.0, 0.0]], state_noise=[[1.0, 0.0], [0.0, 0.0]], emission=[[1.0, 0.0]],
        emission_noise=[[1e-4]],
    )  # fmt: skip
    start = model.score([x])
    model.fit([x], method="em", fixed=("state_noise", "emission", "emission_noise"), max_iterations=1)
    assert model.score([x]) >= start - 1e-6
    np.testing.assert_allclose(model.transition.detach()[1], [1.0, 0.0], atol=1e-4)


def test_inputs_are_found():
    truth = LDS(1, 2, num_inputs=2).set_parameters(
        transition=[[0.7]], state_noise=[[0.1]], emission=[[1.0], [2.0]], emission_noise=0.1 * np.eye(2),
        transition_inputs=[[1.0, 0.0]], emission_inputs=[[0.0, 1.0], [0.0, -1.0]],
    )  # fmt: skip
    inputs = torch.randn(6, 50, 2, dtype=F64)
    x, *_ = truth.sample(50, 6, inputs=inputs, seed=3)
    model = LDS(1, 2, num_inputs=2).fit(x, inputs=inputs, max_iterations=80, tolerance=1e-6)
    effect = (model.emission @ model.transition_inputs).detach()
    np.testing.assert_allclose(effect, [[1.0, 0.0], [2.0, 0.0]], atol=0.15)
    np.testing.assert_allclose(model.emission_inputs.detach(), [[0, 1], [0, -1]], atol=0.15)
    blind = LDS(1, 2).fit(x, max_iterations=80)
    assert model.bic(x, inputs=inputs) < blind.bic(x) and model.aic(x, inputs=inputs) < blind.aic(x)
    ragged = [row[:k].numpy() for k, row in zip((50, 20), x, strict=False)]
    driven = [row[:k].numpy() for k, row in zip((50, 20), inputs, strict=False)]
    assert model.score(ragged, inputs=driven) == pytest.approx(
        model.score(x[:1], inputs=inputs[:1]) + model.score(x[1:2, :20], inputs=inputs[1:2, :20])
    )


def test_far_from_zero_nothing_cancels(sequences):
    """The same data a million away give the same model, moved."""
    near, far = (LDS(H, N) for _ in range(2))
    moved = [row + 1e6 for row in sequences]
    near.fit(sequences, seed=0, max_iterations=10, tolerance=0, acceleration=0)
    far.fit(moved, seed=0, max_iterations=10, tolerance=0, acceleration=0)
    assert near.score(sequences) == pytest.approx(far.score(moved), abs=1e-2)
    np.testing.assert_allclose(near.emission_noise.detach(), far.emission_noise.detach(), atol=1e-4)


def test_noise_free_data_meet_the_floor_and_no_nan():
    x = np.stack([np.arange(20.0), 2 * np.arange(20.0)], 1)
    model = LDS(1, 2, noise_floor=1e-4)
    with pytest.warns(RuntimeWarning, match="floor"):
        model.fit([x], max_iterations=30)
    assert all(bool(value.isfinite().all()) for value in model.parameters())


def test_float32_is_fitted_as_well(sequences):
    x = np.stack([row[:20] for row in sequences])
    x[np.isnan(x).all(-1)] = 0.0
    model = LDS(H, N, dtype="float32").fit(x, max_iterations=5, seed=0)
    assert model.transition.dtype == torch.float32 and (np.diff(model.history.log_likelihoods) > 0).all()


def test_a_seed_repeats_a_fit(sequences):
    one, two = (LDS(H, N).fit(sequences, initialization="random", seed=4, max_iterations=3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_states_become_features(truth, sequences):
    features = truth.transform(sequences)
    assert [f.shape for f in features] == [(len(x), H) for x in sequences]
    close(features[2], truth.smooth(sequences).means[2])
    signal = truth.reconstruct(sequences)
    close(signal.means[0], features[0] @ truth.emission.T.detach() + truth.emission_offset.detach())
    together = LDS(H, N).fit_transform(sequences, max_iterations=2, seed=0)
    assert len(together) == len(sequences)
    # innovations are white: what was predicted is orthogonal to what was seen before
    x, *_ = truth.sample(400, 1, seed=2)
    error = (x - truth.one_step(x).means)[0, 20:]
    lag_one = (error[1:].T @ error[:-1] / len(error)).abs().max() / error.var(0).max()
    assert float(lag_one) < 0.15


def test_forecasts_of_ragged_rows_start_at_their_own_ends(truth, sequences):
    together = truth.forecast(sequences, 4)
    assert together.means.shape == (12, 4, N) and together.covariances.shape == (12, 4, N, N)
    alone = truth.forecast(sequences[5:6], 4)
    close(together.means[5], alone.means[0])
    close(together.covariances[5], alone.covariances[0])


def test_the_next_step_behind_rows_that_may_be_empty():
    model = LDS(H, N, num_inputs=1)
    torch.manual_seed(0)
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    x, inputs = torch.randn(3, 5, N).double(), torch.randn(3, 5, 1).double()
    lengths, further = torch.tensor([5, 0, 3]), torch.randn(3, 1).double()
    found = model.predict_next(x, lengths, inputs=inputs, next_inputs=further)
    for row, length in enumerate(lengths.tolist()):  # the same as a step of which nothing was seen
        longer = torch.cat([x[row, :length], torch.full((1, N), torch.nan).double()])[None]
        given = torch.cat([inputs[row, :length], further[row : row + 1]])[None]
        expected = model.one_step(longer, inputs=given)
        close(found.means[row], expected.means[0, -1])
        close(found.covariances[row], expected.covariances[0, -1])
    ragged = [row[:length] for row, length in zip(x, lengths.tolist(), strict=True)]
    driven = [row[:length] for row, length in zip(inputs, lengths.tolist(), strict=True)]
    again = model.predict_next(ragged, inputs=driven, next_inputs=further)
    close(again.means, found.means)
    with pytest.raises(ValueError, match="future_inputs must be given"):
        model.predict_next(x, lengths, inputs=inputs)


def test_random_starts_race(sequences):
    options = dict(initialization="random", max_iterations=6, tolerance=0.0)
    one = LDS(H, N).fit(sequences, seed=3, **options)
    best = LDS(H, N).fit(sequences, seed=3, num_restarts=4, **options)
    assert best.history.log_likelihoods[0] > one.history.log_likelihoods[0]
    with pytest.raises(ValueError, match="num_restarts: starts are alike"):
        LDS(H, N).fit(sequences, num_restarts=2)


# ------------------------------------------------------------------------------------------------ bad input
def test_bad_fits_are_refused(sequences):
    model = LDS(H, N)
    for arguments, message in (
        (dict(method="mcmc"), "method must be one of em, sgd, lbfgs"), (dict(fixed=("gain",)), "fixed: gain"),
        (dict(fixed=("transition_inputs",)), "fixed: transition_inputs"), (dict(step_size=0.7), "step_size"),
        (dict(initialization="zero"), "initialization must be one of"), (dict(batch_size=0), "batch_size"),
        (dict(lengths=[3] * 12), "lengths"), (dict(inputs=sequences), "inputs: this model takes none"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            model.fit(sequences, **arguments)
    for bad, message in (
        ([np.ones((2, N))], "x must hold more than num_states = 2"), ([np.full((9, N), np.nan)], "got 0"),
        ([np.ones((1, N))] * 5, "at least two steps"), (np.full((1, 4, N), np.inf), "x must be finite"),
        ([np.ones((4, N)), np.ones((4, 2))], "sequence 1"), (np.ones((4, N + 1)), "D = 3"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            model.fit(bad)
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        model.forecast(sequences, 0)


def test_data_that_nothing_can_be_learned_from_are_refused(sequences):
    model, x = LDS(H, N), torch.randn(4, 10, N, dtype=F64, generator=torch.Generator().manual_seed(0))
    unseen = x.clone()
    unseen[..., 1] = torch.nan
    for bad, message in ((torch.ones_like(x), "x must vary"), (0 * x, "x must vary"), (unseen, r"columns \[1\]")):
        with pytest.raises(ValueError, match=message):
            model.fit(bad)
    for lengths, error, message in (
        (torch.ones(3, dtype=torch.long), ValueError, r"shape \(B,\) = \(4,\)"),
        (torch.tensor([10.0] * 4), TypeError, "must hold integers"), (torch.tensor([10, 10, 10, -1]), ValueError, "0..10"),
    ):  # fmt: skip
        for call in (model.fit, model.score):
            with pytest.raises(error, match=f"lengths must .*{message}|lengths {message}"):
                call(x, lengths)


def test_arguments_of_other_types(sequences):
    model = LDS(H, N)
    close(model.forecast(sequences, np.int64(3)).means, model.forecast(sequences, 3).means)
    with pytest.raises(TypeError, match="transitions must be a tensor of shape"):
        model.log_prob(torch.zeros(1, 4, N, dtype=F64), transitions=[1])
    with pytest.raises(TypeError, match="LDS.fit with method 'sgd' has no option 'max_iterations'; it takes num_steps"):
        model.fit(sequences, method="sgd", max_iterations=3)


def test_an_unstable_transition_is_named_where_the_start_is_stationary(sequences):
    model = LDS(H, N, initial="stationary")
    with torch.no_grad():
        model.transition.mul_(3.0)
    with pytest.raises(ValueError, match="transition: its spectral radius is 1.5"):
        model.fit(sequences, warm_start=True)


def test_lbfgs_finds_the_level_of_the_nile():
    """Durbin and Koopman (2012), Time Series Analysis by State Space Methods, section 2.10; from variances of 1."""
    nile = pytest.importorskip("statsmodels.datasets.nile")
    x = nile.load().data["volume"].to_numpy()[None, :, None].astype(float)
    model = LDS(1, 1, offsets="none").set_parameters(
        transition=[[1.0]], emission=[[1.0]], initial_mean=[0.0], initial_covariance=[[1e7]], state_noise=[[1.0]],
        emission_noise=[[1.0]],
    )  # fmt: skip
    held = ("transition", "emission", "initial_mean", "initial_covariance")
    model.fit(x, method="lbfgs", fixed=held)
    assert model.emission_noise.item() == pytest.approx(15099, rel=0.005)
    assert model.state_noise.item() == pytest.approx(1469, rel=0.005)
    assert model.score(x) == pytest.approx(-641.5856, abs=1e-4)
    assert model.history.converged and (np.diff(model.history.losses) <= 0).all()


def test_what_was_frozen_before_a_fit_stays_frozen():
    model, x = LDS(1, 2), torch.randn(2, 8, 2, dtype=torch.float64)
    model.set_parameters(transition=[[0.5]], emission=[[1.0], [2.0]])
    model.emission.requires_grad_(False)
    model.fit(x, fixed=["emission", "transition"], max_iterations=1)
    assert not model.emission.requires_grad and model.transition.requires_grad


@torch.no_grad()
@pytest.mark.parametrize(
    "offsets, fixed, noise, size",
    [
        *((offsets, (), "full", (2, 1)) for offsets in ("both", "transition", "emission", "none")),
        *(("both", fixed, "full", (2, 1)) for fixed in (("emission",), ("transition", "emission"))),
        *((offsets, ("state_noise", "initial_mean"), "full", (2, 1)) for offsets in ("both", "transition", "none")),
        ("both", (), "full", (1, 1)), ("emission", ("emission",), "full", (1, 1)), ("both", (), "full", (2, 2)),
        ("transition", ("transition", "emission"), "full", (2, 2)), ("both", (), "full", (3, 1)),
        ("both", (), "diagonal", (2, 1)), ("none", ("emission",), "diagonal", (2, 1)),
    ],
)  # fmt: skip
def test_parameters_that_coordinates_make_up_for_are_not_counted(offsets, noise, size, fixed):
    """The rank of the likelihood's dependence on the parameters, of the first and second moments of a few observations."""
    torch.manual_seed(0)
    model = LDS(*size, offsets=offsets, state_noise=noise, emission_noise="full")
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn(parameter.shape, dtype=parameter.dtype)
    raw, T = dict(model.named_parameters()), 10
    free = {name: value.tril() if name.endswith("scale") and value.dim() == 2 else value for name, value in raw.items()}
    where = {
        name: torch.tril_indices(*value.shape) if name.endswith("scale") and value.dim() == 2 else None
        for name, value in free.items()
    }

    def moments(vector):
        at, parts = 0, {}
        for name, value in free.items():
            size = value.numel() if where[name] is None else where[name].shape[1]
            piece, at = vector[at : at + size], at + size
            parts[name] = piece.reshape(value.shape) if where[name] is None else _filled(piece, where[name], value.shape)
        A, C = parts["transition"], parts["emission"]
        b, d = (parts.get(f"{kind}_offset", torch.zeros(1).double()) for kind in ("transition", "emission"))
        scale, R = parts["state_scale"], parts["emission_scale"]
        R = R.tril(-1) + torch.diag(R.diagonal().exp())
        Q = torch.diag(scale**2) if scale.dim() == 1 else scale @ scale.T
        mean, cov = parts["initial_mean"], parts["initial_scale"] @ parts["initial_scale"].T
        found = []
        for _ in range(T):
            found += [C @ mean + d, (C @ cov @ C.T + R @ R.T).reshape(-1)]
            ahead = cov
            for _ in range(4):
                ahead = A @ ahead
                found.append((C @ ahead @ C.T).reshape(-1))
            mean, cov = A @ mean + b, A @ cov @ A.T + Q
        return torch.cat(found)

    vector = torch.cat([v.reshape(-1) if where[k] is None else v[tuple(where[k])] for k, v in free.items()])
    jacobian = torch.autograd.functional.jacobian(moments, vector, vectorize=True)
    held = {{"state_noise": "state_scale"}.get(name, name) for name in fixed}
    names = [k for k, v in free.items() for _ in range(v.numel() if where[k] is None else where[k].shape[1])]
    jacobian = jacobian[:, [name not in held for name in names]]
    model.fixed_parameters = frozenset(fixed)
    assert int(torch.linalg.matrix_rank(jacobian, rtol=1e-9)) == model.num_free_parameters


def _filled(piece, where, shape):
    return torch.zeros(shape, dtype=piece.dtype).index_put(tuple(where), piece)
