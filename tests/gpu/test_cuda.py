"""The same numbers on a GPU as on the CPU: run with ``pytest -m gpu`` on a machine that has one."""

import contextlib

import pytest
import torch

from pplseq.infer import TraceBlockedEnum_ELBO
from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.kernels.log_semiring import log_norm_reference, streamed_log_norm
from pplseq.models import IOHMM, VLHMM
from pplseq.runs import captured as captured_steps
from pplseq.runs import training

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def make(device, **options):
    torch.manual_seed(0)
    model = VLHMM(48, num_words=60, blocks=torch.arange(60) % 6, hidden_size=16, init_scale=1.0, reset_id=3, **options).double()
    return model.to(device)


@pytest.fixture
def x():
    torch.manual_seed(1)
    x = torch.randint(0, 60, (5, 11))
    x[0, 3] = x[1, 4:7] = x[2, 10] = -1
    return x


LENGTHS = torch.tensor([11, 9, 11, 1, 6])


@pytest.mark.parametrize(
    "options", [{}, {"parameterization": "factored"}, {"parameterization": "scalar"}, {"tied": False}]
)
def test_likelihood_and_gradients(options, x):
    results = []
    for device in ("cpu", "cuda"):
        model = make(device, **options)
        loss = TraceBlockedEnum_ELBO()(model, no_guide)(x.to(device), LENGTHS.to(device))
        loss.backward()
        results.append((loss.detach().cpu(), [p.grad.cpu() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(results[1], results[0])


def test_queries(x):
    results = []
    for device in ("cpu", "cuda"):
        chain = make(device).posterior(x.to(device), LENGTHS.to(device))
        answers = [chain.viterbi()[0], chain.marginals().dense(48), chain.missing_words().log_probs]
        belief = chain.filtered()
        answers += [belief.dense(48), chain.next().word_log_probs]
        results.append([answer.cpu() for answer in answers])
    torch.testing.assert_close(results[1], results[0])


def test_training_step_under_dropout(x):
    model = make("cuda", state_dropout=0.5).train()
    elbo, start = TraceBlockedEnum_ELBO()(model, no_guide), None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        loss = elbo(x.clamp_min(0).cuda(), None, start)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        start = model.chain.filtered().detach()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_streamed_normaliser():
    out, into = torch.randn(300, 32, device="cuda"), torch.randn(500, 32, device="cuda")
    torch.testing.assert_close(streamed_log_norm(out, into), log_norm_reference(out, into), rtol=1e-4, atol=1e-4)
    rough = streamed_log_norm(out, into, torch.bfloat16)
    torch.testing.assert_close(rough, log_norm_reference(out, into), rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize(
    "options",
    [
        dict(num_symbols=3, num_outputs=4, mealy=True, initial="inputs", feedback=True),
        dict(num_inputs=2, outputs="gaussian", num_outputs=2, mealy=True, hidden=(4,), graph="left_right"),
        dict(num_inputs=2, outputs="bernoulli", num_outputs=2, initial="transition", start_states=[0]),
    ],
)
def test_input_output_hmm(options):
    """Likelihood, gradients and queries."""
    torch.manual_seed(0)
    model = IOHMM(3, **options)
    model.is_fitted = True
    inputs = torch.randint(3, (5, 11)) if "num_symbols" in options else torch.randn(5, 11, 2).double()
    x = model.sample(inputs=inputs)[0]
    results = []
    for device in ("cpu", "cuda"):
        model, x, inputs, lengths = (value.to(device) for value in (model, x, inputs, LENGTHS))
        model.zero_grad()
        loss = model.log_joint(x, lengths, inputs=inputs)
        loss.backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        answers = [
            loss.detach(),
            model.smooth(x, lengths, inputs=inputs).probs,
            model.one_step(x, lengths, inputs=inputs).outputs,
        ]
        answers += [model.decode(x, lengths, inputs=inputs), model.filter(x, lengths, inputs=inputs).probs]
        assert model.sample(inputs=inputs)[0].device.type == device
        coming = model.forecast(x, 2, lengths, inputs=inputs, future_inputs=inputs[:, :2], num_samples=2)
        assert coming.state_log_probs.device.type == device
        results.append(([answer.cpu() for answer in answers], gradients))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("transition", ["softmax", "hierarchical"])
def test_kernels_give_what_their_twins_give(transition):
    from pplseq.kernels.triton import launch

    x, results = torch.randint(60, (5, 11), device="cuda"), []
    for place in (launch.twins_only, contextlib.nullcontext):
        model = make("cuda", transition=transition)
        with place():
            loss = -model._direct_chain(x, LENGTHS.cuda()).log_prob().sum()
            loss.backward()
            chain = model.posterior(x, LENGTHS.cuda())
            answers = [chain.viterbi()[0], chain.marginals().dense(48)]
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None), *answers])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("options", [{}, {"num_topics": 3}, {"feature_dropout": 0.2}], ids=str)
def test_captured_steps_learn_what_steps_learn(options, monkeypatch):
    """With state dropout that falls, resets, carried beliefs and a last batch of another size."""
    text = [[f"w{(7 * k + j * j) % 19}" for j in range(3 + k % 5)] for k in range(150)]
    results, captured, record = [], [], captured_steps.recorded
    monkeypatch.setattr(captured_steps, "recorded", lambda *args: captured.append(0) or record(*args))
    for devices in (set(), {"cuda"}):
        monkeypatch.setattr(training, "CAPTURED", devices)
        model = VLHMM(24, hidden_size=8, transition="hierarchical", state_dropout=0.5, **options)
        model.fit(text, num_blocks=6, epochs=4, batch_size=4, segment_length=8, seed=1, device="cuda", final_dropout=0.0,
                  schedule="linear")  # fmt: skip
        results.append([parameter.detach().cpu() for parameter in model.parameters()])
    assert len(captured) > 3
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)
