"""Intervals of forecasts are quantiles of mixtures: beside other distribution functions, sums over all paths, and draws."""

import itertools
import math

import pytest
import torch

from pplseq import ARHMM, HMM, IOHMM, LDS, SwitchingRegression
from pplseq.infer.discrete.mixtures import PathMixture, StateMixture, gaussian_cdf, quantiles_of

F64 = torch.float64
close = torch.testing.assert_close
special = pytest.importorskip("scipy.special")
stats = pytest.importorskip("scipy.stats")
MATRIX, FIRST = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=F64), torch.tensor([0.5, 0.5], dtype=F64)


def test_bisection_finds_the_smallest_number_that_reaches_a_share():
    centre, width = torch.tensor([math.inf, 1e8, -3.0], dtype=F64), torch.tensor([1.0, math.nan, 1e-12], dtype=F64)
    at = torch.tensor([0.0, -1e300, 1e-300], dtype=F64)
    assert torch.equal(quantiles_of(lambda x: (x >= at).double(), 0.5, centre, width), at)
    asked = []
    for jump in (0.0, 5e-324, -5e-324, 1.0, -math.pi, 1e300):  # as often at 0, where halves of a bracket come to no end
        asked.append(0)

        def cdf(x, jump=jump):
            asked[-1] += 1
            return (x >= jump).double()

        assert float(quantiles_of(cdf, 0.5, torch.tensor(0.3), torch.tensor(0.4))) == jump
    assert max(asked[:5]) < 80
    rows = torch.tensor([0.0, math.nan])
    found = quantiles_of(lambda x: torch.special.ndtr(x - rows), 0.5, torch.zeros(2), torch.ones(2))
    assert float(found[0]) == pytest.approx(0.0, abs=1e-12) and bool(found[1].isnan())
    with pytest.raises(ArithmeticError, match="does not reach"):
        quantiles_of(torch.zeros_like, 0.5, at, torch.ones_like(at))


def test_rounding_of_single_precision_hides_no_tails():
    weights = torch.tensor([[[0.1, 0.2, 0.7 - 1e-6]]])
    zero, one = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    mixture = StateMixture(weights, gaussian_cdf(zero.expand(1, 3, 1), one), zero, one)
    for share in (1e-12, 1 - 1e-12):
        assert float(mixture.quantiles(share)) == pytest.approx(stats.norm.ppf(share), rel=1e-6)


