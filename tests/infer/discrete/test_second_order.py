"""Second-order chains against the dense chain over pairs, values and gradients; and against all paths."""

import itertools
import math

import pyro
import pytest
import torch
from pyro import poutine

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.contexts import SecondOrderChain
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.markov import markov
from pplseq.kernels import compiled

close = torch.testing.assert_close
F64 = torch.float64


def tables(size, words=4, zeros=False, seed=0, spread=1.0):
    """Start over pairs (only of the last state before), transitions, words of pairs."""
    torch.manual_seed(seed)
    score = spread * torch.randn(size, size, size, dtype=F64)
    if zeros:
        score = score.masked_fill(torch.rand_like(score) < 0.2, -math.inf)
        score[..., 0] = 0.0  # no context without a successor
    initial = torch.full((size, size), -math.inf, dtype=F64)
    initial[-1] = torch.randn(size, dtype=F64).log_softmax(-1)
    emission = torch.randn(size, words, dtype=F64).log_softmax(-1)
    return initial.flatten(), score.log_softmax(-1), emission


def chains(size, x, lengths=None, seen=None, gradients=True, **options):
    """The chain, its dense twin over pairs, and the tables they have in common."""
    parameters = [p.requires_grad_(gradients) for p in tables(size, **options)]
    initial, table, emission = parameters
    emission = CategoricalEmission(emission.repeat(size, 1))
    valid = None if lengths is None else torch.arange(len(x))[:, None] < lengths
    second = build_chain(SecondOrderTransition(initial, table), emission, x, valid=valid, seen=seen)
    assert isinstance(second, SecondOrderChain)
    full = torch.full((size,) * 4, -math.inf, dtype=F64)
    full = full.index_put(_diagonal(size), table)
    dense = build_chain(DenseTransition(initial, full.reshape(size**2, size**2)), emission, x, valid=valid, seen=seen)
    return second, dense, parameters


def _diagonal(size):
    a, b, c = torch.meshgrid(*[torch.arange(size)] * 3, indexing="ij")
    return a, b, b, c


SITUATIONS = {
    "ragged": dict(size=3, lengths=torch.tensor([6, 2, 1, 5])),
    "equal": dict(size=3, lengths=None),
    "one state": dict(size=1, lengths=torch.tensor([6, 3, 1, 2])),
    "zeros": dict(size=4, lengths=torch.tensor([6, 6, 4, 1]), zeros=True),
    "peaked": dict(size=3, lengths=torch.tensor([6, 5, 4, 3]), spread=400.0),
    "missing": dict(size=3, lengths=torch.tensor([6, 6, 4, 2]), missing=True),
}


@pytest.fixture(params=list(SITUATIONS))
def situation(request):
    return request.param


@pytest.fixture(params=[(True, True), (False, False)], ids=["with gradients, by loops", "without, by their twin"])
def both(request, situation):
    gradients, loops = request.param
    with compiled.always() if loops else compiled.twins_only():
        yield _both(situation, gradients)


def _both(situation, gradients):
    options = dict(SITUATIONS[situation], gradients=gradients)
    x = torch.randint(4, (6, 4), generator=torch.Generator().manual_seed(1))
    seen = None
    if options.pop("missing", False):
        seen = torch.ones(6, 4, dtype=torch.bool)
        seen[2, :2] = seen[0, 3] = False
    return chains(options.pop("size"), x, options.pop("lengths"), seen, **options)


def test_likelihood_and_its_gradient(both):
    second, dense, parameters = both
    close(second.log_prob(), dense.log_prob())
    close(second.token_log_probs(), dense.token_log_probs())
    if not parameters[0].requires_grad:
        return
    gradients = [torch.autograd.grad(c.log_prob().sum(), parameters) for c in (second, dense)]
    for got, expected in zip(*gradients, strict=True):
        possible = ~torch.isneginf(expected) & ~torch.isneginf(got)
        close(got[possible], expected[possible])
        assert not got.isnan().any()


def test_posteriors(both):
    second, dense, _ = both
    close(second.marginals().probs, dense.marginals().probs)
    close(second.entropy(), dense.entropy())
    close(second.filtered().log_probs, dense.filtered().log_probs)
    close(second.next().word_log_probs, dense.next().word_log_probs)
    got, expected = second.expected_counts(), dense.expected_counts()
    size = second.transition.num_tags
    close(got.transition, expected.transition.reshape((size,) * 4)[_diagonal(size)])
    close((got.start, got[3]), (expected.start, expected[3]))


def test_which_way_is_taken():
    x = torch.randint(4, (6, 2))
    for gradients, spread in ((True, 1.0), (False, 1.0), (False, 400.0)):
        second = chains(3, x, gradients=gradients, spread=spread)[0]
        assert second._forward.in_logs == (spread > 1)
        with compiled.twins_only():
            assert chains(3, x, gradients=gradients, spread=spread)[0]._forward.in_logs


