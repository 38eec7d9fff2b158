"""Beliefs, symbols and the indexing that lazy distributions share. (Misuse of symbols: tests/infer/test_refused_programs.py)"""

import math

import torch

from pplseq.distributions import Belief
from pplseq.distributions.state import StateVar, broadcast_shapes, gather_last, take_rows

close = torch.testing.assert_close


def test_a_belief_over_some_states():
    # a padded slot repeats an id, with probability zero
    belief = Belief(torch.tensor([[4, 1, 4]]), torch.tensor([[0.25, 0.75, 0.0]]).log())
    assert belief.shape == (1,)
    close(belief.dense(6).exp(), torch.tensor([[0.0, 0.75, 0.0, 0.0, 0.25, 0.0]]))


def test_a_belief_over_all_states():
    log_probs = torch.randn(2, 3).log_softmax(-1)
    assert Belief(None, log_probs).dense(3) is log_probs


def test_detach_and_move():
    belief = Belief(torch.tensor([[0, 1]]), torch.zeros(1, 2, requires_grad=True), torch.tensor([7]))
    detached = belief.detach()
    assert not detached.log_probs.requires_grad and detached.ids is belief.ids and detached.last_observation is not None
    moved = belief.to("cpu")
    assert isinstance(moved, Belief) and moved.last_observation.tolist() == [7]
    assert Belief(None, torch.zeros(1, 2)).to("cpu").ids is None


def test_take_rows():
    table, index = torch.randn(4, 3), torch.tensor([[0, 3], [2, 2]])
    assert torch.equal(take_rows(table, index), table[index])
    batched, index = torch.randn(2, 1, 4, 3), torch.tensor([1, 3, 0])
    got = take_rows(batched, index)
    assert got.shape == (2, 3, 3)
    for c in range(2):
        assert torch.equal(got[c], batched[c, 0][index])


def test_gather_last():
    rows, value = torch.randn(2, 1, 4), torch.tensor([1, 3, 0])
    got = gather_last(rows, value)
    assert got.shape == (2, 3)
    assert torch.equal(got, rows.expand(2, 3, 4)[:, torch.arange(3), value])


def test_broadcast_shapes_is_torchs():
    shapes = [(), (3,), (2, 3), (1, 3), (2, 1), (4, 2, 3)]
    for a in shapes:
        for b in shapes:
            a_shape, b_shape = torch.Size(a), torch.Size(b)
            assert broadcast_shapes(a_shape, b_shape) == torch.broadcast_shapes(a_shape, b_shape)


def test_a_symbol_has_a_shape():
    class Chain:
        name = "z_0"

    z = StateVar(Chain(), 2, (3, 4))
    assert z.shape == (3, 4) and z.dim() == 2 and z.size() == (3, 4) and z.size(0) == 3
    assert len({z, z}) == 1 and "step=2" in repr(z)


def test_zero_probabilities_stay_zero():
    belief = Belief(torch.tensor([[0, 2]]), torch.tensor([[-math.inf, 0.0]]))
    assert belief.dense(3)[0].tolist() == [-math.inf, -math.inf, 0.0]
