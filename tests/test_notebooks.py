"""What notebooks show: well-formed HTML, escaped, in the theme's own colours."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas
import pytest
import torch
from support.model_cases import CASES

from pplseq import HMM, LDS
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


def test_bars_are_drawn_in_notebooks():
    import tqdm.auto
    import tqdm.notebook

    from pplseq.runs import progress

    assert not progress.draws_in_notebook(tqdm.auto.tqdm)
    assert progress.draws_in_notebook(tqdm.notebook.tqdm)
