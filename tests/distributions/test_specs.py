"""Wrong arguments of transitions and emissions, and the numbers inside block-sparse ones."""

import math

import pytest
import torch

from pplseq.distributions import CategoricalEmission, DenseTransition, GaussianEmission
from pplseq.distributions.block import BlockEmission, EmbeddingTransition, TableTransition
from pplseq.distributions.blocks import BlockLayout
from pplseq.distributions.dense import StepTransition
from pplseq.kernels.log_semiring import log1mexp

F64 = torch.float64
close = torch.testing.assert_close


def test_dense_shapes():
    with pytest.raises(ValueError, match=r"matrix must be square.*\(2, 3\)"):
        DenseTransition(torch.zeros(2), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="initial must have shape"):
        DenseTransition(torch.zeros(3), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="log_probs must have shape"):
        CategoricalEmission(torch.zeros(3))
    with pytest.raises(ValueError, match="exactly one"):
        GaussianEmission(torch.zeros(2, 1))
    with pytest.raises(ValueError, match="exactly one"):
        GaussianEmission(torch.zeros(2, 1), torch.ones(2, 1), torch.ones(2, 1, 1))
    half = torch.tensor(0.5).log()
    assert DenseTransition(half.expand(4, 1, 2), half.expand(5, 2, 2)).batch_shape == (4, 5)
    with pytest.raises(ValueError, match="matrix must hold log-probabilities that sum to one.*sums to 2"):
        DenseTransition(half.expand(2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="log_probs must hold log-probabilities"):
        CategoricalEmission(torch.randn(2, 3))
    CategoricalEmission(torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]]))


def test_step_transitions_need_inputs():
    transition = StepTransition(torch.zeros(2), lambda u: torch.zeros(*u.shape[:-1], 2, 2), 2)
    with pytest.raises(ValueError, match="inputs: a StepTransition needs"):
        transition.rows(torch.tensor([0]))


def test_a_resetting_transition_needs_the_emission():
    layout = BlockLayout.from_sizes([2])
    for make in (
        lambda: EmbeddingTransition(layout, torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, 1), reset_id=0),
        lambda: TableTransition(layout, torch.zeros(2), torch.zeros(2, 2), reset_id=0),
    ):
        with pytest.raises(ValueError, match="emission: a transition with a reset_id"):
            make()


@pytest.mark.parametrize("diagonal", [True, False])
def test_gaussian_emissions(diagonal):
    loc = torch.randn(3, 2, dtype=F64)
    scale = torch.rand(3, 2, dtype=F64) + 0.5
    emission = GaussianEmission(loc, scale) if diagonal else GaussianEmission(loc, scale_tril=scale.diag_embed())
    assert emission.event_shape == (2,)
    y, state = torch.randn(4, 2, dtype=F64), torch.tensor([0, 2, 1, 1])
    table = emission.log_likelihood(y)
    close(table, torch.distributions.Normal(loc, scale).log_prob(y.unsqueeze(-2)).sum(-1))
    law = emission(state)
    assert law.batch_shape == (4,) and law.event_shape == (2,) and law.sample().shape == (4, 2)
    close(law.log_prob(y), table.gather(-1, state.unsqueeze(-1)).squeeze(-1))
    assert law.expand((5, 4)).sample().shape == (5, 4, 2)


def test_emissions_with_a_batch_of_parameters():
    log_probs = torch.randn(2, 1, 3, 4, dtype=F64).log_softmax(-1)
    emission = CategoricalEmission(log_probs)
    obs = torch.tensor([1, 3, 0])
    assert emission.batch_shape == (2, 1)
    close(emission.log_likelihood(obs)[1], log_probs[1, 0].T[obs])
    loc = torch.randn(2, 1, 3, 2, dtype=F64)
    gaussian = GaussianEmission(loc, torch.ones_like(loc))
    y = torch.randn(5, 2, dtype=F64)
    close(gaussian.log_likelihood(y)[1], GaussianEmission(loc[1, 0], torch.ones(3, 2, dtype=F64)).log_likelihood(y))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_log_of_one_minus_exp(dtype):
    exact = torch.tensor([-1e-12, -1e-4, -0.3, -math.log(2), -1.0, -30.0, -700.0], dtype=F64)
    x = exact.to(dtype).requires_grad_()
    wanted = [math.log(-math.expm1(v)) if v > -1 else math.log1p(-math.exp(v)) for v in x.tolist()]
    close(log1mexp(x).double(), torch.tensor(wanted, dtype=F64), rtol=1e-5 if dtype != F64 else 1e-12, atol=1e-300)
    (gradient,) = torch.autograd.grad(log1mexp(x).sum(), x)
    close(gradient.double(), -1 / torch.expm1(-x.detach().double()), rtol=1e-4, atol=1e-12)
    ends = torch.tensor([0.0, -math.inf], dtype=dtype, requires_grad=True)
    assert log1mexp(ends).tolist() == [-math.inf, 0.0]
    (gradient,) = torch.autograd.grad(log1mexp(ends)[1], ends)
    assert torch.isfinite(gradient).all()


