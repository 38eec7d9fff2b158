"""A linear dynamical system's steady filter as the weights of a recurrent network.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: section 6. The paper mixes the two
forms; each is consistent by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pplseq import checks
from pplseq.kernels.matrix_equations import filtered_covariance, predicted_covariance

FORMS = ("predictor", "filtered")
COORDINATES = ("words", "whitened")


@torch.no_grad()
def rnn_weights(model: Any, form: str = "predictor", *, coordinates: str = "words") -> dict[str, np.ndarray]:
    """Weights with which s_t = recurrent s_{t-1} + input[:, x_t], prediction_{t+1} = output s_t + bias, from s_0 = 0.

    ========== ============== ======= ========
    form       recurrent      input   output
    ========== ============== ======= ========
    predictor  A - A K C      A K     C          s_t is the mean of z_{t+1} given x_1..x_t
    filtered   A - K C A      K       C A        s_t is the mean of z_t given x_1..x_t
    ========== ============== ======= ========

    Args:
        model: a :class:`~pplseq.models.text_lds.program.TextLDS`.
        form: "predictor" or "filtered"; both predict the same.
        coordinates: "words": a word goes in as its number, and out comes the mean of the next one-hot vector (which sums to
            one). "whitened": vectors w = diag(mu)^-1/2 (e_x - mu) go in and their predictions come out.

    Returns:
        "recurrent" (h, h), "input" (h, V), "output" (V, h), "bias" (V,), float64.
    """
    checks.choice("form", form, FORMS)
    checks.choice("coordinates", coordinates, COORDINATES)
    emission = model.word_emission(torch.float64)
    transition, information = model.transition.double(), emission.information
    predicted = predicted_covariance(transition, model.state_noise.double(), information)
    filtered = filtered_covariance(predicted, information)
    gain = filtered @ emission.gain @ emission.matrix.T  # K = (P^-1 + C'D^-1C)^-1 C'D^-1
    keep = transition - filtered @ information @ transition
    output, bias = emission.matrix, torch.zeros_like(emission.probs)
    if coordinates == "words":
        # C'u = 0, so the mean that is taken off a one-hot vector drops out of K w
        gain, output, bias = gain / emission.unit, emission.unit.unsqueeze(1) * output, emission.probs
    if form == "predictor":
        keep, gain = transition - transition @ filtered @ information, transition @ gain
    else:
        output = output @ transition
    names = ("recurrent", "input", "output", "bias")
    return {name: value.cpu().numpy().copy() for name, value in zip(names, (keep, gain, output, bias), strict=True)}
