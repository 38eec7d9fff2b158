"""Fitting a model to a data set: which method, from which start, in memory or as a run on disk."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from torch import Tensor

from pplseq import checks
from pplseq.data.batches import SentenceBatches
from pplseq.data.text import Text
from pplseq.data.text_parts import TextFiles, TextPart, read_part
from pplseq.data.vocabulary import Vocabulary
from pplseq.infer.fit.em import Batch, FitHistory, expectation_maximization
from pplseq.infer.fit.gradients import fit_variationally, maximize_by_gradient, maximize_by_lbfgs, sample_parameters
from pplseq.infer.fit.held import frozen, held
from pplseq.models.batch import to_batch
from pplseq.models.fitted import told_held
from pplseq.runs.cluster import connected
from pplseq.runs.evaluation import score_text
from pplseq.runs.fits import DescentTraining, EMTraining, FitTraining
from pplseq.runs.loop import Step, digest, run_training
from pplseq.threads import alone, filtering

if TYPE_CHECKING:
    from pplseq.models.estimator import Estimator

FITTERS = {
    "em": expectation_maximization,
    "sgd": maximize_by_gradient,
    "svi": fit_variationally,
    "nuts": sample_parameters,
    "lbfgs": maximize_by_lbfgs,
}
RACE_ITERATIONS = 10  # of EM, after which the worse half of several starts is dropped
BEST_OF = 100  # draws of NUTS among which the point estimate is looked for


def check_options(
    model: Estimator, method: str, options: dict, fitter: Callable | None = None, own: Sequence[str] = ()
) -> None:
    """Raises TypeError for options that a method does not have; says which it has.

    Args:
        fitter: what carries the method out, by default that of this file. own: its arguments that are not the user's.
    """
    if not options:
        return
    parameters = checks.signature(fitter or FITTERS[method]).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("initial", "on_iteration", *own)]
    if unknown := sorted(options.keys() - set(known)):
        data = list(checks.signature(type(model)._as_batch).parameters)[1:]  # what is known with the sequences
        raise TypeError(
            f"{type(model).__name__}.fit with method {checks.shown(method)} has no option {', '.join(map(repr, unknown))}; it "
            "takes "
            f"{', '.join(known)}.{checks.similar(unknown[0], [*known, *inspect.signature(type(model).fit).parameters, *data])}"
        )


def fit_parameters(model: Any, batches: Sequence[Batch], method: str, options: dict) -> FitHistory:
    """Fits from the parameters as they are, and leaves the model at the best ones found, a median, or the best draw."""
    if method in ("em", "sgd", "lbfgs"):
        return FITTERS[method](model, batches, **options)
    free, kept, names = _held_sites(model)
    program = poutine.condition(model, data=kept) if kept else model

    def parameters(sites: dict[str, Tensor], shape: tuple[int, ...] = ()) -> dict[str, Tensor]:
        """Those that were learned, of their sites and of those that were held."""
        found = model.from_sites({**{name: value.expand(*shape, *value.shape) for name, value in kept.items()}, **sites})
        return {name: value for name, value in found.items() if name not in names}

    if method == "svi":
        history = fit_variationally(program, batches, initial=free, **options)
        _set(model, parameters(alone(history.guide.median)))
        return history
    if len(batches) > 1:
        raise ValueError("batch_size: NUTS sees all sequences at once; leave it out, or use method 'svi'")
    history = sample_parameters(program, batches[0], initial=free, **options)
    drawn: Any = history.samples
    samples = history.samples = parameters(drawn, (len(next(iter(drawn.values()))),))
    _set(model, _best_draw(model, samples, batches))
    return history


def _held_sites(model: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], set[str]]:
    """Sites of parameters that are drawn, and of those that are held, with their values, and the names of these parameters.

    Raises:
        ValueError: for parameters that are held in part, or drawn together with others.
    """
    sites = model.sites()
    names = {name for name, slot in model._slots.items() if held(slot.raw) is not None}
    # the parts of one parameter, as of a matrix of precision, are sites of their own
    of = {name: [site for site in sites if site == name or site.startswith(f"{name}_")] for name in names}
    if odd := [name for name in sorted(names) if not of[name] or model._slots[name].raw.requires_grad]:
        raise ValueError(
            f"fixed: {odd[0]!r} is not drawn whole and by itself, so that 'svi' and 'nuts' cannot hold it; use 'em', 'lbfgs' "
            "or 'sgd', or give it a narrow prior"
        )
    kept = {site: sites[site] for name in names for site in of[name]}
    return {site: value for site, value in sites.items() if site not in kept}, kept, names


def run_fit(
    model: Any,
    batches: Sequence[Batch],
    method: str,
    options: dict[str, Any],
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    max_time: float | None = None,
    began: float | None = None,
    held_out: HeldOut | None = None,
    early_stop: int | None = None,
    about: Mapping[str, Any] | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> FitHistory:
    """:func:`fit_parameters` as a run: from the parameters as they are, or from where the run in the folder stopped.

    "em" and "sgd" have checkpoints on the way, and come to the same parameters as in memory. Of the other methods the folder
    gets the fitted model; not the guide of "svi" and the samples of "nuts", which are of the fit alone.

    Args:
        folder, resume, max_time, began, early_stop, on_record: see :func:`~pplseq.runs.loop.run_training`, also for what is
            raised.
        held_out: data that decide which parameters the model ends with, of "em" and "sgd".
        about: what a resumed fit must be given alike, beside method, options and model.

    Raises:
        ValueError: for a limit of time with a method that has no steps to stop at.
    """
    if max_time is not None:
        checks.positive("max_time", max_time, zero=True)
        if method not in STEPWISE:
            raise ValueError(f"max_time: a fit by {checks.shown(method)} cannot be interrupted; use {' or '.join(STEPWISE)}")
    if method in STEPWISE:
        if held_out is not None and not resume:
            held_out.check()
        run: FitTraining = STEPWISE[method](model, batches, evaluate=held_out and held_out.measure, **options)
    else:
        run = WholeFit(model, batches, method, options)
    if folder is not None:
        run.about = about_fit(model, method, options, GOES_ON if method in STEPWISE else ()) | dict(about or {})
    with checks.trusted() if method in STEPWISE else nullcontext():
        ended = run_training(
            run, folder=folder, resume=resume, max_time=max_time, early_stop=early_stop, on_record=on_record, began=began
        )
    run.take_best(None if folder is None else Path(folder))
    run.history.reason, run.history.run = run.history.reason or ended.stop_reason, ended
    for note in run.history.notes:
        warnings.warn(note, RuntimeWarning, stacklevel=4)
    return run.history


def num_steps_of(method: str, options: Mapping[str, Any]) -> int | None:
    """How many steps a fit takes at most, where it goes step by step."""
    name = {"em": "max_iterations", "sgd": "num_steps"}.get(method)
    return None if name is None else options.get(name, checks.signature(FITTERS[method]).parameters[name].default)


def about_fit(model: Any, method: str, options: Mapping[str, Any], free: Sequence[str] = ()) -> dict[str, Any]:
    """What a resumed fit must be given alike, of the model, the method and its options but those that are free to change."""
    told: dict[str, Any] = {"model": {"kind": type(model).__name__, **model.config}, "method": method}
    parameters = checks.signature(FITTERS[method]).parameters.values() if method in FITTERS else ()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not None}
    for name, value in (defaults | dict(options)).items():
        if name not in free:
            told[name] = value if isinstance(value, (bool, int, float, str)) else type(value).__name__
    return told


def about_data(batch: Batch) -> dict[str, str]:
    """What a resumed fit must be given alike, of its data, by the names of arguments."""
    names = {"gaps": "times"}
    found = {}
    for name, value in batch._asdict().items():
        parts = value.items() if isinstance(value, Mapping) else [] if value is None else [("", value)]
        found[names.get(name, name)] = digest(*(one for part in sorted(parts, key=lambda one: one[0]) for one in part))
    return found


class HeldOut:
    """Data that a model is scored on while it is fitted.

    Args:
        model: an estimator, which knows the names of columns and words that it is fitted to.
        given: like x, or a mapping from the names of arguments of ``score`` to what these take.

    Attributes:
        about: their digest.

    Raises:
        ValueError, TypeError: for what is no such data; begins with "validation".
    """

    def __init__(self, model: Estimator, given: Any):
        self.model, self.given = model, dict(given) if isinstance(given, Mapping) else {"x": given}
        with _of_validation():
            if "x" not in self.given:
                named = ", ".join(map(repr, self.given)) or "none"
                raise ValueError(f"data by the names of score's arguments are a mapping with 'x', got the names {named}")
            self.known = {name: value for name, value in self.given.items() if name not in ("x", "lengths")}
            model._check_names(self.known)
            x, lengths = self.given["x"], self.given.get("lengths")
            whole = isinstance(x, Text) and lengths is None and not self.known and len(x.vocabulary) == model.num_words
            self.text: Text | None = x if whole else None
            if self.text is not None:
                model._in_form(self.text)  # which looks at whose words they are
                self.about = digest_of_text(self.text)
            else:
                self.about = digest(*about_data(self.batch).values())

    @property
    def batch(self) -> Batch:
        """All of them, as the model takes them."""
        x, lengths = self.model._as_text(self.given["x"], self.given.get("lengths"), self.known)
        return self.model._as_batch(x, lengths, **self.known)

    def measure(self) -> Mapping[str, Any]:
        """What ``score`` says of them at the parameters as they stand, as nats per token."""
        model: Any = self.model
        was, vars(model)["is_fitted"] = model.is_fitted, True  # as far as it has come
        try:
            if self.text is not None:  # some lines at a time
                return score_text(model, self.text, "sentence").summary()
            return {"nats_per_token": -model.score(**self.given, per_token=True)}
        finally:
            vars(model)["is_fitted"] = was

    def check(self) -> None:
        """Raises ValueError or TypeError for what cannot be scored, before anything is learned."""
        with _of_validation():
            self.measure()


@contextmanager
def _of_validation() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"validation: {error}") from error


def held_out_data(
    model: Estimator, x: Any, method: str, validation: Any, early_stop: int | None,
    stepwise: Collection[str] = (),
) -> HeldOut | None:
    """The held-out data of a fit to x; None for none.

    Args:
        stepwise: methods that have iterations to choose among; empty: "em" and "sgd".

    Raises:
        ValueError, TypeError: for a method that has no iterations to choose among, and what :class:`HeldOut` raises.
    """
    if early_stop is not None:
        checks.count("early_stop", early_stop)
    if validation is None:
        if early_stop is not None:
            raise ValueError(f"early_stop: counts scores of held-out data; give validation=..., got {early_stop} without them")
        return None
    stepwise = stepwise or STEPWISE
    if method not in stepwise:
        takes = " or ".join(repr(each) for each in stepwise if each in model.methods)
        raise ValueError(
            f"validation: chooses among the iterations of a fit by {' or '.join(map(repr, stepwise))}, got method "
            f"{checks.shown(method)}; leave it out, or fit {type(model).__name__} with method={takes}"
        )
    held_out = HeldOut(model, validation)
    texts = isinstance(x, Text | TextFiles), isinstance(other := held_out.given["x"], Text)
    if all(texts) and other.vocabulary.words != x.vocabulary.words:
        raise ValueError(
            f"validation: the text {other.name!r} is encoded with other words than x ({len(other.vocabulary)} against "
            f"{len(x.vocabulary)}); encode it with the same vocabulary"
        )
    return held_out


def digest_of_text(text: Text) -> str:
    """Of a text's words and lines."""
    return digest(text.vocabulary.fingerprint(), torch.as_tensor(text.tokens), torch.as_tensor(text.line_starts))


