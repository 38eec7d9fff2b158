"""No answer of a chain is time first: of every family, where rows, steps, states and draws all differ in number."""

import math

import pytest
import torch
from support.grids import grid
from support.tiny_chains import Case
from support.tiny_families import F64, FAMILIES
from support.tiny_gaussians import tiny_case

from pplseq.distributions.dense import CategoricalEmission
from pplseq.distributions.linear_gaussian import LinearEmission
from pplseq.distributions.noise import DiagonalNoise
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.results import MissingWords, StateMarginals
from pplseq.infer.programs.linear_chain import LinearChain

S, K_BEST, B, T = 11, 13, 3, 7
ROWS = {
    "whole": ["xxxxxxx", "xxxxxxx", "xxxxxxx"],
    "ragged": ["xxxxxxx", "x      ", "xxxx   "],
    "missing": ["x.xxxxx", ".xx..x ", "xxx... "],
}


def answers(chain, num_states):
    """Name -> (a result, the shape that it must have); K is the number of states that a step opens."""
    (path, best), (paths, scores) = chain.viterbi(), chain.k_best(K_BEST)
    smoothed, filtered, pairs = chain.marginals(), chain.filtered_states(), chain.pair_marginals()
    width, pair_width = smoothed.probs.shape[-1], pairs.probs.shape[-1]
    found = {
        "log_prob": (chain.log_prob(), (B,)), "entropy": (chain.entropy(), (B,)),
        "token_log_probs": (chain.token_log_probs(), (B, T)),
        "viterbi": (path, (B, T)), "its score": (best, (B,)),
        "k_best": (paths, (K_BEST, B, T)), "their scores": (scores, (K_BEST, B)), "sample": (chain.sample(S), (S, B, T)),
        "marginals": (smoothed.probs, (B, T, width)), "of all states": (smoothed.dense(num_states), (B, T, num_states)),
        "filtered_states": (filtered.probs, (B, T, width)), "and all": (filtered.dense(num_states), (B, T, num_states)),
        "pair_marginals": (pairs.probs, (B, T - 1, pair_width, pair_width)),
    }  # fmt: skip
    for name, ids in (("smoothed ids", smoothed.ids), ("filtered ids", filtered.ids), ("pair ids", pairs.ids)):
        if ids is not None:
            found[name] = (ids, (B, T, width))
    return found


@grid({"family": sorted(set(FAMILIES) - {"Forbidden", "ForbiddenBlocks"}), "rows": ROWS})
def test_every_family_answers_batch_first(family, rows):
    c = Case(FAMILIES[family](seed=2), ROWS[rows])
    chain, z = c.chain(), c.family.num_states
    for name, (value, shape) in answers(chain, z).items():
        assert tuple(value.shape) == shape, name
    counts = chain.expected_counts()
    assert counts.marginals.probs.shape[:2] == (B, T)
    assert (chain.marginals().ids is None) == (not hasattr(c.family, "layout")), "states come with ids, unless all of them do"
    totals = chain.filtered_states().dense(z).sum(-1)
    torch.testing.assert_close(totals, c.valid.T.to(totals))
    if rows == "missing" and hasattr(chain.emission, "word_log_prob"):
        missing, drawn = chain.missing_words(), chain.sample_words(S)
        assert missing.places.tolist() == (~c.seen & c.valid).T.nonzero().tolist()
        assert missing.log_probs.shape == (len(missing.places), c.family.num_words) and drawn.shape == (S, B, T)
        assert (drawn == c.obs.T)[:, c.seen.T & c.valid.T].all()


def test_a_second_order_chain_answers_batch_first():
    torch.manual_seed(0)
    start, table, emit = (torch.randn(*shape, dtype=F64).log_softmax(-1) for shape in ((4,), (2, 2, 2), (4, 5)))
    chain = build_chain(SecondOrderTransition(start, table), CategoricalEmission(emit), torch.randint(5, (T, B)))
    found = answers_without_pairs(chain, 4)
    for name, (value, shape) in found.items():
        assert tuple(value.shape) == shape, name


