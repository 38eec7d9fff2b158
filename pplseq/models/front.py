"""Whole data sets at the door of a model: ragged lists or padded tensors in, results in the same form out."""

from __future__ import annotations

import math

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pplseq import checks
from pplseq.data.ragged import pad_sequences
from pplseq.infer.fit.em import Batch


class Front:
    """Mixed into a :class:`~pplseq.models.base.SequenceModel`: scores, samples and criteria over whole data sets.

    x is, everywhere, a list of sequences of any lengths (lists, arrays or tensors: (T_i,) words or (T_i, D) vectors), or
    one padded array or tensor (B, T) or (B, T, D) with ``lengths`` (B,). Missing words are -1, missing vectors rows of NaN.
    Results are lists where x was one, else padded tensors.
    """

    # ---------------------------------------------------------------- data
    def as_batch(self, x, lengths=None) -> Batch:
        """x and its lengths as tensors of the model's type and device.

        Raises:
            TypeError, ValueError: for what is no such data; says where and what to do.
        """
        reference = next(self.parameters())
        words = self.num_words is not None
        ragged = isinstance(x, (list, tuple))
        if ragged:
            if lengths is not None:
                raise ValueError("lengths: sequences in a list have their own lengths; leave lengths out")
            if len(x) and np.ndim(x[0]) == 0:
                raise ValueError("x must be a list of sequences; to give a single one, write [x]")
            x, lengths = pad_sequences(x, event_dims=0 if words else 1, dtype=None if words else reference.dtype)
        elif isinstance(x, (np.ndarray, Tensor)):
            x = torch.as_tensor(x)
            lengths = None if lengths is None else torch.as_tensor(lengths)
        else:
            raise TypeError(f"x must be a list of sequences, an array or a tensor, got {type(x).__name__}")
        if x.shape[0] == 0 or x.dim() > 1 and x.shape[1] == 0:
            raise ValueError(f"x must hold at least one step of one sequence, got shape {tuple(x.shape)}")
        if words and x.dtype.is_floating_point:
            raise TypeError(f"x must hold whole numbers (words), got {x.dtype}; mark missing words with -1, not NaN")
        x = x.long() if words else x.to(reference.dtype)
        if ragged and bool((lengths == x.shape[1]).all()):
            lengths = None
        batch = Batch(*(None if v is None else v.to(reference.device) for v in (x, lengths)))
        self.check_observations(batch.x)
        return batch

    @staticmethod
    def _split(batch: Batch, batch_size: int | None) -> list[Batch]:
        rows = batch.x.shape[0]
        if batch_size is None or checks.count("batch_size", batch_size) >= rows:
            return [batch]
        parts = []
        for first in range(0, rows, batch_size):
            part = Batch(*(None if value is None else value[first : first + batch_size] for value in batch))
            if part.lengths is not None:  # no step that no row has
                steps = int(part.lengths.max())
                part = Batch(*(value if k == 1 or value is None else value[:, :steps] for k, value in enumerate(part)))
            parts.append(part)
        return parts

    @staticmethod
    def _give(value: Tensor, x):
        """(T, B, ...) results in the form in which x came."""
        value = value.movedim(0, 1)
        if not isinstance(x, (list, tuple)):
            return value
        return [row[: len(sequence)] for row, sequence in zip(value, x, strict=True)]

    # ---------------------------------------------------------------- queries
    def _posterior(self, x, lengths, **known):
        batch = self.as_batch(x, lengths, **known)
        return batch, self.posterior(batch.x, batch.lengths, **batch.known)

    def score(self, x, lengths=None, *, per_token: bool = False, **known) -> float:
        """log p(x), nats, summed over sequences (as hmmlearn's); or the mean over tokens.

        Args:
            x, lengths: the sequences. per_token: divide by the number of steps.
            **known: what else ``fit`` takes with the sequences (states of an HMM, inputs of an LDS).
        """
        batch, chain = self._posterior(x, lengths, **known)
        total = float(chain.log_prob().sum(dtype=torch.float64))
        return total / batch.num_tokens if per_token else total

    @torch.no_grad()
    def sample(
        self, num_steps: int, num_sequences: int = 1, *, seed: int | None = None, **known
    ) -> tuple[Tensor, Tensor]:
        """Sequences drawn from the model.

        Returns:
            x (B, T) words or (B, T, D) vectors, and the states (B, T) or (B, T, h) behind them.
        """
        with torch.random.fork_rng(enabled=seed is not None), self._at_point(), poutine.block():
            if seed is not None:
                torch.manual_seed(seed)
            trace = poutine.trace(self.model).get_trace(num_sequences=num_sequences, num_steps=num_steps, **known)
        x, states = (torch.stack([trace.nodes[f"{s}_{t}"]["value"] for t in range(num_steps)], 1) for s in "xz")
        return x, states

    def aic(self, x, lengths=None, **known) -> float:
        """Akaike's information criterion, -2 log p(x) + 2 parameters: lower is better."""
        return -2 * self.score(x, lengths, **known) + 2 * self.num_free_parameters

    def bic(self, x, lengths=None, **known) -> float:
        """The Bayesian information criterion, -2 log p(x) + parameters * log(tokens): lower is better."""
        num_tokens = self.as_batch(x, lengths, **known).num_tokens
        return -2 * self.score(x, lengths, **known) + self.num_free_parameters * math.log(num_tokens)
