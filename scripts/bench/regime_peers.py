"""Gaussian regimes whose transitions depend on an input, in pplseq's IOHMM and statsmodels' MarkovRegression, for :mod:`peers`.

Two regimes, an input and a constant ("time-varying transition probabilities"), one row. statsmodels moves its start twice with
the first input before the first output (its predicted probabilities say so), ours once, from a start that was moved. An EM
iteration of statsmodels leaves such transitions as they are; ours learns them too, and both come to the same means and
variances of the outputs.
"""

from __future__ import annotations

import numpy as np

OPERATIONS = ("em", "posterior", "score")
VARIANTS = {"pplseq": [""], "statsmodels": [""]}
START, LOC, VARIANCE = (0.6, 0.4), (-0.5, 1.0), (1.0, 2.0)
STAY, SLOPE = (1.5, -1.2), (0.7, -0.4)  # of the logit of regime 0 after regimes 0 and 1


def problem(size: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and inputs (T,)."""
    rng = np.random.default_rng(0)
    shift = np.where(np.sin(np.arange(shape[1]) / 30) > 0, 1.2, -0.6)
    return shift + rng.standard_normal(shape[1]), rng.standard_normal(shape[1])


def pplseq_runs(size: int, variant: str, shape: tuple[int, int]) -> dict:
    import torch

    from pplseq.models import IOHMM

    torch.set_num_threads(1)
    y, u = (torch.from_numpy(part).reshape(1, -1, 1) for part in problem(size, shape))
    options = {"num_inputs": {"transition": 1}, "outputs": "gaussian", "num_outputs": 1, "initial": "transition"}
    model, learner = (IOHMM(2, **options) for _ in range(2))
    weight = torch.zeros(2, 2, 2, dtype=torch.float64)
    weight[..., 0] = torch.tensor([SLOPE, STAY], dtype=torch.float64).T
    stay = torch.sigmoid(torch.tensor(STAY, dtype=torch.float64) + torch.tensor(SLOPE, dtype=torch.float64) * u[0, 0])
    first = float(stay @ torch.tensor(START, dtype=torch.float64))
    start = {
        "initial_network.logits": torch.tensor([first, 1 - first]).double().log(), "transition_network.weight": weight,
        "emission_network.logits": torch.tensor(LOC).double().reshape(2, 1),
        "noise.log_scale": 0.5 * torch.tensor(VARIANCE).double().log().reshape(2, 1),
    }  # fmt: skip

    def reset(one):
        one.load_state_dict(start, strict=False)
        return one

    def em():
        reset(learner).fit(y, inputs=u, method="em", warm_start=True, max_iterations=1)
        loc, log_scale = learner.emission_network.logits.detach(), learner.noise.log_scale.detach()
        return torch.cat([loc, (2 * log_scale).exp()]).flatten().numpy()

    reset(model).is_fitted = True
    return {
        "em": em,
        "posterior": lambda: model.smooth(y, inputs=u).probs[0].numpy(),
        "score": lambda: model.score(y, inputs=u),
    }


def statsmodels_runs(size: int, variant: str, shape: tuple[int, int]) -> dict:
    from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

    y, u = problem(size, shape)
    model = MarkovRegression(y, 2, switching_variance=True, exog_tvtp=np.column_stack([np.ones(len(u)), u]))
    model.initialize_known(np.array(START))
    parameters = np.array([*STAY, *SLOPE, *LOC, *VARIANCE])

    def em():
        return model._em_iteration(parameters)[1][4:]

    return {
        "em": em,
        "posterior": lambda: model.smooth(parameters, return_raw=True).smoothed_marginal_probabilities.T,
        "score": lambda: model.loglike(parameters),
    }


LIBRARIES = {"pplseq": pplseq_runs, "statsmodels": statsmodels_runs}


def digest(operation: str, value, size: int, shape: tuple[int, int]) -> list[float]:
    """A few numbers by which results are compared."""
    value = np.asarray(value, dtype=np.float64)
    if operation == "score":
        return [float(value)]
    weight = np.random.default_rng(1).standard_normal(value.shape)
    return [float(value.sum()), float((weight * value).sum())]
