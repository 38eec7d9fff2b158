"""Linear recursions in blocks and by matrices of a table, against plain loops: values, gradients, second derivatives."""

import pytest
import torch
from support.grids import grid

from pplseq.kernels import linear_recursion as kernel
from pplseq.kernels.linear_recursion import choose_block, memory
from pplseq.kernels.matrix_table import MatrixIndex, apply_matrices, recursion

close = torch.testing.assert_close
F64 = torch.float64


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def transition(h, radius, seed=0):
    matrix = normal(h, h, seed=seed)
    return radius * matrix / torch.linalg.eigvals(matrix).abs().max()


def linear_recursion(matrix, inputs, **options):
    states = inputs.clone(memory_format=torch.contiguous_format)
    kernel.run_(matrix, states, **options)
    return states


def plain(matrix, inputs, reverse=False):
    """One step at a time, nothing in place."""
    inputs = inputs.flip(0) if reverse else inputs
    state, states = None, []
    for g in inputs:
        state = g if state is None else g + state @ matrix.T
        states.append(state)
    return torch.stack(states[::-1] if reverse else states)


def same_with_gradients(mine, theirs, parameters, **tolerance):
    close(mine, theirs, **tolerance)
    weights = normal(*mine.shape, seed=9)
    grads = [
        torch.autograd.grad((v * weights).sum(), parameters, allow_unused=True, retain_graph=True)
        for v in (mine, theirs)
    ]
    for left, right, parameter in zip(*grads, parameters, strict=True):
        zero = torch.zeros_like(parameter)
        close(zero if left is None else left, zero if right is None else right, **tolerance)


# ------------------------------------------------------------------------------------------------ one matrix
@grid({
    "rows, h": [(1, 3), (1, 1), (4, 3), (5, 4)],
    "block": [None, 0, 2, 3, 8, 25, 100],
    "reverse": [False, True],
}, times=2)
def test_blocks_are_the_loop(rows, h, block, reverse):
    matrix, inputs = transition(h, 0.9), normal(25, rows, h, seed=1)
    close(linear_recursion(matrix, inputs, reverse=reverse, block=block), plain(matrix, inputs, reverse))


@grid({"rows": [1, 3], "radius": [0.0, 0.3, 0.99, 1.0, 1.02]})
def test_long_sequences_choose_blocks(radius, rows):
    """Short memories are cut off where they are negligible, long and growing ones are not."""
    matrix, inputs = transition(3, radius), normal(601, rows, 3, seed=1)
    assert choose_block(matrix, 601, rows) > 1
    parameters = [p.requires_grad_() for p in (matrix, inputs)]
    for reverse in (False, True):
        mine = recursion(matrix[None], MatrixIndex(torch.zeros(600, dtype=torch.long), 1), inputs, reverse=reverse)
        same_with_gradients(mine, plain(matrix, inputs, reverse), parameters, rtol=1e-9, atol=1e-9)


def test_what_blocks_hand_over_grows_before_it_dies():
    """Powers of a matrix that is not normal grow first: the carry must not be cut off by its first steps."""
    matrix = torch.diag(torch.full((11,), 30.0, dtype=F64), 1) + 0.05 * torch.eye(12, dtype=F64)
    inputs = torch.zeros(200, 1, 12, dtype=F64)
    inputs[::20, 0, -1] = 1e-3
    close(linear_recursion(matrix, inputs, block=10), plain(matrix, inputs), rtol=1e-9, atol=1e-9)


def test_blocks_are_chosen_for_few_long_rows_only(monkeypatch):
    matrix = transition(3, 0.9)
    assert choose_block(matrix, 100_000, kernel.FEW_ROWS) == 0 and choose_block(matrix, 100, 1) == 0
    calls = []
    in_blocks = kernel._in_blocks_
    monkeypatch.setattr(kernel, "_in_blocks_", lambda *arguments: (calls.append(1), in_blocks(*arguments)))
    linear_recursion(matrix, normal(50, 2, 3))
    assert not calls
    linear_recursion(matrix, normal(1000, 2, 3))
    assert calls


