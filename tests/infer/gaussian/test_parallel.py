"""The Gaussian chain parallel in time against the one that goes step by step: answers, and gradients in everything."""

import pytest
import torch

from pplseq.distributions.gaussian_types import GaussianBelief, LinearEvidence
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.infer.gaussian.parallel import ParallelChain
from pplseq.kernels.kalman import symmetric
from pplseq.kernels.parallel.time_scan import parallel_in_time
from pplseq.models import LDS

F64 = torch.float64
CASES = {  # h, n, T, R and what is special
    "one step": ((2, 1, 1, 2), ()),
    "two steps": ((1, 1, 2, 1), ()),
    "whole rows": ((3, 2, 13, 2), ("offset",)),
    "more numbers than states": ((2, 4, 8, 3), ()),
    "ends and gaps": ((3, 2, 11, 4), ("ends", "gaps", "offset by step")),
    "partly seen": ((2, 3, 9, 3), ("ends", "parts")),
    "starts of their own": ((2, 1, 6, 3), ("starts",)),
    "matrices of steps": ((2, 2, 7, 2), ("matrices",)),
    "a state known exactly": ((2, 1, 6, 1), ("known",)),
}


def problem(sizes, about):
    (h, n, T, R), generator = sizes, torch.Generator().manual_seed(sum(sizes))

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=F64)

    def psd(*shape):
        root = draw(*shape, shape[-1])
        return root @ root.mT / shape[-1] + 0.1 * torch.eye(shape[-1], dtype=F64)

    steps = (T - 1,) if "matrices" in about else ()
    offset = draw(h) if "offset" in about else draw(T - 1, R, h) if "offset by step" in about else None
    start = psd(*(R,) if "starts" in about else (), h) * (0.0 if "known" in about else 1.0)
    parts = [draw(R, h), start, 0.5 * draw(*steps, h, h), psd(*steps, h), offset, draw(T, R, n), draw(n, h), psd(n)]
    valid = torch.arange(T)[:, None] < torch.tensor([T, T // 2, 1, T])[:R] if "ends" in about else None
    seen = torch.rand(T, R, generator=generator) > 0.3 if "gaps" in about else None
    patterns = which = None
    if "parts" in about:
        patterns = torch.tensor([[True] * n, [True] + [False] * (n - 1), [False] + [True] * (n - 1)])
        which = torch.randint(3, (T, R), generator=generator)

    def make(kind, parts):
        mean, covariance, matrix, noise, shift, numbers, loadings, spread = parts
        evidence = LinearEvidence(numbers, loadings, spread, which, patterns)
        return kind(GaussianBelief(mean, covariance), Dynamics(matrix, noise, shift), evidence, valid=valid, seen=seen)

    return parts, make


@pytest.mark.parametrize("case", CASES)
def test_answers_and_gradients(case):
    sizes, about = CASES[case]
    parts, make = problem(sizes, about)

    def everything(kind):
        leaves = [None if part is None else part.clone().requires_grad_() for part in parts]
        chain = make(kind, leaves)
        smoothed, filtered = chain.smoothed_states(), chain.filtered_states()
        found = {
            "log_prob": chain.log_prob(), "tokens": chain.token_log_probs(), "filtered": filtered.means,
            "filtered spread": filtered.covariances.dense(), "smoothed": smoothed.means,
            "smoothed spread": smoothed.covariances.dense(), "predicted": chain.predicted_states().means,
            "lags": chain.lag_one_covariances().dense(), "last": chain.filtered().mean,
        }  # fmt: skip
        for name in ("log_prob", "smoothed", "smoothed spread"):
            weighted = (found[name] * torch.linspace(0.5, 1.5, found[name].numel(), dtype=F64).view_as(found[name])).sum()
            given = [leaf for leaf in leaves if leaf is not None]
            grads = torch.autograd.grad(weighted, given, retain_graph=True, allow_unused=True)
            for k, grad in enumerate(grads):
                if grad is not None:
                    square = grad.dim() > 1 and grad.shape[-1] == grad.shape[-2] and k != 2
                    found[f"{name} in {k}"] = symmetric(grad) if square else grad
        return found

    found = everything(ParallelChain)
    for name, value in everything(GaussianChain).items():
        if name in found:
            torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
        else:
            assert not value.any(), name


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
