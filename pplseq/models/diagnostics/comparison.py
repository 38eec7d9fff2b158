"""Models beside each other on the same data: likelihoods, criteria, and how well they foretell what was held out."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks, notebooks
from pplseq.models.batch import cut
from pplseq.models.diagnostics.residuals import DiagnosticQueries
from pplseq.models.information import observed_steps, observed_tokens

if TYPE_CHECKING:
    from pplseq.infer.fit.em import Batch
    from pplseq.models.estimator import Estimator


class Comparison(NamedTuple):
    """Models beside each other on the same data; printed, a table.

    names: (M,) of text. log_likelihood: nats. parameters: how many are free. aic, bic: the criteria. num_tokens: observations
    that each explains. score: of held-out data, nats a token, NaN where none were held out; error: its standard error. behind:
    how much less than the best model's, and behind_error: the standard error of that difference, which is paired.
    """

    names: list[str]
    log_likelihood: list[float]
    parameters: list[int]
    aic: list[float]
    bic: list[float]
    num_tokens: list[int]
    score: list[float]
    error: list[float]
    behind: list[float]
    behind_error: list[float]

    def frame(self) -> Any:
        """The same as a frame of pandas, a row a model.

        Raises:
            ImportError: where pandas is missing.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError('frame: a table needs pandas: pip install "pplseq[tables]"') from error
        return pandas.DataFrame({name: getattr(self, name) for name in self._fields[1:]}, index=self.names)

    _repr_html_ = notebooks.lines

    def __str__(self) -> str:
        width = max(10, *(len(name) for name in self.names))
        held_out = not all(map(math.isnan, self.score))
        lines = [f"{'':{width}} {'log-lik.':>12} {'parameters':>10} {'AIC':>12} {'BIC':>12} {'n':>8}"]
        lines[0] += f" {'held out':>10} {'std. error':>10} {'behind':>10} {'std. error':>10}" * held_out
        for name, *row, score, error, behind, apart in zip(*self, strict=True):
            told = f"{name:{width}} {row[0]:12.3f} {row[1]:10d} {row[2]:12.3f} {row[3]:12.3f} {row[4]:8d}"
            lines.append(told + f" {score:10.4f} {error:10.4f} {behind:10.4f} {apart:10.4f}" * held_out)
        return "\n".join(lines)


