"""Which of many restarts to keep: by likelihood, validation data, BIC, or whether every target comes out right."""

from __future__ import annotations

import math

import torch

from pplseq import checks
from pplseq.models.iohmm.restarts.history import Restarts
from pplseq.models.iohmm.restarts.problem import RestartProblem, take

CHOICES = ("likelihood", "validation", "bic", "smallest_consistent")


def choose_restart(
    restarts: Restarts,
    problem: RestartProblem,
    select: str = "likelihood",
    *,
    validation: RestartProblem | None = None,
    num_free_parameters: int = 0,
) -> list[str]:
    """Sets ``restarts.scores`` and ``restarts.chosen``, after dropping those that collapsed.

    Restarts with an empty state are dropped as long as others remain.

    Args:
        restarts: what a :class:`~pplseq.models.iohmm.restarts.history.RestartRun` gave. problem: the training data.
        select: "likelihood": highest log posterior; "validation": highest log-likelihood of the validation data; "bic": lowest
            -2 log p + parameters log(targets), which weighs models of different sizes; "smallest_consistent": one that answers
            every training target right (of those the best on validation data where there are some, else the likeliest).
        validation: validation data with the same networks. num_free_parameters: of one restart, for "bic".

    Returns:
        What was remarkable, in words. ``scores`` are log posteriors, validation log-likelihoods, -BIC / 2, or for
        "smallest_consistent" 1 for consistent ones and 0 for others (NaN for those dropped).

    Raises:
        ValueError: for an unknown choice, or missing validation data; ArithmeticError where all restarts collapsed.
    """
    checks.choice("select", select, CHOICES)
    if select == "validation" and validation is None:
        raise ValueError("validation: select='validation' needs validation data, (x, inputs); got None")
    notes = []
    if len(restarts.empty) < len(restarts) - len(restarts.dropped):
        for restart, states in restarts.empty.items():
            restarts.dropped[restart] = f"state{'s' * (len(states) > 1)} {', '.join(map(str, states))} empty"
    if restarts.dropped:
        first = min(restarts.dropped)
        notes.append(
            f"{len(restarts.dropped)} of {len(restarts)} restarts collapsed and were dropped; restart {first}: "
            f"{restarts.dropped[first]}"
        )
    kept = restarts.kept
    if not len(kept):
        first = restarts.dropped[0]
        raise ArithmeticError(
            f"all {len(restarts)} restarts collapsed (the first: {first}); no model is left to choose"
        )
    likelihood = restarts.log_posteriors[kept]
    ties = [likelihood]
    if validation is not None and select in ("validation", "smallest_consistent"):
        parameters = take(restarts.parameters, kept.to(validation.seen.x.device))
        ties.insert(0, validation.log_prob(parameters).sum(0).cpu().nan_to_num(-math.inf))
    if select == "likelihood":
        scores = likelihood
    elif select == "bic":
        scores = restarts.log_likelihoods[kept] - num_free_parameters * math.log(max(1, problem.num_targets)) / 2
    elif select == "validation":
        scores = ties[0]
        if bool(torch.isneginf(scores).all()):
            notes.append(
                "validation data are impossible under every restart; the likeliest on the training data was chosen"
            )
    else:
        parameters = take(restarts.parameters, kept.to(problem.seen.x.device))
        scores = problem.consistent(parameters).cpu().to(likelihood)
        if not bool(scores.any()):
            notes.append("no restart answers every training target right; the likeliest was chosen")
    # ties by validation data, then by likelihood
    best = torch.arange(len(kept))
    for key in (scores, *ties):
        best = best[key[best] == key[best].max()]
    restarts.scores = torch.full_like(restarts.log_posteriors, math.nan)
    restarts.scores[kept] = scores
    restarts.chosen = int(kept[best[0]])
    return notes
