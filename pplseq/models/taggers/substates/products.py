"""Several latent taggers that vote: products of what they say of every word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.latent import LatentTagger, LatentTaggerSettings
from pplseq.models.taggers.tagger import Tagger, Words


class ProductTagger(Tagger):
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
        self.models: list[LatentTagger] = []

    def fit(
        self, x: Sequence[TaggedSentence], dev: Sequence[TaggedSentence] | None = None, *, progress: bool = False
    ) -> ProductTagger:
        models: list[LatentTagger] = []
        for seed in range(self.settings.seed, self.settings.seed + self.num_models):
            model = LatentTagger(replace(self.settings, seed=seed))
            if models:  # they know nothing of substates
                model.known_forms = models[0].forms
            models.append(model.fit(x, dev, progress=progress))
        return self._take(models)

    def _take(self, models: list[LatentTagger]) -> ProductTagger:
        self.models, self.tags, self.known_words = models, models[0].tags, models[0].known_words
        return self

    def smooth(self, x: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T, tags) probabilities of tags given all its words."""
        self.check_fitted()
        total: list[np.ndarray] = [np.zeros((len(words), len(self.tags))) for words in x]
        for model in self.models:
            for rows, probs in zip(total, model.smooth(x), strict=True):
                # a tag that one model finds impossible is not possible
                rows += np.log(np.maximum(probs, np.finfo(float).tiny)) / len(self.models)
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

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        states = [model.state() for model in self.models]
        tensors = {f"{k}.{name}": value for k, (_, own) in enumerate(states) for name, value in own.items()}
        settings = asdict(self.settings)
        # clusters, which are many, are kept once
        models = [config | {"settings": config["settings"] | {"clusters": None}} for config, _ in states]
        return {"settings": settings, "models": models}, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> ProductTagger:
        models, clusters = [], config["settings"]["clusters"]
        for k, one in enumerate(config["models"]):
            one = one | {"settings": one["settings"] | {"clusters": clusters}}
            own = {name.removeprefix(f"{k}."): value for name, value in tensors.items() if name.startswith(f"{k}.")}
            models.append(LatentTagger.from_state(one, own))
        return cls(len(models), LatentTaggerSettings.from_saved(config["settings"]))._take(models)
