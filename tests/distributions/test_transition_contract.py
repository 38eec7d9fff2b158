"""What every transition keeps: one class of tests that each spec inherits."""

import math

import pytest
import torch
from support.oracles.discrete import enumerate_paths
from torch.distributions import constraints

from pplseq.distributions import MISSING, Belief, CategoricalEmission, DenseTransition
from pplseq.distributions.block import BlockEmission, EmbeddingTransition, TableTransition
from pplseq.distributions.blocks import BlockLayout, WordGroups
from pplseq.distributions.dense import StepTransition
from pplseq.distributions.state import StateCategorical
from pplseq.infer.discrete.build import build_chain

F64 = torch.float64
close = torch.testing.assert_close


class TransitionContract:
    """Subclasses give ``make`` -> (transition, emission, matrix_of(inputs of one row), inputs of one step or None)."""

    num_words = 5
    batch = 3

    def make(self):
        raise NotImplementedError

    @pytest.fixture
    def spec(self):
        torch.manual_seed(0)
        return self.make()

    def inputs_of(self, inputs, row):
        return None if inputs is None else inputs[row]

    def test_attributes(self, spec):
        transition, emission, matrix_of, inputs = spec
        assert transition.num_states == emission.num_states == len(matrix_of(self.inputs_of(inputs, 0)))
        assert transition.batch_shape == () and isinstance(transition.device, torch.device)
        if inputs is not None:
            assert inputs.dim() - 1 == transition.input_dims

    def test_the_start_distribution(self, spec):
        transition, _, _, inputs = spec
        rows = transition.rows(None, inputs)
        assert rows.shape[-1] == transition.num_states
        close(rows.logsumexp(-1).exp(), torch.ones(rows.shape[:-1], dtype=F64))

    def test_rows_are_those_of_the_matrix(self, spec):
        transition, _, matrix_of, inputs = spec
        previous = torch.arange(self.batch) % transition.num_states
        rows = transition.rows(previous, inputs)
        assert rows.shape == (self.batch, transition.num_states)
        for row in range(self.batch):
            close(rows[row].exp(), matrix_of(self.inputs_of(inputs, row))[previous[row]].exp())

    def test_rows_broadcast(self, spec):
        # Pyro's enumeration asks for all previous states at once, in a dimension of their own
        transition, _, matrix_of, inputs = spec
        every = torch.arange(transition.num_states).view(-1, 1)
        rows = transition.rows(every, inputs)
        rows = rows.expand(transition.num_states, self.batch, transition.num_states)
        for row in range(self.batch):
            close(rows[:, row].exp(), matrix_of(self.inputs_of(inputs, row)).exp())

    def test_calling_it_is_lazy(self, spec):
        transition, _, _, inputs = spec
        transition.rows = transition.initial_log_prob = None  # nobody may ask for numbers
        law = transition(torch.zeros(self.batch, dtype=torch.long), inputs=inputs)
        assert isinstance(law, StateCategorical) and law.has_enumerate_support
        assert law.batch_shape == (self.batch,) and law.event_shape == ()
        assert law.expand((2, self.batch)).batch_shape == (2, self.batch)
        assert transition(None, inputs=inputs).expand((self.batch,)).batch_shape == (self.batch,)
        assert constraints.is_dependent(law.support) is False
        assert law.support.upper_bound == transition.num_states - 1

    def test_the_lazy_distribution(self, spec):
        transition, _, matrix_of, inputs = spec
        previous = torch.arange(self.batch) % transition.num_states
        law = transition(previous, inputs=inputs)
        support = law.enumerate_support()
        assert support.shape == (transition.num_states, self.batch)
        assert law.enumerate_support(expand=False).shape == (transition.num_states, 1)
        log_probs = law.log_prob(support)
        for row in range(self.batch):
            close(log_probs[:, row].exp(), matrix_of(self.inputs_of(inputs, row))[previous[row]].exp())
        close(law.expand((2, self.batch)).log_prob(support[0]), log_probs[0].expand(2, -1))
        draws = law.sample((2000,))
        assert draws.shape == (2000, self.batch)
        frequency = torch.nn.functional.one_hot(draws, transition.num_states).to(F64).mean(0)
        assert ((frequency - log_probs.T.exp()).abs() < 5 * 0.5 / math.sqrt(2000)).all()
        assert (frequency[log_probs.T == -math.inf] == 0).all()

    def test_a_belief_before(self, spec):
        transition, _, matrix_of, inputs = spec
        z = transition.num_states
        belief = torch.randn(self.batch, z, dtype=F64).log_softmax(-1)
        for ids in (None, torch.stack([torch.randperm(z) for _ in range(self.batch)])):
            rows = transition(Belief(ids, belief), inputs=inputs).rows()
            for row in range(self.batch):
                matrix = matrix_of(self.inputs_of(inputs, row))
                weight = belief[row] if ids is None else belief[row][ids[row].argsort()]
                close(rows[row].exp(), weight.exp() @ matrix.exp())

    def test_the_chain_is_the_enumeration(self, spec):
        transition, emission, matrix_of, inputs = spec
        x = torch.randint(self.num_words, (2, self.batch))
        table = emission.log_likelihood(torch.arange(self.num_words))
        steps = None if inputs is None else torch.stack([inputs, inputs])
        chain = build_chain(transition, emission, x, inputs=steps)
        initial = transition.rows(None, inputs).expand(self.batch, -1)
        for row in range(self.batch):
            matrix = matrix_of(self.inputs_of(inputs, row)).unsqueeze(0)
            _, scores = enumerate_paths(initial[row], matrix, table[x[:, row]])
            close(chain.log_prob()[row], scores.logsumexp(0))

    def test_emissions(self, spec):
        transition, emission, _, _ = spec
        table = emission.log_likelihood(torch.arange(self.num_words)).T
        kept = ~torch.isneginf(table).all(-1)
        close(table[kept].exp().sum(-1), torch.ones(int(kept.sum()), dtype=F64))
        state = kept.nonzero()[:3, 0]
        law = emission(state)
        assert law.batch_shape == state.shape
        words = torch.arange(self.num_words).view(-1, 1)
        close(law.log_prob(words).T.exp(), table[state].exp())
        assert law.sample().shape == state.shape and law.sample((4,)).shape == (4, *state.shape)
        draws = law.sample((500,))
        assert torch.isfinite(law.log_prob(draws)).all(), "a word was drawn that the state never says"
        prior = torch.randn(2, transition.num_states, dtype=F64).masked_fill(~kept, -math.inf).log_softmax(-1)
        close(emission.word_log_prob(prior).exp(), prior.exp() @ table.exp())
        close(emission.word_log_prob(prior[0]).exp(), prior[0].exp() @ table.exp())
        close(emission.word_log_prob(prior.expand(3, 2, -1))[1], emission.word_log_prob(prior))


