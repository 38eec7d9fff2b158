"""Tables looked up at states are what the tensors would be: in any code, with any gradients; and sums by statistics agree."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.ops.indexing import Vindex
from pyro.ops.special import safe_log
from support.grids import grid
from support.marked_programs import F64, LENGTHS, MARKED, B, D, K, T, notes, steps, table

from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.infer.programs.factors.lookups import Lookup, Memo, StateValue

TABLE = torch.randn(3, 2, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
DATA = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]])
CODE = {
    "log": lambda v: v.sigmoid().log(),
    "reversed": lambda v: 1 - 2.0 / (3 + v.exp()),
    "normalised": lambda v: v.exp() / v.exp().sum(-1, keepdim=True),
    "log_softmax": lambda v: v.log_softmax(-1),
    "norm": lambda v: v - v.logsumexp(dim=-1, keepdim=True),
    "another": lambda v: v + torch.arange(4.0, dtype=F64),
    "safe_log": lambda v: safe_log(v.sigmoid()),
    "squeezed": lambda v: v.unsqueeze(-1).squeeze(-1),
    "transposed": lambda v: v.transpose(0, -1).sum(0),
    "where": lambda v: torch.where(v > 0, v, 0.5 * v),
    "expanded": lambda v: v.expand(5, *v.shape).cos(),
    "plates summed": lambda v: v.sum((0, -1)),
    "in place, a copy": lambda v: v.mul(2).clone().add_(1),
    "stacked": lambda v: torch.stack([v, v.sin()]).prod(0),
}


def state(size=3, dims=3):
    return StateValue.of(torch.arange(size).reshape(size, *(1,) * (dims - 1)), Memo())


def indices(x):
    """Indices of TABLE with states first."""
    return {"states": (x,), "data": (x, DATA, torch.arange(4)), "row": (x, torch.tensor(1)), "slice": (x, slice(None))}


@grid({"code": CODE, "index": ["states", "data", "row", "slice"]})
def test_any_code_and_its_gradients(index, code):
    leaf = TABLE.clone().requires_grad_()
    results = []
    for x in (state(), torch.arange(3).reshape(3, 1, 1)):
        looked = leaf[indices(x)[index]]
        assert (type(looked) is Lookup) == (type(x) is StateValue)
        value = CODE[code](looked)
        weights = torch.linspace(-1, 2, value.numel(), dtype=F64).reshape(value.shape)
        (first,) = torch.autograd.grad((weights * value * value).sum(), leaf, create_graph=True)
        second = torch.autograd.grad(first.sin().sum(), leaf)[0] if first.requires_grad else first
        results.append((value.detach().clone(), first.detach(), second, tuple(looked.shape), looked.dtype))
    for one, other in zip(*results, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def test_gradients_stop_where_they_are_stopped():
    leaf, x = TABLE.clone().requires_grad_(), state()
    with torch.no_grad():
        looked = leaf[x]
    assert not looked.requires_grad and not looked.exp().requires_grad and not (looked + 1).sum().requires_grad
    assert leaf[x].requires_grad and not leaf[x].detach().requires_grad
    with torch.no_grad():
        assert not leaf[x].exp().requires_grad
    assert leaf[x].exp().requires_grad


def test_what_changes_in_place_is_read_again():
    leaf, x = TABLE.clone(), state()
    before = leaf[x].exp().sum()
    leaf += 1
    torch.testing.assert_close(leaf[x].exp().sum(), before * torch.e)
    x += 1
    torch.testing.assert_close(leaf[x - 1].sum(), leaf.sum())
    assert bool((leaf[x.clamp(max=2)][0] == leaf[1]).all())


# ------------------------------------------------------------------------------------------------ programs
def poisson(y):
    trans, rate = table("trans", K, K), 0.1 + 3 * table("rate", K, D, event=0)
    with pyro.plate("rows", B, dim=-2):
        x = 0
        for t in steps(LENGTHS):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            with pyro.plate(f"cells_{t}", D, dim=-1):
                pyro.sample(f"y_{t}", dist.Poisson(rate[x.squeeze(-1)]), obs=(4 * y[:, t]).cumsum(-1))


def words(y):
    """Words in an inner plate, each with a table of its own kind of place; and a word whose table the last word chooses."""
    trans, emit, after = table("trans", K, K), table("emit", K, D, 5), table("after", K, 5, 5)
    with pyro.plate("rows", B, dim=-2):
        x, last = 0, torch.zeros(B, 1, dtype=torch.long)
        for t in steps(LENGTHS):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            word = (y[:, t].cumsum(-1) + t).long() % 5
            with pyro.plate(f"cells_{t}", D, dim=-1):
                pyro.sample(f"y_{t}", dist.Categorical(emit[x.squeeze(-1)]), obs=word)
            last = pyro.sample(f"w_{t}", dist.Categorical(Vindex(after)[x, last]), obs=word[:, :1])


def shared_cells(y):
    """One probability for all cells, some of which are masked; vectors as events; logits; a state without a plate's cells."""
    trans, emit, own = table("trans", K, K), table("emit", K, event=0), pyro.param("own", lambda: TABLE[:, 0])
    cells = torch.arange(D) != 1
    with pyro.plate("rows", B, dim=-2):
        x = 0
        for t in steps(LENGTHS):
            x = pyro.sample(f"x_{t}", dist.Categorical(logits=trans.log()[x]), infer=MARKED)
            with pyro.plate(f"cells_{t}", D, dim=-1), poutine.mask(mask=cells):
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x]), obs=y[:, t])
            pyro.sample(f"v_{t}", dist.Bernoulli(logits=own[x]).to_event(1), obs=y[:, t].flip(-1).unsqueeze(1))