FAMILIES = {
    "gaussian": (
        dict(loc=[[-5.0], [5.0]], covariance=[[0.3], [4.0]]),
        lambda x: [stats.norm.cdf(x, -5, 0.3**0.5), stats.norm.cdf(x, 5, 2)],
    ),
    "mixture": (
        dict(weights=[[0.2, 0.8], [1.0, 0.0]], loc=[[0.0], [9.0], [3.0], [1.0]], covariance=torch.ones(4, 1)),
        lambda x: [0.2 * stats.norm.cdf(x) + 0.8 * stats.norm.cdf(x - 9), stats.norm.cdf(x - 3)],
    ),
    "student_t": (
        dict(loc=[0.0, 4.0], scale=[1.0, 3.0], df=[1.5, 9.0]),
        lambda x: [stats.t.cdf(x, 1.5), stats.t.cdf((x - 4) / 3, 9)],
    ),
    "poisson": (dict(rate=[1.5, 300.0]), lambda x: [stats.poisson.cdf(x, 1.5), stats.poisson.cdf(x, 300)]),
    "negative_binomial": (
        dict(mean=[2.0, 50.0], size=[0.7, 3.0]),
        lambda x: [stats.nbinom.cdf(x, 0.7, 0.7 / 2.7), stats.nbinom.cdf(x, 3, 3 / 53)],
    ),
    "exponential": (dict(rate=[2.0, 0.1]), lambda x: [stats.expon.cdf(2 * x), stats.expon.cdf(x / 10)]),
    "bernoulli": (dict(probs=[0.1, 0.99]), lambda x: [stats.bernoulli.cdf(x, 0.1), stats.bernoulli.cdf(x, 0.99)]),
    "Laplace": (
        dict(loc=[-2.0, 2.0], scale=[1.0, 0.5]), lambda x: [stats.laplace.cdf(x + 2), stats.laplace.cdf((x - 2) / 0.5)]
    ),
    "LogNormal": (
        dict(loc=[0.0, 2.0], scale=[1.0, 0.5]),
        lambda x: [stats.lognorm.cdf(x, 1), stats.lognorm.cdf(x / math.exp(2), 0.5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_of_every_family(family):
    """The distribution function of the mixture, from scipy, is the share at the ends; below them it is less."""
    parameters, cdfs = FAMILIES[family]
    options = dict(num_features=1) if family in ("gaussian", "mixture") else {}
    model = HMM(2, emission=family, **options).set_parameters(initial=FIRST, transition=MATRIX, **parameters)
    x = [[1.0, 1.0, 1.0], [1.0]]
    found = model.forecast([torch.tensor(row).double()[:, None] for row in x], 4)
    ends = found.intervals(0.8)
    weights, discrete = found.state_log_probs.exp().numpy(), family in ("poisson", "negative_binomial", "bernoulli")
    for end, share in zip(ends, (0.1, 0.9), strict=True):
        assert end.shape == (2, 4, 1) and end.dtype == F64

        def mixed(at):
            return sum(weights[..., k] * part for k, part in enumerate(cdfs(at)))

        at = end[..., 0].numpy()
        if discrete:
            assert (at == at.round()).all() and (mixed(at) >= share - 1e-12).all() and (mixed(at - 1) < share).all()
        else:
            assert abs(mixed(at) - share).max() < 1e-12
    one = model.predict_next([torch.tensor(row).double()[:, None] for row in x]).intervals(0.8)
    close(one[0], ends[0][:, 0])


def test_columns_of_different_kinds_ties_and_an_interval_that_is_no_normal_s():
    model = HMM(3, emission=["normal", "poisson"], ties=[0, 1, 1])
    x = torch.tensor([[0.3, 2.0], [-8.0, 40.0]] * 5).double()
    low, high = model.fit([x], seed=0, max_iterations=5).forecast([x], 3).intervals(0.9)
    assert low.shape == high.shape == (1, 3, 2) and bool((low < high).all()) and bool((high[..., 1] % 1 == 0).all())
    even = dict(initial=FIRST, transition=[[0.5, 0.5]] * 2)
    far = HMM(2, num_features=1).set_parameters(**even, loc=[[-9.0], [9.0]], precision=[[1.0]] * 2)
    found = far.forecast(torch.zeros(1, 2, 1), 1)
    close(found.intervals(0.5)[1], torch.tensor([[[9.0]]]).double())  # where the normal of the same moments says 6.1
    with pytest.raises(ValueError, match="level"):
        found.intervals(1.0)


def test_angles_and_words_have_none():
    angles = HMM(2, emission="von_mises").fit([torch.linspace(-1, 1, 9)], seed=0, max_iterations=2)
    for found in (angles.forecast([[0.3]], 2), HMM(2, num_words=3).fit([[0, 1, 2]], seed=0).forecast([[1]], 2)):
        with pytest.raises(ValueError, match="intervals: this forecast is of no numbers"):
            found.intervals()


def autoregression(order, features=1, seed=0):
    torch.manual_seed(seed)
    model, spread = ARHMM(2, features, order=order, num_inputs=1), torch.eye(features).double()
    values = dict(
        transition=MATRIX, initial=FIRST, constants=[[2.0] * features, [-3.0] * features], inputs=torch.randn(2, features, 1),
        covariances=torch.stack([0.2 * spread, 2 * spread + 0.5]),
    )  # fmt: skip
    if order:
        values["lags"] = 0.3 * torch.randn(2, order, features, features)
    return model.set_parameters(**values)


@pytest.mark.parametrize(("order", "features"), [(0, 2), (1, 1), (2, 2)])
def test_autoregressions_by_every_path_alone(order, features):
    """A Gaussian for each path of states, by the recursion of a single vector autoregression."""
    model, steps = autoregression(order, features), 3
    x = torch.randn(2, 5, features, dtype=F64)
    known, ahead = torch.randn(2, 5, 1, dtype=F64), torch.randn(2, steps, 1, dtype=F64)
    found = model.forecast(x, steps, torch.tensor([5, 4]), inputs=known, future_inputs=ahead)
    values = {name: value.detach() for name, value in model.estimates().items()}
    states = model.filter(x, torch.tensor([5, 4]), inputs=known).probs
    ends = [end.numpy() for end in found.intervals(0.9)]
    for row, last in enumerate((5, 4)):
        total = [[0.0, 0.0] for _ in range(steps)]
        for path in itertools.product(range(2), repeat=steps):
            weight = states[row, last - 1] @ MATRIX[:, path[0]]
            past = [(x[row, last - lag - 1], {}) for lag in range(order)]  # means, and weights of shocks by step
            for step, k in enumerate(path):
                weight = weight * (MATRIX[path[step - 1], k] if step else 1.0)
                mean = values["constants"][k] + values["inputs"][k] @ ahead[row, step]
                shocks = {step: torch.eye(features).double()}
                for lag in range(order):
                    matrix = values["lags"][k, lag]
                    mean = mean + matrix @ past[lag][0]
                    for when, gain in past[lag][1].items():
                        shocks[when] = shocks.get(when, 0) + matrix @ gain
                past = [(mean, shocks), *past][:order] if order else []
                variance = sum(gain @ values["covariances"][path[when]] @ gain.T for when, gain in shocks.items()).diagonal()
                if step == steps - 1 or path[step + 1 :] == (0,) * (steps - step - 1):  # once for each of the shorter paths
                    for side in range(2):
                        share = stats.norm.cdf((ends[side][row, step] - mean.numpy()) / variance.sqrt().numpy())
                        total[step][side] = total[step][side] + float(weight) * share
        for below, above in total:
            assert abs(below - 0.05).max() < 1e-9 and abs(above - 0.95).max() < 1e-9


@pytest.mark.parametrize("lags_of", ["values", "deviations"])
def test_paths_of_a_switching_regression_have_the_moments_of_its_forecast(lags_of):
    torch.manual_seed(1)
    model = SwitchingRegression(2, order=1, lags_of=lags_of)
    x = torch.cat([torch.randn(40), 6 + 3 * torch.randn(40)]).double()
    model.fit(x, seed=0, num_steps=20)
    found = model.forecast(x, 4)
    low, high = found.intervals(0.8)
    assert low.shape == high.shape == found.means.shape == (1, 4, 1)
    one = model.predict_next(x).intervals(0.8)
    close(one[0], low[:, 0])
    # the moments of the paths are those of the forecast, whose recursion knows nothing of paths
    for (weights, means, variances), mean, variance in zip(
        found.quantiles.steps(), found.means[0], found.covariances[0, :, 0], strict=True
    ):
        close((weights.unsqueeze(-1) * means).sum(1)[:, 0], mean)
        apart = variances + (means - mean[:, None, None]).square()
        close((weights.unsqueeze(-1) * apart).sum(1)[:, 0], variance)


def test_more_paths_than_fit_are_refused_and_those_that_cannot_be_are_left_out():
    model = autoregression(1)
    with pytest.raises(ValueError, match="steps ahead is a mixture of .* Gaussians; ask for"):
        model.forecast(torch.randn(1, 4, 1), 40, inputs=torch.zeros(1, 4, 1), future_inputs=torch.zeros(40, 1)).intervals()
    stay = torch.eye(2).double()
    moves = [torch.tensor([[[[1.0, 0.0], [1.0, 0.5]]] * 2]).double()] * 30
    low = PathMixture(torch.tensor([[0.3, 0.7]]), stay, torch.ones(1, 2), moves, torch.ones(2, 1, 1), torch.zeros(1, 1))
    assert low.quantiles(0.5).shape == (1, 30, 1)


@pytest.mark.parametrize("feedback", [False, True])
def test_outputs_of_an_iohmm(feedback):
    """Normals around what each state puts out, given inputs to come; of what is fed back a step ahead alone is known."""
    torch.manual_seed(0)
    model = IOHMM(2, num_inputs=1, num_outputs=2, outputs="gaussian", mealy=True, feedback=feedback)
    x, past, ahead = torch.randn(2, 5, 2, dtype=F64), torch.randn(2, 5, 1, dtype=F64), torch.randn(2, 3, 1, dtype=F64)
    model.is_fitted = True
    found = model.predict_next(x, torch.tensor([5, 3]), inputs=past, next_inputs=ahead[:, 0])
    low, high = found.intervals(0.7)
    assert low.shape == (2, 2)
    for side, share in ((low, 0.15), (high, 0.85)):
        mixed = (found.state_log_probs.exp().unsqueeze(-1) * found.quantiles.cdf(side)).sum(-2)
        close(mixed, torch.full((2, 2), share, dtype=F64))
    rest = model.forecast(x, 3, torch.tensor([5, 3]), inputs=past, future_inputs=ahead)
    if feedback:
        with pytest.raises(ValueError, match="no numbers whose distribution is known"):
            rest.intervals()
    else:
        close(rest.intervals(0.7)[0][:, 0], low)
        assert bool((rest.intervals(0.7)[1] > rest.means).all())



RESPONSES = {
    "normal": lambda mean, spread: lambda x: stats.norm.cdf(x, mean, spread),
    "poisson": lambda mean, _: lambda x: stats.poisson.cdf(x, mean),
    "negative_binomial": lambda mean, size: lambda x: stats.nbinom.cdf(x, size, size / (size + mean)),
    "gamma": lambda mean, shape: lambda x: stats.gamma.cdf(x, shape, scale=mean / shape),
    "exponential": lambda mean, _: lambda x: stats.expon.cdf(x / mean),
    "bernoulli": lambda mean, _: lambda x: stats.bernoulli.cdf(x, mean),
    "binomial": lambda mean, _: lambda x: stats.binom.cdf(x, 7, mean / 7),
}


@pytest.mark.parametrize("num_inputs", [0, 1])
def test_responses_of_every_family_beside_each_other(num_inputs):
    torch.manual_seed(0)
    families = [*RESPONSES, "categorical"]
    model = IOHMM(2, num_inputs=num_inputs, outputs=families, num_outputs=[1] * 7 + [3], trials=7).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    model.is_fitted = True
    x = torch.tensor([[0.3, 2, 1, 0.5, 0.2, 1, 3, 2]], dtype=F64).repeat(4, 1)
    known = {"inputs": [torch.randn(4, 1, dtype=F64)], "future_inputs": torch.randn(1, 3, 1, dtype=F64)} if num_inputs else {}
    found = model.forecast([x], 3, **known)
    low, high = found.intervals(0.8)
    assert low.shape == high.shape == found.means.shape == (1, 3, 10)
    inputs = known["future_inputs"] if num_inputs else None
    parts = {} if inputs is None else {"emission": inputs, "transition": inputs}
    emission = model._emission_at(model.format.missing(1, 3), parts)
    means = emission.moments[0].detach().expand(1, 3, 2, -1).numpy()
    spreads = emission.parameters["dispersion"].detach().expand(1, 3, 2, -1).numpy()
    weights = found.state_log_probs.exp().numpy()
    for column in emission.columns.columns[:7]:
        k, place = column.number, column.place
        cdf = RESPONSES[column.family](means[..., k], None if place is None else spreads[..., place])
        for ends, share in ((low, 0.1), (high, 0.9)):
            at = ends[..., k].numpy()
            reached = (weights * cdf(at[..., None])).sum(-1)
            if column.family in ("normal", "gamma", "exponential"):
                assert abs(reached - share).max() < 1e-10
            else:
                below = (weights * cdf(at[..., None] - 1)).sum(-1)
                assert (at == at.round()).all() and (reached >= share - 1e-12).all() and (below < share).all()
    assert bool(((high[..., 7:] == 1) == (found.means[..., 7:] > 0.1)).all())
    next_inputs = {"inputs": known["inputs"], "next_inputs": inputs[:, 0]} if num_inputs else {}
    one = model.predict_next([x], **next_inputs).intervals(0.8)
    close(one[0], low[:, 0])
    close(one[1], high[:, 0])


def test_frames_of_numbers_far_and_near():
    pytest.importorskip("pandas")
    torch.manual_seed(0)
    x = torch.randn(60, 1, dtype=F64)
    model = IOHMM(2, num_inputs=0, outputs=["normal"]).fit([x], num_restarts=2, max_iterations=5)
    frame = model.forecast([x], num_steps=2).frame()
    assert len(frame) == 2 and bool((frame.iloc[:, 1] < frame.iloc[:, 2]).all())


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_intervals_of_a_linear_system_have_their_level(level):
    future = LDS(2, 2).forecast(torch.randn(1, 5, 2, dtype=F64), 3)
    low, high = future.intervals(level)
    half = stats.norm.ppf((1 + level) / 2) * future.covariances.diagonal(dim1=-2, dim2=-1).sqrt()
    close(torch.stack([high - future.means, future.means - low]), half.expand(2, *half.shape), rtol=1e-9, atol=0)
