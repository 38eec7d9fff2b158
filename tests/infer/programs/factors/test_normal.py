"""Normal observations in inner plates as sufficient statistics: against Pyro's own enumeration, and without lost digits."""

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from support.grids import grid
from support.marked_programs import F64, LENGTHS, MARKED, B, D, K, T, table

import pplseq
from pplseq.infer import TraceBlockedEnum_ELBO
from pplseq.infer.programs.factors import normal

CENTRE, SCALE = 0.0, 1.0


def leaf(name, *shape, positive=False):
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    value = pyro.param(f"p_{name}", lambda: torch.randn(shape, dtype=F64, generator=generator))
    return 0.5 + value.sigmoid() if positive else value


def of_state(x, u, tones):
    return leaf("loc", K, D)[x.squeeze(-1)], leaf("scale", K, D, positive=True)[x.squeeze(-1)]


def number(x, u, tones):
    return leaf("loc", K, D)[x.squeeze(-1)], 0.7


def of_tone(x, u, tones):
    return leaf("loc", K, D)[x.squeeze(-1)], leaf("scale", D, positive=True)


def one_scale(x, u, tones):
    return leaf("loc", K, D)[x.squeeze(-1)], leaf("scale", positive=True)


def scale_alone(x, u, tones):
    return 0.3, leaf("scale", K, positive=True)[x]


def shared_by_tones(x, u, tones):
    return leaf("loc", K)[x], leaf("scale", K, positive=True)[x]


def chosen_by_data(x, u, tones):
    return leaf("loc", K, 2, D)[x, u, tones], leaf("scale", K, 2, D, positive=True)[x, u, tones]


def chosen_without_scale(x, u, tones):
    return leaf("loc", K, 2)[x, u], 0.6


def changed(x, u, tones):
    return 2 * leaf("loc", K, D)[x.squeeze(-1)].tanh(), leaf("scale", K, D, positive=True)[x.squeeze(-1)].sqrt()


def two_indices(x, u, tones):  # no one table: densities one by one
    return leaf("loc", K, D)[x.squeeze(-1)], leaf("scale", K, 2, D, positive=True)[x, u, tones]


def of_rows(x, u, tones):  # a known error of each row: densities one by one
    return leaf("loc", K, D)[x.squeeze(-1)], torch.linspace(0.5, 1, B, dtype=F64).unsqueeze(-1)


FAST = (of_state, number, of_tone, one_scale, scale_alone, shared_by_tones, chosen_by_data, chosen_without_scale, changed)


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, D, dtype=F64, generator=generator), torch.randint(2, (B, T, D), generator=generator)


def program(law, y, u, holes=None, centre=0.0, unit=1.0, loop=pyro.markov, event=False):
    trans, tones_plate = table("trans", K, K), pyro.plate("tones", D, dim=-1)
    with pyro.plate("rows", B, dim=-2) as rows:
        x = 0
        for t in loop(range(T)):
            with poutine.mask(mask=(t < LENGTHS).unsqueeze(-1)):
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                with tones_plate as tones:
                    loc, scale = law(x, u[rows, t], tones)
                    mask = True if holes is None else ~holes[rows, t]
                    with poutine.mask(mask=mask):
                        pyro.sample(f"y_{t}", dist.Normal(centre + unit * loc, unit * scale), obs=y[rows, t])


def guide(*_, **__):
    pass


def outcome(elbo, model, *args):
    pyro.clear_param_store()
    loss = elbo.differentiable_loss(model, guide, *args)
    names = sorted(pyro.get_param_store().keys())
    leaves = [pyro.get_param_store()._params[name] for name in names]
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    along = sum((g * torch.linspace(-1, 2, g.numel(), dtype=F64).view_as(g)).sum() for g in first)
    return loss, first, torch.autograd.grad(along, leaves)


def compare(model, *args, rtol=1e-10):
    expected = outcome(TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False), model, *args)
    found = outcome(TraceBlockedEnum_ELBO(max_plate_nesting=2), model, *args)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-9)


