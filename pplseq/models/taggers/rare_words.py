"""What a word says about its tag on its own: a log-linear model of endings, beginnings, capitals, signs and clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.fit import optimizers
from pplseq.models.taggers.features import TagFeatures
from pplseq.models.taggers.spans.templates import CLUSTER_PREFIXES
from pplseq.models.taggers.weights import SparseRows, sparse_product

FORM_TEMPLATES = (
    "lower[0]", *(f"prefix{n}[0]" for n in range(1, 5)), *(f"suffix{n}[0]" for n in range(1, 7)),
    "capitals[0]", "digits[0]", "hyphen[0]", "shape[0]", "short_shape[0]",
)  # fmt: skip
CELLS = 1 << 21  # words x classes that are looked at together
HISTORY_BYTES = 1 << 27  # of steps that L-BFGS remembers: all of them for tens of classes, a few for hundreds
CLUSTER_TEMPLATES = tuple(f"cluster{size}[0]" for size in CLUSTER_PREFIXES)


def loss_and_residual(rows: SparseRows, target: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """-sum of target times log p(class | row), nats, and its gradient in the scores, (N, C): n p(class | row) - target with n
    the row's sum of target; some rows at a time."""
    value, residual = target.new_zeros(()), torch.empty_like(target)
    some = max(CELLS // target.shape[1], 1)
    for start in range(0, len(target), some):
        part = slice(start, min(start + some, len(target)))
        log_probs = (rows.between(part.start, part.stop).times(weight) + bias).log_softmax(-1)
        value -= (target[part] * log_probs).sum()
        residual[part] = log_probs.exp_().mul_(target[part].sum(-1, keepdim=True)).sub_(target[part])
    return value, residual


class FormModel:
    """p(class | word) = softmax over classes of the sum of the weights of the word's features.

    Args:
        features: of words on their own.
        weight: (F, C). bias: (C,).
    """

    def __init__(self, features: TagFeatures, weight: Tensor, bias: Tensor):
        self.features, self.weight, self.bias = features, weight, bias

    @classmethod
    def fit(
        cls,
        words: Sequence[str],
        counts: Tensor,
        *,
        max_count: float = 10,
        l2: float = 0.2,
        count_power: float = 0.5,
        min_feature_count: int = 2,
        max_iterations: int = 60,
        clusters: Mapping[str, str] | None = None,
    ) -> FormModel:
        """The weights of most probable classes, by L-BFGS.

        Args:
            words: V different words. counts: (V, C) how often each was of each class, perhaps expected counts.
            max_count: words more frequent than this are left out, as they tell little about new ones; all are taken where none
                is rare.
            l2: weight of the sum of squared weights.
            count_power: a word that occurs n times counts as n to this power: 1 for tokens, 0 for types.
            min_feature_count: words that must have a feature.
            max_iterations: of the optimiser.
            clusters: of words, as strings of bits, from text without tags; prefixes of them are features, so that words which
                occur there only are judged by their neighbours too.

        Source: Ratnaparkhi (1996), A maximum entropy model for part-of-speech tagging (features of rare words); Miller,
            Guinness and Zamanian (2004), Name tagging with word clusters and discriminative training (prefixes of clusters).
        """
        if len(words) != len(counts) or not len(words):
            raise ValueError(
                f"counts: expected a row for each of the {len(words)} words (at least one), got {len(counts)}"
            )
        total = counts.sum(-1)
        rare = ((total > 0) & (total <= max_count)).nonzero().squeeze(-1)
        if not len(rare):
            rare = (total > 0).nonzero().squeeze(-1)
        chosen: Any = [words[i] for i in rare.tolist()]
        target = (counts[rare] * total[rare].pow(count_power - 1).unsqueeze(-1)).float()
        templates = FORM_TEMPLATES + (() if clusters is None else CLUSTER_TEMPLATES)
        features = TagFeatures(templates, min_count=min_feature_count, clusters=clusters).fit([[word] for word in chosen])
        weight = torch.zeros(features.num_features, counts.shape[1], requires_grad=True)
        bias = torch.zeros(counts.shape[1], requires_grad=True)
        rows = cls(features, weight, bias).encode(chosen)
        kept = max(HISTORY_BYTES // (2 * weight.element_size() * weight.numel()), 4) if len(weight) else 4
        optimiser = optimizers.LBFGS(
            [weight, bias], max_iter=max_iterations, history_size=min(kept, max_iterations), line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            # the gradient by hand: what autograd keeps of words x hundreds of classes would be most of the memory
            value, residual = loss_and_residual(rows, target, weight.detach(), bias.detach())
            weight.grad = rows.transposed.times(residual).add_(weight.detach(), alpha=2 * l2)
            bias.grad = residual.sum(0)
            return value + l2 * weight.detach().square().sum()

        optimiser.step(loss)
        return cls(features, weight.detach(), bias.detach())

    def encode(self, words: Sequence[str]) -> SparseRows:
        """The known features of each word."""
        return SparseRows.from_table(self.features.encode([[word] for word in words]), self.features.num_features)

    def log_probs(self, words: Sequence[str]) -> Tensor:
        """(n, C) log p(class | word), nats."""
        if not len(words):
            return torch.zeros(0, len(self.bias), dtype=torch.float64)
        return (sparse_product(self.encode(words), self.weight) + self.bias).double().log_softmax(-1)

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A JSON-able part and tensors, for :meth:`from_state`; clusters are kept by who gave them."""
        header, arrays = self.features.state()
        tensors = {name: torch.from_numpy(np.ascontiguousarray(codes)) for name, codes in arrays.items()}
        return header, {**tensors, "weight": self.weight, "bias": self.bias}

    @classmethod
    def from_state(
        cls, header: dict[str, Any], tensors: dict[str, Tensor], clusters: Mapping[str, str] | None = None
    ) -> FormModel:
        """What :meth:`state` was called on."""
        arrays = {name: value.numpy() for name, value in tensors.items() if name.startswith("codes_")}
        features = TagFeatures(header["templates"], header["min_count"], clusters=clusters).restored(header, arrays)
        return cls(features, tensors["weight"], tensors["bias"])
