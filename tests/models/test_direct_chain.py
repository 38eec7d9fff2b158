"""The shorter way from a model to its chain against its program: the same numbers, gradients and beliefs."""

import pytest
import torch
from support.model_cases import DISCRETE, LENGTHS

from pplseq import HMM

close = torch.testing.assert_close
CASES = {name: case for name, case in DISCRETE.items() if case.model().is_one_chain} | {"hmm, priors": DISCRETE["hmm, vectors"]}


def both(model, *args, **known):
    """The chain that the program leaves, and the one built without it; with the same states left out."""
    found = []
    for way in ("program", "direct"):
        torch.manual_seed(3)
        with model._at_point():
            if way == "program":
                model(*args, **known)
                found.append(model.chain)
            else:
                found.append(model.direct_chain(*args, **known))
    return found


def made(name):
    case = CASES[name]
    model, x = case.model(), case.data()
    if name == "hmm, priors":
        model = HMM(3, num_features=2, priors=True)
    return case, model, x


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["plain", "missing", "states known"])
def test_same_chain_as_the_programs(name, how):
    """Over ragged rows, and a second segment behind the first."""
    case, model, x = made(name)
    known = dict(case.part())
    if how == "missing":
        x = x.clone()
        x[0, 2] = x[3, 5] = torch.nan if x.is_floating_point() else -1
        if x.is_floating_point() and name.startswith("iohmm"):
            x[2, 0, 1] = torch.nan  # in part
    if how == "states known":
        known["states"] = torch.full(x.shape[:2], -1)
        known["states"][0, 0] = 0
    start = None
    for lengths in (None, LENGTHS):
        program, direct = both(model.train(), x, lengths, start, **known)
        assert type(program) is type(direct) and program.check == direct.check
        close(direct.log_prob(), program.log_prob(), rtol=1e-12, atol=1e-12)
        grads = [
            torch.autograd.grad(chain.log_prob().sum(), list(model.parameters()), allow_unused=True, retain_graph=True)
            for chain in (program, direct)
        ]
        for one, other in zip(*grads, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                close(one, other, rtol=1e-12, atol=1e-12)
        for one, other in zip(program.filtered(), direct.filtered(), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                close(one, other, rtol=1e-12, atol=1e-12)
        start = direct.filtered().detach()


@pytest.mark.parametrize("name", ["hmm", "vlhmm, reset", "iohmm"])
def test_questions_take_the_shorter_way(name, monkeypatch):
    case, model, x = made(name)
    expected = model.posterior(x, LENGTHS, **case.part()).marginals().probs
    monkeypatch.setattr(type(model), "vectorize", False)  # step by step, as it is written
    assert model.direct_chain(x, LENGTHS, **case.part()) is None
    close(model.posterior(x, LENGTHS, **case.part()).marginals().probs, expected)
    monkeypatch.undo()
    monkeypatch.setattr(type(model), "forward", None)
    close(model.posterior(x, LENGTHS, **case.part()).marginals().probs, expected)
    assert model.training  # as before


def test_parts_of_ones_own_count():
    class Sharper(HMM):
        def specs(self):
            transition, emission = super().specs()
            return transition, type(emission)((2 * emission.log_probs).log_softmax(-1))

    _, plain, x = made("hmm")
    own = Sharper(3, 6)
    own.load_state_dict(plain.state_dict())
    program, direct = both(own, x)
    assert torch.equal(program.log_prob(), direct.log_prob())
    assert not torch.allclose(own.log_prob(x), plain.log_prob(x))


def test_a_program_of_ones_own_is_run():
    class Same(HMM):
        def model(self, x=None, lengths=None, start=None, **known):
            return super().model(x, lengths, start, **known)

    _, plain, x = made("hmm")
    own = Same(3, 6)
    own.load_state_dict(plain.state_dict())
    assert own.direct_chain(x) is None and not own.is_one_chain
    close(own.log_prob(x), plain.log_prob(x))
    vars(plain)["model"] = lambda *args, **known: own.model(*args, **known)  # of this one object
    assert plain.direct_chain(x) is None


def test_other_programs_have_none():
    for case in (case for name, case in DISCRETE.items() if name not in CASES):
        assert case.model().direct_chain(case.data(), **case.part()) is None
