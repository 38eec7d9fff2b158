"""Sentences in numbers for taggers with features, and the optimisers of their weights: L-BFGS, and SGD on sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from pplseq import checks
from pplseq.infer.fit import optimizers
from pplseq.runs.checkpoint import flatten_optimizer, restore_optimizer
from pplseq.threads import once

BUCKET_CELLS = 1 << 21  # steps x rows x states of one bucket
BUCKET_SPREAD = 1.5  # longest over shortest sentence of a bucket


# ------------------------------------------------------------------------------------------------ sparse features
class SparseRows:
    """A sparse (N, F) matrix by rows: numbers of the columns that are not zero, and their values (None: all are one).

    Args:
        columns: (M,) int64, row after row. offsets: (N + 1,) where rows begin. num_columns: F. values: (M,) or None.
    """

    def __init__(self, columns: Tensor, offsets: Tensor, num_columns: int, values: Tensor | None = None):
        self.columns, self.offsets, self.num_columns, self.values = columns, offsets, num_columns, values

    @classmethod
    def from_table(cls, table: np.ndarray, num_columns: int, values: np.ndarray | None = None) -> SparseRows:
        """Of a (N, k) table of column numbers, -1 where there is none."""
        present = table >= 0
        offsets = np.concatenate([[0], present.sum(1).cumsum()])
        kept = None if values is None else torch.from_numpy(values[present])
        return cls(torch.from_numpy(table[present]), torch.from_numpy(offsets), num_columns, kept)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @once
    def transposed(self) -> SparseRows:
        order = self.columns.argsort(stable=True)
        rows = torch.repeat_interleave(torch.arange(len(self)), self.offsets.diff())
        counts = torch.bincount(self.columns, minlength=self.num_columns)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return SparseRows(rows[order], offsets, len(self), None if self.values is None else self.values[order])

    def rows(self, index: Tensor) -> tuple[SparseRows, Tensor]:
        """Some rows, over those columns only that occur in them, and the numbers of these."""
        sizes = self.offsets.diff()[index]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        taken = ranges(self.offsets[index], sizes)
        used, columns = self.columns[taken].unique(return_inverse=True)
        values = None if self.values is None else self.values[taken]
        return SparseRows(columns, offsets, len(used), values), used

    def between(self, start: int, stop: int) -> SparseRows:
        """The rows from start to stop, over all columns."""
        offsets = self.offsets[start : stop + 1]
        taken = slice(int(offsets[0]), int(offsets[-1]))
        values = None if self.values is None else self.values[taken]
        return SparseRows(self.columns[taken], offsets - offsets[0], self.num_columns, values)

    def times(self, matrix: Tensor) -> Tensor:
        """(N, K) its product with a dense (F, K) matrix, without a gradient."""
        if not len(self.columns):
            return matrix.new_zeros(len(self), matrix.shape[-1])
        values = None if self.values is None else self.values.to(matrix.dtype)
        return embedding_bag(
            self.columns, matrix, self.offsets, mode="sum", include_last_offset=True, per_sample_weights=values
        )


def ranges(starts: Tensor, sizes: Tensor) -> Tensor:
    """starts[0] .. starts[0] + sizes[0] - 1, then the next, in one row."""
    ends = sizes.cumsum(0)
    return torch.arange(int(ends[-1]) if len(ends) else 0) + torch.repeat_interleave(starts - ends + sizes, sizes)


class _SparseProduct(torch.autograd.Function):
    """rows @ matrix, whose gradient is the product with the transposed rows: both are sums over few entries a row."""

    @staticmethod
    def forward(ctx, matrix, rows):
        ctx.rows = rows
        return rows.times(matrix)

    @staticmethod
    def backward(ctx, *grads):
        return _SparseProduct.apply(grads[0].contiguous(), ctx.rows.transposed), None


def sparse_product(rows: SparseRows, matrix: Tensor) -> Tensor:
    """(N, K) product of sparse rows (N, F) and a dense matrix (F, K), differentiable in the matrix."""
    return _SparseProduct.apply(matrix, rows)


# ------------------------------------------------------------------------------------------------ sentences
class Bucket(NamedTuple):
    """Sentences of like length. tokens: (B, T) numbers of their words, 0 at padded steps; lengths: (B,)."""

    tokens: Tensor
    lengths: Tensor

    def take(self, values: Tensor) -> Tensor:
        """(B, T, ...) of values (N, ...) by words."""
        return values.index_select(0, self.tokens.reshape(-1)).reshape(*self.tokens.shape, *values.shape[1:])


@dataclass
class TagData:
    """Sentences as features and tags, all words in a row.

    features: (N, F) sparse. lengths: (number of sentences,) words of each; none is empty. tags: (N,) numbers, -1 where
    unknown; None in use. columns: (N, h) real-valued features, or None. used: which of the features it is about (all: None).
    blocked: (N, K) tags that words cannot have, or None.
    """

    features: SparseRows
    lengths: Tensor
    tags: Tensor | None = None
    columns: Tensor | None = None
    used: Tensor | None = None
    blocked: Tensor | None = None

    @property
    def num_sentences(self) -> int:
        return len(self.lengths)

    @once
    def starts(self) -> Tensor:
        return self.lengths.cumsum(0) - self.lengths

    @once
    def follows(self) -> Tensor:
        """Numbers of the words that have one before them in their sentence."""
        first = torch.zeros(len(self.features), dtype=torch.bool)
        first[self.starts] = True
        return (~first).nonzero().squeeze(-1)

    @once
    def complete(self) -> bool:
        """Every word has a tag."""
        return self.tags is not None and not bool((self.tags < 0).any())

    @once
    def buckets(self) -> list[Bucket]:
        """All sentences, by length."""
        order = self.lengths.argsort(stable=True)
        lengths, groups, first = self.lengths[order].tolist(), [], 0
        for i, length in enumerate(lengths):
            full = (i - first + 1) * length * 32 > BUCKET_CELLS
            if i > first and (full or length > BUCKET_SPREAD * lengths[first] + 1):
                groups.append(order[first:i])
                first = i
        return [self.bucket(rows) for rows in (*groups, order[first:])]

    def by_bucket(self, values: Tensor) -> list[Tensor]:
        """(B, T, ...) of values (N, ...) for each bucket, gathered at once, so that a gradient is not added up by bucket."""
        shapes = [bucket.tokens.shape for bucket in self.buckets]
        tokens = torch.cat([bucket.tokens.reshape(-1) for bucket in self.buckets])
        parts = values.index_select(0, tokens).split([shape.numel() for shape in shapes])
        return [part.view(*shape, *values.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]

    def bucket(self, rows: Tensor) -> Bucket:
        lengths = self.lengths[rows]
        steps = torch.arange(int(lengths.max()))
        tokens = self.starts[rows].unsqueeze(-1) + steps
        return Bucket(tokens.where(steps < lengths.unsqueeze(-1), 0), lengths)

    def sentences(self, rows: Tensor) -> TagData:
        """Some of the sentences, over the features that occur in them."""
        lengths = self.lengths[rows]
        tokens = ranges(self.starts[rows], lengths)
        features, used = self.features.rows(tokens)
        kept = (None if value is None else value[tokens] for value in (self.tags, self.columns, self.blocked))
        tags, columns, blocked = kept
        return TagData(features, lengths, tags, columns, used, blocked)


# ------------------------------------------------------------------------------------------------ optimisers
@dataclass(frozen=True)
class CRFSettings(checks.NamedArguments):
    """How weights are found.

    l2: the penalty l2 * |w|^2 on weights, as crfsuite's c2 (a Gaussian prior of variance 1 / (2 l2)). None: the one that
        gives most held-out words their right tag; see :class:`~pplseq.models.taggers.penalty.FeatureTraining`.
    method: "lbfgs", all sentences at once, or "sgd", some at a time with AdaGrad's step sizes.
    max_iterations, tolerance, period: of L-BFGS; it stops when `period` iterations improve the loss by less than this share,
        or after as many as crfsuite.
    history_size: of L-BFGS's approximation of the curvature.
    epochs, batch_size (sentences), lr, seed: of SGD; its steps shrink to nothing over the last half of the epochs.
    """

    l2: float | None = None
    method: str = "lbfgs"
    max_iterations: int = 100
    tolerance: float = 1e-3
    period: int = 10
    history_size: int = 6
    epochs: int = 15
    batch_size: int = 32
    lr: float = 0.2
    seed: int = 0

    def __post_init__(self):
        checks.seed("seed", self.seed)
        if self.method not in ("lbfgs", "sgd"):
            raise ValueError(f"method: expected 'lbfgs' or 'sgd', got {self.method!r}")
        if self.l2 is not None and checks.number("l2", self.l2) < 0:
            raise ValueError(f"l2: expected 0 or more, got {self.l2}; None chooses it on held-out sentences")
        for name in ("max_iterations", "period", "history_size", "epochs", "batch_size"):
            checks.count(name, getattr(self, name))


Loss = Callable[[TagData, float], Tensor]  # data, weight of the prior -> negative log-posterior


class WeightSearch:
    """Minimises loss(data, 1), the penalised negative log-likelihood in nats, some iterations a step.

    Args:
        parameters: what is learned, changed in place. loss: of sentences and the share of the penalty that goes with them.

    Attributes:
        history: the loss before each step; of SGD the sum over an epoch's batches, while weights move.
        reason: why it ended; "" until then.
    """

    num_steps: int

    def __init__(self, parameters: Iterable[Tensor], loss: Loss, data: TagData, settings: CRFSettings):
        self.parameters, self.loss, self.data, self.settings = list(parameters), loss, data, settings
        self.history: list[float] = []
        self.reason = ""

    def step(self) -> float:
        """Some iterations; the loss before them."""
        raise NotImplementedError

    def losses(self) -> list[float]:
        """The history, and where it is known the loss of the weights as they are."""
        return list(self.history)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and what JSON holds: with the parameters, all that `restore` needs to go on."""
        raise NotImplementedError

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        raise NotImplementedError


