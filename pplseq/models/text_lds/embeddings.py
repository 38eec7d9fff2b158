"""Embeddings by a linear dynamical system for text: of tokens in their sentences, and of word types.

A token's embedding is the posterior mean of its state given the whole sentence, whitened by E[x x'] of those means and put on
the unit sphere. Means need no covariances of their own: the gains do not depend on the words, so one list of them (exact at
the start of a sentence, constant once the steady state is reached) serves all sentences.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: (4), (5), (37).
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.kernels.matrix_equations import covariance_path, filtered_covariance, predicted_covariance
from pplseq.models.batch import in_ids
from pplseq.models.forms import in_form, splitting
from pplseq.models.text_lds.parameters import rewritten

if TYPE_CHECKING:
    from pplseq.models.text_lds.program import TextLDS

KINDS = ("smoothed", "filtered")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ROWS = 512  # sentences side by side: a matrix product of this many rows is near the peak, and all fits in the cache
WINDOW = 256  # kept words of a piece of a long line, at least
FORGETFUL = 1 << 20
HEAD = 10_000  # steps after which a start that has not come to the steady state is taken for it


class TokenEmbedder:
    """Embeds tokens of many sentences with given parameters, all of whose matrices are made once.

    Args:
        model: a :class:`~pplseq.models.text_lds.program.TextLDS`.
        kind: "smoothed" (given the whole sentence) or "filtered" (given the words so far).
        normalize: whiten by the second moment and divide by the norm; False: plain posterior means.
        dtype: of the passes over the text, "float32" or "float64"; the gains are always made in float64.
        share: of the pseudo-counts; None: the model's ``embedding_share``. With 1 the means are those of the states.

    Long lines are cut into pieces that overlap by as much as the filter remembers, and go side by side.

    Cost: 3 h^2 multiplications a token (1 h^2 when filtered).
    """

    def __init__(
        self, model: TextLDS, *, kind: str = "smoothed", normalize: bool = True, dtype: str = "float32",
        share: float | None = None,
    ):  # fmt: skip
        checks.choice("kind", kind, KINDS)
        checks.choice("dtype", dtype, DTYPES)
        self.model, self.kind, self.dtype = model, kind, DTYPES[dtype]
        self.normalize = checks.flag("normalize", normalize)
        with torch.no_grad():
            emission = model.word_emission(torch.float64)
            self._dynamics = model.transition.double(), model.state_noise.double(), emission.information
            self._start = model.start_covariance.double()
            self._basis, self._inverse = self._choose_basis()
            predicted = predicted_covariance(*self._dynamics)
            self._steady = predicted, filtered_covariance(predicted, emission.information)
            share = model.embedding_share if share is None else share
            self._factor = evidence_factor(model.probs.double(), model.shrinkage.double(), share)
            evidence = emission.table() * self._factor.unsqueeze(1)
            self._table = (evidence @ (self._basis @ self._steady[1]).T).to(self.dtype)
            self._steady_gains = self._gains(self._steady[1])
            self._memory = self._steps_to_forget()
            self._window = max(WINDOW, 4 * self._memory)
        self._head: list[tuple[Tensor, ...]] = []
        self._path = None
        self._head_complete = False

    @property
    def num_dimensions(self) -> int:
        """h."""
        return self._table.shape[1]

    def _choose_basis(self) -> tuple[Tensor, Tensor]:
        """(T, T^-1), T = E[x x']^-1/2: in this basis of the state whitening costs nothing."""
        moment = self.model.second_moment if self.kind == "smoothed" else self.model.filtered_moment
        if not self.normalize:
            identity = torch.eye(len(moment), dtype=torch.float64, device=moment.device)
            return identity, identity
        values, vectors = torch.linalg.eigh(moment.double())
        # a direction in which no state ever moves has no scale of its own
        roots = values.clamp_min(1e-12 * float(values[-1])).sqrt()
        return (vectors / roots) @ vectors.T, (vectors * roots) @ vectors.T

    def _steps_to_forget(self) -> int:
        """Steps after which neither pass remembers where it began."""
        powers, steps = torch.stack([self._steady_gains[0], self._steady_gains[2]]).double(), 1
        while float(powers.norm()) > torch.finfo(self.dtype).eps and steps < FORGETFUL:
            powers, steps = powers @ powers, 2 * steps
        return steps

    def _gains(self, filtered: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(F, X, J, I - J A) of a step, transposed for row vectors.

        x_t = F x_{t-1} + X tab_t, and backwards xs_t = J xs_{t+1} + (I - J A) x_t.
        """
        transition, _, information = self._dynamics
        identity = torch.eye(len(transition), dtype=torch.float64, device=transition.device)
        forward = transition - filtered @ information @ transition
        scale = torch.linalg.solve(self._steady[1].T, filtered.T).T  # the table holds the steady gain
        following = transition @ filtered @ transition.T + self._dynamics[1]
        backward = torch.linalg.solve(following, transition @ filtered).T
        matrices = forward, scale, backward, identity - backward @ transition
        f, x, j, rest = ((self._basis @ m @ self._inverse).T.contiguous().to(self.dtype) for m in matrices)
        return f, x, j, rest

    def _head_gains(self, steps: int) -> list[tuple[Tensor, ...]]:
        """Gains of the first steps, at most `steps` of them; from the end of the list on the steady ones hold."""
        if self._path is None:
            self._path = covariance_path(*self._dynamics, self._start)
        tolerance = max(torch.finfo(self.dtype).eps, 1e-13) * float(self._steady[0].norm())
        while not self._head_complete and len(self._head) < min(steps, HEAD):
            predicted, filtered = next(self._path)
            if float((predicted - self._steady[0]).norm()) <= tolerance:
                self._head_complete = True
            else:
                self._head.append(self._gains(filtered))
        return self._head

    @torch.no_grad()
    def embed(self, tokens: np.ndarray, line_starts: np.ndarray) -> np.ndarray:
        """Embeddings of encoded sentences.

        Args:
            tokens: (N,) word ids; ``MISSING`` (-1) for a word that was not seen.
            line_starts: (num_lines + 1,) where each sentence begins; a line may be empty.

        Returns:
            (N, h) float32 or float64.

        Raises:
            ValueError: for ids outside the vocabulary.
        """
        tokens, line_starts = np.asarray(tokens), np.asarray(line_starts)
        if len(tokens) and not (-1 <= tokens.min() and tokens.max() < len(self._table)):
            raise ValueError(
                f"tokens must be ids 0..{len(self._table) - 1}, or -1 for a missing word; got {tokens.min()}..{tokens.max()}; "
                "encode the text with the model's vocabulary"
            )
        lengths = np.diff(line_starts)
        result = np.empty((len(tokens), self.num_dimensions), dtype=str(self.dtype).removeprefix("torch."))
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] > 0]
        gaps = np.zeros(len(lengths), dtype=bool)
        for line in np.searchsorted(line_starts, np.flatnonzero(tokens < 0), side="right") - 1:
            gaps[line] = True
        whole = order[~gaps[order]]
        pieces = np.stack([line_starts[whole], line_starts[whole + 1]] * 2, 1)
        long = lengths[whole] > 2 * self._window
        begins, later = self._cut(pieces[long])
        for from_start, rows in ((True, np.concatenate([begins, pieces[~long]])), (False, later)):
            rows = rows[np.argsort(rows[:, 0] - rows[:, 1], kind="stable")]  # longest first
            for first in range(0, len(rows), ROWS):
                self._embed_pieces(tokens, rows[first : first + ROWS], from_start, result)
        for line in order[gaps[order]]:  # what is missing changes the gains: one sentence at a time
            places = slice(line_starts[line], line_starts[line + 1])
            result[places] = self._pass_with_gaps(tokens[places]).cpu().numpy()
        return result

    def _cut(self, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Long lines in pieces that overlap by what the filter remembers: their first pieces, and the others.

        A piece is (start, stop, first and last place that are kept).
        """
        begins, later = [], []
        for start, stop in lines[:, :2].tolist():
            cuts = [*range(start, stop - self._window, self._window), stop]
            for kept, end in zip(cuts[:-1], cuts[1:], strict=True):
                piece = max(start, kept - self._memory), min(stop, end + self._memory), kept, end
                (begins if kept == start else later).append(piece)
        first, others = (np.array(pieces, dtype=np.int64).reshape(-1, 4) for pieces in (begins, later))
        return first, others

    def _embed_pieces(self, tokens: np.ndarray, pieces: np.ndarray, from_start: bool, result: np.ndarray) -> None:
        starts, stops, first, last = pieces.T
        places, counts = _packed(starts, stops - starts)
        vectors = self._pass(tokens[places], counts, from_start).cpu().numpy()
        if (starts == first).all() and (stops == last).all():
            result[places] = vectors
            return
        rows = np.concatenate([np.arange(count) for count in counts])
        kept = (places >= first[rows]) & (places < last[rows])
        result[places[kept]] = vectors[kept]

    def _pass(self, words: np.ndarray, counts: np.ndarray, from_start: bool) -> Tensor:
        """Embeddings of packed sentences: step by step, longest sentence first, `counts` of them alive at each step.

        from_start: they are whole from their beginning on; False: pieces in the steady state.
        """
        ids = torch.from_numpy(words.astype(np.int64)).to(self._table.device)
        x = self._table[ids]
        stops = np.cumsum(counts).tolist()
        starts = [0, *stops[:-1]]
        head, steady = self._head_gains(len(counts)) if from_start else [], self._steady_gains
        for t, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            forward, scale = (head[t] if t < len(head) else steady)[:2]
            step = x[start:stop]
            if t < len(head):
                step.copy_(step @ scale)
            if t:
                step.addmm_(x[starts[t - 1] : starts[t - 1] + stop - start], forward)
        return self._finish(self._smooth(x, starts, stops, head) if self.kind == "smoothed" else x)

    def _smooth(self, x: Tensor, starts: list[int], stops: list[int], head: list[tuple[Tensor, ...]]) -> Tensor:
        steps, steady = len(starts), self._steady_gains
        in_head = stops[min(len(head), steps) - 1] if head else 0
        smoothed = torch.empty_like(x)
        torch.mm(x[in_head:], steady[3], out=smoothed[in_head:])
        for t in range(steps - 1, -1, -1):
            start, stop = starts[t], stops[t]
            alive = stops[t + 1] - starts[t + 1] if t + 1 < steps else 0
            smoothed[start + alive : stop] = x[start + alive : stop]  # a sentence's last word
            if not alive:
                continue
            backward, remainder = (head[t] if t < len(head) else steady)[2:]
            step = smoothed[start : start + alive]
            if t < len(head):
                torch.mm(x[start : start + alive], remainder, out=step)
            step.addmm_(smoothed[starts[t + 1] : stops[t + 1]], backward)
        return smoothed

    def _pass_with_gaps(self, words: np.ndarray) -> Tensor:
        ids = torch.from_numpy(words.astype(np.int64)).to(self._table.device)
        chain = self.model.posterior(ids.unsqueeze(0))
        factor = self._factor[ids.clamp_min(0)].to(chain.evidence.vector)
        evidence = chain.evidence._replace(vector=chain.evidence.vector * factor.reshape(-1, 1, 1))
        chain = GaussianChain(chain.start, chain.dynamics, evidence, seen=(ids >= 0).unsqueeze(1))
        states = chain.smoothed_states() if self.kind == "smoothed" else chain.filtered_states()
        return self._finish((states.means[0].double() @ self._basis.T).to(self.dtype))

    def _finish(self, x: Tensor) -> Tensor:
        return unit_rows(x) if self.normalize else x

    @torch.no_grad()
    def types(self) -> np.ndarray:
        """(V, h) embeddings of word types: the filter's steady response to a single word, K W e_i, in the same coordinates."""
        return self._finish(self._table).cpu().numpy()


def embed_tokens(
    model: TextLDS, x: Any, lengths=None, *, kind: str = "smoothed", normalize: bool = True, dtype: str = "float32"
) -> np.ndarray | list[np.ndarray]:
    """Embeddings of tokens in their sentences.

    Args:
        x: a :class:`~pplseq.data.text.Text`; word ids in any form that models take; or sentences, strings or lists of words,
            where the model has a ``vocabulary``.
        kind, normalize, dtype: of :class:`TokenEmbedder`.

    Returns:
        (N, h) array of all tokens in their order, for a Text; else a list of (T_i, h).
    """
    tokens, line_starts = as_lines(x, lengths, model)
    result = TokenEmbedder(model, kind=kind, normalize=normalize, dtype=dtype).embed(tokens, line_starts)
    return result if hasattr(x, "line_starts") else np.split(result, line_starts[1:-1])


def text_moments(model: TextLDS, x: Any, lengths=None) -> list[Tensor]:
    """(h, h) mean of x x' over the smoothed, and over the filtered means of a text, as for :func:`embed_tokens`."""
    moments = []
    for kind in ("smoothed", "filtered"):
        means = TokenEmbedder(model, kind=kind, normalize=False, dtype="float64").embed(*as_lines(x, lengths, model))
        if len(means) < model.num_states:
            raise ValueError(f"x must hold at least {model.num_states} words (num_states), got {len(means)}")
        moments.append(torch.from_numpy(means.T @ means / len(means)))
    return moments


def evidence_factor(probs: Tensor, shrinkage: Tensor, share: float) -> Tensor:
    """(V,) (n + kappa) / (n + r kappa): what a share r of the pseudo-counts makes of each word's evidence."""
    # probs are (n + kappa) / (T + kappa V), and kappa / (T + kappa V) is (1 - shrinkage) / V
    return probs / (probs - (1 - share) * (1 - shrinkage) / len(probs))


def unit_rows(x: Tensor) -> Tensor:
    """Rows divided by their norms; a zero row stays zero."""
    return x / x.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)


def as_lines(x: Any, lengths: Any = None, model: TextLDS | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, line_starts) of a :class:`~pplseq.data.text.Text`, of word ids, or of sentences in the model's words."""
    if hasattr(x, "line_starts"):
        return x.tokens, x.line_starts
    split = splitting(None if model is None else model.vocabulary)
    x, lengths = in_form(x, lengths, num_features=None, split=split)
    if model is not None:
        x = in_ids(rewritten(x, model.forms, model.vocabulary), model.vocabulary)
    if x is None or isinstance(x, (str, PathLike)):
        raise checks.no_sequences("x", x)
    if isinstance(x, Sequence):
        rows = [np.asarray(row) for row in x]
        if any(row.ndim != 1 or row.size and not np.issubdtype(row.dtype, np.integer) for row in rows):
            raise TypeError("x must be a list of sequences of integer word ids; to give a single sentence, write [x]")
    else:
        padded = np.asarray(x)
        if padded.ndim != 2 or not np.issubdtype(padded.dtype, np.integer):
            raise TypeError(
                f"x must be a Text, a list of id sequences or integers (B, T); got {padded.dtype} {padded.shape}"
            )
        sizes = [padded.shape[1]] * len(padded) if lengths is None else np.asarray(lengths).tolist()
        rows = [row[:size] for row, size in zip(padded, sizes, strict=True)]
    starts = np.cumsum([0, *map(len, rows)])
    return np.concatenate(rows).astype(np.int64) if rows else np.zeros(0, dtype=np.int64), starts


def _packed(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(places of all tokens, step by step, and how many sentences have each step); lengths fall."""
    counts = (lengths[:, None] > np.arange(lengths[0])).sum(0)
    steps = np.repeat(np.arange(lengths[0]), counts)
    rows = np.concatenate([np.arange(count) for count in counts])
    return starts[rows] + steps, counts
