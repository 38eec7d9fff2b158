"""The chain: the one intermediate form that every front end lowers to, and every posterior query on it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from pyro.distributions import Categorical
from torch import Tensor

from pplseq import checks
from pplseq.distributions.dense import CategoricalEmission, StepTransition
from pplseq.distributions.state import Belief, Emission, Transition
from pplseq.infer.discrete.expectations import PathExpectations
from pplseq.infer.discrete.results import (
    ExpectedCounts,
    Factors,
    MissingWords,
    PairMarginals,
    StateMarginals,
)
from pplseq.infer.forecasts import Forecast
from pplseq.kernels import path_scan, scan, twice
from pplseq.threads import once

if TYPE_CHECKING:
    from pplseq.infer.discrete.constrained.chain import ConstrainedChain
    from pplseq.infer.discrete.constrained.moves import WordMoves


def query(method):
    """A question to the posterior: needs no gradients, but leaves those of ``log_prob`` for later."""

    @functools.wraps(method)
    def answer(self, *args, **kwargs):
        self._possible()  # what all queries share, in the caller's own gradient mode
        with torch.no_grad():
            return method(self, *args, **kwargs)

    return answer


class Chain(PathExpectations):
    """p(z, x) of a batch of sequences, and its posterior; :func:`~pplseq.infer.discrete.build.build_chain` makes one.

    What it is given is laid out as programs and kernels run, time first; what it answers, batch first.

    Args:
        transition, emission: the specs.
        obs: (T, *B[, D]) observations.
        valid: (T, *B) False at padded steps (a prefix of each row is valid), or None.
        seen: (T, *B) False at missing observations, or None.
        states: (T, *B) observed states, negative where unknown, or None.
        start: the belief one step before the first, or None for the start distribution.
        inputs: (T, *B[, U]) what transitions depend on besides the state, or None.
        emission_inputs: (T, *B[, U]) what observations depend on besides the state, or None; finite also where masked.
        check: raise for an impossible row (costs a synchronisation on a GPU).

    All results are in nats, batch first. Padded steps have state -1 in paths and 0 elsewhere.
    """

    _was_checked = False  # whether every row is possible
    is_whole = False  # whether it is known that every observation is there

    def __init__(
        self,
        transition: Transition,
        emission: Emission,
        obs: Tensor,
        *,
        valid: Tensor | None = None,
        seen: Tensor | None = None,
        states: Tensor | None = None,
        start: Belief | None = None,
        inputs: Tensor | None = None,
        emission_inputs: Tensor | None = None,
        check: bool = True,
    ):
        twice.refuse_jit()
        if obs.shape[0] == 0:
            raise ValueError("obs: a chain needs at least one step, got T = 0")
        self.transition, self.emission, self.obs = transition, emission, obs
        self.start, self.inputs, self.states, self.check = start, inputs, states, check
        self.emission_inputs = emission_inputs
        self._conditional = getattr(emission, "takes_inputs", False)  # an emission may be any object
        if (emission_inputs is not None) != self._conditional:
            what = "depends on inputs" if self._conditional else "depends on none"
            got = None if emission_inputs is None else tuple(emission_inputs.shape)
            raise ValueError(f"emission_inputs: this {type(emission).__name__} {what}, got {got}")
        self.batch_shape = self.full_batch = obs.shape[1 : obs.dim() - len(emission.event_shape)]
        # masks that say nothing cost nothing afterwards
        known = checks.WHOLE.get()
        self.valid = None if valid is None or (not known and bool(valid.all())) else valid
        if self.valid is not None and not known:
            checks.padding(self.valid)
        if seen is not None and self.valid is not None:
            seen = seen | ~self.valid
        self.seen = None if seen is None or known or bool(seen.all()) else seen
        if emission.num_states != transition.num_states:
            raise ValueError(
                f"emission has {emission.num_states} states, but the transition has {transition.num_states}; they must agree"
            )
        if hasattr(emission, "num_words"):
            self.obs = self._checked_words(emission.num_words)

    def _checked_words(self, num_words: int) -> Tensor:
        """The observations, with any id where none is used; a negative index would quietly mean the last words."""
        if checks.WHOLE.get():
            return self.obs
        bad = (self.obs < 0) | (self.obs >= num_words)
        if not bool(bad.any()):
            return self.obs
        used = bad
        for mask in (self.valid, self.seen):
            used = used if mask is None else used & mask
        if bool(used.any()):
            step, *row = used.nonzero()[0].tolist()
            raise ValueError(
                f"obs: row {row[0] if len(row) == 1 else tuple(row)}, step {step}: word id {int(self.obs[used][0])} is not in "
                f"0..{num_words - 1}; for a missing word mask the observation site (poutine.mask)"
            )
        return self.obs.masked_fill(bad, 0)

    @property
    def num_steps(self) -> int:
        return self.obs.shape[0]

    # ---------------------------------------------------------------- from kernels to answers
    def _unflatten(self, value: Tensor, dim: int = 0) -> Tensor:
        """The batch dimension ``dim`` back to its full shape, where this family flattens it."""
        if self.full_batch == self.batch_shape:
            return value
        return value.reshape(value.shape[:dim] + self.full_batch + value.shape[dim + 1 :])

    def _batch_first(self, value: Tensor, lead: int = 0, event: int = 0) -> Tensor:
        """(*lead, T, B, *event), as kernels have it, -> (*lead, *B, T, *event); lead, event: how many dimensions these are."""
        return self._unflatten(value.movedim(lead, value.dim() - 1 - event), lead)

    def _ids(self) -> Tensor | None:
        """(T, B, K) the states that factors are about, None for all."""
        return None

    def _named_ids(self) -> Tensor | None:
        ids = self._ids()
        return None if ids is None else self._batch_first(ids, event=1)

    # ---------------------------------------------------------------- lowering, once
    def _lower(self) -> Factors:
        raise NotImplementedError

    @once
    def factors(self) -> Factors:
        """The chain in numbers, computed once."""
        return self._lower()

    def prepare(self) -> None:
        """Reads all parameters that queries need."""
        _ = self.factors

    @once
    def _forward(self) -> scan.Forward:
        return scan.chain_log_prob(*self.factors)

    @once
    def _matrices(self) -> scan.LogMatrices:
        f = self.factors
        restart_to = None if f.restart_to is None else f.restart_to.detach()
        return scan.StepMatrices(f.pair.detach(), f.shared, f.restart, restart_to)

    @once
    def _beta(self) -> Tensor:
        return scan.backward_pass(self._matrices, self.factors.emit.detach(), self.factors.valid)

    def _possible(self) -> scan.Forward:
        forward = self._forward
        if self.check and not self._was_checked and not (checks.WHOLE.get() and forward.log_prob.device.type != "cpu"):
            impossible = torch.isneginf(forward.log_prob)
            # where parameters come in a batch (outer enumeration), a row is impossible if it is so under all of them
            extra = impossible.dim() - len(self.batch_shape)
            if twice.holds((impossible.flatten(0, extra - 1).all(0) if extra > 0 else impossible).any()):
                self._raise_impossible(forward.step_log_prob)
            self._was_checked = True
        return forward

    def _original_step(self, step: int, row: tuple[int, ...]) -> int:
        return step

    def _raise_impossible(self, steps: Tensor):
        step, *row = (int(i) for i in torch.isneginf(steps).nonzero()[0])
        row = tuple(row[len(row) - len(self.batch_shape) :])
        step = self._original_step(step, row)
        what = self.obs[(step, *row)].tolist()
        raise ValueError(
            f"obs: row {row[0] if len(row) == 1 else row}, step {step}: observation {what} is impossible (probability zero) "
            "given the steps before it; check the observed states and the zeros of the transition and emission tables, or "
            "smooth them, as EM of an HMM of words does with priors={\"emission\": 1.1}"
        )

    @contextlib.contextmanager
    def unchecked(self) -> Iterator[None]:
        """While this lasts an impossible row is no error, and its log-probability -inf."""
        before, self.check = self.check, False
        try:
            yield
        finally:
            self.check = before

    # ---------------------------------------------------------------- likelihood and filtering
    def log_prob(self) -> Tensor:
        """(*B,) log p(x), differentiable.

        Raises:
            ValueError: if a row is impossible; names the row and the step.
        """
        return self._unflatten(self._possible().log_prob)

    def token_log_probs(self) -> Tensor:
        """(*B, T) log p(x_t | x_<t); 0 at padded and missing steps."""
        return self._batch_first(self._step_log_probs())

    def _step_log_probs(self) -> Tensor:
        """(T, B)"""
        return self._possible().step_log_prob

    def filtered(self) -> Belief:
        """The belief after the last step, to start the next segment from; gradients do not flow into it."""
        log_probs = self._possible().last
        if self.valid is not None:
            log_probs = self._keep_start(log_probs, ~self.valid[0])
        return Belief(None, log_probs.detach())

    @query
    def filtered_states(self) -> StateMarginals:
        """p(z_t | x_1..x_t), (*B, T, K)."""
        probs, valid = self._possible().filtered.exp(), self.valid  # not that of factors, which may be a matrix a step
        return self._by_state(probs if valid is None else probs * valid.unsqueeze(-1))

    def _by_state(self, probs: Tensor) -> StateMarginals:
        """From (T, B, K)."""
        return StateMarginals(self._named_ids(), self._batch_first(probs, event=1))

    def _keep_start(self, log_probs: Tensor, empty: Tensor) -> Tensor:
        """Rows without any step end where they started."""
        if not bool(empty.any()):
            return log_probs
        if self.start is None:
            raise ValueError("valid: a row without any step has no filtered belief; give it a start or leave it out")
        return torch.where(empty.unsqueeze(-1), self.start.dense(self.transition.num_states), log_probs)

    # ---------------------------------------------------------------- smoothing
    @query
    def marginals(self) -> StateMarginals:
        """p(z_t | x), (*B, T, K)."""
        return self._by_state(self._state_probs())

    def _state_probs(self) -> Tensor:
        """(T, B, K) p(z_t | x)."""
        f = self.factors
        return scan.smooth(self._matrices, f.emit, self._possible(), f.valid, pairs=False)[0]

    @query
    def pair_marginals(self) -> PairMarginals:
        """p(z_t, z_{t+1} | x), (*B, T-1, K, K)."""
        return PairMarginals(self._named_ids(), self._batch_first(self._pair_probs(), event=2))

    def _pair_probs(self) -> Tensor:
        """(T-1, B, K, K) p(z_t, z_{t+1} | x)."""
        forward, f = self._possible(), self.factors
        # one matrix a step, so that nothing is summed over steps
        steps = range(1, self.num_steps)
        shape = (*f.emit.shape[1:], f.emit.shape[-1])
        log = torch.stack([self._matrices.at(t).expand(shape) for t in steps]) if steps else f.emit.new_zeros(0, *shape)
        matrices = scan.StepMatrices(log, shared=False)
        return scan.pair_posterior(matrices, f.emit, forward, self._beta, f.valid, None)

    @query
    def expected_counts(self) -> ExpectedCounts:
        """Expected starts, transitions and visits given x, summed over rows: the E-step of EM."""
        f, forward = self.factors, self._possible()
        probs, transition = scan.smooth(self._matrices, f.emit, forward, f.valid)
        assert transition is not None, "pairs are asked for"
        num_states = f.emit.shape[-1]
        start = probs[0] if self.start is None else torch.zeros_like(probs[0])
        return ExpectedCounts(
            start.reshape(-1, num_states).sum(0),
            transition.reshape(-1, num_states, num_states).sum(0) if not f.shared else transition,
            None,
            probs.reshape(-1, num_states).sum(0),
            self._by_state(probs),
        )

    @query
    def entropy(self) -> Tensor:
        """(*B,) entropy of p(z_1..z_T | x), nats: H(z_1) + sum_t H(z_t | z_{t-1}), from single and pair marginals."""
        pair = self._pair_probs()
        joint = -torch.special.entr(pair).flatten(-2).sum(-1).sum(0)  # sum p log p
        inner = -torch.special.entr(pair.sum(-1)).sum(-1).sum(0)
        return self._unflatten(torch.special.entr(self._state_probs()[0]).sum(-1) - joint + inner)

    # ---------------------------------------------------------------- paths
    def _paths(self, position: Tensor) -> Tensor:
        """Positions (..., T, B) among a step's states -> state ids, -1 at padded steps."""
        ids, valid = self._ids(), self.factors.valid
        if ids is not None:
            position = ids.expand(*position.shape, -1).gather(-1, position.unsqueeze(-1)).squeeze(-1)
        return position if valid is None else position.masked_fill(~valid, -1)

    def viterbi(self) -> tuple[Tensor, Tensor]:
        """The most probable path: ids (*B, T) and log p(path, x) (*B,)."""
        _ = self.factors  # made in the caller's own gradient mode
        with torch.no_grad():  # no query as the others: it does without the forward pass
            paths, log_prob = self._best_path()
        if self.check and bool(torch.isneginf(log_prob).any()):
            self._possible()  # says where
        return self._batch_first(paths), self._unflatten(log_prob)

    def _best_path(self) -> tuple[Tensor, Tensor]:
        """(T, B) and (B,)"""
        f = self.factors
        position, log_prob = path_scan.viterbi_pass(f.init.expand(f.emit.shape[1:]), self._matrices, f.emit, f.valid)
        return self._paths(position), log_prob

    @query
    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable paths: ids (k, *B, T), log p(path, x) (k, *B), -inf where there are fewer than k."""
        paths, log_prob = self._best_paths(checks.count("k", k))
        return self._batch_first(paths, 1), self._unflatten(log_prob, 1)

    def _best_paths(self, k: int) -> tuple[Tensor, Tensor]:
        """(k, T, B) and (k, B)"""
        f = self.factors
        position, log_prob = path_scan.k_best_pass(f.init.expand(f.emit.shape[1:]), self._matrices, f.emit, f.valid, k)
        return self._paths(position), log_prob

    @query
    def sample(self, num_samples: int = 1) -> Tensor:
        """(S, *B, T) exact posterior paths, by filtering forward and sampling backward."""
        return self._batch_first(self._draw_paths(checks.count("num_samples", num_samples)), 1)

    def _draw_paths(self, num_samples: int) -> Tensor:
        """(S, T, B)"""
        filtered = self._possible().filtered
        return self._paths(path_scan.sample_pass(self._matrices, filtered, self.factors.valid, num_samples))

    # ---------------------------------------------------------------- prediction
    @query
    def next(self, inputs: Tensor | None = None, emission_inputs: Tensor | None = None) -> Forecast:
        """The distribution of the step behind the last one.

        Args:
            inputs, emission_inputs: (*B[, U]) inputs of that step, where transitions or emissions depend on inputs.
        """
        return self.next_after(self.filtered(), inputs, emission_inputs)

    @torch.no_grad()
    def next_after(
        self, belief: Belief | None, inputs: Tensor | None = None, emission_inputs: Tensor | None = None
    ) -> Forecast:
        """The distribution of the step behind a belief, or of a first step (one row), whatever this chain has observed.

        Args:
            belief: what a chain's ``filtered()`` returned, or None for the start.
            inputs, emission_inputs: as for :meth:`next`.
        """
        if belief is not None:
            states = self._predict(belief, inputs)
        elif inputs is not None:
            assert isinstance(self.transition, StepTransition), "only starts of a matrix a step depend on inputs"
            states = self.transition.initial_log_prob(inputs)
        else:
            states = self.transition.initial_log_prob().unsqueeze(0)
        of_words = hasattr(self.emission, "word_log_prob") and (not self._conditional or hasattr(self.emission, "num_words"))
        return Forecast(states, self._words(states, emission_inputs) if of_words else None)

    def _words(self, states: Tensor, inputs: Tensor | None) -> Tensor:
        """(R, V) log p(x) of states (R, Z) distributed as given, under the emission at these inputs."""
        if not self._conditional:
            return self.emission.word_log_prob(states)
        if inputs is None:
            raise ValueError("emission_inputs: this emission depends on inputs; give those of the step")
        return self.emission.word_log_prob(states, inputs)

    def _emission_inputs_at(self, places: Tensor) -> Tensor | None:
        """(R[, U]) at rows and steps (R, 2)."""
        return None if self.emission_inputs is None else self.emission_inputs[places[:, 1], places[:, 0]]

    def _predict(self, belief: Belief, inputs: Tensor | None) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def constrained(self, moves: WordMoves, longest: int, shortest: int | None = None, **options) -> ConstrainedChain:
        """The words to come behind each row, which an automaton over words accepts; no gradients flow.

        Args:
            moves: the automaton; it has read nothing yet. longest, shortest: words to come, at most and at least.
            **options: ``start``: (B,) the automaton's states, as ``moves.run(x)`` tells them, where it is to read what was
                observed, too; ``end``, ``log_lengths``, ``kept_bytes``: see
                :func:`~pplseq.infer.discrete.constrained.build.constrain`, which is for specs without observations.
        """
        from pplseq.infer.discrete.constrained.build import constrain

        return constrain(
            self.transition, self.emission, moves, longest, shortest, first=self.next().state_log_probs.detach(), **options
        )

    # ---------------------------------------------------------------- missing words
    def _missing_places(self) -> Tensor:
        """(R, 2) row and step of missing observations, by row."""
        if self.seen is None:
            raise ValueError("missing_words: no observation is missing in this chain")
        if len(self.full_batch) != 1:
            raise ValueError("missing_words needs one batch dimension; flatten the plates")
        return (~self.seen).T.nonzero()

    @query
    def missing_words(self) -> MissingWords:
        """The exact distribution of each missing word given everything that was seen.

        Raises:
            ValueError: if no word is missing.
        """
        places = self._missing_places()
        states = self.marginals().dense(self.transition.num_states)[places[:, 0], places[:, 1]].log()
        return MissingWords(places, self._words(states, self._emission_inputs_at(places)))

    def _word_given_path(self, paths: Tensor, places: Tensor) -> Tensor:
        """(S, R, V) log p(x_t | path) up to a constant, of missing words; paths (S, B, T)."""
        states = paths[:, places[:, 0], places[:, 1]]
        if not self._conditional:
            assert isinstance(self.emission, CategoricalEmission), "words of dense chains have a table"
            return self.emission.log_probs[states]
        words = self.emission.distribution(states, self._emission_inputs_at(places))
        assert isinstance(words, Categorical), "missing observations are filled in where they are words"
        return words.logits

    @query
    def sample_words(self, num_samples: int = 1) -> Tensor:
        """(S, B, T) the observations, with missing words drawn jointly from their exact posterior."""
        paths, places = self.sample(num_samples), self._missing_places()
        words = self.obs.T.expand(paths.shape).clone()
        words[:, places[:, 0], places[:, 1]] = path_scan.sample_log(self._word_given_path(paths, places))
        return words