class LBFGSSearch(WeightSearch):
    """A period of L-BFGS a step."""

    def __init__(self, parameters: Iterable[Tensor], loss: Loss, data: TagData, settings: CRFSettings):
        super().__init__(parameters, loss, data, settings)
        size = settings.period
        self.num_steps = -(-settings.max_iterations // size)
        self.optimizer = optimizers.LBFGS(
            self.parameters, max_iter=size, max_eval=40 * size, history_size=settings.history_size,
            tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe",
        )  # fmt: skip

    def _closure(self) -> Tensor:
        self.optimizer.zero_grad()
        value = self.loss(self.data, 1.0)
        if not bool(value.isfinite()):
            raise ValueError(f"loss: it became {float(value.detach())}; features may hold infinite or missing numbers")
        value.backward()
        self.least = min(self.least, float(value.detach()))
        return value

    def step(self) -> float:
        settings, history = self.settings, self.history
        left = settings.max_iterations - len(history) * settings.period
        self.optimizer.param_groups[0]["max_iter"] = min(settings.period, left)
        self.least = float("inf")  # of the losses that are looked at in this step
        value = float(self.optimizer.step(self._closure).detach())
        history.append(value)
        if value - self.least <= settings.tolerance * abs(self.least):
            self.reason = "converged"
        elif len(history) == self.num_steps:
            self.reason = "finished"
        return value

    def losses(self) -> list[float]:
        with torch.no_grad():
            return [*self.history, float(self.loss(self.data, 1.0))]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = {}, {}
        for name, value in self.optimizer.state[self.parameters[0]].items():  # it keeps all in the first one's
            if isinstance(value, list):  # of the last directions; one with None is but room to compute in
                tensors |= {f"{name}.{i}": part for i, part in enumerate(value)} if None not in value else {}
            else:
                (tensors if isinstance(value, Tensor) else numbers)[name] = value
        return tensors, {"numbers": numbers, "history": self.history, "reason": self.reason}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        found: dict[str, Any] = dict(state["numbers"])
        for name, value in tensors.items():
            part, _, place = name.partition(".")
            found[part] = [*found.get(part, ()), (int(place), value)] if place else value
        for name, value in found.items():
            if isinstance(value, list):
                found[name] = [vector for _, vector in sorted(value, key=lambda pair: pair[0])]
        self.optimizer.state[self.parameters[0]].update(found)
        self.history, self.reason = state["history"], state["reason"]


class SGDSearch(WeightSearch):
    """An epoch of AdaGrad on some sentences at a time a step."""

    def __init__(self, parameters: Iterable[Tensor], loss: Loss, data: TagData, settings: CRFSettings):
        super().__init__(parameters, loss, data, settings)
        self.num_steps = settings.epochs
        self.optimizer = optimizers.Adagrad(self.parameters, lr=settings.lr)
        self.generator = torch.Generator().manual_seed(settings.seed)
        total = settings.epochs * -(-data.num_sentences // settings.batch_size)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, 2.0 - 2.0 * step / max(total, 1))
        )

    def step(self) -> float:
        total, number = 0.0, self.data.num_sentences
        for rows in torch.randperm(number, generator=self.generator).split(self.settings.batch_size):
            self.optimizer.zero_grad()
            value = self.loss(self.data.sentences(rows), len(rows) / number)
            value.backward()
            self.optimizer.step()
            self.schedule.step()
            total += float(value.detach())
        self.history.append(total)
        if len(self.history) == self.num_steps:
            self.reason = "finished"
        return total

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, groups = flatten_optimizer(self.optimizer)
        steps = self.schedule.last_epoch
        tensors["order"] = self.generator.get_state()
        return tensors, {"groups": groups, "steps": steps, "history": self.history, "reason": self.reason}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        restore_optimizer(self.optimizer, tensors, state["groups"])
        self.generator.set_state(tensors["order"])
        self.schedule.last_epoch = state["steps"]
        self.history, self.reason = state["history"], state["reason"]


SEARCHES = {"lbfgs": LBFGSSearch, "sgd": SGDSearch}
