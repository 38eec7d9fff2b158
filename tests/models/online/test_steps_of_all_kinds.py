"""Steps as people hold them, of models of all kinds, are read as the same row at once: gaps, times, inputs by name."""

import numpy as np
import pytest

from pplseq import IOHMM
from pplseq.models.iohmm.mixture import MixtureIOHMM

rng = np.random.default_rng(0)
x, u = np.r_[rng.normal(size=30), 4 + rng.normal(size=30)], rng.normal(size=60)
counts = rng.poisson(3, size=60).astype(float)
OUTPUTS = {
    "gaussian": ("gaussian", x[:, None]), "poisson": ("poisson", counts[:, None]), "vectors": ("gaussian", np.c_[x, x + u]),
    "bernoulli": ("bernoulli", (x > 2)[:, None] * 1.0), "columns": (["poisson", "normal"], np.c_[counts, x]),
}  # fmt: skip


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("name", OUTPUTS)
def test_gaps_of_outputs_that_are_vectors(name, mixture, feedback):
    outputs, rows = OUTPUTS[name]
    options = {"outputs": outputs, "num_outputs": rows.shape[1]} if isinstance(outputs, str) else {"outputs": outputs}
    options |= {"num_inputs": 1, "mealy": True, "feedback": feedback}
    model = MixtureIOHMM(2, 2, **options) if mixture else IOHMM(2, **options)
    model.fit([rows], inputs=[u[:, None]], seed=0, max_iterations=3)
    rows = rows.copy()
    rows[[2, 5]] = np.nan
    told = model.token_log_probs([rows], inputs=[u[:, None]]).flatten().tolist()
    gaps = [None, np.nan] if rows.shape[1] == 1 else [None, rows[2]]
    for gap in gaps:
        online = model.online()
        found = [online.step(gap if t in (2, 5) else row, inputs=u[t]).log_prob for t, row in enumerate(rows)]
        assert found[2] == pytest.approx(0, abs=1e-12) and found == pytest.approx(told, abs=1e-10)
