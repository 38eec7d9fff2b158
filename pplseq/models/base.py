"""What all models share: the program run under their messenger, posteriors, folders on disk."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pplseq.distributions.state import MISSING, Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.blocked_enum import BlockedEnum


class SequenceModel(PyroModule):
    """A generative program over sequences.

    Subclasses write :meth:`model`, the program, and :attr:`config`, what rebuilds the object. Calling the object runs the
    program under its :attr:`messenger`, which sums out the hidden states, so it can be given to ``SVI`` or an ``ELBOModule``
    as it is; the program itself, ``self.model``, can be given to any of Pyro's own handlers.
    """

    name: ClassVar[str]
    messenger: ClassVar[type] = BlockedEnum  # KalmanCollapse where states are Gaussian
    vectorize: bool = True

    def model(self, x=None, lengths=None, start=None):
        """The generative program."""
        raise NotImplementedError

    @property
    def config(self) -> dict:
        """Arguments that rebuild the model, JSON-able; tensors come from the state dict."""
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        # the handler is entered inside the module's call: see BlockedEnum.__call__
        handler = self.messenger(vectorize=self.vectorize, factor=not self.__dict__.get("_queried", False))
        with handler:
            result = self.model(*args, **kwargs)
        self.__dict__["_chains"] = handler.chains
        return result

    @property
    def chain(self) -> Chain:
        """The chain (a ``GaussianChain`` under ``KalmanCollapse``) of the last call."""
        chains = self.__dict__.get("_chains")
        if not chains:
            raise RuntimeError("no chain yet: call the model (or posterior) on observations first")
        return next(iter(chains.values()))

    @contextlib.contextmanager
    def _at_point(self):
        """The program with its parameters as they stand, instead of drawn from their priors."""
        before = self.__dict__.get("_fixed", False)
        self.__dict__["_fixed"] = True
        try:
            # queries leave nothing in Pyro's parameter store, where another model's names may be the same
            with pyro.get_param_store().scope():
                yield
        finally:
            self.__dict__["_fixed"] = before

    def posterior(self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None, **options) -> Chain:
        """The chain of observations under the model at test: no dropout, no gradients.

        Args:
            x: (B, T[, D]) observations; ``MISSING`` (-1) for a missing word, NaN for a missing vector.
            lengths: (B,) valid steps of each row, or None.
            start: the belief at the end of the previous segment, or None.
        """
        training = self.training
        self.eval()
        self.__dict__["_queried"] = True
        try:
            with torch.no_grad(), poutine.block():
                self(x, lengths, start, **options)
        finally:
            self.__dict__["_queried"] = False
            self.train(training)
        return self.__dict__.pop("_chains").popitem()[1]

    def log_prob(self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None) -> Tensor:
        """(B,) log p(x) of each row, nats; at test, as :meth:`posterior`."""
        return self.posterior(x, lengths, start).log_prob()

    def save(self, folder, *, vocabulary=None, clusters=None) -> Path:
        """Writes the model as a folder; see :func:`pplseq.models.storage.save_model`."""
        from pplseq.models.storage import save_model

        return save_model(self, folder, vocabulary=vocabulary, clusters=clusters)


def check_words(x: Tensor, num_words: int) -> None:
    """Raises unless x is (B, T) word ids in [0, V) or ``MISSING``."""
    if not isinstance(x, Tensor) or x.dim() != 2 or x.dtype not in (torch.int64, torch.int32):
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be an integer tensor (B, T) of word ids, got {what}; encode text with the vocabulary")
    if 0 in x.shape:
        raise ValueError(f"x must hold at least one row and one step, got shape {tuple(x.shape)}")
    low, high = (int(v) for v in x.aminmax())
    if low < MISSING or high >= num_words:
        raise ValueError(f"x must hold ids 0..{num_words - 1}, or {MISSING} for a missing word; got {low}..{high}")


def check_lengths(lengths: Tensor | None, x: Tensor) -> None:
    """Raises unless lengths is None or (B,) integers in 0..T."""
    if lengths is None:
        return
    if not isinstance(lengths, Tensor) or lengths.shape != x.shape[:1]:
        what = tuple(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(f"lengths must be a tensor of shape (B,) = ({x.shape[0]},), got {what}")
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must hold integers, got {lengths.dtype}")
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= x.shape[1]:
        raise ValueError(f"lengths must lie in 0..{x.shape[1]} (the steps of x), got {lengths.tolist()}")


def check_start(start: Belief | None, num_rows: int, num_states: int) -> None:
    """Raises unless start is None or a belief of as many rows over states 0..Z-1."""
    if start is None:
        return
    if not isinstance(start, Belief):
        raise TypeError(f"start must be a Belief (what chain.filtered() returns) or None, got {type(start).__name__}")
    if tuple(start.shape) != (num_rows,):
        raise ValueError(
            f"start must have one row for each of the {num_rows} rows of x, got shape {tuple(start.shape)}"
        )
    top = start.log_probs.shape[-1] - 1 if start.ids is None else int(start.ids.max())
    if top >= num_states:
        raise ValueError(f"start: state {top} is not in 0..{num_states - 1}; the belief comes from another model")


def check_states(states: Tensor | None, x: Tensor, num_states: int) -> None:
    """Raises unless states is None or (B, T) state ids below Z, negative where unknown."""
    if states is None:
        return
    if not isinstance(states, Tensor) or states.is_floating_point():
        what = states.dtype if isinstance(states, Tensor) else type(states).__name__
        raise TypeError(f"states must be an integer tensor (B, T), got {what}")
    if states.shape != x.shape[:2] or int(states.max()) >= num_states:
        raise ValueError(
            f"states must have shape {tuple(x.shape[:2])} and ids below {num_states}, negative where unknown; got shape "
            f"{tuple(states.shape)} and ids up to {int(states.max())}"
        )
