"""Components as whole chains, and their twin: elimination variable by variable in log space."""

import torch
from support.grids import grid

from pplseq.infer.programs.factors import scan
from pplseq.infer.programs.factors.lowering import find_steps, lower
from pplseq.kernels.scan import chain_log_prob

F64 = torch.float64


def problem(numbers, sizes, rows):
    size = dict(enumerate(sizes))
    return scan.Problem(scan.plan(list(size), (), numbers), numbers, size, rows)


def chain_of(length, sizes, rows, shared, zeros, generator):
    """Steps of some variables: each on itself and its neighbour before, one table over all of a step, one a step or shared."""
    width, stacks, numbers = len(sizes), [], []

    def add(tables, steps, alike):
        shape = (1 if alike else len(steps), rows if rows > 1 and not alike else 1, *(sizes[v % width] for v in tables))
        values = 2 * torch.randn(shape, generator=generator, dtype=F64)
        if zeros:
            closed = torch.rand(shape, generator=generator) < 0.2
            values = values.masked_fill(closed & (torch.arange(shape[-1]) > 0), -torch.inf)
        values = values.requires_grad_()
        stacks.append((values.expand(len(steps), *shape[1:]), [len(numbers) + k for k in range(len(steps))]))
        numbers.extend(tuple(v + width * t for v in tables) for t in steps)
        leaves.append(values)

    leaves: list = []
    add(tuple(range(width)), range(length), False)
    if length > 1:
        for own in range(width):
            add((own, own + width), range(length - 1), shared)
        if width > 1:
            add((0, width, width + 1), range(length - 1), shared)
        add((width - 1,), [length - 1], False)
        add((0,), range(1, length), shared)
    return problem(numbers, sizes * length, rows), stacks, leaves


@grid({"sizes": [(3,), (2, 3), (1,), (2, 1, 3)], "shared": [True, False], "zeros": [False, True]})
def test_chains_agree_with_elimination_by_variable(sizes, shared, zeros):
    generator = torch.Generator().manual_seed(len(sizes) + 2 * shared)
    for length, rows in ((1, 2), (2, 1), (5, 3)):
        this, stacks, leaves = chain_of(length, sizes, rows, shared, zeros, generator)
        factors = lower(this, stacks)
        assert factors is not None and factors.emit.shape == (length, rows, torch.Size(sizes).numel())
        assert factors.shared == (shared or length <= 2)
        found = chain_log_prob(*factors).log_prob
        tables = [torch.empty(0)] * len(this.numbers)
        for values, places in stacks:
            for place, value in zip(places, values.unbind(), strict=True):
                tables[place] = value
        expected = scan.log_messages(this, tables)[-1].expand(rows)
        torch.testing.assert_close(found, expected)
        weights = torch.linspace(0.5, 2, rows, dtype=F64)
        wanted = torch.autograd.grad((weights * expected).sum(), leaves)
        for one, other in zip(torch.autograd.grad((weights * found).sum(), leaves), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_what_is_no_chain_or_pays_as_none():
    second_order = [(0,), (0, 1), (0, 1, 2), (1, 2, 3)]
    assert find_steps(problem(second_order[:3], [2] * 3, 1)).width == 3
    assert find_steps(problem(second_order, [2] * 4, 1)).width == 2  # pairs of steps
    assert find_steps(problem([*second_order, (2, 3, 4)], [2] * 5, 1)) is None
    assert find_steps(problem([(0, 1), (1, 2), (0, 2)], [2] * 3, 1)).length == 1  # a loop: one step
    assert find_steps(problem([(k, (k + 1) % 5) for k in range(5)], [2] * 5, 1)) is None
    assert find_steps(problem([(k, k + 1) for k in range(4)], [2, 3, 2, 2, 3], 1)) is None  # sizes that differ
    large = problem([(0,), (1,), (0, 1), (0, 2), (1, 3)], [8] * 4, 1)
    stacks = [(torch.zeros(1, 1, *[8] * len(n), dtype=F64), [k]) for k, n in enumerate(large.numbers)]
    assert lower(large, stacks) is None and lower(large, stacks, always=True).emit.shape == (2, 1, 64)
