"""Programs with marked sites, as they are, under our ELBO: the loss and the gradients of Pyro's."""

import functools
import itertools
import math
import threading
import types
import warnings
from contextvars import ContextVar, copy_context

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, TraceEnum_ELBO, infer_discrete
from pyro.infer.autoguide import AutoLaplaceApproximation, AutoMultivariateNormal, AutoNormal
from support.grids import grid
from support.marked_programs import F64, LENGTHS, MARKED, PROGRAMS, B, D, K, T, hmm, notes, table
from torch.distributions import biject_to

import pplseq
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.infer.programs.states import infer_states


def loss_and_gradients(elbo, model, *args, guide=no_guide, seed=0, **kwargs):
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    loss = elbo(max_plate_nesting=2, strict_enumeration_warning=False).loss_and_grads(model, guide, *args, **kwargs)
    store = pyro.get_param_store()
    return loss, {name: leaf.grad for name, leaf in store._params.items()}


def assert_same(model, *args, **kwargs):
    expected, wanted = loss_and_gradients(TraceEnum_ELBO, model, *args, **kwargs)
    loss, found = loss_and_gradients(TraceBlockedEnum_ELBO, model, *args, **kwargs)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert found.keys() == wanted.keys() and found
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-10 * float(gradient.abs().max()), msg=name)


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_loss_and_gradients_as_pyro(name):
    assert_same(PROGRAMS[name], notes())


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
def test_subsampled_rows():
    assert_same(hmm, notes(), batch_size=2, seed=4)


# ------------------------------------------------------------------------------------------------ guides and handlers
@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@grid({"site": ["w_0", "x_1"], "enumerated": [True, False]})
def test_guides_that_know_some_states(site, enumerated):
    """The guide's enumeration or draw goes to Pyro's own estimator, with what the model enumerates."""

    def guide(y, lengths=None):
        size = 2 if site == "w_0" else K
        with pyro.plate("rows", B, dim=-2):
            pyro.sample(site, dist.Categorical(table("q", size)), infer=MARKED if enumerated else {})

    assert_same(PROGRAMS["factorial"], notes(), guide=guide)


def test_a_guide_for_a_state_that_others_depend_on_alone():
    """A sampled first cause: the chains behind it are summed out given its value."""

    def guide(y, lengths=None):
        pyro.sample("kind", dist.Categorical(table("q", 2)), infer=MARKED)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(PROGRAMS["switched"], notes(), guide=guide)


def log_density(model, *args):
    with torch.no_grad(), poutine.trace() as trace:
        model(*args)
    return float(trace.trace.log_prob_sum())


@pytest.mark.parametrize("handler", [pyro.condition, poutine.do], ids=["condition", "do"])
def test_states_set_by_handlers(handler):
    pyro.clear_param_store()
    y, value = notes(), torch.tensor([[1], [0], [2]])
    fixed = handler(hmm, data={"x_2": value})
    if handler is pyro.condition:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = TraceEnum_ELBO(max_plate_nesting=2).loss(fixed, no_guide, y)
    else:  # where Pyro gives up; by hand
        expected = TraceBlockedEnum_ELBO().loss(hmm, no_guide, y, fixed=(2, value))
    assert TraceBlockedEnum_ELBO().loss(fixed, no_guide, y) == pytest.approx(expected, rel=1e-10)
    assert -log_density(handler(BlockedEnum()(hmm), data={"x_2": value}), y) == pytest.approx(expected, rel=1e-10)


def test_an_intervention_on_what_nothing_reads_changes_nothing():
    """poutine.do splits a site: what was observed stays observed, and only what comes after reads the new value."""
    y = notes()
    expected = TraceBlockedEnum_ELBO().loss(hmm, no_guide, y)
    for site in ("y_0", "y_3"):
        changed = poutine.do(hmm, data={site: torch.ones(B, D, dtype=F64)})
        assert TraceBlockedEnum_ELBO().loss(changed, no_guide, y) == pytest.approx(expected, rel=1e-10)


def test_outside_emission_conditioned():
    y = notes()
    expected = TraceBlockedEnum_ELBO().loss(hmm, no_guide, y)

    def without(y):
        trans, emit = table("trans", K, K), table("emit", K, D, event=0)
        with pyro.plate("rows", B, dim=-2):
            x = 0
            for t in pyro.markov(range(T)):
                with poutine.mask(mask=(t < LENGTHS).unsqueeze(-1)):
                    x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                    with pyro.plate(f"tones_{t}", D, dim=-1):
                        pyro.sample(f"y_{t}", dist.Bernoulli(emit[x.squeeze(-1)]))

    data = {f"y_{t}": y[:, t] for t in range(T)}
    assert TraceBlockedEnum_ELBO().loss(pyro.condition(without, data=data), no_guide, y) == pytest.approx(expected)
    assert -log_density(pyro.condition(BlockedEnum()(without), data=data), y) == pytest.approx(expected)
    with pytest.raises(ValueError, match="site 'y_0' is not observed and depends on the enumerated sites 'x_0'"):
        TraceBlockedEnum_ELBO().loss(without, no_guide, y)


