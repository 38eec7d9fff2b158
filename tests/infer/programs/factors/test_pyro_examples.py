"""Pyro's own example file of hidden Markov models, which is no part of this repository, under our ELBO."""

import argparse
import importlib.util
import logging
from pathlib import Path

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta

from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO

FILE = Path(__file__).resolve().parents[4].parent / "shared" / "peers" / "pyro_hmm_examples.py"
pytestmark = [
    pytest.mark.skipif(not FILE.exists(), reason=f"Pyro's examples/hmm.py is not at {FILE}"),
    pytest.mark.filterwarnings("ignore:Found vars in model but not guide"),
]


@pytest.fixture(scope="module")
def examples():
    spec = importlib.util.spec_from_file_location("pyro_hmm_examples", FILE)
    module = importlib.util.module_from_spec(spec)
    root, level = logging.getLogger(), logging.getLogger().level
    before = list(root.handlers)
    spec.loader.exec_module(module)
    root.handlers[:], root.level = before, level
    return module


@pytest.fixture(autouse=True)
def in_float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def loss_and_gradients(elbo, examples, number, batch_size, raftery=False):
    model, nesting = examples.models[str(number)], 1 if number == 0 else 2
    generator = torch.Generator().manual_seed(1)
    sequences, lengths = (torch.rand(6, 7, 5, generator=generator) < 0.3).double(), torch.tensor([7, 3, 1, 6, 5, 7])
    args = argparse.Namespace(hidden_dim=4, nn_dim=6, nn_channels=2, jit=False, raftery_parameterization=raftery)
    examples.tones_generator = None
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoDelta(poutine.block(model, expose_fn=lambda msg: msg["name"].startswith("probs_")))
    given = dict(args=args, batch_size=batch_size)
    guide(sequences, lengths, **given)
    for leaf in guide.parameters():  # medians of priors are alike in all states
        leaf.data = torch.sin(3.0 * torch.arange(leaf.numel())).reshape(leaf.shape)
    pyro.set_rng_seed(2)
    loss = elbo(max_plate_nesting=nesting, strict_enumeration_warning=False).loss_and_grads(
        model, guide, sequences, lengths, **given
    )
    return loss, {name: leaf.grad.clone() for name, leaf in pyro.get_param_store()._params.items()}


@pytest.mark.parametrize(
    ("number", "batch_size"), [*((number, 4) for number in range(8)), *((number, None) for number in (0, 4, 7))]
)
def test_same_loss_and_gradients(examples, number, batch_size):
    expected, wanted = loss_and_gradients(TraceEnum_ELBO, examples, number, batch_size)
    loss, found = loss_and_gradients(TraceBlockedEnum_ELBO, examples, number, batch_size)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert found.keys() == wanted.keys() and found
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-10 * float(gradient.abs().max()), msg=name)
