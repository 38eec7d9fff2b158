"""State and output networks of an input-output HMM: lookup tables, generalised linear models, hidden layers, any module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pplseq.distributions.dense import GaussianEmission
from pplseq.kernels.log_semiring import log_softmax
from pplseq.models.parts.priors import PriorOptions

Weights = Mapping[str, Tensor]


def masked_log_softmax(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """log softmax over the last axis among what is allowed; -inf elsewhere, with gradients zero.

    Args:
        logits: (..., N). allowed: (N,) or (M, N) bool, or None for all; every row allows something.
    """
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    return log_softmax(logits)


class Network(nn.Module):
    """A function of one step's inputs whose values are logits (or means) for every state at once.

    Attributes:
        kind: "constant", "table", "linear", "layered", "embedded" or "module".
        shape: of a value: (Z, Z) transitions [from, to], (Z, V) or (Z, D) outputs, (Z,) starts.
        input_dims: trailing dimensions of its inputs that belong to one step: 1 for vectors (*B, U), 0 for symbols (*B,).
        linear_weight: the weights (..., U + 1, K) by name that its values are linear in, the constants last; None: others.
    """

    kind: str
    input_dims: int = 1
    linear_weight: str | None = None

    def __init__(self, shape: Sequence[int]):
        super().__init__()
        self.shape = torch.Size(shape)

    def extra_repr(self) -> str:
        return f"{tuple(self.shape)}"

    def forward(self, inputs: Tensor) -> Tensor:
        """(*B, *shape) for inputs (*B[, U])."""
        raise NotImplementedError

    def prepare(self, weights: Weights, transform: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        """The function inputs -> transform(value) under weights given by name."""
        own = dict(self.named_parameters())
        if own.keys() == weights.keys() and all(own[name] is value for name, value in weights.items()):
            return lambda inputs: transform(self(inputs))  # replacing weights by themselves takes as long as a small product
        return lambda inputs: transform(functional_call(self, dict(weights), (inputs,)))

    def num_free(self, allowed: Tensor) -> int:
        """Free parameters where outcomes that a softmax normalises cost one less; allowed: (*shape) bool."""
        return sum(weight.numel() for weight in self.parameters())

    @torch.no_grad()
    def randomise(self, scale: float) -> None:
        """Draws every weight from a normal distribution."""
        for weight in self.parameters():
            weight.normal_(0.0, scale)


class ConstantNetwork(Network):
    """The same logits (*shape) whatever the inputs are: outputs of a Moore machine, a start distribution."""

    kind = "constant"

    def __init__(self, shape, dtype: torch.dtype):
        super().__init__(shape)
        self.logits = nn.Parameter(torch.zeros(self.shape, dtype=dtype))

    def forward(self, inputs=None):
        return self.logits

    def prepare(self, weights, transform):
        value = transform(weights["logits"])
        return lambda inputs=None: value

    def num_free(self, allowed):
        return int(allowed.sum())


class TableNetwork(Network):
    """logits[u]: a row of a lookup table (L, *shape) for each symbol u in 0..L-1."""

    kind, input_dims = "table", 0

    def __init__(self, num_symbols: int, shape, dtype: torch.dtype):
        super().__init__(shape)
        self.num_symbols = num_symbols
        self.logits = nn.Parameter(torch.zeros(num_symbols, *self.shape, dtype=dtype))

    def forward(self, inputs):
        return self.logits[inputs]

    def prepare(self, weights, transform):
        table = transform(weights["logits"])  # L rows are normalised, not one for each step
        return lambda inputs: table[inputs]

    def num_free(self, allowed):
        return self.num_symbols * int(allowed.sum())


class LinearNetwork(Network):
    """A generalised linear model a state: logits[j, i] = sum_u x_u weight[j, u, i] + weight[j, U, i] (the bias is last).

    The weight is (*shape[:-1], U + 1, shape[-1]): (Z, U + 1, Z) for transitions, (U + 1, Z) for a start.
    """

    kind, linear_weight = "linear", "weight"

    def __init__(self, num_inputs: int, shape, dtype: torch.dtype):
        super().__init__(shape)
        self.num_inputs = num_inputs
        self.weight = nn.Parameter(torch.zeros(*self.shape[:-1], num_inputs + 1, self.shape[-1], dtype=dtype))

    def forward(self, inputs):
        return _affine(inputs, self.weight)

    def num_free(self, allowed):
        return (self.num_inputs + 1) * int(allowed.sum())


def _affine(inputs: Tensor, weight: Tensor) -> Tensor:
    """(*B, [Z,] out) of inputs (*B, U) under weights ([Z,] U + 1, out)."""
    return (
        torch.einsum("...u,...jui->...ji" if weight.dim() == 3 else "...u,ui->...i", inputs, weight[..., :-1, :])
        + (weight[..., -1, :])
    )


class LayeredNetwork(Network):
    """A multilayer perceptron a state, as in the paper: tanh layers, then a linear one; no weights are shared by states.

    Args:
        num_inputs: U, or with ``symbols`` the number of symbols L, of which a first layer looks one up.
        hidden: sizes of the hidden layers.
    """

    kind = "layered"

    def __init__(self, num_inputs: int, shape, hidden: Sequence[int], dtype: torch.dtype, symbols: bool = False):
        super().__init__(shape)
        self.num_inputs, self.hidden, self.input_dims = num_inputs, tuple(hidden), int(not symbols)
        states = self.shape[:-1]
        sizes = [num_inputs, *self.hidden, self.shape[-1]]
        self.layers = nn.ParameterList(
            torch.randn(*states, before + 1, after, dtype=dtype) / (before + 1) ** 0.5
            for before, after in zip(sizes[:-1], sizes[1:], strict=True)
        )

    def forward(self, inputs):
        first, *others = self.layers
        if self.input_dims:
            value = _affine(inputs, first)
        else:  # a row of the weights for the symbol, and the bias
            value = first.movedim(-2, 0)[inputs] + first[..., -1, :]
        for weight in others:
            value = value.tanh()
            value = (value.unsqueeze(-2) @ weight[..., :-1, :]).squeeze(-2) + weight[..., -1, :]
        return value

    @torch.no_grad()
    def randomise(self, scale):
        for weight in self.layers:
            weight.normal_(0.0, scale / weight.shape[-2] ** 0.5)


class ModuleNetwork(Network):
    """Any torch module: inputs (*B, U), or symbols (*B,), to logits (*B, *shape) or (*B, prod(shape)).

    It sees one step at a time; what should remember past inputs is computed before, as inputs.
    """

    kind = "module"

    def __init__(self, module: nn.Module, shape, input_dims: int):
        super().__init__(shape)
        self.module, self.input_dims = module, input_dims

    def forward(self, inputs):
        value = self.module(inputs)
        rows = inputs.shape[: inputs.dim() - self.input_dims]
        if value.shape not in (rows + self.shape, rows + torch.Size([self.shape.numel()])):
            raise ValueError(
                f"a network of your own must map inputs {tuple(inputs.shape)} to logits {tuple(rows + self.shape)} or "
                f"{tuple(rows + torch.Size([self.shape.numel()]))}, got {tuple(value.shape)}"
            )
        return value.reshape(rows + self.shape)

    def randomise(self, scale):
        """Leaves a module of the user's as it was made."""


