"""Models asked in parallel."""

import pytest
import torch

from pplseq.kernels.parallel import time_scan
from pplseq.models import HMM, VLHMM

close = torch.testing.assert_close


def test_a_model_asked_in_parallel():
    model = HMM(3, 5)
    model.load_state_dict(model.state_dict())  # its random numbers are meant
    x = [[3, 1, 4, 1, -1, 2], [2, 0, 1]]
    with time_scan.parallel_in_time():
        chain = model.posterior(x)
        found = model.score(x), *model.predict(x), *model.predict_proba(x), *model.filter(x).probs
        assert chain.in_parallel
    wanted = model.score(x), *model.predict(x), *model.predict_proba(x), *model.filter(x).probs
    for got, value in zip(found, wanted, strict=True):
        close(torch.as_tensor(got), torch.as_tensor(value))


def test_short_rows_are_asked_in_parallel_too(monkeypatch):
    model, x = HMM(3, 5), torch.tensor([[3, 1, 4, 1], [2, 0, 1, 2]])
    model.load_state_dict(model.state_dict())
    wanted, short = model.score(x), model._chain_of_rows(model._as_batch(x))
    assert short is not None and not short.in_parallel
    calls, forward_pass = [], time_scan.forward_pass
    monkeypatch.setattr(time_scan, "forward_pass", lambda *args: calls.append(1) or forward_pass(*args))
    with time_scan.parallel_in_time():
        close(torch.as_tensor(model.score(x)), torch.as_tensor(wanted))
    assert calls == [1]


def test_other_chains_are_refused():
    with time_scan.parallel_in_time(), pytest.raises(TypeError, match="parallel_in_time: .*EmbeddingTransition"):
        VLHMM(4, num_words=6, blocks=[0, 0, 0, 1, 1, 1], hidden_size=4)(torch.tensor([[1, 2]]))
