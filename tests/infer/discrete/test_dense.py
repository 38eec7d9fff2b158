"""What dense chains have beside the queries of all families: predictions of states, chains given by their factors."""

import pytest
import torch
from support.tiny_chains import case
from support.tiny_families import F64

from pplseq.infer.discrete.dense import FactorChain
from pplseq.infer.discrete.results import Factors

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
