"""EM on text that is partly tagged, checked on held-out sentences against what the tagged sentences teach alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.dictionary import DictionaryTagger, DictionaryTraining
from pplseq.models.taggers.hmm import HMMTagger
from pplseq.models.taggers.substates.self_training import num_right, stages_of

WITH, ALONE, COUNTED = "with", "alone", "counted"  # what learned: this tagger from all and from tagged sentences, and counts


class PartlyTaggedTagger(DictionaryTagger):
    """An HMM by EM on text of which some sentences, or some words, have tags; the check is as that of
    :class:`~pplseq.models.taggers.substates.self_training.SelfTrainedTagger`.

    Where some sentences have all their tags,
    held-out ones among them (or `validation`) are tagged by a tagger that learned from all,
    and by one that learned from tagged sentences alone. Where the sentences that lack tags made it worse they are not used, and
    a warning says so; another says when an HMM that counts tagged sentences (the system `hmm`) is better than what was learned.
    Where nothing can be held out, a warning says that nothing was checked.

    Args:
        num_folds: parts of the tagged sentences by which that is checked; 0: no check.
        Others as of :class:`~pplseq.models.taggers.dictionary.DictionaryTagger`; one iteration, as later ones forget what tags
        taught.

    Cost: 3 trainings a part, those of all sentences on at most 2,000 that lack tags.
    """

    name = "partly-tagged-tagger"

    def __init__(
        self,
        *,
        lexicon=None,
        lexicon_strength: float | None = None,
        open_tags: Iterable[str] | None = None,
        min_count: int = 2,
        max_iterations: int = 1,
        tolerance: float = 1e-4,
        pseudo_count: float = 0.1,
        emission_pseudo_count: float = 0.0,
        tagged_weight: float = 10.0,
        num_folds: int = 3,
        seed: int = 0,
        decoder: str = "viterbi",
    ):
        if num_folds != 0:
            checks.count("num_folds", num_folds, least=2)
        self.num_folds = int(num_folds)
        super().__init__(
            "tags", lexicon=lexicon, lexicon_strength=lexicon_strength, open_tags=open_tags, min_count=min_count,
            max_iterations=max_iterations, tolerance=tolerance, pseudo_count=pseudo_count,
            emission_pseudo_count=emission_pseudo_count, tagged_weight=tagged_weight, seed=seed, decoder=decoder,
        )  # fmt: skip

    def training(self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None) -> DictionaryTraining:
        unchecked = super().training(x, validation)
        if not self.num_folds or not any(None in sentence.tags for sentence in x):
            return unchecked
        held_out = [s for s in validation or () if len(s.words)]
        made = (unchecked.sentences, unchecked.dictionary, unchecked.batches, unchecked.counts)
        return PartlyTaggedTraining(self, *made, held_out)


class PartlyTaggedTraining(DictionaryTraining):
    """EM, and behind its last iteration the check.

    Attributes:
        right: right tags of held-out sentences, by what learned; empty until the check, and where nothing can be held out.
    """

    tagger: PartlyTaggedTagger  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, *made_of: Any):
        *training, validation = made_of  # those of DictionaryTraining, and sentences to check on
        super().__init__(*training)
        whole = [s for s in self.sentences if None not in s.tags]
        lacking = [s for s in self.sentences if None in s.tags]
        self.whole = whole
        self.stages = [s for s in stages_of(whole, lacking, validation, self.tagger.num_folds) if s.held_out and s.tagged]
        self.right: dict[str, int] = {}

    @property
    def harmful(self) -> bool:
        """Whether held-out sentences are tagged worse with the help of sentences that lack tags."""
        return bool(self.right) and self.right[WITH] < self.right[ALONE]

    def _from(self, sentences: Sequence[TaggedSentence]) -> DictionaryTagger:
        """Of the same settings, learned without a check."""
        return PartlyTaggedTagger(**{**self.tagger.get_params(), "num_folds": 0}).fit(sentences)

    def _check(self) -> None:
        self.right = dict.fromkeys((WITH, ALONE, COUNTED), 0) if self.stages else {}
        for stage in self.stages:
            text = [*stage.tagged, *stage.lacking]
            self.right[WITH if stage.lacking else ALONE] += num_right(self._from(text), stage.held_out)
            if not stage.lacking:
                self.right[COUNTED] += num_right(HMMTagger.bigram().fit(text), stage.held_out)

    # ---------------------------------------------------------------- as the loop asks
    def iterate(self) -> float:
        loss = super().iterate()
        if self.ended():
            self._check()
        return loss

    def publish(self) -> None:
        super().publish()
        if self.harmful:
            learned, num_folds = vars(self._from(self.whole)), self.tagger.num_folds
            vars(self.tagger).update(learned | {"num_folds": num_folds})

    def finish(self) -> None:
        super().finish()
        if not self.ended():
            return  # out of time
        for text in self._remarks():
            warnings.warn(text, RuntimeWarning, stacklevel=6)

    def _remarks(self) -> list[str]:
        if not self.right:
            return ["too few sentences have all tags to check whether those that lack tags help; they are used"]
        remarks, kept = [], self.right[ALONE if self.harmful else WITH]
        if self.harmful:
            remarks.append(
                f"sentences that lack tags are not used: with them {self.right[WITH]:,} words of held-out sentences get their "
                f"right tag, without them {self.right[ALONE]:,}"
            )
        if self.right[COUNTED] > kept:
            remarks.append(
                f"an HMM that counts the sentences with all tags is better: {self.right[COUNTED]:,} words of held-out "
                f"sentences get their right tag, and {kept:,} with this tagger; train the system hmm, or latent, on the "
                "sentences that have all tags, or semi-supervised on all"
            )
        return remarks

    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super().learned()
        return tensors, {**state, "right": self.right}

    def relearn(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        super().relearn(tensors, state)
        self.right = dict(state["right"])
