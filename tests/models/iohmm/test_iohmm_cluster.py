"""Restarts on the workers of a cluster: those of one process."""

import pytest
import torch

from pplseq import IOHMM
from pplseq.models.iohmm.restarts.cluster import _shares
from pplseq.models.iohmm.restarts.history import RestartBlock

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own

BLOCKS = [RestartBlock(3, scale=0.3), RestartBlock(2, scale=1.0), RestartBlock(2, scale=0.3)]


def data():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(9, 12, 2, generator=generator, dtype=torch.float64)
    x = inputs.sum(-1, keepdim=True) + torch.randn(9, 12, 1, generator=generator, dtype=torch.float64)
    x[2, 3] = torch.nan
    return x, inputs, torch.tensor([12, 5, 12, 1, 12, 7, 12, 12, 3])


def make():
    return IOHMM(2, num_inputs=2, outputs="gaussian", num_outputs=1)


@pytest.mark.parametrize("method", ["em", "gem"])
def test_restarts_of_a_cluster_are_those_of_one_process(here, method):
    x, inputs, lengths = data()
    how = dict(inputs=inputs, method=method, num_restarts=BLOCKS, seed=0, max_iterations=3, tolerance=0.0)
    how["validation"] = {"x": x[:3], "inputs": inputs[:3], "lengths": lengths[:3]}
    alone, there = make().fit(x, lengths, **how), make().fit(x, lengths, **how, cluster=here)
    ours, theirs = there.history.restarts, alone.history.restarts
    torch.testing.assert_close(ours.trace, theirs.trace, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(ours.validations, theirs.validations, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(ours.log_likelihoods, theirs.log_likelihoods, rtol=1e-9, atol=1e-9)
    assert ours.chosen == theirs.chosen and ours.block.tolist() == theirs.block.tolist() == [0, 0, 0, 1, 1, 2, 2]
    torch.testing.assert_close(there.state_dict(), alone.state_dict(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("most", [1, 2, 4, 100])
def test_shares_are_the_group(most):
    parameters = {"emission": {"weight": torch.arange(14.0).reshape(2, 7)}}
    shares = _shares(parameters, BLOCKS, most)
    whole = torch.cat([part["emission"]["weight"] for part, _ in shares], -1)
    assert torch.equal(whole, parameters["emission"]["weight"])
    for part, blocks in shares:
        count = part["emission"]["weight"].shape[-1]
        assert sum(block.num_restarts for block in blocks) == count <= most
    single = [block.replaced(1) for _, blocks in shares for block in blocks for _ in range(block.num_restarts)]
    assert single == [block.replaced(1) for block in BLOCKS for _ in range(block.num_restarts)]


def test_what_a_cluster_cannot_do(here, tmp_path):
    x, inputs, lengths = data()
    with pytest.raises(ValueError, match="cluster: restarts of 'em' and 'gem' are fitted there, whole; leave out method 'sgd'"):
        make().fit(x, lengths, inputs=inputs, method="sgd", cluster=here)
    with pytest.raises(ValueError, match="leave out folder, max_time, progress, on_record, or cluster"):
        make().fit(x, lengths, inputs=inputs, folder=tmp_path / "run", cluster=here)


@pytest.mark.slow
def test_workers_of_their_own():
    x, inputs, lengths = data()
    how = dict(inputs=inputs, num_restarts=4, seed=0, max_iterations=3, tolerance=0.0)
    alone, there = make().fit(x, lengths, **how), make().fit(x, lengths, **how, cluster="local:1")
    torch.testing.assert_close(there.history.restarts.trace, alone.history.restarts.trace, rtol=1e-9, atol=1e-9)
