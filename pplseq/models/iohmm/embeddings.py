"""Inputs that are numbers of symbols, embedded: a learned vector for each symbol in the place of its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.models.iohmm.networks import LayeredNetwork, LinearNetwork, Network

Embeddings = dict[int, tuple[int, int]]  # column of the inputs -> its number of symbols, and of dimensions


class EmbeddedNetwork(Network):
    """A generalised linear model, or hidden layers, of inputs in which vectors stand for symbols; states share the vectors.

    Args:
        num_inputs: U, numbers of symbols among them.
        hidden: sizes of the hidden layers; () for none.
        embeddings: column -> (L, d).
    """

    kind = "embedded"

    def __init__(
        self, num_inputs: int, shape: Sequence[int], hidden: Sequence[int], embeddings: Embeddings, dtype: torch.dtype
    ):
        super().__init__(shape)
        self.num_inputs, self.embeddings = num_inputs, embeddings
        self.plain = [column for column in range(num_inputs) if column not in embeddings]
        self.tables = nn.ParameterList(torch.randn(size, width, dtype=dtype) for size, width in embeddings.values())
        width = len(self.plain) + sum(width for _, width in embeddings.values())
        self.top = LayeredNetwork(width, shape, hidden, dtype) if hidden else LinearNetwork(width, shape, dtype)
        self.linear_weight = None if hidden else "top.weight"
        self.first_weight = "top.layers.0" if hidden else "top.weight"

    def forward(self, inputs: Tensor) -> Tensor:
        columns = zip(self.embeddings, self.tables, strict=True)
        vectors = [table[inputs[..., column].long()] for column, table in columns]
        return self.top(torch.cat([inputs[..., self.plain], *vectors], -1))

    def num_free(self, allowed: Tensor) -> int:
        """Without what another basis of the vectors, or a shift of all of them, makes up for.

        L symbols have effects on R numbers, those that vectors go into, up to constants: an (L - 1, R) matrix of rank
        k = min(d, L - 1, R), which k (L - 1 + R - k) numbers tell; never more than the (L - 1) R of symbols as numbers 0 and 1.
        """
        first = dict(self.named_parameters())[self.first_weight]
        responses = int(allowed.sum()) if self.linear_weight else first[..., 0, :].numel()
        total = self.top.num_free(allowed)
        for size, width in self.embeddings.values():
            rank = min(width, size - 1, responses)
            total += rank * (size - 1 + responses - rank) - width * responses
        return total

    @torch.no_grad()
    def settle(self, inputs: Tensor) -> None:
        """Gives symbols that inputs (N, U) lack, whose vectors nothing told, the mean vector of those that are there."""
        for column, table in zip(self.embeddings, self.tables, strict=True):
            seen = torch.zeros(len(table), dtype=torch.bool, device=table.device)
            seen[inputs[..., column].long()] = True
            if bool(seen.any()):
                table[~seen] = table[seen].mean(0)

    @torch.no_grad()
    def randomise(self, scale: float) -> None:
        """Vectors of deviation 1 as of inputs that are standardized, whose sum weighs no more than one number."""
        for table in self.tables:
            table.normal_()
        self.top.randomise(scale)
        first, end = dict(self.named_parameters())[self.first_weight], len(self.plain)
        for _, width in self.embeddings.values():
            first[..., end : end + width, :] /= width**0.5
            end += width


def checked_embeddings(value: Any, sizes: Mapping[str, int]) -> Embeddings:
    """Column -> (number of symbols, dimensions), columns in order.

    Args:
        value: such a mapping, a list of (column, symbols, dimensions), or None.
        sizes: of the inputs of each part that sees vectors.

    Raises:
        ValueError: for what is none, or columns that some part does not have.
    """
    if value is None:
        return {}
    form = "a mapping from columns of the inputs to (number of symbols, dimensions)"
    try:
        entries = [(c, *each) for c, each in value.items()] if isinstance(value, Mapping) else [tuple(e) for e in value]
    except TypeError:
        raise ValueError(f"embeddings: expected {form}, got {checks.shown(value)}") from None
    if any(len(entry) != 3 or any(isinstance(n, bool) or not isinstance(n, Integral) for n in entry) for entry in entries):
        raise ValueError(f"embeddings: expected {form}, got {checks.shown(value)}")
    entries = [tuple(int(number) for number in entry) for entry in entries]  # those of numpy are not for folders
    if not sizes and entries:
        raise ValueError("embeddings: they are of columns of real inputs, num_inputs=..., and no part sees such; got None")
    for column, symbols, width in entries:
        if not 0 <= column < min(sizes.values()):
            part = min(sizes, key=lambda name: sizes[name])
            if not sizes[part]:
                raise ValueError(
                    f"embeddings: expected columns of the inputs of {part}, which sees none (num_inputs), got {column}"
                )
            raise ValueError(f"embeddings: expected columns 0..{sizes[part] - 1} of the inputs of {part}, got {column}")
        if symbols < 2:
            raise ValueError(f"embeddings: expected 2 symbols or more in column {column}, got {symbols}")
        if not 1 <= width < symbols:
            raise ValueError(
                f"embeddings: of {symbols} symbols expected 1 to {symbols - 1} dimensions, got {width} for column {column}"
            )
    if len({column for column, *_ in entries}) < len(entries):
        raise ValueError(f"embeddings: expected each column once, got {checks.shown(value)}")
    return {column: (symbols, width) for column, symbols, width in sorted(entries)}


def not_symbols(values: Tensor, embeddings: Embeddings) -> Tensor:
    """(...) whether some embedded column of inputs (..., U) holds what is no number of one of its symbols."""
    bad = torch.zeros(values.shape[:-1], dtype=torch.bool, device=values.device)
    for column, (size, _) in embeddings.items():
        own = values[..., column]
        bad = bad | (own != own.floor()) | (own < 0) | (own >= size)
    return bad