def zeros(y):
    """Words that are impossible in some states, and steps that differ in their matrices."""
    trans, emit = table("trans", 2, K, K), table("emit", K, 5)
    closed = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], dtype=torch.bool)
    emit = emit.log().masked_fill(~closed, -torch.inf)
    with pyro.plate("rows", B, dim=-2):
        x = 0
        for t in steps(LENGTHS):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[t % 2][x]), infer=MARKED)
            with pyro.plate(f"cells_{t}", D, dim=-1):
                pyro.sample(f"y_{t}", dist.Categorical(logits=emit[x.squeeze(-1)].unsqueeze(-2)), obs=2 * y[:, t].long() + 1)


def one_state(y):
    trans, emit = table("trans", 1, 1), table("emit", 1, D, event=0)
    with pyro.plate("rows", B, dim=-2):
        x = 0
        for t in steps(LENGTHS):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            with pyro.plate(f"cells_{t}", D, dim=-1):
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x.squeeze(-1)]), obs=y[:, t])


def own_rows(y):
    """A table for every row, chosen by the plate's own index; Bernoulli states."""
    trans, emit = table("trans", K, B, K), table("emit", K, B, 2, D, event=0)
    flip = table("flip", K, event=0)
    with pyro.plate("rows", B, dim=-2) as row:
        x, row = 0, row.unsqueeze(-1)
        for t in steps(LENGTHS):
            x = pyro.sample(f"x_{t}", dist.Categorical(Vindex(trans)[x, row]), infer=MARKED)
            c = pyro.sample(f"c_{t}", dist.Bernoulli(flip[x]), infer=MARKED).long()
            with pyro.plate(f"cells_{t}", D, dim=-1) as cell:
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x, row, c, cell]), obs=y[:, t])


def one_count(y):
    """No plate inside that of the rows."""
    trans, rate = table("trans", K, K), table("rate", K, event=0)
    with pyro.plate("rows", B, dim=-2):
        x = 0
        for t in steps(LENGTHS):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            pyro.sample(f"y_{t}", dist.Poisson(3 * rate[x]), obs=2 * y[:, t, :1] + t)
            with poutine.mask(mask=(t < torch.arange(B)).unsqueeze(-1)):
                pyro.sample(f"w_{t}", dist.Poisson(rate[x]), obs=3 * y[:, t, :1])


PROGRAMS = [poisson, one_count, words, shared_cells, zeros, one_state, own_rows]


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_same_loss_and_gradients_as_pyro(program):
    results = []
    for elbo in (TraceEnum_ELBO, TraceBlockedEnum_ELBO):
        pyro.clear_param_store()
        loss = elbo(max_plate_nesting=2, strict_enumeration_warning=False).loss_and_grads(program, no_guide, notes())
        leaves = pyro.get_param_store()._params
        results.append((loss, {name: leaf.grad for name, leaf in leaves.items()}))
    (expected, wanted), (loss, found) = results
    assert loss == pytest.approx(expected, rel=1e-10) and found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-10 * float(gradient.abs().max()), msg=name)


