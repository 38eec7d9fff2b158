"""Sites that depend on states where the shape of their distribution does not show it, against the sum over all assignments."""

import itertools
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import transforms
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.ops.indexing import Vindex
from support.grids import grid
from support.marked_programs import F64, MARKED

import pplseq
from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.contraction import contract_states
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.infer.programs.states import infer_states

T = 3
Y = torch.tensor([0.5, 1.5, -0.2], dtype=F64)
ZERO = torch.zeros(2, dtype=F64)
TWO = torch.tensor([-1.0, 1.0], dtype=F64)


class Mine(dist.TorchDistribution):
    """A distribution of a program's own, which says nothing about its shape."""

    arg_constraints = {}
    support = dist.constraints.real

    def __init__(self, state, loc):
        self.state, self.loc = state, loc
        super().__init__(validate_args=False)

    def log_prob(self, value):
        return dist.Normal(self.loc[self.state], 1.0).log_prob(value)


class Late(transforms.Transform):
    """A shift that is computed when it is asked for."""

    domain = codomain = dist.constraints.real
    bijective = True

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def _call(self, x):
        return x + self.shift()

    def _inverse(self, y):
        return y - self.shift()

    def log_abs_det_jacobian(self, x, y):
        return torch.zeros_like(x)


def pair(value):
    return torch.stack([value, -value], -1)


def mixture(weight, means=TWO):
    return dist.MixtureSameFamily(dist.Categorical(logits=pair(weight)), dist.Normal(means, 1.0))


def late(base, shift):
    return dist.TransformedDistribution(base, [Late(shift)])


def unit(loc):
    return dist.Normal(torch.zeros_like(loc), 1.0)


# (x now, x before, class, parameter, y) -> distribution, observation, mask
LAWS = {
    "mask": lambda x, old, c, loc, y: (dist.Normal(loc[0], 1.0), y, x == 1),
    "mask of another state": lambda x, old, c, loc, y: (dist.Normal(loc[x], 1.0), y, old == 1),
    "mask of a switch": lambda x, old, c, loc, y: (dist.Normal(loc[0], 1.0), y, c == 1),
    "mask of several": lambda x, old, c, loc, y: (dist.Bernoulli(logits=loc[x]), (y > 0).to(F64), (c == 1) & (old == 0)),
    "masked": lambda x, old, c, loc, y: (dist.Normal(loc, 1.0).to_event(1).mask(x == 1), Y[:2], None),
    "weights": lambda x, old, c, loc, y: (mixture(loc[x]), y, None),
    "weights of one state, parts of another": lambda x, old, c, loc, y: (mixture(loc[old], pair(loc[x])), y, None),
    "weights of a switch": lambda x, old, c, loc, y: (mixture(loc[c]), y, x == 0),
    "mixture of vectors": lambda x, old, c, loc, y: (
        dist.MixtureSameFamily(dist.Categorical(logits=pair(loc[x])), dist.Normal(TWO.unsqueeze(-1) + Y, 1.0).to_event(1)),
        Y, None,
    ),
    "transformed mixture": lambda x, old, c, loc, y: (
        dist.TransformedDistribution(mixture(loc[x]), [transforms.ExpTransform()]), y.exp(), None,
    ),
    "masked mixture": lambda x, old, c, loc, y: (
        dist.MaskedMixture(x == 1, dist.Normal(loc[0], 1.0), dist.Normal(loc[1], 2.0)), y, None,
    ),
    "late transform": lambda x, old, c, loc, y: (late(unit(loc[0]), lambda: loc[x]), y, None),
    "late transform of another state": lambda x, old, c, loc, y: (late(dist.Normal(loc[x], 1.0), lambda: loc[old]), y, None),
    "late, masked, of events": lambda x, old, c, loc, y: (
        late(unit(loc), lambda: loc[x].unsqueeze(-1)).to_event(1).mask(old == 0), Y[:2], None,
    ),
    "its own class": lambda x, old, c, loc, y: (Mine(x, loc), y, None),
    "density of a point": lambda x, old, c, loc, y: (dist.Delta(y, log_density=loc[x]), y, None),
    "observation": lambda x, old, c, loc, y: (mixture(loc[0]), y - loc[x], None),
    "factor": lambda x, old, c, loc, y: (None, loc.sum(), x == 1),
    "chain": lambda x, old, c, loc, y: (
        dist.DiscreteHMM(ZERO, torch.stack([pair(loc[x]), -pair(loc[x])], -2).unsqueeze(-3), dist.Normal(loc, 1.0)), Y, None,
    ),
}  # fmt: skip


