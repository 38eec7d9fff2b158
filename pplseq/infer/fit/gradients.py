"""Fitting a whole data set by gradients, variational inference or NUTS; :mod:`pplseq.infer.fit.em` is the fourth way."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from pyro.infer import MCMC, NUTS, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal, init_to_median, init_to_value
from torch import Tensor

from pplseq import checks
from pplseq.distributions.drawing import undrawn
from pplseq.infer.fit import optimizers
from pplseq.infer.fit.em import Batch, FitHistory
from pplseq.infer.fit.held import Ends, Entries, Slot, between, entries_of, held, holding, settle
from pplseq.infer.fit.points import Points
from pplseq.threads import alone

NEAR = 0.05  # of a logarithm: what L-BFGS keeps from an end
ROUNDED = 1e-5  # of a logarithm: how far an M-step in single precision may miss an end
GUIDES = {"normal": AutoNormal, "delta": AutoDelta}


def _start_at(initial: dict[str, Tensor] | None):
    return init_to_median if initial is None else init_to_value(values=initial)


class Descent:
    """Adam on a loss, nats per token, of one batch a step, in random order; the learning rate falls to a tenth over the run.

    Args:
        loss: of a batch. parameters: that it is differentiable in. batches: the data.
        sizes: of the batches, over which their losses are means: a step of one counts by its size, as batches are not of one,
            so that the mean over all is the gradient of the whole.
        history: gets the losses. num_steps: gradient steps. lr: Adam's.

    Attributes:
        order: numbers of the batches that come before all are drawn again.
        whose: the model whose loss it is, where this loss draws nothing; else the loss.
    """

    def __init__(
        self, loss: Callable[[Batch], Tensor], parameters: Iterable[Tensor], batches: Sequence[Batch],
        sizes: Sequence[int], history: FitHistory, num_steps: int, lr: float,
    ):  # fmt: skip
        self.loss, self.batches, self.history = loss, batches, history
        self.weights = [size * len(sizes) / sum(sizes) for size in sizes]
        self.whose: Any = loss
        self.num_steps, self.order = checks.count("num_steps", num_steps), list[int]()
        self.parameters = list(parameters)
        self.moved: dict[str, Tensor] = {}
        self.ends: Ends = {}
        self.points = Points(dict(enumerate(self.parameters)))
        self.optimizer = optimizers.Adam(self.points.leaves, lr=checks.positive("lr", lr))
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.1 ** (1 / num_steps))

    @classmethod
    def of_model(cls, model, batches: Sequence[Batch], num_steps: int = 500, lr: float = 0.05) -> Descent:
        """On -(log p(x) + log prior) / tokens, over ``model.parameters()``.

        Args:
            model: offers ``log_joint(x, lengths, share=..., **batch.known)``, differentiable.
        """
        history = FitHistory("sgd", sum(batch.num_tokens for batch in batches))

        def loss(batch: Batch) -> Tensor:
            share = batch.num_tokens / history.num_tokens
            return -model.log_joint(batch.x, batch.lengths, **batch.known, share=share) / batch.num_tokens

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not parameters:
            raise ValueError("fixed: every parameter is held, so there is nothing to fit")
        found = cls(loss, parameters, batches, [batch.num_tokens for batch in batches], history, num_steps, lr)
        found.whose = model
        found.moved = {name: raw for name, raw in model.named_parameters() if raw.requires_grad}
        told = {name for name, raw in found.moved.items() if (own := entries_of(raw)) is not None and own.bounded}
        found.ends = {name: ends for name, ends in ends_of(model, batches).items() if name not in told}
        return found

    def step(self) -> float:
        """The loss of the next batch, before the step that it makes."""
        self.order = self.order or torch.randperm(len(self.batches)).tolist()
        self.optimizer.zero_grad()
        with undrawn(self.whose):
            number = self.order.pop()
            loss = self.loss(self.batches[number])
            if bool(loss.isnan()):
                raise ArithmeticError(f"the loss is NaN at step {len(self.history.losses)}; use a smaller lr")
            (loss * self.weights[number]).backward()
            self.points.pull()
            if not _finite(self.points.leaves):
                raise ArithmeticError(f"the gradient is NaN at step {len(self.history.losses)}; use a smaller lr")
            self.optimizer.step()
            self.points.put()
            settle(self.parameters)
            for name, (low, high) in self.ends.items():
                raw = self.moved[name]
                raw.data.copy_(torch.where(_free(raw), raw.clamp(low, high), raw))
            self.schedule.step()
            self.history.losses.append(float(loss.detach()))
        return self.history.losses[-1]

    def remarks(self) -> list[str]:
        """What is to be said of the parameters as they are."""
        return collapsed(self.moved, self.ends)

    def run(self) -> FitHistory:
        """All steps."""
        for _ in range(self.num_steps):
            self.step()
        self.history.note(self.remarks())
        for note in self.history.notes:
            warnings.warn(note, RuntimeWarning, stacklevel=3)
        self.history.reason = f"num_steps = {self.num_steps} done"
        return self.history


def _finite(parameters: Iterable[Tensor]) -> bool:
    """Whether gradients are numbers."""
    return all(parameter.grad is None or bool(parameter.grad.isfinite().all()) for parameter in parameters)


def maximize_by_gradient(
    model, batches: Sequence[Batch], *, num_steps: int = 500, lr: float = 0.05
) -> FitHistory:
    """A :meth:`Descent.of_model` to its end.

    Raises:
        ArithmeticError: if the loss is NaN.
    """
    return Descent.of_model(model, batches, num_steps, lr).run()


def maximize_by_lbfgs(
    model, batches: Sequence[Batch], *, num_steps: int = 100, lr: float = 1.0, tolerance: float = 1e-7
) -> FitHistory:
    """L-BFGS with line searches on -(log p(x) + log prior) / tokens, over ``model.parameters()``; all batches every time.

    Args:
        model: a :class:`~pplseq.infer.fit.fittable.Fittable` with ``log_joint(x, lengths, share=..., **batch.known)``,
            differentiable.
        num_steps: iterations at most, of up to 25 evaluations each. lr: length of the first trial step.
        tolerance: stop when an iteration gains at most this, nats per token, and so does one along the gradient alone.

    Raises:
        ArithmeticError: if the loss is not finite where the fit starts.
    """
    history = FitHistory("lbfgs", sum(batch.num_tokens for batch in batches))
    moved = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not moved:
        raise ValueError("fixed: every parameter is held, so there is nothing to fit")
    units = model._parameter_units()
    points = Points(moved, units)
    parameters = points.leaves
    wall = math.nan  # the loss where there is no model, once that of the start is known

    @torch.no_grad()
    def loss_here() -> float:
        every = [model.log_joint(b.x, b.lengths, **b.known, share=b.num_tokens / history.num_tokens) for b in batches]
        return -float(sum(every)) / history.num_tokens

    def evaluate() -> float:
        total = 0.0
        put()
        for batch in batches:
            share = batch.num_tokens / history.num_tokens
            loss = -model.log_joint(batch.x, batch.lengths, **batch.known, share=share) / history.num_tokens
            loss.backward()
            total += float(loss.detach())
        points.pull()
        return total

    def put() -> None:
        points.put()
        settle(moved.values())

    def closure() -> float:
        nonlocal wall
        optimizer.zero_grad()
        for raw in moved.values():
            raw.grad = None
        try:
            total = evaluate()
        except (ValueError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
            if math.isnan(wall):
                raise
            total = math.nan
        if math.isnan(wall):
            slope = math.isfinite(total) and not _finite(parameters)
            if slope or not math.isfinite(total):
                has_em = "em" in getattr(model, "methods", ("em",))
                other = "use method 'em' first" if has_em else "start elsewhere: another seed, or warm_start=True"
                raise ArithmeticError(f"the {'gradient is NaN' if slope else f'loss is {total}'} where the fit starts; {other}")
            wall = total + 1e6 * (1 + abs(total))
        if math.isfinite(total) and _finite(parameters):
            return total
        optimizer.zero_grad()  # a trial step too long: high and flat, so that the search turns back; it cannot do with inf
        return wall

    def anew() -> optimizers.LBFGS:
        return optimizers.LBFGS(
            parameters, lr=lr, max_iter=1, max_eval=25, history_size=20, line_search_fn="strong_wolfe",
            tolerance_change=0.0, tolerance_grad=0.0,
        )  # fmt: skip

    ends, optimizer, along_gradient, is_kept = ends_of(model, batches), anew(), False, False
    with torch.no_grad():
        settle(moved.values())
    start = inside = {name: raw.detach().clone() for name, raw in moved.items()}
    confined = any((own := entries_of(raw)) is not None and own.bounded for raw in moved.values())
    at_start = loss_here() if (confined or ends) and not beyond(moved, ends) else math.inf
    with ExitStack() as kept:
        for _ in range(num_steps):
            with undrawn(model):
                history.losses.append(float(optimizer.step(closure)))  # before the step
            put()
            if not is_kept and beyond(moved, ends):  # on the way to where there is no maximum
                is_kept = True
                for name, raw in moved.items():  # others went along with those that are too far
                    raw.data.copy_(inside[name])
                kept.enter_context(holding([(Slot(moved[name]), between(moved[name], *both)) for name, both in ends.items()]))
                points = Points(moved, units)
                parameters, optimizer, along_gradient = points.leaves, anew(), False
                history.losses.clear()
                continue
            if not is_kept and ends:
                inside = {name: raw.detach().clone() for name, raw in moved.items()}
            gain = history.losses[-2] - history.losses[-1] if len(history.losses) > 1 else math.inf
            if gain <= tolerance and along_gradient:
                history.converged, history.reason = True, f"gain of at most {tolerance:.3g} nats per token"
                break
            along_gradient = optimizer.state[parameters[0]].get("n_iter", 0) <= 1
            if gain <= tolerance:  # perhaps for a curvature that is out of date: the gradient has the last word
                optimizer = anew()
        else:
            history.reason = f"num_steps = {num_steps} done without convergence"
    if (confined or is_kept) and math.isfinite(at_start) and not loss_here() <= at_start:  # the search began further inside
        with torch.no_grad():
            for name, raw in moved.items():
                raw.copy_(start[name])
    history.note(collapsed(moved, ends))
    for note in history.notes:
        warnings.warn(note, RuntimeWarning, stacklevel=3)
    return history


def ends_of(model: Any, batches: Sequence[Batch]) -> Ends:
    """By name of a parameter the smallest and the largest numbers that a fit to these data may come to, infinite for any, in
    its shape: logarithms of scales and of concentrations, whose likelihood would have no maximum where a state sees the same
    number again and again. EM has such ends in its M-steps. None of what is held whole."""
    own = {name: raw for name, raw in model.named_parameters() if raw.requires_grad}
    ends: Ends = {}
    for name, both in model._ends(batches).items():
        if name in own:
            low, high = (end.to(own[name]).expand(own[name].shape) for end in both)
            if isinstance(told := entries_of(own[name]), Entries):  # where bounds say otherwise
                low = torch.where((told.high > low) & told.low.isinf(), low, -torch.inf)
                high = torch.where((told.low < high) & told.high.isinf(), high, torch.inf)
            ends[name] = low, high
    return ends


def beyond(moved: Mapping[str, Tensor], ends: Ends) -> bool:
    """Whether a number that is not held is smaller or larger than it may be, by more than rounding, as of an M-step's."""
    for name, (low, high) in ends.items():
        raw = moved[name]
        if bool((((raw < low - ROUNDED) | (raw > high + ROUNDED)) & _free(raw)).any()):
            return True
    return False


