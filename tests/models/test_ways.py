"""Every way to an answer says what the plain way says: models by forms of data by verbs, in values and gradients.

The plain way is the one that any program takes, through torch: a class of one's own has no faster one.
"""

import copy
import math

import pytest
import torch
from support.model_cases import CASES, LENGTHS, Case, vectors, words
from support.rounding import roundings

from pplseq.kernels import compiled
from pplseq.models import HMM, IOHMM, LDS, ProductMoves

EM = {"method": "em", "max_iterations": 3}


def certain():
    """Moves and words of probability zero, none of which the pattern 0, 1, 2, 0, ... needs."""
    emission = torch.tensor([[0.5, 0.5, 0, 0, 0, 0], [0, 0.1, 0.4, 0.4, 0.1, 0], [0, 0.2, 0, 0.2, 0.3, 0.3]])
    transition = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.7, 0.0, 0.3]])
    return HMM(3, 6).set_parameters(initial=[0.3, 0.3, 0.4], transition=transition, emission=emission)


MORE = {  # what takes other ways than the cases of all contracts
    "hmm, priors": Case(lambda: HMM(3, 6, priors={"transition": 2.0, "emission": 1.5}), words, fit=EM),
    "hmm, ties": Case(lambda: HMM(3, 6, ties=[0, 1, 1]), words, fit=EM),
    "hmm, full": Case(lambda: HMM(3, num_features=2, covariance="full"), vectors, fit=EM),
    "hmm, spherical": Case(lambda: HMM(3, num_features=2, covariance="spherical"), vectors, fit=EM),
    "hmm, one state": Case(lambda: HMM(1, 6), words, fit=EM),
    "hmm, product of three": Case(lambda: HMM(num_words=6, transition=ProductMoves(1, 3, 2)), words, fit=EM),
    "hmm, one state of vectors": Case(lambda: HMM(1, num_features=2), vectors, fit=EM),
    "hmm, nine states": Case(lambda: HMM(9, 6), words, fit=EM),
    "hmm, impossible moves": Case(certain, words, fit=EM),
    "iohmm, one state": Case(
        lambda: IOHMM(1, num_inputs=2, outputs="gaussian", num_outputs=2), vectors, CASES["iohmm"].known, fit=EM
    ),
    "lds, full of states": Case(lambda: LDS(5, 2, initial="stationary"), vectors, fit=EM),
}
ALL = {name: case for name, case in (CASES | MORE).items() if not case.draws}


def gap(x):
    return x.index_put((torch.tensor(1), torch.tensor(2)), x.new_tensor(math.nan if x.is_floating_point() else -1))


FORMS = {  # of data (4, 6, ...): the data, their lengths, and which rows and steps they are
    "whole": lambda x: (x, None, slice(None), slice(None)),
    "one row": lambda x: (x[:1], None, slice(1), slice(None)),
    "one step": lambda x: (x[:, :1], torch.ones(4).long(), slice(None), slice(1)),
    "lengths": lambda x: (x, LENGTHS, slice(None), slice(None)),
    "gap": lambda x: (gap(x), None, slice(None), slice(None)),
    "gap and lengths": lambda x: (gap(x).flip(0), LENGTHS.flip(0), slice(None), slice(None)),
}
WITHOUT_GAPS = ("autoregressive hmm", "switching regression", "iohmm", "props")


def plain(model):
    other = copy.deepcopy(model)
    other.__class__ = type("Plain", (type(model),), {})
    return other


def both(name, form, dtype=torch.float64):
    case = ALL[name]
    if form.startswith("gap") and name.startswith(WITHOUT_GAPS):
        pytest.skip("its data have no gaps")
    x, lengths, rows, steps = FORMS[form](case.data())
    known = case.part(rows, steps)
    if form == "gap and lengths":
        known = {key: value.flip(0) for key, value in known.items()}
    model = case.model().to(dtype)
    model.is_fitted = True
    if x.is_floating_point():
        x = x.to(dtype)
    known = {key: value.to(dtype) if value.is_floating_point() else value for key, value in known.items()}
    return case, model, plain(model), x, lengths, known


