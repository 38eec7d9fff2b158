"""A row of probability zero: -inf is the log-likelihood of it alone; questions about its states are refused; priors smooth."""

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq import HMM, IOHMM
from pplseq.models import SemiMarkovHMM

TRAIN = [[0, 1, 0, 1, 1, 0] * 5, [1, 0, 0, 1]]
ROWS = [[0, 1, 1], [0, 2, 1], [1, 1, 1]]


def sure(model):
    return model.set_parameters(emission=[[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]])


MODELS = {
    "hmm": lambda: sure(HMM(2, 3)), "float32": lambda: sure(HMM(2, 3, dtype="float32")),
    "fitted": lambda: HMM(2, 3).fit(TRAIN, seed=0), "semi-Markov": lambda: sure(SemiMarkovHMM(2, 3, max_duration=2)),
    "iohmm": lambda: IOHMM(2, num_inputs=0, outputs="categorical", num_outputs=3)._set_tables(
        emission=[[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]
    ),
}  # fmt: skip


@grid({"form": ["list", "tensor", "ragged", "gaps"], "name": MODELS})
def test_it_is_of_that_row_alone(name, form):
    model = MODELS[name]()
    model.is_fitted = True
    rows = {
        "list": ROWS, "tensor": torch.tensor(ROWS), "ragged": [ROWS[0], ROWS[1][:2], ROWS[2]], "gaps": [[0, -1, 1], *ROWS[1:]]
    }[form]  # fmt: skip
    batch = model._as_batch(rows)
    found = model.log_prob(batch.x, batch.lengths)
    assert found.isneginf().tolist() == [False, True, False]
    for k in (0, 2):
        assert float(found[k]) == pytest.approx(model.score([list(rows[k])]), rel=1e-5)
    assert model.score(rows) == model.score(rows, per_token=True) == -np.inf
    assert model.bic(rows) == np.inf
    with pytest.raises(ValueError, match=r'row 1, step 1: observation 2 is impossible.*priors=\{"emission": 1.1\}'):
        model.smooth(rows)
    with pytest.raises(ValueError, match="row 1, step 1: observation 2 is impossible"):
        model.log_prob(batch.x, batch.lengths)
        model.filter(rows)
    if name == "hmm":
        for method in ("em", "lbfgs"):
            with pytest.raises(ValueError, match="is impossible"):
                model.fit(rows, warm_start=True, method=method)


@pytest.mark.parametrize("priors", [True, {"emission": 1.1}])
def test_priors_smooth(priors):
    model = HMM(2, 3, priors=priors).fit(TRAIN, seed=0)
    assert np.isfinite(model.score(ROWS)) and bool((model.emission > 1e-4).all())
    counts = torch.tensor([17.0, 17.0, 0.0]) + 0.1  # of one state, by hand
    one = HMM(1, 3, priors=priors).fit(TRAIN, seed=0)
    assert one.emission[0].tolist() == pytest.approx((counts / counts.sum()).tolist())
