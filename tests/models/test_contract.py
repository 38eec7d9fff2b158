"""The verbs of every model: one list of models, one set of promises, each checked in value."""

import inspect
import math
from unittest.mock import create_autospec

import pytest
import torch
from pyro.infer.inspect import get_model_relations
from support.model_cases import CASES, DISCRETE, EVERYTHING, LENGTHS, ROWS, STEPS
from torch import Tensor

import pplseq
from pplseq import models
from pplseq.models.gaussian import GaussianEstimator
from pplseq.models.taggers import TAGGERS
from pplseq.models.taggers.probabilistic import ProbabilisticTagger

close = torch.testing.assert_close
VALID = torch.arange(STEPS) < LENGTHS.unsqueeze(-1)


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def offering(*verbs):
    """The cases that offer all of some verbs."""
    return pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.verbs.issuperset(verbs)])


def missing(x):
    return torch.nan if x.is_floating_point() else -1


def rows_of(x, lengths=LENGTHS):
    """The same data as a list of sequences."""
    return [row[:length] for row, length in zip(x, lengths.tolist(), strict=True)]


def known_rows(case, lengths=LENGTHS):
    return {name: rows_of(value, lengths) for name, value in case.known.items()}


def parts_of(answer):
    """The tensors of a NamedTuple, or of a tensor alone."""
    return [value for value in (answer if isinstance(answer, tuple) else (answer,)) if isinstance(value, (Tensor, list))]


# ------------------------------------------------------------------------------------------------ what there is
def test_what_asks_for_all_attributes_gets_an_answer():
    """``inspect``, mocks and completion ask for every property: one that has no answer is none (AttributeError)."""
    for model in {type(model): model for model in (case.model() for case in CASES.values())}.values():
        assert not hasattr(model, "chain") and "fit" in dict(inspect.getmembers(model))
        create_autospec(model)
        with pytest.raises(AttributeError, match="no chain yet"):
            model.chain  # noqa: B018


def test_pyro_draws_its_graph(case):
    """What ``pyro.render_model`` asks for, of all models that can be drawn from (not of a diffuse start)."""
    model = case.model()
    if isinstance(model, pplseq.StructuralModel):
        pytest.skip("states of no variance, or an infinite one, have no draws")
    found = get_model_relations(model, (case.data(),), case.known)["sample_sample"]
    for t in range(1, STEPS):
        assert found[f"z_{t}"] == [f"z_{t - 1}"] and found[f"x_{t}"] == [f"z_{t}"]


def call(verb, case, model):
    x = case.data()
    ahead = {"future_inputs": case.known["inputs"][:, :2]} if "inputs" in case.known else {}
    one = {"next_inputs": case.known["inputs"][:, 0]} if "inputs" in case.known else {}
    calls = {
        "fit": lambda: model.fit(x, **case.known, **case.fit),
        "predict_next": lambda: model.predict_next(x, **case.known, **one),
        "forecast": lambda: model.forecast(x, 2, **case.known, **ahead),
        "sample": lambda: model.sample(STEPS, ROWS, **case.known),
        "log_joint": lambda: model.log_joint(x, **case.known),
        "get_params": lambda: model.get_params(),
        "set_params": lambda: model.set_params(),
    }
    return calls.get(verb, lambda: getattr(model, verb)(x, **case.known))()


@pytest.mark.parametrize(
    "make",
    [
        lambda: pplseq.VLHMM(10**9, num_words=100),
        lambda: pplseq.VLHMM(10**7, num_words=100, parameterization="scalar"),
        lambda: pplseq.HMM(10**7, num_words=5),
        lambda: pplseq.LDS(10**7, 2),
        lambda: pplseq.IOHMM(10**7, num_inputs=1, num_outputs=2),
    ],
)
def test_a_size_beyond_the_memory_is_refused_before_anything_is_allocated(make):
    with pytest.raises(ValueError, match=r"num_states: this takes .* GB of memory, and this machine has .* GB; choose fewer"):
        make()


