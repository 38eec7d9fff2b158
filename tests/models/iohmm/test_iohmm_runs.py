"""A fit of an input-output HMM as a run on disk: interrupted anywhere, it comes to the same numbers."""

import pytest
import torch

from pplseq.models import IOHMM
from pplseq.models.iohmm.restarts.em import EMRun, RestartPriors
from pplseq.models.iohmm.restarts.gradient import SGDRun
from pplseq.models.iohmm.restarts.history import RestartBlock

BLOCKS = [RestartBlock(3), RestartBlock(2, concentration=0.4, prior=1.5, prior_iterations=4)]
HELD_OUT = {"x": torch.arange(30).reshape(3, 10) % 7 % 2, "inputs": torch.arange(30).reshape(3, 10) % 3}
FITS = {
    "em": (dict(num_symbols=3), dict(num_restarts=BLOCKS, max_iterations=8)),
    "em of layers": (dict(num_symbols=3, hidden=(3,)), dict(num_restarts=3, max_iterations=6)),
    "gem of vectors": (
        dict(num_symbols=3, outputs="gaussian", mealy=True), dict(method="gem", num_restarts=3, max_iterations=6),
    ),
    "sgd": (dict(num_symbols=3), dict(method="sgd", num_restarts=3, num_steps=9, batch_size=4)),
    "em, held out": (dict(num_symbols=3), dict(num_restarts=4, max_iterations=12, validation=HELD_OUT, early_stop=3)),
    "sgd, held out": (dict(num_symbols=3), dict(method="sgd", num_restarts=3, num_steps=45, validation=HELD_OUT, early_stop=1)),
}  # fmt: skip


def data(options):
    generator = torch.Generator().manual_seed(0)
    u = torch.randint(3, (10, 7), generator=generator)
    if options.get("outputs") == "gaussian":
        return torch.randn(10, 7, 2, generator=generator).double() + u.unsqueeze(-1), u
    return torch.randint(2, (10, 7), generator=generator), u


@pytest.mark.parametrize(("name", "after"), [*zip(FITS, [3, 3, 3, 3, 9, 25], strict=True), ("em", 0)])
def test_interrupted_and_resumed(name, after, tmp_path, monkeypatch):
    options, fit = FITS[name]
    x, u = data(options)
    monkeypatch.setattr("pplseq.models.iohmm.fit.CELLS", 500)  # two groups of restarts at least, in most of the cases
    model = IOHMM(2, num_outputs=2, **options)
    whole = model.fit(x, inputs=u, seed=3, **fit).state_dict()
    whole = {key: value.clone() for key, value in whole.items()}
    expected = model.history

    run = SGDRun if fit.get("method") == "sgd" else EMRun
    step, taken = run.step, []

    def interrupted(self):
        if len(taken) == after + 1:
            raise KeyboardInterrupt
        taken.append(1)
        return step(self)

    other = IOHMM(2, num_outputs=2, **options)
    with monkeypatch.context() as patch:
        patch.setattr(run, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            # every step is kept: a process that is killed has the last one
            patch.setattr("pplseq.runs.loop._Loop.__init__", saving_always(patch))
            other.fit(x, inputs=u, seed=3, folder=tmp_path / "run", **fit)
    assert IOHMM.load(tmp_path / "run" / "last").num_states == 2
    other = IOHMM(2, num_outputs=2, **options)
    other.fit(x, inputs=u, seed=99, folder=tmp_path / "run", resume=True, **fit)
    for key, value in other.state_dict().items():
        assert torch.equal(value, whole[key]), key
    assert other.history.log_likelihoods == expected.log_likelihoods and other.history.validations == expected.validations
    assert torch.equal(other.history.restarts.trace.nan_to_num(1.0), expected.restarts.trace.nan_to_num(1.0))
    best = IOHMM.load(tmp_path / "run" / "best")
    assert best.score(x, inputs=u) == model.score(x, inputs=u)
    # a finished run stays what it is
    again = IOHMM(2, num_outputs=2, **options).fit(x, inputs=u, folder=tmp_path / "run", resume=True, **fit)
    assert again.score(x, inputs=u) == model.score(x, inputs=u)


def saving_always(patch):
    from pplseq.runs.loop import _Loop

    init = _Loop.__init__

    def with_every_step(self, *arguments):
        init(self, *arguments)
        self.checkpoint_interval = -1.0

    return with_every_step


@pytest.mark.parametrize("method", ["em", "sgd"])
def test_time_that_is_over(method, tmp_path, monkeypatch):
    x, u = data({})
    model = IOHMM(2, num_symbols=3, num_outputs=2)
    monkeypatch.setattr(RestartPriors, "settled", lambda self, iteration, restarts: torch.zeros(len(restarts)).bool())
    steps = {"em": "max_iterations", "sgd": "num_steps"}[method]
    model.fit(x, inputs=u, method=method, seed=0, num_restarts=3, max_time=0.2, folder=tmp_path / "r", **{steps: 10**6})
    found = model.history.restarts
    assert 1 <= len(found.trace) < 10**6 and len(found) == 3
    assert float(found.log_likelihoods[found.chosen]) == pytest.approx(model.score(x, inputs=u))
    with pytest.raises(ValueError, match="already holds a run"):
        model.fit(x, inputs=u, folder=tmp_path / "r")
    with pytest.raises(ValueError, match="cannot be interrupted"):
        IOHMM(2, num_symbols=3, num_outputs=2, priors=True).fit(x, inputs=u, method="svi", folder=tmp_path / "s")


def test_sizes_are_runs_of_their_own(tmp_path, monkeypatch):
    x, u = data({})
    fit = dict(inputs=u, model=dict(num_symbols=3, num_outputs=2), num_restarts=3, seed=0, max_iterations=5)
    whole = IOHMM.fit_sizes([1, 2, 3], x, **fit)
    fitted = IOHMM.fit

    def interrupted(self, *arguments, **options):
        if self.num_states == 3:
            raise KeyboardInterrupt
        return fitted(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(IOHMM, "fit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            IOHMM.fit_sizes([1, 2, 3], x, folder=tmp_path, **fit)
    assert IOHMM.load(tmp_path / "2" / "best").num_states == 2
    found = IOHMM.fit_sizes([1, 2, 3], x, folder=tmp_path, resume=True, **fit)
    assert found.history.sizes == whole.history.sizes and found.num_states == whole.num_states
