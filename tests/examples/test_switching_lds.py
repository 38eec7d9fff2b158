"""Kim's filter beside all paths of regimes: exact where nothing is collapsed that matters, near elsewhere, and it says so."""

import itertools
import warnings

import pytest
import torch
from pyro import poutine
from support.grids import grid
from support.macro_series import GNP
from support.oracles.gaussian import GaussianSequence, kalman_loop
from switching_lds import ApproximateSwitchingLDS

from pplseq import LDS
from pplseq.models import SequenceModel

pytestmark = pytest.mark.slow  # no part of the library

F64 = torch.float64
R, H, N = 2, 2, 2
close = torch.testing.assert_close
approximate = pytest.mark.filterwarnings("ignore:ApproximateSwitchingLDS")


def spd(*shape):
    root = torch.randn(*shape, shape[-1], dtype=F64)
    return root @ root.mT / shape[-1] + 0.1 * torch.eye(shape[-1], dtype=F64)


def made(seed=0, **options):
    torch.manual_seed(seed)
    model = ApproximateSwitchingLDS(R, H, N, **options)
    values = {}
    for name, value in model.estimates().items():
        if name.startswith("regime_"):
            values[name] = torch.rand(value.shape, dtype=F64).softmax(-1)
        else:
            square = "noise" in name or "covariance" in name
            values[name] = spd(*value.shape[:-1]) if square else 0.6 * torch.randn(value.shape, dtype=F64)
    return model.set_parameters(**values)


def every_path(model, x):
    """log p(path, x) of a row (T, n), path by path, and the smoothed moments of states."""
    s, found, moments = model.system(), [], []
    paths = [*itertools.product(range(model.num_regimes), repeat=len(x))]
    for path in paths:
        prior = s.first[path[0]] + sum(s.moves[i, j] for i, j in itertools.pairwise(path))
        seen, later = [~y.isnan() for y in x], path[1:]
        truth = kalman_loop(GaussianSequence(
            s.mean, s.covariance, [s.transition[k] for k in later], [s.state_noise[k] for k in later],
            [s.transition_offset[k] for k in later], [s.emission[k][o] for k, o in zip(path, seen, strict=True)],
            [s.emission_noise[k][o][:, o] for k, o in zip(path, seen, strict=True)],
            [s.emission_offset[k][o] for k, o in zip(path, seen, strict=True)],
            [y[o] if bool(o.any()) else None for y, o in zip(x, seen, strict=True)],
        ))  # fmt: skip
        found.append(prior + truth.log_prob)
        moments.append(truth.smoothed[0])
    return torch.stack(found), torch.tensor(paths), torch.stack(moments)


EVERYTHING = ("transition", "transition_offset", "state_noise", "emission", "emission_offset", "emission_noise")


