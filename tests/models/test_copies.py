"""Pickles and copies of every model, before a fit, after it and after questions, and of every answer."""

import copy
import pickle

import numpy as np
import pytest
import torch

from pplseq import HMM, IOHMM, LDS, VLHMM, StructuralModel
from pplseq.models import SemiMarkovHMM, SwitchingRegression
from pplseq.models.parts.families import FAMILIES
from tests.support.model_cases import CASES

VERBS = (
    "score", "filter", "smooth", "decode", "forecast", "predict_next", "sample_states", "infill", "components", "reconstruct",
)  # fmt: skip
REGIME = np.arange(40) // 10 % 2
RNG = np.random.default_rng(0)
COUNTS, NUMBERS = RNG.poisson(2 + 6 * REGIME), 1 + 5 * REGIME + RNG.random(40)
BITS = (RNG.random(40) < 0.2 + 0.6 * REGIME).astype(float)
DATA = {
    "poisson": COUNTS, "binomial": COUNTS, "hurdle_poisson": COUNTS, "negative_binomial": COUNTS,
    "bernoulli": BITS, "von_mises": NUMBERS / 4, "Geometric": COUNTS,
    "Beta": NUMBERS / 10,
}  # fmt: skip


def copies(thing):
    return pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing)


def answers(model, x, **known):
    """Those of verbs that the model has for this x, and that need nothing else."""
    found = {}
    for verb in VERBS:
        ask = getattr(model, verb, None)
        try:
            found[verb] = ask(x, 2, **known) if verb == "forecast" else ask(x, **known)
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            continue
    return found


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, (tuple, list)):
        return all(map(same, one, other))
    if hasattr(one, "quantiles"):
        return same(one.quantiles(0.1), other.quantiles(0.1))
    return type(one) is type(other) and (not isinstance(one, (int, float, str)) or one == other)


def check(model, x, **known):
    told = answers(model, x, **known)
    assert "score" in told
    for answer in told.values():
        for other in copies(answer):
            assert same(answer, other)
    told.pop("sample_states", None)
    for other in copies(model):
        found = answers(other, x, **known)
        assert all(same(told[verb], found[verb]) for verb in told)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_models_and_answers(name):
    case = CASES[name]
    torch.manual_seed(0)
    model, x = case.model(), case.x()
    for other in copies(model):
        assert same(list(model.state_dict().values()), list(other.state_dict().values()))
    if "fit" in case.verbs:
        model.fit(x, **case.known, seed=0, **(case.fit | ({"num_steps": 1} if "num_steps" in case.fit else {})))
    check(model.double(), x, **case.known)
    model(x, **case.known)
    copies(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FAMILIES, "InverseGamma", "hurdle_poisson", torch.distributions.Weibull])
def test_families(name):
    model, x = HMM(2, emission=name, trials=40 if name == "binomial" else None), DATA.get(name, NUMBERS)
    copies(model)
    check(model.fit(x, seed=0, **{"max_iterations" if model.methods[0] == "em" else "num_steps": 2}), x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: (HMM(2, emission=["normal", "poisson"]), np.stack([NUMBERS, COUNTS], 1)),
        lambda: (HMM(2, emission=["categorical", "hurdle_normal"], num_levels=[40, None]), np.stack([COUNTS, NUMBERS], 1)),
        lambda: (HMM(2, num_features=2, emission="mixture"), np.stack([NUMBERS, COUNTS], 1)),
        lambda: (SemiMarkovHMM(2, emission="Gamma", max_duration=3), NUMBERS),
        lambda: (SwitchingRegression(2), NUMBERS), lambda: (LDS(1, 1), NUMBERS), lambda: (StructuralModel(cycle=True), NUMBERS),
        lambda: (IOHMM(2, num_inputs=0, outputs="poisson"), COUNTS),
    ],
)  # fmt: skip
def test_models_of_numbers(make):
    model, x = make()
    check(model.fit(x, seed=0, **{"max_iterations" if model.methods[0] == "em" else "num_steps": 2}), x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_fits_by_draws(method):
    how = {"num_steps": 3} if method == "svi" else {"num_samples": 4, "warmup_steps": 1, "max_tree_depth": 1}
    model = HMM(2, 3, priors=True).fit(COUNTS % 3, method=method, seed=0, **how)
    check(model, COUNTS % 3)
    assert copies(model)[0].history.method == method


def test_what_a_copy_remembers_is_its_own():
    """Not the numbers of the model that it was made of."""
    words = [["a", "b", "c"], ["b", "a"]] * 4
    model = VLHMM(num_states=16, hidden_size=8).fit(words, epochs=1, num_blocks=2, seed=0)
    check(model, words)
    before = model.score(words)
    for other in copies(model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        assert other.score(words) == pytest.approx(before, rel=1e-6)
