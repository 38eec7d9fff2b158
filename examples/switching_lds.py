"""A switching linear dynamical system, of which everything but draws is approximate: Kim's filter and smoother.

    from switching_lds import ApproximateSwitchingLDS  # this folder on the path

    model = ApproximateSwitchingLDS(2, 1, 1).fit(x)

It is no part of the library, whose answers are exact.

After each step the Gaussians that end in one regime become one, of their mean and covariance.

The exact posterior of a switching system is a mixture of R^t Gaussians. What is kept is one for each regime, so that the
likelihood is exact for two steps, for one regime and for regimes that are alike, and approximate elsewhere, with no bound.

Source: C.-J. Kim (1994), Dynamic linear models with Markov-switching, Journal of Econometrics 60; C.-J. Kim and C. R. Nelson
(1999), State-space models with regime switching, sections 5.3 and 5.4.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, Unpack

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.gaussian_types import LOG_2PI
from pplseq.distributions.partly_observed import PartlyObserved
from pplseq.infer.discrete.mixtures import StateMixture, gaussian_cdf
from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.held import Slot
from pplseq.infer.forecasts import Forecast
from pplseq.infer.gaussian.results import StateMoments
from pplseq.infer.programs.markov import markov
from pplseq.kernels.kalman import symmetric
from pplseq.models import MODELS
from pplseq.models.base import Sizes
from pplseq.models.batch import as_given
from pplseq.models.estimator import Estimator
from pplseq.models.hmm.tables import DTYPES
from pplseq.models.lds.arguments import check_observations
from pplseq.models.lds.fit import check_enough
from pplseq.models.lds.parameters import covariance_of, scale_of
from pplseq.models.lds.program import LDS
from pplseq.threads import filtering


class System(NamedTuple):
    """R regimes: moves (R, R) log-probabilities [from, to], first (R,); A (R, h, h), a (R, h), Q (R, h, h); C (R, n, h),
    c (R, n) and D (R, n, n); mean (h,) and covariance (h, h) of the first state."""

    moves: Tensor
    first: Tensor
    transition: Tensor
    transition_offset: Tensor
    state_noise: Tensor
    emission: Tensor
    emission_offset: Tensor
    emission_noise: Tensor
    mean: Tensor
    covariance: Tensor


class Collapsed(NamedTuple):
    """Of each step and regime: log_probs (T, B, R) of the regime, means (T, B, R, h) and covariances (T, B, R, h, h) of the
    state."""

    log_probs: Tensor
    means: Tensor
    covariances: Tensor


class KimChain:
    """What Kim's filter makes of observations x (B, T, n), NaN where missing; valid: (B, T) bool, a prefix of each row.

    Cost: R^2 (h^3 + n^3) a step and row, step by step in torch.
    """

    def __init__(self, system: System, x: Tensor, valid: Tensor):
        self.system, self.valid = system, valid.T
        longest, one = int(valid.sum(1).max()), len(system.first) == 1
        self.is_exact, self.smooths_exactly, self.x = one or longest <= 2, one or longest == 1, x
        mean, covariance = self._first()
        log_probs, total, kept = system.first.expand(len(x), -1), 0.0, []
        for t, (y, here) in enumerate(zip(x.unbind(1), self.valid, strict=True)):
            if t:  # by pairs (B, from, to)
                pairs = self._moved(mean, covariance)
                weight = log_probs.unsqueeze(-1) + system.moves
            else:
                pairs, weight = (mean.unsqueeze(1), covariance.unsqueeze(1)), log_probs.unsqueeze(1)
            density, *pairs = self._observed(y, *pairs)
            weight = weight + density
            step = weight.flatten(1).logsumexp(1)
            new = _collapsed((weight - step[:, None, None]).mT, pairs[0].transpose(1, 2), pairs[1].transpose(1, 2))
            old = log_probs, mean, covariance
            log_probs, mean, covariance = (
                torch.where(here.reshape(-1, *(1,) * (one.dim() - 1)), one, two) for one, two in zip(new, old, strict=True)
            )
            total = total + torch.where(here, step, 0.0)
            kept.append((log_probs, mean, covariance))
        self._total, self.filtered = total, Collapsed(*(torch.stack(part) for part in zip(*kept, strict=True)))

    def _first(self) -> tuple[Tensor, Tensor]:
        """(B, R, ...) of the first state, the same under every regime."""
        s, regimes, rows = self.system, len(self.system.first), len(self.x)
        return s.mean.expand(rows, regimes, -1), s.covariance.expand(rows, regimes, -1, -1)

    def _moved(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """(B, from, to, ...) of the next state from (B, from, ...)."""
        s = self.system
        moved = (s.transition @ mean[:, :, None, :, None]).squeeze(-1) + s.transition_offset
        return moved, symmetric(s.transition @ covariance.unsqueeze(2) @ s.transition.mT) + s.state_noise

    def _observed(self, y: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log p(y) (B, from, to) and what it makes of states."""
        s, seen = self.system, (~y.isnan()).to(mean)
        mask = seen[:, None, None, :]
        error = (y.nan_to_num(0.0)[:, None, None] - (s.emission @ mean.unsqueeze(-1)).squeeze(-1) - s.emission_offset) * mask
        loadings = s.emission * mask.unsqueeze(-1)
        noise = s.emission_noise * mask.unsqueeze(-1) * mask.unsqueeze(-2)
        total = symmetric(loadings @ covariance @ loadings.mT) + noise + torch.diag_embed(1 - mask)
        factor = torch.linalg.cholesky(total)
        white = torch.linalg.solve_triangular(factor, error.unsqueeze(-1), upper=False).squeeze(-1)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        density = -white.square().sum(-1) / 2 - log_det - seen.sum(-1)[:, None, None] * LOG_2PI / 2
        gain = torch.cholesky_solve(loadings @ covariance, factor).mT
        left = torch.eye(mean.shape[-1]).to(mean) - gain @ loadings
        covariance = symmetric(left @ covariance @ left.mT + gain @ noise @ gain.mT)
        return density, mean + (gain @ error.unsqueeze(-1)).squeeze(-1), covariance

    def log_prob(self) -> Tensor:
        """(B,) log p(x), approximate; differentiable."""
        return torch.as_tensor(self._total)

    def forecast(self, num_steps: int) -> Collapsed:
        """Of each of the steps to come, in means and covariances exactly what follows from where the filter ended."""
        s, found = self.system, []
        log_probs, mean, covariance = (part[-1] for part in self.filtered)
        for _ in range(num_steps):
            pairs = self._moved(mean, covariance)
            weight = (log_probs.unsqueeze(-1) + s.moves).mT
            log_probs, mean, covariance = _collapsed(weight, pairs[0].transpose(1, 2), pairs[1].transpose(1, 2))
            found.append((log_probs, mean, covariance))
        return Collapsed(*(torch.stack(part) for part in zip(*found, strict=True)))

    @torch.no_grad()
    def best(self, num_paths: int) -> tuple[Tensor, Tensor]:
        """(B, T) regimes of the most probable path that was found, -1 behind the ends, and (B,) its exact log p(path, x).

        Of all paths so far the ``num_paths`` most probable are kept, each with its own Gaussian: nothing is collapsed. It is
        the most probable of all where R^T is no larger; in longer rows a path that would have won later may have been dropped.

        Source: J. K. Tugnait (1982), Detection and estimation for abruptly changing systems, Automatica 18(5). Cost:
        num_paths R (h^3 + n^3) a step and row.
        """
        s, regimes, parents, chosen = self.system, len(self.system.first), [], []
        score, (mean, covariance) = self.x.new_zeros(len(self.x), 1), (part[:, :1] for part in self._first())
        stay = score.new_full((regimes,), -torch.inf).index_fill(0, torch.tensor(0, device=score.device), 0.0)
        for t, (y, here) in enumerate(zip(self.x.unbind(1), self.valid, strict=True)):
            still = mean.unsqueeze(2).expand(-1, -1, regimes, -1), covariance.unsqueeze(2).expand(-1, -1, regimes, -1, -1)
            density, *pairs = self._observed(y, *(self._moved(mean, covariance) if t else still))
            moves = s.moves[chosen[-1]] if t else s.first
            reached = torch.where(here[:, None, None], score.unsqueeze(-1) + moves + density, score.unsqueeze(-1) + stay)
            score, place = reached.flatten(1).topk(min(num_paths, reached[0].numel()), -1)
            mean, covariance = (
                torch.where(here.reshape(-1, *(1,) * (new.dim() - 1)), new, old).flatten(1, 2)
                for new, old in zip(pairs, still, strict=True)
            )
            mean = mean.take_along_dim(place.unsqueeze(-1), 1)
            covariance = covariance.take_along_dim(place[..., None, None], 1)
            parents.append(place // regimes)
            chosen.append(place % regimes)
        which, path = torch.zeros_like(parents[-1][:, :1]), []
        for parent, regime in zip(parents[::-1], chosen[::-1], strict=True):
            path.append(regime.gather(1, which))
            which = parent.gather(1, which)
        return torch.cat(path[::-1], 1).where(self.valid.T, -1), score[:, 0]

    def smoothed(self) -> Collapsed:
        """The same of each step given all of x, by a second approximation: x says of a regime what its successor knows."""
        s, now = self.system, self.filtered
        kept = [tuple(part[-1] for part in now)]
        for t in range(len(now.means) - 2, -1, -1):
            here, mean, covariance = (part[t] for part in now)
            joint = here.unsqueeze(-1) + s.moves
            joint = joint - joint.logsumexp(1, keepdim=True) + kept[-1][0].unsqueeze(1)  # (B, regime, the next one)
            predicted, spread = self._moved(mean, covariance)
            gain = covariance.unsqueeze(2) @ s.transition.mT @ torch.linalg.pinv(spread, hermitian=True)
            later, after = kept[-1][1].unsqueeze(1), kept[-1][2].unsqueeze(1)
            means = mean.unsqueeze(2) + (gain @ (later - predicted).unsqueeze(-1)).squeeze(-1)
            spreads = symmetric(covariance.unsqueeze(2) + gain @ (after - spread) @ gain.mT)
            new, end = _collapsed(joint, means, spreads), self.valid[t + 1]  # before a row's end it goes on
            kept.append(tuple(
                torch.where(end.reshape(-1, *(1,) * (one.dim() - 1)), one, two)
                for one, two in zip(new, (here, mean, covariance), strict=True)
            ))  # fmt: skip
        return Collapsed(*(torch.stack(part[::-1]) for part in zip(*kept, strict=True)))


def _collapsed(log_weights: Tensor, means: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussians (B, R, m, ...) of log_weights (B, R, m) as one for each regime: the total weight, mean and covariance."""
    total = log_weights.logsumexp(-1)
    share = (log_weights - total.unsqueeze(-1)).exp()
    mean = (share.unsqueeze(-1) * means).sum(2)
    apart = means - mean.unsqueeze(2)
    spread = covariances + apart.unsqueeze(-1) * apart.unsqueeze(-2)
    return total, mean, symmetric((share[..., None, None] * spread).sum(2))


# ------------------------------------------------------------------------------------------------ the model
PARTS = ("transition", "transition_offset", "state_noise", "emission", "emission_offset", "emission_noise")
NOISES = {"state_noise": "state_scale", "emission_noise": "emission_scale"}
PERSISTENCE = 3.0  # first logits of staying
APPROXIMATE = "ApproximateSwitchingLDS: by Kim's filter, an approximation without a bound"
SMALLEST = 1e-300  # probability that counts as none


class RegimeMoments(NamedTuple):
    """Approximate beliefs of each step: regimes (B, T, R) probabilities, means (B, T, h) and covariances (B, T, h, h) of the
    state whatever the regime; 0 at padded steps; lists of them for ragged data."""

    regimes: Tensor | list[Tensor]
    means: Tensor | list[Tensor]
    covariances: Tensor | list[Tensor]


class ApproximateSwitchingLDS(Estimator):
    """A linear dynamical system whose matrices are those of a regime, which moves as a Markov chain. **Approximate.**

        z_t ~ N(transition[s_t] z_{t-1} + transition_offset[s_t], state_noise[s_t])
        x_t ~ N(emission[s_t] z_t + emission_offset[s_t], emission_noise[s_t])

    Exact answers would take R^T Gaussians. Kim's filter keeps one for each regime: likelihoods, fits and beliefs are
    approximate, without a bound, and every call says so by a warning; they are exact for one regime, and for rows of at most
    two steps (smoothed beliefs: of one). Forecasts go on from there. Draws are exact. Where states are observed,
    :class:`~pplseq.models.regressions.program.ARHMM` is exact.

    Args:
        num_regimes: R. num_states: h. num_features: n, of an observation.
        switching: which of "transition", "transition_offset", "state_noise", "emission", "emission_offset" and
            "emission_noise" differ between regimes; the others are shared.
        dtype: "float64" or "float32".

    Raises:
        ValueError: for sizes or options that do not fit.

    Source: C.-J. Kim and C. R. Nelson (1999), State-space models with regime switching, chapter 5.
    """

    name = "approximate_switching_lds"
    methods = ("lbfgs", "sgd")
    num_words = None
    num_features: int

    def __init__(
        self, num_regimes: int, num_states: int, num_features: int, *,
        switching: Sequence[str] | str = ("transition", "transition_offset", "state_noise"), dtype: str = "float64",
    ):  # fmt: skip
        super().__init__()
        self.num_regimes, self.num_states = checks.count("num_regimes", num_regimes), checks.count("num_states", num_states)
        self.num_features = checks.count("num_features", num_features)  # pyright: ignore[reportIncompatibleVariableOverride]
        parts = [switching] if isinstance(switching, str) else list(switching)
        self.switching = tuple(checks.choice("switching", part, PARTS) for part in parts)
        real, (h, n) = DTYPES[checks.choice("dtype", dtype, DTYPES)], (num_states, num_features)
        shapes = {
            "transition": (h, h), "transition_offset": (h,), "state_noise": (h, h), "emission": (n, h), "emission_offset": (n,),
            "emission_noise": (n, n),
        }  # fmt: skip
        for part, shape in shapes.items():
            rows = self.num_regimes if part in self.switching else 1
            value = torch.zeros(rows, *shape, dtype=real) if "noise" in part else 0.3 * torch.randn(rows, *shape, dtype=real)
            setattr(self, NOISES.get(part, part), nn.Parameter(value))
        self.transition_logits = nn.Parameter(PERSISTENCE * torch.eye(self.num_regimes, dtype=real))
        self.regime_logits = nn.Parameter(torch.zeros(self.num_regimes, dtype=real))
        self.initial_mean = nn.Parameter(torch.zeros(h, dtype=real))
        self.initial_scale = nn.Parameter(torch.eye(h, dtype=real))
        self._config: dict[str, Any] = dict(
            num_regimes=self.num_regimes, num_states=self.num_states, num_features=self.num_features,
            switching=switching if isinstance(switching, list) else list(self.switching),
        )  # fmt: skip
        self.drawn()

    @property
    def config(self) -> dict[str, Any]:
        return self._config | {"dtype": next(name for name, value in DTYPES.items() if value == self.reference.dtype)}

    # ---------------------------------------------------------------- parameters
    def estimates(self) -> dict[str, Tensor]:
        """Parameters by name, differentiable: regime_transition (R, R), regime_initial (R,), initial_mean (h,),
        initial_covariance (h, h), and those of the class, (R, ...) where they switch, (1, ...) where not."""
        found = {
            "regime_transition": torch.softmax(self.transition_logits, -1),
            "regime_initial": torch.softmax(self.regime_logits, -1), "initial_mean": self.initial_mean,
            "initial_covariance": covariance_of(self.initial_scale),
        }  # fmt: skip
        for part in PARTS:
            value = getattr(self, NOISES.get(part, part))
            if part in NOISES:
                factor = value.tril(-1) + torch.diag_embed(value.diagonal(dim1=-2, dim2=-1).exp())
                value = factor @ factor.mT
            found[part] = value
        return found

    @torch.no_grad()
    def set_parameters(self, **given) -> Self:
        """Sets parameters by the names, and in the shapes, that :meth:`estimates` has; those that are not given stay.

        Raises:
            ValueError: for other names and shapes, rows that are no probabilities, matrices that are no covariances.
        """
        known = self.estimates()
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"{name}: this model has none.{checks.nearest(name, known)}")
            value = checks.shape(name, torch.as_tensor(value, dtype=torch.float64).to(self.reference), known[name].shape)
            given[name] = checks.finite(name, value)
            if name.startswith("regime_"):
                if not bool(((value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-4)).all()):
                    raise ValueError(f"{name}: every row must hold probabilities that sum to 1")
                given[name] = value.double().clamp_min(SMALLEST).log()
            elif name == "initial_covariance":
                given[name] = scale_of(name, value)
            elif name in NOISES:
                factor = torch.stack([scale_of(f"{name}[{r}]", matrix) for r, matrix in enumerate(value)])
                given[name] = factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1).log())
        places = NOISES | {"regime_transition": "transition_logits", "regime_initial": "regime_logits"}
        places["initial_covariance"] = "initial_scale"
        for name, value in given.items():
            getattr(self, places.get(name, name)).copy_(value)
        return self

    @property
    def num_free_parameters(self) -> int:
        total = self.num_regimes**2 - 1
        for name, value in self.named_parameters():
            if name.endswith("scale"):
                size = value.shape[-1]
                total += value.numel() // size**2 * size * (size + 1) // 2
            elif not name.endswith("logits"):
                total += value.numel()
        return total - self._num_held

    @property
    def slots(self) -> dict[str, Slot]:
        own = dict(self.named_parameters())
        return {name: Slot(value, name.endswith("logits"), None, name.endswith("scale")) for name, value in own.items()}

    def system(self) -> System:
        """The matrices of all regimes; differentiable."""
        found = self.estimates()
        parts = {part: found[part].expand(self.num_regimes, *found[part].shape[1:]) for part in PARTS}
        moves, first = torch.log_softmax(self.transition_logits, -1), torch.log_softmax(self.regime_logits, -1)
        return System(moves, first, **parts, mean=found["initial_mean"], covariance=found["initial_covariance"])

    # ---------------------------------------------------------------- the program
    def model(self, x: Tensor | None = None, lengths: Tensor | None = None, start=None, **sizes: Unpack[Sizes]):
        """The generative program, for draws; its sums over regimes and states are Kim's, not a messenger's.

        Args:
            x: (B, T, n) observations, or None to generate. lengths: (B,) valid steps. start: none can be given.
            **sizes: how much to generate: :class:`~pplseq.models.base.Sizes`.
        """
        given, s = self.given(x, lengths, start, **sizes), self.system()
        regime = z = None
        with given.plate:
            for t in markov(given.steps, vectorize=False):
                with given.valid(t):
                    regime = pyro.sample(f"s_{t}", dist.Categorical(logits=s.first if regime is None else s.moves[regime]))
                    z = pyro.sample(f"z_{t}", _moved(s, regime, z))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", _emitted(s, regime, z, given.coordinates(t)), obs=given.value(t))
        return x

    def _direct_draw(self, *, start=None, **sizes) -> tuple[Tensor, Tensor] | None:
        if type(self).model is not ApproximateSwitchingLDS.model or "model" in vars(self):
            return None
        given, s, regime, z, found = self.given(None, None, start, **sizes), self.system(), None, None, []
        for _ in given.steps:
            logits = s.first.expand(given.shape[0], -1) if regime is None else s.moves[regime]
            regime = dist.Categorical(logits=logits).sample()
            z = _moved(s, regime, z).expand(given.shape[:1]).sample()
            found.append((z, _emitted(s, regime, z, None).sample()))
        states, x = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
        return states, x

    def forward(self, *args, **kwargs):
        raise TypeError(
            "ApproximateSwitchingLDS: its program cannot be summed exactly; score, log_joint, filter and smooth are Kim's "
            "approximation, sample draws from the program"
        )

    def _check_start(self, start, num_rows: int) -> None:
        if start is not None:
            raise ValueError("start: ApproximateSwitchingLDS takes whole rows, got the end of a segment")

    def _check_observations(self, x: Tensor) -> None:
        check_observations(x, self.num_features)

    def _check_data(self, batch: Batch) -> None:
        check_enough(batch, self.num_states)

    def _direct_chain(self, x, lengths=None, start=None) -> KimChain:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Kim's filter over x; see :class:`~pplseq.models.switching_lds.kim.KimChain`."""
        self._check_start(start, len(x))
        self._check_observations(x)
        return KimChain(self.system(), x.to(self.reference), Batch(x, lengths).valid)

    def posterior(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, lengths=None, start=None, **known
    ) -> KimChain:
        """Kim's filter over x, without gradients.

        Warns:
            UserWarning: where it is approximate.
        """
        batch = self._as_batch(x, lengths, **known)
        with torch.no_grad():
            chain = self._direct_chain(batch.x, batch.lengths, start)
        if not chain.is_exact:
            warnings.warn(APPROXIMATE, UserWarning, stacklevel=3)
        return chain

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.nan_to_num(0.0), ~x.isnan()

    def fit(self, x, lengths=None, **options) -> Self:
        """See :meth:`~pplseq.models.estimator.Estimator.fit`: what is maximised is Kim's approximation of the likelihood.

        Warns:
            UserWarning: that it is approximate.
        """
        if self.num_regimes > 1:
            warnings.warn(APPROXIMATE, UserWarning, stacklevel=2)
        return super().fit(x, lengths, **options)

    def initialize(self, batch: Batch, how: str = "") -> None:
        """A system of one regime, after a few iterations of EM, that regimes depart from a little."""
        single = LDS(self.num_states, self.num_features).to(self.reference)
        with filtering("ignore", RuntimeWarning):
            single.fit(batch.x, batch.lengths, max_iterations=10)
        values, regimes = single.values, self.num_regimes
        widths = torch.linspace(-0.7, 0.7, regimes).to(self.reference).exp() if regimes > 1 else self.reference.new_ones(1)
        parts = {}
        for part in PARTS:
            value = getattr(values, part)
            rows = value.expand(regimes if part in self.switching else 1, *value.shape)
            if part in self.switching:
                apart = 0.1 * torch.randn_like(rows) * value.square().mean().sqrt()
                rows = rows * widths.reshape(-1, 1, 1) if part in NOISES else rows + apart
            parts[part] = rows
        self.set_parameters(**parts, initial_mean=values.initial_mean, initial_covariance=values.initial_covariance)

    # ---------------------------------------------------------------- queries
    @torch.no_grad()
    def filter(self, x, lengths=None) -> RegimeMoments:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Approximate p(s_t | x_1..x_t) and moments of p(z_t | x_1..x_t) at each step."""
        batch, chain = self._posterior(x, lengths)
        return self._moments(chain.filtered, batch, x)

    @torch.no_grad()
    def smooth(self, x, lengths=None) -> RegimeMoments:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Approximate p(s_t | x_1..x_T) and moments of p(z_t | x_1..x_T) at each step, by Kim's smoother."""
        batch, chain = self._posterior(x, lengths)
        if chain.is_exact and not chain.smooths_exactly:
            warnings.warn(APPROXIMATE, UserWarning, stacklevel=2)
        return self._moments(chain.smoothed(), batch, x)

    def _moments(self, found: Collapsed, batch: Batch, x) -> RegimeMoments:
        probs = found.log_probs.transpose(0, 1).exp()
        parts = (probs, *_mixed(probs, found.means.transpose(0, 1), found.covariances.transpose(0, 1)))
        valid, like = batch.valid, self._results_like(x)
        parts = [part.where(valid.reshape(*valid.shape, *(1,) * (part.dim() - 2)), 0.0) for part in parts]
        return RegimeMoments(*(as_given(part, like) for part in parts))

    def decode(self, x, lengths=None, *, num_paths: int = 64):  # pyright: ignore[reportIncompatibleMethodOverride]
        """The most probable path of regimes of those that were kept, (B, T), -1 at padded steps, or a list of (T_i,).

        Args:
            x, lengths: the data.
            num_paths: that are kept at a step; where R^T is no larger the path is the most probable of all.
        """
        checks.count("num_paths", num_paths)
        return as_given(self._posterior(x, lengths)[1].best(num_paths)[0], self._results_like(x))

    @torch.no_grad()
    def reconstruct(self, x, lengths=None) -> StateMoments:
        """Approximate means (B, T, n) and covariances (B, T, n, n) of emission z_t + offset given all of x: its signal without
        noise, also where it is missing."""
        batch, chain = self._posterior(x, lengths)
        if chain.is_exact and not chain.smooths_exactly:
            warnings.warn(APPROXIMATE, UserWarning, stacklevel=2)
        probs, means, covariances = self._made(chain.smoothed(), noisy=False)
        like = self._results_like(x)
        return StateMoments(*(as_given(part, like) for part in _mixed(probs, means, covariances)))

    @torch.no_grad()
    def forecast(self, x, num_steps: int | None = None, lengths=None) -> Forecast:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Approximate p(x_{T+1}), ..., p(x_{T+K}) given x; exact in means and covariances for rows of at most two steps.

        Args:
            x, lengths: the past. num_steps: K.

        Warns:
            UserWarning: where it is approximate.
        """
        num_steps = checks.steps_ahead(x, num_steps)
        found = self._posterior(x, lengths)[1].forecast(num_steps)
        probs, means, covariances = self._made(found, noisy=True)
        mean, spread = _mixed(probs, means, covariances)
        each = gaussian_cdf(means, covariances.diagonal(dim1=-2, dim2=-1).sqrt())
        quantiles = StateMixture(probs, each, mean, spread.diagonal(dim1=-2, dim2=-1))
        return self._labelled(Forecast(probs.log(), None, mean, spread, quantiles), x, lengths, num_steps)

    def predict_next(self, x, lengths=None) -> Forecast:  # pyright: ignore[reportIncompatibleMethodOverride]
        """:meth:`forecast` of one step, without its axis."""
        return self.forecast(x, 1, lengths).step(0)

    def _made(self, found: Collapsed, *, noisy: bool) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, R) probabilities of regimes, (B, T, R, n) means and (B, T, R, n, n) covariances of what states make there."""
        s, (probs, means, covariances) = self.system(), (part.transpose(0, 1) for part in found)
        covariances = s.emission @ covariances @ s.emission.mT
        covariances = covariances + s.emission_noise if noisy else covariances
        return probs.exp(), (s.emission @ means.unsqueeze(-1)).squeeze(-1) + s.emission_offset, covariances

    def sample_states(self, x, num_samples: int = 1, lengths=None, *, seed: int | None = None, **known):
        raise TypeError("sample_states: ApproximateSwitchingLDS has no posterior to draw from; ask smooth for its moments")


def _mixed(probs: Tensor, means: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Means (..., h) and covariances (..., h, h) of mixtures (..., R) of Gaussians."""
    mean = (probs.unsqueeze(-1) * means).sum(-2)
    apart = means - mean.unsqueeze(-2)
    spread = covariances + apart.unsqueeze(-1) * apart.unsqueeze(-2)
    return mean, (probs[..., None, None] * spread).sum(-3)


def _moved(system: System, regime: Tensor, z: Tensor | None) -> dist.MultivariateNormal:
    """p(z_t | regime, state before), or that of the first state."""
    if z is None:
        return dist.MultivariateNormal(system.mean, system.covariance)
    mean = (system.transition[regime] @ z.unsqueeze(-1)).squeeze(-1) + system.transition_offset[regime]
    return dist.MultivariateNormal(mean, system.state_noise[regime])


def _emitted(system: System, regime: Tensor, z: Tensor, observed: Tensor | None) -> dist.MultivariateNormal | PartlyObserved:
    """p(x_t | regime, state), of the coordinates that are observed."""
    loadings, offset, noise = (part[regime] for part in (system.emission, system.emission_offset, system.emission_noise))
    if observed is not None:
        return PartlyObserved(z, loadings, noise, offset, observed=observed)
    return dist.MultivariateNormal((loadings @ z.unsqueeze(-1)).squeeze(-1) + offset, noise)


MODELS.register("approximate_switching_lds", ApproximateSwitchingLDS)  # so that its folders are opened
