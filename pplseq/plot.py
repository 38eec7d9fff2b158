"""Pictures of series and their hidden states. Every function draws on matplotlib axes and returns them.

Example::

    from pplseq import HMM, plot

    model = HMM(2, num_features=1).fit(returns)
    plot.states(returns[0], model.smooth(returns).probs[0])

Needs matplotlib: ``pip install "pplseq[plot]"``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.report.canvas import ACCENT, INK, MUTED
from pplseq.report.effects import check_curves, draw_curves
from pplseq.report.graph import MAX_STATES, draw_automaton_on, draw_graph

__all__ = [
    "automaton", "components", "diagnostics", "effects", "forecast", "probabilities", "series", "states", "transitions",
]  # fmt: skip
# hues of ColorBrewer's Dark2, which the colour-blind can tell apart
COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666")
PADDED = "of shape (T,), it must hold states 0, 1, ..., or their names; cut padded steps off"


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError('pplseq.plot needs matplotlib: pip install "pplseq[plot]"') from None
    return pyplot


def _axes(ax: Any) -> Any:
    return _pyplot().subplots()[1] if ax is None else ax


def _array(name: str, value: Any, dims: tuple[int, ...], shape: str) -> np.ndarray:
    value = np.ma.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=float).filled(np.nan)
    if value.ndim not in dims:
        raise ValueError(f"{name} must have shape {shape}, got {value.shape}; of a batch, give one sequence: {name}[0]")
    return value


def _names(labels: Sequence[str] | None, number: int) -> list[str]:
    if labels is None:
        return [f"state {k}" for k in range(number)]
    if len(labels) != number:
        raise ValueError(f"labels: expected one for each of {number} states, got {len(labels)}")
    return [str(label) for label in labels]


def _times(index: Any, steps: int) -> Any:
    if index is None:
        return np.arange(steps)
    if len(index) != steps:
        raise ValueError(f"index: expected one time for each of {steps} steps, got {len(index)}")
    return np.asarray(index)


def series(x: Any, *, index: Any = None, ax: Any = None, labels: Sequence[str] | None = None) -> Any:
    """A series; gaps are left open.

    Args:
        x: (T,) or (T, D) numbers, NaN where missing. index: (T,) times of the steps, dates for example.
        ax: axes to draw on; None makes a figure. labels: of the D columns.

    Returns:
        The axes.

    Raises:
        ImportError: without matplotlib. ValueError: for shapes that do not fit.
    """
    x = _array("x", x, (1, 2), "(T,) or (T, D)")
    x = x.reshape(len(x), -1)
    ax = _axes(ax)
    for column in range(x.shape[1]):
        name = None if labels is None else str(labels[column])
        ax.plot(_times(index, len(x)), x[:, column], color=INK if x.shape[1] == 1 else None, linewidth=0.9, label=name)
    if labels is not None:
        ax.legend(fontsize=8, frameon=False)
    return ax


def components(found: Any, *, index: Any = None, sequence: int = 0) -> Any:
    """Components of a structural model, one below the other, with 95 % intervals.

    Args:
        found: ``model.components(x)``. index: as in :func:`series`. sequence: which one of a batch.

    Returns:
        A list of axes, one for each component.

    Raises:
        ImportError: without matplotlib.
    """
    axes = list(_pyplot().subplots(len(found), sharex=True, squeeze=False, figsize=(6.4, 1.6 * len(found)))[1].flat)
    for ax, (name, (means, variances)) in zip(axes, found.items(), strict=True):
        mean, variance = _array("means", means[sequence], (1,), "(T,)"), _array("variances", variances[sequence], (1,), "(T,)")
        half, times = 1.96 * np.sqrt(variance.clip(0)), _times(index, len(mean))
        series(mean, index=times, ax=ax)
        ax.fill_between(times, mean - half, mean + half, color=ACCENT, alpha=0.2, linewidth=0)
        ax.set_ylabel(name, fontsize=8)
    return axes


def states(x: Any, probs: Any, *, index: Any = None, ax: Any = None, labels: Sequence[str] | None = None) -> Any:
    """A series over the colours of its hidden states; the surer a state, the stronger its colour.

    Args:
        x: (T,) or (T, D) numbers. probs: (T, Z) probabilities of states (``model.smooth(x).probs[0]``, or of one sequence
            ``model.smooth(x).frame()``, which says their names and times), or (T,) states (``model.decode(x)[0]``), as numbers
            or names. index, ax: as in :func:`series`.
        labels: of the Z states, in the order of their colours. A path of names does not say which states it never visits, nor
            their order, and is coloured in the order of the alphabet: give it ``labels=model.state_names`` for the colours
            that probabilities of the model have.

    Returns:
        The axes.

    Raises:
        ImportError: without matplotlib. ValueError: for shapes that do not fit.
    """
    probs, index, labels = _labelled(probs, index, labels)
    x = _array("x", x, (1, 2), "(T,) or (T, D)")
    if len(probs) != len(x):
        raise ValueError(f"probs: expected one row for each of {len(x)} steps, got {len(probs)}")
    times = _times(index, len(x))
    ax = series(x, index=times, ax=ax)
    edges = _edges(times)
    for state, (name, colour) in enumerate(zip(_names(labels, probs.shape[1]), _palette(probs.shape[1]), strict=True)):
        image = np.empty((1, len(x), 4))
        image[..., :3] = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        image[0, :, 3] = 0.45 * probs[:, state]
        ax.pcolormesh(edges, [0, 1], image, transform=ax.get_xaxis_transform(), zorder=0, rasterized=True)
        ax.plot([], [], color=colour, linewidth=6, alpha=0.6, label=name)
    ax.legend(fontsize=8, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    return ax


def probabilities(probs: Any, *, index: Any = None, ax: Any = None, labels: Sequence[str] | None = None) -> Any:
    """How probable each state is at each step, stacked to 1.

    Args:
        probs: (T, Z), a frame of these, or (T,) states. index, ax: as in :func:`series`. labels: of the Z states.

    Returns:
        The axes.

    Raises:
        ImportError: without matplotlib. ValueError: for shapes that do not fit.
    """
    probs, index, labels = _labelled(probs, index, labels)
    ax = _axes(ax)
    number = probs.shape[1]
    times = _times(index, len(probs))
    ax.stackplot(times, probs.T, labels=_names(labels, number), colors=_palette(number), alpha=0.75, linewidth=0)
    ax.set(ylim=(0, 1), xlim=(times[0], times[-1]), ylabel="probability")
    ax.legend(fontsize=8, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    return ax


def transitions(matrix: Any, *, ax: Any = None, labels: Sequence[str] | None = None, least: float = 0.01) -> Any:
    """The graph of a transition matrix: an arrow for each move, the wider the more probable.

    Args:
        matrix: (Z, Z) probabilities [from, to], Z at most 40. least: moves below it are left out. ax, labels: as above.

    Returns:
        The axes.

    Raises:
        ImportError: without matplotlib. ValueError: for what is no such matrix.
    """
    matrix = _array("matrix", matrix, (2,), "(Z, Z)")
    checks.share("least", least)
    if matrix.shape[0] != matrix.shape[1] or not (matrix >= 0).all() or not np.allclose(matrix.sum(1), 1, atol=1e-4):
        raise ValueError(f"matrix must be square with rows of probabilities that sum to 1, got shape {matrix.shape}")
    if len(matrix) > MAX_STATES:
        raise ValueError(f"matrix: a graph shows at most {MAX_STATES} states, got {len(matrix)}; draw ax.imshow(matrix)")
    names = [str(k) for k in range(len(matrix))] if labels is None else _names(labels, len(matrix))
    moves = {(int(i), int(j)): float(matrix[i, j]) for i, j in zip(*np.nonzero(matrix >= max(least, 1e-300)), strict=True)}
    texts = {move: f"{share:.2g}" for move, share in moves.items()}
    ax = _axes(ax)
    draw_graph(ax, texts, names, widths={move: 0.5 + 2.5 * share for move, share in moves.items()})
    return ax


def forecast(
    past: Any, means: Any, covariances: Any = None, *, level: float = 0.9, column: int = 0, sequence: int = 0,
    index: Any = None, ax: Any = None,
) -> Any:  # fmt: skip
    """A series, what is expected to follow, and the interval in which it is expected to lie.

    Args:
        past: (T,) or (T, D) observations.
        means: what ``model.forecast`` told, whose own intervals are drawn: those of an HMM or a switching regression are exact
            quantiles of mixtures, and need not lie evenly about the mean. Or (K, D) means of normals.
        covariances: (K, D, D) of normals, whose means are given.
        level: probability of the interval. column: which of the D. sequence: which row of the forecast. index: (T + K,) times,
            by default those of a past and a forecast that have them. ax: as above.

    Returns:
        The axes.

    Raises:
        ImportError: without matplotlib. ValueError: for shapes that do not fit, and a forecast that has no intervals.
    """
    checks.share("level", level, "(0, 1)")
    came, past = past, _array("past", past, (1, 2), "(T,) or (T, D)")
    past = past.reshape(len(past), -1)
    if covariances is None:
        found = means
        means, low, high = _told(found, level, sequence)
        index = _times_of(came, found, sequence) if index is None else index
    else:
        means = _array("means", means, (2,), "(K, D)")
        covariances = _array("covariances", covariances, (3,), "(K, D, D)")
        if covariances.shape != (*means.shape, means.shape[1]):
            raise ValueError(f"means, covariances must be (K, D), (K, D, D), got {means.shape}, {covariances.shape}")
        half = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2)) * statistics.NormalDist().inv_cdf((1 + level) / 2)
        low, high = means - half, means + half
    if past.shape[1] != means.shape[1]:
        raise ValueError(f"past must have the {means.shape[1]} columns of the forecast, got {past.shape[1]}")
    if not 0 <= column < means.shape[1] or not len(past):
        raise ValueError(f"column must lie in 0..{means.shape[1] - 1} of a past of at least one step, got {column}")
    times = _times(index, len(past) + len(means))
    ax = series(past[:, column], index=times[: len(past)], ax=ax)
    future = times[len(past) :]
    ax.plot(future, means[:, column], color=ACCENT, linewidth=1.4, label="forecast")
    ax.fill_between(future, low[:, column], high[:, column], color=ACCENT, alpha=0.2, linewidth=0, label=f"{level:.0%}")
    ax.axvline(times[len(past) - 1], color=MUTED, linewidth=0.6, linestyle=":")
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    return ax


def _told(found: Any, level: float, sequence: int) -> list[np.ndarray]:
    """Means and the ends of intervals, (K, D) each, of one row of a forecast."""
    if not hasattr(found, "intervals"):
        raise ValueError(
            f"covariances must be given with means, got None; or give what model.forecast told in the place of means, which "
            f"was a {type(found).__name__}"
        )
    if found.means is None:
        raise ValueError("means: this forecast is of words, which have probabilities and no intervals")
    parts = [_array("means", part, (3,), "(B, K, D)") for part in (found.means, *found.intervals(level))]
    if not -len(parts[0]) <= sequence < len(parts[0]):
        raise ValueError(f"sequence must lie in 0..{len(parts[0]) - 1}, the rows of the forecast; got {sequence}")
    return [part[sequence].reshape(part.shape[1], -1) for part in parts]


def _times_of(past: Any, found: Any, sequence: int) -> Any:
    """Of the steps of a frame or series of pandas, and those that a forecast says to come; None where one has none."""
    ahead = getattr(found, "times", None)
    if not isinstance(ahead, tuple) or not hasattr(past, "index") or not hasattr(past, "to_numpy"):
        return None
    if past.index.dtype.kind == "m":  # matplotlib has no axis of durations
        return None
    parts = [past.index, ahead[sequence]]
    return np.concatenate([np.asarray(part.to_timestamp() if hasattr(part, "to_timestamp") else part) for part in parts])


def diagnostics(found: Any, *, column: int = 0, sequence: int = 0, lags: int = 20, index: Any = None) -> list[Any]:
    """Residuals of one-step predictions: over time, beside the normal density, against its quantiles, and their
    autocorrelations with the interval in which 95 % of those of independent residuals lie.

    Args:
        found: ``model.diagnostics(x)``. column, sequence: which. lags: of the autocorrelations. index: as in :func:`series`.

    Returns:
        A list of the four axes.

    Raises:
        ImportError: without matplotlib. ValueError: where fewer than 3 residuals are there.
    """
    errors = _array("errors", found.errors, (3,), "(B, T, n)")[sequence, :, column]
    seen = np.sort(errors[~np.isnan(errors)])
    number = len(seen)
    if number < 3:
        raise ValueError(f"found: a picture needs at least 3 residuals, and sequence {sequence} has {number}")
    figure, grid = _pyplot().subplots(2, 2)
    axes = list(grid.flat)
    series(errors, index=index, ax=axes[0])
    axes[0].axhline(0, color=MUTED, linewidth=0.6)
    axes[0].set_ylabel("residual")
    grid, normal = np.linspace(min(-3.5, seen[0]), max(3.5, seen[-1]), 200), statistics.NormalDist()
    axes[1].hist(seen, bins=max(5, round(number**0.5)), density=True, color=ACCENT, alpha=0.35)
    axes[1].plot(grid, [normal.pdf(value) for value in grid], color=INK, linewidth=0.9)
    axes[1].set_ylabel("density")
    axes[2].plot([normal.inv_cdf((k + 0.5) / number) for k in range(number)], seen, ".", color=ACCENT, markersize=3)
    axes[2].axline((0, 0), slope=1, color=MUTED, linewidth=0.6)
    axes[2].set(xlabel="normal quantile", ylabel="residual")
    about = np.nan_to_num(errors - seen.mean())
    lags = min(lags, len(errors) - 1)
    shares = [float(about[lag:] @ about[: len(about) - lag] / (about @ about)) for lag in range(1, lags + 1)]
    axes[3].bar(range(1, lags + 1), shares, width=0.25, color=ACCENT)
    for side in (-1, 0, 1):
        axes[3].axhline(side * 1.96 / number**0.5, color=MUTED, linewidth=0.6, linestyle=":" if side else "-")
    axes[3].set(xlabel="lag", ylabel="autocorrelation")
    figure.set_layout_engine("tight")
    return axes


def effects(curves: Any, values: Any, feature: str = "input", *, state: int = 0, ax: Any = None) -> Any:
    """How the moves out of a state change as one input varies.

    Args:
        curves: (N, Z, Z) [value, from, to], as ``IOHMM.effect_curves`` gives. values: (N,) of the input. feature: its name.
        state: the one to come from. ax: as above.

    Returns:
        The axes.

    Raises:
        ImportError: without matplotlib. ValueError: for shapes that do not fit.
    """
    curves, values = check_curves(curves, values)
    if not 0 <= state < curves.shape[1]:
        raise ValueError(f"state must lie in 0..{curves.shape[1] - 1}, got {state}")
    ax = _axes(ax)
    draw_curves(ax, curves, values, feature, state)
    ax.set_ylabel("transition probability")
    ax.legend(fontsize=8, frameon=False)
    return ax


def automaton(machine: Any, *, ax: Any = None) -> Any:
    """The states and moves of an :class:`~pplseq.models.automata.automaton.Automaton` of at most 40 states.

    Returns:
        The axes.

    Raises:
        ImportError: without matplotlib. ValueError: too many states.
    """
    ax = _axes(ax)
    draw_automaton_on(ax, machine)
    return ax


def _labelled(probs: Any, index: Any, labels: Sequence[str] | None) -> tuple[np.ndarray, Any, Sequence[str] | None]:
    """(T, Z) probabilities, times and names of states: of a frame its own where others are not given."""
    if hasattr(probs, "columns") and hasattr(probs, "index"):
        labels = [str(name) for name in probs.columns] if labels is None else labels
        index = probs.index if index is None else index
        probs = probs.to_numpy()
    elif any(isinstance(each, str) for each in probs):  # a path of states that have names
        if not all(isinstance(each, str) for each in probs):
            raise ValueError(f"probs: {PADDED}")
        labels = sorted({*probs}) if labels is None else list(labels)
        if strangers := sorted({*probs} - {*labels}):
            raise ValueError(f"labels: {strangers[0]!r} is among the states and not among {checks.shown(labels)}")
        probs = np.array([labels.index(each) for each in probs])
    return _probabilities(probs, labels), index, labels


def _probabilities(probs: Any, labels: Sequence[str] | None) -> np.ndarray:
    probs = _array("probs", probs, (1, 2), "(T, Z), or (T,) of states")
    if probs.ndim == 1:
        if not len(probs) or (probs < 0).any() or (probs != probs.round()).any():
            raise ValueError(f"probs: {PADDED}")
        number = max(int(probs.max()) + 1, len(labels or ()))  # a short path may not visit the last states
        probs = np.eye(number)[probs.astype(int)]
    if not len(probs):
        raise ValueError("probs must hold at least one step, got none")
    if not ((probs >= -1e-3) & (probs <= 1 + 1e-3)).all():
        raise ValueError("probs must hold probabilities, 0 to 1; of log probabilities, give .exp()")
    return probs.clip(0, 1)  # sums of floats go a little beyond


def _palette(number: int) -> list[str]:
    return [COLOURS[k % len(COLOURS)] for k in range(number)]


def _edges(times: np.ndarray) -> np.ndarray:
    """Where the colours of neighbouring steps meet; works for dates too."""
    if len(times) == 1:
        step = np.timedelta64(12, "h") if np.issubdtype(times.dtype, np.datetime64) else 0.5
        return np.array([times[0] - step, times[0] + step])
    middle = times[:-1] + (times[1:] - times[:-1]) / 2
    return np.concatenate([[times[0] - (times[1] - times[0]) / 2], middle, [times[-1] + (times[-1] - times[-2]) / 2]])
