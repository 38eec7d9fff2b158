"""The Gaussian of a word: a one-hot vector of V words, seen in the coordinates in which words are white.

A word i of probability mu_i is the vector w = W (e_i - mu), W = diag(mu)^-1/2. Such vectors are orthogonal to the unit vector
u = mu^1/2, so everything lives on its complement of dimension V - 1, where words drawn from mu have covariance
Pi = I - u u'. Nothing of size V x V is ever built.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: section 4 and appendix A.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq import checks
from pplseq.distributions.gaussian_types import Evidence
from pplseq.distributions.state import Conditional

MEASURES = ("whitened", "original", "iid")
PREDICTED_WORDS = 4096  # V up to which a forecast writes its V x V covariance out


class WordEmission:
    """p(w | z) = N(C z, D) on the complement of u, with the inverse covariance D^-1 = Pi + C N C'.

    In the form of the paper's (9), D = Pi - C M C' with N = M (I - C'C M)^-1: any positive semidefinite N gives a proper D,
    which is why N, and not M, is what gradients may move. Calling it on a state gives the word's distribution.

    Args:
        probs: (V,) mu, word probabilities, all positive.
        matrix: (V, h) C in whitened coordinates; its component along u is taken out.
        precision: (h, h) N, symmetric and positive semidefinite.
        measure: what densities refer to. "whitened": Lebesgue measure on the complement of u. "original": Lebesgue measure on
            the vectors e_i - mu (those that sum to zero): higher by -(sum log mu_i + log V) / 2 a word. "iid": the density
            of words drawn from the Gaussian N(0, Pi) of no context, so that log-densities are gains over that baseline.

    Raises:
        ValueError: for shapes that do not fit or probabilities that are none.

    Cost: C'C once, V h^2; then h^2 a word.
    """

    def __init__(self, probs: Tensor, matrix: Tensor, precision: Tensor, *, measure: str = "whitened"):
        if probs.dim() != 1 or matrix.dim() != 2 or len(matrix) != len(probs) or len(probs) < 2:
            raise ValueError(
                f"matrix must be (V, h) with a row for each of the V >= 2 words of probs (V,), got {tuple(matrix.shape)} "
                f"and {tuple(probs.shape)}"
            )
        self.num_words, self.num_states = matrix.shape
        if tuple(precision.shape) != (self.num_states, self.num_states):
            raise ValueError(f"precision must be (h, h) = {(self.num_states,) * 2}, got {tuple(precision.shape)}")
        checks.choice("measure", measure, MEASURES)
        check_probs(probs)
        self.probs, self.precision, self.measure = probs, precision, measure
        self.unit = probs.sqrt()
        self.matrix = matrix - torch.outer(self.unit, self.unit @ matrix)
        self.gram = self.matrix.T @ self.matrix
        identity = torch.eye(self.num_states, dtype=matrix.dtype, device=matrix.device)
        # R = (I - C'C M)^-1 = I + C'C N, so that C'D^-1 = R C'
        self.gain = identity + self.gram @ precision
        information = self.gain @ self.gram
        self.information = (information + information.T) / 2
        self._rows: Tensor | None = None

    def __call__(self, state) -> WordGaussian:
        """p(w | z = state), to sample from, or to observe word ids with."""
        return WordGaussian(state, self)

    @property
    def reduction(self) -> Tensor:
        """(h, h) M, where D = Pi - C M C'."""
        reduction = torch.linalg.solve(self.gain.T, self.precision)
        return (reduction + reduction.T) / 2

    @property
    def log_determinant(self) -> Tensor:
        """log det D on the complement of u."""
        return -torch.linalg.slogdet(self.gain)[1]

    @property
    def log_volume(self) -> Tensor:
        """How much higher log-densities are in the original coordinates e_i - mu than in the whitened ones, a word."""
        return -(self.probs.log().sum() + math.log(self.num_words)) / 2

    def iid_log_prob(self, words: Tensor) -> Tensor:
        """(*B,) log N(w | 0, Pi) of word ids, the baseline without context, under ``measure``; 0 where missing."""
        if self.measure == "iid":
            return torch.zeros(words.shape, dtype=self.probs.dtype, device=self.probs.device)
        squares = 1 / self.probs[words.clamp_min(0)] - 1  # |W (e_i - mu)|^2
        return torch.where(words >= 0, self._log_density(squares), 0.0)

    def _log_density(self, squares: Tensor) -> Tensor:
        """-((V-1) log 2 pi + squares) / 2 under the chosen measure."""
        value = -((self.num_words - 1) * math.log(2 * math.pi) + squares) / 2
        return value + self.log_volume if self.measure == "original" else value

    def rows(self, words: Tensor) -> Tensor:
        """(*B, h) C'w of word ids: rows of mu_i^-1/2 C_i, since C'u = 0."""
        if self._rows is not None:
            return self._rows[words]
        if words.numel() < self.num_words:
            return self.matrix[words] * self.probs[words].rsqrt().unsqueeze(-1)
        self._rows = self.matrix * self.probs.rsqrt().unsqueeze(-1)
        return self._rows[words]

    def table(self) -> Tensor:
        """(V, h) the evidence vector C'D^-1 w of every word."""
        return self.rows(torch.arange(self.num_words, device=self.probs.device)) @ self.gain.T

    def evidence(self, words: Tensor) -> Evidence:
        """log p(w | z) of word ids as a function of z.

        Args:
            words: (*B,) ids 0..V-1, or ``MISSING`` (-1) for a word that was not seen: no evidence.

        Returns:
            vector (*B, h) = C'D^-1 w, matrix C'D^-1 C, (h, h), or (*B, h, h) where a word is missing, and constant (*B,), nats.

        Raises:
            TypeError, ValueError: for what are no word ids.
        """
        seen = self._check(words)
        ids = words if seen is None else words.clamp_min(0)
        rows = self.rows(ids)
        # w'D^-1 w = |w|^2 + (C'w)' N (C'w)
        explained = ((rows @ self.precision) * rows).sum(-1)
        constant = -(explained + self.log_determinant) / 2
        if self.measure != "iid":
            constant = constant + self._log_density(1 / self.probs[ids] - 1)
        vector, matrix = rows @ self.gain.T, self.information
        if seen is not None:
            vector, constant = vector * seen.unsqueeze(-1), constant * seen
            matrix = matrix * seen[..., None, None]
        return Evidence(vector, matrix, constant)

    def _check(self, words: Tensor) -> Tensor | None:
        """Which words are seen, None for all of them."""
        if words.is_floating_point() or words.dtype == torch.bool:
            raise TypeError(f"words must be integer ids, got {words.dtype}; encode text with the vocabulary")
        if not words.numel():
            return None
        low, high = (int(value) for value in words.aminmax())
        if low < -1 or high >= self.num_words:
            raise ValueError(f"words must be ids 0..{self.num_words - 1}, or -1 for a missing word; got {low}..{high}")
        return None if low >= 0 else words >= 0

    def whiten(self, words: Tensor) -> Tensor:
        """(*B, V) the vectors W (e_i - mu) of word ids; for small V."""
        vectors = -self.unit.expand(*words.shape, -1).clone()
        at = self.probs[words].rsqrt().unsqueeze(-1)
        return vectors.scatter_add(-1, words.unsqueeze(-1), at)

    def predict(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of w where z ~ N(mean, covariance).

        Args:
            mean: (*B, h). covariance: (*b, h, h).

        Returns:
            C mean (*B, V), and C covariance C' + D = Pi + C (covariance - M) C', (*b, V, V).

        Raises:
            ValueError: where V is too large to write a V x V covariance out; forecast states, and score words with
                :func:`pplseq.models.text_lds.next_word.word_probs`.
        """
        if self.num_words > PREDICTED_WORDS:
            raise ValueError(
                f"a forecast of words would be a {self.num_words} x {self.num_words} covariance; with more than "
                f"{PREDICTED_WORDS} words use forecasts of the state, or the model's forecast"
            )
        noise = torch.eye(self.num_words, dtype=mean.dtype, device=mean.device) - torch.outer(self.unit, self.unit)
        return mean @ self.matrix.T, noise + self.matrix @ (covariance - self.reduction) @ self.matrix.T

    def draw(self, mean: Tensor) -> Tensor:
        """(*B, V) draws of w = mean + d, d ~ N(0, D), for means (*B, V)."""
        basis, triangle = torch.linalg.qr(self.matrix)
        identity = torch.eye(self.num_states, dtype=mean.dtype, device=mean.device)
        # D is the identity but in the columns of C, where it is (I + T N T')^-1
        inverse = torch.linalg.cholesky(identity + triangle @ self.precision @ triangle.T)
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device)
        noise = noise - (noise @ self.unit).unsqueeze(-1) * self.unit
        inside = noise @ basis
        shrunk = torch.linalg.solve_triangular(inverse.T, inside.unsqueeze(-1), upper=True).squeeze(-1)
        return mean + noise + (shrunk - inside) @ basis.T


class WordGaussian(Conditional):
    """p(w_t | z_t) as (state, emission): observe it with word ids (*B,), ``MISSING`` (-1) for a missing word.

    A draw is no word but a vector (V,) in whitened coordinates, orthogonal to u: the model's words are Gaussian.

    Args:
        state: (*B, h), or the symbol of a state under ``KalmanCollapse``.
        emission: the :class:`WordEmission`.
    """

    def __init__(self, state, emission: WordEmission, batch_shape=None):
        if state.shape[-1] != emission.num_states:
            raise ValueError(f"state must have {emission.num_states} dimensions, got shape {tuple(state.shape)}")
        self.state, self.emission = state, emission
        shape = torch.Size(state.shape[:-1]) if batch_shape is None else torch.Size(batch_shape)
        super().__init__(shape, torch.Size(), validate_args=False)

    @property
    def support(self):
        return constraints.real

    def expand(self, batch_shape, _instance=None):
        return WordGaussian(
            self.state, self.emission, torch.broadcast_shapes(self.batch_shape, torch.Size(batch_shape))
        )

    def evidence(self, value: Tensor) -> Evidence:
        """log p(value | z) as a function of the state; see :meth:`WordEmission.evidence`."""
        return self.emission.evidence(value)

    def predict(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`WordEmission.predict`."""
        return self.emission.predict(mean, covariance)

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        with torch.no_grad():
            return self.emission.draw((self.state @ self.emission.matrix.T).expand(*shape, -1))

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(value | state), nats: (*B,) word ids, or (*B, V) vectors in whitened coordinates as sampled.

        Of a vector, the component along u does not count.
        """
        emission, state = self.emission, self.state
        if not value.is_floating_point():
            vector, matrix, constant = emission.evidence(value)
            quadratic = (state.unsqueeze(-2) @ matrix).squeeze(-2) if matrix.dim() > 2 else state @ matrix
            result = constant + ((vector - quadratic / 2) * state).sum(-1)
        else:
            value = value - (value @ emission.unit).unsqueeze(-1) * emission.unit
            error = value - state @ emission.matrix.T
            inside, squares = error @ emission.matrix, error.square().sum(-1)
            result = -(((inside @ emission.precision) * inside).sum(-1) + emission.log_determinant) / 2
            iid = emission.measure == "iid"
            result = result + ((value.square().sum(-1) - squares) / 2 if iid else emission._log_density(squares))
        return result.expand(torch.broadcast_shapes(result.shape, self.batch_shape))


def check_probs(probs: Tensor) -> None:
    """Raises unless probs are positive and sum to one."""
    values = probs.detach()
    if not bool((values > 0).all()):
        worst = int(values.argmin())
        raise ValueError(
            f"probs must be positive: word {worst} has {float(values[worst])}; give it pseudo-counts, or leave it out of the "
            "vocabulary"
        )
    if abs(float(values.sum(dtype=torch.float64)) - 1) > 1e-4:
        raise ValueError(f"probs must sum to one, got {float(values.sum()):.6g}; divide counts by their total")


def precision_factor(gram: Tensor, reduction: Tensor) -> Tensor:
    """(h, h) F with F F' = N = M (I - C'C M)^-1.

    Args:
        gram: (h, h) C'C. reduction: (h, h) M.

    Raises:
        ValueError: where M is not positive semidefinite, or D = Pi - C M C' not positive definite.
    """
    values, vectors = torch.linalg.eigh((reduction + reduction.T) / 2)
    if float(values[0]) < -1e-8 * max(1.0, float(values[-1])):
        raise ValueError(f"reduction must be positive semidefinite, but has an eigenvalue {float(values[0]):.3g}")
    root = vectors * values.clamp_min(0).sqrt()  # M = root root'
    remainder = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) - root.T @ gram @ root
    remainder = (remainder + remainder.T) / 2
    factor, failed = torch.linalg.cholesky_ex(remainder)
    if int(failed):
        top = 1 - float(torch.linalg.eigvalsh(remainder)[0])
        raise ValueError(
            f"the words' noise covariance D = Pi - C M C' is not positive definite: the largest eigenvalue of C M C' is "
            f"{top:.6g}, at least 1; scale C down"
        )
    # root (I - root' G root)^-1 root' = M (I - G M)^-1
    return torch.linalg.solve_triangular(factor, root.T, upper=False).T
