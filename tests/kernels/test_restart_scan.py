"""Many parameter sets at once: the scan against enumeration, against the chain, and its counts against gradients."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from support.grids import grid
from torch.testing import assert_close

from pplseq.distributions.conditional import ConditionalEmission
from pplseq.distributions.dense import CategoricalEmission, StepTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.kernels import compiled
from pplseq.kernels.restart_scan import Lattice, expectation, expectation_in_log_space, log_prob, production

B, T = 5, 6


@pytest.fixture(autouse=True, params=["loops", "torch"])
def operations(request):
    with compiled.twins_only() if request.param == "torch" else nullcontext():
        yield


def tables(num_states, num_starts, num_pairs, num_emissions, num_restarts, zeros=False):
    shapes = ((num_states, num_starts), (num_states, num_states, num_pairs), (num_states, num_emissions))
    init, pair, emit = (torch.randn(*shape, num_restarts, dtype=torch.float64) for shape in shapes)
    if zeros:  # a forbidden transition, start and emission
        pair[0, -1], init[-1], emit[0, -1] = -math.inf, -math.inf, -math.inf
    return init.log_softmax(0), pair.log_softmax(1), emit


def lattice(num_starts, num_pairs, num_emissions, packed=False):
    lengths = torch.tensor([3, 6, 1, 4, 6])
    made = Lattice(
        lengths, torch.randint(num_starts, (B,)), torch.randint(num_pairs, (B, T)), torch.randint(num_emissions, (B, T))
    )
    if packed:  # an entry a step
        made.pair_index = made.emit_index = None
    return made


def enumerated(init, pair, emit, lattice, row, restart):
    """log p of one (sorted) row, over all paths."""
    at = (lattice.row == row).nonzero().squeeze(-1)
    pairs = at if lattice.pair_index is None else lattice.pair_index[at]
    emissions = at if lattice.emit_index is None else lattice.emit_index[at]
    paths = torch.tensor(list(itertools.product(range(len(init)), repeat=len(at))))
    score = init[paths[:, 0], lattice.init_index[row], restart] + emit[paths, emissions, restart].sum(-1)
    score = score + pair[paths[:, :-1], paths[:, 1:], pairs[1:], restart].sum(-1)
    return torch.logsumexp(score, 0)


CASES = [  # states, pair entries, entry a step
    (3, 2, False), (3, 1, False), (2, 15, False), (3, 19, True), (1, 2, False), (13, 3, False),
]  # fmt: skip


@grid({"zeros": [False, True], "num_states, num_pairs, packed": CASES})
def test_log_likelihoods_and_counts(num_states, num_pairs, packed, zeros):
    if zeros and num_states == 1:
        pytest.skip("a single state cannot be forbidden")
    torch.manual_seed(0)
    where = lattice(2, num_pairs, 4, packed)
    num_pairs, num_emissions = (where.num_packed, where.num_packed) if packed else (num_pairs, 4)
    leaves = [
        value.requires_grad_() for value in tables(num_states, 2, num_pairs, num_emissions, num_restarts=3, zeros=zeros)
    ]
    found = expectation(*(value.detach() for value in leaves), where)
    slow = expectation_in_log_space(*(value.detach() for value in leaves), where)
    for value, expected in zip(found, slow, strict=True):
        assert_close(value, expected, rtol=1e-10, atol=1e-12)
    if num_states > 3:
        return
    total = 0.0
    for row in range(B):
        for restart in range(3):
            log_prob = enumerated(*leaves, where, row, restart)
            assert_close(found.log_prob[where.order[row], restart], log_prob.detach(), rtol=1e-10, atol=1e-10)
            total = total + log_prob
    gradients = torch.autograd.grad(total, leaves)  # Fisher: expected counts
    for value, gradient in zip(found[1:], gradients, strict=True):
        assert_close(value, gradient.nan_to_num(0.0), rtol=1e-9, atol=1e-10)


def test_as_the_chain_with_a_matrix_a_step():
    torch.manual_seed(1)
    where = lattice(2, 19, 19, packed=True)
    init, pair, emit = tables(3, 2, where.num_packed, where.num_packed, num_restarts=2)
    found = expectation(init, pair, emit, where)
    padded = torch.zeros(T, B, dtype=torch.long)
    padded[where.mask] = torch.arange(where.num_packed)
    for restart in range(2):
        first = init[:, where.init_index, restart].T
        transition = StepTransition(first, lambda k, r=restart: pair[..., r].movedim(2, 0)[k], 3, input_dims=0)
        emission = ConditionalEmission(
            lambda k, r=restart: CategoricalEmission(emit[..., r].T[k].unsqueeze(-1)), 3, num_words=1, input_dims=0
        )
        with torch.no_grad():
            torch.distributions.Distribution.set_default_validate_args(False)
            try:
                chain = build_chain(
                    transition, emission, torch.zeros(T, B, dtype=torch.long), valid=where.mask, inputs=padded,
                    emission_inputs=padded,
                )  # fmt: skip
                log_prob = chain.log_prob()
            finally:
                torch.distributions.Distribution.set_default_validate_args(True)
        assert_close(where.unsort(log_prob), found.log_prob[:, restart], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_that_leave_the_scaled_range(dtype):
    """The reachable state explains a step e^-900 times worse than the unreachable one; and a future that outweighs its past."""
    lengths = torch.tensor([3, 2])
    where = Lattice(lengths, None, torch.zeros(2, 3, dtype=torch.long), torch.tensor([[0, 1, 2], [0, 0, 0]]))
    init = torch.tensor([0.0, -math.inf], dtype=dtype)[:, None, None].expand(2, 1, 2).clone()
    pair = torch.tensor([[0.0, -800.0], [-1.0, -0.5]], dtype=dtype)[:, :, None, None].expand(2, 2, 1, 2).clone()
    emit = torch.tensor([[0.0, 0.0], [-900.0, 0.0], [-3000.0, 0.0]], dtype=dtype).T[:, :, None].expand(2, 3, 2).clone()
    emit[..., 1] += 0.25
    found, slow = expectation(init, pair, emit, where), expectation_in_log_space(init, pair, emit, where)
    for value, expected in zip(found, slow, strict=True):
        assert_close(value, expected)
    assert bool((found.log_prob[0] < -799).all())


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


def test_a_state_that_comes_back_from_nothing():
    """Its share of the past falls below any number, a little each step, and then it explains everything."""
    where = Lattice(torch.tensor([8]), None, None, torch.arange(8)[None])
    init = torch.tensor([0.5, 0.5], dtype=torch.float64).log()[:, None, None]
    pair = torch.eye(2, dtype=torch.float64).log()[:, :, None, None]
    emit = torch.tensor([[0.0] * 4 + [-300.0] * 4, [-250.0] * 4 + [0.0] * 4], dtype=torch.float64)[:, :, None]
    where.pair_index = torch.zeros(8, dtype=torch.long)
    for value, expected in zip(
        expectation(init, pair, emit, where), expectation_in_log_space(init, pair, emit, where), strict=True
    ):
        assert_close(value, expected)
    assert float(expectation(init, pair, emit, where).start[1]) == pytest.approx(1.0)