def test_invalid_parameters_are_refused_as_ever():
    def program(y):
        with pyro.plate("rows", B, dim=-1):
            x = pyro.sample("x", dist.Categorical(torch.ones(K) / K), infer=MARKED)
            pyro.sample("y", dist.Bernoulli(torch.tensor([0.5, 0.2, 1.5])[x]), obs=y[:, 0, 0])

    with pytest.raises(ValueError, match="Expected parameter probs"):
        TraceBlockedEnum_ELBO(max_plate_nesting=1).loss(program, no_guide, notes())


def test_equal_numbers_of_other_types_give_other_types():
    x, counts = state(), torch.tensor([1, 2, 3])
    assert (counts[x] * 1).dtype == torch.int64 and (counts[x] * 1.0).dtype == torch.get_default_dtype()


def _sets(p):
    p[...] = 0.4


def _adds(p):
    p += 0.1


CHANGES = {
    "p += 1": _adds,
    "p[...] =": _sets,
    "add_": lambda p: p.add_(0.1),
    "clamp_": lambda p: p.clamp_(max=0.3),
    "out=": lambda p: torch.add(p, 0.1, out=p),
    "relu, inplace": lambda p: torch.nn.functional.relu(p, inplace=True),
    "through a view": lambda p: p.unsqueeze(0).mul_(0.5),
}


@grid({"copied": [False, True], "change": CHANGES.values()})
def test_tables_that_steps_share_are_not_changed_in_place(change, copied):
    """A copy may be: as Pyro has it."""
    probs, start = (torch.tensor(values, dtype=torch.float64) for values in ([0.2, 0.7, 0.5], [0.5, 0.3, 0.2]))

    def program(y):
        with pyro.plate("rows", B, dim=-1):
            for t in pyro.markov(range(3)):
                x = pyro.sample(f"x_{t}", dist.Categorical(start), infer=MARKED)
                p = probs[x].clone() if copied else probs[x]
                change(p)
                pyro.sample(f"y_{t}", dist.Bernoulli(p), obs=y[:, t, 0])

    if not copied:
        with pytest.raises(RuntimeError, match="changed in place"):
            TraceBlockedEnum_ELBO(max_plate_nesting=1).loss(program, no_guide, notes())
        return
    both = TraceBlockedEnum_ELBO, TraceEnum_ELBO
    loss, expected = (elbo(max_plate_nesting=1).loss(program, no_guide, notes()) for elbo in both)
    assert loss == pytest.approx(expected, rel=1e-6)


assert T > 2


@pytest.mark.parametrize("word", [4, -1])
def test_words_outside_the_table_raise_where_nothing_is_validated(word):
    """With several tables side by side, a word that is none must not be read as one of the next table."""
    table, matrix = torch.rand(2, 3, 4).softmax(-1), torch.rand(2, 2).softmax(-1)
    y = torch.zeros(2, 3, 3, dtype=torch.long)
    y[0, 1, 0] = word

    def model():
        x = 0
        with pyro.plate("rows", 2, dim=-2):
            for t in pyro.markov(range(3)):
                x = pyro.sample(f"x_{t}", dist.Categorical(matrix[x]), infer={"enumerate": "parallel"})
                with pyro.plate(f"tones_{t}", 3, dim=-1):
                    words = dist.Categorical(table[x.squeeze(-1)], validate_args=False)
                    pyro.sample(f"y_{t}", words, obs=y[:, t])

    with pyro.validation_enabled(False), pytest.raises(RuntimeError, match="out of bounds"):
        TraceBlockedEnum_ELBO(max_plate_nesting=2).loss(model, lambda: None)


def test_words_may_be_numbers_of_any_type():
    table, y = torch.rand(2, 3, 4).softmax(-1), torch.randint(4, (2, 3))

    def model(y):
        with pyro.plate("rows", 2, dim=-2):
            x = pyro.sample("x", dist.Categorical(torch.tensor([0.3, 0.7])), infer={"enumerate": "parallel"})
            with pyro.plate("tones", 3, dim=-1):
                pyro.sample("y", dist.Categorical(table[x.squeeze(-1)]), obs=y)

    one, other = (TraceBlockedEnum_ELBO(max_plate_nesting=2).loss(model, lambda _: None, v) for v in (y, y.double()))
    expected = TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False).loss(model, lambda _: None, y)
    assert one == other == pytest.approx(expected)
