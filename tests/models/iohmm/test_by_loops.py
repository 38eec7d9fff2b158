"""The short way from rows without gaps to their chain leads where the way of all programs leads."""

import pytest
import torch
from support.grids import grid

from pplseq.infer.fit.em import Batch
from pplseq.models import IOHMM
from pplseq.models.base import SequenceModel

OUTPUTS = {"gaussian": 2, "bernoulli": 2, "categorical": 5}


def model_and_rows(outputs="gaussian", num_states=3, rows=2, steps=6, **options):
    torch.manual_seed(0)
    options = {"num_inputs": {"transition": 2}} | options
    model = IOHMM(num_states, outputs=outputs, num_outputs=OUTPUTS[outputs], **options)
    model.is_fitted = True
    x = torch.randn(rows, steps, 2).double()
    x = {"gaussian": x, "bernoulli": (x > 0).double(), "categorical": torch.randint(5, (rows, steps))}[outputs]
    return model, x, torch.randn(rows, steps, 2).double()


@grid({
    "num_states, rows, steps": [(1, 1, 1), (3, 2, 6), (2, 1, 40), (4, 3, 1)],
    "outputs": OUTPUTS,
    "initial": ["constant", "transition"],
}, times=2)
def test_the_short_way_is_the_long_one(outputs, initial, num_states, rows, steps):
    model, x, inputs = model_and_rows(outputs, num_states, rows, steps, initial=initial)
    short = model._chain_of_rows(model._as_batch(x, inputs=inputs))
    chain = SequenceModel.posterior(model, x, inputs=inputs)
    assert short is not None and short.is_whole and not short.log_prob().requires_grad
    torch.testing.assert_close(short.log_prob(), chain.log_prob(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(short.marginals().probs, chain.marginals().probs)
    torch.testing.assert_close(short.filtered_states().probs, chain.filtered_states().probs)
    torch.testing.assert_close(short.predicted_states().probs, chain.predicted_states().probs)
    torch.testing.assert_close(short.expected_counts().occupancy, chain.expected_counts().occupancy)
    assert torch.equal(short.viterbi()[0], chain.viterbi()[0])
    assert model.score(x, inputs=inputs) == pytest.approx(float(chain.log_prob().sum()), rel=1e-12)
    following = torch.randn(rows, 2).double()
    torch.testing.assert_close(short.next(following).state_log_probs, chain.next(following).state_log_probs)


class Own(IOHMM):
    pass


def test_what_is_out_of_the_ordinary_takes_the_long_way():
    model, x, inputs = model_and_rows()
    gap = x.clone()
    gap[0, 2] = torch.nan
    part = x.clone()
    part[0, 2, 1] = torch.nan
    for y in (gap, part):
        assert model._chain_of_rows(model._as_batch(y, inputs=inputs)) is None
    assert model._chain_of_rows(model._as_batch(x, torch.tensor([6, 3]), inputs=inputs)) is None
    assert model._chain_of_rows(Batch(x, states=torch.full((2, 6), -1), inputs=inputs)) is None
    others = (
        {"initial": "inputs", "num_inputs": 2}, {"mealy": True, "num_inputs": 2}, {"priors": True},
        {"num_inputs": {"emission": 2}, "mealy": True}, {"feedback": "transition"},
    )  # fmt: skip
    for options in others:
        other = model_and_rows(**options)[0]
        batch = other._as_batch(x, inputs=inputs)
        assert other._chain_of_rows(batch) is None
        assert other.score(x, inputs=inputs) == pytest.approx(
            float(SequenceModel.posterior(other, x, inputs=inputs).log_prob().sum()), rel=1e-12
        )
    own = Own(3, num_inputs={"transition": 2}, outputs="gaussian", num_outputs=2)
    assert own._chain_of_rows(own._as_batch(x, inputs=inputs)) is None
    model.specs = model.specs
    assert model._chain_of_rows(model._as_batch(x, inputs=inputs)) is None
