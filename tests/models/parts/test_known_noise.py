"""Known covariances that are added to those of states: against sums over all paths, by EM, gradients and draws."""

import itertools

import numpy as np
import pyro
import pytest
import torch
from support.grids import grid

from pplseq import HMM, SemiMarkovHMM

F64 = torch.float64
B, T, Z, D = 3, 4, 2, 2
LENGTHS = torch.tensor([4, 1, 3])
close = torch.testing.assert_close
KINDS = ("diag", "full", "tied", "spherical")


def spd(*shape):
    root = torch.randn(*shape, shape[-1], dtype=F64)
    return root @ root.mT / shape[-1] + 0.1 * torch.eye(shape[-1], dtype=F64)


def made(covariance="full", missing=True, **options):
    torch.manual_seed(0)
    model = HMM(Z, num_features=D, covariance=covariance, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    x = torch.randn(B, T, D, dtype=F64)
    if missing:
        x[0, 1], x[0, 2, 0], x[2, 0, 1] = torch.nan, torch.nan, torch.nan
    return model, x, spd(B, T, D)


def every_path(model, x, noises):
    """log p(path, x) of a row, path by path."""
    first, moves = torch.log_softmax(model.initial_logits, -1), torch.log_softmax(model.transition_logits, -1)
    rows = range(model.num_states) if model._rows is None else model._rows.tolist()
    loc, covariances, found = model.emissions.loc, model.emissions.covariances(), []
    for path in itertools.product(range(model.num_states), repeat=len(x)):
        total = first[path[0]] + sum(moves[i, j] for i, j in itertools.pairwise(path))
        for y, noise, k in zip(x, noises, (rows[k] for k in path), strict=True):
            o = ~y.isnan()
            if bool(o.any()):
                spread = (covariances[k] + noise)[o][:, o]
                total = total + torch.distributions.MultivariateNormal(loc[k][o], spread).log_prob(y[o])
        found.append(total)
    return torch.stack(found)


@grid({"vectorize": [True, False], "missing": [False, True], "covariance": KINDS}, times=2)
def test_likelihoods_gradients_and_states_are_those_of_all_paths(covariance, missing, vectorize):
    model, x, noises = made(covariance, missing)
    model.vectorize = vectorize
    noises.requires_grad_()
    paths = [every_path(model, x[row, :n], noises[row, :n]) for row, n in enumerate(LENGTHS.tolist())]
    wanted, found = sum(path.logsumexp(0) for path in paths), model.log_joint(x, LENGTHS, emission_noises=noises)
    close(found, wanted, rtol=1e-12, atol=0)
    held = [noises, *model.parameters()]
    for one, other in zip(*(torch.autograd.grad(value, held) for value in (found, wanted)), strict=True):
        one, other = (g + g.mT if g.dim() == 4 else g for g in (one, other))  # of covariances the symmetric part is defined
        close(one, other, rtol=1e-8, atol=1e-10)
    known = dict(emission_noises=noises.detach())
    assert model.score(x, LENGTHS, **known) == pytest.approx(float(wanted.detach()), rel=1e-12)
    smoothed, best = model.smooth(x, LENGTHS, **known).probs, model.decode(x, LENGTHS, **known)
    for row, path in enumerate(paths):
        each = torch.tensor([*itertools.product(range(Z), repeat=int(LENGTHS[row]))])
        probs = torch.stack([(path.softmax(0)[:, None] * (each == k)).sum(0) for k in range(Z)], -1)
        close(smoothed[row, : len(probs)], probs.detach())
        assert best[row, : len(probs)].tolist() == each[path.argmax()].tolist()


@pytest.mark.parametrize("covariance", KINDS)
@pytest.mark.parametrize("missing", [False, True])
def test_statistics_have_the_gradient_of_the_likelihood(covariance, missing):
    """Fisher's identity: the expected log-density of what is without noise rises as the likelihood does."""
    model, x, noises = made(covariance, missing)
    batch = model._as_batch(x, LENGTHS, emission_noises=noises)
    found = model.expected_statistics(model.chain_of(batch), batch)
    model.log_joint(batch.x, batch.lengths, **batch.known).backward()
    weight, first, second = (found[name] for name in ("weight", "first", "second"))
    precision = torch.linalg.inv(model.covariances)
    close((precision @ (first - weight.unsqueeze(-1) * model.loc).unsqueeze(-1)).squeeze(-1), model.emissions.loc.grad)
    if covariance in ("diag", "spherical"):
        apart = second - 2 * first * model.loc + weight.unsqueeze(-1) * model.loc.square()
        slope = apart * precision.diagonal(dim1=-2, dim2=-1) - weight.unsqueeze(-1)
        close(slope if covariance == "diag" else slope.sum(-1, keepdim=True), model.emissions.log_scale.grad)


@pytest.mark.parametrize("covariance", KINDS)
def test_em_never_falls_and_ends_where_gradients_end(covariance):
    torch.manual_seed(1)
    states = torch.arange(60) // 10 % 2
    noises = torch.diag_embed(torch.where(torch.arange(60) % 2 == 0, 0.01, 25.0).unsqueeze(-1).expand(60, D)).double()
    x = 4.0 * states[:, None] + torch.randn(60, D) + noises.diagonal(dim1=-2, dim2=-1).sqrt() * torch.randn(60, D)
    x = x.double()[None]
    ends = []
    for options in (dict(max_iterations=200, tolerance=1e-9), dict(method="lbfgs", num_steps=200)):
        model = HMM(Z, num_features=D, covariance=covariance).set_parameters(loc=[[0.0, 0], [4, 4]], initial=[0.5, 0.5])
        model.fit(x, emission_noises=noises, warm_start=True, **options)
        if "method" not in options:
            assert (np.diff(model.history.log_likelihoods) > -1e-9).all()
        ends.append(model.score(x, emission_noises=noises))
    assert ends[0] == pytest.approx(ends[1], abs=1e-2)
    blind = HMM(Z, num_features=D, covariance=covariance).fit(x, seed=0)
    assert ends[0] > blind.score(x) + 5  # and to know them is worth something
    clear, blurred = (of.covariances.diagonal(dim1=-2, dim2=-1).mean() for of in (model, blind))
    assert clear < blurred


def test_one_state_one_step_ties_lists_and_durations():
    model, x, noises = made("diag", ties=[0, 0])
    wanted = sum(every_path(model, *pair).logsumexp(0) for pair in zip(x, noises, strict=True))
    close(model.log_joint(x, emission_noises=noises), wanted)
    one = HMM(1, num_features=1).set_parameters(loc=[[1.0]], covariance=[[2.0]])
    found = one.score(torch.zeros(1, 1, 1), emission_noises=torch.full((1, 1, 1), 3.0))
    assert found == pytest.approx(float(torch.distributions.Normal(1.0, 5.0**0.5).log_prob(torch.tensor(0.0))), rel=1e-6)
    model, x, noises = made("full")
    rows = [x[row, :n] for row, n in enumerate(LENGTHS.tolist())]
    lists = model.score(rows, emission_noises=[noises[row, :n] for row, n in enumerate(LENGTHS.tolist())])
    assert lists == pytest.approx(model.score(x, LENGTHS, emission_noises=noises), rel=1e-12)
    lasting = SemiMarkovHMM(2, num_features=D, max_duration=3)
    lasting.fit(x, LENGTHS, emission_noises=noises, max_iterations=3)
    assert (np.diff(lasting.history.log_likelihoods) > -1e-9).all()


def test_forecasts_take_the_noise_to_come():
    model, x, noises = made("full", missing=False)
    found = model.forecast(x, 2, emission_noises=noises, future_emission_noises=noises[0, :2])
    none = model.forecast(x, 2, emission_noises=noises, future_emission_noises=torch.zeros(2, D, D))
    close(found.covariances - none.covariances, noises[:1, :2].expand(B, -1, -1, -1))
    close(model.filter(x, emission_noises=noises).probs[:, -1] @ model.transition, found.state_log_probs[:, 0].exp())
    low, high = found.intervals(0.9)
    tight = none.intervals(0.9)
    assert bool((low < tight[0]).all()) and bool((high > tight[1]).all())
    one = model.predict_next(x, emission_noises=noises, future_emission_noises=noises[0, :1])
    close(one.covariances, found.covariances[:, 0])
    with pytest.raises(ValueError, match="future_emission_noises: must be given"):
        model.forecast(x, 2, emission_noises=noises)


def test_draws_priors_and_what_is_refused():
    model, x, noises = made("diag", priors=True)
    pyro.set_rng_seed(0)
    wide = model.sample(T, B, emission_noises=1e4 * noises, seed=0).x
    assert wide.shape == (B, T, D) and float(wide.std()) > 20
    model.fit(x, LENGTHS, emission_noises=noises, method="nuts", num_samples=4, warmup_steps=2, max_tree_depth=2, seed=0)
    model.fit(x, LENGTHS, emission_noises=noises, method="svi", num_steps=2, seed=0)
    for other in (HMM(2, num_words=3), HMM(2, emission="poisson"), HMM(2, num_features=2, emission="mixture")):
        data = torch.zeros(1, 2).long() if other.num_words else torch.zeros(1, 2, other.num_features)
        with pytest.raises(ValueError, match="emission_noises: known covariances are added to those of Gaussians"):
            other.fit(data, emission_noises=torch.ones(2, 1, 1))
    with pytest.raises(ValueError, match=r"emission_noises must have shape \(3, 4, 2, 2\)"):
        model.score(x, emission_noises=torch.ones(T, D))
    with pytest.raises(ValueError, match="emission_noises must be positive semidefinite"):
        model.score(x, emission_noises=-torch.eye(D).expand(T, D, D))
