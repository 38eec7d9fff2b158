"""What a fitted model leaves to explain: residuals of its one-step predictions and their tests, and draws held against data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks, notebooks
from pplseq.distributions.drawing import seeded
from pplseq.distributions.state import MISSING
from pplseq.infer.discrete.dense import DenseChain
from pplseq.models.batch import as_given
from pplseq.models.parts.quantiles import value_functions

if TYPE_CHECKING:
    from pplseq.infer.fit.em import Batch
    from pplseq.models.estimator import Estimator

NEAREST = 2.0**-53  # to certainty that a share of double precision comes
MOST_STEPS = 1 << 18  # that are drawn at once


class Diagnostics(NamedTuple):
    """What is left to explain in one-step errors, which are independent N(0, 1) where the model is right; of n columns each.

    errors: (B, T, n) residuals, NaN where nothing was observed: standardised errors of a Gaussian prediction, and of others
    quantile residuals, which are the same number there. ljung_box, jarque_bera, heteroskedasticity: (n, 2) a statistic and the
    probability of a larger one: of autocorrelation, of skewness and kurtosis, of a variance that changes (two-sided).
    """

    errors: Tensor
    ljung_box: Tensor
    jarque_bera: Tensor
    heteroskedasticity: Tensor

    def _repr_html_(self) -> str:
        """For notebooks."""
        tests = [(name.replace("_", " "), getattr(self, name)) for name in self._fields[1:]]
        rows = [[name, k, *row] for name, found in tests for k, row in enumerate(found.tolist())]
        return notebooks.table("Residuals of one-step predictions", ["test", "column", "statistic", "p"], rows)


class PredictiveCheck(NamedTuple):
    """A statistic of the data beside those of data sets drawn from the model.

    observed: () or (k,). drawn: (S,) or (S, k). p_values: of each number the share of 1 + S data sets, the observed one among
    them, whose statistic is at least as large; near 0 or 1 where the model does not make such data.
    """

    observed: Tensor
    drawn: Tensor
    p_values: Tensor

    def _repr_html_(self) -> str:
        """For notebooks."""
        drawn = self.drawn.reshape(len(self.drawn), -1)
        spread = drawn.quantile(drawn.new_tensor([0.05, 0.5, 0.95]), 0).T.tolist()
        found = zip(self.observed.reshape(-1).tolist(), spread, self.p_values.reshape(-1).tolist(), strict=True)
        rows = [[k, observed, *quantiles, p] for k, (observed, quantiles, p) in enumerate(found)]
        head = ["number", "observed", "5 % of draws", "median", "95 %", "p"]
        return notebooks.table(f"A statistic beside that of {len(drawn)} draws", head, rows)


def quantile_residuals(model: Estimator, batch: Batch) -> Tensor:
    """(B, T, n) normal quantiles of P(x_t <= the observed number | x_1..x_{t-1}), each column on its own.

    Where a number has a probability, as counts have, the share is drawn evenly from its jump (by torch's generator); words are
    taken in the order of their numbers. At most 8.2 in size, as a share in double precision says no more.

    Raises:
        ValueError: for a model whose one-step predictions have no distribution functions here.

    Source: P. K. Dunn and G. K. Smyth (1996), Randomized quantile residuals, Journal of Computational and Graphical Statistics
    5(3). W. Zucchini, I. L. MacDonald and R. Langrock (2016), Hidden Markov models for time series, section 6.2.
    """
    chain: Any = model.posterior(batch.x, batch.lengths, **batch.known)
    found = None
    if isinstance(chain, DenseChain):
        emission: Any = chain.emission
        if chain.emission_inputs is not None:
            emission = emission.at(chain.emission_inputs)
        found = value_functions(emission)
    if found is None:
        raise ValueError(
            f"diagnostics: what this {type(model).__name__} predicts has no distribution function here (chains in blocks, "
            "angles, distributions without a cdf); ask token_log_probs for how surprising each step was"
        )
    x, seen = model.observed(batch.x)
    x = batch.x.transpose(0, 1).double()  # time first, as the chain is
    x = x if x.dim() > 2 else x.unsqueeze(-1).masked_fill(x.unsqueeze(-1) == MISSING, torch.nan)
    weights = chain.predicted_states().probs.transpose(0, 1).double().unsqueeze(-1)
    known = x.nan_to_num(0.0)
    below, above = (
        (weights * found(value)).sum(-2) / weights.sum(-2)
        for value in (known.nextafter(torch.full_like(known, -torch.inf)), known)
    )
    share = below + torch.rand(x.shape, dtype=torch.float64).to(x.device) * (above - below)
    errors = torch.special.ndtri(share.clamp(NEAREST, 1 - NEAREST)).masked_fill(x.isnan(), torch.nan).transpose(0, 1)
    return errors.masked_fill(~(seen if seen.dim() > 2 else seen.unsqueeze(-1)), torch.nan)


def diagnose(errors: Tensor, skip: int, lags: int) -> Diagnostics:
    """Tests of standardised errors (B, T, n), of which the first ``skip`` steps of each row are left out.

    Source: J. Durbin and S. J. Koopman (2012), Time series analysis by state space methods, section 2.12.
    """
    tests: dict[str, list[tuple[float, float]]] = {"ljung_box": [], "jarque_bera": [], "heteroskedasticity": []}
    for number, column in enumerate(errors[:, skip:].unbind(-1)):
        rows = [row[~row.isnan()] for row in column]
        whole = torch.cat(rows)
        if len(whole) <= max(lags, 2):
            raise ValueError(
                f"lags: autocorrelations to lag {lags} need more residuals than the {len(whole)} that column {number} has "
                f"behind the first {skip} steps; choose fewer lags, and no fewer than 3 residuals"
            )
        count, centred = len(whole), torch.cat([row - whole.mean() for row in rows])
        variance = centred.square().mean()
        parts, total = centred.split([len(row) for row in rows]), 0.0
        for lag in range(1, lags + 1):
            together = sum(((part[lag:] * part[:-lag]).sum() for part in parts), torch.zeros(()).to(whole))
            total += float(together / (count * variance)) ** 2 / (count - lag)
        box = count * (count + 2) * total
        skewness, kurtosis = (float((centred**power).mean() / variance ** (power / 2)) for power in (3, 4))
        bera = count / 6 * (skewness**2 + (kurtosis - 3) ** 2 / 4)
        third = max(2, round(count / 3))
        ratio = float(whole[-third:].square().sum() / whole[:third].square().sum())
        grid = torch.linspace(0, ratio / (1 + ratio), 8001, dtype=torch.float64)
        density = torch.distributions.Beta(*torch.full((2,), third / 2).double(), validate_args=False).log_prob(grid).exp()
        share = float(torch.trapezoid(density, grid))  # of F(third, third) below the ratio
        tests["ljung_box"].append((box, float(torch.special.gammaincc(*torch.tensor([lags / 2, box / 2]).double()))))
        tests["jarque_bera"].append((bera, math.exp(-bera / 2)))
        tests["heteroskedasticity"].append((ratio, 2 * min(share, 1 - share)))
    return Diagnostics(errors, *(torch.tensor(found, dtype=torch.float64) for found in tests.values()))


def _repeated(value: Any, times: int) -> Any:
    """What is known of rows, so many times one behind the other."""
    if isinstance(value, Mapping):
        return {name: _repeated(part, times) for name, part in value.items()}
    if isinstance(value, tuple):
        return type(value)(*(_repeated(part, times) for part in value))
    return value.repeat(times, *(1,) * (value.dim() - 1))


class DiagnosticQueries:
    """What an estimator tells of how well it fits."""

    _steps_to_settle = 0  # after which residuals say something of the model
    _scores_word_vectors = False  # a density, where the data are words

    def diagnostics(
        self: Any, x, lengths=None, *, lags: int = 10, skip: int | None = None, seed: int | None = None, **known
    ) -> Diagnostics:
        """Residuals of one-step predictions p(x_t | x_1..x_{t-1}), and tests of them.

        Args:
            x, lengths, **known: the data. lags: of the test of autocorrelation. skip: first steps of a row that are left out of
                the tests, by default none, or as many as there are Gaussian states. seed: of the residuals of counts, words and
                whatever has probabilities, which are randomised; see :func:`quantile_residuals`.

        Raises:
            ValueError: where predictions have no distribution functions, as of angles.
        """
        self._check_names(known)
        self._check_fitted()
        batch, told = self._as_batch(x, lengths, **known), checks.count("lags", lags)
        first: int = self._steps_to_settle if skip is None else checks.count("skip", skip, 0)
        with seeded(seed), torch.no_grad():
            errors = self._residuals(batch)
        if batch.lengths is not None:
            errors[torch.arange(errors.shape[1], device=errors.device) >= batch.lengths.unsqueeze(-1)] = torch.nan
        return diagnose(errors, first, told)

    def predictive_check(
        self: Any, x, statistic: Callable[[Any], Any], num_samples: int = 200, lengths=None, *, seed: int | None = None, **known
    ) -> PredictiveCheck:
        """Whether data sets drawn from the model, with its parameters as they stand, have the statistic that these data have.

        Args:
            x, lengths, **known: the data; draws have their shape, gaps and what is known of steps. A row of an autoregression
                is drawn from the start that :meth:`sample` has. Where next to nothing is known of a first state before the
                data (structural models, a diffuse start), it is drawn as all of its row tells of it: where level, slope and
                seasons begin is then that of the data, and says nothing against the model.
            statistic: of a data set a number, or (k,) numbers; it is given a list of (T_i[, D]) tensors where x was a list,
                else (B, T[, D]), NaN (of words -1) where nothing was observed. num_samples: S. seed: makes it repeatable.

        Source: A. Gelman, X.-L. Meng and H. Stern (1996), Posterior predictive assessment of model fitness via realized
        discrepancies, Statistica Sinica 6.
        """
        self._check_names(known)
        self._check_fitted()
        batch, like = self._as_batch(x, lengths, **known), self._results_like(x, **known)
        checks.count("num_samples", num_samples)
        rows, steps = batch.x.shape[:2]
        gone = ~self.observed(batch.x)[1] if batch.x.dim() == 2 else batch.x.isnan()
        if batch.lengths is not None:
            padded = torch.arange(steps, device=gone.device) >= batch.lengths.unsqueeze(-1)
            gone = gone | (padded if gone.dim() == 2 else padded.unsqueeze(-1))

        def found(data: Tensor) -> Tensor:
            data = data.to(batch.x).masked_fill(gone, MISSING if data.dim() == 2 else torch.nan)
            value = torch.as_tensor(statistic(as_given(data, like))).detach().cpu().double()
            if value.dim() > 1 or not bool(value.isfinite().all()):
                raise ValueError(
                    "statistic: it must give a finite number, or (k,) of them, also of data with gaps (NaN, or -1 of words), "
                    f"as np.nanmean does; got {checks.shown(value)}"
                )
            return value

        with seeded(seed), torch.no_grad():
            observed, drawn, most = found(batch.x), [], max(1, MOST_STEPS // (rows * steps))
            told = self._told_of_replicas(batch)
            for first in range(0, num_samples, most):
                sets = min(most, num_samples - first)
                known = {name: _repeated(value, sets) for name, value in (batch.known | told).items()}
                several = self.draws(num_sequences=sets * rows, num_steps=steps, **known)[1]
                drawn += [found(data) for data in several.unflatten(0, (sets, rows))]
        drawn = torch.stack(drawn)
        return PredictiveCheck(observed, drawn, (1 + (drawn >= observed).sum(0)) / (1.0 + num_samples))

    def _told_of_replicas(self, batch: Batch) -> dict[str, Any]:
        """What :meth:`draws` are told, row by row, beside what is known of steps."""
        return {}

    def _residuals(self: Any, batch: Batch) -> Tensor:
        """(B, T, n) of one-step predictions, N(0, 1) where they are right, NaN where nothing was seen."""
        return quantile_residuals(self, batch)