def about_run(
    model: Estimator, x: Any, batch: Batch, batches: Any, holds: Mapping[str, Tensor | None], boxes: Mapping[str, Any],
    held_out: HeldOut | None,
) -> dict[str, Any]:  # fmt: skip
    """Data, bounds, and what is held, as a resumed fit must be given them alike."""
    about: dict[str, Any]
    if isinstance(x, TextFiles):
        about = {"x": digest(x.vocabulary.fingerprint(), *(f"{part.part} {part.num_tokens}" for part in batches))}
    elif isinstance(x, Text) and not batch.known:
        about = {"x": digest_of_text(x)}
    else:
        about = about_data(batch)
    about["fixed"] = told_held(holds) | dict.fromkeys(frozen(model), "requires_grad = False")
    if boxes:
        about["bounds"] = {name: digest(*own.told) for name, own in boxes.items()}
    return about if held_out is None else about | {"validation": held_out.about}


class WholeFit(FitTraining):
    """A fit that is done in one go, before the loop's first step; until then the folder holds no model."""

    says_best = True

    def __init__(self, model: Any, batches: Sequence[Batch], method: str, options: dict[str, Any]):
        super().__init__(model)
        self.history = FitHistory(method, sum(batch.num_tokens for batch in batches))
        self.fit = partial(fit_parameters, model, batches, method, options)

    def begin(self) -> None:
        if not self.history.reason:
            self.history = self.fit()

    def first(self, resumed: bool) -> Step:
        losses = self.history.losses[-1:]
        return Step([] if resumed else [{"kind": "train", "nats_per_token": nats} for nats in losses], best=not resumed)

    def ended(self) -> str:
        return self.history.reason

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        super().restore(tensors, state)
        self.history.reason = state["history"]["reason"]  # there is nothing to go on with


