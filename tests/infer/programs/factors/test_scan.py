"""The scan over scaled probabilities and its twin in log space."""

import itertools

import pytest
import torch

from pplseq.infer.programs.factors import scan

F64 = torch.float64


def problem(tables, sizes, rows):
    """An elimination of random tables; ``tables`` are the variables of each."""
    numbers = [tuple(t) for t in tables]
    order = list(range(len(sizes)))
    return scan.Problem(scan.plan(order, (), numbers), numbers, dict(enumerate(sizes)), rows)


CHAIN = [(0,), (0, 1), (1,), (1, 2), (2,), (2, 3), (3,)]
FACTORIAL = [(0,), (1,), (0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5)]
SECOND = [(0,), (0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4), (4,)]
COUPLED = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (2, 3, 4), (2, 3, 4, 5)]


@pytest.mark.parametrize("tables", [CHAIN, FACTORIAL, SECOND, COUPLED], ids=["chain", "factorial", "second", "coupled"])
@pytest.mark.parametrize("scale", [1.0, 15.0])
def test_scaled_and_log_agree_with_all_paths(tables, scale):
    generator = torch.Generator().manual_seed(len(tables))
    num = 1 + max(itertools.chain(*tables))
    sizes, rows = [2 + k % 2 for k in range(num)], 3
    this = problem(tables, sizes, rows)
    values = []
    for place, numbers in enumerate(tables):
        shape = (rows if place % 2 else 1, *(sizes[n] for n in numbers))
        values.append((scale * torch.randn(shape, generator=generator, dtype=F64)).requires_grad_())
    stacks = [(value.unsqueeze(0), [place]) for place, value in enumerate(values)]
    full = torch.zeros((rows, *sizes), dtype=F64)
    for value, numbers in zip(values, tables, strict=True):
        full = full + scan.spread_over(value, numbers, tuple(range(num)))
    expected = full.flatten(1).logsumexp(-1)
    for found in (scan.scaled_log_sum(this, stacks), scan.log_messages(this, values)[-1], scan.log_sum(this, stacks)):
        torch.testing.assert_close(found, expected)
        wanted = torch.autograd.grad(expected.sum(), values, retain_graph=True)
        gradients = torch.autograd.grad(found.sum(), values, retain_graph=True)
        for one, other in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    best = scan.log_messages(this, values, maximise=True)[-1]
    chosen = scan.choose(this, values, {}, sample=False)
    torch.testing.assert_close(best, full.flatten(1).amax(-1))
    picked = full[(torch.arange(rows), *(chosen[n] for n in range(num)))]
    torch.testing.assert_close(picked, best)


def test_far_apart_or_impossible_tables_go_through_logs():
    tables = [torch.tensor([[0.0, -900.0]], dtype=F64), torch.tensor([[[0.0, -torch.inf], [-torch.inf, 0.0]]], dtype=F64),
              torch.tensor([[-2000.0, 0.0]], dtype=F64)]  # fmt: skip
    this = problem([(0,), (0, 1), (1,)], [2, 2], 1)
    stacks = [(value.unsqueeze(0), [place]) for place, value in enumerate(tables)]
    assert not scan.keeps_digits(this, stacks)
    torch.testing.assert_close(scan.log_sum(this, stacks), torch.tensor([-900.0], dtype=F64))
    tables[1] = torch.zeros(1, 2, 2, dtype=F64)
    tables[2] = torch.full((1, 2), -torch.inf, dtype=F64).requires_grad_()
    stacks = [(value.unsqueeze(0), [place]) for place, value in enumerate(tables)]
    found = scan.log_sum(this, stacks)
    assert torch.isneginf(found) and not torch.autograd.grad(found.sum(), tables[2])[0].isnan().any()


def test_an_order_that_opens_few_variables():
    """Leaves before their root in the program would open all of them."""
    tables = [(k,) for k in range(8)] + [(k, 8) for k in range(8)]
    cells, _ = scan.largest(scan.plan(list(range(9)), (), tables), dict.fromkeys(range(9), 4))
    assert cells == 4**9
    cells, _ = scan.largest(scan.plan([0, 8, *range(1, 8)], (), tables), dict.fromkeys(range(9), 4))
    assert cells == 4**2
