"""What the program of every model keeps: under its messenger, under Pyro alone, with gaps, padding and carried beliefs."""


import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from support.model_cases import CASES, DISCRETE, GAUSSIAN, LENGTHS, ROWS, STEPS
from support.oracles.discrete import generic_log_prob

from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.infer.programs.states import check_vectorizable, infer_states

close = torch.testing.assert_close
VALID = torch.arange(STEPS) < LENGTHS.unsqueeze(-1)
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
WITH_DISCRETE_STATES = pytest.mark.parametrize("case", DISCRETE.values(), ids=DISCRETE)
WITH_GAUSSIAN_STATES = pytest.mark.parametrize("case", GAUSSIAN.values(), ids=GAUSSIAN)
REPEATABLE = pytest.mark.parametrize(  # whose program draws states and observations alone
    "case", [case for case in DISCRETE.values() if not case.draws], ids=[n for n, case in DISCRETE.items() if not case.draws]
)


def missing(x):
    return torch.nan if x.is_floating_point() else -1


def stacked(trace, site, steps=STEPS):
    return torch.stack([trace.nodes[f"{site}_{t}"]["value"] for t in range(steps)], 1)


# ------------------------------------------------------------------------------------------------ as a Pyro program
@EVERY
def test_it_draws_data(case):
    model, known = case.model().eval(), case.part(steps=slice(4))
    trace = poutine.trace(model.model).get_trace(num_sequences=ROWS, num_steps=4, **known)
    drawn, states = stacked(trace, "x", 4), stacked(trace, "z", 4)
    assert drawn.shape[:2] == (ROWS, 4) and states.shape[:2] == (ROWS, 4)
    assert torch.isfinite(drawn).all() and torch.isfinite(states).all()
    if drawn.shape[2:] == case.data().shape[2:]:  # words of a Gaussian model are drawn as vectors
        assert torch.isfinite(model.log_prob(drawn, **known)).all(), "a sample has probability zero"


@EVERY
def test_it_learns_under_pyro(case):
    model, x = case.model(), case.data()
    elbo = Trace_ELBO()(model, no_guide)
    elbo(x, LENGTHS, **case.known)  # parameters are found now
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.03)
    before = model.log_prob(x, LENGTHS, **case.known).sum()
    for _ in range(6):
        optimizer.zero_grad()
        loss = elbo(x, LENGTHS, **case.known)
        loss.backward()
        assert torch.isfinite(loss)
        optimizer.step()
    assert model.log_prob(x, LENGTHS, **case.known).sum() > before + 0.2


@EVERY
def test_it_may_be_vectorised(case):
    model, x = case.model().eval(), case.data()
    x[0, 2] = missing(x)
    check_vectorizable(model, x, LENGTHS, **case.known)


@REPEATABLE
def test_pyro_alone_says_the_same(case):
    model, x = case.model(), case.data()
    total = model.log_prob(x, LENGTHS, **case.known).sum()
    close(generic_log_prob(model, x, LENGTHS, **case.known), total)
    close(-Trace_ELBO().differentiable_loss(model, no_guide, x, LENGTHS, **case.known), total)


@EVERY
def test_posteriors_leave_no_trace_and_no_gradient(case):
    model, x = case.model(), case.data()
    with poutine.trace() as trace:
        chain = model.posterior(x, **case.known)
    assert not trace.trace.nodes and not chain.log_prob().requires_grad and model.training


