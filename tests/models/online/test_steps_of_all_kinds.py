"""Steps as people hold them, of models of all kinds, are read as the same row at once: gaps, times, inputs by name."""

import numpy as np
import pandas as pd
import pytest

from pplseq import ARHMM, HMM, IOHMM, LDS, MixtureHMM, SemiMarkovHMM, StructuralModel, SwitchingRegression
from pplseq.models.iohmm.mixture import MixtureIOHMM

# one row is of one cluster: the other has no states to learn from
pytestmark = pytest.mark.filterwarnings("ignore:states .* empty:RuntimeWarning")
rng = np.random.default_rng(0)
x, u = np.r_[rng.normal(size=10), 4 + rng.normal(size=10)], rng.normal(size=20)
counts = rng.poisson(3, size=20).astype(float)
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
    times = np.cumsum(rng.integers(1, 9, size=20))
    times = np.datetime64("2024-01-01") + times if dates else times + 0.5
    model = StructuralModel(**options).fit(x, times=times, num_steps=1, initialization="still")
    to_come = times[-1] + np.array([3, 5])
    told, expected = model.token_log_probs(x, times=times)[0], model.forecast(x, times=times, future_times=to_come)
    online = model.online()
    found = [online.step(value, times=time).log_prob for value, time in zip(x[:12], times[:12], strict=True)]
    online = model.online(online.save(tmp_path / "place.json"))
    found += [online.step(value, times=time).log_prob for value, time in zip(x[12:], times[12:], strict=True)]
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
        assert reader.num_steps == 20


WITH_INPUTS = {
    "lds": lambda: LDS(1, 1, num_inputs=2), "structural": lambda: StructuralModel(num_inputs=2),
    "iohmm": lambda: IOHMM(2, num_inputs=2, outputs="gaussian", num_outputs=1, mealy=True),
    "arhmm": lambda: ARHMM(2, 1, num_inputs=2), "regression": lambda: SwitchingRegression(2, num_inputs=2),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_INPUTS)
def test_inputs_go_by_their_names(name):
    frame = pd.DataFrame({"u": u, "v": u**2})
    model = WITH_INPUTS[name]()
    model.fit(x, inputs=frame, seed=0, **{"max_iterations" if model.methods[0] == "em" else "num_steps": 2})
    told = model.token_log_probs(x, inputs=frame)[0].tolist()
    turned, backwards = frame[["v", "u"]], frame.to_numpy()[:, ::-1]
    forms = [frame.iloc, turned.iloc, turned.to_dict("records"), frame.to_numpy(), np.ascontiguousarray(backwards)[:, ::-1]]
    for rows in forms:
        online = model.online()
        assert [online.step(x[t], inputs=rows[t]).log_prob for t in range(20)] == pytest.approx(told, abs=1e-8)
        ahead = [online.forecast(future_inputs=form).means.flatten().tolist() for form in (frame[:2], turned[:2])]
        assert ahead[0] == pytest.approx(ahead[1], abs=1e-12)
    for odd in ({"q": 1}, {"u": 1.0}, pd.Series({"u": 1.0, "w": 2.0})):
        with pytest.raises(ValueError, match="inputs: nothing is called '[uv]'"):
            online.step(1.0, inputs=odd)


@pytest.mark.parametrize("name", ["lds", "structural", "iohmm"])
def test_what_is_to_come_before_the_first_step(name):
    inputs = np.c_[u, u**2]
    model = WITH_INPUTS[name]()
    model.fit(x, inputs=inputs, seed=0, **{"max_iterations" if model.methods[0] == "em" else "num_steps": 2})
    expected = model.forecast([x[:0]], inputs=[inputs[:0]], future_inputs=inputs[:2]).means.flatten().tolist()
    assert model.online().forecast(future_inputs=inputs[:2]).means.flatten().tolist() == pytest.approx(expected, abs=1e-10)


WITH_STATES = {
    "semi-markov": lambda **options: SemiMarkovHMM(2, num_features=1, max_duration=4, **options),
    "iohmm": lambda **options: IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1, **options),
    "mixture": lambda **options: MixtureHMM(2, 2, num_features=1, **options),
    "arhmm": lambda **options: ARHMM(2, 1, **options),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_STATES)
def test_states_go_by_their_names(name):
    model = WITH_STATES[name]()
    names = [f"state {k}" for k in range(model._num_observable_states)]
    model = WITH_STATES[name](state_names=names)
    known = {"inputs": u} if name == "iohmm" else {}
    model.fit([x[:, None]], max_iterations=3, **({"inputs": [u[:, None]]} if known else {}))
    states = [None] * 20
    states[3], states[12] = names[0], names[1]
    told = model.token_log_probs([x[:, None]], states=[states], **({"inputs": [u[:, None]]} if known else {}))[0].tolist()
    for unknown in (None, -1, np.nan):
        online = model.online()
        of = [unknown if state is None else state for state in states]
        found = [online.step(x[t], states=of[t], **{k: v[t] for k, v in known.items()}).log_prob for t in range(20)]
        assert found == pytest.approx(told, abs=1e-8)
    with pytest.raises(ValueError, match="no state is called 'none'"):
        online.step(1.0, states="none", **{k: v[0] for k, v in known.items()})


def test_totals_of_multinomial_counts():
    rows = rng.integers(0, 5, size=(20, 2)).astype(float)
    model = HMM(2, num_features=2, emission="multinomial").fit([rows], max_iterations=3)
    told, expected = model.token_log_probs([rows])[0].tolist(), model.forecast([rows], 2, future_trials=5).means
    for known in (False, True):
        online = model.online()
        found = [online.step(row, **({"trials": row.sum()} if known else {})).log_prob for row in rows]
        assert found == pytest.approx(told, abs=1e-10)
        ahead = online.forecast(2, future_trials=5).means
        assert ahead.flatten().tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-10)
        assert ahead.sum(-1).flatten().tolist() == pytest.approx([5, 5])
    with pytest.raises(ValueError, match="trials: columns .* have one total"):
        online.step(rows[0], trials=99)


def test_a_diffuse_start_is_read_where_one_step_determines_it():
    model = StructuralModel(initial="diffuse").fit(x, num_steps=1)
    online = model.online()
    assert [online.step(value).log_prob for value in x] == pytest.approx(model.token_log_probs(x)[0].tolist(), abs=1e-8)
    with pytest.raises(ValueError, match="initial: of a diffuse start 2 coordinates are unknown.*initial='wide'"):
        StructuralModel(trend="stochastic", initial="diffuse").fit(x, num_steps=1, initialization="still").online()
    model = LDS(2, 1, initial="diffuse")
    model.is_fitted = True
    with pytest.raises(ValueError, match="initial: of a diffuse start 2 coordinates are unknown.*initial='learned'"):
        model.online()