# ------------------------------------------------------------------------------------------------ states
def joint(model, trace, y):
    """log p(states, y) of a run."""
    states = {name: node["value"] for name, node in trace.nodes.items() if name in ("kind", "own", "root", "child", "leaf")
              or name[:2] in ("w_", "x_")}  # fmt: skip
    return log_density(pyro.condition(model, data=states), y)


PYRO_CANNOT = ("discrete_hmm", "one_hot_states")  # no states; no states with events


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in PYRO_CANNOT])
def test_best_states_are_those_of_pyro(name):
    pyro.clear_param_store()
    model = functools.partial(PROGRAMS[name], lengths=torch.full((B,), T))
    ours = poutine.trace(infer_states(model)).get_trace(notes())
    theirs = poutine.trace(infer_discrete(model, first_available_dim=-3, temperature=0)).get_trace(notes())
    assert joint(model, ours, notes()) == pytest.approx(joint(model, theirs, notes()), rel=1e-10)


def test_drawn_states_follow_the_posterior():
    pyro.clear_param_store()
    y = notes()
    draw, counts = infer_states(PROGRAMS["second_order"], mode="sample"), torch.zeros(K, dtype=F64)
    for _ in range(60):
        with poutine.trace() as trace:
            draw(y)
        counts[trace.trace.nodes["x_2"]["value"][0, 0]] += 1
    elbo = TraceEnum_ELBO(max_plate_nesting=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        law = elbo.compute_marginals(PROGRAMS["second_order"], no_guide, y)["x_2"].probs[0, 0].detach()
    assert ((counts / 60 - law).abs() < 5 * 0.5 / 60**0.5).all()


# ------------------------------------------------------------------------------------------------ other inference
def with_priors(y):
    """A hidden Markov model whose tables are latent."""
    trans = pyro.sample("trans", dist.Dirichlet(torch.ones(2, 2, dtype=F64)).to_event(1))
    emit = pyro.sample("emit", dist.Beta(*torch.ones(2, 2, D, dtype=F64)).to_event(2))
    with pyro.plate("rows", B, dim=-1):
        x = 0
        for t in pyro.markov(range(3)):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            pyro.sample(f"y_{t}", dist.Bernoulli(emit[x]).to_event(1), obs=y[:, t])


@pytest.mark.parametrize("guide", [AutoNormal, AutoLaplaceApproximation, AutoMultivariateNormal])
def test_automatic_guides(guide):
    model = BlockedEnum()(with_priors)
    auto = guide(model)
    svi = SVI(with_priors, auto, pyro.optim.Adam({"lr": 0.1}), TraceBlockedEnum_ELBO())
    losses = [svi.step(notes()) for _ in range(12)]
    assert losses[-1] < losses[0]
    if guide is AutoLaplaceApproximation:
        loc, covariance = auto.loc.detach(), auto.laplace_approximation(notes()).get_posterior().covariance_matrix
        potential = _potential(auto, loc)
        assert torch.allclose(torch.linalg.inv(covariance), torch.autograd.functional.hessian(potential, loc), rtol=1e-6)


def _potential(auto, loc):
    elbo = TraceEnum_ELBO(max_plate_nesting=1)

    def potential(at):
        sites, total = {}, 0.0
        for site, value in auto._unpack_latent(at):
            law = biject_to(site["fn"].support)
            sites[site["name"]] = law(value)
            total = total + law.log_abs_det_jacobian(value, law(value)).sum()
        fixed = pyro.condition(with_priors, data=sites)
        return elbo.differentiable_loss(fixed, no_guide, notes()) - total

    return potential


def test_hamiltonian_monte_carlo_and_prediction():
    pyro.set_rng_seed(2)
    kernel = NUTS(BlockedEnum()(with_priors), step_size=0.1, adapt_step_size=False, max_tree_depth=2)
    chain = MCMC(kernel, num_samples=3, warmup_steps=0, disable_progbar=True)
    chain.run(notes())
    samples = chain.get_samples()
    assert samples["trans"].shape == (3, 2, 2) and len(set(samples["emit"][:, 0, 0].tolist())) > 1
    states = Predictive(infer_states(with_priors), samples, return_sites=["x_0", "x_2"])(notes())
    assert states["x_2"].shape == (3, B)
    drawn = Predictive(with_priors, samples, return_sites=["x_0"])(notes())
    assert drawn["x_0"].shape == (3, B)


def test_a_long_program():
    """Length is no limit: dimensions are used again, and one scan goes along time."""
    pyro.clear_param_store()
    y = notes()[:, :1].expand(B, 400, D)
    factorial = functools.partial(PROGRAMS["factorial"], lengths=torch.tensor([400, 1, 300]))
    assert TraceBlockedEnum_ELBO(max_plate_nesting=2).loss(factorial, no_guide, y) < 400 * 2 * D


# ------------------------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize("loop", [pyro.markov, pplseq.markov, list])
def test_steps_that_look_further_back_than_the_loop_says(loop):
    """Pyro would take another state for the one that is meant, silently; what comes behind a loop may read its states."""
    moves, means = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=F64), torch.tensor([-1.0, 1.0], dtype=F64)
    y = notes()[0, :, 0]

    def two_back(loop):
        states = [torch.tensor(0)] * 2
        for t in loop(range(4)):
            states.append(pyro.sample(f"x_{t}", dist.Categorical(moves[states[-1]]), infer=MARKED))
            pyro.sample(f"y_{t}", dist.Normal(means[states[-3]], 1.0), obs=y[t])

    def count(loop):
        x = number = torch.tensor(0)
        for t in loop(range(4)):
            x = pyro.sample(f"x_{t}", dist.Categorical(moves[x]), infer=MARKED)
            number = number + x
            pyro.sample(f"y_{t}", dist.Normal(number.to(F64), 1.0), obs=y[t])

    def behind(loop):
        states = [torch.tensor(0)]
        for t in loop(range(4)):
            states.append(pyro.sample(f"x_{t}", dist.Categorical(moves[states[-1]]), infer=MARKED))
        for t in loop(range(4)):
            pyro.sample(f"y_{t}", dist.Normal(means[states[t]], 1.0), obs=y[t])
        z = pyro.sample("z", dist.Categorical(moves[states[-1]]), infer=MARKED)
        pyro.sample("y", dist.Normal(means[z] + sum(means[x] for x in states), 1.0), obs=y[0])

    for program in (two_back, count, behind):
        nodes = poutine.trace(program).get_trace(list).nodes.items()
        names = [name for name, node in nodes if node["type"] == "sample" and not node["is_observed"]]
        total = []
        for values in itertools.product((0, 1), repeat=len(names)):
            data = dict(zip(names, map(torch.tensor, values), strict=True))
            total.append(poutine.trace(poutine.condition(program, data=data)).get_trace(list).log_prob_sum())
        wanted = -float(torch.stack(total).logsumexp(0))
        for elbo in (TraceBlockedEnum_ELBO(), TraceBlockedEnum_ELBO(max_plate_nesting=0)):
            assert elbo.loss(program, no_guide, loop) == pytest.approx(wanted), program.__name__


