"""Questions to an input-output HMM: production and prediction, classification, states, forecasts, effects of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pplseq import checks
from pplseq.distributions.conditional import BernoulliEmission
from pplseq.distributions.dense import CategoricalEmission, Emission
from pplseq.distributions.state import Belief
from pplseq.models.iohmm.data import Inputs


class Outputs(NamedTuple):
    """Expected outputs, and the states they come from; a list for each where data came as lists.

    states: (B, T, Z) probabilities of the states. outputs: (B, T, V) probabilities of "categorical" and "states" outputs,
    (B, T, D) those of a one of "bernoulli" outputs, (B, T, D) means of "gaussian" ones. covariances: (B, T, D, D) of
    "gaussian" outputs, uncertainty about the state included, else None.
    """

    states: Tensor | list[Tensor]
    outputs: Tensor | list[Tensor]
    covariances: Tensor | list[Tensor] | None


class IOHMMQueries:
    """Mixed into :class:`IOHMM`; data come as :meth:`~pplseq.models.iohmm.data.IOData.as_batch` says."""

    # ---------------------------------------------------------------- production and prediction
    @torch.no_grad()
    def production(self, inputs, lengths=None, *, num_samples: int = 500) -> Outputs:
        """Open loop: what the inputs alone make of outputs, p(z_t | u_1..u_t) and E[x_t | u_1..u_t].

            zeta_t = sum_j zeta_{j,t-1} phi_j(u_t),    eta_t = sum_i zeta_{i,t} eta_i(u_t)

        Args:
            inputs, lengths: the inputs.
            num_samples: trajectories drawn of each sequence where outputs are fed back; the result is then an average.

        Source: Bengio and Frasconi (1995), equations 2 to 4.
        """
        batch = self.as_batch(None, lengths, inputs=inputs)
        if self.feedback:
            result = self._simulate(batch.inputs, None, None, num_samples)
        else:
            result = self._expected(self._chain(batch).filtered_states().probs, batch.x, batch.inputs, batch.lengths)
        return self._shaped(result, batch, inputs)

    @torch.no_grad()
    def predictive(self, x, lengths=None, *, inputs=None) -> Outputs:
        """Closed loop: what is expected of each output given the inputs so far and all past outputs, E[x_t | x_<t, u_1..u_t].

        Args:
            x, lengths, inputs: the data; where outputs are missing, predictions run on inputs alone.
        """
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        states = self._chain(batch).predicted_states().probs
        return self._shaped(self._expected(states, batch.x, batch.inputs, batch.lengths), batch, self._like(x, inputs))

    @torch.no_grad()
    def classify(self, inputs, lengths=None) -> Tensor:
        """(B, V) probabilities of the output at the last step (of a one, (B, D), of "bernoulli"; means of "gaussian").

        Open loop. An empty row is answered from the state before the first input, which a model with initial="transition" and
        outputs that do not see inputs has.

        Args:
            inputs: the inputs. lengths: (B,).
        """
        batch = self.as_batch(None, lengths, inputs=inputs)
        rows, steps = batch.x.shape[:2]
        last = torch.full((rows,), steps) if batch.lengths is None else batch.lengths
        empty = last == 0
        if bool(empty.any()) and (self.initial != "transition" or self.emission_inputs_seen):
            raise ValueError(
                f"inputs: sequence {int(empty.nonzero()[0])} is empty; only a model with initial='transition' whose outputs do "
                "not see inputs answers that"
            )
        outputs = self.production(inputs, lengths).outputs
        if isinstance(outputs, list):
            return torch.stack([row[-1] for row in outputs])
        result = outputs[torch.arange(rows), (last - 1).clamp_min(0)]
        if bool(empty.any()):
            transition, emission = self._specs_at_point()
            start = transition.initial_log_prob().exp()
            result[empty] = start @ emission_means(emission)
        return result

    @torch.no_grad()
    def predict_next(self, x, lengths=None, *, inputs=None, next_inputs=None) -> Outputs:
        """What is expected behind each row's last step, E[x_{T+1} | x_1..x_T, u_1..u_{T+1}]; exact with feedback, too.

        Args:
            x, lengths, inputs: the past; rows may be empty.
            next_inputs: of the step to come: vectors (B, U) or symbols (B,), or one (U,) or () for all sequences, or a
                mapping from parts to such; None where the model takes no inputs.

        Returns:
            Tensors without an axis of steps: (B, Z) states, (B, V or D) outputs, (B, D, D) covariances.
        """
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        rows, steps = batch.x.shape[:2]
        here = (torch.arange(rows), torch.full((rows,), steps) if batch.lengths is None else batch.lengths)
        known = self.check_inputs(batch.inputs, (rows, steps), batch.lengths)
        coming = self._future(next_inputs, rows, 1, one_step=True)
        for part, value in self.check_inputs(coming, (rows, 1), None).items():
            known[part] = torch.cat([known[part], value], 1).index_put(here, value[:, 0])
        seen = torch.cat([batch.x, self.missing(rows, 1)], 1).index_put(here, self.missing(1, 1)[0, 0])
        wide = batch._replace(x=seen, lengths=here[1] + 1, inputs=known)
        states = self._chain(wide).predicted_states().probs
        found = self._expected(states, wide.x, wide.inputs, wide.lengths)
        return Outputs(*(None if value is None else value[here] for value in found))

    @torch.no_grad()
    def forecast(
        self, x, num_steps: int | None = None, lengths=None, *, inputs=None, future_inputs=None, num_samples: int = 500
    ) -> Outputs:
        """Outputs after the last one given, for inputs that are to come: E[x_{T+k} | x_1..x_T, u_1..u_{T+k}], k = 1..K.

        Args:
            x, lengths, inputs: the past.
            num_steps: K; may be left out where ``future_inputs`` tell.
            future_inputs: of K steps: vectors (B, K, U) or symbols (B, K), or (K, U) or (K,) for all sequences, or a
                mapping from parts to such; None where the model takes no inputs.
            num_samples: as for :meth:`production`.

        Returns:
            Tensors, one row for each sequence: they all end K steps after it.
        """
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        rows = len(batch.x)
        belief = self._chain(batch).filtered()
        inputs = self._future(future_inputs, rows, num_steps)
        if self.feedback:
            last = torch.full((rows,), batch.x.shape[1]) if batch.lengths is None else batch.lengths
            previous = batch.x[torch.arange(rows), (last - 1).clamp_min(0)]
            return self._simulate(inputs, belief, previous, num_samples)
        any_inputs = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        unseen = self.missing(*any_inputs.shape[:2])
        chain = self.posterior(unseen, start=belief, inputs=inputs)
        return self._expected(chain.filtered_states().probs, unseen, inputs)

    def _future(self, inputs, rows: int, num_steps: int | None, one_step: bool = False) -> Inputs:
        """Checked inputs of steps to come, (rows, K[, U]), from those of each row or of one for all."""
        name = "next_inputs" if one_step else "future_inputs"
        if num_steps is not None:
            checks.count("num_steps", num_steps)
        try:
            if inputs is None and num_steps is not None:
                return self.check_inputs(None, (rows, num_steps), None)
            batch = self.as_batch(None, inputs=self._for_all(inputs, rows, one_step))
            if len(batch.x) != rows:
                raise ValueError(f"must have one row for each of the {rows} sequences, got {len(batch.x)}")
            if num_steps is not None and batch.x.shape[1] != num_steps:
                raise ValueError(f"must be of num_steps = {num_steps} steps, got {batch.x.shape[1]}")
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}: {error}") from None
        return batch.inputs

    def _for_all(self, inputs, rows: int, one_step: bool, part: str | None = None):
        """Inputs to come of all sequences where one row was given for all; with an axis of steps where they are of one step."""
        if isinstance(inputs, Mapping):
            return {part: self._for_all(value, rows, one_step, part) for part, value in inputs.items()}
        if inputs is None:
            return None
        sources = [source for name, source in self.sources.items() if source is not None and part in (None, name)]
        inputs = torch.as_tensor(np.asarray(inputs) if isinstance(inputs, (list, tuple)) else inputs)
        symbols, numbers = any(kind == "symbols" for kind, _ in sources), ("vectors", 1) in sources
        if one_step:
            if numbers and inputs.dim() < 2:  # of each row, or of all
                inputs = inputs.reshape(-1, 1) if inputs.numel() > 1 else inputs.reshape(1)
            inputs = inputs.unsqueeze(-1 if symbols else -2)
        # plain numbers, where there is one input; (K, 1) are vectors of one sequence
        plain = numbers and (inputs.dim() == 1 or inputs.dim() == 2 and inputs.shape[-1] != 1)
        one_row = 1 if plain or symbols else 2
        return inputs.expand(rows, *inputs.shape) if inputs.dim() == one_row else inputs

    # ---------------------------------------------------------------- states and samples
    def filter(self, x, lengths=None, *, inputs=None):
        """(B, T, Z) p(z_t | x_1..x_t, u_1..u_t)."""
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        return self.give(self._chain(batch).filtered_states().probs, self._like(x, inputs))

    def smooth(self, x, lengths=None, *, inputs=None):
        """(B, T, Z) p(z_t | x_1..x_T, u_1..u_T)."""
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        return self.give(self._chain(batch).marginals().probs, self._like(x, inputs))

    @torch.no_grad()
    def reconstruct(self, x, lengths=None, *, inputs=None) -> Outputs:
        """What is expected of each output given all others too, E[eta(z_t, u_t) | x, u_1..u_T]: where a target is missing, its
        exact expectation.

        Args:
            x, lengths, inputs: the data.
        """
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        states = self._chain(batch).marginals().probs
        return self._shaped(self._expected(states, batch.x, batch.inputs, batch.lengths), batch, self._like(x, inputs))

    def sample_states(self, x, num_samples: int = 1, lengths=None, *, inputs=None, seed=None) -> Tensor:
        """(S, B, T) exact posterior paths of states, -1 at padded steps; lists are padded.

        Args:
            x, lengths, inputs: the data. num_samples: S. seed: makes the draw repeatable.
        """
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            return self._chain(batch).sample(num_samples)

    def decode(self, x, lengths=None, *, inputs=None):
        """(B, T) the most probable path of states (Viterbi), -1 at padded steps."""
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        return self.give(self._chain(batch).viterbi()[0], self._like(x, inputs))

    def score(self, x, lengths=None, *, inputs=None, states=None, per_token: bool = False) -> float:
        """log p(x | inputs), nats, summed over sequences; or the mean over steps.

        Args:
            x, lengths, inputs: the data. states: observed states, or None. per_token: divide by the number of steps.
        """
        batch = self.as_batch(x, lengths, states, inputs=inputs, partly=True)
        total = float(self._chain(batch).log_prob().sum(dtype=torch.float64))
        return total / batch.num_tokens if per_token else total

    def aic(self, x, lengths=None, *, inputs=None) -> float:
        """Akaike's information criterion, -2 log p(x | inputs) + 2 parameters: lower is better."""
        return -2 * self.score(x, lengths, inputs=inputs) + 2 * self.num_free_parameters

    def bic(self, x, lengths=None, *, inputs=None) -> float:
        """The Bayesian information criterion, -2 log p + parameters * log(targets): lower is better."""
        batch = self.as_batch(x, lengths, inputs=inputs, partly=True)
        seen = self.observed(batch.x)[1]
        if batch.lengths is not None:
            seen = seen & (torch.arange(seen.shape[1], device=seen.device) < batch.lengths.unsqueeze(-1))
        return -2 * self.score(x, lengths, inputs=inputs) + self.num_free_parameters * float(
            np.log(max(1, int(seen.sum())))
        )

    @torch.no_grad()
    def sample(
        self,
        num_steps: int | None = None,
        num_sequences: int = 1,
        *,
        inputs=None,
        lengths=None,
        seed: int | None = None,
    ):
        """Outputs drawn from the model, for given inputs.

        Args:
            num_steps, num_sequences: how much to draw where the model takes no inputs.
            inputs, lengths: the inputs, and with them how many sequences and steps.
            seed: makes the draw repeatable; None draws from torch's generator.

        Returns:
            x (B, T[, D]) and the states behind it (B, T); missing and -1 at padded steps. Lists for a list of inputs.
        """
        batch = None if inputs is None else self.as_batch(None, lengths, inputs=inputs)
        given = dict(num_sequences=num_sequences, num_steps=num_steps) if batch is None else dict(inputs=batch.inputs)
        with torch.random.fork_rng(enabled=seed is not None), self._at_point(), poutine.block():
            if seed is not None:
                torch.manual_seed(seed)
            trace = poutine.trace(self.model).get_trace(**given)
        x, states = _stacked(trace, "x"), _stacked(trace, "z")
        if batch is not None and batch.lengths is not None:
            padded = torch.arange(x.shape[1], device=x.device) >= batch.lengths.unsqueeze(-1)
            states = states.masked_fill(padded, -1)
            x = x.masked_fill(padded, -1) if self.discrete else x.masked_fill(padded.unsqueeze(-1), torch.nan)
        return self.give(x, inputs), self.give(states, inputs)

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
        source = self.sources[part]
        if source is None:
            raise ValueError(f"part: {part} sees no inputs in this model")
        kind, size = self.joined_source(source) if part in self.feedback else source
        values = torch.as_tensor(values).to(self.reference.device)
        if kind == "symbols":
            if feature is not None:
                raise ValueError(f"feature must be None for symbol inputs, got {feature!r}")
            if values.is_floating_point() or not bool(((values >= 0) & (values < size)).all()):
                raise ValueError(f"values must be symbols 0..{size - 1}, got {values.tolist()}")
            inputs = values
        else:
            if not isinstance(feature, int) or isinstance(feature, bool) or not 0 <= feature < size:
                raise ValueError(f"feature must be the number of an input, 0..{size - 1}, got {feature!r}")
            base = self.reference.new_zeros(size) if at is None else torch.as_tensor(at).to(self.reference)
            if tuple(base.shape) != (size,):
                raise ValueError(f"at must have shape (U,) = ({size},), got {tuple(base.shape)}")
            if values.dim() != 1 or not (torch.isfinite(values).all() and torch.isfinite(base).all()):
                raise ValueError(f"values must be (N,) finite numbers, at too; got {values.tolist()}")
            inputs = base.expand(len(values), size).clone()
            inputs[:, feature] = values.to(self.reference)
        transition, emission = self._specs_at_point(inputs if part == "initial" else None)
        if part == "initial":
            return transition.initial_log_prob().exp()
        return emission_means(emission.at(inputs)) if part == "emission" else transition.matrices(inputs).exp()

    # ---------------------------------------------------------------- inside
    @property
    def emission_inputs_seen(self) -> bool:
        """Whether outputs see inputs (or past outputs)."""
        return self.sources["emission"] is not None

    def _specs_at_point(self, first: Tensor | None = None):
        """Transition and emission at the point estimate; starts that see inputs need the first."""
        if first is None and self.sources["initial"] is not None:
            kind, size = self.sources["initial"]
            first = self.reference.new_zeros(size if kind == "vectors" else ())
            first = first if kind == "vectors" else first.long()
        with self._at_point(), poutine.block():
            return self.specs(first)

    def _chain(self, batch):
        return self.posterior(batch.x, batch.lengths, **batch.known)

    def _expected(self, states: Tensor, x, inputs, lengths=None, previous=None) -> Outputs:
        """Outputs of states (B, T, Z) distributed as given, (B, T, ...); x counts where it is fed back."""
        _, emission = self._specs_at_point()
        if emission.takes_inputs:
            emission = emission.at(self.network_inputs(x, inputs, lengths, previous)["emission"])
        means = emission_means(emission)
        means = means.expand(*states.shape, means.shape[-1])
        outputs = torch.einsum("btz,btzo->bto", states, means)
        if self.noise is None:
            return Outputs(states, outputs, None)
        within = torch.einsum("btz,zde->btde", states, self.noise.covariances())
        apart = means - outputs.unsqueeze(-2)
        return Outputs(states, outputs, within + torch.einsum("btz,btzd,btze->btde", states, apart, apart))

    def _simulate(self, inputs, start: Belief | None, previous: Tensor | None, num_samples: int) -> Outputs:
        """Outputs averaged over drawn trajectories: with feedback the past outputs are not summed out exactly."""

        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")

        def repeat(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.repeat_interleave(num_samples, 0)

        whole = isinstance(inputs, Mapping)
        inputs = {part: repeat(value) for part, value in inputs.items()} if whole else repeat(inputs)
        start, previous = None if start is None else Belief(*map(repeat, start)), repeat(previous)
        with self._at_point(), poutine.block():
            trace = poutine.trace(self.model).get_trace(start=start, inputs=inputs, previous=previous)
        x = _stacked(trace, "x")
        # of each trajectory its outputs alone are used: the states given them are summed out exactly
        chain = self.posterior(x, start=start, inputs=inputs, previous=previous)
        each = self._expected(chain.predicted_states().probs, x, inputs, None, previous)
        by_sequence = Outputs(*(None if v is None else v.unflatten(0, (-1, num_samples)) for v in each))
        mean = [None if v is None else v.mean(1) for v in by_sequence]
        if self.noise is not None:
            apart = by_sequence.outputs - mean[1].unsqueeze(1)
            mean[2] = mean[2] + torch.einsum("bstd,bste->btde", apart, apart) / num_samples
        return Outputs(*mean)

    @staticmethod
    def _like(x, inputs):
        return inputs if isinstance(inputs, (list, tuple)) else x

    def _shaped(self, result: Outputs, batch, like) -> Outputs:
        """Results in the form of the data, 0 at padded steps."""
        return Outputs(
            *(None if value is None else self.give(_without_padding(value, batch), like) for value in result)
        )


def _stacked(trace, site: str) -> Tensor:
    """(B, T, ...) the values at a program's sites of all steps."""
    steps = sum(name.startswith("z_") for name in trace.nodes)
    return torch.stack([trace.nodes[f"{site}_{t}"]["value"] for t in range(steps)], 1)


def _without_padding(value: Tensor, batch) -> Tensor:
    """(B, T, ...) with 0 at padded steps."""
    if batch.lengths is None:
        return value
    padded = torch.arange(value.shape[1], device=value.device) >= batch.lengths.unsqueeze(-1)
    return value.masked_fill(padded.reshape(*padded.shape, *(1,) * (value.dim() - 2)), 0.0)


def emission_means(emission: Emission) -> Tensor:
    """(*b, Z, V or D) expected outputs of each state: probabilities of words or of ones, or means."""
    if isinstance(emission, CategoricalEmission):
        return emission.log_probs.exp()
    return torch.sigmoid(emission.logits) if isinstance(emission, BernoulliEmission) else emission.loc
