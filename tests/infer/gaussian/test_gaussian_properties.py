"""What holds of every Gaussian chain, on chains that hypothesis draws: sizes, lengths, gaps, singular matrices."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain

F64 = torch.float64
PARTS = "start", "dynamics", "evidence"


def close(mine, theirs):
    torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-8)


@st.composite
def chains(draw):
    """Arguments of a chain: its parts, and masks."""
    h, n, rows = (draw(st.integers(1, 3)) for _ in range(3))
    num_steps = draw(st.integers(1, 40))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    matrix = torch.randn(h, h, dtype=F64)
    matrix *= draw(st.sampled_from((0.0, 0.3, 0.9, 1.0))) / torch.linalg.eigvals(matrix).abs().max()
    noise, start = (torch.randn(h, draw(st.integers(0, h)), dtype=F64) for _ in range(2))
    emission = torch.randn(n, h, dtype=F64)
    y = torch.randn(num_steps, rows, n, dtype=F64)
    offset = draw(st.sampled_from((None, torch.randn(h, dtype=F64))))
    lengths = torch.tensor(draw(st.lists(st.integers(0, num_steps), min_size=rows, max_size=rows)))
    return dict(
        start=GaussianBelief(torch.randn(rows, h, dtype=F64), start @ start.T),
        dynamics=Dynamics(matrix, noise @ noise.T, offset),
        evidence=Evidence(y @ emission, emission.T @ emission, -(y**2).sum(-1) / 2),
        valid=torch.arange(num_steps).unsqueeze(1) < lengths,
        seen=torch.rand(num_steps, rows) > draw(st.sampled_from((0.0, 0.1, 0.7, 1.0))),
    )


def cut(arguments, start, stop, belief=None):
    evidence, dynamics = arguments["evidence"], arguments["dynamics"]
    vector, constant = evidence.vector[start:stop], evidence.constant[start:stop]
    return GaussianChain(
        arguments["start"] if belief is None else belief,
        dynamics,
        Evidence(vector, evidence.matrix, constant),
        valid=arguments["valid"][start:stop],
        seen=arguments["seen"][start:stop],
    )


@settings(max_examples=40, deadline=None)
@given(chains(), st.data())
def test_the_filter_of_a_prefix_is_the_prefix_of_the_filter(arguments, data):
    whole = GaussianChain(**arguments)
    length = data.draw(st.integers(1, whole.num_steps))
    prefix = cut(arguments, 0, length)
    close(prefix.token_log_probs(), whole.token_log_probs()[:, :length])
    for name in ("predicted_states", "filtered_states"):
        mine, theirs = getattr(prefix, name)(), getattr(whole, name)()
        close(mine.means, theirs.means[:, :length])
        close(mine.covariances.dense(), theirs.covariances.dense()[:, :length])


@settings(max_examples=40, deadline=None)
@given(chains(), st.data())
def test_segments_are_one_chain(arguments, data):
    """The second starts with what one move makes of the belief at the end of the first."""
    arguments["valid"][:] = True
    whole = GaussianChain(**arguments)
    length = data.draw(st.integers(1, whole.num_steps))
    first = cut(arguments, 0, length)
    total = first.log_prob()
    if length < whole.num_steps:
        ahead = first.forecast(1)
        second = cut(arguments, length, None, GaussianBelief(ahead.state_means[:, 0], ahead.state_covariances[..., 0, :, :]))
        total = total + second.log_prob()
        close(second.smoothed_states().means, whole.smoothed_states().means[:, length:])
        close(second.filtered().covariance.expand(len(total), -1, -1), whole.filtered_states().covariances.dense()[:, -1])
    close(total, whole.log_prob())


@settings(max_examples=30, deadline=None)
@given(chains())
def test_rows_do_not_know_of_each_other(arguments):
    whole = GaussianChain(**arguments)
    states, lag_one = whole.smoothed_states(), whole.lag_one_covariances().dense()
    for row in range(len(whole.log_prob())):
        one = GaussianChain(
            GaussianBelief(arguments["start"].mean[row], arguments["start"].covariance),
            arguments["dynamics"],
            Evidence(*(v[:, row] if v.dim() > 1 and i != 1 else v for i, v in enumerate(arguments["evidence"]))),
            valid=arguments["valid"][:, row],
            seen=arguments["seen"][:, row],
        )
        close(one.log_prob(), whole.log_prob()[row])
        close(one.smoothed_states().means, states.means[row])
        close(one.smoothed_states().covariances.dense(), states.covariances.dense()[row])
        close(one.lag_one_covariances().dense(), lag_one[row])


@settings(max_examples=30, deadline=None)
@given(chains())
def test_an_observation_that_says_nothing_is_missing(arguments):
    """And a row behind its end is a row whose observations are missing."""
    by_mask = GaussianChain(**arguments)
    used, evidence = arguments["valid"] & arguments["seen"], arguments["evidence"]
    h = evidence.vector.shape[-1]
    by_zeros = GaussianChain(
        arguments["start"],
        arguments["dynamics"],
        Evidence(
            evidence.vector * used.unsqueeze(-1),
            evidence.matrix.expand(*used.shape, h, h) * used[..., None, None],
            evidence.constant * used,
        ),
    )
    close(by_mask.log_prob(), by_zeros.log_prob())
    valid = arguments["valid"].T
    mine, theirs = by_mask.smoothed_states(), by_zeros.smoothed_states()
    close(mine.means[valid], theirs.means[valid])
    close(mine.covariances.dense()[valid], theirs.covariances.dense()[valid])


@settings(max_examples=30, deadline=None)
@given(chains())
def test_knowing_more_leaves_less_to_know(arguments):
    chain = GaussianChain(**arguments)
    valid = arguments["valid"].T
    dense = [
        getattr(chain, f"{name}_states")().covariances.dense()[valid] for name in ("predicted", "filtered", "smoothed")
    ]
    for more, less in zip(dense[:-1], dense[1:], strict=True):
        scale = 1 + float(more.abs().sum())
        assert bool((torch.linalg.eigvalsh(more - less) >= -1e-10 * scale).all())
    assert bool((torch.linalg.eigvalsh(dense[-1]) >= -1e-10).all())


@settings(max_examples=25, deadline=None)
@given(chains(), st.floats(0.1, 10.0))
def test_units_of_the_state_do_not_matter(arguments, scale):
    start, dynamics, evidence = arguments["start"], arguments["dynamics"], arguments["evidence"]
    offset = None if dynamics.offset is None else scale * dynamics.offset
    other = GaussianChain(
        GaussianBelief(scale * start.mean, scale**2 * start.covariance),
        Dynamics(dynamics.matrix, scale**2 * dynamics.noise, offset),
        Evidence(evidence.vector / scale, evidence.matrix / scale**2, evidence.constant),
        valid=arguments["valid"],
        seen=arguments["seen"],
    )
    chain = GaussianChain(**arguments)
    close(other.log_prob(), chain.log_prob())
    close(other.smoothed_states().means / scale, chain.smoothed_states().means)


@settings(max_examples=15, deadline=None)
@given(chains())
def test_the_steady_state_hides_no_gradient(arguments):
    grads = []
    for tol in (None, 0.0):
        leaves = [[None if v is None else v.clone().requires_grad_() for v in arguments[name]] for name in PARTS]
        parts = {name: type(arguments[name])(*values) for name, values in zip(PARTS, leaves, strict=True)}
        chain = GaussianChain(**(arguments | parts), tol=tol)
        states, lag_one = chain.smoothed_states(), chain.lag_one_covariances()
        answers = chain.log_prob(), states.means, states.covariances.dense(), lag_one.dense(), chain.filtered().mean
        total = sum((a * torch.linspace(0.5, 1.5, a.numel(), dtype=F64).view(a.shape)).sum() for a in answers)
        wanted = [v for values in leaves for v in values if v is not None]
        found = torch.autograd.grad(total, wanted, allow_unused=True)
        grads.append([torch.zeros_like(v) if g is None else g for g, v in zip(found, wanted, strict=True)])
    for mine, theirs in zip(*grads, strict=True):
        size = 1 + float(theirs.abs().sum())
        close(mine / size, theirs / size)
