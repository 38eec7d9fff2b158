"""An HMM that reads step by step: numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission
from pplseq.distributions.gaussian_types import LOG_2PI
from pplseq.distributions.state import MISSING
from pplseq.models.online.reader import Reading, check_alone, log_probabilities, numbers_of, word_of

SPAN = 300.0  # nats: probabilities within it, and their products, are numbers of double precision


class States:
    """An HMM: a vector of log-probabilities and a matrix.

    States that are all but ruled out keep their digits: they may come back. Where a product of probabilities could not hold
    them, the next step is taken in log space.
    """

    def __init__(self, model: Any, transition: DenseTransition, emission: Any):
        self.model, self.emission, self.belief = model, emission, None
        self.start = transition.initial.detach().double().numpy()
        self.log_matrix = transition.matrix.detach().double().numpy()
        self.matrix = np.exp(self.log_matrix)
        self.is_moderate = self.log_matrix[self.log_matrix > -math.inf].min() > -SPAN
        self.words: Any = None
        self.loc: Any = None
        self.whiteners: Any = None
        if isinstance(emission, CategoricalEmission):
            self.words = emission.log_probs.detach().double().T.contiguous().numpy()
        elif isinstance(emission, GaussianEmission):
            self.loc = emission.loc.detach().double().numpy()
            size = self.loc.shape[1]
            if emission.scale_tril is None:
                assert emission.scale is not None, "one of the two"
                self.whiteners = 1 / emission.scale.detach().double().expand(self.loc.shape).numpy()
                spread = -np.log(self.whiteners).sum(-1)
            else:
                tril = emission.scale_tril.detach().double().expand(len(self.loc), size, size)
                self.whiteners = torch.linalg.inv(tril).numpy()
                spread = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1).numpy()
            self.constant = -spread - size * LOG_2PI / 2

    def _log_likelihood(self, x: Any) -> np.ndarray | None:
        """(Z,), or None where nothing was seen."""
        if self.words is not None:
            word = word_of(x, self.model.vocabulary, len(self.words))
            return None if word == MISSING else self.words[word]
        vector = numbers_of(x, self.model.num_features)
        if vector is None:
            return None
        if self.loc is None or np.isnan(vector).any():
            like = torch.from_numpy(vector).to(self.model.reference).unsqueeze(0)
            self.model._check_observations(like.unsqueeze(0))
            return self.emission.log_likelihood(like)[0].detach().double().numpy()
        apart = vector - self.loc
        apart = apart * self.whiteners if self.whiteners.ndim == 2 else (self.whiteners @ apart[:, :, None])[:, :, 0]
        return self.constant - (apart * apart).sum(1) / 2

    def _moved(self, belief: np.ndarray) -> np.ndarray:
        """(Z,) log-probabilities a step behind a belief."""
        lowest = np.where(belief > -math.inf, belief, 0.0).min()
        with np.errstate(divide="ignore"):
            if self.is_moderate and lowest > -SPAN:
                return np.log(np.exp(belief) @ self.matrix)
            joint = belief[:, None] + self.log_matrix
            largest = joint.max(0)
            shift = np.where(largest > -math.inf, largest, 0.0)
            return np.log(np.exp(joint - shift).sum(0)) + shift

    def step(self, x: Any, known: Mapping[str, Any]) -> Reading:
        check_alone(self.model, known)
        return self.told(self._log_likelihood(x))

    def told(self, like: np.ndarray | None) -> Reading:
        """A step whose observation has these log-likelihoods (Z,), None where nothing was seen."""
        before, log_prob = self.start if self.belief is None else self._moved(self.belief), 0.0
        if like is not None:
            joint = before + like
            largest = joint.max()
            log_prob = -math.inf
            if largest > -math.inf:
                log_prob = float(largest) + math.log(np.exp(joint - largest).sum())
                before = joint - log_prob
        self.belief = before
        return Reading(log_prob, np.exp(before))

    def ahead(self, num_steps: int | None, told: Mapping[str, Any]) -> Any:
        check_alone(self.model, told)
        assert num_steps is not None, "nothing else tells it"
        states, now = np.empty((num_steps, len(self.start))), self.belief
        for k in range(num_steps):
            now = states[k] = self.start if now is None else self._moved(now)
        logs = torch.from_numpy(states).to(self.model.reference).unsqueeze(0)
        return self.model._observations_of(logs, self.emission)._replace(column_names=self.model.column_names)

    def kept(self) -> dict[str, Any]:
        # JSON has no infinite numbers
        told = None if self.belief is None else [value if value > -math.inf else None for value in self.belief.tolist()]
        return {"belief": told}

    def take(self, kept: Mapping[str, Any]) -> None:
        belief = kept["belief"]
        self.belief = None if belief is None else log_probabilities("belief", belief, len(self.start))
