"""Mini-batches of a text: contiguous streams cut into segments, or whole sentences. Both resume mid-epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from pplseq import checks
from pplseq.data.text import Text


class SegmentBatch(NamedTuple):
    """A segment of every stream.

    x: (B, T) int64 word ids; lengths: (B,) tokens of each row, None where all rows are full;
    is_first: True for the first segment of an epoch, where no belief is carried over.
    """

    x: torch.Tensor
    lengths: torch.Tensor | None
    is_first: bool


class SentenceBatch(NamedTuple):
    """Whole lines. x: (B, T) int64 word ids, padded with 0; lengths: (B,); index: (B,) their line numbers."""

    x: torch.Tensor
    lengths: torch.Tensor
    index: torch.Tensor  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def is_first(self) -> bool:
        """Always True: a sentence starts from the start distribution."""
        return True


class _Batches:
    """An epoch's batches, whose order is a function of (seed, epoch) alone, with a position to resume from."""

    def __init__(self, text: Text, seed: int):
        if not isinstance(text, Text):
            raise TypeError(f"text: expected a Text, got {type(text).__name__}; see Text.from_lines")
        if text.num_tokens == 0:
            raise ValueError(f"text: {text.name!r} has no tokens")
        self.text, self.seed = text, seed
        self._epoch, self._position, self._resume_at = 0, 0, 0

    def _num_batches(self, epoch: int) -> int:
        raise NotImplementedError

    def _epoch_batches(self, epoch: int, start: int) -> Iterator:
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The epoch the next iteration runs, or the running one."""
        return self._epoch

    def state_dict(self) -> dict[str, int]:
        """{"epoch", "position"}: position batches of the epoch have been handed out."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration continues the epoch where `state` was taken.

        Raises:
            ValueError: not a state of batches of this size.
        """
        if set(state) != {"epoch", "position"}:
            raise ValueError(f"state: expected the keys epoch and position, got {sorted(state)}")
        epoch, position = int(state["epoch"]), int(state["position"])
        # The number of sentence batches may differ by epoch: take the one in question.
        num_batches = self._num_batches(epoch) if epoch >= 0 else 0
        if epoch < 0 or not 0 <= position <= num_batches:
            raise ValueError(
                f"state: batch {position} of epoch {epoch} does not exist (an epoch has {num_batches}); resume with "
                "the text, batch size and segment length of the run that saved it"
            )
        self._epoch, self._position, self._resume_at = epoch, position, position

    def __len__(self) -> int:
        """Batches of the epoch."""
        return self._num_batches(self._epoch)

    def __iter__(self) -> Iterator:
        """Run the epoch, from its start or once from a loaded position; when it is through, the next epoch is due."""
        epoch, start, self._resume_at = self._epoch, self._resume_at, 0
        self._position = start
        for position, batch in enumerate(self._epoch_batches(epoch, start), start=start + 1):
            self._position = position  # before the batch is handed out: a state taken while it is used has it done
            yield batch
        if self._epoch == epoch:
            self._epoch, self._position = epoch + 1, 0

    def _generator(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch])


class StreamBatches(_Batches):
    """A text as B contiguous streams, cut into segments of T tokens.

    Each epoch the lines (or articles) are put in a new order and concatenated; the N tokens are cut into B streams of
    equal length, and batch t holds segment t of every stream, so that row b continues row b of the batch before. The
    last segment is as long as what is left.

    Args:
        text: what to run over.
        batch_size: B, the number of streams.
        segment_length: T, tokens.
        shuffle: "line", "article", or None for the text's own order.
        seed: of the orders.
        drop_remainder: leave out the last N mod B tokens, so that all rows are full (training). Otherwise every token
            stands in exactly one batch (evaluation): the first N mod B streams are a token longer, `lengths` says so
            in the last batch, no row of which is empty (that batch may be one token wider than T); a text of fewer
            than B tokens gives fewer streams.

    Raises:
        TypeError: `text` is not a Text.
        ValueError: a size below 1, an unknown `shuffle`, or too few tokens for `batch_size`.
    """

    def __init__(
        self,
        text: Text,
        batch_size: int = 16,
        segment_length: int = 32,
        shuffle: str | None = None,
        seed: int = 0,
        *,
        drop_remainder: bool = True,
    ):
        super().__init__(text, seed)
        for argument, size in (("batch_size", batch_size), ("segment_length", segment_length)):
            if size < 1:
                raise ValueError(f"{argument}: expected at least 1, got {size}")
        if shuffle not in ("line", "article", None):
            raise ValueError(f"shuffle: expected 'line', 'article' or None, got {checks.shown(shuffle)}")
        if drop_remainder and text.num_tokens < batch_size:
            raise ValueError(
                f"batch_size: {text.name!r} has {text.num_tokens} tokens, too few for {batch_size} streams; choose "
                f"{text.num_tokens} or less"
            )
        self.batch_size = min(batch_size, text.num_tokens)
        self.segment_length, self.shuffle, self.drop_remainder = segment_length, shuffle, drop_remainder

    @property
    def num_tokens(self) -> int:
        """Tokens an epoch hands out."""
        remainder = self.text.num_tokens % self.batch_size if self.drop_remainder else 0
        return self.text.num_tokens - remainder

    def _num_batches(self, epoch: int) -> int:
        return -(-(self.text.num_tokens // self.batch_size) // self.segment_length)

    def _epoch_batches(self, epoch: int, start: int) -> Iterator[SegmentBatch]:
        tokens = self._ordered_tokens(epoch)
        stream_length, remainder = divmod(len(tokens), self.batch_size)
        num_batches = self._num_batches(epoch)
        longer = 0 if self.drop_remainder else remainder
        width = stream_length + (longer > 0)
        # Rows of `streams` start where the stream before ends; a shorter stream's last column is padding.
        first = np.arange(self.batch_size) * stream_length + np.minimum(np.arange(self.batch_size), longer)
        last_lengths = np.full(self.batch_size, stream_length - (num_batches - 1) * self.segment_length)
        last_lengths[:longer] += 1
        for position in range(start, num_batches):
            begin = position * self.segment_length
            is_last = position == num_batches - 1
            end = width if is_last else begin + self.segment_length
            columns = np.minimum(first[:, None] + np.arange(begin, end), len(tokens) - 1)
            x = torch.from_numpy(tokens[columns].astype(np.int64))
            lengths = torch.from_numpy(last_lengths.copy()) if is_last and longer else None
            if lengths is not None:
                x[longer:, -1] = 0
            yield SegmentBatch(x, lengths, position == 0)

    def _ordered_tokens(self, epoch: int) -> np.ndarray:
        if self.shuffle is None:
            return self.text.tokens
        starts = self.text.line_starts
        if self.shuffle == "article":
            starts = starts[self.text.article_starts]
        order = self._generator(epoch).permutation(len(starts) - 1)
        lengths = np.diff(starts)[order]
        # Token i of the new order: its unit's start in the text plus its place in the unit.
        shift = starts[:-1][order] - np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return self.text.tokens[np.arange(self.text.num_tokens) + np.repeat(shift, lengths)]


class SentenceBatches(_Batches):
    """Whole lines, those of similar length together, so that little is padding.

    Args:
        text: what to run over; lines without tokens are left out.
        batch_tokens: B * T is at most this, padding included; a longer line is a batch of its own.
        shuffle: draw anew each epoch which lines of equal length stand together, and the order of the batches;
            otherwise from short to long.
        seed: of the draws.

    Raises:
        TypeError: `text` is not a Text.
        ValueError: `batch_tokens` below 1.
    """

    def __init__(self, text: Text, batch_tokens: int = 4096, shuffle: bool = False, seed: int = 0):
        super().__init__(text, seed)
        checks.count("batch_tokens", batch_tokens)
        self.batch_tokens, self.shuffle = batch_tokens, shuffle
        # Sorted lengths are the same in every epoch, and with them the cuts between batches.
        self._cuts = self._cut(np.sort(text.lengths[text.lengths > 0]))

    @property
    def num_tokens(self) -> int:
        """Tokens an epoch hands out, padding not counted."""
        return self.text.num_tokens

    def _cut(self, lengths: np.ndarray) -> np.ndarray:
        cuts = [0]
        while cuts[-1] < len(lengths):
            ahead = lengths[cuts[-1] : cuts[-1] + self.batch_tokens]
            fitting = int(np.count_nonzero(np.arange(1, len(ahead) + 1) * ahead <= self.batch_tokens))
            cuts.append(cuts[-1] + max(1, fitting))
        return np.array(cuts)

    def _num_batches(self, epoch: int) -> int:
        return len(self._cuts) - 1

    def _epoch_batches(self, epoch: int, start: int) -> Iterator[SentenceBatch]:
        lengths = self.text.lengths
        lines = np.flatnonzero(lengths)
        batches = np.arange(len(self._cuts) - 1)
        if self.shuffle:
            generator = self._generator(epoch)
            lines = generator.permutation(lines)
            batches = generator.permutation(batches)
        lines = lines[np.argsort(lengths[lines], kind="stable")]
        for batch in batches[start:]:
            index = lines[self._cuts[batch] : self._cuts[batch + 1]]
            batch_lengths = lengths[index]
            column = np.arange(batch_lengths.max())
            real = column < batch_lengths[:, None]
            places = np.where(real, self.text.line_starts[index][:, None] + column, 0)
            x = np.where(real, self.text.tokens[places], 0).astype(np.int64)
            yield SentenceBatch(torch.from_numpy(x), torch.from_numpy(batch_lengths), torch.from_numpy(index))
