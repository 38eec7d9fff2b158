"""Components of a structural time series: the block of states that each is, and how it moves.

Over a step, and where it has a continuous form, which is the same process seen at whole times, over any time. The level and the
trend move by Brownian motion: a slope that is shaken between two observations has moved the level by then, so that the trend's
continuous form is another process than its steps (with ``level="fixed"`` it is the one of constant velocity).

Source: A. C. Harvey (1989), Forecasting, structural time series models and the Kalman filter, sections 2.3, 9.1 to 9.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Values = Mapping[str, Tensor]  # what is learned beside variances: "frequency", "damping", "ar" and "ma"


class Component:
    """A block of m states.

    Attributes:
        name: of the component. emission: (m,) how much of each state is observed. shocks: (m,) the name of the variance that
            moves each state, "" for none. per_time: (m,) 1 for a state that is a change by time, else 0. learned: what of
            :data:`Values` its move takes; such a block starts where it tends to.
    """

    learned: tuple[str, ...] = ()

    def __init__(self, name: str, emission: Sequence[float], shocks: Sequence[str]):
        self.name, self.emission, self.shocks = name, torch.tensor(emission), list(shocks)
        self.per_time = [0] * len(self.shocks)

    def move(self, values: Values, like: Tensor) -> Tensor:
        """(m, m) of a step."""
        raise NotImplementedError

    def seen(self, values: Values, like: Tensor) -> Tensor:
        """(m,) how much of each state is observed, where that is learned, too."""
        return self.emission.to(like)

    def over(self, gaps: Tensor, values: Values, unit: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        """Moves (..., m, m) over times (...), and by variance the covariances (..., m, m) that one of 1 adds to them.

        Args:
            gaps: in units of ``unit`` units of time, which ``values``, too, are over.

        Raises:
            ValueError: for a component that has no continuous form.
        """
        raise ValueError(
            f"times: {self.name} moves step by step and has no continuous form; make the model without it, or of seasons with "
            "harmonics=..., fewer than half of the season's steps, and of ar=1"
        )

    def first(self, values: Values, variances: Values) -> Tensor | None:
        """(m, m) covariance that the states tend to; None where they wander off."""
        return None


class Level(Component):
    def __init__(self, level: str):
        super().__init__("level", [1.0], ["level" if level == "stochastic" else ""])

    def move(self, values, like):
        return torch.ones(1, 1).to(like)

    def over(self, gaps, values, unit=1.0):
        time = gaps[..., None, None]
        return torch.ones_like(time), {"level": time}


class Trend(Component):
    def __init__(self, trend: str, level: str):
        shocks = ["level" if level == "stochastic" else "", "slope" if trend == "stochastic" else ""]
        super().__init__("trend", [1.0, 0.0], shocks)
        self.per_time = [0, 1]

    def move(self, values, like):
        return torch.tensor([[1.0, 1.0], [0.0, 1.0]]).to(like)

    def over(self, gaps, values, unit=1.0):
        none, one = torch.zeros_like(gaps), torch.ones_like(gaps)
        return _square([[one, gaps], [none, one]]), {
            "level": _square([[gaps, none], [none, none]]),
            "slope": _square([[gaps**3 / 3, gaps**2 / 2], [gaps**2 / 2, gaps]]),
        }


class Dummies(Component):
    """A season and those before it sum to noise."""

    def __init__(self, season: int):
        super().__init__("seasonal", [1.0] + [0.0] * (season - 2), ["seasonal"] + [""] * (season - 2))

    def move(self, values, like):
        turn = torch.diag(torch.ones(len(self.emission) - 1), -1)
        turn[0] = -1.0
        return turn.to(like)


class Waves(Component):
    """Waves of the given frequencies, in radians a step, each turning by its own; one of pi is a single state."""

    def __init__(self, name: str, frequencies: Sequence[float]):
        self.turns = frequencies
        sizes = [1 if is_half(turn) else 2 for turn in frequencies]
        emission = [value for size in sizes for value in (1.0, 0.0)[:size]]
        super().__init__(name, emission, [name] * len(emission))

    def move(self, values, like):
        return self._turned(like.new_ones(()))

    def over(self, gaps, values, unit=1.0):
        if any(map(is_half, self.turns)):
            super().over(gaps, values, unit)
        same = gaps[..., None, None] * torch.eye(len(self.emission)).to(gaps)
        return self._turned(gaps * unit), {self.name: same}

    def _turned(self, gaps: Tensor) -> Tensor:
        size = len(self.emission)
        found, first = gaps.new_zeros(*gaps.shape, size, size), 0
        for turn in self.turns:
            if is_half(turn):
                found[..., first, first] = -1.0
                first += 1
            else:
                found[..., first : first + 2, first : first + 2] = _turn(turn * gaps)
                first += 2
        return found


class Cycle(Component):
    """A wave whose frequency is learned and that dies away."""

    learned = ("frequency", "damping")

    def __init__(self):
        super().__init__("cycle", [1.0, 0.0], ["cycle"] * 2)

    def move(self, values, like):
        return values["damping"] * _turn(values["frequency"])

    def over(self, gaps, values, unit=1.0):
        left = values["damping"] ** gaps[..., None, None]
        eye = torch.eye(2).to(gaps)
        return left * _turn(values["frequency"] * gaps), {"cycle": _lost(values["damping"], gaps) * eye}

    def first(self, values, variances):
        return variances["cycle"] / (1 - values["damping"] ** 2) * torch.eye(2).to(values["damping"])


class Autoregression(Component):
    """z_t = ar_1 z_{t-1} + ... + ar_p z_{t-p} + noise, stationary; of order 1 an Ornstein-Uhlenbeck process at whole times.

    With a moving average what is observed of it is z_t + ma_1 z_{t-1} + ... + ma_q z_{t-q}, an ARMA(p, q) process.

    Source of that form: J. D. Hamilton (1994), Time Series Analysis, section 13.1.
    """

    def __init__(self, order: int, average: int = 0):
        self.learned = ("ar",) * bool(order) + ("ma",) * bool(average)
        size, name = max(order, average + 1), "arma" if average else "ar"
        super().__init__(name, [1.0] + [0.0] * (size - 1), [name] + [""] * (size - 1))

    def _row(self, weights: Tensor, like: Tensor) -> Tensor:
        return torch.cat([weights, like.new_zeros(len(self.emission) - len(weights))])

    def move(self, values, like):
        size = len(self.emission)
        below = torch.eye(size).to(like)[:-1]
        return torch.cat([self._row(values.get("ar", like.new_zeros(0)), like)[None], below])

    def seen(self, values, like):
        emission = super().seen(values, like)
        return self._row(torch.cat([emission[:1], values["ma"]]), like) if "ma" in values else emission

    def over(self, gaps, values, unit=1.0):
        if len(self.emission) > 1:
            super().over(gaps, values, unit)
        return values["ar"] ** gaps[..., None, None], {"ar": _lost(values["ar"], gaps)}

    def first(self, values, variances):
        move = self.move(values, variances[self.name])
        size = len(move)
        noise = torch.zeros_like(move)
        noise[0, 0] = 1.0
        both = torch.eye(size * size).to(move) - torch.kron(move, move)
        return variances[self.name] * torch.linalg.solve(both, noise.reshape(-1)).reshape(size, size)


def stationary_weights(partial: Tensor) -> Tensor:
    """(p,) weights of the autoregression with these partial correlations (p,), between -1 and 1: always stationary.

    Source: O. Barndorff-Nielsen and G. Schou (1973), On the parametrization of autoregressive models by partial
    autocorrelations.
    """
    weights = partial[:0]
    for last in partial:
        weights = torch.cat([weights - last * weights.flip(0), last[None]])
    return weights


def partial_weights(weights: Tensor) -> Tensor:
    """The other way round; ValueError for weights that are not those of a stationary process."""
    found = []
    while len(weights):
        last, before = weights[-1], weights[:-1]
        if not abs(float(last)) < 1:
            raise ValueError("they must be those of a stationary process; make them smaller")
        found.append(last)
        weights = (before + last * before.flip(0)) / (1 - last**2)
    return torch.stack(found[::-1])


def _lost(left: Tensor, gaps: Tensor) -> Tensor:
    """(..., 1, 1) the variance that steps of variance 1 add over a time, of which they leave a share: that of whole steps."""
    rate = 2 * left.clamp_min(torch.finfo(left.dtype).tiny).log()
    return (torch.expm1(rate * gaps) / torch.expm1(rate))[..., None, None]


def _turn(angle: Tensor) -> Tensor:
    """(..., 2, 2) turns by an angle."""
    cos, sin = angle.cos(), angle.sin()
    return _square([[cos, sin], [-sin, cos]])


def _square(rows: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def is_half(turn: float) -> bool:
    """Whether a wave changes its sign at every step."""
    return abs(turn - math.pi) < 1e-9


def components_of(
    trend: str | None, level: str, seasons: Sequence[float], harmonics: Sequence[int] | None, cycle: bool, ar: int, ma: int
) -> list[Component]:
    """The blocks that options ask for, in their order. harmonics: of each season; None for the dummies of the only one."""
    blocks: list[Component] = [] if level == "none" else [Level(level) if trend is None else Trend(trend, level)]
    if harmonics is None:
        blocks += [Dummies(int(season)) for season in seasons]
    else:
        taken: list[float] = []
        for season, number in zip(seasons, harmonics, strict=True):
            turns = [2 * math.pi * k / season for k in range(1, number + 1)]  # those of a season within are there already
            turns = [turn for turn in turns if all(abs(turn - other) > 1e-9 for other in taken)]
            taken += turns
            blocks += [Waves("seasonal" if len(seasons) == 1 else f"seasonal_{season:g}", turns)]
    blocks += [Cycle()] if cycle else []
    return blocks + ([Autoregression(ar, ma)] if ar or ma else [])
