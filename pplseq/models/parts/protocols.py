"""What the parts of a model offer, so that any of them fits in any model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from pplseq.distributions.state import Emission
from pplseq.infer.fit.em import Statistics
from pplseq.infer.fit.held import Slot
from pplseq.models.parts.priors import Priors


class Moves(Protocol):
    """How R regimes begin and follow each other, as it is learned: parameters, and the chain of N states that they make."""

    num_regimes: int
    num_states: int
    is_stationary: bool  # whether rows begin in the long run, and no start is learned
    regime_of: Tensor  # (N,) the regime of each state

    # ---------------------------------------------------------------- the chain
    @property
    def initial_logits(self) -> Tensor:
        """(N,) log p of the first state; differentiable."""
        ...

    @property
    def transition_logits(self) -> Tensor:
        """(N, N) logits of the next state, [from, to]; differentiable."""
        ...

    # ---------------------------------------------------------------- parameters
    def parameters(self) -> Iterator[nn.Parameter]:
        """The unconstrained tensors that are learned."""
        ...

    def values(self) -> dict[str, Tensor]:
        """Parameters as users know them, "transition" (R, R) among them; differentiable."""
        ...

    def set_values(self, *args: Any, **values: Any) -> None:
        """Sets parameters by the names of :meth:`values`; raises ValueError for other shapes, and what is no probability."""
        ...

    @property
    def durations(self) -> Tensor:
        """(R, M) p(D = 1..M), or (R,) means, of how long a regime lasts."""
        ...

    @property
    def slots(self) -> dict[str, Slot]:
        """What can be held in a fit, by the names of :meth:`values`."""
        ...

    def state_axes(self) -> dict[str, Sequence[int]]:
        """Axes of each parameter along which regimes lie."""
        ...

    def units(self) -> dict[str, Tensor]:
        """How much a logit of a move may vary, by name: the rarer the move, the more, as counts of it tell less."""
        ...

    # ---------------------------------------------------------------- EM
    def initialize(self, matrix: Tensor) -> None:
        """Moves, as near as they come, of a Markov chain of regimes with logits (R, R), and any first regime."""
        ...

    def maximize(self, start: Tensor, counts: Tensor) -> None:
        """The likeliest parameters of expected first states (N,) and moves (N, N) [from, to]; those that nothing is known of
        stay."""
        ...


class Emissions(Protocol):
    """What the Z states of a model emit, as it is learned: a table of parameters, which is a torch module.

    Observations x are (B, T) words, or (B, T, D) vectors; N of them, out of their rows, are (N,) or (N, D).
    """

    num_states: int
    has_em: bool  # whether `statistics` and `maximize` are there

    # ---------------------------------------------------------------- data
    def check(self, x: Tensor) -> None:
        """Raises TypeError or ValueError unless x holds what may be emitted, or marks of what is missing."""
        ...

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x without gaps (NaN may stay at coordinates that are missing beside others), and which steps (B, T) were seen."""
        ...

    # ---------------------------------------------------------------- the program
    def spec(self, known: Tensor | None = None) -> Emission:
        """The emission at the parameters as they are; differentiable. known: (*B, D) trials and exposures of steps."""
        ...

    def drawn_spec(self, priors: Priors) -> Emission:
        """The emission with its parameters drawn from their priors, at sites of the program that runs."""
        ...

    @property
    def levels(self) -> dict[int, int]:
        """Columns of levels, and how many each has."""
        ...

    @property
    def needs_trials(self) -> bool:
        """Whether some columns have no density before "trials" are told; others have a total that each row tells."""
        ...

    def sized(self, name: str) -> list[int]:
        """Columns that take "trials" or "exposure" of each step."""
        ...

    def with_own_totals(self, sizes: Tensor) -> Tensor:
        """Sizes (*B, D) in which nobody told the totals of columns whose rows tell them."""
        ...

    def conditional(self, emission: Emission) -> Emission:
        """An emission of these given what is known of a step: (*B, D, D) noises, or (*B, D) trials and exposures."""
        ...

    # ---------------------------------------------------------------- parameters
    def values(self) -> dict[str, Tensor]:
        """Parameters as users know them, by name, (Z, ...) each; differentiable."""
        ...

    @property
    def settable(self) -> list[str]:
        """Names that :meth:`set_values` takes."""
        ...

    def set_values(self, *args: Any, **values: Any) -> None:
        """Sets parameters by the names of :meth:`values`; raises ValueError for others, other shapes, and other ranges."""
        ...

    def sites(self) -> dict[str, Tensor]:
        """The values as those of the program's sites, inside their supports: where SVI and NUTS start."""
        ...

    def from_sites(self, *args: Any, **sites: Any) -> dict[str, Tensor]:
        """(A batch of) :meth:`values` from those of the sites."""
        ...

    def log_prior(self, priors: Priors) -> Tensor:
        """() log density of the parameters, nats."""
        ...

    @property
    def slots(self) -> dict[str, Slot]:
        """What can be held in a fit, by the names of :meth:`values`."""
        ...

    def _check_held(self, method: str) -> None:
        """Raises ValueError where a method cannot hold what is held, or would have to learn what it cannot."""
        ...

    def units(self) -> dict[str, Tensor]:
        """By name of a raw parameter how much it varies, in the units of the data; none of those without units."""
        ...

    def ends(self, rows: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """By raw name the smallest and largest numbers that a fit by gradients to vectors (N, D) may come to."""
        ...

    # ---------------------------------------------------------------- answers
    def moments(self) -> tuple[Tensor, Tensor]:
        """(Z, D) means and (Z, D, D) covariances of vectors; ValueError where there are none."""
        ...

    # ---------------------------------------------------------------- EM
    def set_origin(self, x: Tensor, seen: Tensor) -> None:
        """Takes a point near vectors x (B, T, D) at steps (B, T), about which moments lose no digits."""
        ...

    def statistics(self, obs: Tensor, weight: Tensor, known: Tensor | None = None) -> Statistics:
        """Expected sufficient statistics of N observations in states with weight (N, Z); known: (N, ...) of their steps."""
        ...

    def implied(self, visits: Tensor) -> Statistics:
        """Statistics that the parameters expect of visits (Z,) to the states: what stepwise EM begins with."""
        ...

    def maximize(self, statistics: Statistics, priors: Priors | None) -> list[str]:
        """The M-step; returns remarks about states that were empty or collapsed."""
        ...

    def initialize(self, x: Tensor, seen: Tensor, *args: Any, **how: Any) -> None:
        """Parameters around data x (B, T[, D]) where seen (B, T); ``which``: the states, None for all."""
        ...
