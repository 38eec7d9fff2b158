"""``TraceBlockedEnum_ELBO``: variational inference around chains that are summed out exactly."""

from __future__ import annotations

import math
from collections import OrderedDict
from types import FunctionType

import pyro.distributions as dist
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, traceenum_elbo
from pyro.infer.util import Dice
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution

from pplseq.distributions.drawing import generators, rewind
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.factors.elimination import marginals
from pplseq.infer.programs.factors.enumeration import GuideSite
from pplseq.infer.programs.factors.tables import unwrap
from pplseq.infer.programs.states import infer_states


class _NoEnumeration(Messenger):
    """Finds out that a guide enumerates."""

    def _pyro_sample(self, msg):
        if not msg["is_observed"] and msg["infer"].get("enumerate") in ("parallel", "sequential"):
            raise GuideSite(msg["name"])


class _Dice(Dice):
    """Pyro's expectations of costs, each set of plates with products of its own: what one set has shared was not made for the
    derivatives that another one asks of it (AttributeError: _pyro_backward)."""

    def compute_expectation(self, costs):
        return sum(super(_Dice, self).compute_expectation({plates: terms}) for plates, terms in costs.items())


def _with(function: FunctionType, **names) -> FunctionType:
    """A copy of a function that finds other things under some names of its module; the module itself stays as it is, for other
    threads and for programs without this library."""
    return FunctionType(function.__code__, function.__globals__ | names, function.__name__, function.__defaults__)


class _TraceEnum(TraceEnum_ELBO):
    """Pyro's ``TraceEnum_ELBO`` with :class:`_Dice`, of which it has no option."""

    _bound = {"_compute_dice_elbo": _with(traceenum_elbo._compute_dice_elbo, Dice=_Dice)}
    loss = _with(TraceEnum_ELBO.loss, **_bound)
    differentiable_loss = _with(TraceEnum_ELBO.differentiable_loss, **_bound)
    loss_and_grads = _with(TraceEnum_ELBO.loss_and_grads, **_bound)


class TraceBlockedEnum_ELBO(Trace_ELBO):
    """``Trace_ELBO`` whose model runs under :class:`~pplseq.infer.programs.blocked_enum.BlockedEnum`; guides for the other
    sites work as usual. It stands in the place of ``TraceEnum_ELBO`` too, with the same loss and the same gradients.

    Use it with ``pyro.infer.SVI``, or as ``TraceBlockedEnum_ELBO()(model, guide)`` (an ``ELBOModule``) with one
    ``torch.optim`` optimizer. Where the guide itself enumerates, or samples a marked site or one that depends on such, Pyro's
    ``TraceEnum_ELBO`` takes over, for everything but our own words.

    Args:
        vectorize: let ``pplseq.markov`` run loop bodies once for all steps; False from the first run on in which that failed.
        **options: those of ``pyro.infer.TraceEnum_ELBO``.
    """

    def __init__(self, *, vectorize: bool = True, **options):
        super().__init__(**options)
        self.vectorize = vectorize
        self._generic: TraceEnum_ELBO | None = None
        self._options = {**options, "strict_enumeration_warning": False}

    def _get_trace(self, model, guide, args, kwargs):
        return self._traces(model, guide, args, kwargs)[:2]

    def _traces(self, model, guide, args, kwargs):
        """(trace of the model, of the guide, the handler that enumerated)"""
        nesting = None if math.isinf(self.max_plate_nesting) else int(self.max_plate_nesting)
        handler = BlockedEnum(vectorize=self.vectorize, max_plate_nesting=nesting)
        handler.guided, state = True, generators() if self.vectorize else None
        try:
            return *super()._get_trace(handler(model), _NoEnumeration()(guide), args, kwargs), handler
        except GuideSite:
            raise
        except Exception:
            if not handler.ran_vectorized:
                raise
        self.vectorize = False  # a loop's body cannot stand for all steps at once, or fails step by step as well
        rewind(state)
        return self._traces(model, guide, args, kwargs)

    def _run(self, what: str, model, guide, args, kwargs):
        if self._generic is None:
            state = generators()
            try:
                own = getattr(self, f"_{what}", None) or getattr(super(), what)
                return own(model, guide, *args, **kwargs)
            except GuideSite:
                rewind(state)
                self._generic = _TraceEnum(**self._options)
                if math.isinf(self._generic.max_plate_nesting):
                    self._generic._guess_max_plate_nesting(model, guide, args, kwargs)
        # marked sites are left to the enumeration around this handler
        return getattr(self._generic, what)(BlockedEnum(vectorize=self.vectorize)(model), guide, *args, **kwargs)

    def loss(self, model, guide, *args, **kwargs):
        return self._run("loss", model, guide, args, kwargs)

    def differentiable_loss(self, model, guide, *args, **kwargs):
        return self._run("differentiable_loss", model, guide, args, kwargs)

    def loss_and_grads(self, model, guide, *args, **kwargs):
        return self._run("loss_and_grads", model, guide, args, kwargs)

    def compute_marginals(self, model, guide, *args, **kwargs) -> dict[str, Distribution]:
        """Site -> its posterior distribution over its plates, of all marked sites: exact, given what the guide sampled.

        Of a site with other values than 0, 1, .. (``dist.Binomial`` aside), numbers of its support. Chains in our own words are
        asked themselves, ``BlockedEnum.chains``.

        Raises:
            NotImplementedError: for several particles, or a guide that enumerates.
            ValueError: if what was observed is impossible.
        """
        return self._run("compute_marginals", model, guide, args, kwargs)

    def _compute_marginals(self, model, guide, *args, **kwargs):
        self._one_particle("compute_marginals")
        _, _, handler = self._traces(model, guide, args, kwargs)
        enumeration = handler.enumeration
        if enumeration is None or not enumeration.variables:
            return OrderedDict()
        laws = {site.name: unwrap(site.fn)[0] for site in enumeration.sites if site.own is not None}
        return OrderedDict((name, _law(laws[name], probs)) for name, probs in marginals(enumeration).items())

    def sample_posterior(self, model, guide, *args, **kwargs):
        """What the model returns, with its hidden states (marked ones and those in our own words) drawn from their joint
        posterior, given what the guide sampled; ``poutine.trace`` around it reads them.

        Raises:
            NotImplementedError: for several particles, or a guide that enumerates.
        """
        return self._run("sample_posterior", model, guide, args, kwargs)

    def _sample_posterior(self, model, guide, *args, **kwargs):
        self._one_particle("sample_posterior")
        with poutine.block():
            given = poutine.trace(_NoEnumeration()(guide)).get_trace(*args, **kwargs)
        program = getattr(model, "model", model)  # of a model of ours, which would run under a handler of its own
        return infer_states(poutine.replay(program, trace=given), "sample")(*args, **kwargs)

    def _one_particle(self, what: str) -> None:
        if self.num_particles != 1:
            raise NotImplementedError(f"{what} takes one particle, got num_particles={self.num_particles}")


def _law(fn, probs: Tensor) -> Distribution:
    """The distribution of a site's kind with probabilities (*plates, K)."""
    logits = probs.log()
    if type(fn) is dist.Bernoulli:
        return dist.Bernoulli(logits=logits[..., 1] - logits[..., 0])
    return type(fn)(logits=logits) if type(fn) is dist.OneHotCategorical else dist.Categorical(logits=logits)
