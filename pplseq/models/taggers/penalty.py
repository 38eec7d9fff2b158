"""Training of taggers with features: their weights, and the penalty on weights that held-out sentences are tagged best with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.training import TaggerTraining
from pplseq.models.taggers.weights import SEARCHES, TagData, WeightSearch
from pplseq.runs.checkpoint import named_weights, restore_weights

PENALTIES = (1.0, 0.3, 0.1, 0.03)
HELD_OUT = 10  # one of so many sentences is held out where there is no other text
FEW = 100  # sentences of which none is held out; they take the first penalty
ENOUGH, SPARSEST = 10_000, 5  # words: a longer text is thinned out to so many, or a fifth, while penalties are tried


class FeatureTraining(TaggerTraining):
    """A period of L-BFGS, or an epoch of SGD, a step.

    Without a given penalty the PENALTIES are tried, largest first, each from the weights of the one before and as long as every
    step gives more held-out words their right tag; then the best one is learned with from its weights on, on all sentences.
    Held out are `validation`, or else every tenth sentence; penalties are tried on sentences of ENOUGH words, or one in
    SPARSEST, evenly from the others, as the best one depends little on the size of a text.

    Args:
        tagger: with `weights`, `settings` and `tag`. x: as given to it. data, sentences: x as it is learned from.
        validation: held out.

    Attributes:
        right: right tags of held-out words, after the best step of each penalty that was tried.
    """

    tagger: Any

    def __init__(
        self, tagger: Any, x: Sequence[TaggedSentence], data: TagData, sentences: Sequence[TaggedSentence],
        validation: Sequence[TaggedSentence] = (),
    ):  # fmt: skip
        settings = tagger.settings
        self.data = self.part = data
        self.held_out = list(validation)
        self.penalties: list[float | None] = [settings.l2]
        if settings.l2 is None:
            self.penalties = [*PENALTIES, None] if validation or len(sentences) >= FEW else [PENALTIES[0]]
        if len(self.penalties) > 1:
            rows = torch.arange(len(sentences))
            if not validation:
                self.held_out = list(sentences[HELD_OUT - 1 :: HELD_OUT])
                rows = rows[rows % HELD_OUT != HELD_OUT - 1]
            self.part = data.sentences(rows[:: min(-(-int(data.lengths[rows].sum()) // ENOUGH), SPARSEST)])
        self.right: list[int] = []
        self.best: dict[str, Tensor] = {}
        self.number = 0
        self.tagger = tagger
        self.search = self._search()
        super().__init__(tagger, x, len(self.penalties) * self.search.num_steps)

    @property
    def final(self) -> bool:
        """Whether this is the last search, whose weights are those that are wanted."""
        return self.number == len(self.penalties) - 1

    def _search(self) -> WeightSearch:
        """With the penalty whose turn it is."""
        settings, weights, penalty = self.tagger.settings, self.tagger.weights, self.penalties[self.number]
        if penalty is None:
            penalty = self.penalties[max(range(len(self.right)), key=self.right.__getitem__)] if self.right else PENALTIES[0]
        l2 = float(penalty or 0.0)
        self.tagger.l2 = l2
        if not self.final:
            settings = replace(settings, epochs=-(-settings.epochs // 3))

        def loss(part: TagData, share: float) -> Tensor:
            return weights.loss(part, l2, share)

        return SEARCHES[settings.method](weights.parameters(), loss, self.data if self.final else self.part, settings)

    def _judge(self) -> None:
        """Looks at held-out sentences after a step that was not of the last search, and ends a search that has no use."""
        found = self.tagger.tag([sentence.words for sentence in self.held_out])
        pairs = (zip(s.tags, tags, strict=True) for s, tags in zip(self.held_out, found, strict=True))
        right = sum(gold == tag for pair in pairs for gold, tag in pair)
        if len(self.right) == self.number:  # the first step with this penalty
            self.right.append(-1)
        better, self.right[-1] = right > self.right[-1], max(right, self.right[-1])
        if better and not self.search.reason:
            return
        weights = named_weights(self.tagger.weights)
        if self.right[-1] == max(self.right) and self.right.count(self.right[-1]) == 1:
            self.best = {f"best.{name}": value.detach().clone() for name, value in weights.items()}
        self.number += 1
        if self.final:
            restore_weights(self.tagger.weights, self.best, "best.")
        self.search = self._search()

    # ---------------------------------------------------------------- as the loop asks
    def ended(self) -> str:
        return self.search.reason if self.final else ""

    def iterate(self) -> float:
        loss = self.search.step()
        if not self.final:
            self._judge()
        return loss

    def publish(self) -> None:
        self.tagger.history = self.search.losses()

    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = self.search.state()
        weights = {f"weights.{name}": value for name, value in named_weights(self.tagger.weights).items()}
        tensors = weights | self.best | {f"search.{name}": value for name, value in tensors.items()}
        return tensors, {"penalty": self.number, "right": self.right, "search": state}

    def relearn(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        restore_weights(self.tagger.weights, tensors)
        self.number, self.right = state["penalty"], list(state["right"])
        self.best = {name: value for name, value in tensors.items() if name.startswith("best.")}
        self.search = self._search()
        found = {name.removeprefix("search."): value for name, value in tensors.items() if name.startswith("search.")}
        self.search.restore(found, state["search"])