# ------------------------------------------------------------------------------------------------ its chain
@WITH_DISCRETE_STATES
def test_it_decodes(case):
    model, x = case.model(), case.data()
    chain = model.posterior(x, LENGTHS, **case.known)
    paths, log_prob = chain.viterbi()
    assert ((paths >= 0) == VALID).all() and (paths < model.num_states).all()
    assert (log_prob <= chain.log_prob() + 1e-9).all()
    if "decode" in case.verbs:  # the path's own log p(path, x), by observing its states; regimes have several
        close(model.posterior(x, LENGTHS, states=paths, **case.known).log_prob(), log_prob)
    marginals = chain.marginals().dense(model.num_states)
    close(marginals.sum(-1), VALID.to(marginals))
    assert chain.sample(3).shape == (3, ROWS, STEPS) and (chain.entropy() > -1e-9).all()
    trace = poutine.trace(infer_states(model.eval())).get_trace(x, LENGTHS, **case.known)
    assert torch.equal(stacked(trace, "z"), paths)


@WITH_GAUSSIAN_STATES
def test_it_tells_its_states(case):
    model, x = case.model(), case.data()
    chain = model.posterior(x, LENGTHS, **case.known)
    assert isinstance(chain, GaussianChain)
    smoothed, filtered = chain.smoothed_states(), chain.filtered_states()
    h = model.num_states
    assert smoothed.means.shape == (ROWS, STEPS, h) and smoothed.covariances.dense().shape == (ROWS, STEPS, h, h)
    for row, length in enumerate(LENGTHS.tolist()):  # at the end of a row nothing is left to be smoothed
        close(smoothed.means[row, length - 1], filtered.means[row, length - 1])
        close(chain.filtered().mean[row], filtered.means[row, length - 1])
    eigenvalues = torch.linalg.eigvalsh(smoothed.covariances.dense())[VALID]
    assert (eigenvalues > 0).all() and chain.sample(3).shape == (3, ROWS, STEPS, h)


def best_states(chain):
    """(B, T[, h]) the states that a chain finds most probable."""
    return chain.smoothed_states().means if isinstance(chain, GaussianChain) else chain.viterbi()[0]


@EVERY
def test_padded_is_unpadded(case):
    model, x = case.model(), case.data()
    together = model.posterior(x, LENGTHS, **case.known)
    noise = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        noise[row, length:] = x[0, 0]
        alone = model.posterior(x[row : row + 1, :length], **case.part(slice(row, row + 1), slice(length)))
        close(together.log_prob()[row], alone.log_prob()[0])
        close(best_states(together)[row, :length], best_states(alone)[0])
        close(together.token_log_probs()[row, :length], alone.token_log_probs()[0])
    close(model.log_prob(noise, LENGTHS, **case.known), together.log_prob())
    close(model.log_prob(x, LENGTHS.new_full((ROWS,), STEPS), **case.known), model.log_prob(x, **case.known))


@EVERY
def test_segments_are_one_sequence(case):
    model, x = case.model(), case.data()
    whole = model.posterior(x, **case.known)
    first = model.posterior(x[:, :2], **case.part(steps=slice(2)))
    second = model.posterior(x[:, 2:], start=first.filtered(), **case.part(steps=slice(2, None)))
    close(first.log_prob() + second.log_prob(), whole.log_prob())
    for ours, theirs in zip(second.filtered(), whole.filtered(), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            close(ours, theirs)


@EVERY
def test_missing_observations(case):
    model, x = case.model(), case.data()
    gaps = x.clone()
    gaps[0, 2:4] = gaps[1, 0] = missing(x)
    gaps[2, 3:] = missing(x)
    chain = model.posterior(gaps, **case.known)
    assert torch.isfinite(chain.log_prob()).all()
    close(chain.token_log_probs()[0, 2:4], torch.zeros(2).double())
    close(chain.log_prob()[3:], model.log_prob(x, **case.known)[3:])
    close(chain.log_prob()[2], model.log_prob(x[2:3, :3], **case.part(slice(2, 3), slice(3)))[0])
    best = best_states(chain)
    assert torch.isfinite(best).all() and (best.is_floating_point() or int(best.min()) >= 0)


@EVERY
def test_lengths_are_checked(case):
    with pytest.raises(ValueError, match="lengths must lie in 0..6"):
        case.model().log_prob(case.data(), torch.tensor([7, 1, 1, 1]), **case.known)