def compare(
    models: Mapping[str, Estimator] | Sequence[Estimator], x: Any, lengths: Any = None, *, folds: int | None = None,
    by: str | None = None, fit: Mapping[str, Any] | None = None, **known: Any,
) -> Comparison:  # fmt: skip
    """Likelihoods and criteria of fitted models on the data, and how well copies of them foretell data held out.

    Args:
        models: by name, or in a row. x, lengths, **known: the data, as all of the models take them.
        folds: F of cross-validation, for which each model is fitted F times anew, holding what its last fit was told to hold,
            within its bounds; None for none.
        by: "rows": the folds are of sequences, in turn, each scored by a fit to the others. "time": all sequences are cut into
            F + 1 blocks of time, and each but the first is scored, given what came before, by a fit to that. By default rows
            where there are as many as folds.
        fit: options of these fits ({"seed": 0, "num_restarts": 4}).

    Returns:
        A :class:`Comparison`. Standard errors are of sums over independent sequences, or over blocks.

    Raises:
        ValueError: for what cannot be cut so; a model whose steps are at times of their own, by time; a TextLDS, whose score is
            no probability of words, beside models of words. TypeError: for what is no model.

    Warns:
        RuntimeWarning: where models explain different numbers of observations, as autoregressions of other orders do: their
            likelihoods and criteria are of different data.
    """
    if not isinstance(models, (Mapping, list, tuple)):
        raise TypeError(f"models: expected fitted models by name, or a list of them, got {checks.shown(models)}")
    named = dict(models) if isinstance(models, Mapping) else {f"{type(m).__name__} {k}": m for k, m in enumerate(models)}
    if other := [model for model in named.values() if not isinstance(model, DiagnosticQueries)]:
        raise TypeError(f"models: expected models that are fitted to data sets, got {checks.shown(other[0])}")
    if not named:
        raise ValueError("models: give at least one fitted model, got none")
    apart = [name for name, model in named.items() if model._scores_word_vectors]
    if 0 < len(apart) < len(named):
        raise ValueError(
            f"models: the likelihood of {apart[0]} is a density of word vectors, no probability of words, so that it is not "
            "comparable with that of the others; compare perplexities of next words instead (predict_next, pplseq evaluate)"
        )
    rows, held_out = [], []
    for name, model in named.items():
        own_x, own_lengths = model._as_text(x, lengths, known)
        model._check_names(known)
        batch = model._as_batch(own_x, own_lengths, **known)
        rows.append([
            model.score(x, lengths, **known), model.num_free_parameters, model.aic(x, lengths, **known),
            model.bic(x, lengths, **known), observed_tokens(model, batch),
        ])  # fmt: skip
        if folds is not None:
            held_out.append(_held_out(name, model, batch, checks.count("folds", folds, 2), by, dict(fit or {})))
    if folds is None and (by is not None or fit is not None):
        raise ValueError("by, fit: they say how to cross-validate; give folds too, or leave them out")
    if len({row[-1] for row in rows}) > 1:
        told = ", ".join(f"{name} {row[-1]}" for name, row in zip(named, rows, strict=True))
        warnings.warn(
            f"the models explain different numbers of observations ({told}), so that their likelihoods and criteria are of "
            "different data",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    scores = [[math.nan] * 4 for _ in named]
    if held_out:
        best = max(held_out, key=lambda part: float(part[0].sum() / part[1].sum()))
        ahead = _ratio(*best)[2]
        for number, part in enumerate(held_out):
            score, error, around = _ratio(*part)
            scores[number] = [score, error, _ratio(*best)[0] - score, _spread(ahead - around)]
    columns = zip(*(row + own for row, own in zip(rows, scores, strict=True)), strict=True)
    return Comparison([str(name) for name in named], *map(list, columns))


def _ratio(log_probs: Tensor, tokens: Tensor) -> tuple[float, float, Tensor]:
    """Nats a token, its standard error, and what each unit adds to it around the mean."""
    score = log_probs.sum() / tokens.sum()
    around = (log_probs - score * tokens) / tokens.sum()
    return float(score), _spread(around), around


def _spread(around: Tensor) -> float:
    """The standard error of a sum of independent parts."""
    return math.sqrt(len(around) * float(around.var())) if len(around) > 1 else math.nan


def _held_out(
    name: str, model: Estimator, batch: Batch, folds: int, by: str | None, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """(U,) log-probabilities of data held out, and how many observations they are: of sequences, or of blocks of time."""
    number, steps = batch.x.shape[:2]
    by = ("rows" if number >= folds else "time") if by is None else checks.choice("by", by, ("rows", "time"))
    size = number if by == "rows" else steps - 1
    if folds > size:
        raise ValueError(f"folds: at most {size} of these data by {by}, got {folds}")
    takes = checks.signature(type(model)._as_batch).parameters
    if odd := [each for each in batch.known if each not in takes]:
        raise ValueError(f"folds: {name} was told {odd[0]} of its steps, which cannot be cut; compare it without folds")
    kept = {each: True for each in model.fixed_parameters} | dict(model._fixed_entries)
    held = {"fixed": kept, "bounds": dict(model._bounds)}
    options = {name: told for name, told in held.items() if told} | options
    log_probs, tokens = [], []
    for fold in range(folds):
        if by == "rows":
            out = torch.arange(number) % folds == fold
            train, test, first = cut(batch, ~out), cut(batch, out), 0
        else:
            first, last = (steps * (fold + each) // (folds + 1) for each in (1, 2))
            train, test = cut(batch, slice(None), first), cut(batch, slice(None), last)
        refitted = copy.deepcopy(model).fit(train.x, train.lengths, **train.known, **options)
        each: Any = refitted.token_log_probs(test.x, test.lengths, **test.known)
        found = each[:, first:].sum(-1)
        count = observed_steps(model, test)[:, first:].sum(-1)
        log_probs.append(found if by == "rows" else found.sum(0, keepdim=True))
        tokens.append(count if by == "rows" else count.sum(0, keepdim=True))
    return torch.cat(log_probs).detach().double().cpu(), torch.cat(tokens).double().cpu()
