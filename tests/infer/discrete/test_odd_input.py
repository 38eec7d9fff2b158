"""Programs and arguments that would give wrong numbers quietly are refused."""

import pyro
import pytest
import torch

from pplseq.distributions import MISSING, Belief, CategoricalEmission, DenseTransition
from pplseq.infer import BlockedEnum, markov
from pplseq.infer.discrete.build import build_chain
from pplseq.models import VLHMM


def uniform(*shape):
    return torch.zeros(shape, dtype=torch.float64).log_softmax(-1)


def test_a_missing_id_is_not_the_last_word():
    transition, emission = DenseTransition(uniform(2), uniform(2, 2)), CategoricalEmission(uniform(2, 20))
    with pytest.raises(ValueError, match=r"row 0, step 1: word id -1 is not in 0..19.*mask"):
        build_chain(transition, emission, torch.tensor([[3], [MISSING], [5]]))
    with pytest.raises(ValueError, match="word id 20"):
        build_chain(transition, emission, torch.tensor([[3], [20]]))
    seen = torch.tensor([[True], [False], [True]])
    masked = build_chain(transition, emission, torch.tensor([[3], [MISSING], [5]]), seen=seen)
    other = build_chain(transition, emission, torch.tensor([[3], [7], [5]]), seen=seen)
    torch.testing.assert_close(masked.log_prob(), other.log_prob())


def test_states_of_emission_and_transition_agree():
    transition = DenseTransition(uniform(5), uniform(5, 5))
    for num_states in (1, 7):
        with pytest.raises(ValueError, match=f"emission has {num_states} states, but the transition has 5"):
            build_chain(transition, CategoricalEmission(uniform(num_states, 3)), torch.zeros(2, 1).long())


def test_independent_steps_are_not_taken_for_a_chain():
    transition, emission = DenseTransition(uniform(2), uniform(2, 2)), CategoricalEmission(uniform(2, 3))
    x = torch.zeros(2, 4, dtype=torch.long)

    def model(vectorize):
        with pyro.plate("sequences", 2, dim=-1):
            for t in markov(range(4), vectorize=vectorize):
                z = pyro.sample(f"z_{t}", transition())
                pyro.sample(f"x_{t}", emission(z), obs=x[:, t])

    with pytest.raises(ValueError, match="starts a new chain at every step"), BlockedEnum():
        model(True)
    with BlockedEnum() as handler:
        model(False)
    assert len(handler.chains) == 4


@pytest.fixture
def model():
    return VLHMM(4, num_words=6, blocks=[0, 0, 0, 1, 1, 1], hidden_size=4)


@pytest.mark.parametrize(
    "wrong, error, match",
    [
        (dict(num_states=16.0), TypeError, "num_states must be a whole number"),
        (dict(tied="no"), TypeError, "tied must be True or False"),
        (dict(reset_id=1.5), TypeError, "reset_id"),
        (dict(blocks=[0.5, 1.9, 0, 0, 1, 1]), TypeError, "blocks must be a list of integers"),
        (dict(states_per_block=[1.5, 2.5]), TypeError, "states_per_block must be a list of integers"),
        (dict(init_scale=-1.0), ValueError, "init_scale"),
    ],
)
def test_arguments_of_the_very_large_hmm(wrong, error, match):
    with pytest.raises(error, match=match):
        VLHMM(**{"num_words": 6, "num_states": 4, "blocks": [0, 0, 0, 1, 1, 1], "hidden_size": 4, **wrong})


def test_arguments_of_a_posterior(model):
    x = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="at least one row and one step"):
        model.log_prob(x[:, :0])
    with pytest.raises(ValueError, match="at least one row and one step"):
        model.log_prob(x[:0])
    with pytest.raises(TypeError, match="lengths must hold integers"):
        model.log_prob(x, torch.tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match="start must be a Belief"):
        model.log_prob(x, start=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="one row for each of the 2 rows"):
        model.log_prob(x, start=Belief(None, uniform(3, 4).float()))
    with pytest.raises(ValueError, match="another model"):
        model.log_prob(x, start=Belief(None, uniform(2, 9).float()))
    with pytest.raises(TypeError, match="states must be an integer tensor"):
        model.posterior(x, states=[[0, 0, 0]])
    with pytest.raises(ValueError, match="ids below 4"):
        model.posterior(x, states=torch.full((2, 3), 9))


def test_a_vocabulary_cut_short(model, tmp_path):
    from pplseq.data.vocabulary import Vocabulary

    vocabulary = Vocabulary.build([["a", "b", "c", "d", "<unk>"]])
    model.vocabulary = vocabulary
    model.save(tmp_path / "m")
    path = tmp_path / "m" / "vocab.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(ValueError, match="vocab.txt"):
        VLHMM.load(tmp_path / "m")
