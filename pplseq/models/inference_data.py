"""Posterior draws of a fitted model as ArviZ's InferenceData: traces, intervals, effective sample sizes, comparison plots."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pplseq import __version__, checks
from pplseq.distributions.drawing import seeded
from pplseq.threads import alone, filtering


def to_arviz(model: Any, *, num_draws: int = 1000, seed: int = 0) -> Any:
    """The posterior of the parameters of a model that was fitted by NUTS or SVI.

    Of NUTS the draws are those of the fit, (chains, draws, ...), with divergences and acceptance rates; of SVI they are drawn
    from the guide, which is one chain of independent draws. Names and shapes are those of the model's tables ("transition":
    [from, to], probabilities; precisions as the priors have them). States have no names: chains that found them in different
    orders do not mix, which shows in ``arviz.rhat``.

    Args:
        model: an estimator after ``fit(..., method="nuts")`` or ``"svi"``.
        num_draws, seed: of draws from the guide.

    Raises:
        ValueError: a model that was fitted by another method, or not in this process: a saved model has its point alone.
        ImportError: without ArviZ, an extra.

    Example:
        >>> model = HMM(2, num_features=1, priors=True).fit(x, method="nuts", num_samples=500)  # doctest: +SKIP
        >>> arviz.summary(to_arviz(model), var_names=["transition"])  # doctest: +SKIP
    """
    history: Any = getattr(model, "history", None)
    if getattr(history, "samples", None) is None and getattr(history, "guide", None) is None:
        method = getattr(history, "method", None)
        came = "one that was not fitted here" if method is None else f"one fitted by {method!r}"
        raise ValueError(
            f"model: expected one that was fitted by method='nuts' or 'svi', which have a posterior of parameters, got {came}"
        )
    try:
        with filtering("ignore"):  # of its own imports
            import arviz
    except ImportError:
        raise ImportError('posterior draws for ArviZ need it: pip install "pplseq[arviz]"') from None
    if history.samples is None:
        draws, stats = {name: value[None] for name, value in _of_guide(model, history.guide, num_draws, seed).items()}, None
    else:
        num_chains = len((history.diagnostics or {}).get("divergences", {})) or 1
        draws = {name: _by_chain(value, num_chains) for name, value in history.samples.items()}
        stats = _stats(history.diagnostics, num_chains, next(iter(draws.values())).shape[1])
    found = arviz.from_dict(posterior=draws, sample_stats=stats)
    found.posterior.attrs |= {"inference_library": "pplseq", "inference_library_version": __version__, "method": history.method}
    return found


def _by_chain(value: torch.Tensor, num_chains: int) -> np.ndarray:
    """(chains, draws, ...) of draws that stand chain behind chain."""
    return value.detach().cpu().numpy().reshape(num_chains, -1, *value.shape[1:])


def _stats(diagnostics: dict[str, Any] | None, num_chains: int, num_draws: int) -> dict[str, np.ndarray] | None:
    """Which draws diverged."""
    if not diagnostics or "divergences" not in diagnostics:
        return None
    diverging = np.zeros((num_chains, num_draws), bool)
    for row, places in zip(diverging, diagnostics["divergences"].values(), strict=True):
        row[[place for place in places if place < num_draws]] = True
    return {"diverging": diverging}


def _of_guide(model: Any, guide: Any, num_draws: int, seed: int) -> dict[str, np.ndarray]:
    """(draws, ...) of each table."""
    checks.count("num_draws", num_draws)
    with torch.no_grad(), seeded(seed):
        drawn = alone(lambda: [guide() for _ in range(num_draws)])
        sites = {name: torch.stack([draw[name] for draw in drawn]) for name in drawn[0] if name in model.sites()}
        return {name: value.detach().cpu().numpy() for name, value in model.from_sites(sites).items()}
