"""Many parameter sets at once: what one does to the others, and what goes by parts."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from pplseq.kernels import compiled
from pplseq.kernels.restart_scan import Lattice, expectation, log_prob, production

B, T = 5, 6


@pytest.fixture(autouse=True, params=["loops", "torch"])
def operations(request):
    with compiled.twins_only() if request.param == "torch" else nullcontext():
        yield


def tables(num_states, num_starts, num_pairs, num_emissions, num_restarts):
    shapes = ((num_states, num_starts), (num_states, num_states, num_pairs), (num_states, num_emissions))
    init, pair, emit = (torch.randn(*shape, num_restarts, dtype=torch.float64) for shape in shapes)
    return init.log_softmax(0), pair.log_softmax(1), emit


def lattice(num_starts, num_pairs, num_emissions):
    lengths = torch.tensor([3, 6, 1, 4, 6])
    return Lattice(
        lengths, torch.randint(num_starts, (B,)), torch.randint(num_pairs, (B, T)), torch.randint(num_emissions, (B, T))
    )


def test_impossible_rows_count_nothing_and_nan_stays_in_its_restart():
    torch.manual_seed(2)
    where = lattice(1, 2, 3)
    init, pair, emit = tables(2, 1, 2, 3, num_restarts=3)
    emit[:, :, 0] = -math.inf  # nothing is possible under restart 0
    pair[0, 0, 0, 1] = math.nan
    found = expectation(init, pair, emit, where)
    assert bool(torch.isneginf(found.log_prob[:, 0]).all())
    assert bool(found.log_prob[:, 1].isnan().any())
    assert float(found.start[..., 0].sum()) == float(found.pair[..., 0].sum()) == float(found.emit[..., 0].sum()) == 0
    assert_close(found.emit[..., 2].sum(), torch.tensor(20.0, dtype=torch.float64))


def test_restarts_in_parts_are_restarts_together(monkeypatch):
    torch.manual_seed(3)
    where, given = lattice(2, 2, 4), tables(3, 2, 2, 4, num_restarts=7)
    together = expectation(*given, where)
    monkeypatch.setattr("pplseq.kernels.restart_scan.STEP_CELLS", 100)
    for value, expected in zip(expectation(*given, where), together, strict=True):
        assert_close(value, expected)
    assert_close(log_prob(*given, where), together.log_prob)


def test_production_is_the_product_of_matrices():
    torch.manual_seed(4)
    where, (init, pair, _) = lattice(2, 3, 1), tables(3, 2, 3, 1, num_restarts=2)
    found = production(init, pair, where)
    row, restart = 0, 1
    at = (where.row == row).nonzero().squeeze(-1)
    state = init[:, where.init_index[row], restart].exp()
    for t, position in enumerate(at.tolist()):
        if t:
            state = state @ pair[:, :, where.pair_index[position], restart].exp()
        assert_close(found[:, position, restart], state)


def test_empty_rows_are_refused():
    with pytest.raises(ValueError, match="lengths: every row must have at least one step"):
        Lattice(torch.tensor([2, 0]))