def _free(raw: Tensor) -> Tensor:
    mask = held(raw)
    return torch.ones_like(raw, dtype=torch.bool) if mask is None else ~mask


def collapsed(moved: Mapping[str, Tensor], ends: Ends) -> list[str]:
    """What is to be said of parameters that have come to their smallest or largest numbers."""
    found = []
    for name, (low, high) in ends.items():
        raw, free = moved[name], _free(moved[name])
        called = name.rpartition("raw_")[2].rpartition("_")[2].rstrip("01")
        what = f"{called}s" if called in ("rate", "concentration", "df") else "scales"
        for end, at, word in ((low, raw <= low + NEAR, "smallest"), (high, raw >= high - NEAR, "largest")):
            if bool((at := at & free & end.isfinite()).any()):
                found.append(
                    f"{int(at.sum())} of {int(end.isfinite().sum())} {what} collapsed to the {word} one allowed, on the way to "
                    "a likelihood without a maximum, as of a state that sees one number again and again; give priors or fewer "
                    "states"
                )
    return found


def fit_variationally(
    model,
    batches: Sequence[Batch],
    *,
    initial: dict[str, Tensor] | None = None,
    guide="normal",
    num_steps: int = 1000,
    lr: float = 0.03,
    num_particles: int = 1,
) -> FitHistory:
    """Variational inference of the latent sites that remain when the hidden states are summed out.

    Args:
        model: a program; ``num_total`` tells it how many sequences a mini-batch stands for.
        initial: site -> value where the guide starts; None leaves that to Pyro.
        guide: "normal" (AutoNormal), "delta" (AutoDelta: maximum a posteriori), a guide class, or a guide.
        num_steps: gradient steps, a batch each. lr: Adam's; falls to a tenth over the run.
        num_particles: of the ELBO.

    Returns:
        The history; its ``guide`` is the fitted one.
    """
    if isinstance(guide, str):
        guide = GUIDES[checks.choice("guide", guide, GUIDES)]
    if isinstance(guide, type):
        guide = guide(model, init_loc_fn=_start_at(initial))
    history = FitHistory("svi", sum(batch.num_tokens for batch in batches), guide=guide)
    num_total = sum(batch.x.shape[0] for batch in batches)
    elbo = Trace_ELBO(num_particles=num_particles)(model, guide)

    def loss(batch: Batch) -> Tensor:
        return elbo(batch.x, batch.lengths, **batch.known, num_total=num_total) / history.num_tokens

    def fit() -> FitHistory:
        loss(batches[0])  # autoguides make their parameters now
        rows = [batch.x.shape[0] for batch in batches]
        return Descent(loss, guide.parameters(), batches, rows, history, num_steps, lr).run()

    return alone(fit)


