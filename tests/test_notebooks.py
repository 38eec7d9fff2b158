"""What notebooks show: well-formed HTML, escaped, in the theme's own colours."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas
import pytest
import torch
from support.model_cases import CASES

from pplseq import HMM, LDS
from pplseq.data import Vocabulary
from pplseq.models import compare

EVIL = "<script>alert('1')</script>"


def told(value):
    """The cells of what is shown."""
    found = value._repr_html_()
    assert "color" not in found and "<script" not in found
    return ["".join(cell.itertext()) for cell in ElementTree.fromstring(f"<div>{found}</div>").iter() if cell.tag != "div"]


@pytest.mark.parametrize("name", CASES)
def test_every_model_is_a_table_of_its_parameters(name):
    model = CASES[name].model()
    model.is_fitted = True
    cells = told(model)
    assert repr(model) in cells
    if name != "iohmm, hidden layers":
        assert all(key in cells for key in [*model.estimates()][:8])


def test_numbers_are_told_or_how_large_they_are():
    model = HMM(2, num_features=1)
    assert "loc" not in told(model)  # which nobody has set
    model.set_parameters(initial=[0.5, 0.5], transition=[[0.25, 0.75], [1, 0]], loc=[[1.0], [-2.5]])
    assert {"[[0.25, 0.75], [1, 0]]", "2 × 2", "[[1], [-2.5]]"} <= set(told(model))
    assert "0.01 … 0.5" in told(HMM(1, 30).set_parameters(
        initial=[1.0], transition=[[1.0]], emission=[[0.5] + [0.01] * 28 + [0.22]]
    ))  # fmt: skip


def test_results_are_tables_whose_text_is_escaped():
    x = pandas.DataFrame({EVIL: np.sin(np.arange(40.0))})
    model = HMM(2, num_features=1, state_names=["<low>", "high"]).fit(x, seed=0, max_iterations=5)
    (text,) = told(model.summary(x))
    assert "transition[<low>][high]" in text and text.count("\n") > 8
    cells = told(model.forecast(x, 3))
    assert {EVIL, f"{EVIL} low"} <= set(cells)
    assert model.predict_next(x)._repr_html_() is None  # as text
    assert "<low>" in told(compare({"<low>": model}, x))[0]
    assert told(model.diagnostics(x))[:1] == ["Residuals of one-step predictionstestcolumnstatisticp" + "".join(
        f"{name}0{row[0, 0]:.4g}{row[0, 1]:.4g}"
        for name, row in zip(("ljung box", "jarque bera", "heteroskedasticity"), model.diagnostics(x)[1:], strict=True)
    )]  # fmt: skip
    found = model.smooth(x)
    cells = told(found)
    assert "…" in cells and f"{float(found.probs[0, 39, 1]):.4g}" in cells and "20" not in cells
    assert "the first of 2 sequences" in told(model.smooth([[0.0, 1], [1.0]]))[1]
    states = LDS(1, 1).fit(x, max_iterations=2).smooth(x)
    assert f"{float(states.covariances[0, 1].sqrt()):.4g}" in told(states)
    assert found._replace(ids=torch.zeros(1, 40, 2).long())._repr_html_() is None


def test_fits_paths_draws_and_readers_are_tables():
    x = [np.sin(np.arange(12.0)).tolist(), [0.0, 1.0]]
    model = HMM(2, num_features=1, state_names=["<low>", "high"]).fit(x, seed=0, max_iterations=5, tolerance=0.0)
    cells = told(model.history)
    assert cells[1] == "em: max_iterations = 5 reached" and "log posterior" not in cells
    assert [f"{each:.4g}" for each in model.history.log_likelihoods] == cells[-13::3]
    paths = model.n_best(x, 2)
    cells = told(paths)
    assert cells[1] == "Most probable paths: the first of 2 sequences" and f"log p {paths.log_probs[0, 1]:.4g}" in cells
    assert cells[-3:] == ["11", *(path[11] for path in paths.states[0])] and "<low>" in cells
    assert told(model.n_best([[0.0]], 3))[-4:] == ["0", *map(str, model.n_best([[0.0]], 3).states[0][:, 0])]
    drawn = model.sample(4, 2, seed=0)
    assert told(drawn)[-3:] == ["3", drawn.states[0, 3], f"{drawn.x[0, 3, 0]:.4g}"]
    reader = model.online()
    reading = reader.step(0.5)
    assert told(reading)[1] == f"log p {reading.log_prob:.4g}" and told(reading)[-1] == f"{reading.states[1]:.4g}"
    assert told(reader)[-3:] == ["1", f"{reader.log_prob:.4g}", f"{reader.log_prob:.4g}"]
    assert told(model.online())[-3:] == ["0", "0", "0"]
    found = model.predictive_check(x, statistic=lambda data: [float(data[0].mean()), 1.0], num_samples=9, seed=0)
    assert told(found)[1] == "A statistic beside that of 9 draws" and told(found)[-6:] == ["1", "1", "1", "1", "1", "1"]
    single = model.predictive_check(x, statistic=lambda data: float(data[0].mean()), num_samples=9, seed=0)
    assert f"{float(single.observed):.4g}" in told(single) and f"{float(single.drawn.median()):.4g}" in told(single)


def test_states_that_are_vectors_and_words_that_are_drawn():
    states = LDS(2, 1).fit([np.sin(np.arange(20.0)).tolist()], max_iterations=2)
    drawn = states.sample(3, seed=0)
    assert {"state0", "state1", "x", f"{drawn.states[0, 2, 1]:.4g}"} <= set(told(drawn))
    reading = states.online().step(0.5)
    assert told(reading)[-2:] == [f"{reading.states[1]:.4g}", f"{reading.covariance[1, 1] ** 0.5:.4g}"]
    words = HMM(2, vocabulary=Vocabulary(["<unk>", "b"]))
    words.set_parameters(initial=[0.5, 0.5], transition=[[0.5, 0.5]] * 2, emission=[[1.0, 0.0]] * 2)
    assert told(words.sample(2, seed=0))[-1] == "<unk>"
    assert told(states.history)[1].startswith("em: ")


def test_bars_are_drawn_in_notebooks():
    import tqdm.auto
    import tqdm.notebook

    from pplseq.runs import progress

    assert not progress.draws_in_notebook(tqdm.auto.tqdm)
    assert progress.draws_in_notebook(tqdm.notebook.tqdm)