class GaussianNoise(nn.Module):
    """Covariances of the outputs of each state.

    Parameters: log_scale (Z, D) for "diag", (Z, 1) for "spherical"; scale_tril (Z, D, D) for "full", (D, D) for "tied", lower
    triangular with the logarithms of its diagonal.
    """

    def __init__(self, num_states: int, num_features: int, covariance: str, dtype: torch.dtype):
        super().__init__()
        self.num_states, self.num_features, self.covariance = num_states, num_features, covariance
        if covariance in ("diag", "spherical"):
            width = num_features if covariance == "diag" else 1
            self.log_scale = nn.Parameter(torch.zeros(num_states, width, dtype=dtype))
        else:
            states = [] if covariance == "tied" else [num_states]
            self.scale_tril = nn.Parameter(torch.zeros(*states, num_features, num_features, dtype=dtype))

    @property
    def num_free(self) -> int:
        triangle = self.num_features * (self.num_features + 1) // 2
        sizes = {"diag": self.num_states * self.num_features, "spherical": self.num_states}
        return sizes.get(self.covariance, triangle * (1 if self.covariance == "tied" else self.num_states))

    def emission(self, loc: Tensor, weights: Weights | None = None) -> GaussianEmission:
        """The emission with means (*b, Z, D), under weights given by name or its own."""
        weights = dict(self.named_parameters()) if weights is None else weights
        if "log_scale" in weights:
            return GaussianEmission(loc, scale=weights["log_scale"].exp().expand(loc.shape))
        tril = scale_tril(weights["scale_tril"])
        return GaussianEmission(loc, scale_tril=tril.expand(*loc.shape, loc.shape[-1]))

    def covariances(self) -> Tensor:
        """(Z, D, D) covariance of every state's outputs."""
        if self.covariance in ("diag", "spherical"):
            variances = (2 * self.log_scale.detach()).exp().expand(self.num_states, self.num_features)
            return torch.diag_embed(variances)
        tril = scale_tril(self.scale_tril.detach())
        return (tril @ tril.mT).expand(self.num_states, self.num_features, self.num_features)

    @torch.no_grad()
    def set(self, covariances: Tensor) -> None:
        """Sets them from (Z, D, D), positive definite; "spherical" and "tied" take the mean over what they share."""
        shape = (self.num_states, self.num_features, self.num_features)
        if tuple(covariances.shape) != shape:
            raise ValueError(f"covariances must have shape (Z, D, D) = {shape}, got {tuple(covariances.shape)}")
        if self.covariance in ("diag", "spherical"):
            variances = covariances.diagonal(dim1=-2, dim2=-1)
            if self.covariance == "spherical":
                variances = variances.mean(-1, keepdim=True)
            self.log_scale.copy_(variances.log() / 2)
            return
        tril = torch.linalg.cholesky(covariances.mean(0) if self.covariance == "tied" else covariances)
        self.scale_tril.copy_(tril.tril(-1) + torch.diag_embed(tril.diagonal(dim1=-2, dim2=-1).log()))


def scale_tril(raw: Tensor) -> Tensor:
    """Cholesky factors (..., D, D) from lower triangular matrices with the logarithms of their diagonals."""
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


@dataclass(frozen=True)
class WeightPriors(PriorOptions):
    """Standard deviations of the Normal(0, scale) priors of an input-output HMM's weights, by part.

    Args:
        initial, transition, emission: of the weights of the networks. noise: of logarithms of standard deviations (and of the
            rest of their Cholesky factors).

    Raises:
        ValueError: for a scale that is not positive.
    """

    initial: float = 1.0
    transition: float = 1.0
    emission: float = 1.0
    noise: float = 1.0

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"priors: {field.name} must be a positive standard deviation, got {value}")