GOES_ON = ("max_iterations", "num_steps", "tolerance", "cluster")  # options of which more may be asked for when resumed
STEPWISE = {"em": EMTraining, "sgd": DescentTraining}


# of a text in memory so many tokens go through an E-step at a time, unless batch_size says otherwise: as few as LEAST_TOKENS
# where a token has many states, as messages and posteriors are tokens x states
LEAST_TOKENS, TOKENS_TIMES_STATES = 1 << 12, 1 << 23
PART_STEPS = 1 << 16  # steps of a part of an E-step that is spread over a cluster, unless batch_size says otherwise


@contextmanager
def on_cluster(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Options of a fit in which an address of a cluster has become the cluster, which is there while this lasts."""
    if options.get("cluster") is None:
        yield options
        return
    with connected(options["cluster"]) as cluster:
        yield options | {"cluster": cluster}


@dataclass(frozen=True)
class PartOfText:
    """A part of :class:`~pplseq.data.text_parts.TextFiles`, as EM reads it: see :class:`pplseq.infer.fit.em.Part`."""

    part: TextPart
    vocabulary: Vocabulary
    lower: bool
    num_tokens: int

    def batches(self, model: Any) -> Iterator[Batch]:
        """Its lines, those of about the same length together."""
        text = read_part(self.part, self.vocabulary, self.lower)
        rows = sorted((row for row in text.lines() if len(row)), key=len, reverse=True)
        while rows:
            count = max(1, PART_STEPS // len(rows[0]))
            yield to_batch(rows[:count], words=True, reference=model.reference)
            rows = rows[count:]


def parts_of_files(model: Any, files: TextFiles, method: str, refused: dict[str, Any], cluster: Any) -> list[PartOfText]:
    """The parts of a text that has a token, for EM.

    Args:
        refused: arguments of a fit that go with data in memory only.

    Raises:
        ValueError, TypeError: for another method, or a model that does not learn from these words; an empty text.
    """
    if method != "em":
        raise ValueError(f"method: a text in files is learned by 'em', a part at a time; got {checks.shown(method)}")
    for name, value in refused.items():
        if value is not None:
            raise ValueError(f"{name}: is about data in memory; leave it out where x is a text in files")
    if model.num_words != len(files.vocabulary):
        has = "vectors" if model.num_words is None else f"{model.num_words:,} words"
        raise ValueError(f"x: its vocabulary has {len(files.vocabulary):,} words, and the model is of {has}")
    ask = [(part, files.vocabulary, files.lower) for part in files.parts]
    names = list(map(str, files.parts))
    counts = [_num_tokens(*one) for one in ask] if cluster is None else cluster.each(_num_tokens, ask, names)
    parts = [PartOfText(*one, count) for one, count in zip(ask, counts, strict=True) if count]
    if not parts:
        raise ValueError(f"x: {files.source}: the text is empty (no words)")
    return parts


def rows_of_part(batch: Batch) -> int:
    """How many rows go to a worker of a cluster at a time."""
    return max(1, PART_STEPS // batch.x.shape[1])


def goes_by_lines(x: Any, method: str, options: Mapping[str, Any], *beside: Any) -> bool:
    """Whether data are a text that batch EM takes some lines at a time, as nothing beside it says otherwise."""
    return isinstance(x, Text) and method == "em" and not any(
        told is not None for told in (options.get("step_size"), options.get("cluster"), *beside)
    )  # fmt: skip


def batches_of_text(model: Any, text: Any) -> list[Batch]:
    """The lines of a :class:`~pplseq.data.text.Text` for EM, those of about the same length together; an E-step needs no more
    memory than these take."""
    model._in_form(text)
    found, device = [], model.reference.device
    for part in SentenceBatches(text, max(LEAST_TOKENS, TOKENS_TIMES_STATES // model.num_states)):
        model._check_rows(part.x, part.lengths)
        found.append(Batch(part.x.to(device), part.lengths.to(device)))
    return found


def _num_tokens(part: TextPart, vocabulary: Vocabulary, lower: bool) -> int:
    return read_part(part, vocabulary, lower).num_tokens


def start_anew(
    model: Any, batches: Sequence[Batch], initialize: Sequence[Callable[[], None]], cluster: Any = None, finalists: int = 1
) -> list[dict[str, Tensor]]:  # fmt: skip
    """Leaves the model at a start; of several, the one that wins a race: after a few iterations of EM, or of L-BFGS of models
    without, the worse half is out.

    Returns:
        The starts that are left, ``_finalists`` at most, best first.
    """
    starts = []
    for begin in initialize:
        begin()
        starts.append(copy.deepcopy(model.state_dict()))
    while len(starts) > finalists:
        values = []
        for start in starts:
            model.load_state_dict(start)
            with filtering("ignore", RuntimeWarning):  # what is remarkable is said of the start that wins
                values.append(_run(model, batches, cluster))
            start.update(copy.deepcopy(model.state_dict()))
        order = sorted(range(len(starts)), key=values.__getitem__, reverse=True)
        starts = [starts[k] for k in order[: max(finalists, len(starts) // 2)]]
    model.load_state_dict(starts[0])
    return starts


def _run(model: Any, batches: Sequence[Batch], cluster: Any) -> float:
    """What a start of a race comes to, nats; -inf where it comes to nothing."""
    by_em = "em" in model.methods
    try:
        model._check_method("em")
    except ValueError:  # priors that EM does not take
        by_em = False
    try:
        if by_em:
            return expectation_maximization(model, batches, max_iterations=RACE_ITERATIONS, cluster=cluster).log_posteriors[-1]
        maximize_by_lbfgs(model, batches, num_steps=RACE_ITERATIONS)
        value = _log_posterior(model, batches)
    except ArithmeticError:
        return -math.inf
    return -math.inf if math.isnan(value) else value


def fit_best(
    model: Any,
    batches: Sequence[Batch],
    method: str,
    options: dict,
    starts: Sequence[dict[str, Tensor]],
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> FitHistory:
    """Fits the parameters from each of some starts (none: from where they are), and keeps those that fit best."""
    fit = fit_parameters if on_record is None else partial(run_fit, on_record=on_record)
    if len(starts) < 2:
        return fit(model, batches, method, options)
    found = []
    for start in starts:
        model.load_state_dict(start)
        history = fit(model, batches, method, options)
        found.append((_log_posterior(model, batches), history, copy.deepcopy(model.state_dict())))
    _, history, best = max(found, key=lambda one: one[0])
    model.load_state_dict(best)
    return history


@torch.no_grad()
def _log_posterior(model: Any, batches: Sequence[Batch]) -> float:
    """log p(x) and the log prior of the parameters as they stand, nats."""
    value = float(model.log_prior())
    return value + sum(float(model.posterior(part.x, part.lengths, **part.known).log_prob().sum()) for part in batches)


def _set(model: Any, values: dict[str, Tensor]) -> None:
    still = [(own, own.detach().clone()) for own in model.parameters() if not own.requires_grad]
    model.set_parameters(**{name: value.detach() for name, value in values.items()})
    with torch.no_grad():
        for own, value in still:  # which are set along with others, and come back but for their last digits
            own.copy_(value)


def _best_draw(model: Any, samples: dict[str, Tensor], batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The draw of the largest posterior density."""
    num_draws = len(next(iter(samples.values())))
    best, best_value = {}, -math.inf
    for index in torch.linspace(0, num_draws - 1, min(num_draws, BEST_OF)).long().tolist():
        draw = {name: value[index] for name, value in samples.items()}
        _set(model, draw)
        value = _log_posterior(model, batches)
        if value > best_value:
            best, best_value = draw, value
    return best
