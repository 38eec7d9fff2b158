"""What all models share: the program run under their messenger, posteriors, folders on disk."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pplseq import checks
from pplseq.distributions.state import MISSING, Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.models.given import Given

if TYPE_CHECKING:
    from pplseq.data.clusters import Clusters
    from pplseq.data.vocabulary import Vocabulary
    from pplseq.infer.fit.em import Batch


class SequenceModel(PyroModule):
    """A generative program over sequences.

    Subclasses write :meth:`model`, the program, and :attr:`config`, what rebuilds the object. Calling the object runs the
    program under its :attr:`messenger`, which sums out the hidden states, so it can be given to ``SVI`` or an ``ELBOModule``
    as it is; the program itself, ``self.model``, can be given to any of Pyro's own handlers.
    """

    name: ClassVar[str]
    num_states: int
    num_words: int | None
    messenger: ClassVar[type] = BlockedEnum  # KalmanCollapse where states are Gaussian
    vectorize: bool = True
    vocabulary: Vocabulary | None = None  # of a model of words, saved with it
    clusters: Clusters | None = None  # of its words, where they have blocks

    def model(self, x=None, lengths=None, start=None):
        """The generative program."""
        raise NotImplementedError

    # ---------------------------------------------------------------- what a program is given
    def check_observations(self, x: Tensor) -> None:
        """Raises unless x holds observations of the model's kind, or marks of missing ones; here: words."""
        checks.words(x, self.num_words or 0)

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x with something harmless where it is missing, and where it is not: (B, T), or (B, T, n) of vectors seen in part."""
        return x.clamp_min(0), x != MISSING

    def check_start(self, start, num_rows: int) -> None:
        """Raises unless start is None or a belief over the model's states."""
        checks.start(start, num_rows, self.num_states)

    def given(
        self,
        x: Tensor | None,
        lengths: Tensor | None = None,
        start=None,
        *,
        states: Tensor | None = None,
        num_sequences: int | None = None,
        num_steps: int | None = None,
        num_total: int | None = None,
    ) -> Given:
        """What the program was called with, checked: see :class:`~pplseq.models.given.Given`.

        Raises:
            TypeError, ValueError: for what the model cannot take; says what it takes.
        """
        if x is None:
            if num_steps is None:
                raise ValueError("num_steps: say how many steps to generate when x is None")
            shape = checks.count("num_sequences", num_sequences or 1), checks.count("num_steps", num_steps)
            values = observed = None
        else:
            self.check_observations(x)
            checks.lengths(lengths, x)
            checks.states(states, x, self.num_states)
            shape = x.shape[0], x.shape[1]
            values, observed = self.observed(x)
        self.check_start(start, shape[0])
        return Given(shape, x, values, observed, lengths=lengths, states=states, num_total=num_total)

    @property
    def config(self) -> dict:
        """Arguments that rebuild the model, JSON-able; tensors come from the state dict."""
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        # the handler is entered inside the module's call: see BlockedEnum.__call__
        handler = self.messenger(vectorize=self.vectorize, factor=not vars(self).get("_queried", False))
        with handler:
            result = self.model(*args, **kwargs)
        vars(self)["_chains"] = handler.chains
        return result

    @property
    def chain(self) -> Chain:
        """The chain (a ``GaussianChain`` under ``KalmanCollapse``) of the last call."""
        chains = vars(self).get("_chains")
        if not chains:
            raise RuntimeError("no chain yet: call the model (or posterior) on observations first")
        return next(iter(chains.values()))

    @contextlib.contextmanager
    def _at_point(self):
        """The program with its parameters as they stand, instead of drawn from their priors."""
        before = vars(self).get("_fixed", False)
        vars(self)["_fixed"] = True
        try:
            # queries leave nothing in Pyro's parameter store, where another model's names may be the same
            with pyro.get_param_store().scope():
                yield
        finally:
            vars(self)["_fixed"] = before

    def posterior(self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None, **known) -> Chain:
        """The chain of observations under the model at test: no dropout, no gradients.

        Args:
            x: (B, T[, D]) observations; ``MISSING`` (-1) for a missing word, NaN for a missing vector.
            lengths: (B,) valid steps of each row, or None.
            start: the belief at the end of the previous segment, or None.
            **known: what else the program takes.
        """
        training = self.training
        self.eval()
        vars(self)["_queried"] = True
        try:
            with self._at_point(), torch.no_grad(), poutine.block():
                self(x, lengths, start, **known)
        finally:
            vars(self)["_queried"] = False
            self.train(training)
        return vars(self).pop("_chains").popitem()[1]

    def chain_of(self, batch: Batch) -> Chain:
        """The chain of a batch, for EM; a model may have a shorter way to it than running its program."""
        return self.posterior(batch.x, batch.lengths, **batch.known)

    def log_prob(self, x: Tensor, lengths: Tensor | None = None, start: Belief | None = None, **known) -> Tensor:
        """(B,) log p(x) of each row, nats; at test, as :meth:`posterior`."""
        return self.posterior(x, lengths, start, **known).log_prob()

    def save(self, folder) -> Path:
        """Writes the model, its vocabulary and clusters as a folder; see :func:`pplseq.models.storage.save_model`."""
        from pplseq.models.storage import save_model

        return save_model(self, folder)

    @classmethod
    def load(cls, folder, device: str | torch.device = "cpu") -> Self:
        """Reads what :meth:`save` wrote; called on ``SequenceModel`` itself, a model of any kind.

        Raises:
            FileNotFoundError: if there is no model in the folder. ValueError: if it is damaged, or of another kind.
        """
        from pplseq.models.storage import read_model

        model = read_model(folder, device)
        if not isinstance(model, cls):
            raise ValueError(f"{folder}: holds a {type(model).__name__}, not a {cls.__name__}; pplseq.load reads any model")
        return model