def test_memory_of_a_matrix():
    eps = torch.finfo(F64).eps
    for radius in (0.5, 0.9):
        steps = memory(radius * torch.eye(3, dtype=F64))
        assert 3**0.5 * radius**steps <= eps < 3**0.5 * radius ** (steps // 2)
    assert memory(torch.eye(3, dtype=F64)) == memory(2 * torch.eye(3, dtype=F64)) == 2**20
    assert memory(torch.diag(torch.ones(2, dtype=F64), 1)) == 3
    for radius in (0.97, 0.999):
        steps = memory(radius * torch.eye(3, dtype=F64), 1e-3)  # at most an eighth too many
        assert 3**0.5 * radius**steps <= 1e-3 * eps < 3**0.5 * radius ** (steps * 7 // 8 - 1)


def test_single_precision_and_strides():
    matrix, inputs = transition(3, 0.9), normal(3, 400, 2, seed=1).permute(1, 2, 0)
    double = linear_recursion(matrix, inputs)
    single = linear_recursion(matrix.float(), inputs.float())
    assert single.dtype == torch.float32
    close(single.double(), double, rtol=1e-4, atol=1e-5)
    close(double, plain(matrix, inputs))


# ------------------------------------------------------------------------------------------------ a table of matrices
def indices(num_steps, rows, size):
    """Which of the matrices: all one, runs with odd ends, never twice the same, a gap in one row, everything mixed."""
    torch.manual_seed(0)
    runs = torch.zeros(num_steps, dtype=torch.long)
    runs[0], runs[1], runs[-3:] = 1, 2, 3
    gap = runs.unsqueeze(1).repeat(1, rows)
    gap[4:7, 0] = torch.tensor([4, 0, 3])
    return {
        "one": torch.full((num_steps,), 2),
        "runs": runs,
        "changing": torch.arange(num_steps) % size,
        "gap": gap,
        "mixed": torch.randint(0, size, (num_steps, rows)),
        "one column": torch.randint(0, size, (num_steps, 1)),
    }


def looped(table, index, inputs, reverse):
    """Index of the links, (T-1,) or (T-1, R)."""
    links = index.unsqueeze(1).expand(-1, inputs.shape[1]) if index.dim() == 1 else index.expand(-1, inputs.shape[1])
    steps = range(len(inputs) - 1)
    states = {len(inputs) - 1 if reverse else 0: inputs[-1 if reverse else 0]}
    for t in reversed(steps) if reverse else steps:
        before, here = (t + 1, t) if reverse else (t, t + 1)
        states[here] = inputs[here] + (table[links[t]] @ states[before].unsqueeze(-1)).squeeze(-1)
    return torch.stack([states[t] for t in range(len(inputs))])


@grid({"case": indices(9, 1, 5), "rows": [1, 3]})
def test_products_and_recursions_with_a_table(case, rows):
    num_steps, h, size = 21, 3, 5
    index = indices(num_steps, rows, size)[case]
    table, vectors = (0.5 * normal(size, h, h)).requires_grad_(), normal(num_steps, rows, h, seed=1).requires_grad_()
    parameters = [table, vectors]
    wide = index.unsqueeze(1).expand(-1, rows) if index.dim() == 1 else index.expand(-1, rows)
    if index.dim() == 1 or index.shape[1] == rows:
        products = apply_matrices(table, MatrixIndex(index, size), vectors)
        same_with_gradients(products, (table[wide] @ vectors.unsqueeze(-1)).squeeze(-1), parameters)
    links = MatrixIndex(index[1:], size)
    for reverse in (False, True):
        wanted = looped(table, index[1:], vectors, reverse)
        same_with_gradients(recursion(table, links, vectors, reverse=reverse), wanted, parameters)
        again = recursion(table, links, 1 * vectors, reverse=reverse, overwrite=True)
        same_with_gradients(again, wanted, parameters)


def test_gathering_in_pieces(monkeypatch):
    from pplseq.kernels import matrix_table

    index = indices(40, 3, 5)
    table, vectors = normal(5, 3, 3), normal(40, 3, 3, seed=1)
    whole = {
        case: apply_matrices(table, MatrixIndex(i, 5), vectors) for case, i in index.items() if case != "one column"
    }
    monkeypatch.setattr(matrix_table, "GATHERED", 50)  # five matrices at a time
    for case, expected in whole.items():
        close(apply_matrices(table, MatrixIndex(index[case], 5), vectors), expected)


@pytest.mark.parametrize("case", ["runs", "gap"])
def test_second_derivatives_with_a_table(case):
    index = indices(12, 2, 5)[case]
    parameters = [(0.5 * normal(5, 2, 2)).requires_grad_(), normal(12, 2, 2, seed=1).requires_grad_()]
    torch.autograd.gradgradcheck(lambda t, v: apply_matrices(t, MatrixIndex(index, 5), v), parameters)
    for reverse in (False, True):
        links = MatrixIndex(index[1:], 5)
        torch.autograd.gradgradcheck(lambda t, v: recursion(t, links, v, reverse=reverse), parameters)


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_few_steps(num_steps):
    inputs = normal(num_steps, 2, 3)
    close(linear_recursion(torch.eye(3, dtype=F64), inputs), inputs.cumsum(0))


def test_no_steps_to_move_over():
    table, vectors = normal(2, 3, 3).requires_grad_(), normal(1, 4, 3).requires_grad_()
    for links in (torch.zeros(0, dtype=torch.long), torch.zeros(0, 4, dtype=torch.long)):
        states = recursion(table, MatrixIndex(links, 2), vectors)
        same_with_gradients(states, 1 * vectors, [table, vectors])
        assert apply_matrices(table, MatrixIndex(links, 2), vectors[:0]).shape == (0, 4, 3)
