"""Inputs of what is drawn, in the forms in which data come."""

import numpy as np
import pandas
import pytest
import torch

from pplseq import ARHMM, LDS, StructuralModel, SwitchingRegression

U = np.random.default_rng(0).normal(size=(6, 1))
FORMS = {
    "array": U, "rows": np.stack([U, U]), "single": torch.as_tensor(U).float(), "list": [U, U],
    "frame": pandas.DataFrame({"a": U[:, 0]}), "column": U[:, 0],
}  # fmt: skip
MODELS = {
    "lds": lambda: LDS(1, 1, num_inputs=1), "structural": lambda: StructuralModel(num_inputs=1),
    "switching": lambda: SwitchingRegression(2, num_inputs=1), "autoregressive": lambda: ARHMM(2, 1, num_inputs=1),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_every_form_draws_the_same(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    drawn = {key: torch.rand_like(value) for key, value in model.named_parameters()}
    model.load_state_dict({**model.state_dict(), **drawn})
    wanted = model.sample(6, 2, seed=1, inputs=torch.as_tensor(np.stack([U, U])))
    for inputs in FORMS.values():
        torch.testing.assert_close(model.sample(6, 2, seed=1, inputs=inputs).x, wanted.x, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.sample(num_sequences=2, seed=1, inputs=U).x, wanted.x)  # they say how many steps
    for inputs, error, message in (
        (U[:5], ValueError, "inputs must be of num_steps = 6"), (np.zeros((3, 6, 1)), ValueError, "inputs must have shape"),
        ([U, U[:4]], ValueError, r"inputs: all sequences must have as many steps, got \[6, 4\]"),
        ("abc", TypeError, "inputs must hold numbers"), (None, TypeError, "num_steps must be a whole number, got None"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            model.sample(None if inputs is None else 6, 2, inputs=inputs)
    with pytest.raises(TypeError, match="lengths: all sequences that are drawn"):
        model.sample(6, 2, inputs=U, lengths=[3, 4])
