"""Parameters of a linear dynamical system for text, from how they are usually written to how they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary, WordForms
from pplseq.distributions.word_gaussian import precision_factor
from pplseq.kernels.kalman import symmetric
from pplseq.kernels.matrix_equations import (
    filtered_covariance,
    predicted_covariance,
    smoothed_covariance,
    stationary_coordinates,
)
from pplseq.models.batch import holds_words
from pplseq.models.forms import splitting


class FreeParameters(NamedTuple):
    """Parameters without constraints: see :class:`~pplseq.models.text_lds.program.TextLDS`, whose attributes they are."""

    basis: Tensor
    transition_weight: Tensor
    noise_weight: Tensor
    emission: Tensor
    precision_factor: Tensor


def free_parameters(
    transition: Tensor, noise: Tensor, emission: Tensor, reduction: Tensor, probs: Tensor
) -> FreeParameters:
    """From A, Q, M (h, h), C (V, h) and mu (V,), in double precision.

    Raises:
        ValueError: for an unstable A, or Q or D that are not positive definite.
    """
    coordinates = stationary_coordinates(transition, symmetric(noise))
    unit = probs.sqrt()
    emission = emission - torch.outer(unit, unit @ emission)
    return FreeParameters(*coordinates, emission, precision_factor(emission.T @ emission, reduction))


def start_covariance(initial: str, transition: Tensor, noise: Tensor, information: Tensor, stationary: Tensor) -> Tensor:
    """(h, h) of z_1: the stationary covariance, or the one that the filter's predictions tend to ("steady")."""
    return stationary if initial == "stationary" else predicted_covariance(transition, noise, information)


def expected_moments(
    transition: Tensor, noise: Tensor, information: Tensor, stationary: Tensor
) -> tuple[Tensor, Tensor]:
    """(h, h) E[x x'] of smoothed and of filtered means under the model: P minus the posterior covariance."""
    predicted = predicted_covariance(transition, noise, information)
    filtered = filtered_covariance(predicted, information)
    smoothed = smoothed_covariance(transition, predicted, filtered)
    return symmetric(stationary - smoothed), symmetric(stationary - filtered)


def rewritten(x: Any, forms: WordForms, vocabulary: Vocabulary | None) -> Any:
    """Sentences split and their words rewritten, None for a missing one; anything else as it is."""
    if not holds_words(x):
        return x
    split = splitting(vocabulary)
    x = [split(sentence.lower() if forms.lower else sentence) if isinstance(sentence, str) else sentence for sentence in x]
    return [[None if word is None else forms(word) for word in sentence] for sentence in x]


def word_forms(forms: WordForms | Mapping[str, Any] | None) -> WordForms:
    """How words are rewritten before they are looked up, from a config's arguments too."""
    if forms is not None and not isinstance(forms, (Mapping, WordForms)):
        raise TypeError(f"forms must be WordForms or None, got {checks.shown(forms)}")
    return WordForms(**forms) if isinstance(forms, Mapping) else WordForms() if forms is None else forms
