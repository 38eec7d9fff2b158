"""Every model on another device: what it learns, answers and keeps on disk is there, and equal to what the CPU says."""

import pytest
import torch
from support.answers import asked, fit_a_step, parts
from support.elsewhere import DEVICE, Elsewhere, moved, other_device
from support.model_cases import CASES, LENGTHS

from pplseq.models.storage import read_model

# the blocks of a VLHMM differ in their tables alone; test_other_device.py asks it more
NAMES = [name for name in CASES if not name.startswith("vlhmm") or name == "vlhmm, hierarchical"]
QUICK = {"hmm", "iohmm, symbols", "lds", "text_lds", "switching regression"}  # the others are slow together
SOME = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


@pytest.fixture(autouse=True)
def device(monkeypatch):
    with other_device(monkeypatch):
        yield


def there(value):
    return Elsewhere.of(value)


def here(value):
    """The same as tensors of the CPU; none of them was there already."""
    found = parts(value)
    assert all(part.device == DEVICE for part in found if isinstance(part, torch.Tensor))
    return [part.detach().held if isinstance(part, torch.Tensor) else part for part in found]


def pair(name):
    """The model, its data and what is known, on the CPU and elsewhere."""
    case = CASES[name]
    model, other, x = case.model(), moved(case.model()), case.data()
    model.is_fitted = other.is_fitted = True
    known = {name: there(value) for name, value in case.known.items()}
    return case, (model, x, LENGTHS, case.known), (other, there(x), there(LENGTHS), known)


@pytest.mark.parametrize("name", SOME)
def test_answers(name):
    case, on_cpu, elsewhere = pair(name)
    expected, found = asked(case, *on_cpu), asked(case, *elsewhere)
    for verb, value in found.items():
        on_the_cpu = [part.detach() if isinstance(part, torch.Tensor) else part for part in parts(expected[verb])]
        torch.testing.assert_close(here(value), on_the_cpu, msg=lambda text, verb=verb: f"{verb}: {text}")
    model, x, lengths, known = elsewhere
    if "sample_states" in case.verbs:
        assert model.sample_states(x, 2, lengths, **known).device == DEVICE
    if "sample" in case.verbs:
        few = {key: value[:2, :3] for key, value in known.items()}
        assert all(value.device == DEVICE for value in model.sample(3, 2, **few)[:2])


@pytest.mark.parametrize("name", SOME)
def test_gradients(name):
    if "log_joint" not in CASES[name].verbs or CASES[name].draws:
        pytest.skip("no program without chance")
    _, (model, *data, known), (other, *moved_data, moved_known) = pair(name)
    model.log_joint(*data, **known).sum().backward()
    other.log_joint(*moved_data, **moved_known).sum().backward()
    for expected, found in zip(model.parameters(), other.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None)
        if found.grad is not None:
            torch.testing.assert_close(here(found.grad)[0], expected.grad)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no standard errors:RuntimeWarning")  # of one step
@pytest.mark.parametrize("method", ["em", "sgd", "lbfgs"])
@pytest.mark.parametrize("name", [name for name in NAMES if "fit" in CASES[name].verbs])
def test_fits(name, method):
    _, _, (model, x, lengths, known) = pair(name)
    if method not in model.methods:
        pytest.skip(f"no {method}")
    fit_a_step(model, method, x, lengths, known)
    if not name.startswith("vlhmm") and "layers" not in name:  # whose weights mean nothing one by one
        assert model.summary(x, lengths, **known).estimates.device == DEVICE
    assert all(parameter.device == DEVICE for parameter in model.parameters())


@pytest.mark.parametrize("name", SOME)
def test_storage(name, tmp_path):
    case, on_cpu, (model, *elsewhere) = pair(name)
    model.save(tmp_path / "model")
    loaded = read_model(tmp_path / "model", DEVICE)
    assert all(value.device == DEVICE for value in loaded.state_dict().values())
    x, lengths, known = elsewhere
    torch.testing.assert_close(loaded.score(x, lengths, **known), on_cpu[0].score(*on_cpu[1:3], **on_cpu[3]))