@grid({"missing": [False, True], "switching": [EVERYTHING, ("transition", "emission_noise"), "state_noise"]})
def test_two_steps_are_exact_with_their_gradients(switching, missing):
    model, x = made(switching=switching), torch.randn(3, 2, N, dtype=F64)
    if missing:
        x[0, 0], x[1, 1, 0] = torch.nan, torch.nan
    lengths = torch.tensor([2, 2, 1])
    wanted = sum(every_path(model, x[row, :n])[0].logsumexp(0) for row, n in enumerate(lengths.tolist()))
    found = model.log_joint(x, lengths)
    close(found, wanted)
    for one, other in zip(*(torch.autograd.grad(v, [*model.parameters()]) for v in (found, wanted)), strict=True):
        close(one, other, rtol=1e-7, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to warn of
        assert model.score(x, lengths) == pytest.approx(float(wanted.detach()))


@approximate
def test_regimes_that_are_alike_are_one_system():
    """And then what is collapsed is equal, so that nothing is lost at any length."""
    model = made(switching=("transition", "state_noise"))
    values = {name: value.detach() for name, value in model.estimates().items()}
    same = {name: values[name][:1].expand(R, -1, -1) for name in model.switching}
    model.set_parameters(**same)
    names = ("transition", "transition_offset", "state_noise", "emission", "emission_offset", "emission_noise")
    one = LDS(H, N).set_parameters(
        **{name: values[name][0] for name in names}, initial_mean=values["initial_mean"],
        initial_covariance=values["initial_covariance"],
    )  # fmt: skip
    x = torch.randn(2, 30, N, dtype=F64)
    x[0, 4], x[1, 7, 1] = torch.nan, torch.nan
    lengths = torch.tensor([30, 11])
    assert model.score(x, lengths) == pytest.approx(one.score(x, lengths), rel=1e-10)
    for ask in ("filter", "smooth"):
        found, wanted = getattr(model, ask)(x, lengths), getattr(one, ask)(x, lengths)
        close(found.means, wanted.means, rtol=1e-7, atol=1e-9)
        close(found.covariances, wanted.covariances, rtol=1e-7, atol=1e-9)


@approximate
def test_short_rows_are_near_the_sum_over_all_paths():
    errors, shifts = [], []
    for seed in range(4):
        model = made(seed)
        x = model.sample(5, 1, seed=seed).x
        log_probs, paths, moments = every_path(model, x[0])
        weights = log_probs.detach().softmax(0)
        exact, found = log_probs.detach().logsumexp(0), model.smooth(x)
        errors.append(abs(model.score(x) - float(exact)))
        regime = torch.stack([(weights[:, None] * (paths == r)).sum(0) for r in range(R)], -1)
        shifts.append(float((found.regimes[0] - regime).abs().max()))
        mean = torch.einsum("p,pth->th", weights, moments.detach())
        assert float((found.means[0] - mean).abs().max()) < 0.5
    assert 1e-9 < max(errors) < 0.05 and max(shifts) < 0.15


@approximate
def test_hamiltons_model_in_states_is_near_its_exact_likelihood():
    """Deviations from a switching mean as states that are observed exactly; EViews and statsmodels, exact: -181.26339."""
    lags = torch.tensor([0.013486, -0.057521, -0.246983, -0.212923], dtype=F64)
    move = torch.cat([lags[None], torch.eye(3, 4, dtype=F64)])
    noise = torch.zeros(4, 4, dtype=F64)
    noise[0, 0] = torch.tensor(-0.262658, dtype=F64).exp() ** 2
    matrix = torch.tensor([[0.754673, 0.245327], [0.095915, 0.904085]], dtype=F64)
    stay = torch.tensor([0.095915, 0.245327], dtype=F64)
    model = ApproximateSwitchingLDS(2, 4, 1, switching="emission_offset").set_parameters(
        regime_transition=matrix, regime_initial=stay / stay.sum(), transition=move[None], transition_offset=torch.zeros(1, 4),
        state_noise=noise[None], emission=torch.eye(1, 4)[None], emission_offset=[[-0.358811], [1.163516]],
        emission_noise=torch.zeros(1, 1, 1), initial_mean=torch.zeros(4),
        initial_covariance=torch.linalg.solve(torch.eye(16) - torch.kron(move, move), noise.flatten()).reshape(4, 4),
    )  # fmt: skip
    x = torch.tensor(GNP, dtype=F64)[None, :, None]
    given = model.score(x) - model.score(x[:, :4])  # the first four are given there
    assert given == pytest.approx(-181.26339, abs=0.5)


def test_the_program_leaves_out_what_is_missing():
    """Given regimes and states, log-densities of vectors are those of their coordinates that were observed."""
    model, x = made(switching=EVERYTHING), torch.randn(3, 3, N, dtype=F64)
    x[0, 1], x[1, 2, 0] = torch.nan, torch.nan
    trace = poutine.trace(model.model).get_trace(x)
    trace.compute_log_prob()
    s = model.system()
    for t in range(3):
        k, z = trace.nodes[f"s_{t}"]["value"], trace.nodes[f"z_{t}"]["value"]
        for row in range(3):
            o = ~x[row, t].isnan()
            mean = s.emission[k[row]] @ z[row] + s.emission_offset[k[row]]
            noise = s.emission_noise[k[row]][o][:, o]
            wanted = 0 * z[row, 0]
            if bool(o.any()):
                wanted = torch.distributions.MultivariateNormal(mean[o], noise).log_prob(x[row, t, o])
            close(trace.nodes[f"x_{t}"]["log_prob"][row], wanted)


def test_smoothed_beliefs_of_two_steps_are_approximate_and_say_so():
    model, x = made(switching=EVERYTHING), torch.randn(1, 2, N, dtype=F64)
    log_probs, paths, _ = every_path(model, x[0])
    weights = log_probs.detach().softmax(0)
    exact = torch.stack([(weights[:, None] * (paths == r)).sum(0) for r in range(R)], -1)
    with pytest.warns(UserWarning, match="an approximation without a bound"):
        found = model.smooth(x).regimes[0]
    close(found[1], exact[1])
    assert float((found[0] - exact[0]).abs().max()) > 1e-4  # so there is something to warn of
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.smooth(x[:, :1])


def test_it_says_that_it_is_approximate():
    model = made()
    with pytest.warns(UserWarning, match="Kim's filter"):
        made().fit(torch.randn(1, 9, N, dtype=F64), warm_start=True, num_steps=1)
    for ask in (model.score, model.filter, model.smooth, model.decode, model.reconstruct, model.predict_next):
        with pytest.warns(UserWarning, match="Kim's filter, an approximation without a bound"):
            ask(torch.randn(1, 3, N, dtype=F64))
    with pytest.raises(TypeError, match="sample_states: ApproximateSwitchingLDS"):
        model.sample_states(torch.randn(1, 3, N, dtype=F64))
    with pytest.raises(TypeError, match="cannot be summed exactly"):
        model(torch.randn(1, 3, N, dtype=F64))
    with pytest.raises(ValueError, match="switching must be one of"):
        ApproximateSwitchingLDS(2, 1, 1, switching="variance")
    with pytest.raises(ValueError, match="regime_initial: every row"):
        model.set_parameters(regime_initial=[0.5, 0.4])


@approximate
def test_fits_folders_and_draws(tmp_path):
    torch.manual_seed(0)
    quiet = torch.randn(40, dtype=F64) * torch.where(torch.arange(40) // 10 % 2 == 0, 0.2, 2.0)
    x = quiet.cumsum(0)[None, :, None]
    model = ApproximateSwitchingLDS(2, 1, 1, switching=["transition", "state_noise"]).fit(x, num_steps=6, seed=0)
    assert model.history.losses[-1] < model.history.losses[0]
    again = SequenceModel.load(model.save(tmp_path / "model"))
    assert again.score(x) == model.score(x)
    drawn = model.sample(6, 3, seed=1)
    assert drawn.x.shape == (3, 6, 1) and torch.equal(drawn.x, again.sample(6, 3, seed=1).x)


def paths_ahead(model, x, ahead):
    """Weights (P,) of all paths, and of each step to come means (P, K, n) and covariances (P, K, n, n) of observations."""
    s, longer = model.system(), torch.cat([x, torch.full((ahead, N), torch.nan, dtype=F64)])
    log_probs, paths, _ = every_path(model, longer)
    means, covariances = [], []
    for path in paths.tolist():
        later, seen = path[1:], [~y.isnan() for y in longer]
        states = kalman_loop(GaussianSequence(
            s.mean, s.covariance, [s.transition[k] for k in later], [s.state_noise[k] for k in later],
            [s.transition_offset[k] for k in later], [s.emission[k][o] for k, o in zip(path, seen, strict=True)],
            [s.emission_noise[k][o][:, o] for k, o in zip(path, seen, strict=True)],
            [s.emission_offset[k][o] for k, o in zip(path, seen, strict=True)],
            [y[o] if bool(o.any()) else None for y, o in zip(longer, seen, strict=True)],
        )).smoothed  # fmt: skip
        made = [*zip(path, *states, strict=True)][len(x) :]
        means.append(torch.stack([s.emission[k] @ mean + s.emission_offset[k] for k, mean, _ in made]))
        covariances.append(torch.stack([s.emission[k] @ c @ s.emission[k].T + s.emission_noise[k] for k, _, c in made]))
    return log_probs.detach().softmax(0), torch.stack(means).detach(), torch.stack(covariances).detach()


@pytest.mark.parametrize("steps", [1, 2])
def test_forecasts_of_short_rows_have_the_moments_of_all_paths(steps):
    """Exactly: what the filter keeps are moments, and so is what is asked."""
    model = made(switching=EVERYTHING)
    x = torch.randn(2, 2, N, dtype=F64)
    x[1, 0, 1] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to warn of
        found = model.forecast(x[:, :steps], 3)
    for row in range(2):
        weights, means, covariances = paths_ahead(model, x[row, :steps], 3)
        mean = torch.einsum("p,pkn->kn", weights, means)
        apart = means - mean
        spread = torch.einsum("p,pkmn->kmn", weights, covariances + apart.unsqueeze(-1) * apart.unsqueeze(-2))
        close(found.means[row], mean)
        close(found.covariances[row], spread)
    one = model.predict_next(x[:, :steps])
    close(one.covariances, found.covariances[:, 0])
    low, high = one.intervals(0.9)
    close(low, found.intervals(0.9)[0][:, 0])
    assert bool((low < one.means).all()) and bool((one.means < high).all())


@approximate
def test_longer_forecasts_and_signals_are_near_those_of_all_paths():
    for seed in range(2):
        model = made(seed)
        x = model.sample(4, 1, seed=seed).x
        x[0, 2, 0] = torch.nan
        found, signal = model.forecast(x, 2), model.reconstruct(x)
        weights, means, covariances = paths_ahead(model, x[0], 2)
        mean = torch.einsum("p,pkn->kn", weights, means)
        spread = torch.einsum("p,pkmn->kmn", weights, covariances + torch.einsum("pkm,pkn->pkmn", means - mean, means - mean))
        assert float((found.means[0] - mean).abs().max()) < 0.3
        assert float((found.covariances[0] / spread - 1).diagonal(dim1=-2, dim2=-1).abs().max()) < 0.3
        # the share of all paths' mixture below the ends of the intervals
        ends = found.intervals(0.8)
        for end, share in zip(ends, (0.1, 0.9), strict=True):
            below = torch.special.ndtr((end[0] - means) / covariances.diagonal(dim1=-2, dim2=-1).sqrt())
            assert float((torch.einsum("p,pkn->kn", weights, below) - share).abs().max()) < 0.06
        log_probs, paths, moments = every_path(model, x[0])
        s = model.system()
        made_of = (s.emission[paths] @ moments.unsqueeze(-1)).squeeze(-1) + s.emission_offset[paths]
        wanted = torch.einsum("p,ptn->tn", log_probs.softmax(0), made_of).detach()
        assert float((signal.means[0] - wanted).abs().max()) < 0.5


@approximate
def test_a_decoded_path_has_its_exact_probability_and_is_the_best_where_all_are_kept():
    falls = 0
    for seed in range(6):
        model = made(seed, switching=EVERYTHING)
        x = model.sample(5, 2, seed=seed).x
        lengths = torch.tensor([5, 2])
        chain = model.posterior(x, lengths)
        (found, total), narrow = chain.best(64), chain.best(2)[1]
        assert torch.equal(found, model.decode(x, lengths)) and found[1, 2:].tolist() == [-1] * 3
        for row, n in enumerate(lengths.tolist()):
            log_probs, paths, _ = every_path(model, x[row, :n])
            place = (paths == found[row, :n]).all(-1).nonzero().item()
            close(total[row], log_probs[place].detach())
            assert place == int(log_probs.argmax())
        falls += bool(narrow[0] < total[0] - 1e-9)
        assert bool((narrow <= total + 1e-9).all())
    assert falls  # a path that is dropped is lost
    ragged = model.decode([x[0], x[1, :2]])
    assert ragged[1].tolist() == found[1, :2].tolist()


@approximate
def test_regimes_that_are_alike_reconstruct_and_foretell_as_one_system():
    model = made(switching=("transition", "state_noise"))
    values = {name: value.detach() for name, value in model.estimates().items()}
    model.set_parameters(**{name: values[name][:1].expand(R, -1, -1) for name in model.switching})
    names = ("transition", "transition_offset", "state_noise", "emission", "emission_offset", "emission_noise")
    one = LDS(H, N).set_parameters(
        **{name: values[name][0] for name in names}, initial_mean=values["initial_mean"],
        initial_covariance=values["initial_covariance"],
    )  # fmt: skip
    x, lengths = torch.randn(2, 9, N, dtype=F64), torch.tensor([9, 4])
    x[0, 4], x[1, 2, 1] = torch.nan, torch.nan
    found, wanted = model.forecast(x, 3, lengths), one.forecast(x, 3, lengths)
    close(found.means, wanted.means)
    close(found.covariances, wanted.covariances)
    for mine, theirs in zip(found.intervals(), wanted.intervals(), strict=True):
        close(mine, theirs)
    signals = [of.reconstruct([x[0], x[1, :4]]) for of in (model, one)]
    for k in range(2):
        close(signals[0].means[k], signals[1].means[k])
        close(signals[0].covariances[k], signals[1].covariances[k], rtol=1e-6, atol=1e-8)
