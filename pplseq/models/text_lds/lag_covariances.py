"""Covariances of whitened words k places apart, as operators: sparse minus low rank, nothing V x V ever dense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks

NORMALIZATIONS = ("tokens", "pairs")
ROW_CHUNK = 4096  # rows of a product done together: their (rows, h) results stay in the cache


def import_sparse():
    """scipy.sparse, or an ImportError that says what to install."""
    try:
        import scipy.sparse
    except ImportError as error:
        raise ImportError('covariances of words need scipy: pip install "pplseq[text]"') from error
    return scipy.sparse


class Moments(NamedTuple):
    """What one pass over the covariances gives; see :meth:`LagCovariances.moments`."""

    grams: np.ndarray  # (L + 1, h, h) float64: C' Psi_k C
    combination: np.ndarray | None  # (V, h): sum_k Psi_k C U_k + Psi_k' C W_k


class DenseLagCovariances:
    """Covariances Psi_0 ... Psi_L of an m-dimensional series as matrices; m is small.

    Args:
        matrices: (L + 1, m, m), [k] = E[y_{t+k} y_t'], row = the LATER value. Whitened: [0] is the identity.
    """

    def __init__(self, matrices: np.ndarray) -> None:
        matrices = np.asarray(matrices, dtype=np.float64)
        if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or len(matrices) < 2:
            raise ValueError(f"matrices: expected (L + 1, m, m) with at least one lag, got {matrices.shape}")
        if not np.isfinite(matrices).all():
            raise ValueError("matrices: expected finite numbers, got NaN or infinite ones")
        self.matrices = matrices
        self.size = self.num_dimensions = matrices.shape[1]
        self.max_lag = len(matrices) - 1
        self.dtype = np.dtype(np.float64)
        self.trace = float(np.trace(matrices[0]))

    def apply(self, lag: int, block: np.ndarray) -> np.ndarray:
        """Psi_k X."""
        return self.matrices[lag] @ block

    def apply_transposed(self, lag: int, block: np.ndarray) -> np.ndarray:
        """Psi_k' X."""
        return self.matrices[lag].T @ block

    def dense(self, lag: int) -> np.ndarray:
        """Psi_k."""
        return self.matrices[lag]

    def moments(
        self,
        emission: np.ndarray,
        forward: np.ndarray | None = None,
        backward: np.ndarray | None = None,
        *,
        horizon: int | None = None,
    ) -> Moments:
        """See :meth:`LagCovariances.moments`."""
        matrices = self.matrices if horizon is None else self.matrices[: horizon + 1]
        products = matrices @ emission
        grams = emission.T @ products
        if forward is None:
            return Moments(grams, None)
        assert backward is not None
        lags, m, h = products.shape
        # two products with the lags side by side instead of 2 L small ones
        combination = products.transpose(1, 0, 2).reshape(m, lags * h) @ forward.reshape(lags * h, h)
        later = matrices[1:].reshape((lags - 1) * m, m)
        combination += later.T @ (emission @ backward[1:]).reshape((lags - 1) * m, h)
        return Moments(grams, combination)

    def project(self, emission: np.ndarray) -> np.ndarray:
        """C with its columns in the space of the data."""
        return emission

    def restrict(self, basis: np.ndarray) -> DenseLagCovariances:
        """The covariances of S'y, S (m, n)."""
        return DenseLagCovariances(np.stack([basis.T @ matrix @ basis for matrix in self.matrices]))


class LagCovariances:
    """Whitened covariances Psi_k = E[w_{t+k} w_t'] of words w = W (e_i - mu), W = diag(mu)^-1/2; row = the LATER word.

        Psi_k = alpha T_k/T W (P_k - a_k b_k') W,   Psi_0 = I - u u',  u = mu^1/2

    P_k are the relative frequencies of the T_k pairs, a_k and b_k their exact margins (later and earlier), so that
    u'Psi_k = 0 and Psi_k u = 0 exactly. With kappa pseudo-counts, mu = (n + kappa) / (T + kappa V) and
    alpha = T / (T + kappa V): that is the covariance of the text mixed with independent uniform words, which keeps the
    margins and the definiteness.

    Args:
        probs: (V,) mu, positive. pairs: L sparse matrices of pair counts N_k[later, earlier].
        counts: (V,) word counts the statistics are of; for held-out text those of that text, while ``probs`` are the
            training text's. None where probs come from these counts.
        shrinkage: alpha.
        num_tokens: T, to average over all tokens, see `normalize` of :meth:`from_counts`; None averages over pairs.
        dtype: of the stored values and of products; float32 halves the memory of large vocabularies.
        num_threads: threads that share the rows of a product. With more than one, set OMP_NUM_THREADS=1.

    Attributes:
        size, num_words: V. num_dimensions: V - 1, the rank of Psi_0. max_lag: L. unit: u (V,).
        trace: of Psi_0.

    Source:
        Belanger & Kakade (2015), equations 13-17, with (3) as the orientation; the margins instead of mu mu'.
    """

    def __init__(
        self,
        probs: np.ndarray,
        pairs: Sequence,
        *,
        counts: np.ndarray | None = None,
        shrinkage: float = 1.0,
        num_tokens: float | None = None,
        dtype=np.float64,
        num_threads: int = 1,
    ) -> None:
        sparse = import_sparse()
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"dtype: expected float64 or float32, got {self.dtype}")
        self.probs = np.asarray(probs, dtype=np.float64)
        self.unit = np.sqrt(self.probs)
        self.shrinkage, self.num_threads = shrinkage, num_threads
        self.normalize = "pairs" if num_tokens is None else "tokens"
        self.num_words = self.size = len(self.probs)
        self.num_dimensions = self.num_words - 1
        self.max_lag = len(pairs)
        self.frequencies, self.trace = None, float(self.num_dimensions)
        if counts is not None:
            self.frequencies = counts / counts.sum()
            self.trace = float((self.frequencies / self.probs).sum()) - 1.0
        self._rows, self._columns, self._left, self._right = [], [], [], []
        scale = 1.0 / self.unit
        for lag, matrix in enumerate(pairs, 1):
            matrix = sparse.csr_array(matrix)
            total = float(matrix.data.sum(dtype=np.float64))
            if not total > 0 and (counts is None or num_tokens is None):  # else the covariance is zero
                raise ValueError(
                    f"pairs: no two words {lag} places apart; expected pairs at every lag 1..{len(pairs)}: "
                    "use longer lines, a longer text, or a smaller max_lag"
                )
            share = shrinkage if num_tokens is None else shrinkage * total / num_tokens
            total = total or 1.0
            later = scale * matrix.sum(1, dtype=np.float64) / total
            earlier = scale * matrix.sum(0, dtype=np.float64) / total
            weights = matrix.data * (share / total)
            weights *= np.repeat(scale, np.diff(matrix.indptr))
            weights *= scale[matrix.indices]
            weighted = sparse.csr_array((weights.astype(self.dtype), matrix.indices, matrix.indptr), shape=matrix.shape)
            self._rows.append(weighted)
            self._columns.append(weighted.T.tocsr())
            if counts is None:
                left, right = -share * later[:, None], earlier[:, None]
            else:  # centred by the training text's probabilities: P - a mu' - mu b' + mu mu', whitened
                left = share * np.stack([-later, self.unit], 1)
                right = np.stack([self.unit, self.unit - earlier], 1)
            self._left.append(left.astype(self.dtype))
            self._right.append(right.astype(self.dtype))

    @classmethod
    def from_counts(
        cls,
        counts,
        pseudo_counts: float = 1.0,
        *,
        probs_from: LagCovariances | None = None,
        max_lag: int | None = None,
        normalize: str | None = None,
        dtype=None,
        num_threads: int | None = None,
    ) -> LagCovariances:
        """The covariances of counted text.

        Args:
            counts: a :class:`~pplseq.data.lag_counts.LagCounts`.
            pseudo_counts: kappa, added to every word's count. Large ones (50 to 1000) keep rare words from dominating.
            probs_from: for held-out text: the training covariances, whose centring and whitening are used (and no
                pseudo-counts), so that likelihoods are of that text under the trained model.
            max_lag: use lags up to this; None for all.
            normalize: "tokens" multiplies Psi_k by T_k / T, T_k being the number of pairs: the covariance of the text as
                one stream, in which a word tells nothing of the next line's. A proper sequence of covariances, and in
                short lines a better model of them. "pairs" takes every word to have a past of its own kind.
                None takes that of ``probs_from``, else "tokens".
            dtype, num_threads: see the class; None takes those of ``probs_from``, else float64 and 1.

        Raises:
            ValueError: a word that never occurs, without pseudo-counts (names it); a lag without pairs; counts of
                another vocabulary than probs_from; counts that are negative or not finite.
        """
        lags = tuple(counts.lags)
        words = np.asarray(counts.counts, dtype=np.float64)
        if max_lag is not None:
            if not 1 <= max_lag <= len(lags):
                raise ValueError(f"max_lag: expected 1..{len(lags)}, the lags that were counted, got {max_lag}")
            lags = lags[:max_lag]
        if not lags:
            raise ValueError("counts: expected at least one lag, got none; count with max_lag >= 1")
        if not (np.isfinite(words).all() and (words >= 0).all()):
            raise ValueError("counts: expected finite counts of at least 0, got NaN, infinite or negative ones")
        if any(not (np.isfinite(matrix.data).all() and (matrix.data >= 0).all()) for matrix in lags):
            raise ValueError("counts: expected finite pair counts of at least 0, got NaN, infinite or negative ones")
        if not words.sum() > 0:
            raise ValueError("counts: expected a text of at least one token, got none")
        if normalize is None:
            normalize = "tokens" if probs_from is None else probs_from.normalize
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"normalize: expected one of {', '.join(NORMALIZATIONS)}, got {checks.shown(normalize)}")
        num_tokens = words.sum() if normalize == "tokens" else None
        if probs_from is not None:
            options = {
                "num_tokens": num_tokens,
                "dtype": probs_from.dtype if dtype is None else dtype,
                "num_threads": probs_from.num_threads if num_threads is None else num_threads,
            }
            if len(words) != probs_from.num_words:
                raise ValueError(
                    f"counts: expected the {probs_from.num_words} words of the training text, got {len(words)}; "
                    "count both with one vocabulary"
                )
            return cls(probs_from.probs, lags, counts=words, **options)
        if not (np.isfinite(pseudo_counts) and pseudo_counts >= 0):
            raise ValueError(f"pseudo_counts: expected a number of at least 0, got {pseudo_counts}")
        unseen = np.flatnonzero(words == 0)
        if pseudo_counts == 0 and len(unseen):
            word = counts.vocabulary.words[unseen[0]] if hasattr(counts.vocabulary, "words") else unseen[0]
            raise ValueError(
                f"counts: {checks.shown(word)} and {len(unseen) - 1} other words never occur, so that whitening would divide "
                "by "
                "zero; give pseudo_counts > 0 or cut the vocabulary"
            )
        total = words.sum()
        mass = total + pseudo_counts * len(words)
        return cls(
            (words + pseudo_counts) / mass,
            lags,
            shrinkage=total / mass,
            num_tokens=num_tokens,
            dtype=np.float64 if dtype is None else dtype,
            num_threads=1 if num_threads is None else num_threads,
        )

    @property
    def num_pairs_stored(self) -> int:
        """Non-zero pairs over all lags."""
        return sum(matrix.nnz for matrix in self._rows)

    def _lag_zero(self, block: np.ndarray) -> Callable[[slice], np.ndarray]:
        """Rows of Psi_0 X, on demand."""
        margin = self.unit.astype(self.dtype) @ block
        if self.frequencies is None:
            return lambda part: block[part] - np.outer(self.unit[part], margin).astype(self.dtype, copy=False)
        # W (diag(f) - f mu' - mu f' + mu mu') W
        ratio = (self.frequencies / self.unit).astype(self.dtype)
        diagonal = (self.frequencies / self.probs).astype(self.dtype)[:, None]
        around, unit = margin - ratio @ block, self.unit.astype(self.dtype)
        return lambda part: diagonal[part] * block[part] - np.outer(ratio[part], margin) + np.outer(unit[part], around)

    def apply(self, lag: int, block: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
        """Psi_k X for X (V, n)."""
        return self._product(lag, self._rows, self._left, self._right, block, out)

    def apply_transposed(self, lag: int, block: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
        """Psi_k' X for X (V, n)."""
        return self._product(lag, self._columns, self._right, self._left, block, out)

    def _product(self, lag, matrices, left, right, block, out) -> np.ndarray:
        block = np.ascontiguousarray(block, dtype=self.dtype)
        if out is None:
            out = np.empty(block.shape, self.dtype)
        if lag == 0:
            out[:] = self._lag_zero(block)(slice(None))
            return out
        margin = right[lag - 1].T @ block

        def rows(part: slice) -> None:
            out[part] = _take_rows(matrices[lag - 1], part) @ block
            out[part] += left[lag - 1][part] @ margin

        self._over_rows(rows)
        return out

    def _over_rows(self, work: Callable[[slice], object]) -> list:
        parts = [slice(start, min(start + ROW_CHUNK, self.size)) for start in range(0, self.size, ROW_CHUNK)]
        if self.num_threads == 1 or len(parts) == 1:
            return [work(part) for part in parts]
        with ThreadPoolExecutor(self.num_threads) as pool:
            return list(pool.map(work, parts))

    def moments(
        self,
        emission: np.ndarray,
        forward: np.ndarray | None = None,
        backward: np.ndarray | None = None,
        *,
        horizon: int | None = None,
    ) -> Moments:
        """The only two things that an E-step needs of the text, in one pass that holds no other (V, h) block.

            grams[k] = C' Psi_k C,    combination = sum_{k=0..r} Psi_k C U_k + sum_{k=1..r} Psi_k' C W_k

        Args:
            emission: C (V, h). forward: U (r + 1, h, h). backward: W (r + 1, h, h), its first entry is not used.
                Both None: the grams alone.
            horizon: r; None for max_lag.
        """
        horizon = self.max_lag if horizon is None else horizon
        emission = np.ascontiguousarray(emission, dtype=self.dtype)
        h = emission.shape[1]
        later = [self._right[k].T @ emission for k in range(horizon)]
        earlier = [self._left[k].T @ emission for k in range(horizon)]
        at_zero = self._lag_zero(emission)
        combination = np.empty((self.size, h), self.dtype) if forward is not None else None
        ways: Any = ()
        if forward is not None and backward is not None:
            ways = forward.astype(self.dtype), backward.astype(self.dtype)

        def rows(part: slice) -> np.ndarray:
            grams = np.empty((horizon + 1, h, h))
            block = emission[part].T.astype(np.float64)
            product = at_zero(part)
            grams[0] = block @ product
            if combination is not None:
                combination[part] = product @ ways[0][0]
            for k in range(horizon):
                product = _take_rows(self._rows[k], part) @ emission
                product += self._left[k][part] @ later[k]
                grams[k + 1] = block @ product
                if combination is not None:
                    combination[part] += product @ ways[0][k + 1]
                    product = _take_rows(self._columns[k], part) @ emission
                    product += self._right[k][part] @ earlier[k]
                    combination[part] += product @ ways[1][k + 1]
            return grams

        grams: Any = sum(self._over_rows(rows))
        return Moments(grams, combination)

    def project(self, emission: np.ndarray) -> np.ndarray:
        """C with its columns orthogonal to u, which rounding may have bent."""
        emission = np.asarray(emission, dtype=self.dtype)
        emission = emission - np.outer(self.unit, self.unit @ emission).astype(self.dtype)
        return emission

    def dense(self, lag: int) -> np.ndarray:
        """Psi_k as a (V, V) array, for small V."""
        return self.apply(lag, np.eye(self.size, dtype=self.dtype))

    def restrict(self, basis: np.ndarray) -> DenseLagCovariances:
        """The covariances of S'w for orthonormal columns S (V, m) orthogonal to u: Psi_0 becomes I_m.

        Learning on them is exact maximum likelihood for S'w, at a cost that does not depend on V.
        """
        return DenseLagCovariances(self.moments(basis).grams)


def _take_rows(matrix, part: slice):
    """Rows of a CSR matrix as views (scipy's slicing copies)."""
    if part.start == 0 and part.stop == matrix.shape[0]:
        return matrix
    first, last = matrix.indptr[part.start], matrix.indptr[part.stop]
    return type(matrix)(
        (matrix.data[first:last], matrix.indices[first:last], matrix.indptr[part.start : part.stop + 1] - first),
        shape=(part.stop - part.start, matrix.shape[1]),
        copy=False,
    )