def free(*shape):
    return torch.randn(*shape, dtype=F64)


class TestDense(TransitionContract):
    def make(self):
        matrix = free(3, 3).log_softmax(-1)
        emission = CategoricalEmission(free(3, self.num_words).log_softmax(-1))
        return DenseTransition(free(3).log_softmax(-1), matrix), emission, lambda u: matrix, None


class TestForbidden(TransitionContract):
    def make(self):
        matrix = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype=F64)
        emission = CategoricalEmission.from_probs(torch.eye(5, dtype=F64)[:3] * 0.5 + 0.1)
        start = torch.tensor([0.25, 0.0, 0.75], dtype=F64)
        return DenseTransition.from_probs(start, matrix), emission, lambda u: matrix.log(), None


class TestStep(TransitionContract):
    def make(self):
        weight, start = free(3, 3, 2), free(3, 2)

        def matrix_of(u):
            return (weight * u[..., None, None, :]).sum(-1).log_softmax(-1)

        def initial(u):
            return (start * u.unsqueeze(-2)).sum(-1).log_softmax(-1)

        emission = CategoricalEmission(free(3, self.num_words).log_softmax(-1))
        return StepTransition(initial, matrix_of, 3), emission, matrix_of, free(self.batch, 2)


class TestStepOfSymbols(TransitionContract):
    def make(self):
        matrices = free(4, 3, 3).log_softmax(-1)
        emission = CategoricalEmission(free(3, self.num_words).log_softmax(-1))
        transition = StepTransition(free(3).log_softmax(-1), lambda u: matrices[u], 3, input_dims=0)
        return transition, emission, lambda u: matrices[u], torch.tensor([3, 0, 1])


class BlockContract(TransitionContract):
    sizes = [2, 1, 3]
    reset_id = None

    def make(self):
        block_of_word = torch.tensor([0, 2, 1, 2, 0])
        layout = BlockLayout.from_sizes(self.sizes)
        groups = WordGroups(block_of_word, len(self.sizes))
        table = groups.log_softmax(groups.rows(free(self.num_words, layout.width)))
        emission = BlockEmission(layout, block_of_word, table)
        score, transition = self.transition(layout, emission)
        matrix, initial = score.log_softmax(-1), transition.initial_log_prob()

        def matrix_of(word):
            if word is None:
                return matrix
            if word == self.reset_id:
                return initial.expand_as(matrix)
            if word == MISSING:
                says = emission.log_likelihood(torch.tensor(self.reset_id)).exp().unsqueeze(-1)
                return ((1 - says) * matrix.exp() + says * initial.exp()).log()
            return matrix

        inputs = None if self.reset_id is None else torch.tensor([self.reset_id, MISSING, 4])
        return transition, emission, matrix_of, inputs


class TestEmbedding(BlockContract):
    def transition(self, layout, emission):
        out, into = free(layout.num_states, 3), free(layout.num_states, 3)
        initial = free(layout.num_states).log_softmax(-1)
        return out @ into.T, EmbeddingTransition(layout, initial, out, into, reset_id=self.reset_id, emission=emission)


class TestEvenEmbedding(TestEmbedding):
    sizes = [2, 2, 2]


class TestOneStateBlocks(TestEmbedding):
    sizes = [1, 1, 1]


class TestResettingEmbedding(TestEmbedding):
    reset_id = 1  # shares its block with word 3


class TestTable(BlockContract):
    def transition(self, layout, emission):
        table, initial = free(layout.num_states, layout.num_states), free(layout.num_states).log_softmax(-1)
        return table, TableTransition(layout, initial, table, reset_id=self.reset_id, emission=emission)


class TestResettingTable(TestTable):
    reset_id = 1