class Kept:
    """What a program may hold a value in."""

    value: torch.Tensor


class Slot:
    __slots__ = ("value",)

    def get(self):
        return self.value


GLOBAL = Kept()  # of a module: no variable of the program
WAYS_TO_HOLD = (
    "state", "value", "list", "attribute", "slot", "closure", "partial", "method", "global", "helper", "module", "class",
    "function", "iterator", "generator", "context variable", "thread's own", "context",
)  # fmt: skip


def started(value):
    def later():
        yield
        yield value

    found = later()
    next(found)
    return found


def keep_away(value):
    """A helper that is not running while the loop is; what it sets is named by no code but its own."""
    KEPT_AWAY["first"] = value


def bring_back():
    return KEPT_AWAY["first"]


KEPT_AWAY: dict = {}
IN_CONTEXT: ContextVar = ContextVar("what a program keeps")
OF_THREAD = threading.local()
away = types.ModuleType("away")


@pytest.mark.parametrize("length", [13, 14, 60])
@pytest.mark.parametrize("held", WAYS_TO_HOLD)
def test_the_first_state_of_a_long_loop(held, length):
    """As long as the program holds a state, or what it computed from it, the state's dimension is its own."""
    moves = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=F64)
    for place in (Kept, GLOBAL, away, keep_away, OF_THREAD):  # what another case left would be seen in the place of this one's
        if "value" in vars(place):
            del place.value
    KEPT_AWAY.clear()
    IN_CONTEXT.set(None)

    def hold(value):
        if held == "list":
            return {"all": [value]}, lambda box: box["all"][0]
        if held in ("iterator", "generator"):
            return (itertools.repeat(value) if held == "iterator" else started(value)), next
        if held in ("attribute", "global", "class"):
            box = {"attribute": Kept(), "global": GLOBAL, "class": Kept}[held]
            box.value = value
            return (box if held == "attribute" else None), lambda box: (box or (GLOBAL if held == "global" else Kept)).value
        if held == "context variable":
            IN_CONTEXT.set([value])
            return None, lambda _: IN_CONTEXT.get()[0]
        if held == "context":
            context = copy_context()
            context.run(IN_CONTEXT.set, [value])
            return context, lambda box: box[IN_CONTEXT][0]
        if held == "thread's own":
            OF_THREAD.value = value
            return None, lambda _: OF_THREAD.value
        if held == "helper":
            keep_away(value)
            return None, lambda _: bring_back()
        if held == "module":
            away.value = value
            return None, lambda _: away.value
        if held == "function":
            keep_away.value = value
            return None, lambda _: keep_away.value
        if held in ("slot", "method"):
            box = Slot()
            box.value = value
            return (box, lambda box: box.value) if held == "slot" else (box.get, lambda get: get())
        if held == "partial":
            return functools.partial(lambda value: value, value), lambda get: get()
        if held == "closure":
            return (lambda: value), lambda get: get()
        return value, lambda value: value

    def program():
        x, box, get = torch.tensor(0), None, None
        for t in pyro.markov(range(length)):
            x = pyro.sample(f"x_{t}", dist.Categorical(moves[x]), infer=MARKED)
            if t == 0:
                box, get = hold(x if held == "state" else x.to(F64))
        pyro.factor("tie", (get(box) == x).to(F64))

    power = torch.linalg.matrix_power(moves, length - 1)
    wanted = (moves[0].unsqueeze(1) * power * torch.tensor([[math.e, 1.0], [1.0, math.e]], dtype=F64)).sum().log()
    assert -TraceBlockedEnum_ELBO().loss(program, no_guide) == pytest.approx(float(wanted))


