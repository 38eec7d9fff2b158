"""The hidden Markov model with a full transition matrix, over words or vectors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.columns import SharedEmission, pooled
from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.state import Belief, Emission, Transition
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.fit.held import any_held, kept
from pplseq.infer.forecasts import Forecast
from pplseq.infer.programs.markov import markov
from pplseq.models.base import AT_POINT, AT_TEST, Given, Sizes, one_chain, said
from pplseq.models.constrained import Constrainable
from pplseq.models.hmm.by_loops import LoopAnswers
from pplseq.models.hmm.joint import check_pair, joint_moves, joint_tables
from pplseq.models.hmm.labelled_start import moves_of_labels, start_from_labels
from pplseq.models.hmm.pretrained import read_pretrained
from pplseq.models.hmm.tables import DTYPES, words_of
from pplseq.models.online.reader import Filter
from pplseq.models.online.states import States
from pplseq.models.parts.emissions import (
    COVARIANCES,
    CategoricalTable,
    GaussianTable,
    dirichlet_log_density,
    like,
    restricted,
    safe_log,
)
from pplseq.models.parts.families import Family, inside_simplex
from pplseq.models.parts.family_table import FamilyTable, as_list
from pplseq.models.parts.moves import allowed_moves, allowed_starts, shared_rows
from pplseq.models.parts.priors import Priors
from pplseq.models.parts.product_moves import ProductMoves
from pplseq.models.remembered import Remembered, plain_parameters
from pplseq.models.state_languages import StateLanguages
from pplseq.models.steps import (
    all_sizes,
    check_sizes,
    column_of,
    sizes_beside,
    step_matrices,
    steps_to_come,
    with_steps,
)

if TYPE_CHECKING:
    from pplseq.data.vocabulary import Vocabulary

EVENNESS = 0.1  # standard deviation of the first transition logits


class HMM(Constrainable, StateLanguages, LoopAnswers):
    """z_1 ~ initial,  z_t | z_{t-1} ~ transition[z_{t-1}],  x_t | z_t ~ emission[z_t].

    The emission is a table over ``num_words`` words, or over vectors of ``num_features`` numbers a Gaussian, a mixture of
    Gaussians, or columns from other families of distributions. The parameters are unconstrained tensors (logits, means, log
    scales). With priors the program draws the tables at sites "initial",
    "transition" and "emission" (or "precision" and "loc"), and the parameters hold a point estimate, which ``posterior``,
    ``score`` and the other queries use.

    Args:
        num_states: Z; may be left out where ``transition`` says it.
        num_words: V, for words 0..V-1.
        num_features: D, for vectors. Give exactly one of the two, or neither with an emission by name (then D = 1).
        emission: of vectors: "gaussian" (the default), "mixture" (of ``num_components`` Gaussians), or a family of single
            numbers, "poisson", "negative_binomial", "student_t", "von_mises" (angles in radians), "normal", "exponential",
            "bernoulli", for all columns alike, or a list of names, one a column; columns are independent given the state.
            Also any class of ``pyro.distributions`` over single numbers by name ("Laplace"), or a
            :class:`~pplseq.models.parts.families.Family` of your own, which EM cannot learn unless it says how.
            A family with zeros of their own is "zero_inflated_poisson", "hurdle_gamma" and the like, one of counts that are
            never 0 "zero_truncated_poisson"; "gamma" and "binomial" are others, and "categorical" is a column of levels.
            All columns that are "dirichlet" are together shares that sum to 1 (missing ones are summed out), all that are
            "multinomial" counts given their total, which each row tells.
        num_components: of the mixture, by default 2.
        num_levels: of "categorical" columns: of all, or a list with one a column, None at those of numbers.
        trials: of "binomial" columns, where it is the same at every step; else they come with the data. Where there are none,
            the total of all rows of "multinomial" columns; beside "binomial" ones each row tells its own.
        transition: :class:`~pplseq.models.parts.product_moves.ProductMoves`, of thousands of states (i, j) whose coordinates
            move in turn; None for a full matrix.
        graph: (Z, Z) bool, [from, to], which moves there are, all others stay impossible; "left_right" for those to the same
            state and later ones, starting in state 0; None for all.
        start_states: states that a sequence may start in; None for all.
        ties: (Z,) the number of the emission that each state has, for states that share one; None for one each.
        covariance: of vectors: "diag", "full", "tied" (one full matrix for all states) or "spherical".
        priors: :class:`~pplseq.models.parts.priors.Priors`, a mapping of its arguments, True for its defaults, or None.
        covariance_floor: smallest variance EM may give a state in any direction; None: a thousandth of the data's own in each
            column, so that a fit does not depend on their units.
        state_names: what the states are called, in ``decode``, ``n_best`` and ``summary``; None: numbers, or the names of the
            observed states that a fit is given. vocabulary: what the words are called, whose number is then V.
        dtype: "float64" (what EM and NUTS want) or "float32".

    Raises:
        ValueError: for sizes or options that do not fit together.

    Example::

        model = HMM(4, num_words=20).fit([[3, 1, 4], [1, 5, 9, 2, 6]])
        paths = model.predict([[3, 1, 4, 1, 5]])
    """

    graph: Any
    start_states: Any
    _trials_of_steps: bool
    name = "hmm"
    methods = ("em", "sgd", "svi", "nuts", "lbfgs")
    _has_loops = True

    def __init__(
        self,
        num_states: int | None = None,
        num_words: int | None = None,
        *,
        num_features: int | None = None,
        emission: Any = None,
        num_components: int | None = None,
        num_levels: int | Sequence[int | None] | None = None,
        trials: int | None = None,
        transition: ProductMoves | None = None,
        graph: Tensor | str | None = None,
        start_states: Sequence[int] | None = None,
        ties: Sequence[int] | None = None,
        covariance: str = "diag",
        priors: Priors | Mapping | bool | None = None,
        covariance_floor: float | None = None,
        state_names: Sequence[str] | None = None,
        vocabulary: Vocabulary | None = None,
        dtype: str = "float64",
    ):
        moves = ProductMoves.of(transition)
        if moves is not None and graph is not None:
            raise ValueError("graph: moves that are products have none, only zeros by set_parameters; leave one of the two out")
        if moves is not None and num_states not in (None, moves.num_states):
            raise ValueError(f"num_states: {moves} has {moves.num_states} states, got {checks.shown(num_states)}; leave it out")
        num_states = checks.count("num_states", num_states if moves is None else moves.num_states)
        num_words = words_of(vocabulary, num_words)
        shapes = {"transition": (num_states, num_states)} if moves is None else moves.shapes
        numbers = sum(math.prod(shape) for shape in shapes.values())
        checks.fits("num_states", 4.0 * numbers, "choose fewer states, ProductMoves, or a VLHMM")
        if emission is not None and num_words is None and num_features is None:
            num_features = len(emission) if isinstance(emission, (list, tuple)) else 1
        if num_words is not None and emission is not None:
            raise ValueError(f"emission: words have a table; leave num_words or emission={checks.shown(emission)} out")
        super().__init__(
            num_states, num_words, num_features, covariance, covariance_floor, dtype, kinds=COVARIANCES,
            emission="gaussian" if emission is None else emission, num_components=num_components,
            num_levels=num_levels, trials=trials,
        )  # fmt: skip
        self.priors = Priors.of(priors)
        vars(self)["_factors"] = moves
        if isinstance(graph, str) and graph == "left_right" and start_states is None:
            start_states = [0]
        self.register_buffer("graph", allowed_moves(graph, num_states), persistent=False)
        self.register_buffer("start_states", allowed_starts(start_states, num_states), persistent=False)
        self.register_buffer("_rows", shared_rows(ties, num_states), persistent=False)
        given = {
            "transition": None if moves is None else moves.as_config(),
            "graph": None if self.graph is None else as_list(graph, self.graph.tolist()),
            "start_states": None if start_states is None else as_list(start_states, [int(state) for state in start_states]),
            "ties": None if self._rows is None else as_list(ties, self._rows.tolist()),
        }
        self._config = {"num_states": num_states} | self._config | {n: v for n, v in given.items() if v is not None}
        self.vocabulary = vocabulary
        self._name_states(state_names)
        real = DTYPES[dtype]
        if self.priors is not None:  # their shapes are checked now, not at the first use
            self.priors.concentrations(num_states, num_words, torch.empty(0, dtype=real), shapes)
            if num_features is not None:
                self.priors.normal_wishart(num_features, torch.empty(0, dtype=real))
        self._make_tables(num_states, real)
        self.emissions = self._make_emissions(num_states if self._rows is None else int(self._rows.max()) + 1, real)
        vars(self)["_trials_of_steps"] = trials is None and self.emissions.needs_trials
        self._forbid()
        if not self.emissions.has_em:  # the first is the default of `fit`
            vars(self)["methods"] = tuple(method for method in ("lbfgs", *self.methods[1:4]) if method != "em")
            vars(self)["_turns"], vars(self)["_least_starts"] = ("values", "stretches"), 2
        vars(self)["_remembered"] = Remembered(plain_parameters(self)[0])  # no submodule
        self.drawn()

    @classmethod
    @torch.no_grad()
    def from_pretrained(cls, folder: str | Path, *, vocabulary: Vocabulary | None = None) -> HMM:
        """An HMM that others trained, as Ctrl-G gives its own away, or a Monarch HMM, in single precision.

        Args:
            folder: with ``alpha_exp`` (Z, Z) probabilities of moves, ``beta`` (Z, V) and ``gamma`` (Z,) logs of words and
                starts (``gamma_exp``: probabilities), in safetensors or in files of torch, in one file or in shards; nothing is
                unpickled. Of a Monarch HMM of blocks (m, n) ``alpha_exp.weights_exp.0`` (n, m, m) and ``.1`` (m, n, n), which
                becomes ``ProductMoves(n, m)``: its state i n + j is state j m + i here, as i moves first.
            vocabulary: what the tokens are called, one for each of V; None: numbers, those of the tokenizer.

        Raises:
            ValueError: for other names or sizes, rows that are no distributions, a vocabulary of another size, and weights that
                take more memory than there is. FileNotFoundError: no weights there.

        Warns:
            RuntimeWarning: rows miss a sum of one by more than 1e-4; they are divided by it.

        Source: H. Zhang et al., Adaptable logical control for large language models (2024), Scaling probabilistic circuits via
            Monarch matrices (2025).
        """
        if cls is not HMM:
            raise TypeError(f"from_pretrained reads an HMM, and a {cls.__name__} is another model; write HMM.from_pretrained")
        start, moves, words, sizes = read_pretrained(folder)
        if vocabulary is not None and len(vocabulary) != words.shape[1]:
            raise ValueError(f"vocabulary: the HMM has {words.shape[1]} tokens, and it {len(vocabulary)}")
        products = None if sizes is None else ProductMoves(*sizes)
        model = cls(len(start), num_words=words.shape[1], transition=products, dtype="float32")
        logits = [model.initial_logits, *model._move_logits.values(), cast(CategoricalTable, model.emissions).logits]
        for own, table in zip(logits, (start, *moves, words), strict=True):
            own.copy_(table)
        model.vocabulary, model.is_fitted = vocabulary, True
        return model

    @torch.no_grad()
    def product(self, other: HMM) -> HMM:
        """The HMM of pairs (i, j) of states of this model and another, whose moves are products: where EM starts from.

        i and j start and move each on its own, exactly as in their models, and together emit the normalised product of their
        emissions. Sequences are then as probable as under both models together where a word is two parts, of which each model
        knows one and has the other at random; else it is a start that knows what both know, for ``fit(..., warm_start=True)``.

        Args:
            other: over the same words. Where a model has moves that are products, its coordinates are kept.

        Raises:
            TypeError, ValueError: for models of something else, or other words, or states without a word in common.
            NotFittedError: for random parameters.

        Source: H. Zhang et al. (2025), Scaling probabilistic circuits via Monarch matrices, ICML.
        """
        check_pair(self, other, HMM)
        dtype = max(self.config["dtype"], other.config["dtype"])  # the double one
        moves = joint_moves(self, other)
        model = HMM(num_words=self.num_words, transition=moves, dtype=dtype, vocabulary=self.vocabulary or other.vocabulary)
        for name, table in joint_tables(self, other).items():
            model.get_parameter(name).copy_(table)
        model.is_fitted = True
        return model

    def _make_tables(self, num_states: int, dtype: torch.dtype) -> None:
        """The parameters of starts and moves."""
        self.initial_logits = nn.Parameter(EVENNESS * torch.randn(num_states, dtype=dtype))
        for name, shape in self._move_shapes.items():
            setattr(self, f"{name}_logits", nn.Parameter(EVENNESS * torch.randn(shape, dtype=dtype)))

    @property
    def _own_values(self) -> list[str]:
        """Names of what ``set_parameters`` takes beside those of emissions."""
        return ["initial", *self._move_shapes]

    @property
    def _move_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tables of moves, by the names of ``set_parameters``."""
        return {"transition": (self.num_states, self.num_states)} if self._factors is None else self._factors.shapes

    @property
    def _move_logits(self) -> dict[str, nn.Parameter]:
        return {name: getattr(self, f"{name}_logits") for name in self._move_shapes}

    @property
    def transition(self) -> Tensor:
        """(Z, Z) p(z_t | z_{t-1}), [from, to]; of a product its tables multiplied out.

        Raises:
            ValueError: where there is no memory for it.
        """
        if self._factors is None:
            return super().transition
        checks.fits("transition", 24.0 * self.num_states**2, "its tables are in estimates()")
        return self._point_specs().transition.rows(torch.arange(self.num_states, device=self.reference.device)).detach().exp()

    @property
    def config(self) -> dict[str, Any]:
        return super().config | {"priors": None if self.priors is None else self.priors.as_config()}

    # ---------------------------------------------------------------- parameters
    @torch.no_grad()
    def set_parameters(
        self, *, initial=None, transition=None, emission=None, loc=None, covariance=None, precision=None, **parameters
    ):
        """Sets tables from probabilities (zeros forbid), means, and covariances or precisions; returns the model.

        Args:
            initial: (Z,). transition: (Z, Z) [from, to]. emission: (Z, V). Of moves that are products ``transition_1``,
                ``transition_2``, ... as they move, [others, from, to]: (m, n, n) of j within i, then (n, m, m) of i within j.
            loc: (Z, D). covariance, precision: (Z, D), (Z, 1), (Z, D, D) or (D, D) for "diag", "spherical", "full", "tied".
            **parameters: of other families, by the names in ``emission_parameters``, (Z, D) each; of a mixture "weights"
                (Z, M), and the others of its Z * M Gaussians.
        """
        tables = {name: parameters.pop(name) for name in self._move_shapes if name in parameters}
        if self._factors is not None and transition is not None:
            own = ", ".join(f"{name} {shape}" for name, shape in self._move_shapes.items())
            raise ValueError(f"transition: {self._factors} has a table for each coordinate; give {own}")
        given = dict(loc=loc, covariance=covariance, precision=precision, **parameters)
        given = {name: value for name, value in given.items() if value is not None}
        checks.parameters_of(self, given, [*self._own_values, *self.emissions.settable])
        tables |= {"initial": initial, "transition": transition, "emission": emission}
        self._set_tables(**{name: table for name, table in tables.items() if table is not None})
        for name, allowed in (("initial", self.start_states), ("transition", self.graph)):
            if allowed is not None and bool((getattr(self, name)[~allowed] > 0).any()):
                raise ValueError(f"{name}: gives probability to what graph or start_states forbids")
        values = {name: checks.numbers(name, value).to(like(self)) for name, value in given.items()}
        if not values:
            return self
        if isinstance(self.emissions, GaussianTable):
            values = {"loc": self.loc} | values
            if covariance is None and precision is None:
                values["precision"] = self.emissions.values()["precision"]
        self.emissions.set_values(**values)
        return self

    @torch.no_grad()
    def _forbid(self) -> None:
        """What is not allowed has no probability, and no fit gives it one."""
        for _, logits, allowed in self._logits():
            if allowed is not None:
                logits.masked_fill_(~allowed, -torch.inf)

    # ---------------------------------------------------------------- the program
    def specs(self):
        """Transition and emission: of the module's parameters, or with priors drawn at their sites."""
        if self.priors is None or AT_POINT.get():
            remembered = vars(self).get("_remembered")  # a model that was pickled by an earlier version has none
            found = self._point_specs() if remembered is None else remembered.get(self, self._point_specs)
            return found.transition, found.emission
        tables = self.priors.concentrations(self.num_states, None, like(self), self._move_shapes)
        drawn = {name: pyro.sample(name, dist.Dirichlet(table).to_event(table.dim() - 1)) for name, table in tables.items()}
        # the allowed part of a Dirichlet's draw, normalised, is Dirichlet; the rest of it is of no consequence
        allowed = {"initial": self.start_states}
        initial, *moves = [restricted(safe_log(table), allowed.get(name, self.graph)) for name, table in drawn.items()]
        return self._moving(initial, moves), self._shared(self.emissions.drawn_spec(self.priors))

    def _shared(self, emission: Emission) -> Emission:
        return emission if self._rows is None else SharedEmission(emission, self._rows)

    @one_chain
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: Belief | None = None,
        *,
        states: Tensor | None = None,
        emission_noises: Tensor | None = None,
        trials: Tensor | float | None = None,
        exposure: Tensor | float | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T) words, ``MISSING`` (-1) for a missing one, or (B, T, D) vectors, NaN where missing (whole vectors or
                some of their coordinates); None to generate.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with.
            states: (B, T) observed states, negative where unknown.
            emission_noises: (B, T, D, D) or (T, D, D) known covariances that are added to those of the states: measurement
                errors of known size; of Gaussian vectors.
            trials, exposure: of each step, of "binomial" columns, of "multinomial" ones (their total), and of "poisson" and
                "negative_binomial" ones (also "zero_inflated_..." and "hurdle_..."): (B, T), (T,), a number, or (B, T, D), of
                which those of other columns do not count. A rate, or mean, is then one of a unit of exposure. EM is slow to
                learn the sizes of negative binomial counts with exposures: if it stops at ``max_iterations``, give more, or
                use method "lbfgs".
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.base.Sizes`.
        """
        known: dict[str, Any] = dict(states=states, emission_noises=emission_noises, trials=trials, exposure=exposure)
        given = self.given(x, lengths, start, **known, **sizes)
        transition, emission = self._specs_given(given)
        z = start
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z), obs=given.state(t))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", emission(z, inputs=given.input(t)), obs=given.value(t))
        return x

    def given(
        self, x, lengths=None, start=None, *, emission_noises: Tensor | None = None, trials=None, exposure=None, **known
    ) -> Given:
        given = super().given(x, lengths, start, **known)
        inside = x  # behind the ends of rows anything stands
        if x is not None and lengths is not None and (trials is not None or exposure is not None):
            padded = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)
            inside = x.masked_fill(padded.unsqueeze(-1), torch.nan)
        given.inputs = self._sizes_of(given.shape, inside, trials, exposure)
        if emission_noises is not None:
            size = self.num_features or 0
            noises = step_matrices("emission_noises", emission_noises, (size, size), given.shape)
            assert noises is not None
            given.inputs = noises.expand(given.shape[0], *noises.shape[1:])
        return given

    def _specs_given(self, given: Given) -> tuple[Transition, Emission]:
        transition, emission = self.specs()
        if given.inputs is None:
            return transition, emission
        return transition, self.emissions.conditional(emission)

    def _sizes_of(
        self, shape: Sequence[int], x: Tensor | None = None, trials: Any = None, exposure: Any = None
    ) -> Tensor | None:
        """(B, T, D) numbers of trials and exposures; None where nothing of single steps is known.

        Raises:
            ValueError: where they must be told, or there is no column that takes them.
        """
        if trials is None and exposure is None and not self._need_sizes:
            return None
        given = {"trials": trials, "exposure": exposure}
        columns = {name: self.emissions.sized(name) for name in given}
        size, fixed = self.num_features or 0, self._config.get("trials")
        needed = (*(self._sized_by or ()), *(["trials"] if self._trials_of_steps else []))
        found = all_sizes(given, columns, (shape[0], shape[1]), size, needed, fixed)
        if found is None:
            return None
        if x is not None:
            check_sizes(found, x, {name: own for name, own in columns.items() if given[name] is not None})
        if trials is None:
            found = self.emissions.with_own_totals(found)
        else:
            cast(FamilyTable, self.emissions).check_trials(x, found)
        return found.to(self.reference)

    def _as_batch(self, x, lengths=None, *, states=None, emission_noises=None, trials=None, exposure=None) -> Batch:
        """x, its lengths, observed states and what is known of steps (see :meth:`model`) as tensors; see the class of all
        estimators."""
        batch = super()._as_batch(x, lengths, states=states)
        for name, value in (("trials", trials), ("exposure", exposure)):
            if value is not None:
                batch = batch._replace(**{name: sizes_beside(name, value, batch, x, lengths, self.num_features or 0)})
        self._known_of(batch)
        if emission_noises is None:
            return batch
        if not isinstance(self.emissions, GaussianTable):
            raise ValueError(
                "emission_noises: known covariances are added to those of Gaussians, and this model has other emissions; leave "
                "them out"
            )
        size = self.num_features or 0
        return with_steps(batch, x, {"emission_noises": (size, size)}, emission_noises=emission_noises)

    @torch.no_grad()
    def forecast(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, num_steps: int | None = None, lengths=None, *, emission_noises=None, future_emission_noises=None, trials=None,
        future_trials=None, exposure=None, future_exposure=None,
    ) -> Forecast:  # fmt: skip
        """What comes in the next K steps, exactly; see :meth:`~pplseq.models.estimator.Estimator.forecast`, and beside it:

        Args:
            emission_noises: of the past. future_emission_noises: (B, K, D, D), or (K, D, D) for all rows: of the steps to come;
                must be given with those of the past, zeros for none.
            trials, exposure: of the past. future_trials, future_exposure: (B, K), (K,) or a number, of the steps to come.
        """
        num_steps = checks.steps_ahead(x, num_steps)
        past = {"emission_noises": emission_noises, "trials": trials, "exposure": exposure}
        past = {name: column_of(name, value, x) for name, value in past.items() if value is not None}
        states, emission = self._states_ahead(x, num_steps, lengths, **past)
        shape, size = (states.shape[0], num_steps), self.num_features or 0
        known = None
        if emission_noises is not None or future_emission_noises is not None:
            before = Batch(states, emission_noises=None if emission_noises is None else states)
            ahead, sizes = {"future_emission_noises": future_emission_noises}, {"emission_noises": (size, size)}
            known = steps_to_come(ahead, before, sizes, *shape, self.reference)["emission_noises"]
        elif self.num_words is None:
            try:
                known = self._sizes_of(shape, trials=future_trials, exposure=future_exposure)
            except ValueError as error:
                raise ValueError(f"future_{error}") from None
        return self._labelled(self._observations_of(states, emission, known), x, lengths, num_steps)

    def _observations_of(self, states: Tensor, emission, known: Tensor | None = None) -> Forecast:
        if known is None:
            self._sizes_of((1, 1))  # refused where they must be told
        if self._rows is not None and self.num_words is None:
            found = super()._observations_of(pooled(states.exp(), self._rows, self.emissions.num_states).log(), emission, known)
            return found._replace(state_log_probs=states)
        return super()._observations_of(states, emission, known)

    def _reader(self) -> Filter:
        if type(self) is HMM and self._is_one_chain and not self._need_sizes and not self.emissions.sized("trials"):
            with said(AT_POINT, AT_TEST):
                transition, emission = self.specs()
            if isinstance(transition, DenseTransition) and not emission.batch_shape and not emission.takes_inputs:
                return States(self, transition, emission)
        return super()._reader()

    def estimates(self) -> dict[str, Tensor]:
        """Tables and the emissions' parameters by name, differentiable."""
        tables = {name: torch.softmax(logits, -1) for name, logits, _ in self._logits()}
        return tables | self.emissions.values()

    def save(self, folder) -> Path:
        kinds = self._config.get("emission", "gaussian")
        if any(isinstance(kind, Family) for kind in (kinds if isinstance(kinds, list) else [kinds])):
            raise ValueError(
                "emission: a Family of your own cannot be saved; give it a name, FAMILIES['name'] = family, make the model "
                "with emission='name', and name it so again before loading"
            )
        return super().save(folder)

    def log_prior(self) -> Tensor:
        """log density of the parameters under the priors, nats; 0 without priors."""
        if self.priors is None:
            return like(self).new_zeros(())
        tables = self.priors.concentrations(self.num_states, None, like(self), self._move_shapes)
        total = self.emissions.log_prior(self.priors)
        for name, logits, allowed in self._logits():
            total = total + dirichlet_log_density(torch.log_softmax(logits, -1), tables[name], allowed)
        return total

    def _logits(self) -> list[tuple[str, Tensor, Tensor | None]]:
        moves = [(name, logits, self.graph) for name, logits in self._move_logits.items()]
        return [("initial", self.initial_logits, self.start_states), *moves]

    def _check_data(self, batch: Batch) -> None:
        super()._check_data(batch)
        x, seen = self.observed(batch.x)
        seen = seen & batch.valid
        self.emissions.set_origin(x, seen)
        given = {"trials": batch.trials, "exposure": batch.exposure}
        if not self.emissions.needs_trials:
            del given["trials"]  # totals, which rows tell
        self._sized_by = tuple(name for name, value in given.items() if value is not None) or None

    @contextlib.contextmanager
    def _naming(self, x: Any, keep: bool, inputs: Any = None, states: Any = None, beside: Sequence[Any] = ()) -> Iterator[None]:
        before = self._sized_by
        self._sized_by = before if keep else None  # a fit anew may be without exposures
        try:
            with super()._naming(x, keep, inputs, states, beside):
                yield
        except BaseException:
            self._sized_by = before
            raise

    def _check_method(self, method: str) -> None:
        if method in ("svi", "nuts") and self.priors is None:
            raise ValueError(
                f"method {checks.shown(method)} needs priors: make the model with priors=True, or with Priors(...)"
            )
        if method == "em" and self.priors is not None:
            if self.priors.parameters:
                raise ValueError("priors: method 'em' takes none of families' parameters; use 'lbfgs', 'sgd', 'svi' or 'nuts'")
            self.priors.check_mode(self.num_states, self.num_words, like(self), self._move_shapes)

    def predict(self, x, lengths=None, **known):
        """:meth:`decode`, by the name that users of hmmlearn know."""
        return self.decode(x, lengths, **known)

    def predict_proba(self, x, lengths=None, **known):
        """The probabilities of :meth:`smooth`, (B, T, Z), by the name that users of hmmlearn know."""
        return self.smooth(x, lengths, **known).probs

    @torch.no_grad()
    def sites(self) -> dict[str, Tensor]:
        """Values of the program's latent sites at the point estimate: where SVI and NUTS start."""
        tables = {name: inside_simplex(torch.softmax(logits, -1)) for name, logits, _ in self._logits()}
        return tables | self.emissions.sites()

    def from_sites(self, sites: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tables, means and precisions from (a batch of) values of the sites."""
        tables = {name: restricted(sites[name].log(), allowed).exp() for name, _, allowed in self._logits()}
        rest = {name: value for name, value in sites.items() if name not in tables}
        return tables | self.emissions.from_sites(**rest)

    def initialize(self, batch: Batch, how: str = "") -> None:
        """Emissions around what the data hold and nearly even transitions: where a fit starts."""
        with torch.no_grad():
            for _, logits, _ in self._logits():
                # strongly random transitions would decide early, and mostly wrongly, what the states stand for
                logits.copy_(EVENNESS * torch.randn(logits.shape, dtype=torch.float64))
            if batch.states is not None and self._factors is None:  # else the first E-step counts them
                counts = moves_of_labels(batch.states, self.num_states)
                for (_, logits, _), count in zip(self._logits(), counts, strict=True):
                    logits.copy_((torch.softmax(logits, -1) + count.to(logits)).log())
        self._forbid()
        self._initialize_emissions(batch, how)

    def _initialize_emissions(self, batch: Batch, how: str) -> None:
        x, seen = self.emissions.observed(batch.x)
        seen = seen & batch.valid
        known = self._known_of(batch) if batch.emission_noises is None else None
        how_to = {"over_time": True} if how == "stretches" else {}
        self.emissions.initialize(x, seen, **how_to, **({} if known is None else {"known": known}))
        if (labels := batch.states) is not None:
            if self._rows is not None and self._num_observable_states == self.num_states:
                labels = torch.where(labels < 0, labels, self._rows[labels])
            start_from_labels(self.emissions, x, seen, labels, known)

    @property
    def _need_sizes(self) -> bool:
        """Whether trials or exposures must be told of each step."""
        return self._sized_by is not None or self._trials_of_steps

    def _known_of(self, batch: Batch) -> Tensor | None:
        """What the emissions are told of each step: (B, T, D, D) noises, or (B, T, D) numbers of trials and exposures."""
        if batch.emission_noises is not None:
            return batch.emission_noises
        return self._sizes_of(batch.x.shape, batch.x, batch.trials, batch.exposure)

    # ---------------------------------------------------------------- what EM asks for (see pplseq.infer.fit.em)
    def chain_of(self, batch: Batch) -> Any:
        chain = super().chain_of(batch)
        if self._factors is not None:
            _ = chain.factors  # its likelihood is asked first, and would be had without the messages that counts need
        return chain

    def expected_statistics(self, chain: Chain, batch: Batch | None = None) -> Statistics:
        counts = chain.expected_counts()
        probs = counts.marginals.probs.flatten(0, -2)
        if self._rows is not None:
            probs = pooled(probs, self._rows, self.emissions.num_states)
        obs = chain.obs.transpose(0, 1).flatten(0, 1)
        known = None if batch is None else self._known_of(batch)
        known = None if known is None else known.flatten(0, 1)
        if chain.seen is not None:  # padded steps count as seen and have probability 0
            seen = chain.seen.T.flatten()
            obs, probs, known = obs[seen], probs[seen], None if known is None else known[seen]
        tables = [counts.start, *([counts.transition] if self._factors is None else counts.transition)]
        names = ["initial", *self._move_shapes]
        found = {name: table.double() for name, table in zip(names, tables, strict=True)}
        return found | self.emissions.statistics(obs, probs, known)

    def _implied_statistics(self, num_sequences: float, num_tokens: float) -> Statistics:
        visits = torch.full_like(self.initial, num_tokens / self.num_states, dtype=torch.float64)
        moves = float(visits[0]) * max(0.0, 1 - num_sequences / num_tokens)  # out of each row
        tables = {name: moves * torch.softmax(logits.double(), -1) for name, logits in self._move_logits.items()}
        tables |= {"initial": num_sequences * self.initial.double()}
        return tables | self.emissions.implied(
            visits if self._rows is None else pooled(visits, self._rows, self.emissions.num_states)
        )

    @torch.no_grad()
    def maximize(self, statistics: Statistics) -> list[str]:
        if not any_held(self) and self._maximize_by_loops(statistics):
            return []
        tables = {}
        if self.priors is not None:
            tables = self.priors.concentrations(self.num_states, None, statistics["initial"], self._move_shapes)
        for name, logits, allowed in self._logits():
            prior = tables.get(name)
            if prior is not None and allowed is not None:
                prior = prior.masked_fill(~allowed, 1.0)
            mass = statistics[name] if prior is None else statistics[name] + prior - 1
            logits.copy_(kept(logits, dirichlet_mode(statistics[name], prior, logits), mass.sum(-1)))
        return self.emissions.maximize(statistics, self.priors)
