"""Steps that are captured, with what stands for a CUDA graph on a CPU: a run that writes into the tensors of its first one."""

import pytest
import torch

from pplseq.models import VLHMM
from pplseq.runs import captured, checkpoint, training

TEXT = [[f"w{(7 * k + j * j) % 19}" for j in range(3 + k % 5)] for k in range(90)]
CPU = torch.device("cpu")


def fit(**options):
    model = VLHMM(24, hidden_size=8, transition="hierarchical", state_dropout=0.5, **options)
    model.fit(TEXT, num_blocks=6, epochs=3, batch_size=4, segment_length=8, seed=1, final_dropout=0.0, schedule="linear")
    return [parameter.detach() for parameter in model.parameters()]


class Pretended:
    """Replays a step as a CUDA graph does: the same inputs, the same outputs and gradients, and no draw in the capture."""

    def __init__(self, wrong=0.0):
        self.count, self.wrong, self.parameters = 0, wrong, []

    def __call__(self, run, device):
        self.count += 1
        before = checkpoint.random_states(device)
        carried, loss = run()
        checkpoint.restore_random_states(before, device)
        gradients = [parameter.grad for parameter in self.parameters]

        def replay():
            for parameter in self.parameters:
                parameter.grad = None
            new, value = run()
            for own, other in zip((*carried, loss), (*new, value), strict=True):
                if own is not None:
                    own.copy_(other)
            loss.add_(self.wrong)
            for own, parameter in zip(gradients, self.parameters, strict=True):
                if own is not None:
                    own.copy_(parameter.grad)

        return replay, (carried, loss)


@pytest.fixture(scope="module")
def plain():
    """What a fit learns step by step."""
    return fit()


@pytest.fixture
def pretended(plain, monkeypatch):
    found, make = Pretended(), captured.CapturedStep.__init__

    def init(self, step, parameters, device):
        found.parameters = list(parameters)
        make(self, step, parameters, device)

    monkeypatch.setattr(captured.CapturedStep, "__init__", init)
    monkeypatch.setattr(captured, "recorded", found)
    monkeypatch.setattr(training, "CAPTURED", {"cpu"})
    return found


@pytest.mark.parametrize("options", [{}, {"num_topics": 2, "feature_dropout": 0.2}], ids=str)
def test_replays_learn_what_steps_learn(options, plain, pretended, monkeypatch):
    """With dropout that falls, so that shapes change, resets, carried beliefs and a first batch of every epoch."""
    found = fit(**options)
    assert pretended.count > 3
    monkeypatch.setattr(training, "CAPTURED", set())
    torch.testing.assert_close(found, fit(**options) if options else plain, rtol=0, atol=0)


def test_a_capture_that_comes_out_otherwise_is_not_used(plain, pretended):
    pretended.wrong = 100.0
    with pytest.warns(RuntimeWarning, match="run one by one: loss and gradients are"):
        found = fit()
    assert pretended.count == 1
    torch.testing.assert_close(found, plain, rtol=0, atol=0)


def test_a_device_that_captures_nothing(plain, pretended, monkeypatch):
    def refuse(run, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured, "recorded", refuse)
    with pytest.warns(RuntimeWarning, match="not permitted"):
        found = fit()
    torch.testing.assert_close(found, plain, rtol=0, atol=0)
