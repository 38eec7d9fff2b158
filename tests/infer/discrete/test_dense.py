"""What dense chains have beside the queries of all families: predictions of states, chains given by their factors."""

import math

import pytest
import torch
from support.tiny_chains import case
from support.tiny_families import F64

from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.dense import FactorChain
from pplseq.infer.discrete.results import Factors
from pplseq.kernels import compiled

close = torch.testing.assert_close


@pytest.mark.parametrize("family", ["Dense", "OneState", "Step"])
@pytest.mark.parametrize("situation", ["plain", "one step", "missing and ragged", "start"])
def test_predicted_states(family, situation):
    """One step on from the filter of the step before; the start distribution at the first step."""
    c = case(family, situation)
    chain = c.chain()
    predicted, filtered = chain.predicted_states(), chain.filtered_states().probs
    assert predicted.ids is None and predicted.probs.shape == filtered.shape
    for row, truth in enumerate(c.truths):
        for t in range(truth.num_steps):
            law = truth.initial.exp() if t == 0 else filtered[row, t - 1] @ truth.matrices[t - 1].exp()
            close(predicted.probs[row, t], law.detach())
        assert (predicted.probs[row, truth.num_steps :] == 0).all()


def factors(num_steps=4, rows=2, states=3):
    torch.manual_seed(0)
    init, pair, emit = (torch.randn(*s, dtype=F64) for s in ((rows, states), (num_steps - 1, rows, states, states),
                                                             (num_steps, rows, states)))  # fmt: skip
    valid = torch.arange(num_steps).unsqueeze(1) < torch.tensor([num_steps, 2])
    return Factors(init, pair, emit, valid)


def test_a_chain_of_factors_names_its_states():
    plain, ids = FactorChain(factors(), missing="no specs"), torch.tensor([5, 7, 9]).expand(4, 2, 3)
    named = FactorChain(factors(), ids, missing="no specs")
    path, best = named.viterbi()
    states = torch.tensor([5, 7, 9, -1])  # the last stands for padding
    assert torch.equal(path, states[plain.viterbi()[0]]) and torch.equal(best, plain.viterbi()[1])
    assert named.marginals().ids.shape == (2, 4, 3) and plain.marginals().ids is None
    assert torch.equal(named.filtered().ids, ids[-1]) and plain.filtered().ids is None
    close(named.filtered_states().probs, plain.filtered_states().probs)


@pytest.mark.parametrize("query", ["next", "missing_words", "sample_words", "next_after"])
def test_what_needs_specs_is_refused(query):
    chain = FactorChain(factors(), missing="a chain of numbers has no words")
    with pytest.raises(TypeError, match=r"no words; marginals\(\), pair_marginals\(\), viterbi\(\)"):
        getattr(chain, query)()


def known_of_rows(kind, batch, steps=6):
    """What is known beside observations (T, *B)."""
    if kind == "ragged":
        lengths = torch.randint(1, steps + 1, batch)
        lengths.view(-1)[1] = 0
        return {"valid": torch.arange(steps).reshape(-1, *(1,) * len(batch)) < lengths}
    if kind == "gaps and states":
        return {
            "seen": torch.rand(steps, *batch) < 0.7, "states": torch.where(torch.rand(steps, *batch) < 0.2, 1, -1)
        }  # fmt: skip
    return {"start": Belief(None, torch.randn(*batch, 3).double().log_softmax(-1))} if kind == "a start of each row" else {}


@pytest.mark.parametrize("batch", [(5,), (2, 3)])
@pytest.mark.parametrize("kind", ["full", "ragged", "gaps and states", "a start of each row"])
def test_loops_over_rows_say_what_the_scans_say(kind, batch):
    torch.manual_seed(0)
    transition = DenseTransition(torch.randn(3).double().log_softmax(-1), torch.randn(3, 3).double().log_softmax(-1))
    emission, x = CategoricalEmission(torch.randn(3, 7).double().log_softmax(-1)), torch.randint(7, (6, *batch))
    known = known_of_rows(kind, batch)
    chain = build_chain(transition, emission, x, **known)
    assert chain._tables is not None and chain._row_log_probs() is not None
    with compiled.twins_only():
        twin = build_chain(transition, emission, x, **known)
        assert twin._tables is None
        torch.testing.assert_close(chain.log_prob(), twin.log_prob(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(chain.marginals().probs, twin.marginals().probs, rtol=1e-10, atol=1e-12)
        for found, wanted in zip(chain.expected_counts()[:4], twin.expected_counts()[:4], strict=True):
            assert (found is None) == (wanted is None)
            if found is not None:
                torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert chain.total_log_prob() == pytest.approx(float(twin.log_prob().sum()), rel=1e-13)


def test_gradients_and_impossible_rows_are_left_to_the_scans():
    initial = torch.tensor([0.0, -math.inf]).double()
    matrix = torch.eye(2).double().log()
    emission = CategoricalEmission(torch.eye(2).double().log())
    chain = build_chain(DenseTransition(initial, matrix), emission, torch.tensor([[0, 0], [0, 1]]))
    for ask in (chain.log_prob, chain.marginals, chain.expected_counts, chain.total_log_prob):
        with pytest.raises(ValueError, match="row 1, step 1: observation 1 is impossible"):
            ask()
    with chain.unchecked():
        assert chain.log_prob().tolist() == [0.0, -math.inf]
    matrix = torch.zeros(2, 2).double().log_softmax(-1).requires_grad_()
    chain = build_chain(DenseTransition(torch.zeros(2).double().log_softmax(-1), matrix), emission, torch.tensor([[0], [1]]))
    assert not chain.marginals().probs.requires_grad
    assert chain._tables is None and chain.log_prob().requires_grad
