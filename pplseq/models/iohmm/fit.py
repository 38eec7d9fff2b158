"""Fitting an input-output HMM: many restarts as one batch, and the choice among them."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence

import pyro
import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.gradients import fit_variationally, sample_parameters
from pplseq.models.iohmm.restarts.choice import CHOICES, choose_restart
from pplseq.models.iohmm.restarts.em import run_em
from pplseq.models.iohmm.restarts.gaussian import GaussianOutputs
from pplseq.models.iohmm.restarts.gradient import run_sgd
from pplseq.models.iohmm.restarts.history import RestartBlock, RestartHistory, Restarts
from pplseq.models.iohmm.restarts.networks import RestartNetwork
from pplseq.models.iohmm.restarts.outputs import (
    BernoulliOutputs,
    CategoricalOutputs,
    Outputs,
    Parameters,
)
from pplseq.models.iohmm.restarts.problem import PARTS, RestartProblem
from pplseq.models.iohmm.restarts.starts import draw_parameters

METHODS = ("em", "gem", "sgd", "svi", "nuts")
CELLS = 1 << 25  # numbers in the largest tensors of restarts that are fitted together


class IOHMMFitting:
    """Mixed into :class:`IOHMM`; data come as :meth:`~pplseq.models.iohmm.data.IOData.as_batch` says."""

    history: RestartHistory | None

    def fit(
        self,
        x,
        lengths=None,
        *,
        inputs=None,
        states=None,
        method: str = "em",
        num_restarts: int | RestartBlock | Sequence[RestartBlock | Mapping] = 1,
        select: str = "likelihood",
        validation=None,
        warm_start: bool = False,
        batch_size: int | None = None,
        seed: int | None = None,
        **options,
    ):
        """Fits the parameters to data; ``history`` says afterwards how it went, ``history.restarts`` of every restart.

        Args:
            x, lengths, inputs: the data; targets may be missing anywhere, or given at the last step only.
            states: observed states like x, negative where unknown.
            method: "em" (exact for tables, generalised linear models and Gaussians, a few gradient steps an iteration for
                networks with layers; with priors: maximum a posteriori), "gem" (gradient steps for all), "sgd" (Adam, on
                mini-batches of ``batch_size`` sequences), or, with priors, "svi" (``history.guide``) and "nuts"
                (``history.samples``).
            num_restarts: how many random starts; or :class:`RestartBlock` (or mappings of its arguments), one a block of starts
                with settings of its own. All are fitted as one batch.
            select: which one the model keeps: "likelihood", "validation", "bic" or "smallest_consistent"; see
                :func:`~pplseq.models.iohmm.restarts.choice.choose_restart`. To choose among sizes see :meth:`fit_sizes`.
            validation: (x, inputs) or (x, inputs, lengths) held out, for ``select``.
            warm_start: start from the parameters as they are; then there is one start.
            batch_size: sequences of a mini-batch of "sgd", "svi"; None for all.
            seed: makes the fit repeatable; None draws from torch's generator.
            **options: max_iterations (100) and tolerance (1e-5 nats per step) of "em" and "gem"; num_steps and learning_rate of
                "sgd" and "svi"; those of :func:`~pplseq.infer.fit.gradients.fit_variationally` and ``sample_parameters``.

        Returns:
            The model itself.

        Raises:
            ValueError, TypeError: for bad data or options; ArithmeticError where every restart collapsed.

        Warns:
            RuntimeWarning: where the likelihood of restarts broke, and about empty states and floors of the chosen one.
        """
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
        if select not in CHOICES:
            raise ValueError(f"select must be one of {', '.join(CHOICES)}; got {select!r}")
        if method in ("svi", "nuts") and self.priors is None:
            raise ValueError(
                f"method {method!r} needs priors: make the model with priors=True, or with WeightPriors(...)"
            )
        if select == "validation" and validation is None:
            raise ValueError("validation: select='validation' needs validation data, (x, inputs); got None")
        _check_options(method, options)
        blocks = as_blocks(num_restarts)
        total = sum(block.num_restarts for block in blocks)
        if total > 1 and (warm_start or method in ("svi", "nuts")):
            why = "a warm start has one starting point" if warm_start else f"method {method!r} has one start"
            raise ValueError(f"num_restarts: {why}, got {total}")
        batch = self._with_steps(self.as_batch(x, lengths, states, inputs=inputs, partly=True))
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            if method in ("svi", "nuts"):
                history = self._fit_distribution(batch, method, warm_start, batch_size, options)
            else:
                history = self._fit_restarts(
                    batch, method, blocks, select, self._validation_batch(validation), warm_start, batch_size, options
                )
        self.__dict__["history"] = history  # no submodule, though it may hold a guide
        return self

    @classmethod
    def fit_sizes(cls, sizes: Sequence[int], x, lengths=None, *, model: Mapping, select: str = "bic", **fit):
        """Models of several sizes, of which the best is kept: by BIC, validation data, or the smallest that is consistent.

        Args:
            sizes: numbers of states; for "smallest_consistent" they are tried in this order until one is consistent.
            x, lengths: the data. model: options of the model beside ``num_states``. select, **fit: see :meth:`fit`.

        Returns:
            The fitted model; its ``history.sizes`` holds (size, score) of every size tried.

        Raises:
            ValueError: for "likelihood", which larger models always win, and for no sizes.
        """
        if select == "likelihood":
            raise ValueError(
                "select: the likelihood grows with the size; use 'bic', 'validation' or 'smallest_consistent'"
            )
        if not len(sizes):
            raise ValueError("sizes must hold at least one number of states, got none")
        best, tried = None, []
        for size in sizes:
            candidate = cls(size, **model).fit(x, lengths, select=select, **fit)
            report = candidate.history.restarts
            tried.append((size, float(report.scores[report.chosen])))
            if best is None or tried[-1][1] > best[0]:
                best = tried[-1][1], candidate
            if select == "smallest_consistent" and tried[-1][1] == 1:
                break
        best[1].history.sizes = tried
        return best[1]

    # ---------------------------------------------------------------- data
    @staticmethod
    def _with_steps(batch: Batch) -> Batch:
        """Without empty rows, which say nothing."""
        if batch.lengths is None or bool((batch.lengths > 0).all()):
            return batch
        keep = batch.lengths > 0
        if not bool(keep.any()):
            raise ValueError("x must hold at least one step, got empty sequences only")
        return _rows(batch, keep)

    def _validation_batch(self, validation) -> Batch | None:
        if validation is None:
            return None
        if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
            raise TypeError("validation must be (x, inputs) or (x, inputs, lengths)")
        x, inputs, *lengths = validation
        return self._with_steps(self.as_batch(x, *lengths, inputs=inputs, partly=True))

    def _problem(self, batch: Batch, networks: dict) -> RestartProblem:
        x, known = self.observed(batch.x)
        states = batch.states
        if self.outputs == "states":  # targets are what is known of the states
            states = torch.where(known, x, -1 if states is None else states)
            known = torch.zeros_like(known)
        rows, steps = batch.x.shape[:2]
        lengths = torch.full((rows,), steps, device=x.device) if batch.lengths is None else batch.lengths
        return RestartProblem(
            **networks, x=x, known=known, inputs=self.network_inputs(batch.x, batch.inputs, batch.lengths),
            lengths=lengths, states=states, before_first=self.initial == "transition",
        )  # fmt: skip

    def _restart_networks(self) -> dict:
        """The networks as the learning side sees them."""
        own = self._networks()
        result = {
            "initial": RestartNetwork(own["initial_network"], self.start_states),
            "transition": RestartNetwork(own["transition_network"], self.graph),
        }
        output = None if self.outputs == "states" else RestartNetwork(own["emission_network"])
        if output is None:
            result["outputs"] = Outputs(self.num_states)
        elif self.outputs == "gaussian":
            result["outputs"] = GaussianOutputs(output, self.covariance, self.covariance_floor)
        else:
            result["outputs"] = (CategoricalOutputs if self.outputs == "categorical" else BernoulliOutputs)(output)
        return result

    # ---------------------------------------------------------------- parameters
    def _named(self) -> dict[str, dict[str, Tensor]]:
        """The parameters by part ("noise" among them)."""
        return {name.removesuffix("_network"): dict(part.named_parameters()) for name, part in self._networks().items()}

    def _as_restart(self) -> Parameters:
        return {p: {k: v.detach().unsqueeze(-1).clone() for k, v in w.items()} for p, w in self._named().items()}

    @torch.no_grad()
    def _load_restart(self, parameters: Parameters, restart: int) -> None:
        for part, weights in self._named().items():
            for name, value in weights.items():
                new = parameters[part][name][..., restart]
                if (
                    part == "emission" and self.outputs == "bernoulli" and name == "logits"
                ):  # logits of 0 and 1 stay finite
                    new = new.clamp(*(sign * math.log(torch.finfo(new.dtype).tiny) for sign in (1, -1)))
                value.copy_(new)

    # ---------------------------------------------------------------- the ways
    def _fit_restarts(
        self, batch, method, blocks, select, validation, warm_start, batch_size, options
    ) -> RestartHistory:
        networks = self._restart_networks()
        problem = self._problem(batch, networks)
        if problem.num_targets == 0 and problem.seen.states is None:
            raise ValueError("x must hold at least one target, got missing ones only")
        precisions = {}
        if self.priors is not None:
            precisions = {name: getattr(self.priors, name) ** -2 for name in (*PARTS, "noise")}
        if method != "sgd" and batch_size is not None:
            raise ValueError(
                "batch_size: mini-batches are for method 'sgd'; EM sees all sequences at once, got method 'em'"
            )
        problems = [problem]
        if method == "sgd" and batch_size is not None:
            if batch_size < 1:
                raise ValueError(f"batch_size must be positive, got {batch_size}")
            rows = torch.arange(len(batch.x), device=batch.x.device).split(batch_size)
            problems = [self._problem(_rows(batch, part), networks) for part in rows]
        parts = []
        for group in _groups(blocks, problem):
            for network in (problem.initial, problem.transition, problem.outputs):
                network.forget()
            parameters = self._as_restart() if warm_start else draw_parameters(problem, group)
            common = dict(blocks=group, precisions=precisions, **options)
            parts.append(run_sgd(problems, parameters, **common) if method == "sgd" else
                         run_em(problem, parameters, gradient=method == "gem", **common))  # fmt: skip
        result = Restarts.join(parts)
        result.block = torch.repeat_interleave(
            torch.arange(len(blocks)), torch.tensor([b.num_restarts for b in blocks])
        )
        self._check_possible(batch, problem, result)
        held_out = None if validation is None else self._problem(validation, networks)
        notes = choose_restart(
            result, problem, select, validation=held_out, num_free_parameters=self.num_free_parameters
        )
        self._load_restart(result.parameters, result.chosen)
        return self._history(method, problem, result, notes)

    def _check_possible(self, batch: Batch, problem: RestartProblem, result: Restarts) -> None:
        """Raises where no start can explain the data: it is the data, or the graph."""
        if not bool(torch.isneginf(result.log_likelihoods).all()):
            return
        log_prob = problem.expect(result.parameters, counts=False).log_prob
        row = int(torch.isneginf(log_prob).all(1).nonzero()[:1].sum())
        raise ValueError(
            f"x: sequence {row} has probability zero under every start; check the graph, start_states and observed states"
        )

    def _history(self, method: str, problem: RestartProblem, result: Restarts, notes: list[str]) -> RestartHistory:
        chosen = result.chosen
        history = RestartHistory(method, problem.num_steps, restarts=result)
        trace, objectives = result.trace[:, chosen], result.objectives[:, chosen]
        known = ~trace.isnan()
        if self.priors is not None:  # with the normalisers of the priors, which EM leaves out
            objectives = objectives + sum(
                float(self._prior(name, value.detach()).log_prob(torch.zeros_like(value)))
                for name, network in self._networks().items() for value in network.parameters()
            )  # fmt: skip
        history.log_likelihoods, history.log_posteriors = trace[known].tolist(), objectives[known].tolist()
        if method == "sgd":
            history.losses = (-trace[known] / problem.num_steps).tolist()
            history.log_likelihoods = [float(result.log_likelihoods[chosen])]
            history.log_posteriors = [float(result.log_posteriors[chosen])]
        history.converged = bool(result.converged[chosen])
        steps = int(result.num_iterations[chosen])
        history.reason = "converged" if history.converged else f"{steps} steps done"
        history.note(notes)
        loud = [note for note in notes if any("likelihood" in why for why in result.dropped.values())]
        if chosen in result.fell:
            history.reason = "the objective fell"
            loud.append("EM's objective fell by more than rounding: the parameters before are kept; use float64")
        if chosen in result.empty:
            loud.append(f"states {', '.join(map(str, result.empty[chosen]))} of the chosen restart are empty")
        if chosen in result.floored:
            loud.append(
                f"a variance met its floor of {self.covariance_floor:g}: fewer states may fit better, or a lower "
                "covariance_floor where the outputs' own variance is as small"
            )
        history.note(loud)
        for note in loud:
            warnings.warn(note, RuntimeWarning, stacklevel=4)
        return history

    def _fit_distribution(self, batch: Batch, method: str, warm_start: bool, batch_size: int | None, options: dict):
        if not warm_start:
            self.initialize(batch)
        if method == "svi":
            rows = torch.arange(len(batch.x), device=batch.x.device).split(batch_size or len(batch.x))
            batches = [batch] if len(rows) == 1 else [_rows(batch, part) for part in rows]
            history = fit_variationally(self, batches, initial=self.sites(), **options)
            with pyro.get_param_store().scope():  # a guide's median puts its parameters there
                self._set_sites(history.guide.median())
            return history
        history = sample_parameters(self, batch, initial=self.sites(), **options)
        draws = [
            self._log_joint_at(history.samples, k, batch) for k in range(len(next(iter(history.samples.values()))))
        ]
        self._set_sites({name: value[draws.index(max(draws))] for name, value in history.samples.items()})
        return history

    def _log_joint_at(self, samples: dict[str, Tensor], draw: int, batch: Batch) -> float:
        self._set_sites({name: value[draw] for name, value in samples.items()})
        with torch.no_grad():
            return float(self.log_joint(batch.x, batch.lengths, **batch.known))

    @torch.no_grad()
    def _set_sites(self, sites: Mapping[str, Tensor]) -> None:
        for part, network in self._networks().items():
            for name, value in network.named_parameters():
                value.copy_(sites[f"{part}.{name}"])


FITTERS = {"em": run_em, "gem": run_em, "sgd": run_sgd, "svi": fit_variationally, "nuts": sample_parameters}


def _check_options(method: str, options: Mapping) -> None:
    """Raises for options that the method does not take, or that make no sense."""
    parameters = inspect.signature(FITTERS[method]).parameters.values()
    own = {"blocks", "precisions", "gradient", "initial"}  # what fit itself decides
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in own]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if open_ended else sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(
            f"fit: method {method!r} has no option {', '.join(map(repr, unknown))}; it takes {', '.join(known)}"
        )
    for name, least in (("max_iterations", 1), ("num_steps", 1), ("tolerance", 0.0)):
        if name in options and not options[name] >= least:
            raise ValueError(f"{name} must be at least {least}, got {options[name]}")


def as_blocks(num_restarts) -> list[RestartBlock]:
    """Blocks of restarts from a number, a block, or a list of blocks or of mappings of their arguments."""
    if isinstance(num_restarts, bool) or not isinstance(num_restarts, (int, RestartBlock, list, tuple)):
        came = type(num_restarts).__name__
        raise TypeError(f"num_restarts must be a number, a RestartBlock or a list of them, got {came}")
    if isinstance(num_restarts, int):
        return [RestartBlock(checks.count("num_restarts", num_restarts))]
    if isinstance(num_restarts, RestartBlock):
        return [num_restarts]
    blocks = [RestartBlock(**block) if isinstance(block, Mapping) else block for block in num_restarts]
    if not blocks or not all(isinstance(block, RestartBlock) for block in blocks):
        raise TypeError("num_restarts must list RestartBlock's, or mappings of their arguments")
    return blocks


def _groups(blocks: list[RestartBlock], problem: RestartProblem) -> list[list[RestartBlock]]:
    """The blocks cut into groups that fit into memory together."""
    num_states = problem.outputs.num_states
    numbers = problem.lattice.num_packed * num_states
    numbers *= num_states if problem.lattice.pair_index is None else 1
    most = max(1, CELLS // max(numbers, 1))
    groups, room = [[]], most
    for block in blocks:
        left = block.num_restarts
        while left:
            if room == 0:
                groups.append([])
                room = most
            now = min(left, room)
            groups[-1].append(block.replaced(now))
            left, room = left - now, room - now
    return groups


def _rows(batch: Batch, rows: Tensor) -> Batch:
    """Some rows of a batch."""
    inputs = batch.inputs
    if isinstance(inputs, Mapping):
        inputs = {part: value[rows] for part, value in inputs.items()}
    elif inputs is not None:
        inputs = inputs[rows]
    return Batch(
        batch.x[rows], None if batch.lengths is None else batch.lengths[rows],
        None if batch.states is None else batch.states[rows], inputs,
    )  # fmt: skip