class TestNormalisers:
    def make(self):
        torch.manual_seed(0)
        layout = BlockLayout.from_sizes([2, 3, 1, 2, 2, 1])
        z = layout.num_states
        out, into = (torch.randn(z, 3, dtype=F64).requires_grad_() for _ in range(2))
        return EmbeddingTransition(layout, torch.zeros(z, dtype=F64).log_softmax(-1), out, into), out, into

    def test_only_rows_that_are_asked_for(self, monkeypatch):
        transition, out, into = self.make()
        asked = []
        rows_of = transition.row_log_norm
        monkeypatch.setattr(transition, "row_log_norm", lambda rows: (asked.append(rows.tolist()), rows_of(rows))[1])
        exact = (out @ into.T).logsumexp(-1)
        norm = transition.log_norm(torch.tensor([1, 4]))
        rows = torch.tensor([2, 3, 4, 8, 9])
        assert asked == [rows.tolist()]
        close(norm[rows], exact[rows])
        assert transition.log_norm(torch.tensor([4])) is norm, "computed again"
        close(transition.log_norm(torch.tensor([0]))[:2], exact[:2])
        close(transition.log_norm(), exact)
        assert sorted(sum(asked, [])) == list(range(11)), "every row once"

    def test_rows_sum_to_one(self):
        transition, _, _ = self.make()
        z = transition.num_states
        close(transition.log_matrix().exp().sum(-1), torch.ones(z, dtype=F64))
        close(transition.columns(torch.arange(z)), transition.log_matrix())
        rows = transition.wide_rows(torch.tensor([[3, 0]]))
        close(rows[0], transition.log_matrix()[[3, 0]])
        message = torch.randn(2, z, dtype=F64)
        close(transition.wide_forward(message), (message.unsqueeze(-1) + transition.log_matrix()).logsumexp(-2))
        close(transition.wide_backward(message), (transition.log_matrix() + message.unsqueeze(-2)).logsumexp(-1))

    @pytest.mark.parametrize("width", [1, 64])
    def test_pairs(self, width, monkeypatch):
        from pplseq.distributions import block

        monkeypatch.setattr(block, "CACHED_WIDTH", width)
        transition, _, _ = self.make()
        layout, matrix = transition.layout, transition.log_matrix().detach()
        previous, following = torch.tensor([[0, 1], [5, 1]]), torch.tensor([[1, 1], [0, 1]])
        expected = matrix[layout.state_ids[previous].unsqueeze(-1), layout.state_ids[following].unsqueeze(-2)]
        close(transition.pairs(previous, following).detach(), expected)
        with torch.no_grad():
            for _ in range(2):  # the second time from the cache
                close(transition.pairs(previous, following), expected)
            monkeypatch.setattr(block, "PAIR_CACHE_BYTES", 0)
            close(transition.pairs(following, previous), expected_of(matrix, layout, following, previous))
        assert transition.pairs(previous, following).requires_grad


def expected_of(matrix, layout, previous, following):
    return matrix[layout.state_ids[previous].unsqueeze(-1), layout.state_ids[following].unsqueeze(-2)]


def test_the_cells_of_a_word_table():
    layout = BlockLayout.from_sizes([2, 1])
    table = torch.tensor([[0.25, 1.0], [0.75, 0.0], [1.0, 0.3]], dtype=F64).log()
    emission = BlockEmission(layout, torch.tensor([0, 0, 1]), table)
    close(
        emission.log_likelihood(torch.tensor([0, 2])).exp(), torch.tensor([[0.25, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64)
    )
    close(emission.log_prob_of(1).exp(), torch.tensor([0.75, 0.0, 0.0], dtype=F64))
    close(emission.word_rows(torch.tensor([1, 2])).exp(), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64))
    assert emission.support(torch.tensor([[2, 1]])).tolist() == [[1, 0]]
