"""An LDS that reads step by step: Kalman's filter on numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pplseq.distributions.gaussian_types import LOG_2PI
from pplseq.infer.forecasts import Forecast
from pplseq.models.online.reader import Reading, check_alone, finite, numbers_of

STILL = 4 * np.finfo(np.float64).eps  # relative changes of a covariance that count as none


class System:
    """An LDS: Kalman's filter, whose covariances and gains stay as they are once they stand still."""

    def __init__(self, model: Any):
        values = model.values
        parts: list[Any] = [None if part is None else part.detach().double().numpy() for part in values]
        self.matrix, self.offset, _, self.noise, self.loadings, self.shift, _, spread, self.mean, self.covariance = parts
        self.spread = np.diag(spread) if spread.ndim == 1 else spread
        self.begun = False
        self.steady: Any = None  # gain, whitener and half the log determinant
        self.model, self.size = model, len(self.spread)
        self.identity = np.eye(len(self.matrix))

    def _predicted(self, mean: np.ndarray) -> np.ndarray:
        mean = self.matrix @ mean
        return mean if self.offset is None else mean + self.offset

    def _spread_ahead(self, covariance: np.ndarray) -> np.ndarray:
        covariance = self.matrix @ covariance @ self.matrix.T + self.noise
        return (covariance + covariance.T) / 2

    def _gain(self, predicted: np.ndarray, rows: Any) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        """Gain, whitener, half the log determinant of what is seen, and the filtered covariance."""
        loadings, spread = self.loadings[rows], self.spread[rows][:, rows]
        across = predicted @ loadings.T
        factor = np.linalg.cholesky(loadings @ across + spread)
        whitener = np.linalg.inv(factor)
        gain = across @ whitener.T @ whitener
        left = self.identity - gain @ loadings  # Joseph's form: no differences of large numbers
        filtered = left @ predicted @ left.T + gain @ spread @ gain.T
        return gain, whitener, float(np.log(factor.diagonal()).sum()), (filtered + filtered.T) / 2

    def step(self, x: Any, known: Mapping[str, Any]) -> Reading:
        check_alone(self.model, known)
        vector = numbers_of(x, self.size)
        mean = self._predicted(self.mean) if self.begun else self.mean
        missing = None if vector is None else np.isnan(vector)
        if self.steady is not None and missing is not None and not missing.any():
            gain, whitener, half, covariance = self.steady
            rows = slice(None)
        else:
            predicted = self._spread_ahead(self.covariance) if self.begun else self.covariance
            if vector is None or missing is None:
                self.begun, self.steady, self.mean, self.covariance = True, None, mean, predicted
                return Reading(0.0, mean, predicted)
            rows = slice(None) if not missing.any() else ~missing
            gain, whitener, half, covariance = found = self._gain(predicted, rows)
            moved = abs(covariance - self.covariance).max() if self.begun else math.inf
            is_still = not missing.any() and moved <= STILL * abs(covariance).max()
            self.steady = found if is_still else None
        assert vector is not None, "where nothing is seen it was returned above"
        error = vector[rows] - self.loadings[rows] @ mean
        if self.shift is not None:
            error = error - self.shift[rows]
        white = whitener @ error
        log_prob = -float(white @ white) / 2 - half - len(white) * LOG_2PI / 2
        self.begun, self.mean, self.covariance = True, mean + gain @ error, covariance
        return Reading(log_prob, self.mean, covariance)

    def ahead(self, num_steps: int | None, told: Mapping[str, Any]) -> Forecast:
        check_alone(self.model, told)
        assert num_steps is not None, "nothing else tells it"
        mean, covariance, found = self.mean, self.covariance, []
        for k in range(num_steps):
            if k or self.begun:
                mean, covariance = self._predicted(mean), self._spread_ahead(covariance)
            seen = self.loadings @ mean
            spread = self.loadings @ covariance @ self.loadings.T + self.spread
            found.append((seen if self.shift is None else seen + self.shift, spread, mean, covariance))
        parts = [torch.from_numpy(np.stack(part)).to(self.model.reference).unsqueeze(0) for part in zip(*found, strict=True)]
        names = ("means", "covariances", "state_means", "state_covariances")
        return Forecast(column_names=self.model.column_names, **dict(zip(names, parts, strict=True)))

    def kept(self) -> dict[str, Any]:
        return {"begun": self.begun, "mean": self.mean.tolist(), "covariance": self.covariance.tolist()}

    def take(self, kept: Mapping[str, Any]) -> None:
        h = len(self.identity)
        if type(kept["begun"]) is not bool:
            raise ValueError("begun must be true or false")
        mean, covariance = finite("mean", kept["mean"], (h,)), finite("covariance", kept["covariance"], (h, h))
        if not np.allclose(covariance, covariance.T) or np.linalg.eigvalsh(covariance).min() < -1e-9 * abs(covariance).max():
            raise ValueError("covariance is none: it has a negative variance in some direction")
        self.begun, self.mean, self.covariance = kept["begun"], mean, covariance
