"""The weights of an input-output HMM: drawn from priors or as they stand, set from tables, counted, randomised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.infer.fit.em import Batch, least_variances
from pplseq.models.base import AT_POINT
from pplseq.models.estimator import Estimator
from pplseq.models.fitted import ends
from pplseq.models.forms import is_table
from pplseq.models.iohmm.data import PARTS, IOFormat, sizes_of
from pplseq.models.iohmm.estimates import estimates_of
from pplseq.models.iohmm.forms import put_to_steps
from pplseq.models.iohmm.formulas import Formulas
from pplseq.models.iohmm.networks import GaussianNoise, Network, WeightPriors
from pplseq.models.parts.ends import least_scales
from pplseq.models.parts.responses import Dispersions, ResponseColumns
from pplseq.models.row_labels import check_rows_ahead

FLOOR = 1e-4  # the smallest variance of Gaussian outputs, as a share of their own
SPREAD = 0.5  # standard deviation of the first weights


class IOParameters(Estimator):
    """An estimator whose parameters are networks "initial_network", "transition_network" and "emission_network", and noise.

    Attributes:
        graph, start_states: what softmaxes of transitions and of the start normalise over, None for all.
        input_names, output_names: what a summary calls them, where they have names.
        noise: of "gaussian" outputs, and of columns. columns: families of outputs column by column, or None.
        priors: of the weights, or None. formulas: what reads frames, or None.
    """

    outputs: str
    num_outputs: int
    covariance_floor: float | None
    graph: Tensor | None
    start_states: Tensor | None
    noise: GaussianNoise | Dispersions | None
    columns: ResponseColumns | None
    input_names: dict[str, list[str]]
    output_names: list[str] | None
    priors: WeightPriors | None
    formulas: Formulas | None

    @property
    def _levels(self) -> dict[int, int]:
        return {} if self.columns is None else {c.number: c.size for c in self.columns.columns if c.kind is None}

    # ---------------------------------------------------------------- frames
    @property
    def _sorts_rows(self) -> bool:
        """Whether formulas put the rows of a frame to the sequences that a column names."""
        return self.formulas is not None and self.formulas.sequence_id is not None

    def _put_to_steps(self, x, lengths, inputs, states):
        """Outputs, states and lengths, as the dates of frames and series have them; see
        :func:`~pplseq.models.iohmm.forms.put_to_steps`."""
        if self._sorts_rows:
            return x, states, lengths
        return put_to_steps(x, inputs, states, lengths, fill=self.formulas is None)

    def _of_steps_ahead(self, inputs, x, lengths, num_steps: int | None):
        """Inputs of the steps to come; raises ValueError where their index does not go on where that of x ends."""
        if not self._sorts_rows:
            check_rows_ahead(x, inputs, num_steps, lengths=lengths)
        return inputs

    def _labelled(self, found, x, lengths, num_steps: int, names=None, ahead=None):
        """See :meth:`~pplseq.models.fitted.FittedState._labelled`: formulas know the sequences of a frame."""
        named = x if self.formulas is None or not is_table(x) else self.formulas.named(x)
        return super()._labelled(found, named, lengths, num_steps, names, ahead)

    @property
    def format(self) -> IOFormat:
        """What data the model takes."""
        raise NotImplementedError

    def network(self, part: str) -> Network:
        """That of "initial", "transition" or "emission"; read so that Pyro does not take its parameters for used."""
        return cast(Network, self._modules[f"{part}_network"])

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        if self.outputs == "states":
            raise ValueError("outputs: these are the states, whose numbers the data have; they cannot change places")
        found: dict[str, Sequence[int]] = {}
        for part in PARTS:
            network, first = self.network(part), int(part != "initial")  # axes of the state a network is of
            if network.kind not in ("constant", "table", "linear", "layered"):
                raise ValueError(f"the {part} is a network that all states share, so that they cannot change places")
            last = [] if part == "emission" else [-1]
            for name, value in network.named_parameters():
                own = [0] * first
                if network.kind == "table":
                    own = [1] * first
                ends = network.kind != "layered" or value is list(network.parameters())[-1]
                found[f"{part}_network.{name}"] = [*own, *(last if ends else [])]
        noise = self._modules.get("noise")
        for name, value in () if noise is None else noise.named_parameters():
            if name != "scale_tril" or value.dim() == 3:  # else one of all states
                found[f"noise.{name}"] = [0]
        return found

    @property
    def parts(self) -> dict[str, nn.Module]:
        """Networks and noise by the names of their attributes; "states" as outputs have no network."""
        names = [*(f"{part}_network" for part in PARTS), "noise"]
        return {name: module for name in names if (module := self._modules.get(name)) is not None}

    def _draw_weights(self) -> dict[str, dict[str, Tensor]]:
        """Weights of each part by name: the module's parameters, or with priors drawn at their sites."""
        if self.priors is None or AT_POINT.get():
            # read as attributes: inside a Pyro program this registers their parameters
            return {name: dict(getattr(self, name).named_parameters()) for name in self.parts}
        return {
            name: {
                weight: pyro.sample(f"{name}.{weight}", self._prior_of(name, value))
                for weight, value in part.named_parameters()
            }
            for name, part in self.parts.items()
        }

    def _prior_of(self, name: str, value: Tensor) -> dist.TorchDistribution:
        """The prior of a weight of one of :attr:`parts`."""
        scale = value.new_tensor(getattr(self.priors, name.removesuffix("_network")))
        return dist.Normal(torch.zeros_like(value), scale).to_event(value.dim())

    def log_prior(self) -> Tensor:
        """log density of the weights under the priors, nats; 0 without priors."""
        total = self.reference.new_zeros(())
        if self.priors is not None:
            for name, part in self.parts.items():
                for value in part.parameters():
                    total = total + self._prior_of(name, value.detach()).log_prob(value)
        return total

    def _bounds_by(self, bounds: Mapping[str, Any], method: str) -> dict[str, tuple[Tensor, Tensor]]:
        """Between which numbers weights of networks stay, by name.

        Raises:
            ValueError, TypeError: for other names and what are no bounds, and where a method cannot keep them.
        """
        if not isinstance(bounds, Mapping):
            raise TypeError(f"bounds must be a mapping from names of weights to pairs (low, high), got {checks.shown(bounds)}")
        weights = {name: value for name, value in self.named_parameters() if "_network." in name}
        for name in bounds:
            if name not in weights:
                raise ValueError(
                    f"bounds: {type(self).__name__} has no weights {checks.shown(name)}; those of its networks are "
                    f"{', '.join(weights)}. Probabilities and variances are made of several and have "
                    "no bounds: forbid moves by graph=, hold parts by fixed=, or take an HMM, SwitchingRegression or ARHMM"
                )
        if bounds and method != "sgd":
            raise ValueError(f"bounds: {method!r} keeps none of an IOHMM; use method='sgd'")
        return {name: ends(name, pair, weights[name]) for name, pair in bounds.items()}

    @property
    def _held_parts(self) -> frozenset[str]:
        """Parts of which no parameter learns: "initial", "transition", "emission", "noise"."""
        parts = {name.removesuffix("_network"): [*part.parameters()] for name, part in self.parts.items()}
        return frozenset(name for name, own in parts.items() if own and not any(one.requires_grad for one in own))

    @property
    def _not_free(self) -> frozenset[str]:
        return self.fixed_parameters | self._held_parts

    def _entry_name(self, name: str, place: Sequence[int], shape: Sequence[int]) -> str:
        states, part = self.state_names, name.partition(".")[0]
        if states is None or not place or part == "covariance" and shape[0] == shape[1] and len(shape) == 2:  # of all states
            return super()._entry_name(name, place, shape)
        table = part in PARTS and self.network(part).kind == "table"  # a row for each symbol comes first
        of_states = {"initial": {len(place) - 1}, "transition": {len(place) - 2, len(place) - 1}}.get(part, {int(table)})
        return name + "".join(f"[{states[k] if axis in of_states else k}]" for axis, k in enumerate(place))

    def estimates(self) -> dict[str, Tensor]:
        """What :meth:`summary` tells: see :func:`~pplseq.models.iohmm.estimates.estimates_of`."""
        return estimates_of(self)

    @torch.no_grad()
    def sites(self) -> dict[str, Tensor]:
        """Values of the program's latent sites at the point estimate: where SVI and NUTS start."""
        return {name: value.clone() for name, value in self.named_parameters()}

    def from_sites(self, sites: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameters from (a batch of) values of the sites: the same tensors."""
        return dict(sites)

    @torch.no_grad()
    def set_parameters(self, **values: Tensor) -> Self:
        """Sets weights by the names of :meth:`sites`; returns the model."""
        known = dict(self.named_parameters())
        checks.parameters_of(self, values, known)
        for name, value in values.items():
            value = checks.numbers(name, value)
            checks.shape(name, value, known[name].shape)
            if bool(value.isnan().any()):
                raise ValueError(f"{name} must hold no NaN; check how it is computed")
            known[name].copy_(value)
        return self

    @torch.no_grad()
    def _set_tables(self, *, initial=None, transition=None, emission=None) -> Self:
        """Sets constant networks and tables from probabilities (zeros forbid); returns the model.

        Args:
            initial: (Z,), or (L, Z). transition: (L, Z, Z) [from, to]. emission: (Z, V), or (L, Z, V); of "bernoulli" outputs
                the probabilities of a one, of "gaussian" ones means, of outputs by columns linear
                predictors.
        """
        for part, value in (("initial", initial), ("transition", transition), ("emission", emission)):
            if value is None:
                continue
            logits = getattr(self.network(part), "logits", None)
            value = torch.as_tensor(value, dtype=torch.float64).to(self.reference)
            if logits is None or value.shape != logits.shape:
                shape = None if logits is None else tuple(logits.shape)
                raise ValueError(
                    f"{part} must have shape {shape} (None: its network is no table), got {tuple(value.shape)}"
                )
            outputs = self.outputs if part == "emission" else "categorical"
            if outputs in ("gaussian", "columns"):
                logits.copy_(value)
                continue
            bits = outputs == "bernoulli"
            total = torch.ones_like(value[..., 0]) if bits else value.sum(-1)
            if not bool(((value >= 0) & (value <= 1 + 1e-4)).all() & ((total - 1).abs() < 1e-4).all()):
                raise ValueError(f"{part}: every row must hold probabilities" + ("" if bits else " that sum to 1"))
            logits.copy_(torch.special.logit(value) if bits else value.log())
        return self

    @property
    def num_free_parameters(self) -> int:
        """Weights that count, for information criteria: none for forbidden moves, one less for each softmax."""
        allowed = {"initial": self.start_states, "transition": self.graph}
        held = self._not_free
        total = 0 if self.noise is None or "noise" in held else self.noise.num_free
        for part in PARTS:
            if f"{part}_network" not in self.parts or part in held:
                continue
            network, mask = self.network(part), allowed.get(part)
            mask = torch.ones(network.shape, dtype=torch.bool) if mask is None else mask.clone().cpu()
            if part == "emission" and self.columns is not None:
                mask = self.columns.free(self.num_states)
            elif part != "emission" or self.outputs == "categorical":
                first = mask.to(torch.int64).argmax(-1, keepdim=True)
                mask.scatter_(-1, first, False)  # what is left when the others are known
            total += network.num_free(mask)
        return total

    def least_variances(self, batch: Batch) -> Tensor:
        """(D,) the smallest variances of outputs with a location and a scale, whose square it is; NaN of columns without."""
        values, seen = self.observed(batch.x)
        there = seen if seen.dim() == values.dim() else seen.unsqueeze(-1).expand_as(values)
        there = there & ~values.isnan()
        if batch.lengths is not None:
            steps = torch.arange(values.shape[1], device=values.device)
            there = there & (steps < batch.lengths.unsqueeze(-1)).unsqueeze(-1)
        if self.covariance_floor is not None:
            return values.new_full(values.shape[-1:], self.covariance_floor)
        if self.columns is not None:
            rows = values.where(there, torch.nan).flatten(0, 1)
            scales = rows.new_full(rows.shape[-1:], torch.nan, dtype=torch.float64)
            for column in self.columns.scaled:
                assert column.kind is not None, "those with a scale have a family"
                scales[column.number] = least_scales(column.kind, rows[:, column.number, None], FLOOR)[0]
            return scales.square().to(self.reference)
        count = there.sum((0, 1)).double()
        about = values.where(there, 0.0).double().sum((0, 1)) / count.clamp_min(1.0)
        values = (values.double() - about).where(there, 0.0)
        return least_variances(count, values.sum((0, 1)), values.square().sum((0, 1)), FLOOR, about).to(self.reference)

    @torch.no_grad()
    def initialize(self, batch: Batch | None = None, how: str = "", *, scale: float = SPREAD) -> None:
        """Random weights; with data, means of outputs that are numbers at outputs that occur, spread as wide as those are."""
        for name in self.parts:
            if name != "noise":
                self.network(name.removesuffix("_network")).randomise(scale)
        if self.noise is None or batch is None:
            return
        values, seen = self.observed(batch.x)
        seen = seen & batch.valid
        values = values[seen]
        if len(values) < 2:
            return
        if isinstance(self.noise, Dispersions):
            sizes = sizes_of(batch.inputs)
            values = self.noise.columns.rates(values, None if sizes is None else sizes[seen])
            self._initialize_columns(values, self.noise, self.least_variances(batch))
            return
        spread = torch.cov(values.T).reshape(self.num_outputs, self.num_outputs)
        spread = spread + torch.diag(self.least_variances(batch)).to(spread)
        self.noise.set(spread.expand(self.num_states, -1, -1))
        picked = values[torch.randint(len(values), (self.num_states,)).to(values.device)]
        network, weights = self.network("emission"), dict(self.network("emission").named_parameters())
        if network.kind in ("constant", "table"):
            weights["logits"].copy_(picked.expand(weights["logits"].shape))
        elif network.linear_weight is not None:
            weights[network.linear_weight].mul_(spread.diagonal().sqrt())  # slopes as steep as outputs vary
            weights[network.linear_weight][..., -1, :] = picked

    def _initialize_columns(self, values: Tensor, noise: Dispersions, floor: Tensor) -> None:
        eta = noise.columns.start(values, (self.num_states,))
        noise.raw.copy_(noise.columns.first_dispersions(values, floor).expand_as(noise.raw))
        network, weights = self.network("emission"), dict(self.network("emission").named_parameters())
        if network.kind in ("constant", "table"):
            weights["logits"].copy_(eta.expand(weights["logits"].shape))
        elif (linear := network.linear_weight) is not None:
            for column in noise.columns.scaled:
                if column.link == "identity":
                    weights[linear][..., column.first].mul_(noise.raw[0, column.scale_place].exp())
            weights[linear][..., -1, :] = eta
