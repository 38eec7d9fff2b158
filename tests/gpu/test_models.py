"""Every model on a GPU: its answers, gradients and files are there, and equal to what the CPU says; it is fitted there."""

import pytest
import torch
from support.answers import asked, fit_a_step, parts
from support.model_cases import CASES, LENGTHS

from pplseq.models.storage import read_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def on(device, name):
    """A model, its data, lengths and what is known of it."""
    case = CASES[name]
    model, x = case.model().to(device), case.data().to(device)
    model.is_fitted = True
    return case, (model, x, LENGTHS.to(device), {key: value.to(device) for key, value in case.known.items()})


def here(value):
    """What a result of a GPU holds, on the CPU."""
    found = parts(value)
    assert all(part.is_cuda for part in found if isinstance(part, torch.Tensor))
    return [part.detach().cpu() if isinstance(part, torch.Tensor) else part for part in found]


@pytest.mark.parametrize("name", CASES)
def test_answers(name):
    case, given = on("cpu", name)
    _, moved = on("cuda", name)
    expected, found = asked(case, *given), asked(case, *moved)
    for verb, value in found.items():
        wanted = [part.detach() if isinstance(part, torch.Tensor) else part for part in parts(expected[verb])]
        torch.testing.assert_close(here(value), wanted, msg=lambda text, verb=verb: f"{verb}: {text}")
    model, x, lengths, known = moved
    if "sample_states" in case.verbs:
        assert model.sample_states(x, 2, lengths, **known).is_cuda
    if "sample" in case.verbs:
        assert all(value.is_cuda for value in model.sample(3, 2, **{key: value[:2, :3] for key, value in known.items()})[:2])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "log_joint" in case.verbs and not case.draws])
def test_gradients(name):
    found = []
    for device in ("cpu", "cuda"):
        model, x, lengths, known = on(device, name)[1]
        model.log_joint(x, lengths, **known).sum().backward()
        found.append([None if leaf.grad is None else leaf.grad.cpu() for leaf in model.parameters()])
    for expected, got in zip(*found, strict=True):
        assert (expected is None) == (got is None)
        if got is not None:
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "fit" in case.verbs])
@pytest.mark.parametrize("method", ["em", "sgd", "lbfgs"])
def test_fits(name, method):
    """One step of each way to fit ends there, at a score that is a number; where fits start is drawn on the device itself."""
    model, x, lengths, known = on("cuda", name)[1]
    if method not in model.methods:
        pytest.skip(f"no {method}")
    fit_a_step(model, method, x, lengths, known)
    assert all(parameter.is_cuda for parameter in model.parameters())
    assert torch.isfinite(torch.as_tensor(model.score(x, lengths, **known))).all()


@pytest.mark.parametrize("name", CASES)
def test_storage(name, tmp_path):
    _, (model, x, lengths, known) = on("cuda", name)
    model.save(tmp_path / "model")
    loaded = read_model(tmp_path / "model", torch.device("cuda"))
    assert all(value.is_cuda for value in loaded.state_dict().values())
    torch.testing.assert_close(loaded.score(x, lengths, **known), model.score(x, lengths, **known))
