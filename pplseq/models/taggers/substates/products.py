"""Taggers that vote: products of what they say of every word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers import TAGGERS
from pplseq.models.taggers.latent import LatentTagger, LatentTaggerSettings
from pplseq.models.taggers.tagger import Tagger, Words, check_sentences

SHARED = ("clusters", "lexicon", "lexicon_strength")  # settings that the models of a product have from it


class Product(Tagger):
    """Trained taggers and the geometric mean of their probabilities of each word's tag.

    Attributes:
        models: the taggers, after fit.
    """

    models: Sequence[Any] = ()

    def _take(self, models: Sequence[Any]) -> Self:
        self.models, self.tags, self.known_words = models, tuple(models[0].tags), frozenset(models[0].known_words)
        return self

    def smooth(self, x: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T, tags) probabilities of tags given all its words."""
        self._check_fitted()
        total: list[np.ndarray] = [np.zeros((len(words), len(self.tags))) for words in x]
        for model in self.models:
            order = [list(model.tags).index(tag) for tag in self.tags]
            for rows, probs in zip(total, model.smooth(x), strict=True):
                # a tag that one model finds impossible is not possible
                rows += np.log(np.maximum(probs[:, order], np.finfo(float).tiny)) / len(self.models)
        for rows in total:
            np.exp(rows - rows.max(1, keepdims=True), out=rows) if len(rows) else rows
            rows /= rows.sum(1, keepdims=True)
        return total

    def tag(self, x: Sequence[Words]) -> list[tuple[str, ...]]:
        """The most probable tag of every word."""
        return [tuple(self.tags[k] for k in rows.argmax(1)) for rows in self.smooth(x)]

    def confidence(self, x: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T,) probability that each word's tag, as :meth:`tag` gives it, is right."""
        return [rows.max(1, initial=0.0) for rows in self.smooth(x)]


class ProductTagger(Product):
    """Latent taggers of the same text whose substates were split from different random numbers.

        p(tag_t | words)  in proportion to  (product over models of p_m(tag_t | words))^(1 / number of models)

    Each finds another local optimum of EM; where they differ in their errors, their product is better than each. Tags are
    chosen word by word; there is no one distribution over taggings, so whole taggings have no probabilities here.

    Args:
        num_models: how many; their seeds follow that of the settings.
        settings, **options: of :class:`~pplseq.models.taggers.latent.LatentTagger`.

    Attributes:
        models: the taggers, after fit.

    Cost: num_models times that of a latent tagger, in training and in use.

    Source: Petrov (2010), Products of random latent variable grammars.
    """

    name = "product-tagger"

    def __init__(self, num_models: int = 4, settings: LatentTaggerSettings | None = None, **options: Any):
        self.num_models = checks.count("num_models", num_models)
        self.settings = settings or LatentTaggerSettings(**options)
        self.models: list[LatentTagger] = []  # pyright: ignore[reportIncompatibleVariableOverride]

    def fit(
        self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None, *, progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
    ) -> ProductTagger:  # fmt: skip
        models: list[LatentTagger] = []
        for seed in range(self.settings.seed, self.settings.seed + self.num_models):
            model = LatentTagger(replace(self.settings, seed=seed))
            if models:  # they know nothing of substates
                model.known_forms = models[0].forms
            models.append(model.fit(x, validation, progress=progress, on_record=on_record))
            model.known_forms = None  # another text has other forms
        return self._take(models)

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        configs, tensors = _states(self.models)
        settings = asdict(self.settings)
        # clusters and lexicon, which are large, are kept once
        models = [config | {"settings": config["settings"] | dict.fromkeys(SHARED)} for config in configs]
        return {"settings": settings, "models": models}, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> ProductTagger:
        models, shared = [], {name: config["settings"].get(name) for name in SHARED}
        for k, one in enumerate(config["models"]):
            one = one | {"settings": one["settings"] | shared}
            models.append(LatentTagger.from_state(one, _own(tensors, k)))
        return cls(len(models), LatentTaggerSettings.from_saved(config["settings"]))._take(models)


class ProductOfTaggers(Product):
    """Taggers of different kinds of the same text, such as latent ones and a CRF, whose errors differ more than those of one
    kind with different random numbers.

        p(tag_t | words)  in proportion to  (product over members of p_m(tag_t | words))^(1 / number of members)

    Tags are chosen word by word, as by :class:`ProductTagger`, which may be a member, as one vote.

    Args:
        members: taggers that give probabilities of the same tags (``smooth``). `fit` trains copies of them.

    Attributes:
        models: the trained members.

    Example::

        tagger = ProductOfTaggers([ProductTagger(clusters="c.paths"), CRFTagger(clusters="c.paths")]).fit(sentences)
        tagger = ProductOfTaggers.of([latent, crf])     # of taggers that were trained before

    Cost: the sum of the members', in training and in use.

    Source: Hinton (2002), Training products of experts by minimizing contrastive divergence (products of models).
    """

    name = "product-of-taggers"

    def __init__(self, members: Iterable[Tagger] = ()):
        self.members = tuple(members)
        for member in self.members:
            if not isinstance(member, Tagger) or not hasattr(member, "smooth"):
                raise TypeError(f"members: expected taggers that give probabilities (smooth), got {checks.shown(member)}")

    @classmethod
    def of(cls, models: Iterable[Tagger]) -> ProductOfTaggers:
        """The product of trained taggers.

        Raises:
            ValueError: they do not know the same tags. RuntimeError: one is not trained.
        """
        product = cls(models)
        product._check_members()
        for member in product.members:
            member._check_fitted()
            if set(member.tags) != set(product.members[0].tags):
                differ = sorted(set(member.tags) ^ set(product.members[0].tags))
                raise ValueError(f"models: expected taggers of the same tags; only some of them know {', '.join(differ)}")
        return product._take(product.members)

    def _check_members(self) -> None:
        if not self.members:
            raise ValueError("members: expected at least one tagger, got none")

    def fit(
        self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None, *, progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
    ) -> ProductOfTaggers:  # fmt: skip
        self._check_members()
        check_sentences(x)
        copies = [member.__sklearn_clone__() for member in self.members]
        models = [copy.fit(x, validation, progress=progress, on_record=on_record) for copy in copies]
        return self._take(self.of(models).models)  # of the same tags

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        configs, tensors = _states(self.models)
        members = [{"tagger": model.name, "config": config} for model, config in zip(self.models, configs, strict=True)]
        return {"members": members}, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> ProductOfTaggers:
        members = enumerate(config["members"])
        return cls.of(TAGGERS[one["tagger"]].from_state(one["config"], _own(tensors, k)) for k, one in members)


def _states(models: Sequence[Tagger]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """What is kept of models: their configurations, and all tensors, named by the model's number."""
    states = [model.state() for model in models]
    tensors = {f"{k}.{name}": value for k, (_, own) in enumerate(states) for name, value in own.items()}
    return [config for config, _ in states], tensors


def _own(tensors: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    """The tensors of model k."""
    return {name.removeprefix(f"{k}."): value for name, value in tensors.items() if name.startswith(f"{k}.")}
