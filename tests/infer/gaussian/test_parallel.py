"""Models of Gaussian states asked in parallel."""

import pytest
import torch

from pplseq.infer.gaussian.parallel import ParallelChain
from pplseq.kernels.parallel.time_scan import parallel_in_time
from pplseq.models import LDS

F64 = torch.float64

def test_a_model_asked_in_parallel():
    model = LDS(3, 2)
    model.load_state_dict(model.state_dict())  # its random numbers are meant
    x = torch.randn(2, 9, 2, dtype=F64)
    x[0, 3] = torch.nan
    whole = x.nan_to_num(0.3)

    def answers():
        model.zero_grad()
        model.log_joint(whole).backward()
        return [torch.tensor(model.score(x)), torch.tensor(model.score(whole)), model.transform(x), model.filter(whole).means,
                model.forecast(x, 2).means, model.sample_states(x, 2, seed=1), model.transition.grad.clone()]  # fmt: skip

    wanted = answers()
    with parallel_in_time():
        assert isinstance(model.posterior(x), ParallelChain)
        found = answers()
    for got, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, value, rtol=1e-8, atol=1e-9)


def test_what_goes_step_by_step_only_is_refused():
    x = torch.zeros(1, 4, 2, dtype=F64)
    with parallel_in_time():
        with pytest.raises(TypeError, match="parallel_in_time: a diffuse start"):
            LDS(2, 2, initial="diffuse").posterior(x)
        own = dict(transition=0.5 * torch.eye(2), emission=torch.eye(2))
        model = LDS(2, 2).set_parameters(**own, emission_noise=torch.zeros(2, 2))
        with pytest.raises(ValueError, match="parallel_in_time: the noise"):
            model.score(x)