def program(what, loc, loop=pyro.markov, infer=MARKED, is_switch=True):
    table = torch.stack([loc.softmax(0), loc.flip(0).softmax(0)])
    c = pyro.sample("c", dist.Categorical(logits=loc), infer=infer) if is_switch else torch.tensor(1)
    x = torch.tensor(0)
    for t in loop(range(T)):
        old = x
        x = pyro.sample(f"x_{t}", dist.Categorical(table[x]), infer=infer)
        law, obs, mask = LAWS[what](x, old, c, loc, Y[t])
        with nullcontext() if mask is None else poutine.mask(mask=mask):
            if law is None:
                pyro.factor(f"y_{t}", obs)
            else:
                pyro.sample(f"y_{t}", law, obs=obs)
        del old


def truth(run, names):
    """The loss, by every assignment of the states on its own."""
    total = []
    for values in itertools.product((0, 1), repeat=len(names)):
        data = {name: torch.tensor(value) for name, value in zip(names, values, strict=True)}
        total.append(poutine.trace(poutine.condition(run, data=data)).get_trace().log_prob_sum())
    return -torch.stack(total).logsumexp(0)


def compare(found, wanted, leaf):
    torch.testing.assert_close(found.squeeze(), wanted)
    torch.testing.assert_close(torch.autograd.grad(found, leaf), torch.autograd.grad(wanted, leaf, retain_graph=True))


@pytest.fixture
def loc():
    return torch.tensor([0.3, -1.0], dtype=F64, requires_grad=True)


@grid({
    "what": LAWS,
    "nesting, loop": [(0, list), (1, pyro.markov), (None, pyro.markov), (2, pplseq.markov), (None, pplseq.markov)],
}, times=2)
def test_marked_sites(what, loc, nesting, loop):
    wanted = truth(lambda: program(what, loc), ["c", *(f"x_{t}" for t in range(T))])
    elbo = TraceBlockedEnum_ELBO() if nesting is None else TraceBlockedEnum_ELBO(max_plate_nesting=nesting)
    compare(elbo.differentiable_loss(program, no_guide, what, loc, loop), wanted, loc)


@pytest.mark.parametrize("what", [what for what in LAWS if "switch" not in what and "several" not in what])
def test_states_with_a_support(what, loc):
    infer = {"support": torch.tensor([0, 1])}

    def run():
        return program(what, loc, infer=infer, is_switch=False)

    wanted = truth(run, [f"x_{t}" for t in range(T)])
    compare(-poutine.trace(BlockedEnum()(run)).get_trace().log_prob_sum(), wanted, loc)


@pytest.mark.parametrize("what", LAWS)
def test_contraction(what, loc):
    wanted = truth(lambda: program(what, loc), ["c", *(f"x_{t}" for t in range(T))])
    compare(-contract_states(lambda: program(what, loc)).log_prob, wanted, loc)


@pytest.mark.parametrize("what", ["mask of a switch", "weights", "late transform"])
def test_smoothed_and_best_states(what, loc):
    loc = loc.detach()
    names = [f"x_{t}" for t in range(T)]

    def run():
        return program(what, loc, is_switch=what == "mask of a switch")

    names = ["c", *names] if what == "mask of a switch" else names
    scores = {}
    for values in itertools.product((0, 1), repeat=len(names)):
        data = {name: torch.tensor(value) for name, value in zip(names, values, strict=True)}
        scores[values] = poutine.trace(poutine.condition(run, data=data)).get_trace().log_prob_sum()
    found = poutine.trace(infer_states(run)).get_trace()
    best = max(scores, key=scores.__getitem__)
    assert tuple(int(found.nodes[name]["value"]) for name in names) == best
    if what != "mask of a switch":
        with BlockedEnum() as posterior:
            run()
        smoothed = posterior.chains["x_0"].marginal("x_0")
        weights = torch.stack(list(scores.values())).softmax(0)
        every = torch.tensor(list(scores))
        torch.testing.assert_close(smoothed[:, 1], (weights.unsqueeze(-1) * every).sum(0))


