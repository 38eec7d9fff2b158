"""Reading a program's Gaussian sites: which hidden state a site's distribution depends on, and how."""

from __future__ import annotations

from typing import NamedTuple

from pyro.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Independent, Normal

from pplseq.distributions.affine import GaussianVar, full_matrix
from pplseq.distributions.linear_gaussian import LinearEmission, LinearGaussian
from pplseq.distributions.noise import DiagonalNoise, FullNoise, Noise


class AffineSite(NamedTuple):
    """A Gaussian whose mean is affine in a state: matrix (*b, n, h), offset (*B, n) or None."""

    matrix: Tensor
    offset: Tensor | None
    noise: Noise
    scalar: bool = False  # the site's value has no dimension of its own


def read_site(name: str, fn) -> tuple[GaussianVar, AffineSite | None] | None:
    """The state that a site's distribution depends on, and how; None where it depends on none."""
    if isinstance(fn, LinearGaussian):
        if fn.state is None:
            return None
        _check_event(name, fn.state)
        return fn.state, AffineSite(*fn.affine(), fn.noise)
    if isinstance(getattr(fn, "state", None), GaussianVar) and hasattr(fn, "evidence"):
        _check_event(name, fn.state)
        if fn.state.matrix is not None:
            raise TypeError(f"site {name!r}: {type(fn).__name__} takes a hidden state itself, not a function of it")
        return fn.state, None
    base, dims = fn, 0
    while isinstance(base, Independent):
        base, dims = base.base_dist, dims + base.reinterpreted_batch_ndims
    loc = getattr(base, "loc", None)
    if not isinstance(loc, GaussianVar):
        if _mentions_state(base):
            raise TypeError(
                f"site {name!r}: a hidden Gaussian state may stand in the mean of a Gaussian only, not elsewhere in "
                f"{type(base).__name__}"
            )
        return None
    if isinstance(base, MultivariateNormal) and dims == 0 and not loc.scalar:
        noise = covariance_of(base)
    elif isinstance(base, Normal) and dims == (0 if loc.scalar else 1) and not isinstance(base.scale, GaussianVar):
        scale = shared(base.scale.unsqueeze(-1) if loc.scalar else base.scale, 1)
        noise = DiagonalNoise(scale.square(), source=("scale", scale))
    else:
        raise TypeError(
            f"site {name!r}: {type(fn).__name__} of a hidden Gaussian state cannot be integrated out; use MultivariateNormal, "
            "Normal(...).to_event(1) or LinearGaussian"
        )
    if loc.column:
        raise TypeError(f"site {name!r}: its mean is a column; take the last dimension away with squeeze(-1)")
    offset = loc.offset if isinstance(loc.shift, bool) else loc.shift
    if offset is not None and loc.scalar:
        offset = offset.unsqueeze(-1)
    return loc, AffineSite(full_matrix(loc), offset, noise, loc.scalar)


class SiteEmission:
    """What a site's observations look like where its states are Gaussian: for forecasts and innovations.

    Args:
        emission: gives means and covariances, but for offsets.
        offset: None, (n,) or (*B, n); (T, *B, n) where it changes from step to step.
        changes: it is not the same at all steps, so that nothing is known about those behind the end.
    """

    def __init__(self, emission, offset: Tensor | None = None, changes: bool = False):
        self.emission, self.offset, self.changes = emission, offset, changes

    @property
    def by_row(self) -> bool:
        """Whether rows have matrices, or noise, of their own."""
        emission = self.emission
        return isinstance(emission, LinearEmission) and bool(emission.matrix.dim() > 2 or emission.noise.batch_shape)

    def predict(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean (..., n) and covariance (..., n, n) of the observation of a state N(mean, covariance)."""
        mean, covariance = self.emission.predict(mean, covariance)
        alone = mean.dim() == 1  # a state without rows: its covariance is what is asked for
        return mean if self.offset is None or alone and self.offset.dim() > 1 else mean + self.offset, covariance


def _mentions_state(fn) -> bool:
    """Whether a distribution, or one that it wraps, has a parameter that is a symbol."""
    if any(isinstance(value, GaussianVar) for value in vars(fn).values()):
        return True
    wrapped = getattr(fn, "base_dist", None)
    return wrapped is not None and _mentions_state(wrapped)


def _check_event(name: str, var: GaussianVar) -> None:
    if var.column or var.scalar:
        raise TypeError(f"site {name!r}: its state must keep its last dimension, of h numbers; got {var!r}")


def covariance_of(fn: MultivariateNormal) -> FullNoise:
    """Its covariance as the program gave it, or what it gave in its place, so that steps can be seen to share it."""
    if "covariance_matrix" in vars(fn):
        return FullNoise(shared(fn.covariance_matrix, 2))
    root = shared(fn._unbroadcasted_scale_tril, 2)
    source = next(
        ((name, shared(vars(fn)[name], 2)) for name in ("scale_tril", "precision_matrix") if name in vars(fn)), None
    )
    return FullNoise(root @ root.mT, source=source)


def shared(tensor: Tensor, dims: int) -> Tensor:
    """A tensor without the batch dimensions along which it is the same because it was expanded."""
    while tensor.dim() > dims and (tensor.stride(0) == 0 or tensor.shape[0] == 1):
        tensor = tensor[0]
    return tensor
