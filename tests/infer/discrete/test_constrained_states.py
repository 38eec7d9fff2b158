"""Chains whose paths an automaton accepts, against every path."""

import math

import pytest
import torch
from support.tiny_families import FAMILIES

from pplseq.distributions.dense import CategoricalEmission
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.states import constrain_states

F64 = torch.float64
close = torch.testing.assert_close


def moves_over(num_states):
    """State 0 comes twice or more; the last state only right behind state 0 (or, where it is the same, at will)."""
    classes = torch.ones(num_states, dtype=torch.long)
    classes[-1], classes[0] = 2, 0
    return WordMoves.of(classes, [[1, 0, 4], [3, 2, 2], [3, 2, 4], [3, 3, 3], [4, 4, 4]], [False, False, False, True, False])


def truth(chain, moves, lengths):
    """Of each row {path: log p(path, x)} of the paths that are accepted, from the chain's own k best."""
    count = min(4000, chain.transition.num_states ** chain.num_steps)
    paths, log_probs = chain.k_best(count)
    found = []
    for row, size in enumerate(lengths):
        some = {}
        for path, value in zip(paths[:, row, :size].tolist(), log_probs[:, row].tolist(), strict=True):
            if value > -math.inf and bool(moves.accepting[moves.run(torch.tensor([path]))[0]]):
                some[tuple(path)] = value
        found.append(some)
    return found


def check(chain, moves, lengths):
    expected = truth(chain, moves, lengths)
    got = constrain_states(chain, moves)
    total = torch.tensor([torch.tensor(list(some.values()), dtype=F64).logsumexp(0) for some in expected])
    close(got.log_prob(), total)
    marginals = got.marginals().dense(chain.transition.num_states)
    paths, best = got.viterbi()
    several, values = got.k_best(3)
    torch.manual_seed(0)
    drawn = got.sample(300)
    for row, (some, size) in enumerate(zip(expected, lengths, strict=True)):
        by_state = torch.zeros_like(marginals[row])
        for path, value in some.items():
            for t, z in enumerate(path):
                by_state[t, z] += math.exp(value - float(total[row]))
        close(marginals[row], by_state)
        order = sorted(some.values(), reverse=True)[:3]
        close(values[: len(order), row], torch.tensor(order, dtype=F64))
        close(best[row], values[0, row])
        close(torch.tensor(some[tuple(paths[row, :size].tolist())], dtype=F64), best[row])
        assert {tuple(path) for path in several[: len(order), row, :size].tolist()} <= set(some)
        assert {tuple(path) for path in drawn[:, row, :size].tolist()} <= set(some)


@pytest.mark.parametrize("name", ["Dense", "Step", "Gaussian", "UnevenBlocks", "Reset", "OneBlock", "ResetOneBlock"])
def test_the_paths_that_are_accepted(name):
    family = FAMILIES[name](seed=4)
    x = torch.tensor([[0, 3, 0], [1, 0, 1], [1, 0, 1], [0, 2, 4]])
    if family.input_dims is None:
        x, _ = family.observe((4, 3))
    if name == "UnevenBlocks":
        x = torch.tensor([[0, 1, 0], [1, 4, 1], [0, 0, 2], [1, 1, 1]])
    lengths = [4, 3, 4] if name != "Reset" else [4, 4, 4]
    valid = torch.arange(4).unsqueeze(-1) < torch.tensor(lengths)
    with torch.no_grad():
        chain = build_chain(*family.specs(), x, valid=valid, inputs=family.inputs(x, None, None))
        states = chain.transition.num_states
        moves = moves_over(states) if states <= 3 else WordMoves.of(torch.arange(states) % 2, [[0, 1], [1, 0]], [True, True])
        check(chain, moves, lengths)


def test_states_of_two_order():
    torch.manual_seed(0)
    table, start = torch.randn(3, 3, 3, dtype=F64).log_softmax(-1), torch.randn(9, dtype=F64).log_softmax(-1)
    emission = CategoricalEmission(torch.randn(9, 5, dtype=F64).log_softmax(-1))
    chain = build_chain(SecondOrderTransition(start, table), emission, torch.randint(5, (4, 2)))
    tags = WordMoves.of(torch.arange(3).repeat(3), [[1, 0, 0], [1, 2, 1], [2, 2, 2]], [False, False, True])
    check(chain, tags, [4, 4])


def test_one_step():
    family = FAMILIES["Dense"](seed=4)
    with torch.no_grad():
        chain = build_chain(*family.specs(), torch.tensor([[0, 1]]))
        check(chain, WordMoves.of([0, 1, 0], [[1, 0], [1, 1]], [True, False]), [1, 1])


def test_what_is_refused():
    family = FAMILIES["Dense"](seed=4)
    with torch.no_grad():
        chain = build_chain(*family.specs(), torch.tensor([[0, 1], [0, 0]]))
        with pytest.raises(ValueError, match="made for 5 states, but the chain has 3"):
            constrain_states(chain, WordMoves.anything(5))
        none = WordMoves.of([0, 0, 0], [[0]], [False])
        with pytest.raises(ValueError, match="row 0: no path of states that explains its observations is accepted"):
            constrain_states(chain, none)
        assert bool(torch.isneginf(constrain_states(chain, none, check=False).log_prob()).all())
        blocks = FAMILIES["UnevenBlocks"](seed=1)
        seen = torch.tensor([[True], [False]])
        gaps = build_chain(*blocks.specs(), torch.tensor([[0], [1]]), seen=seen)
        with pytest.raises(ValueError, match="a missing word opens all states"):
            constrain_states(gaps, WordMoves.anything(6))