def test_rows_and_masks_of_states():
    """Masks around states too, in plates: as Pyro, whose states keep their distribution."""

    def model(loop):
        table, means = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=F64), TWO
        with pyro.plate("rows", 2, dim=-2):
            c = pyro.sample("c", dist.Categorical(torch.tensor([0.4, 0.6], dtype=F64)), infer=MARKED)
            w = x = torch.tensor(0)
            for t in loop(range(T)):
                w = pyro.sample(f"w_{t}", dist.Categorical(table[w]), infer=MARKED)
                with poutine.mask(mask=(c == 1) | (w == 0)):
                    x = pyro.sample(f"x_{t}", dist.Categorical(table[x]), infer=MARKED)
                    with pyro.plate(f"tones_{t}", T, dim=-1), poutine.mask(mask=Y > 0):
                        pyro.sample(f"y_{t}", dist.Normal(means[x], 1.0), obs=Y)

    wanted = TraceEnum_ELBO(max_plate_nesting=2).loss(model, no_guide, pyro.markov)
    for loop in (pyro.markov, pplseq.markov):
        assert TraceBlockedEnum_ELBO(max_plate_nesting=2).loss(model, no_guide, loop) == pytest.approx(wanted)
    poutine.trace(infer_states(model)).get_trace(pyro.markov)

    def chain(mask):  # of which there is a posterior chain by name
        w = x = torch.tensor(0)
        for t in pyro.markov(range(T)):
            w = pyro.sample(f"w_{t}", dist.Categorical(logits=pair(TWO[w])), infer=MARKED)
            with poutine.mask(mask=w == 1) if mask else nullcontext():
                x = pyro.sample(f"x_{t}", dist.Categorical(logits=pair(TWO[x])), infer=MARKED)
            pyro.sample(f"y_{t}", dist.Normal(TWO[x], 1.0), obs=Y[t])

    found = []
    for mask in (True, False):
        with BlockedEnum() as posterior:
            chain(mask)
        found.append(posterior.chains["x_0"].marginal("x_0"))
    torch.testing.assert_close(*found)


@grid({"loop": [pyro.markov, pplseq.markov], "kind": ["tables", "mask", "observations", "tables, observations"]})
def test_words_under_a_marked_class(kind, loop):
    """Tables of our own transitions, and masks around their sites, by a marked class."""
    words = torch.tensor([[0, 1, 1], [1, 0, 0]])
    logits = torch.tensor([[[0.1, 0.9], [0.4, -0.3]], [[-1.0, 0.2], [0.0, 0.6]]], dtype=F64, requires_grad=True)
    emission = CategoricalEmission(torch.tensor([[0.7, 0.3], [0.1, 0.9]], dtype=F64).log())
    share = torch.tensor([0.4, 0.6], dtype=F64)

    def model(c=None):
        with pyro.plate("rows", 2, dim=-1):
            if c is None:
                c = pyro.sample("c", dist.Categorical(share), infer=MARKED)
            tables = (logits if "tables" in kind else logits[:1].expand(2, 2, 2)).log_softmax(-1)
            transition, z = DenseTransition(tables[c][..., 0, :], tables[c]), None
            for t in loop(range(T)):
                with poutine.mask(mask=(c == 1) if kind == "mask" else True):
                    z = pyro.sample(f"z_{t}", transition(z))
                    with poutine.mask(mask=(c == 1) if "observations" in kind else True):
                        pyro.sample(f"x_{t}", emission(z), obs=words[:, t])

    by_class = []
    for c in range(2):
        with BlockedEnum() as posterior:
            model(torch.full((2,), c))
        by_class.append(posterior.chains["z_0"].log_prob())
    wanted = -(share.log().unsqueeze(-1) + torch.stack(by_class)).logsumexp(0).sum()
    for nesting in (1, 2):
        compare(TraceBlockedEnum_ELBO(max_plate_nesting=nesting).differentiable_loss(model, no_guide), wanted, logits)
    with pytest.raises(ValueError, match="chain 'z_0' depends on enumerated sites"):
        infer_states(model)()


def test_nothing_is_drawn_to_find_out():
    def model():
        c = pyro.sample("c", dist.Categorical(torch.ones(2)), infer=MARKED)
        pyro.sample("theta", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(TWO[c], 1.0), obs=Y[0])

    drawn = []
    for program in (BlockedEnum()(model), lambda: pyro.sample("theta", dist.LogNormal(0.0, 1.0))):
        pyro.set_rng_seed(3)
        drawn.append(poutine.trace(program).get_trace().nodes["theta"]["value"])
    torch.testing.assert_close(*drawn)