def test_single_precision():
    """float32 beside float64."""
    x = torch.randint(4, (60, 3), generator=torch.Generator().manual_seed(1))
    exact, _, (initial, table, emission) = chains(4, x, torch.tensor([60, 7, 31]), gradients=False, spread=4.0)
    for needed in (True, False):
        transition = SecondOrderTransition(initial.float(), table.float().requires_grad_(needed))
        words = CategoricalEmission(emission.float().repeat(4, 1))
        second = build_chain(transition, words, x, valid=exact.valid)
        close(second.log_prob().detach().double(), exact.log_prob(), rtol=1e-5, atol=1e-4)
        close(second.marginals().probs.double(), exact.marginals().probs, rtol=1e-3, atol=1e-4)
        close(second.entropy().double(), exact.entropy(), rtol=1e-3, atol=1e-3)


def test_paths(both):
    second, dense, _ = both
    close(second.viterbi()[1], dense.viterbi()[1])
    found, expected = second.k_best(5), dense.k_best(5)
    close(found[1], expected[1])
    for k in range(5):  # each path has the score that is claimed, and no path comes twice
        for row in range(4):
            if found[1][k, row] > -math.inf:
                earlier = [tuple(found[0][j, row].tolist()) for j in range(k)]
                assert tuple(found[0][k, row].tolist()) not in earlier
    close(second.viterbi()[0], found[0][0])


@pytest.mark.parametrize("gradients", [True, False])
def test_k_best_and_entropy_against_all_paths(gradients):
    size, steps = 3, 4
    x = torch.tensor([0, 2, 1, 3])
    second, _, parameters = chains(size, x[:, None], gradients=gradients)
    initial, table, emission = (p.detach() for p in parameters)
    scores = {}
    for path in itertools.product(range(size), repeat=steps):
        score = initial.reshape(size, size)[-1, path[0]]
        score = score + sum(table[abc] for abc in zip((size - 1, *path), path, path[1:], strict=False))
        scores[path] = float(score + emission[list(path), x].sum())
    best = sorted(scores, key=scores.get, reverse=True)[:10]
    paths, log_probs = second.k_best(10)
    assert [tuple((p % size).tolist()) for p in paths[:, 0]] == best
    close(log_probs[:, 0], torch.tensor([scores[p] for p in best], dtype=F64))
    every = torch.tensor(list(scores.values()), dtype=F64)
    close(second.log_prob(), every.logsumexp(0, keepdim=True))
    close(second.entropy(), torch.distributions.Categorical(logits=every).entropy()[None])


def test_draws_follow_the_posterior():
    x = torch.randint(4, (4, 2), generator=torch.Generator().manual_seed(1))
    second, _, _ = chains(3, x, torch.tensor([4, 3]))
    torch.manual_seed(0)
    draws = second.sample(20000)
    assert (draws[:, 1, 3] == -1).all()
    frequency = torch.nn.functional.one_hot(draws[..., :3], 9).double().mean(0)
    close(frequency, second.marginals().probs[:, :3], atol=0.015, rtol=0)
    assert (draws[..., 1:3] // 3 == draws[..., :2] % 3).all()  # the pairs fit together


def test_in_a_program():
    initial, table, emission = tables(3)
    transition, words = SecondOrderTransition(initial, table), CategoricalEmission(emission.repeat(3, 1))
    x, lengths = torch.randint(4, (4, 6)), torch.tensor([6, 1, 4, 2])

    def model():
        state = None
        with pyro.plate("rows", 4, dim=-1):
            for t in markov(range(6)):
                with poutine.mask(mask=t < lengths):
                    state = pyro.sample(f"z_{t}", transition(state))
                    pyro.sample(f"x_{t}", words(state), obs=x[:, t])

    with BlockedEnum() as posterior:
        model()
    valid = torch.arange(6)[:, None] < lengths
    close(posterior.chains["z_0"].log_prob(), build_chain(transition, words, x.T, valid=valid).log_prob())
    drawn = poutine.trace(model).get_trace().nodes["z_3"]["value"]  # forward, without the handler
    assert ((drawn >= 0) & (drawn < 9)).all()


def test_a_belief_goes_on():
    x = torch.randint(4, (6, 2))
    whole, _, _ = chains(3, x)
    first = build_chain(whole.transition, whole.emission, x[:3])
    second = build_chain(whole.transition, whole.emission, x[3:], start=first.filtered())
    close(second.expected_counts().start, torch.zeros_like(second.expected_counts().start))  # it starts nowhere
    close(first.log_prob() + second.log_prob(), whole.log_prob())


def test_what_is_refused():
    initial, table, emission = tables(3)
    with pytest.raises(ValueError, match=r"table must be \(M, M, M\)"):
        SecondOrderTransition(initial, table[0])
    with pytest.raises(ValueError, match="sum to one"):
        SecondOrderTransition(initial, table + 1)
    words = CategoricalEmission(emission.repeat(3, 1))
    with pytest.raises(ValueError, match="one batch dimension"):
        build_chain(SecondOrderTransition(initial, table), words, torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="k must be at least 1"):
        build_chain(SecondOrderTransition(initial, table), words, torch.zeros(4, 1, dtype=torch.long)).k_best(0)


def test_predicted_states(both):
    second, dense, _ = both
    close(second.predicted_states().probs, dense.predicted_states().probs)
