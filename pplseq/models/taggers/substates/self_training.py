"""Semi-supervised learning of latent taggers: they guess the tags that a text lacks, and are checked on held-out sentences."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.dictionary import DictionaryTagger
from pplseq.models.taggers.latent import LatentTagger, LatentTaggerSettings, LatentTraining
from pplseq.models.taggers.lexicon import TagDictionary
from pplseq.models.taggers.tagger import Tagger, check_sentences, tag_names
from pplseq.models.taggers.training import TaggerTraining

MAX_CHECKED = 2_000  # sentences that lack tags, in the trainings that only check whether they help


class Stage(NamedTuple):
    """A training.

    Attributes:
        tagged, lacking: sentences with all tags, and those whose missing tags are guessed; () where they are left out.
        held_out: on which it is scored. final: whether its tagger may be the one that is wanted.
    """

    tagged: Sequence[TaggedSentence]
    lacking: Sequence[TaggedSentence]
    held_out: Sequence[TaggedSentence]
    final: bool


def stages_of(
    whole: Sequence[TaggedSentence], lacking: Sequence[TaggedSentence], validation: Sequence[TaggedSentence], num_folds: int
) -> Iterator[Stage]:
    """On tagged sentences alone; of every fold, without and with the other sentences; on all."""
    if whole:
        yield Stage(whole, (), validation, True)
        number = min(num_folds, len(whole))
        for k in range(number if not validation and number > 1 else 0):
            rest = [sentence for i, sentence in enumerate(whole) if i % number != k]
            yield Stage(rest, (), whole[k::number], False)
            yield Stage(rest, lacking[:MAX_CHECKED], whole[k::number], False)
    yield Stage(whole, lacking, validation, True)


@dataclass(frozen=True)
class SelfTrainedSettings(LatentTaggerSettings):
    """As :class:`~pplseq.models.taggers.latent.LatentTaggerSettings`.

    Attributes:
        num_folds: parts of the tagged sentences by which it is checked that the others help.
    """

    num_folds: int = 3

    def __post_init__(self):
        super().__post_init__()
        checks.count("num_folds", self.num_folds, least=2)


class SelfTrainedTagger(LatentTagger):
    """A latent tagger that also learns from sentences of which some words, or all, lack a tag (None).

    It is trained on the sentences that have all tags, guesses the tags that are missing (the most probable ones, given all
    words and the tags that are there), and is trained again on everything. The second training is kept if it is at least as
    accurate on held-out sentences: `validation`,
    or else each of `num_folds` parts of the tagged sentences in turn. Where it is not,
    the first one is kept and a warning says so.

    Cost: 2 (num_folds + 1) trainings; 2 with `validation`. Those of the folds see at most 2,000 sentences that lack tags.

    Source: Huang, Eidelman and Harper (2009), Improving a simple bigram HMM part-of-speech tagger by latent annotation.
    """

    name = "self-trained-tagger"
    settings_class = SelfTrainedSettings
    settings: SelfTrainedSettings

    def training(self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None) -> TaggerTraining:
        return SelfTraining(self, x, validation) if any(None in sentence.tags for sentence in x) else super().training(x)


class SelfTraining(TaggerTraining):
    """The stages of :func:`stages_of`, one after the other, each an own training.

    Guesses are those of the last tagger of the same tagged sentences, or, where no sentence has all tags, of a hidden Markov
    model by EM. The last stage is left out where sentences that lack tags made held-out ones worse.

    Attributes:
        right: right tags of held-out sentences, stage by stage, without (False) and with (True) sentences that lack tags.
        chosen: of the final stages so far, the tagger that is better on held-out sentences.

    Raises:
        ValueError: no words, or no tags.
    """

    tagger: SelfTrainedTagger

    def __init__(
        self, tagger: SelfTrainedTagger, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None
    ):
        check_sentences(x, need_tags=False)
        self.tags = tag_names(x)
        if not self.tags:
            raise ValueError("x: not one word has a tag; to learn from words alone there is the system 'unsupervised'")
        tagger.settings.listed_tags(self.tags)
        whole = [s for s in x if len(s.words) and None not in s.tags]
        lacking = [s for s in x if None in s.tags]
        validation = [s for s in validation or () if len(s.words)]
        self.stages = list(stages_of(whole, lacking, validation, tagger.settings.num_folds))
        kept = {field.name: getattr(tagger.settings, field.name) for field in fields(LatentTaggerSettings)}
        self.inner_settings = LatentTaggerSettings(**kept)
        self.number = 0
        self.right: dict[bool, list[int]] = {False: [], True: []}
        self.chosen: LatentTagger | None = None
        self.before: LatentTagger | None = None  # of the fold's tagged sentences
        self.inner = self._training()
        super().__init__(tagger, x, len(self.stages) * self.inner.num_steps)

    # ---------------------------------------------------------------- stage by stage
    def _training(self) -> LatentTraining:
        """That of the stage."""
        stage = self.stages[self.number]
        guesses = filled(stage.lacking, self.chosen if stage.final else self.before)
        sentences, settings = [*stage.tagged, *guesses], self.inner_settings
        if settings.lexicon is not None:  # some of the sentences may lack tags that it lists
            lexicon = TagDictionary.of(settings.lexicon).of_tags(tag_names(sentences))
            settings = replace(settings, lexicon=lexicon)
        return LatentTraining(LatentTagger(settings), sentences)

    def _close(self) -> None:
        """Ends the stage, and begins the next one."""
        self.inner.publish()
        tagger, stage = self.inner.tagger, self.stages[self.number]
        if stage.held_out:
            self.right[bool(stage.lacking)].append(num_right(tagger, stage.held_out))
        if not stage.final:
            self.before = tagger
        elif self.chosen is None or self.helps:
            self.chosen = tagger
        self.number += 1
        if self.number == len(self.stages) - 1 and not self.helps:
            self.number += 1
        if self.number < len(self.stages):
            self.inner = self._training()

    @property
    def helps(self) -> bool:
        """Whether sentences that lack tags did no harm to held-out ones, as far as was seen."""
        without, with_them = (self.right[lacking] for lacking in (False, True))
        return len(with_them) < len(without) or sum(with_them) >= sum(without)

    # ---------------------------------------------------------------- as the loop asks
    def ended(self) -> str:
        return "" if self.number < len(self.stages) else "finished"

    def iterate(self) -> float:
        loss = 0.0 if self.inner.ended() else self.inner.iterate()
        if self.inner.ended():
            self._close()
        return loss

    def publish(self) -> None:
        """What was learned from tagged sentences alone, until the last stage has ended."""
        if self.chosen is None:
            self.inner.publish()
        self._give(self.chosen or self.inner.tagger)

    def _give(self, found: LatentTagger) -> None:
        """The tagger has what another one has learned."""
        settings = replace(self.tagger.settings, lexicon=found.settings.lexicon)
        vars(self.tagger).update({name: value for name, value in vars(found).items() if name != "settings"})
        self.tagger.settings = settings

    def finish(self) -> None:
        super().finish()
        if not self.helps:
            without, with_them = (sum(self.right[lacking]) for lacking in (False, True))
            warnings.warn(
                f"sentences that lack tags are not used: with them {with_them:,} words of held-out sentences get their right "
                f"tag, without them {without:,}",
                RuntimeWarning,
                stacklevel=6,
            )
        elif not any(self.right.values()):
            warnings.warn(
                "too few sentences have all tags to check whether those that lack tags help; they are used",
                RuntimeWarning,
                stacklevel=6,
            )

    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = self.inner.learned()
        tensors = {f"inner.{name}": value for name, value in tensors.items()}
        taggers: dict[str, Any] = {}
        for role, tagger in (("chosen", self.chosen), ("before", self.before)):
            if tagger is not None:
                taggers[role], own = tagger.state()
                tensors |= {f"{role}.{name}": value for name, value in own.items()}
        right = [self.right[False], self.right[True]]
        return tensors, {"stage": self.number, "right": right, "inner": state, "taggers": taggers}

    def relearn(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        def own(role: str) -> dict[str, Tensor]:
            return {name.removeprefix(f"{role}."): v for name, v in tensors.items() if name.startswith(f"{role}.")}

        self.number = state["stage"]
        self.right = {lacking: list(found) for lacking, found in zip((False, True), state["right"], strict=True)}
        for role, config in state["taggers"].items():
            setattr(self, role, LatentTagger.from_state(config, own(role)))
        if self.number < len(self.stages):
            self.inner = self._training()
        self.inner.relearn(own("inner"), state["inner"])


def filled(lacking: Sequence[TaggedSentence], source: LatentTagger | None) -> list[TaggedSentence]:
    """Sentences with all tags: those they have, and guesses of `source`, or of a hidden Markov model by EM on them alone."""
    if not lacking:
        return []
    if source is None:
        by_em = DictionaryTagger.semi_supervised().fit(list(lacking))
        found = by_em.tag([sentence.words for sentence in lacking])
    else:
        known = set(source.tags)  # it may have seen but some of the sentences
        asked = [TaggedSentence(words, tuple(tag if tag in known else None for tag in tags)) for words, tags in lacking]
        found = [sentence.tags for sentence in source.fill_tags(asked)]
    return [
        TaggedSentence(words, tuple(tag or guess for tag, guess in zip(tags, guesses, strict=True)))
        for (words, tags), guesses in zip(lacking, found, strict=True)
    ]


def num_right(tagger: Tagger, sentences: Sequence[TaggedSentence]) -> int:
    """How many words get the tag they have."""
    found = tagger.tag([sentence.words for sentence in sentences])
    pairs = (zip(s.tags, tags, strict=True) for s, tags in zip(sentences, found, strict=True))
    return sum(gold == tag for pair in pairs for gold, tag in pair)
