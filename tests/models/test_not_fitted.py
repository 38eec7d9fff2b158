"""Models that learned nothing say so; those that were given parameters in any way answer."""

import copy

import pytest
import torch
from support.grids import grid
from support.model_cases import AHEAD, CASES, STEPS

import pplseq
from pplseq.checks import NotFittedError
from pplseq.models import HMM, LDS, VLHMM

pytestmark = pytest.mark.usefixtures("ask_fitted_models_only")
RANDOM = {name: case for name, case in CASES.items() if name.split(",")[0] not in ("props", "streaming_hmm")}
RANDOM.pop("lds, inputs")  # parts of it are set
X = [[0, 1, 2, 3], [3, 1]]


def ask(model, case, verb):
    x, known = case.data(), case.known
    if verb == "sample":
        return model.sample(STEPS, 4, **known)
    if verb == "forecast":
        ahead = {"future_inputs": known["inputs"][:, :2]} if "inputs" in known else {}
        return model.forecast(x, 2, **known, **ahead)
    if verb == "predict_next":
        ahead = {"next_inputs": known["inputs"][:, 0]} if "inputs" in known else {}
        return model.predict_next(x, **known, **ahead)
    return getattr(model, verb)(x, **known)


@pytest.mark.parametrize("name", RANDOM)
def test_nothing_is_answered_from_a_random_start(name):
    case = RANDOM[name]
    model = case.model()
    for verb in sorted((case.verbs | AHEAD) - {"fit", "log_joint", "get_params", "set_params"}):
        with pytest.raises(NotFittedError, match="fit it, or give it parameters"):
            ask(model, case, verb)


@grid({
    "make": [lambda: HMM(2, 4), lambda: VLHMM(4, num_words=4, hidden_size=4), lambda: LDS(1, 2)],
    "fused": [False, True],  # which gives a tensor's numbers no new version
})
def test_parameters_may_come_from_anywhere(make, fused, tmp_path):
    x = X if make().name != "lds" else [torch.randn(6, 2)]

    def step(model):
        batch = model._as_batch(x)
        loss = -model.log_joint(batch.x, batch.lengths)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
        loss.backward()
        optimizer.step()
        return model

    model = make()
    assert not model.__sklearn_is_fitted__()
    model.load_state_dict(make().state_dict())
    model.score(x)
    step(make()).score(x)
    copy.deepcopy(step(make())).score(x)
    step(make()).float().double().score(x)
    model.save(tmp_path / "model")
    pplseq.load(tmp_path / "model").score(x)
    with pytest.raises(NotFittedError):
        make().double().float().score(x)


def test_products_are_of_models_that_have_learned():
    model = HMM(2, 4).fit(X, max_iterations=1, seed=0)
    for first, second in ((model, HMM(3, 4)), (HMM(3, 4), model)):
        with pytest.raises(NotFittedError, match="this HMM has random parameters"):
            first.product(second)


def test_set_and_fitted():
    tables = {"initial": [0.5, 0.5], "transition": [[0.9, 0.1], [0.2, 0.8]], "emission": [[0.1, 0.2, 0.3, 0.4], [0.25] * 4]}
    model = HMM(2, 4)
    for name, table in tables.items():  # one after the other: what is random still is named
        with pytest.raises(NotFittedError, match=rf"has random parameters \(.*{name}"):
            copy.deepcopy(model).score(X)
        model.set_parameters(**{name: table})
    assert model.score(X) == HMM(2, 4).set_parameters(**tables).score(X)
    with pytest.raises(NotFittedError, match=r"random parameters \(emission\)"):
        LDS(1, 2).set_parameters(transition=[[0.9]]).score([torch.randn(6, 2)])
    assert HMM(2, 4).fit(X, max_iterations=2).score(X) < 0
    assert HMM(2, 4).set_params(num_states=3).__sklearn_is_fitted__() is False
    with pytest.raises(NotFittedError, match="without words"):
        VLHMM(num_states=4).score(X)


def test_scikit_learn_agrees():
    validation = pytest.importorskip("sklearn.utils.validation")
    model = HMM(2, 4)
    with pytest.raises(Exception, match="not fitted"):
        validation.check_is_fitted(model)
    validation.check_is_fitted(model.fit(X, max_iterations=1))


def test_a_copy_is_no_more_fitted_than_its_model():
    with pytest.raises(NotFittedError, match="random parameters"):
        copy.deepcopy(HMM(2, num_words=3)).score([[0, 1]])
    fitted = HMM(2, num_words=3).fit([[0, 1, 2]], max_iterations=1)
    assert copy.deepcopy(fitted).score([[0, 1]]) == fitted.score([[0, 1]])


@pytest.mark.parametrize("make, names", [
    (lambda: pplseq.IOHMM(2, num_inputs=1, num_outputs=3, outputs="categorical"), "initial, transition, emission"),
    (lambda: HMM(2, num_features=1, emission="student_t"), "initial, transition, loc, scale, df"),
    (lambda: LDS(2, 1), "transition, emission"), (lambda: pplseq.StructuralModel(), "variances"),
])  # fmt: skip
def test_parameters_are_named_as_they_are_set(make, names):
    with pytest.raises(NotFittedError, match=rf"random parameters \({names}\)"):
        make()._check_fitted()


@pytest.mark.parametrize(
    "make",
    [
        lambda: pplseq.SwitchingRegression(2, duration="poisson", max_duration=4),
        lambda: pplseq.SwitchingRegression(2, duration="negative_binomial", num_phases=3),
        lambda: pplseq.ARHMM(2, 1, duration="poisson", max_duration=4),
        lambda: pplseq.SemiMarkovHMM(2, num_features=1, max_duration=4),
        lambda: HMM(2, num_features=1, graph=torch.tensor([[False, True], [True, False]])),
    ],
)
def test_what_can_only_be_one_thing_is_not_random(make):
    """The next of two regimes, when one ends, is the other: nobody has to say so."""
    model, x = make(), torch.arange(20.0, dtype=torch.float64).sin().reshape(1, -1, 1)
    told = {name: value.detach() for name, value in model.estimates().items() if name != "transition"}
    with pytest.raises(NotFittedError, match=r"random parameters \((?!.*transition)"):
        model.score(x)
    assert model.set_parameters(**told).score(x) == make().set_parameters(**told, transition=[[0, 1], [1, 0]]).score(x)
    assert torch.equal(model.estimates()["transition"].detach(), 1 - torch.eye(2, dtype=torch.float64))
