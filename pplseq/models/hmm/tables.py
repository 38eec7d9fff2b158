"""What models with a full transition matrix and a table of words, or of Gaussians, have in common: sizes and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.held import Ends, Slot
from pplseq.infer.forecasts import Forecast
from pplseq.models.estimator import Estimator
from pplseq.models.parts.emissions import CategoricalTable, GaussianTable, like
from pplseq.models.parts.family_table import as_config, as_list, is_list, table_of
from pplseq.models.parts.protocols import Emissions
from pplseq.models.parts.quantiles import state_moments

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def words_of(vocabulary: Vocabulary | None, num_words: int | None) -> int | None:
    """V, of a vocabulary or as it is told."""
    if vocabulary is None:
        return num_words
    if not isinstance(vocabulary, Vocabulary):
        raise TypeError(f"vocabulary: expected a Vocabulary, as Vocabulary.build(sentences), got {type(vocabulary).__name__}")
    if num_words not in (None, len(vocabulary)):
        raise ValueError(f"num_words: the vocabulary has {len(vocabulary)} words, got {num_words}; leave it out")
    return len(vocabulary)


class StateTables(Estimator):
    """A model over words or vectors whose states have logits of starts and transitions, and emissions of one kind.

    Args:
        num_states: Z. num_emitting: states that have an emission of their own, the last ones.
        num_words: V. num_features: D. Exactly one of the two.
        covariance, covariance_floor, dtype: of Gaussians.
        kinds: of covariances that there are.
        emission, num_components, num_levels, trials: of vectors; see :func:`~pplseq.models.parts.family_table.table_of`.
    """

    initial_logits: nn.Parameter
    transition_logits: nn.Parameter
    emissions: Emissions

    def __init__(
        self, num_states: int, num_words: int | None, num_features: int | None, covariance: str,
        covariance_floor: float | None, dtype: str, *, kinds: tuple[str, ...], emission: Any = "gaussian",
        num_components: int | None = None, num_levels: Any = None, trials: int | None = None,
    ):  # fmt: skip
        super().__init__()
        if (num_words is None) == (num_features is None):
            raise ValueError(
                f"num_words, num_features: give exactly one, the number of words or the dimension of vectors; got "
                f"{num_words} and {num_features}"
            )
        self.num_states = num_states
        self.num_words = None if num_words is None else checks.count("num_words", num_words)
        self.num_features = None if num_features is None else checks.count("num_features", num_features)
        checks.choice("covariance", covariance, kinds)
        checks.choice("dtype", dtype, DTYPES)
        if covariance_floor is not None:
            checks.positive("covariance_floor", covariance_floor)
        self._config: dict[str, Any] = dict(
            num_words=self.num_words, num_features=self.num_features, covariance=covariance,
            covariance_floor=covariance_floor,
        )  # fmt: skip
        if emission != "gaussian":
            self._config |= {"emission": as_config(emission)}
        if num_components is not None:
            self._config |= {"num_components": checks.count("num_components", num_components)}
        if num_levels is not None:
            self._config |= {"num_levels": as_list(num_levels, list(num_levels)) if is_list(num_levels) else num_levels}
        if trials is not None:
            self._config |= {"trials": checks.count("trials", trials)}

    def _make_emissions(self, num_states: int, dtype: torch.dtype) -> Emissions:
        """New ones, drawn at random, of so many states."""
        if self.num_features is None:
            return CategoricalTable(num_states, self._config["num_words"], dtype)
        return table_of(
            self._config.get("emission", "gaussian"), num_states, self.num_features, self._config["covariance"],
            self._config["covariance_floor"], dtype, self._config.get("num_components"),
            self._config.get("num_levels"), self._config.get("trials"),
        )  # fmt: skip

    @property
    def config(self) -> dict[str, Any]:
        return self._config | {"dtype": next(name for name, value in DTYPES.items() if value == like(self).dtype)}

    # ---------------------------------------------------------------- parameters
    @property
    def _move_logits(self) -> dict[str, nn.Parameter]:
        """Logits of moves, [..., from, to], by the names of ``set_parameters``."""
        return {"transition": self.transition_logits}

    @property
    def initial(self) -> Tensor:
        """(Z,) p(z_1)."""
        return torch.softmax(self.initial_logits.detach(), -1)

    @property
    def transition(self) -> Tensor:
        """(Z, Z) p(z_t | z_{t-1}), [from, to]."""
        return torch.softmax(self.transition_logits.detach(), -1)

    @property
    def emission(self) -> Tensor:
        """(Z, V) p(x | z) of words; of the states that have an emission of their own."""
        self._need(self.num_words is not None, "emission", "loc and covariances")
        return self.emissions.values()["emission"].detach()

    @property
    def emission_parameters(self) -> dict[str, Tensor]:
        """Parameters of the emissions by name, (Z, ...) each; of the states that have an emission of their own."""
        return {name: value.detach().clone() for name, value in self.emissions.values().items()}

    @property
    def loc(self) -> Tensor:
        """(Z, D) means of Gaussian vectors; of the states that have an emission of their own."""
        self._need(isinstance(self.emissions, GaussianTable), "loc", "emission_parameters")
        return cast(GaussianTable, self.emissions).loc.detach().clone()

    @property
    def covariances(self) -> Tensor:
        """(Z, D, D) covariances of Gaussian vectors; of the states that have an emission of their own."""
        self._need(isinstance(self.emissions, GaussianTable), "covariances", "emission_parameters")
        return cast(GaussianTable, self.emissions).covariances().detach()

    def _need(self, holds: bool, name: str, instead: str) -> None:
        if not holds:
            raise AttributeError(f"{name}: this {type(self).__name__} has other emissions; see {instead}")

    @torch.no_grad()
    def _set_tables(self, **tables) -> None:
        """Sets "initial", "transition" and "emission" from probabilities; those that are None stay."""
        own: dict[str, Any] = {"initial": self.initial_logits, "emission": getattr(self.emissions, "logits", None)}
        own |= self._move_logits
        for name, given in tables.items():
            if given is None:
                continue
            value, logits = checks.numbers(name, given).detach().cpu().double(), own[name]
            if logits is None:
                raise TypeError(f"{name}: this {type(self).__name__} has emissions of numbers; see emission_parameters")
            checks.shape(name, value, logits.shape)
            if not bool(((value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-4)).all()):
                raise ValueError(f"{name}: every row must hold probabilities that sum to 1")
            logits.copy_(value.log())

    @property
    def _levels(self) -> dict[int, int]:
        return self.emissions.levels

    def _parameter_units(self) -> dict[str, Tensor]:
        """How much locations may vary, so that a fit does not depend on what the data are measured in."""
        return {f"emissions.{name}": unit for name, unit in self.emissions.units().items()}

    def _ends(self, batches: Sequence[Batch]) -> Ends:
        """The ends of numbers of emissions, see :func:`~pplseq.infer.fit.gradients.ends_of`; with priors there are none."""
        if self.num_features is None or getattr(self, "priors", None) is not None:
            return {}
        rows = []
        for batch in batches:
            x, seen = self.emissions.observed(batch.x)
            seen = seen & batch.valid
            rows.append(x[seen])
        return {f"emissions.{name}": both for name, both in self.emissions.ends(torch.cat(rows)).items()}

    def _check_held(self, method: str) -> None:
        super()._check_held(method)
        self.emissions._check_held(method)

    @property
    def _slots(self) -> dict[str, Slot]:
        graph, starts = getattr(self, "graph", None), getattr(self, "start_states", None)
        dense = "transition" in self._move_logits  # of which each state has a row
        moves = {name: Slot(logits, True, graph, of_states=dense, pools=dense) for name, logits in self._move_logits.items()}
        return {"initial": Slot(self.initial_logits, True, starts)} | moves | self.emissions.slots

    def _why_no_number(self, batch: Batch) -> str:
        said = getattr(self.emissions, "_why_no_number", None)
        return "" if said is None else said(*self.observed(batch.x))

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        if self.emissions.num_states != self._num_observable_states:
            raise ValueError(f"states of this {type(self).__name__} that share emissions cannot change places")
        if "transition" not in self._move_logits:
            raise ValueError("transition: states of a product are places on a grid, and cannot change places")
        priors = getattr(self, "priors", None)
        for name, dims in {"initial": 0, "transition": 0, "emission": 1}.items():
            if torch.as_tensor(getattr(priors, name, 0.0)).dim() > dims:
                raise ValueError(f"priors: {name} has numbers of each state, so that these cannot change places")
        return {"initial_logits": (0,), "transition_logits": (0, 1)} | self._emission_axes()

    def _emission_axes(self) -> dict[str, Sequence[int]]:
        """Of all parameters of emissions but one covariance of all states."""
        tied = self._config["covariance"] == "tied"
        names = [name for name, _ in self.named_parameters() if name.startswith("emissions.")]
        return {name: (0,) for name in names if not (tied and name.endswith("scale_tril"))}

    # ---------------------------------------------------------------- observations
    def _check_observations(self, x: Tensor) -> None:
        self.emissions.check(x)

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.emissions.observed(x)

    def _observations_of(self, states: Tensor, emission, known: Tensor | None = None) -> Forecast:
        """See the class of all estimators; known: (B, K, ...) of the steps, as :func:`state_quantiles` takes it."""
        if self.num_words is not None:
            return super()._observations_of(states, emission)
        return Forecast(states, None, *state_moments(self.emissions, states.exp(), known))

    def _entry_name(self, name: str, place: Sequence[int], shape: Sequence[int]) -> str:
        if name in ("initial", "transition"):
            return name + "".join(f"[{k if self.state_names is None else self.state_names[k]}]" for k in place)
        if self.column_names is None and self.state_names is None:
            return super()._entry_name(name, place, shape)
        # (Z, D), (Z, D, D), and (D, D) of what all states share
        shared = name == "precision" and self._config["covariance"] == "tied"
        of_columns = [size == self.num_features and (axis > 0 or shared) for axis, size in enumerate(shape)]
        pairs = zip(place, of_columns, strict=True)
        rows, columns = self.state_names, self.column_names
        of_states = rows is not None and not shared and shape[0] == len(rows)
        told = [
            columns[k] if is_column and columns is not None else rows[k] if of_states and not axis and rows is not None else k
            for axis, (k, is_column) in enumerate(pairs)
        ]
        return name + "".join(f"[{each}]" for each in told)
