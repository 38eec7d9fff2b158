"""Whole data sets at the door of a model: ragged lists or padded tensors in, results in the same form out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.ragged import pad_sequences
from pplseq.distributions.state import MISSING
from pplseq.infer.fit.em import Batch
from pplseq.models.forms import states_in_form

if TYPE_CHECKING:
    from pplseq.data.vocabulary import Vocabulary


def to_batch(x, lengths=None, *, words: bool, reference: Tensor) -> Batch:
    """Data as tensors on the model's device, words as integers and vectors in the model's type.

    Args:
        x: a list of sequences of any lengths (lists, arrays or tensors: (T_i,) words or (T_i, D) vectors), or one padded
            array or tensor (B, T) or (B, T, D). Missing words are -1, missing vectors rows of NaN.
        lengths: (B,) valid steps of a padded x, or None for all.
        words: whether observations are whole numbers.
        reference: a tensor of the model's type and device.

    Raises:
        TypeError, ValueError: for what is no such data; says where and what to do.
    """
    ragged = isinstance(x, (list, tuple))
    if ragged:
        if lengths is not None:
            raise ValueError("lengths: sequences in a list have their own lengths; leave lengths out")
        if len(x) and np.ndim(x[0]) == 0:
            raise ValueError("x must be a list of sequences; to give a single one, write [x]")
        x, lengths = pad_sequences(x, event_dims=0 if words else 1, dtype=None if words else reference.dtype)
    elif isinstance(x, (np.ndarray, Tensor)):
        x = checks.numbers("x", x)
        lengths = None if lengths is None else checks.numbers("lengths", lengths)
    else:
        raise checks.no_sequences("x", x)
    if x.dim() == 0 or x.shape[0] == 0 or x.dim() > 1 and x.shape[1] == 0:
        raise ValueError(f"x must hold at least one step of one sequence, got shape {tuple(x.shape)}")
    if x.is_complex():
        raise TypeError(f"x must hold real numbers, got {x.dtype}; give .real and .imag as two columns")
    if words and x.dtype.is_floating_point:
        raise TypeError(f"x must hold whole numbers (words), got {x.dtype}; mark missing words with -1, not NaN")
    x = x.long() if words else x.to(reference.dtype)
    if lengths is not None and ragged and bool((lengths == x.shape[1]).all()):
        lengths = None
    return Batch(x.to(reference.device), None if lengths is None else lengths.to(reference.device))


def is_batch(x: Any, words: bool, reference: Tensor | None) -> bool:
    """Whether x are full rows as a :class:`Batch` has them, of a parameter's type and on its device: nothing to convert."""
    if type(x) is not Tensor or x.layout is not torch.strided or reference is None:
        return False
    if x.dim() != (2 if words else 3) or x.device != reference.device:
        return False
    # a column of words could be one sequence
    return 0 not in x.shape and (x.dtype == torch.int64 and x.shape[1] > 1 if words else x.dtype == reference.dtype)


def holds_words(x) -> bool:
    """Whether x are sentences: strings, or sequences of strings among which None is a gap."""
    if not isinstance(x, (list, tuple)) or not len(x):
        return False
    if all(isinstance(sentence, str) for sentence in x):
        return True
    if not all(isinstance(sentence, (list, tuple)) for sentence in x):
        return False
    first = next((word for sentence in x for word in sentence if word is not None), None)
    return isinstance(first, str)


def in_ids(x, vocabulary: Vocabulary | None):
    """Sentences as lists of word ids, MISSING for None; anything else as it is.

    Raises:
        TypeError: for sentences without a vocabulary.
        ValueError: for an unknown word where the vocabulary has no word for those.
    """
    if not holds_words(x):
        return x
    if vocabulary is None:
        raise TypeError("x holds words, and the model has no vocabulary: set it, or encode them with a Vocabulary")
    found = []
    for sentence in x:
        words = vocabulary.split(sentence) if isinstance(sentence, str) else sentence
        ids = iter(vocabulary.encode([word for word in words if word is not None]).tolist())
        found.append([MISSING if word is None else next(ids) for word in words])
    return found