def sample_parameters(
    model,
    batch: Batch,
    *,
    initial: dict[str, Tensor] | None = None,
    num_samples: int = 200,
    warmup_steps: int = 200,
    num_chains: int = 1,
    progress: bool = False,
    **kernel_options,
) -> FitHistory:
    """NUTS over the latent sites that remain when the hidden states are summed out.

    Args:
        model: a program. batch: the data. initial: site -> value where the chain starts; None leaves that to Pyro.
        num_samples, warmup_steps, num_chains: of the Markov chain over parameters.
        progress: show a bar.
        **kernel_options: those of ``pyro.infer.NUTS`` (``max_tree_depth``, ``target_accept_prob``, ...).

    Returns:
        The history with ``samples`` (site -> (num_samples, ...)) and ``diagnostics``.
    """
    checks.count("num_samples", num_samples, 4)  # of which Pyro's diagnostics take halves
    history = FitHistory("nuts", batch.num_tokens)
    kernel = NUTS(model, init_strategy=_start_at(initial), **kernel_options)
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=not progress)
    # chains in processes of their own draw from torch's generator
    seed = int(torch.randint(1 << 62, ())) if num_chains > 1 else None

    def draw() -> None:
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            mcmc.run(batch.x, batch.lengths, **batch.known)

    alone(draw)
    history.samples = {name: value.detach() for name, value in mcmc.get_samples().items()}
    history.diagnostics = mcmc.diagnostics()
    history.reason = f"{num_samples} samples drawn"
    return history
