"""Every query of Gaussian chains against a textbook filter and smoother and one joint Gaussian, values and gradients."""

import pytest
import torch
from support.grids import grid
from support.oracles.gaussian import joint_posterior
from support.tiny_gaussians import SINGULAR, SITUATIONS, tiny_case

every_situation = pytest.mark.parametrize("situation", SITUATIONS)
close = torch.testing.assert_close


def dot(values, seed=0):
    """A number that weighs every entry differently."""
    weights = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed), dtype=values.dtype)
    return (values * weights).sum()


def padded(case, rows, shape):
    """(B, T, *shape) from one tensor a row, zero behind its end."""
    none = torch.zeros(len(case.observations), *shape, dtype=torch.float64)
    return torch.stack([none if r is None else torch.cat([r, none[len(r) :]]) for r in rows])


def same_gradients(case, result, expected, **tolerance):
    got = torch.autograd.grad(result, case.parameters, allow_unused=True)
    wanted = torch.autograd.grad(expected, case.parameters, allow_unused=True)
    for parameter, a, b in zip(case.parameters, got, wanted, strict=True):
        zero = torch.zeros_like(parameter)
        close(zero if a is None else a, zero if b is None else b, **tolerance)


@every_situation
def test_log_prob_and_its_gradient(situation):
    case = tiny_case(situation)
    result = case.chain().log_prob()
    expected = torch.stack([result.new_zeros(()) if t is None else t.log_prob for t in case.truths()])
    close(result, expected)
    same_gradients(case, dot(result), dot(expected))


@every_situation
def test_token_log_probs(situation):
    case = tiny_case(situation)
    result = case.chain().token_log_probs()
    close(result, padded(case, [None if t is None else t.token_log_probs for t in case.truths()], ()))


@grid({"situation": SITUATIONS, "which": ["predicted", "filtered", "smoothed"]}, times=2)
def test_states_and_their_gradients(situation, which):
    case = tiny_case(situation)
    h = case.mean.shape[-1]
    states = getattr(case.chain(), f"{which}_states")()
    truths = case.truths()
    means = padded(case, [None if t is None else getattr(t, which)[0] for t in truths], (h,))
    covariances = padded(case, [None if t is None else getattr(t, which)[1] for t in truths], (h, h))
    close(states.means, means)
    close(states.covariances.dense(), covariances)
    if situation not in SINGULAR or which != "smoothed":  # the textbook's pseudo-inverse has no gradient there
        result = dot(states.means) + dot(states.covariances.dense(), 1)
        same_gradients(case, result, dot(means) + dot(covariances, 1), rtol=1e-6, atol=1e-8)


@every_situation
def test_lag_one_covariances(situation):
    case = tiny_case(situation)
    h = case.mean.shape[-1]
    result = case.chain().lag_one_covariances()
    expected = padded(case, [None if t is None else t.lag_one for t in case.truths()], (h, h))[:, :-1]
    close(result.dense(), expected)
    close(result.total(), expected.sum((0, 1)))


@every_situation
def test_filtered_is_the_belief_about_the_last_state(situation):
    case = tiny_case(situation)
    belief = case.chain().filtered()
    covariance = belief.covariance.expand(*belief.mean.shape, belief.mean.shape[-1])
    for row, truth in enumerate(case.truths()):
        sequence_start = case.mean[row], case.chain().flat.covariance.expand(len(belief.mean), -1, -1)[row]
        mean, expected = sequence_start if truth is None else (truth.filtered[0][-1], truth.filtered[1][-1])
        close(belief.mean[row], mean)
        close(covariance[row], expected)


@every_situation
def test_one_big_gaussian_agrees(situation):
    """Values and gradients, in singular covariances as well."""
    case = tiny_case(situation)
    chain, h = case.chain(), case.mean.shape[-1]
    log_prob, states, lag_one = chain.log_prob(), chain.smoothed_states(), chain.lag_one_covariances()
    mine, theirs = [], []
    for row, length in enumerate(case.lengths.tolist()):
        if length == 0:
            assert log_prob[row] == 0
            continue
        expected, mean, covariance = joint_posterior(case.sequence(row))
        blocks = covariance.view(length, h, length, h)
        steps = range(length)
        mine += [log_prob[row], states.means[row, :length], states.covariances.dense()[row, :length]]
        theirs += [expected, mean.view(length, h), torch.stack([blocks[t, :, t] for t in steps])]
        if length > 1:
            mine.append(lag_one.dense()[row, : length - 1])
            theirs.append(torch.stack([blocks[t + 1, :, t] for t in steps[:-1]]))
    close(mine, theirs)
    mine, theirs = (sum(dot(value, seed) for seed, value in enumerate(values)) for values in (mine, theirs))
    same_gradients(case, mine, theirs, rtol=1e-6, atol=1e-8)


@every_situation
def test_without_gradients_the_same(situation):
    """The steady state may be taken earlier, and every query must still be right; gradients asked for later are whole."""
    case = tiny_case(situation)
    chain = case.chain()
    with torch.no_grad():
        quiet = chain.log_prob(), chain.smoothed_states().means, chain.smoothed_states().covariances.dense()
    assert not any(value.requires_grad for value in quiet)
    close(quiet, (chain.log_prob(), chain.smoothed_states().means, chain.smoothed_states().covariances.dense()))
    same_gradients(case, chain.log_prob().sum(), case.chain().log_prob().sum())


@every_situation
def test_single_precision(situation):
    case = tiny_case(situation)
    double, single = case.chain(gradients=False), case.chain(gradients=False, dtype=torch.float32)
    for name in ("predicted_states", "filtered_states", "smoothed_states"):
        found, wanted = getattr(single, name)(), getattr(double, name)()
        assert found.means.dtype == torch.float32
        close(found.means.double(), wanted.means, rtol=2e-4, atol=2e-4)
        close(found.covariances.dense().double(), wanted.covariances.dense(), rtol=2e-4, atol=2e-4)
    close(single.log_prob().double(), double.log_prob(), rtol=2e-4, atol=2e-4)