def tensors(answer):
    if isinstance(answer, (float, int)):
        return [torch.tensor(answer, dtype=torch.float64)]
    if isinstance(answer, torch.Tensor):
        return [answer]
    parts = answer if isinstance(answer, (tuple, list)) else vars(answer).values() if hasattr(answer, "__dict__") else ()
    return [tensor for part in parts for tensor in tensors(part)]


def same(found, wanted, times, what=""):
    """Equal but for roundings: the numbers behind an answer are sums of densities of some hundred nats at most."""
    for a, b in zip(tensors(found), tensors(wanted), strict=True):
        near = roundings(b, times=times) if b.is_floating_point() else 0
        torch.testing.assert_close(a, b, rtol=0, atol=near, check_dtype=False, msg=lambda m: f"{what}: {m}")


VERBS = {
    "score": lambda m, *data, **known: m.score(*data, **known),
    "score per token": lambda m, *data, **known: m.score(*data, per_token=True, **known),
    "filter": lambda m, *data, **known: m.filter(*data, **known),
    "smooth": lambda m, *data, **known: m.smooth(*data, **known),
    "decode": lambda m, *data, **known: m.decode(*data, **known),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALL)
def test_answers(name, form):
    case, model, other, x, lengths, known = both(name, form)
    for verb, ask in VERBS.items():
        if verb.split()[0] not in case.verbs:
            continue
        found = ask(model, x, lengths, **known)
        with compiled.twins_only():
            wanted = ask(other, x, lengths, **known)
        assert tensors(wanted), f"{verb} compares nothing"
        same(found, wanted, 1e6, verb)


@pytest.mark.parametrize("form", ["whole", "gap and lengths"])
@pytest.mark.parametrize("name", ALL)
def test_answers_in_single_precision(name, form):
    _, model, other, x, lengths, known = both(name, form, torch.float32)
    found = torch.tensor(model.score(x, lengths, **known))
    known = {key: value.double() if value.is_floating_point() else value for key, value in known.items()}
    with compiled.twins_only():
        wanted = other.double().score(x.double() if x.is_floating_point() else x, lengths, **known)
    same(found, torch.tensor(wanted).float(), 128)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name, case in ALL.items() if "log_joint" in case.verbs])
def test_gradients(name, form):
    _, model, other, x, lengths, known = both(name, form)
    value = model.log_joint(x, lengths, **known)
    value.backward()
    with compiled.twins_only():
        wanted = other.log_joint(x, lengths, **known)
        wanted.backward()
    same(value, wanted, 1e6)
    for (what, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        none = torch.zeros_like(a)  # of what a step does not depend on
        same(none if a.grad is None else a.grad, none if b.grad is None else b.grad, 1e7, what)


@pytest.mark.parametrize("form", ["whole", "gap and lengths"])
@pytest.mark.parametrize("name", [name for name, case in ALL.items() if case.fit == EM])
def test_em(name, form):
    _, model, other, x, lengths, known = both(name, form)
    model.fit(x, lengths, seed=0, **EM, **known)
    with compiled.twins_only():
        other.fit(x, lengths, seed=0, **EM, **known)
    same(model.history.log_likelihoods, other.history.log_likelihoods, 1e9, "log likelihoods")
    with compiled.twins_only():  # by the plain way for both: parameters that are the same
        same(plain(model).score(x, lengths, **known), other.score(x, lengths, **known), 1e9, "score")


@pytest.mark.parametrize("name", ALL)
def test_rows_in_threads(name, monkeypatch):
    """However many cores there are, and however little there is to do."""
    alone = everything(name)
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for found, wanted, times in zip(everything(name), alone, (1e6, 1e7, 1e9), strict=True):
            same(found, wanted, times)
    finally:
        torch.set_num_threads(before)


def everything(name):
    """Answers, gradients and the likelihoods of EM, of rows of several lengths."""
    case, model, _, x, lengths, known = both(name, "lengths")
    answers = [ask(model, x, lengths, **known) for verb, ask in VERBS.items() if verb.split()[0] in case.verbs]
    gradients = []
    if "log_joint" in case.verbs:
        model.log_joint(x, lengths, **known).backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if case.fit == EM:
        model.fit(x, lengths, seed=0, **EM, **known)
        return answers, gradients, [*model.history.log_likelihoods, model.score(x, lengths, **known)]
    return answers, gradients, []
