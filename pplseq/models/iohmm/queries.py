"""Questions to an input-output HMM: production and prediction, classification, states, forecasts, effects of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.conditional import ConditionalEmission
from pplseq.distributions.dense import StepTransition
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import Belief, Emission, Transition
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.mixtures import Shares
from pplseq.infer.fit.em import Batch
from pplseq.infer.forecasts import Forecast
from pplseq.models.base import AT_POINT, AT_TEST, said
from pplseq.models.batch import as_given
from pplseq.models.estimator import Sample
from pplseq.models.forms import by_names, is_table
from pplseq.models.iohmm.by_loops import chain_of_batch, sees_inputs_alone
from pplseq.models.iohmm.data import SIZES, Inputs, Source, beside, sizes_of
from pplseq.models.iohmm.forms import begun, without_frames
from pplseq.models.iohmm.networks import GaussianNoise
from pplseq.models.iohmm.parameters import IOParameters
from pplseq.models.iohmm.quantiles import emission_means, with_quantiles
from pplseq.models.parts.responses import ResponseEmission
from pplseq.models.state_labels import named, numbers_of_states
from pplseq.models.state_languages import StateLanguages
from pplseq.models.steps import all_sizes, check_sizes, sizes_beside


class Outputs(NamedTuple):
    """Expected outputs, and the states they come from; a list for each where data came as lists.

    states: (B, T, Z) probabilities of the states. outputs: (B, T, V) probabilities of "categorical" and "states" outputs,
    (B, T, D) those of a one of "bernoulli" outputs, (B, T, D) means of "gaussian" ones; of outputs by columns (B, T, K), the
    columns behind each other, of a number its mean and of V classes their probabilities. covariances: of what ``outputs`` are
    means of, of "gaussian" outputs and columns, uncertainty about the state included, else None.
    """

    states: Tensor
    outputs: Tensor
    covariances: Tensor | None

    def each(self, change: Callable[[Tensor], Any]) -> Outputs:
        """The same with each tensor changed."""
        covariances = None if self.covariances is None else change(self.covariances)
        return Outputs(change(self.states), change(self.outputs), covariances)

    def where(self, rows: Tensor, others: Outputs) -> Outputs:
        """These of the rows (B,) that are marked, those of the others."""

        def chosen(a: Tensor, b: Tensor) -> Tensor:
            return a.where(rows.reshape(-1, *[1] * (a.dim() - 1)), b)

        ours, theirs = self.covariances, others.covariances
        covariances = None if ours is None or theirs is None else chosen(ours, theirs)
        return Outputs(chosen(self.states, others.states), chosen(self.outputs, others.outputs), covariances)


class IOHMMQueries(StateLanguages, IOParameters):
    """What an input-output HMM tells, beside what every estimator does; data come as ``IOFormat.batch`` says."""

    initial: str
    feedback: tuple[str, ...]
    sources: Mapping[str, Source | None]

    def specs(self, first: Tensor | None = None, *, partly: bool = False, sized: bool = False) -> tuple[Transition, Emission]:
        """Transition and emission; ``first``: (B[, U]) inputs of the start distribution, where it sees some."""
        raise NotImplementedError

    @property
    def _has_columns(self) -> bool:
        return not self.format.discrete and self.formulas is None  # formulas find theirs by name anyway

    def _as_batch(self, x, lengths=None, *, states=None, inputs=None, trials=None, exposure=None) -> Batch:
        """Data as checked tensors: see :meth:`~pplseq.models.iohmm.data.IOFormat.batch`; frames are read by ``formulas``. What
        is told of trials and exposures goes with the inputs."""
        came = x, lengths
        x, states, lengths = self._put_to_steps(x, lengths, inputs, states)
        states = None if states is None else numbers_of_states(states, self.state_names)
        if self.formulas is not None:
            x, inputs, lengths = self.formulas.data_of(x, inputs, lengths)
        batch = self.format.batch(by_names(x, self.column_names), lengths, states=states, inputs=self._inputs_by_name(inputs))
        given = {"trials": trials, "exposure": exposure}
        for name, value in given.items():
            given[name] = None if value is None else sizes_beside(name, value, batch, *came, self.num_outputs)
        return batch._replace(inputs=self._with_sizes(batch.inputs, batch.x, given))

    def _with_sizes(self, inputs: Inputs, x: Tensor, given: Mapping[str, Any]) -> Inputs:
        """Inputs of x (B, T[, D]), with trials and exposures of its steps where there are some."""
        columns = {name: [] if self.columns is None else self.columns.sized(name) for name in given}
        needed = (*(self._sized_by or ()), *(["trials"] if columns["trials"] else []))
        sizes = all_sizes(given, columns, (x.shape[0], x.shape[1]), self.num_outputs, needed, self.config["trials"])
        if sizes is None:
            return inputs
        check_sizes(sizes, x, columns)
        own: Any = inputs
        if not isinstance(inputs, Mapping):
            own = {} if inputs is None else {part: inputs for part, source in self.sources.items() if source is not None}
        return {**own, SIZES: sizes.to(self.reference)}

    def _chain_of_rows(self, batch: Batch) -> Chain | None:
        plain = vars(type(self)).get("_has_loops", False)
        return chain_of_batch(self, batch) if plain and sees_inputs_alone(self, batch) else None

    def _results_like(self, x, *, inputs=None, **known):
        if self.formulas is not None and self.formulas.sequence_id is not None:
            x, inputs, _ = self.formulas.data_of(x, inputs)
        elif isinstance(x, (list, tuple)):
            x = self._put_to_steps(x, None, inputs, None)[0]
        if isinstance(inputs, Mapping):
            inputs = next(iter(inputs.values()), None)
        given = inputs if isinstance(inputs, (list, tuple)) else x
        one = isinstance(given, (list, tuple)) and len(given) > 0 and np.ndim(given[0]) == 0
        return np.asarray(given) if one else given  # one sequence comes back as a row

    # ---------------------------------------------------------------- production and prediction
    @torch.no_grad()
    def open_loop(self, inputs, lengths=None, *, num_samples: int = 500, **sizes) -> Outputs:
        """Open loop: what the inputs alone make of outputs, p(z_t | u_1..u_t) and E[x_t | u_1..u_t].

            zeta_t = sum_j zeta_{j,t-1} phi_j(u_t),    eta_t = sum_i zeta_{i,t} eta_i(u_t)

        Args:
            inputs, lengths: the inputs.
            num_samples: trajectories drawn of each sequence where outputs are fed back; the result is then an average.
            **sizes: trials and exposure of each step, where outputs have them, here and below.

        Source: Bengio and Frasconi (1995), equations 2 to 4.
        """
        batch, chain = self._posterior(None, lengths, inputs=inputs, **sizes)
        if self.feedback:
            result = self._simulate(batch.inputs, None, None, num_samples)
        else:
            result = self._expected(chain.filtered_states().probs, batch.x, batch.inputs, batch.lengths)
        return self._shaped(result, batch, None, inputs)

    @torch.no_grad()
    def one_step(self, x, lengths=None, *, inputs=None, **sizes) -> Outputs:
        """Closed loop: what is expected of each output given the inputs so far and all past outputs, E[x_t | x_<t, u_1..u_t].

        Args:
            x, lengths, inputs: the data; where outputs are missing, predictions run on inputs alone.
        """
        batch, chain = self._posterior(x, lengths, inputs=inputs, **sizes)
        states = predicted(chain)
        return self._shaped(self._expected(states, batch.x, batch.inputs, batch.lengths), batch, x, inputs)

    @torch.no_grad()
    def classify(self, inputs, lengths=None, **sizes) -> Tensor:
        """(B, V) probabilities of the output at the last step (of a one, (B, D), of "bernoulli"; means of "gaussian").

        Open loop. An empty row is answered from the state before the first input, which a model with initial="transition" and
        outputs that do not see inputs has.

        Args:
            inputs: the inputs. lengths: (B,).
        """
        batch = self._as_batch(None, lengths, inputs=inputs, **sizes)
        rows, steps = batch.x.shape[:2]
        last = torch.full((rows,), steps) if batch.lengths is None else batch.lengths
        empty = last == 0
        if bool(empty.any()) and (self.initial != "transition" or self.sources["emission"] is not None):
            raise ValueError(
                f"inputs: sequence {int(empty.nonzero()[0])} is empty; only a model with initial='transition' whose outputs do "
                "not see inputs answers that"
            )
        outputs = self.open_loop(inputs, lengths, **sizes).outputs
        if isinstance(outputs, list):
            return torch.stack([row[-1] for row in outputs])
        result = outputs[torch.arange(rows), (last - 1).clamp_min(0)]
        if bool(empty.any()):
            transition, emission = self._specs_at_point()
            start = transition.initial_log_prob().exp()
            result[empty] = start @ emission_means(emission)
        return result

    @torch.no_grad()
    def predict_next(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, lengths=None, *, inputs=None, next_inputs=None, next_trials=None, next_exposure=None, **sizes
    ) -> Forecast:
        """What comes behind each row's last step, p(x_{T+1} | x_1..x_T, u_1..u_{T+1}); exact with feedback, too.

        Args:
            x, lengths, inputs: the past; rows may be empty.
            next_inputs: of the step to come: vectors (B, U) or symbols (B,), or one (U,) or () for all sequences, or a
                mapping from parts to such; None where the model takes no inputs. next_trials, next_exposure: a number, or
                (B, 1).

        Returns:
            (B, Z) states, and (B, V) words, nats; of bits and vectors means (B, D), of vectors covariances (B, D, D).
        """
        self._check_fitted()
        asked, (x, inputs, sizes, empty) = x, begun(x, inputs, sizes)
        form, batch = self.format, self._nothing_yet(x) or self._as_batch(x, lengths, inputs=inputs, **sizes)
        rows, steps = batch.x.shape[:2]
        here = (torch.arange(rows), _ends(batch, empty))
        known = form.check_inputs(self._future(next_inputs, rows, 1, one_step=True, past=asked), (rows, 1), None)
        past = {} if not steps else form.check_inputs(batch.inputs, (rows, steps), batch.lengths)
        known: Any = self._sized_ahead(known, rows, 1, "next", trials=next_trials, exposure=next_exposure)
        if SIZES in known:
            past |= {SIZES: torch.ones_like(batch.x) if (own := sizes_of(batch.inputs)) is None else own}
        for part, value in past.items():
            known[part] = torch.cat([value, known[part]], 1).index_put(here, known[part][:, 0])
        seen = torch.cat([batch.x, form.missing(rows, 1)], 1).index_put(here, form.missing(1, 1)[0, 0])
        chain = self.posterior(seen, here[1] + 1, inputs=known)
        found = self._expected(predicted(chain), seen, known, here[1] + 1)
        emission, shape = self._emission_at(seen, known, here[1] + 1), found.states.shape
        found = with_quantiles(self._as_next(found.each(lambda value: value[here])), emission, self.noise, shape, here)
        return self._labelled(found, asked, lengths, 1, self.output_names)

    @torch.no_grad()
    def forecast(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, num_steps: int | None = None, lengths=None, *, inputs=None, future_inputs=None, num_samples: int = 500,
        future_trials=None, future_exposure=None, **sizes,
    ) -> Forecast:  # fmt: skip
        """What comes in the next K steps, for inputs that are to come: p(x_{T+k} | x_1..x_T, u_1..u_{T+k}), k = 1..K.

        Args:
            x, lengths, inputs: the past; rows may be empty.
            num_steps: K; may be left out where ``future_inputs`` tell.
            future_inputs: of K steps: vectors (B, K, U) or symbols (B, K), or (K, U) or (K,) for all sequences, or a
                mapping from parts to such; None where the model takes no inputs.
            num_samples: as for :meth:`open_loop`. future_trials, future_exposure: (B, K), (K,) or a number.

        Returns:
            As :meth:`predict_next`, with an axis of steps, (B, K, ...); all rows end K steps after them. Of Gaussian outputs
            that are not fed back it has ``intervals(level)``, exactly.
        """
        self._check_fitted()
        asked, (x, inputs, sizes, empty) = x, begun(x, inputs, sizes)
        batch, chain = self._nothing_yet(x), cast(Any, None)
        if batch is None:
            batch, chain = self._posterior(x, lengths, inputs=inputs, **sizes)
        rows, steps = batch.x.shape[:2]
        last = _ends(batch, empty).to(batch.x.device)
        inputs = self._future(self._of_steps_ahead(future_inputs, asked, lengths, num_steps), rows, num_steps, past=asked)
        known = self.format.check_inputs(inputs, None, None)
        num_steps = next(iter(known.values())).shape[1]
        inputs = self._sized_ahead(inputs, rows, num_steps, "future", trials=future_trials, exposure=future_exposure)
        unseen = self.format.missing(rows, num_steps)

        def expected(start: Belief | None = None, previous: Tensor | None = None) -> Outputs:
            if self.feedback:
                return self._simulate(inputs, start, previous, num_samples)
            states = self.posterior(unseen, start=start, inputs=inputs).filtered_states().probs
            return self._expected(states, unseen, inputs)

        begins = last == 0
        if bool(begins.all()):
            found = expected()
        else:
            if bool(begins.any()):
                chain = self.posterior(batch.x, last.clamp_min(1), **batch.known)
            belief = chain.filtered()
            found = expected(belief, batch.x[torch.arange(rows), (last - 1).clamp_min(0)] if self.feedback else None)
            if bool(begins.any()):  # of these the belief is of a step that they do not have
                found = expected().where(begins, found)
        ahead = self._as_next(found)
        if not self.feedback:
            ahead = with_quantiles(ahead, self._emission_at(unseen, inputs), self.noise, found.states.shape)
        return self._labelled(ahead, asked, lengths, num_steps, self.output_names, future_inputs)

    def _nothing_yet(self, x) -> Batch | None:
        """Rows of which none has any step."""
        empty = isinstance(x, (list, tuple)) and len(x) > 0 and all(np.shape(row)[:1] == (0,) for row in x)
        return Batch(self.format.missing(len(x), 0)) if empty else None

    def _sized_ahead(self, inputs: Inputs, rows: int, num_steps: int, when: str, **given: Any) -> Inputs:
        """Inputs of steps to come with their trials and exposures."""
        try:
            return self._with_sizes(inputs, self.format.missing(rows, num_steps), given)
        except ValueError as error:
            raise ValueError(f"{when}_{error}") from None

    def _as_next(self, found: Outputs) -> Forecast:
        words = found.outputs.log() if self.format.discrete else None
        means = None if self.format.discrete else found.outputs
        bits = Shares(found.outputs) if self.outputs == "bernoulli" else None
        return Forecast(found.states.log(), words, means, found.covariances, bits)

    def _future(self, inputs, rows: int, num_steps: int | None, one_step: bool = False, past=None) -> Inputs:
        """Checked inputs of steps to come, (rows, K[, U]), from those of each row or of one for all."""
        name = "next_inputs" if one_step else "future_inputs"
        if num_steps is not None:
            checks.count("num_steps", num_steps)
        if self.formulas is not None and is_table(inputs):
            ahead = self.formulas.ahead(inputs, past if is_table(past) else None)
            inputs = {part: value[..., 0, :] if one_step else value for part, value in ahead.items()} or None
        inputs = self._inputs_by_name(inputs, name)
        try:
            if inputs is None:
                return self.format.check_inputs(None, (rows, self.format.steps_ahead(num_steps)), None)
            batch = self.format.batch(None, inputs=self._for_all(inputs, rows, one_step), rows=True)
            if len(batch.x) != rows:
                raise ValueError(f"must have one row for each of the {rows} sequences, got {len(batch.x)}")
            if num_steps is not None and batch.x.shape[1] != num_steps:
                raise ValueError(f"must be of num_steps = {num_steps} steps, got {batch.x.shape[1]}")
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}: {str(error).removeprefix('inputs: ')}") from None
        return batch.inputs

    def _for_all(self, inputs, rows: int, one_step: bool, part: str | None = None):
        """Inputs to come of all sequences where one row was given for all; with an axis of steps where they are of one step."""
        if isinstance(inputs, Mapping):
            return {part: self._for_all(value, rows, one_step, part) for part, value in inputs.items()}
        if inputs is None:
            return None
        sources = [source for name, source in self.sources.items() if source is not None and part in (None, name)]
        symbols, numbers = any(kind == "symbols" for kind, _ in sources), ("vectors", 1) in sources
        inputs = without_frames(inputs, None if symbols else max((size for _, size in sources), default=0), "inputs")
        inputs = torch.as_tensor(checks.for_torch(np.asarray(inputs) if isinstance(inputs, (list, tuple)) else inputs))
        if one_step:
            if not symbols and not numbers and inputs.dim() == 0:
                raise ValueError(f"must be vectors, got the number {inputs.item():g}")
            if numbers and inputs.dim() < 2:  # of each row, or of all
                inputs = inputs.reshape(-1, 1) if inputs.numel() > 1 else inputs.reshape(1)
            inputs = inputs.unsqueeze(-1 if symbols else -2)
        # plain numbers, where there is one input; (K, 1) are vectors of one sequence
        plain = numbers and (inputs.dim() == 1 or inputs.dim() == 2 and inputs.shape[-1] != 1)
        one_row = 1 if plain or symbols else 2
        return inputs.expand(rows, *inputs.shape) if inputs.dim() == one_row else inputs

    # ---------------------------------------------------------------- data
    @torch.no_grad()
    def reconstruct(self, x, lengths=None, *, inputs=None, **sizes) -> Outputs:
        """What is expected of each output given all others too, E[eta(z_t, u_t) | x, u_1..u_T]: where a target is missing, its
        exact expectation.

        Args:
            x, lengths, inputs: the data.
        """
        batch, chain = self._posterior(x, lengths, inputs=inputs, **sizes)
        states = chain.marginals().probs
        return self._shaped(self._expected(states, batch.x, batch.inputs, batch.lengths), batch, x, inputs)

    def bic(self, x, lengths=None, **known) -> float:
        """The Bayesian information criterion, -2 log p + parameters * log(targets): lower is better."""
        batch = self._as_batch(x, lengths, **known)
        seen = self.observed(batch.x)[1]
        seen = seen & batch.valid
        return -2 * self.score(x, lengths, **known) + self.num_free_parameters * math.log(max(1, int(seen.sum())))

    def sample(
        self, num_steps: int | None = None, num_sequences: int = 1, *, seed: int | None = None, inputs=None,
        lengths=None, trials=None, exposure=None, **known,
    ) -> Sample:  # fmt: skip
        """Outputs drawn from the model, for given inputs.

        Args:
            num_steps, num_sequences: how much to draw where the model takes no inputs.
            seed: makes the draw repeatable; None draws from torch's generator.
            inputs, lengths: the inputs, and with them how many sequences and steps.
            trials, exposure: of each step, where outputs have them. **known: what else the program takes.

        Returns:
            x (B, T[, D]) and the states behind it (B, T), by name where they have names; missing and -1, or None, at padded
            steps. Lists for a list of inputs.
        """
        if inputs is None:
            if num_steps is None:
                raise ValueError("num_steps: say how many steps to generate where the model takes no inputs")
            free = self.format.check_inputs(None, (num_sequences, num_steps), None)
            x = self.format.missing(num_sequences, num_steps)
            sized = self._with_sizes(free, x, {"trials": trials, "exposure": exposure})
            told = {"inputs": sized} if sizes_of(sized) is not None else {}
            return super().sample(num_steps, num_sequences, seed=seed, **told, **known)
        batch = self._as_batch(None, lengths, inputs=inputs, trials=trials, exposure=exposure)
        rows, steps = batch.x.shape[:2]
        told = None if num_steps is None else checks.count("num_steps", num_steps)
        if told not in (None, steps) or checks.count("num_sequences", num_sequences) not in (1, rows):
            raise ValueError(
                f"num_steps, num_sequences: the inputs say how much is drawn, {rows} sequences of {steps} steps; got "
                f"{num_steps} and {num_sequences}, leave them out"
            )
        self._check_fitted()
        with seeded(seed):
            states, x = self.draws(num_sequences=rows, num_steps=steps, inputs=batch.inputs, **known)
        if batch.lengths is not None:
            padded = torch.arange(steps, device=x.device) >= batch.lengths.unsqueeze(-1)
            states = states.masked_fill(padded, -1)
            x = torch.where(padded if self.format.discrete else padded.unsqueeze(-1), batch.x, x)
        like: Any = self._results_like(None, inputs=inputs)
        return Sample(cast(Tensor, as_given(x, like)), named(as_given(states, like), self.state_names))

    # ---------------------------------------------------------------- effects of inputs
    @torch.no_grad()
    def effect_curves(self, feature: int | None, values, at=None, part: str = "transition") -> Tensor:
        """How a part's distributions change as one input varies and the others stay.

        Args:
            feature: number of the input that varies; None for symbol inputs.
            values: (N,) its values, or symbols.
            at: (U,) the other inputs; zeros by default. With feedback, past outputs follow them, as joined.
            part: "transition", "initial" or "emission".

        Returns:
            (N, Z, Z) p(z_t = to | z_{t-1} = from, input) [value, from, to]; (N, Z) of starts; (N, Z, V or D) of outputs:
            probabilities, or means.
        """
        if part not in self.sources:
            raise ValueError(f"part must be one of {', '.join(self.sources)}; got {part!r}")
        source = self.format.source(part)
        if source is None:
            raise ValueError(f"part: {part} sees no inputs in this model")
        kind, size = source
        values = checks.numbers("values", values).to(self.reference.device)
        if kind == "symbols":
            if feature is not None:
                raise ValueError(f"feature must be None for symbol inputs, got {checks.shown(feature)}")
            if values.is_floating_point() or not bool(((values >= 0) & (values < size)).all()):
                raise ValueError(f"values must be symbols 0..{size - 1}, got {checks.shown(values.tolist())}")
            inputs = values
        else:
            if not isinstance(feature, int) or isinstance(feature, bool) or not 0 <= feature < size:
                raise ValueError(f"feature must be the number of an input, 0..{size - 1}, got {checks.shown(feature)}")
            base = self.reference.new_zeros(size) if at is None else torch.as_tensor(at).to(self.reference)
            if tuple(base.shape) != (size,):
                raise ValueError(f"at must have shape (U,) = ({size},), got {tuple(base.shape)}")
            if values.dim() != 1 or not (torch.isfinite(values).all() and torch.isfinite(base).all()):
                raise ValueError(f"values must be (N,) finite numbers, at too; got {checks.shown(values.tolist())}")
            inputs = base.expand(len(values), size).clone()
            inputs[:, feature] = values.to(self.reference)
        transition, emission = self._specs_at_point(inputs if part == "initial" else None)
        if part == "initial":
            return transition.initial_log_prob().exp()
        if part == "emission":
            return emission_means(emission.at(inputs) if isinstance(emission, ConditionalEmission) else emission)
        return cast(StepTransition, transition).matrices(inputs).exp()

    # ---------------------------------------------------------------- inside
    def _specs_at_point(self, first: Tensor | None = None, sized: bool = False):
        """Transition and emission at the point estimate; starts that see inputs need the first."""
        if first is None and self.sources["initial"] is not None:
            kind, size = self.sources["initial"]
            first = self.reference.new_zeros(size if kind == "vectors" else ())
            first = first if kind == "vectors" else first.long()
        with said(AT_POINT, AT_TEST):
            return self.specs(first, sized=sized)

    def _expected(self, states: Tensor, x, inputs, lengths=None, previous=None) -> Outputs:
        """Outputs of states (B, T, Z) distributed as given, (B, T, ...); x counts where it is fed back."""
        emission = self._emission_at(x, inputs, lengths, previous)
        means = emission_means(emission).expand(*states.shape, -1)
        outputs = torch.einsum("btz,btzo->bto", states, means)
        if self.noise is None:
            return Outputs(states, outputs, None)
        if isinstance(emission, ResponseEmission):
            within = torch.einsum("btz,btzde->btde", states, emission.moments[1].expand(*means.shape, -1))
        else:
            within = torch.einsum("btz,zde->btde", states, cast(GaussianNoise, self.noise).covariances())
        apart = means - outputs.unsqueeze(-2)
        return Outputs(states, outputs, within + torch.einsum("btz,btzd,btze->btde", states, apart, apart))

    def _emission_at(self, x, inputs, lengths=None, previous=None) -> Emission:
        """That of every step, or of all where it sees no inputs."""
        parts = self.format.network_inputs(x, inputs, lengths, previous)
        seen, sizes = parts["emission"], parts[SIZES]
        _, emission = self._specs_at_point(sized=sizes is not None)
        seen = seen if sizes is None else beside(seen, sizes)
        if isinstance(emission, ConditionalEmission) and seen is not None:
            emission = emission.at(seen)
        return emission

    def _simulate(self, inputs, start: Belief | None, previous: Tensor | None, num_samples: int) -> Outputs:
        """Outputs averaged over drawn trajectories: with feedback the past outputs are not summed out exactly."""

        checks.count("num_samples", num_samples)

        def repeat(value) -> Any:
            return None if value is None else value.repeat_interleave(num_samples, 0)

        whole = isinstance(inputs, Mapping)
        inputs = {part: repeat(value) for part, value in inputs.items()} if whole else repeat(inputs)
        start, previous = None if start is None else Belief(*map(repeat, start)), repeat(previous)
        x = self.draws(start=start, inputs=inputs, previous=previous)[1]
        # of each trajectory its outputs alone are used: the states given them are summed out exactly
        chain = self.posterior(x, start=start, inputs=inputs, previous=previous)
        each = self._expected(predicted(chain), x, inputs, None, previous)
        by_sequence = each.each(lambda value: value.unflatten(0, (-1, num_samples)))
        mean = by_sequence.each(lambda value: value.mean(1))
        if mean.covariances is None:
            return mean
        apart = by_sequence.outputs - mean.outputs.unsqueeze(1)
        between = torch.einsum("bstd,bste->btde", apart, apart) / num_samples
        return mean._replace(covariances=mean.covariances + between)

    def _shaped(self, result: Outputs, batch: Batch, x, inputs) -> Outputs:
        """Results in the form of the data, 0 at padded steps."""
        like = self._results_like(x, inputs=inputs)
        return result.each(lambda value: as_given(_without_padding(value, batch), like))


def predicted(chain: Chain) -> Tensor:
    """(B, T, Z) p(z_t | x_1..x_{t-1}) of a chain of dense matrices."""
    return cast(DenseChain, chain).predicted_states().probs


def _ends(batch: Batch, empty: list[bool] | None) -> Tensor:
    """(B,) how many steps each row has, of which some had none before :func:`begun`."""
    steps = torch.full((len(batch.x),), batch.x.shape[1]) if batch.lengths is None else batch.lengths
    return steps if empty is None else steps.masked_fill(torch.tensor(empty, device=steps.device), 0)


def _without_padding(value: Tensor, batch) -> Tensor:
    """(B, T, ...) with 0 at padded steps."""
    if batch.lengths is None:
        return value
    padded = torch.arange(value.shape[1], device=value.device) >= batch.lengths.unsqueeze(-1)
    return value.masked_fill(padded.reshape(*padded.shape, *(1,) * (value.dim() - 2)), 0.0)