def test_every_registered_model_is_a_case():
    assert {case.model().name for case in CASES.values()} == {
        name for name in models.MODELS if models.MODELS[name].__module__.startswith("pplseq.")
    }


def test_a_verb_is_offered_or_is_refused_by_name(case):
    for verb in sorted(EVERYTHING):
        model = case.model()
        if verb in case.verbs:
            assert call(verb, case, model) is not None, verb
        elif verb not in case.own and hasattr(model, verb):
            with pytest.raises((NotImplementedError, TypeError, ValueError), match="sources|source_log_probs|x must"):
                call(verb, case, model)


# ------------------------------------------------------------------------------------------------ likelihood
@offering("score")
def test_a_score_is_the_sum_of_log_probs(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    total = float(model.log_prob(x, LENGTHS, **case.known).sum())
    assert model.score(x, LENGTHS, **case.known) == pytest.approx(total)
    assert model.score(rows_of(x), **known_rows(case)) == pytest.approx(total)
    assert model.score(x, LENGTHS, per_token=True, **case.known) == pytest.approx(total / int(LENGTHS.sum()))


@offering("aic", "bic")
def test_criteria_weigh_likelihood_and_parameters(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    score, number = model.score(x, **case.known), model.num_free_parameters
    if model.name == "structural":  # its criteria are those of a diffuse start
        score, number = model._criterion_terms(model._as_batch(x, **case.known), score)
    assert number > 0 and model.aic(x, **case.known) == pytest.approx(-2 * score + 2 * number)
    assert model.bic(x, **case.known) == pytest.approx(-2 * score + number * math.log(ROWS * STEPS))


# ------------------------------------------------------------------------------------------------ states
def states_of(answer, num_states):
    """(B, T, Z) probabilities over all states, or (B, T, h) means."""
    return answer.dense(num_states) if hasattr(answer, "dense") else getattr(answer, "means", answer)


@offering("filter")
def test_the_filter_of_a_prefix_is_the_prefix_of_the_filter(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    whole = states_of(model.filter(x, **case.known), model.num_states)
    part = states_of(model.filter(x[:, :3], **case.part(steps=slice(3))), model.num_states)
    assert whole.shape[:2] == (ROWS, STEPS)
    close(whole[:, :3], part)


@offering("filter", "smooth")
def test_at_the_end_nothing_is_left_to_be_smoothed(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    filtered, smoothed = model.filter(x, LENGTHS, **case.known), model.smooth(x, LENGTHS, **case.known)
    filtered, smoothed = (states_of(answer, model.num_states) for answer in (filtered, smoothed))
    last = torch.arange(ROWS), LENGTHS - 1
    close(filtered[last], smoothed[last])


@offering("smooth", "sample_states")
def test_posterior_draws_average_to_the_smoothed_states(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    draws = model.sample_states(x, 4000, LENGTHS, seed=3, **case.known)
    assert torch.equal(draws[:2], model.sample_states(x, 4000, LENGTHS, seed=3, **case.known)[:2])
    smoothed = states_of(model.smooth(x, LENGTHS, **case.known), model.num_states)
    if draws.is_floating_point():
        found = draws.mean(0)
        apart = draws[:, VALID] - found[VALID]
        spread = torch.einsum("nsi,nsj->sij", apart, apart) / len(draws)
        close(spread, model.smooth(x, LENGTHS, **case.known).covariances[VALID], rtol=0.1, atol=0.05)
    else:
        assert ((draws >= 0) == VALID).all()
        found = torch.nn.functional.one_hot(draws.clamp_min(0), model.num_states).double().mean(0)
    close(found[VALID], smoothed[VALID], rtol=0, atol=0.05)


@offering("decode", "sample_states")
def test_no_path_is_better_than_the_decoded_one(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    best = model.decode(x, LENGTHS, **case.known)
    assert best.shape[:2] == (ROWS, STEPS)
    if best.is_floating_point():  # the mode of a Gaussian is its mean
        return close(best[VALID], states_of(model.smooth(x, LENGTHS, **case.known), model.num_states)[VALID])
    assert ((best >= 0) == VALID).all()
    score = model.log_prob(x, LENGTHS, states=best, **case.known)
    assert (score <= model.log_prob(x, LENGTHS, **case.known) + 1e-9).all()
    for path in model.sample_states(x, 10, LENGTHS, seed=0, **case.known):
        assert (model.log_prob(x, LENGTHS, states=path, **case.known) <= score + 1e-9).all()


@offering("token_log_probs")
def test_steps_add_up_to_a_row(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    steps = model.token_log_probs(x, LENGTHS, **case.known)
    assert steps.shape == (ROWS, STEPS) and not steps[~VALID].any()
    close(steps.sum(1), model.log_prob(x, LENGTHS, **case.known))


@offering("entropy")
def test_entropy_is_that_of_all_paths(name):
    """Of discrete states the n best are all there are where n is large; of Gaussian ones pairs of neighbours say it."""
    case, x = CASES[name], CASES[name].data()[:, :3]
    model, known = case.model(), case.part(steps=slice(3))
    lengths = torch.tensor([3, 1, 2, 3])
    found = model.entropy(x, lengths, **known)
    if isinstance(model, GaussianEstimator):
        with pytest.raises(ValueError, match="n_best: states are real"):
            model.n_best(x, 2, lengths, **known)
        smoothed = model.smooth(x, lengths, **known).covariances
        across = model.posterior(*model._as_batch(x, lengths, **known)[:2], **known).lag_one_covariances().dense()
        for row, (length, value) in enumerate(zip(lengths.tolist(), found.tolist(), strict=True)):
            total = 0.0
            for t in range(length - 1):
                own, cross = smoothed[row, t : t + 2], across[row, t]
                pair = torch.cat([torch.cat([own[0], cross.mT], 1), torch.cat([cross, own[1]], 1)])
                total += float(pair.logdet() - (own[0].logdet() if t else 0.0)) / 2
            total = total if length > 1 else float(smoothed[row, 0].logdet()) / 2
            expected = total + length * model.num_states * (1 + math.log(2 * math.pi)) / 2
            # a seasonal part moves by one of its numbers alone: all paths have a density only where there is one step
            assert value == pytest.approx(-math.inf if model.name == "structural" and length > 1 else expected), row
        return None
    most = model.n_best(x, model.num_states**3 + 1, lengths, **known)
    assert most.states.shape == (ROWS, model.num_states**3 + 1, 3)
    assert torch.equal(most.log_probs, most.log_probs.sort(1, descending=True).values)
    close(most.log_probs.exp().sum(1), torch.ones(ROWS).double())
    close(found, torch.special.entr(most.log_probs.exp()).sum(1))
    paths = model.n_best([row[:n] for row, n in zip(x, lengths.tolist(), strict=True)], 2, **{
        name: [row[:n] for row, n in zip(value, lengths.tolist(), strict=True)] for name, value in known.items()
    })  # fmt: skip
    assert [tuple(path.shape) for path in paths.states] == [(2, n) for n in lengths.tolist()]
    close(paths.log_probs, most.log_probs[:, :2])
    if "decode" in case.verbs:
        assert torch.equal(most.states[:, 0], model.decode(x, lengths, **known))


def test_lists_in_lists_out(case):
    model, x = case.model(), case.data()
    for verb in sorted({"filter", "smooth", "decode", "token_log_probs"} & case.verbs):
        padded = parts_of(getattr(model, verb)(x, LENGTHS, **case.known))
        ragged = parts_of(getattr(model, verb)(rows_of(x), **known_rows(case)))
        for tensor, rows in zip(padded, ragged, strict=True):
            assert [len(row) for row in rows] == LENGTHS.tolist(), verb
            for row, values in enumerate(rows):
                close(values, tensor[row, : len(values)])


# ------------------------------------------------------------------------------------------------ what comes next
def joined(x, *more):
    return torch.cat([x, *(m.unsqueeze(1) for m in more)], 1)


def grid(x):
    """Values that an observation may have, (N, 2), and how much each of them stands for."""
    if bool(((x == 0) | (x == 1)).all()):
        return torch.cartesian_prod(torch.arange(2), torch.arange(2)).to(x), 1.0
    ticks = torch.arange(-12, 12.1, 0.25).to(x)
    if x.shape[-1] == 1:
        return ticks.unsqueeze(-1), 0.25
    return torch.cartesian_prod(ticks, ticks), 0.25**2


def check_against_likelihoods(case, model, x, law, gap):
    """The law of what comes ``gap`` + 1 steps behind the first four, against the ratio of the likelihoods with and without."""
    past, known = x[:, :4], case.part(steps=slice(5 + gap))
    before = model.log_prob(past, **case.part(steps=slice(4)))
    gaps = [torch.full_like(x[:, 0], missing(x))] * gap
    if model.num_words or not x.is_floating_point():
        for word in range(6):
            ratio = model.log_prob(joined(past, *gaps, torch.full((ROWS,), word)), **known) - before
            close(law.word_log_probs[:, word], ratio)
        return
    # of vectors, the moments, by adding up the density of the first row
    values, cell = grid(x)
    first = [value[:1].expand(len(values), *value.shape[1:]) for value in (past, *gaps)]
    known = {name: value[:1].expand(len(values), *value.shape[1:]) for name, value in known.items()}
    weight = (model.log_prob(joined(*first, values), **known) - before[0]).exp() * cell
    mean = weight @ values
    close(weight.sum(), torch.ones(()).double(), rtol=0, atol=1e-3)
    close(law.means[0], mean, rtol=0, atol=1e-3)
    if law.covariances is not None:
        apart = values - mean
        close(law.covariances[0], torch.einsum("n,nd,ne->de", weight, apart, apart), rtol=0, atol=1e-2)


def to_come(case, name, steps):
    return {name: case.known["inputs"][:, steps]} if case.known else {}


@offering("predict_next")
def test_the_next_step_is_the_ratio_of_two_likelihoods(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    step = model.predict_next(x[:, :4], **case.part(steps=slice(4)), **to_come(case, "next_inputs", 4))
    check_against_likelihoods(case, model, x, step, 0)


@offering("forecast")
def test_a_forecast_sums_out_what_lies_between(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    ahead = model.forecast(x[:, :4], 2, **case.part(steps=slice(4)), **to_come(case, "future_inputs", slice(4, 6)))
    for step in range(2):
        law = type(ahead)(*(None if value is None else value[:, step] for value in ahead))
        check_against_likelihoods(case, model, x, law, step)


def without_inputs(*verbs):
    names = [n for n, case in CASES.items() if case.verbs.issuperset(verbs) and not case.known]
    return pytest.mark.parametrize("name", names)


@without_inputs("predict_next", "forecast")
def test_the_first_step_of_a_forecast_is_the_next_one(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    step, ahead = model.predict_next(x, LENGTHS), model.forecast(x, 1, LENGTHS)
    for one, several in zip(parts_of(step), parts_of(ahead)[: len(parts_of(step))], strict=True):
        close(several[:, 0], one)
    ragged = model.forecast(rows_of(x), 1)
    for one, several in zip(parts_of(ragged), parts_of(ahead), strict=True):
        close(one, several)


@without_inputs("predict_next", "filter")
def test_an_empty_past(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    lengths = torch.tensor([6, 0, 4, 0])
    some, none = model.predict_next(x, lengths), model.predict_next(x[:, :0])
    for value, first in zip(parts_of(some), parts_of(none), strict=True):
        close(value[1], first[1])
        close(value[3], first[3])
    listed = model.predict_next([row[:n].tolist() for row, n in zip(x, lengths.tolist(), strict=True)])
    for value, first in zip(parts_of(listed), parts_of(some), strict=True):
        close(value, first)
    for value, whole in zip(parts_of(some), parts_of(model.predict_next(x)), strict=True):
        close(value[0], whole[0])


# ------------------------------------------------------------------------------------------------ samples
@offering("sample")
def test_samples_are_data_with_the_states_behind_them(name):
    case = CASES[name]
    model = case.model()
    drawn, again = (model.sample(STEPS, ROWS, seed=5, **case.known) for _ in range(2))
    assert drawn.x.shape[:2] == (ROWS, STEPS) and drawn.states.shape[:2] == (ROWS, STEPS)
    assert drawn.words is None and torch.equal(drawn.x, again.x) and torch.equal(drawn.states, again.states)
    assert not torch.equal(drawn.x, model.sample(STEPS, ROWS, seed=6, **case.known).x)
    assert torch.isfinite(model.log_prob(drawn.x, **case.known)).all()
    if not drawn.states.is_floating_point():  # states and observations are possible together
        assert torch.isfinite(model.log_prob(drawn.x, states=drawn.states, **case.known)).all()


def test_words_are_drawn_where_there_is_a_vocabulary():
    model = CASES["hmm"].model()
    model.vocabulary = pplseq.Vocabulary(tuple("abcdef"))
    drawn = model.sample(3, 2, seed=0)
    assert drawn.words == [["abcdef"[word] for word in row] for row in drawn.x.tolist()]


# ------------------------------------------------------------------------------------------------ fits, folders, arguments
@offering("fit", "score")
def test_a_fit_raises_the_likelihood_and_repeats_whoever_looks_on(name, capsys):
    case, x = CASES[name], CASES[name].data()
    model, again = case.model(), case.model()
    before = model.score(x, **case.known)
    assert not model.is_fitted and model.fit(x, **case.known, seed=0, **case.fit) is model
    assert model.is_fitted and model.history is not None and "fitted" in repr(model)
    after = model.score(x, **case.known)
    assert after > before
    records = []
    again.fit(x, **case.known, seed=0, progress=True, on_record=records.append, **case.fit)
    assert again.score(x, **case.known) == pytest.approx(after, abs=1e-9)
    steps = [record["step"] for record in records]
    assert steps == sorted(steps) and all("kind" in record and record["seconds"] >= 0 for record in records)
    capsys.readouterr()
    with pytest.raises(TypeError, match="on_record must be a function of a record, got 3"):
        again.fit(x, **case.known, on_record=3, **case.fit)


@offering("fit", "score")
def test_a_fit_ends_with_what_was_best_on_held_out_data(name):
    case, x, rows = CASES[name], CASES[name].data(), slice(1, 3)
    model, records = case.model(), []
    known = case.part(rows)
    held_out = {"x": x[rows], **known} if known else x[rows]
    fit = {"method": "sgd", "num_steps": 21} if case.fit.get("method") == "sgd" else case.fit
    model.fit(x, **case.known, **fit, seed=0, on_record=records.append, validation=held_out)
    values = [record["nats_per_token"] for record in records if record["kind"] == "validation"]
    assert len(values) > 1 and model.score(x[rows], **known, per_token=True) == pytest.approx(-min(values))


@offering("fit", "score")
def test_a_fit_refuses_what_it_does_not_know(name):
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    with pytest.raises((ValueError, TypeError), match="method"):
        model.fit(x, **case.known, method="guess")
    with pytest.raises((ValueError, TypeError), match="num_stepps"):
        model.fit(x, **case.known, num_stepps=3)


def test_save_and_load_give_equal_answers(case, tmp_path):
    model, x = case.model(), case.data()
    folder = model.save(tmp_path / "model")
    for loaded in (pplseq.load(folder), models.SequenceModel.load(folder), type(model).load(folder)):
        assert type(loaded) is type(model) and loaded.is_fitted and loaded.vocabulary is None
        assert loaded.config == model.config
        for name, value in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name].to(value), value), name
        close(loaded.double().log_prob(x, LENGTHS, **case.known), model.log_prob(x, LENGTHS, **case.known))


@offering("get_params", "set_params")
def test_arguments_build_the_same_model(name):
    case = CASES[name]
    model = case.model()
    params = model.get_params()
    built = type(model)(**params)
    assert str(built.get_params()) == str(params) and built.num_free_parameters == model.num_free_parameters
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert model.set_params() is model  # nothing changes: parameters stay
    for key, value in model.state_dict().items():
        close(value, before[key], rtol=0, atol=0)
    with pytest.raises(ValueError, match="no argument 'num_statse' of .*Did you mean"):
        model.set_params(num_statse=3)
    text = repr(model)
    assert text.startswith(type(model).__name__ + "(") and "not fitted" in text


@pytest.mark.parametrize("name", [name for name, case in DISCRETE.items() if not case.known])
def test_a_row_that_goes_on_starts_nowhere(name):
    """Starts are counted where sequences start, not where a belief is carried over from the segment before."""
    case, x = CASES[name], CASES[name].data()
    model = case.model()
    first = model.posterior(x[:, :2])
    begun, carried = first.expected_counts(), model.posterior(x[:, 2:], start=first.filtered()).expected_counts()
    close(begun.start.sum(), torch.tensor(float(ROWS)).to(begun.start))
    close(carried.start, torch.zeros_like(carried.start))
    close(carried.occupancy.sum(), torch.tensor(float(ROWS * (STEPS - 2))).to(carried.occupancy))


# ------------------------------------------------------------------------------------------------ one name for one thing
FIRST = {  # what may be given by position, in this order
    "fit": ["x", "lengths"], "score": ["x", "lengths"], "aic": ["x", "lengths"], "bic": ["x", "lengths"],
    "log_prob": ["x", "lengths", "start"], "posterior": ["x", "lengths", "start"], "filter": ["x", "lengths"],
    "smooth": ["x", "lengths"], "decode": ["x", "lengths"], "predict_next": ["x", "lengths"],
    "forecast": ["x", "num_steps", "lengths"], "sample": ["num_steps", "num_sequences"],
    "sample_states": ["x", "num_samples", "lengths"], "entropy": ["x", "lengths"], "token_log_probs": ["x", "lengths"],
}  # fmt: skip


def positional(function):
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize("verb", FIRST)
def test_arguments_have_the_same_names_everywhere(verb):
    for kind in {type(case.model()) for case in CASES.values()}:
        named = inspect.signature(getattr(kind, verb)).parameters
        assert positional(getattr(kind, verb)) == FIRST[verb], kind.__name__
        if verb in ("fit", "sample", "sample_states"):  # by name, or among the options that go to the estimator's own
            assert "seed" in named or "options" in named, kind.__name__
    for tagger in TAGGERS.values():  # whose observations are sentences, each as long as it is
        if issubclass(tagger, ProbabilisticTagger) and verb != "fit" and hasattr(tagger, verb):
            wanted = [name for name in FIRST[verb] if name not in ("lengths", "start")]
            assert positional(getattr(tagger, verb)) == wanted, tagger.__name__


@pytest.mark.parametrize("name", CASES)
def test_what_a_property_returns_is_a_copy(name):
    """No number that a property hands out without a gradient changes when the parameters do."""
    model = CASES[name].model()
    places = {parameter.untyped_storage().data_ptr(): own for own, parameter in model.named_parameters()}

    def tensors(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (dict, tuple, list)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from tensors(part)

    for attribute in dir(type(model)):
        if attribute.startswith("_") or not isinstance(getattr(type(model), attribute, None), property):
            continue
        try:
            value = getattr(model, attribute)
        except (AttributeError, TypeError, ValueError, KeyError, RuntimeError):  # it has no answer yet
            continue
        shared = [places.get(part.untyped_storage().data_ptr()) for part in tensors(value) if not part.requires_grad]
        assert not any(shared), f"{attribute} is {shared}"