def answers_without_pairs(chain, num_states):
    (path, best), (paths, scores) = chain.viterbi(), chain.k_best(K_BEST)
    return {
        "viterbi": (path, (B, T)), "k_best": (paths, (K_BEST, B, T)), "sample": (chain.sample(S), (S, B, T)),
        "marginals": (chain.marginals().probs, (B, T, num_states)), "best": (best, (B,)), "scores": (scores, (K_BEST, B)),
        "filtered_states": (chain.filtered_states().probs, (B, T, num_states)),
        "predicted_states": (chain.predicted_states().probs, (B, T, num_states)),
        "token_log_probs": (chain.token_log_probs(), (B, T)), "entropy": (chain.entropy(), (B,)),
    }  # fmt: skip


def test_a_chain_of_potentials_answers_batch_first():
    torch.manual_seed(0)
    law = LinearChain(torch.randn(B, T, 4, dtype=F64), torch.randn(4, 4, dtype=F64), torch.tensor([7, 1, 4]))
    for name, (value, shape) in answers(law.chain(), 4).items():
        assert tuple(value.shape) == shape, name
    assert law.sample((2, S)).shape == (2, S, B, T)


@pytest.mark.parametrize("situation", ["plain", "ragged", "gaps", "changing by row", "evidence by row"])
def test_gaussian_chains_answer_batch_first(situation):
    steps, size = 9, 3
    case = tiny_case(situation, num_steps=steps, h=size)
    rows, n = case.observations.shape[1:]
    chain = case.chain()
    for states in (chain.predicted_states(), chain.filtered_states(), chain.smoothed_states()):
        assert states.means.shape == (rows, steps, size) and states.covariances.dense().shape == (rows, steps, size, size)
    assert chain.lag_one_covariances().dense().shape == (rows, steps - 1, size, size)
    assert chain.token_log_probs().shape == (rows, steps) and chain.sample(S).shape == (S, rows, steps, size)
    if situation in ("plain", "ragged", "gaps"):
        chain = case.chain(emission=LinearEmission(case.emission, DiagonalNoise(case.variances)))
        ahead, surprise = chain.forecast(4), chain.innovations(case.observations.transpose(0, 1))
        assert ahead.state_means.shape == (rows, 4, size) and ahead.means.shape == (rows, 4, n)
        assert ahead.state_covariances.shape in ((4, size, size), (rows, 4, size, size))
        assert surprise.values.shape == (rows, steps, n) and surprise.covariances.dense().shape == (rows, steps, n, n)


# ------------------------------------------------------------------------------------------------ the records themselves
def test_marginals_over_all_states():
    ids, probs = torch.tensor([[[1, 3], [0, 2]]]), torch.tensor([[[0.25, 0.75], [0.0, 0.0]]])
    wide = StateMarginals(ids, probs, torch.tensor([[0, 1]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    expected = torch.tensor([[[0.0, 0.25, 0.0, 0.75], [0.1, 0.2, 0.3, 0.4]]])
    torch.testing.assert_close(wide.dense(4), expected)
    assert StateMarginals(None, expected).dense(4) is expected


def test_missing_words_go_by_row_and_step():
    places = torch.tensor([[1, 0], [0, 5], [0, 2], [2, 1]])
    found = MissingWords(places, torch.arange(4.0).unsqueeze(-1)).in_order()
    assert found.places.tolist() == sorted(places.tolist()) and found.log_probs[:, 0].tolist() == [2.0, 1.0, 0.0, 3.0]


def test_filtered_states_inside_gaps_do_not_look_ahead():
    """At every step of a gap, what the steps before say: the belief at the end of the row cut off there."""
    c = Case(FAMILIES["Reset"](seed=3), ["x...x", "..xx.", "xx..."])
    z, inputs = c.family.num_states, c.inputs
    found = c.chain().filtered_states().dense(z)
    for t in range(5):
        part = slice(0, t + 1)
        prefix = build_chain(*c.family.specs(), c.obs[part], seen=c.seen[part], inputs=None if inputs is None else inputs[part])
        torch.testing.assert_close(found[:, t].log(), prefix.filtered().dense(z), rtol=1e-9, atol=1e-12)
    assert math.isclose(float(found.sum()), 15.0, rel_tol=1e-9)