def with_ends(x, vocabulary: Vocabulary):
    """Sentences with the vocabulary's ``<eos>`` behind each that does not end in it, as the lines of a corpus."""
    lines = (vocabulary.split(sentence) if isinstance(sentence, str) else [*sentence] for sentence in x)
    return [line if line[-1:] == [vocabulary.eos] else [*line, vocabulary.eos] for line in lines]


def padded_states(states, x, batch: Batch, num_states: int) -> Tensor:
    """(B, T) observed states, given like x or one behind the other, negative where unknown and at padded steps."""
    ends = [len(row) for row in x] if isinstance(x, (list, tuple)) and len(x) > 1 else None
    states = states_in_form(states, ends)
    if isinstance(x, (list, tuple)) or isinstance(states, (list, tuple)):
        states = pad_sequences(states, fill=-1, name="states")[0]
    else:
        states = checks.numbers("states", states)
    if states.shape != batch.x.shape[:2]:
        raise ValueError(f"states must cover x, {tuple(batch.x.shape[:2])}, got {tuple(states.shape)}")
    checks.states(states, batch.x, num_states)
    return states.long().to(batch.x.device)


def split_rows(batch: Batch, batch_size: int | None) -> list[Batch]:
    """Parts of at most so many rows, cut to the longest of their rows; the whole batch for None."""
    rows = batch.x.shape[0]
    if batch_size is None or checks.count("batch_size", batch_size) >= rows:
        return [batch]
    return [cut(batch, slice(first, first + batch_size)) for first in range(0, rows, batch_size)]


def cut(batch: Batch, rows: slice | Tensor, most: int | None = None) -> Batch:
    """Some rows, of at most so many steps, and no step that none of them has."""
    lengths = None if batch.lengths is None else batch.lengths[rows].clamp_max(batch.x.shape[1] if most is None else most)
    steps = most or batch.x.shape[1] if lengths is None else int(lengths.max())
    return Batch(batch.x[rows, :steps], lengths, *(_cut(value, rows, steps) for value in batch[2:]))


def _cut(value, rows: slice | Tensor, steps: int):
    if isinstance(value, Mapping):
        return {name: _cut(part, rows, steps) for name, part in value.items()}
    return None if value is None else value[rows, :steps]


def without_empty_rows(x, lengths=None, num_features: int | None = None, word: int = MISSING) -> tuple[Any, Any, Tensor | None]:
    """x with a step that says nothing in rows that have none; lengths; and (B,) which rows those are, None for none.

    Args:
        x, lengths: as for :func:`to_batch`. num_features: D of vectors, None for words. word: that stands there, one that is
            possible: by default none was seen, and all states are open.
    """
    if isinstance(x, (list, tuple)):
        empty = [hasattr(row, "__len__") and len(row) == 0 for row in x]
        if not any(empty):
            return x, lengths, None
        nothing = [word] if num_features is None else np.full((1, num_features), np.nan)
        return [nothing if skip else row for row, skip in zip(x, empty, strict=True)], lengths, torch.tensor(empty)
    if not isinstance(x, (np.ndarray, Tensor)) or len(x.shape) != (2 if num_features is None else 3):
        return x, lengths, None  # the model says what is wrong with it
    x = checks.numbers("x", x)
    if not x.is_floating_point():
        x = x.long() if num_features is None else x.double()
    nothing = word if num_features is None else torch.nan
    if x.shape[1] == 0:
        return x.new_full((len(x), 1, *x.shape[2:]), nothing), torch.ones(len(x)).long(), torch.ones(len(x), dtype=torch.bool)
    if lengths is None:
        return x, None, None
    lengths = checks.numbers("lengths", lengths).to(x.device)
    checks.lengths(lengths, x)
    empty = lengths == 0
    if not bool(empty.any()):
        return x, lengths, None
    x = x.clone()
    x[empty, 0] = nothing
    return x, lengths.clamp_min(1), empty


def as_given(value: Tensor, x):
    """(B, T, ...) results in the form in which x came: a list of (T_i, ...) for a list of sequences."""
    if not isinstance(x, (list, tuple)):
        return value
    return [row[: len(sequence)] for row, sequence in zip(value, x, strict=True)]