def test_what_is_refused_is_named(loc):
    def model(law, mask=True, scale=1.0, obs=None):
        x = pyro.sample("x", dist.Categorical(logits=loc), infer=MARKED)
        with poutine.mask(mask=x == 1) if mask else nullcontext(), poutine.scale(scale=scale(x) if callable(scale) else scale):
            pyro.sample("y", law(x), obs=obs)

    elbo = TraceBlockedEnum_ELBO(max_plate_nesting=0)
    with pytest.raises(ValueError, match="site 'y' is not observed and depends on the enumerated sites 'x'"):
        elbo.loss(model, no_guide, lambda x: dist.Normal(0.0, 1.0))
    with pytest.raises(ValueError, match="site 'y' is not observed, and no value can be drawn from its MixtureSameFamily"):
        elbo.loss(model, no_guide, lambda x: mixture(loc[x]), mask=False)
    with pytest.raises(ValueError, match=r"site 'y': enumerated sites take a scalar.*pyro.factor"):
        elbo.loss(model, no_guide, lambda x: dist.Normal(0.0, 1.0), mask=False, scale=lambda x: 1.0 + x, obs=Y[0])
    with pytest.raises(ValueError, match=r"site 'y': a scale may not depend on a discrete site.*pyro.factor"):
        contract_states(lambda: model(lambda x: dist.Normal(0.0, 1.0), mask=False, scale=lambda x: 1.0 + x, obs=Y[0]))


@pytest.mark.parametrize("expand", [True, False])
def test_expanded_values(expand):
    """``config_enumerate(expand=True)``: the same values in every row."""
    table = torch.tensor([[0.8, 0.2], [0.1, 0.9]], dtype=F64)

    @config_enumerate(expand=expand)
    def model():
        with pyro.plate("outer", 2, dim=-2):
            z = pyro.sample("kind", dist.Categorical(table[0]))
            with pyro.plate("rows", T, dim=-1):
                for t in pyro.markov(range(2)):
                    z = pyro.sample(f"z_{t}", dist.Categorical(Vindex(table)[z]))
                    bit = pyro.sample(f"b_{t}", dist.Bernoulli(table[z, 0]))
                    pyro.sample(f"y_{t}", dist.Normal(TWO[z] + bit, 1.0), obs=Y)

    wanted = TraceEnum_ELBO(max_plate_nesting=2).loss(model, no_guide)
    assert TraceBlockedEnum_ELBO(max_plate_nesting=2).loss(model, no_guide) == pytest.approx(wanted)
    found = poutine.trace(infer_states(model)).get_trace()
    assert found.nodes["kind"]["value"].shape == (2, 1) and found.nodes["z_1"]["value"].shape == (2, T)

    @config_enumerate(num_samples=3, expand=expand)
    def draws():
        pyro.sample("y", dist.Normal(TWO[pyro.sample("z", dist.Categorical(table[0]))], 1.0), obs=Y[0])

    with pytest.raises(ValueError, match=r"site 'z' is marked with num_samples.*TraceTMC_ELBO"):
        TraceBlockedEnum_ELBO(max_plate_nesting=0).loss(draws, no_guide)


@pytest.mark.parametrize("mask", [True, False, torch.tensor(True), torch.tensor(False)], ids=str)
@pytest.mark.parametrize("loop", [pyro.markov, pplseq.markov])
def test_no_plates(mask, loop):
    """Bernoulli states and masks of one truth value where nothing stands in a plate."""
    chances = torch.tensor([0.2, 0.9], dtype=F64)

    def model(loop=loop):
        x = torch.zeros((), dtype=F64)
        for t in loop(range(T)):
            x = pyro.sample(f"x_{t}", dist.Bernoulli(chances[x.long()]), infer=MARKED)
            with poutine.mask(mask=mask):
                pyro.sample(f"y_{t}", dist.Normal(TWO[x.long()], 1.0), obs=Y[t])
                pyro.sample(f"b_{t}", dist.Bernoulli(chances[x.long()]), obs=torch.ones((), dtype=F64))

    wanted = TraceEnum_ELBO(max_plate_nesting=0).loss(model, no_guide, pyro.markov)
    assert TraceBlockedEnum_ELBO(max_plate_nesting=0).loss(model, no_guide) == pytest.approx(wanted)
    poutine.trace(infer_states(model, "sample")).get_trace()
