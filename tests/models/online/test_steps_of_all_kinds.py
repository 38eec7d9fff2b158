"""Steps as people hold them, of models of all kinds, are read as the same row at once: gaps, times, inputs by name."""

import numpy as np
import pytest

from pplseq import IOHMM, StructuralModel
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
    told = model.token_log_probs([rows], inputs=[u[:, None]])[0].tolist()
    gaps = [None, np.nan] if rows.shape[1] == 1 else [None, rows[2]]
    for gap in gaps:
        online = model.online()
        found = [online.step(gap if t in (2, 5) else row, inputs=u[t]).log_prob for t, row in enumerate(rows)]
        assert found[2] == pytest.approx(0, abs=1e-12) and found == pytest.approx(told, abs=1e-10)


@pytest.mark.parametrize("dates", [False, True])
@pytest.mark.parametrize("options", [{}, {"trend": "stochastic"}, {"ar": 1, "level": "none"}])
def test_times_of_steps(options, dates, tmp_path):
    times = np.cumsum(rng.integers(1, 9, size=60))
    times = np.datetime64("2024-01-01") + times if dates else times + 0.5
    model, to_come = StructuralModel(**options).fit(x, times=times), times[-1] + np.array([3, 5])
    told, expected = model.token_log_probs(x, times=times)[0], model.forecast(x, times=times, future_times=to_come)
    online = model.online()
    found = [online.step(value, times=time).log_prob for value, time in zip(x[:40], times[:40], strict=True)]
    online = model.online(online.save(tmp_path / "place.json"))
    found += [online.step(value, times=time).log_prob for value, time in zip(x[40:], times[40:], strict=True)]
    assert found == pytest.approx(told.tolist(), abs=1e-8)
    for reader in (online, model.online(online.save(tmp_path / "end.json"))):
        ahead = reader.forecast(future_times=to_come)
        assert ahead.means.flatten().tolist() == pytest.approx(expected.means.flatten().tolist(), abs=1e-8)
        assert ahead.covariances.flatten().tolist() == pytest.approx(expected.covariances.flatten().tolist(), rel=1e-8)
        with pytest.raises(ValueError, match="times: those of a sequence must rise"):
            reader.step(1.0, times=times[-2])
        with pytest.raises(ValueError, match="times: give those of all steps"):
            reader.step(1.0)
        with pytest.raises(TypeError, match="times: dates go on from dates"):
            reader.step(1.0, times=1e9 if dates else np.datetime64("2030-01-01"))
        assert reader.num_steps == 60