@pytest.fixture
def sums(monkeypatch):
    """What the fast path was given, and what came of it."""
    made = []

    def recorded(*args):
        made.append(normal.normal_sums(*args))
        return made[-1]

    real = normal.read_normal

    def read(part, fn):
        reading = real(part, fn)
        if reading is not None:
            reading.sums = recorded
        return reading

    monkeypatch.setattr(normal, "read_normal", read)
    return made


@grid({"holes": [False, True], "law": [*FAST, two_indices, of_rows]})
def test_as_pyro(law, holes, sums):
    y, u = data()
    gone = (torch.rand(B, T, D, generator=torch.Generator().manual_seed(1)) < 0.3) if holes else None
    compare(functools.partial(program, law), y, u, gone)
    assert (len(sums) > 0 and all(found is not None for found in sums)) == (law in FAST)


@pytest.mark.parametrize("law", [of_state, chosen_by_data, one_scale], ids=lambda law: law.__name__)
def test_far_from_zero_for_their_scale(law, sums):
    """Means of 1e4, scales of 1e-2: the same as means near 0 and scales near 1, to the digits that the data themselves have."""
    y, u = data()
    far = 1e4 + 1e-2 * y
    model = functools.partial(program, law, centre=1e4, unit=1e-2)
    compare(model, far, u, rtol=1e-8)
    assert sums and all(found is not None for found in sums)
    near = 100 * (far - 1e4)  # exactly what the numbers say
    a = outcome(TraceBlockedEnum_ELBO(max_plate_nesting=2), model, far, u)
    b = outcome(TraceBlockedEnum_ELBO(max_plate_nesting=2), functools.partial(program, law), near, u)
    shift = int(LENGTHS.sum()) * D * torch.tensor(1e-2, dtype=F64).log()
    torch.testing.assert_close(a[0] - shift, b[0], rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(a[1:], b[1:], rtol=1e-7, atol=1e-7)


def test_states_too_many_scales_apart_are_computed_one_by_one(sums):
    y, u = data()

    def law(x, u, tones):
        return 100 * leaf("loc", K, D)[x.squeeze(-1)], 0.5

    compare(functools.partial(program, law), y, u)
    assert sums and all(found is None for found in sums)


def test_all_steps_at_once(sums):
    y, u = data()
    for law in (of_state, number, chosen_by_data):
        compare(functools.partial(program, law), y, u)
        by_steps = outcome(TraceBlockedEnum_ELBO(max_plate_nesting=2), functools.partial(program, law), y, u)
        at_once = functools.partial(program, law, loop=pplseq.markov)
        torch.testing.assert_close(outcome(TraceBlockedEnum_ELBO(max_plate_nesting=2), at_once, y, u), by_steps)
    assert all(found is not None for found in sums)


def test_vectors_as_events(sums):
    y, u = data()

    def model(y):
        trans, loc = table("trans", K, K), leaf("loc", K, D)
        with pyro.plate("rows", B, dim=-1):
            x = 0
            for t in pyro.markov(range(T)):
                with poutine.mask(mask=t < LENGTHS):
                    x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
                    pyro.sample(f"y_{t}", dist.Normal(loc[x], 0.5).to_event(1), obs=y[:, t])

    compare(model, y)
    assert sums and all(found is not None for found in sums)


def test_float32_is_as_near_as_float64(sums):
    y, u = data()

    def law(x, u, tones):
        return leaf("loc", K, D)[x.squeeze(-1)].float(), leaf("scale", K, D, positive=True)[x.squeeze(-1)].float()

    model = functools.partial(program, law)
    exact = outcome(TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False), model, y, u)
    found = outcome(TraceBlockedEnum_ELBO(max_plate_nesting=2), model, y.float(), u)
    assert sums and all(one is not None for one in sums)
    torch.testing.assert_close(found[0].double(), exact[0].double(), rtol=1e-5, atol=1e-5)


def test_an_index_out_of_the_table_is_an_error():
    y, u = data()
    u[1, 0, 2] = 2
    with pytest.raises(IndexError):
        TraceBlockedEnum_ELBO(max_plate_nesting=2).loss(functools.partial(program, chosen_by_data), guide, y, u)