def test_loops_of_every_form():
    """``markov`` as a context manager, as a decorator, with ``keep``; long ones too."""
    moves, means = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=F64), torch.tensor([-1.0, 1.0], dtype=F64)
    length = 70

    def step(t, x):
        x = pyro.sample(f"x_{t}", dist.Categorical(moves[x]), infer=MARKED)
        pyro.sample(f"y_{t}", dist.Normal(means[x], 1.0), obs=torch.tensor(0.1 * (t % 7), dtype=F64))
        return x

    def looped(markov, **options):
        x = torch.tensor(0)
        for t in markov(range(length), **options):
            x = step(t, x)

    def entered(markov):
        x, context = torch.tensor(0), markov()
        for t in range(length):
            with context:
                x = step(t, x)

    def decorated(markov):
        x, one = torch.tensor(0), markov(step)
        for t in range(length):
            x = one(t, x)

    wanted = TraceEnum_ELBO(max_plate_nesting=0).loss(looped, no_guide, pyro.markov)
    for markov in (pyro.markov, pplseq.markov):
        for program, options in ((looped, {}), (looped, {"keep": True}), (entered, {}), (decorated, {})):
            found = TraceBlockedEnum_ELBO(max_plate_nesting=0).loss(program, no_guide, markov, **options)
            assert found == pytest.approx(wanted), program.__name__

    with pytest.raises(ValueError, match="site 'x_58'.*write loops over time"):
        TraceBlockedEnum_ELBO(max_plate_nesting=0).loss(looped, no_guide, list)


def test_tables_too_large_are_refused_by_name():
    def model(y):
        states = [pyro.sample(f"x_{k}", dist.Categorical(torch.ones(4, dtype=F64) / 4), infer=MARKED) for k in range(20)]
        for k, (one, two) in enumerate(itertools.combinations(states, 2)):
            pyro.factor(f"f_{k}", (one == two).to(F64))

    with pytest.raises(ValueError, match="'x_0', 'x_1'.* would have to be enumerated together"):
        with BlockedEnum():
            model(notes())


def test_scales_must_agree():
    def model(y):
        x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.3, dtype=F64)), infer=MARKED)
        with poutine.scale(scale=2.0):
            pyro.sample("y", dist.Normal(x, 1.0), obs=y[0, 0, 0])

    with pytest.raises(ValueError, match="site 'y' has scale 2.0, but 'x', with which it hangs together, has 1.0"):
        TraceBlockedEnum_ELBO().loss(model, no_guide, notes())
