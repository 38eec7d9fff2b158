"""The shorter way from a model to its chain against its program: the same numbers, gradients and beliefs."""

import functools

import pytest
import torch
from support.grids import grid
from support.model_cases import DISCRETE, LENGTHS

from pplseq import HMM, LDS
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.models.base import AT_POINT, said

close = torch.testing.assert_close
CASES = {name: case for name, case in DISCRETE.items() if case.model()._is_one_chain}
CASES |= {"hmm, priors": DISCRETE["hmm, vectors"]}


def both(model, *args, **known):
    """The chain that the program leaves, and the one built without it; with the same states left out."""
    found = []
    for way in ("program", "direct"):
        torch.manual_seed(3)
        with said(AT_POINT):
            if way == "program":
                model(*args, **known)
                found.append(model.chain)
            else:
                found.append(model._direct_chain(*args, **known))
    return found


def made(name):
    case = CASES[name]
    model, x = case.model(), case.data()
    if name == "hmm, priors":
        model = HMM(3, num_features=2, priors=True)
    return case, model, x


@grid({"how": ["plain", "missing", "states known"], "name": CASES})
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
    assert model._direct_chain(x, LENGTHS, **case.part()) is None
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
    assert own._direct_chain(x) is None and not own._is_one_chain
    close(own.log_prob(x), plain.log_prob(x))
    vars(plain)["model"] = lambda *args, **known: own.model(*args, **known)  # of this one object
    assert plain._direct_chain(x) is None


class Wrapped(HMM):
    @functools.wraps(HMM.model)
    def model(self, x=None, *args, **known):
        return HMM.model(self, x.flip(1), *args, **known)


class OwnCall(HMM):
    def forward(self, x, *args, **known):
        return super().forward(x.flip(1), *args, **known)


class Messenger(BlockedEnum):
    pass


class OwnMessenger(HMM):
    messenger = Messenger


@pytest.mark.parametrize("kind", [Wrapped, OwnCall, OwnMessenger])
def test_what_a_subclass_does_beside_the_program_is_done(kind):
    _, plain, x = made("hmm")
    own = kind(3, 6)
    own.load_state_dict(plain.state_dict())
    assert own._direct_chain(x) is None
    close(own.log_prob(x), plain.log_prob(x if kind is OwnMessenger else x.flip(1)))


def test_distributions_of_ones_own_are_those_of_an_lds_too():
    class Louder(LDS):
        def specs(self, *args):
            transition, emission = super().specs(*args)
            return transition, lambda z, t: LinearGaussian(z, 2 * self.emission, emission(z, t).noise)

    plain, x = LDS(2, 3), torch.randn(2, 6, 3, dtype=torch.float64)
    own = Louder(2, 3)
    own.load_state_dict(plain.state_dict())
    expected = LDS(2, 3)
    expected.load_state_dict(plain.state_dict() | {"emission": 2 * plain.emission.detach()})
    assert own._direct_chain(x) is None and plain._direct_chain(x) is not None
    close(own.log_prob(x), expected.log_prob(x))


def test_hooks_are_called_and_programs_of_other_objects_are_run():
    _, plain, x = made("hmm")
    expected = plain.log_prob(x.flip(1))
    hook = plain.register_forward_pre_hook(lambda module, args: (args[0].flip(1), *args[1:]))
    close(plain.log_prob(x), expected)
    hook.remove()
    assert plain._is_one_chain
    other = made("hmm")[1]
    with torch.no_grad():
        other.transition_logits.add_(torch.randn(3, 3))
    plain.model = other.model
    assert not plain._is_one_chain
    close(plain.log_prob(x), other.log_prob(x))


def test_other_programs_have_none():
    for case in (case for name, case in DISCRETE.items() if name not in CASES):
        assert case.model()._direct_chain(case.data(), **case.part()) is None
