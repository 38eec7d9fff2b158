"""The loops over rows say what the plain way says: values, gradients, second derivatives, statistics, paths."""

import math

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq.distributions.state import MISSING
from pplseq.infer.discrete.long import LongDenseChain
from pplseq.infer.fit.em import Batch
from pplseq.kernels import compiled
from pplseq.kernels.chain import call
from pplseq.kernels.chain import loops as chain_loops
from pplseq.models import HMM
from pplseq.models.base import AT_POINT, said
from pplseq.models.hmm.rows import log_prob_of_rows

SIZES = [(1, 1, 1), (2, 1, 10), (3, 2, 1), (4, 3, 300), (17, 3, 9)]
SIZES += [(2, 64, 10), (3, 70, 13)]  # several rows side by side
KINDS = ["words", "diag", "spherical", "full", "tied"]


def model_and_rows(kind, num_states, rows, steps, seed=0):
    torch.manual_seed(seed)
    if kind == "words":
        model, x = HMM(num_states, 7), torch.randint(7, (rows, steps))
    else:
        model, x = HMM(num_states, num_features=2, covariance=kind), torch.randn(rows, steps, 2).double()
    for parameter in model.parameters():  # no row of logits is normalised
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.is_fitted = True
    return model, x


def plain(model, x, lengths=None):
    """The same by the way that all programs take, in torch alone."""
    with compiled.twins_only():
        return model._direct_chain(x, lengths).log_prob().sum()


def gradients(model, value, **options):
    return torch.autograd.grad(value, list(model.parameters()), **options)


def loops(model, x, lengths=None):
    """The value that comes straight from the parameters; fails where there is none."""
    remembered = model._counts(batch := Batch(x, lengths))
    assert remembered is not None
    return log_prob_of_rows(model, remembered, batch)


def holes(x, kind):
    """Rows that end early, one of them before it begins, and gaps inside and at the ends; behind an end anything."""
    rows, steps = x.shape[:2]
    lengths = torch.randint(1, steps + 1, (rows,))
    lengths[0], x = steps, x.clone()
    missing = MISSING if kind == "words" else math.nan
    x[torch.rand(rows, steps) < 0.2] = missing
    x[0, -1] = missing
    x[torch.arange(steps) >= lengths.unsqueeze(-1)] = 3 if kind == "words" else math.nan
    if rows > 2:
        lengths[2] = 0
    return x, lengths


@grid({"num_states, rows, steps": [*SIZES, (2, 70, 600)], "kind": KINDS[:3], "ragged": [False, True]}, times=2)
def test_values_and_gradients(kind, num_states, rows, steps, ragged):
    model, x = model_and_rows(kind, num_states, rows, steps)
    check_log_prob(model, *(holes(x, kind) if ragged else (x,)))


def check_log_prob(model, x, lengths=None):
    value, expected = loops(model, x, lengths), plain(model, x, lengths)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    for found, wanted in zip(gradients(model, value), gradients(model, expected), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)
    again = model.log_joint(x, lengths)
    assert torch.equal(again, value) and type(again.grad_fn).__name__ == "KnownGradientBackward"


@pytest.mark.parametrize(("num_states", "rows", "steps"), [(64, 2, 513), (64, 1, 768), (17, 2, 2055)])
def test_long_rows_go_piece_by_piece(num_states, rows, steps):
    """Messages of one piece are kept, others made again: values, gradients, posteriors and counts, with states that follow
    none."""
    assert chain_loops.AT_ONCE < steps * num_states and steps > 2 * chain_loops.PIECE
    model, x = model_and_rows("words", num_states, rows, steps)
    with torch.no_grad():
        model.transition_logits.masked_fill_(torch.eye(num_states).roll(1, 0).bool(), -math.inf)
    check_log_prob(model, x)
    short = model._chain_of_rows(Batch(x))
    with compiled.twins_only():
        chain = model.posterior(x)
        torch.testing.assert_close(short.marginals().probs, chain.marginals().probs, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            short.expected_counts().transition, chain.expected_counts().transition, rtol=1e-10, atol=1e-12
        )


def test_many_words_of_few_states():
    """As many as no chain keeps emissions of; the loops over steps are the twin, which is that of torch's."""
    model, x = model_and_rows("words", 3, 1, 400_001)
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    statistics, value = model._expectation_by_loops(Batch(x))
    chain = LongDenseChain(*model.specs(), x.T)
    assert float(chain.log_prob().detach().sum()) == pytest.approx(value, rel=1e-13)
    counts = chain.expected_counts()
    torch.testing.assert_close(statistics["transition"], counts.transition.detach(), rtol=1e-9, atol=1e-9)
    found = gradients(model, model.log_joint(x))
    for part, wanted in zip(found, gradients(model, chain.log_prob().sum()), strict=True):
        torch.testing.assert_close(part, wanted, rtol=1e-8, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))


def test_a_long_row_that_is_impossible_or_no_words():
    model, x = model_and_rows("words", 64, 2, 700)
    with torch.no_grad():
        model.emissions.logits[:, 6] = -math.inf
    x[x == 6] = 0
    x[1, 600] = 6
    assert model._expectation_by_loops(Batch(x)) is None
    with pytest.raises(ValueError, match="row 1, step 600: observation 6 is impossible"):
        model.log_joint(x)
    x[1, 600] = 7
    with pytest.raises(ValueError, match="7"):
        model.log_joint(x)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_second_derivatives(kind, ragged):
    model, x = model_and_rows(kind, 3, 4, 5)
    given = holes(x, kind) if ragged else (x,)
    first = gradients(model, model.log_joint(*given), create_graph=True)
    twin = gradients(model, plain(model, *given), create_graph=True)
    direction = [torch.randn_like(part) for part in first]
    found, wanted = (
        gradients(model, sum((g * d).sum() for g, d in zip(each, direction, strict=True))) for each in (first, twin)
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@grid({
    "kind, num_states, rows, steps": [*(("words", *size) for size in SIZES[1:]), *(("diag", *size) for size in SIZES[3:6])]
    + [(kind, 4, 3, 9) for kind in KINDS[2:]],
    "ragged": [False, True],
})
def test_questions(kind, num_states, rows, steps, ragged):
    model, x = model_and_rows(kind, num_states, rows, steps)
    x, lengths = holes(x, kind) if ragged else (x, None)
    short = model._chain_of_rows(Batch(x, lengths))
    assert (short._row_log_probs() if rows > 1 else short._posterior(pairs=False)) is not None, "the loops do"
    with compiled.twins_only():
        chain = model.posterior(x, lengths)
        torch.testing.assert_close(short.log_prob(), chain.log_prob(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(short.marginals().probs, chain.marginals().probs, rtol=1e-10, atol=1e-12)
        found, wanted = short.expected_counts(), chain.expected_counts()
        for name in ("start", "transition", "occupancy"):
            torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-10, atol=1e-12)
        statistics = (model.expected_statistics(each) for each in (short, chain))
        torch.testing.assert_close(*statistics, rtol=1e-10, atol=1e-11)
        assert torch.equal(short.viterbi()[0], chain.viterbi()[0])
        torch.testing.assert_close(short.viterbi()[1], chain.viterbi()[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(short.filtered_states().probs, chain.filtered_states().probs)
        for mask in ("valid", "seen"):
            assert (getattr(short, mask) is None) == (getattr(chain, mask) is None)
        if kind == "words" and chain.seen is not None:
            torch.testing.assert_close(short.missing_words(), chain.missing_words())


@grid({"kind": KINDS[:3], "ragged": [False, True]})
def test_em_comes_to_the_same_parameters(kind, ragged):
    model, x = model_and_rows(kind, 3, 4, 12)
    given = holes(x, kind) if ragged else (x,)
    assert model._expectation_by_loops(Batch(*given)) is not None
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model.fit(*given, warm_start=True, max_iterations=15, tolerance=0.0)
    found, history = {name: value.clone() for name, value in model.state_dict().items()}, model.history
    model.load_state_dict(start)
    with compiled.twins_only():
        assert model._expectation_by_loops(Batch(*given)) is None
        model.fit(*given, warm_start=True, max_iterations=15, tolerance=0.0)
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=1e-8, atol=1e-9)
    assert history.log_likelihoods == pytest.approx(model.history.log_likelihoods, rel=1e-11)
    assert (history.reason, history.converged) == (model.history.reason, model.history.converged)


def test_states_far_apart_are_left_to_the_scans():
    """Densities whose ratio is below what loops in linear space keep."""
    model, _ = model_and_rows("diag", 3, 1, 1)
    with torch.no_grad():
        model.emissions.loc.copy_(60.0 * torch.arange(3).unsqueeze(-1))
        model.emissions.log_scale.zero_()
    x = 60.0 * torch.tensor([[0, 1, 2, 2, 0]]).unsqueeze(-1).expand(1, 5, 2).double() + 0.1
    assert loops(model, x) is None and model._expectation_by_loops(Batch(x)) is None
    short = model._chain_of_rows(Batch(x))
    assert short._row_log_probs() is None and short._posterior(pairs=True) is None
    torch.testing.assert_close(model.log_joint(x), plain(model, x), rtol=1e-12, atol=0)
    torch.testing.assert_close(short.marginals().probs, model.posterior(x).marginals().probs)


@pytest.mark.parametrize("rows", [3, 64])
def test_zeros_cost_nothing(rows):
    """Of a left-right chain, whose true zeros are not lost digits."""
    torch.manual_seed(0)
    model, x = HMM(4, 6, graph="left_right"), torch.randint(6, (rows, 40))
    value = loops(model, x)
    torch.testing.assert_close(value, plain(model, x), rtol=1e-12, atol=1e-12)
    for found, wanted in zip(gradients(model, value), gradients(model, plain(model, x)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("rows", [1, 70])
def test_tiny_probabilities_on_the_way(rows):
    """A step that all but one state find all but impossible, again and again: messages are scaled, or the scans asked."""
    for smallest in (1e-20, 1e-140, 1e-290):
        model = HMM(2, 2)
        matrix = [[1 - smallest, smallest], [smallest, 1 - smallest]]
        model.set_parameters(initial=[0.5, 0.5], transition=matrix, emission=[[1 - 1e-12, 1e-12], [0.3, 0.7]])
        x = torch.tensor([[0, 1, 1, 0, 0, 1] * 20] * rows)
        torch.testing.assert_close(model.log_joint(x), plain(model, x), rtol=1e-12, atol=0)
        names = [name for name, _ in model.named_parameters()]
        both = zip(names, gradients(model, model.log_joint(x)), gradients(model, plain(model, x)), strict=True)
        for name, found, wanted in both:
            # a gradient of the emissions is a difference of counts of which 1e-12 are left
            torch.testing.assert_close(found, wanted, rtol=1e-4 if name.startswith("emission") else 1e-9, atol=1e-300)


def test_rows_side_by_side_and_one_by_one():
    """Rows that several lanes take at a time, and what those refuse: words that a state never says, a row that is impossible,
    messages that lose digits on the way; sums are those of the rows alone, as if nothing had been begun."""
    model, x = model_and_rows("words", 3, 175, 20)
    with torch.no_grad():
        model.emissions.logits[1, 4] = -math.inf
    assert_same_one_by_one(model, x)
    assert _one_by_one(model, x) == []
    x[x > 4] = 0
    x[70, 7], x[70, 8] = 5, 6
    with torch.no_grad():  # a state whose posterior at step 7 of that row is 1e-300: 64 rows were added before
        model.transition_logits[:, 0], model.initial_logits[0] = -460.0, -460.0
        model.transition_logits[0] = torch.tensor([0.0, -92.0, -92.0])
        model.emissions.logits[0, 5:] = torch.tensor([-138.0, -92.0])
    check_log_prob(model, x)
    assert_same_one_by_one(model, x)
    assert _one_by_one(model, x) == [(64, 128)] and _one_by_one(model, x[:70]) == []
    with torch.no_grad():
        model.emissions.logits[:, 6] = -math.inf
    assert call.smooth(*_tables(model), call.Rows(x.numpy())) is None
    assert call.log_prob(*_tables(model), call.Rows(x.numpy())) is None


def assert_same_one_by_one(model, x):
    """Sums and answers are those of rows one by one."""

    def answers():
        given = *_tables(model), call.Rows(x.numpy())
        return [*call.smooth(*given, pairs=False), call.log_prob(*given)]

    found = answers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, "FEW_LANES", 1000)
        expected = answers()
    for part, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-12, atol=1e-13)


def _one_by_one(model, x):
    """Which rows do not go through side by side; of likelihoods none may."""
    asked, own = [], chain_loops.smooth
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_loops, "smooth", lambda begin, end, *args: asked.append((begin, end)) or own(begin, end, *args))
        patch.setattr(chain_loops, "likelihood", None)
        call.smooth(*_tables(model), call.Rows(x.numpy()), pairs=False)
        call.log_prob(*_tables(model), call.Rows(x.numpy()))
    return asked


def _tables(model):
    initial, transition, emission = (part.detach().log_softmax(-1) for part in (
        model.initial_logits, model.transition_logits, model.emissions.logits))  # fmt: skip
    return call.chain_of(initial, transition), call.emissions_of(emission.T.contiguous())


def test_what_loops_are_not_for_takes_the_plain_way():
    model, x = model_and_rows("words", 3, 2, 6)
    vectors, y = model_and_rows("diag", 3, 2, 6)
    partly = y.clone()
    partly[1, 2, 0] = math.nan  # beside what was seen
    cases = [
        (vectors, partly), (vectors, y.clone().requires_grad_()), (model_and_rows("full", 3, 2, 6)[0], y),
        (HMM(3, 7, ties=[0, 1, 1]), x), (HMM(3, 7, dtype="float32"), x),
    ]  # fmt: skip
    for other, rows in cases:
        assert type(other.log_joint(rows).grad_fn).__name__ != "KnownGradientBackward"
    (slope,) = torch.autograd.grad(vectors.log_joint(cases[1][1]), cases[1][1])
    assert bool((slope != 0).all())
    model.emissions.logits.requires_grad_(False)
    model.log_joint(x).backward()
    assert model.emissions.logits.grad is None and model.transition_logits.grad is not None
    value = model.log_joint(x)
    with torch.no_grad():
        model.transition_logits.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_transforms_and_priors():
    model, x = model_and_rows("words", 3, 2, 6)
    state = {name: value.detach() for name, value in model.named_parameters()}

    def of(logits):
        return torch.func.functional_call(_Joint(model), {"model." + n: v for n, v in (state | logits).items()}, (x,))

    found = torch.func.grad(of)({"transition_logits": state["transition_logits"]})["transition_logits"]
    torch.testing.assert_close(found, torch.autograd.grad(plain(model, x), model.transition_logits)[0], rtol=1e-9, atol=1e-10)
    torch.manual_seed(0)
    prior = HMM(3, 7, priors=True)
    torch.testing.assert_close(prior.log_joint(x), plain_at_point(prior, x) + prior.log_prior(), rtol=1e-12, atol=1e-12)


def plain_at_point(model, x):
    with said(AT_POINT):
        return plain(model, x)


class _Joint(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.log_joint(x)


def test_impossible_rows_are_named():
    model = HMM(2, 2)
    model.set_parameters(initial=[1, 0], transition=[[1, 0], [0, 1]], emission=[[1, 0], [0, 1]])
    x = torch.tensor([[0, 0, 0], [0, 1, 0]])
    assert model.score(x) == -math.inf
    for ask in (model.smooth, model.decode, model.log_joint, lambda x: model.fit(x, warm_start=True)):
        with pytest.raises(ValueError, match="row 1, step 1: observation 1 is impossible"):
            ask(x)


@pytest.mark.parametrize("changed", ["numbers", "parameters"])
@pytest.mark.parametrize("kind", ["words", "diag"])
def test_what_changes_before_the_gradient_is_noticed(kind, changed):
    """Also by second derivatives, which read the numbers again."""
    model, x = model_and_rows(kind, 3, 2, 9)
    value = loops(model, x)
    with torch.no_grad():
        (x if changed == "numbers" else model.transition_logits).copy_(x.flip(1) if changed == "numbers" else torch.ones(3, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(model, value, create_graph=True)


def test_threads_share_rows():
    """Parts of rows have sums of their own."""
    model, x = model_and_rows("words", 16, 6, 2_000)
    short = model._chain_of_rows(Batch(x))
    given = *short._tables[:2], call.Rows(x.numpy())
    alone = call.smooth(*given)
    np.testing.assert_array_equal(call.smooth(*given, pairs=False).posterior, alone.posterior)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert compiled.num_parts(*(len(x), 4 * x.numel() * 16**2)) == 3
        shared = call.smooth(*given)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(alone, shared, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    assert math.isclose(float(shared.pairs.sum()), x.numel() - len(x), rel_tol=1e-12)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("num_states", [1, 3, 17])
def test_long_rows_of_words_come_from_tables_too(monkeypatch, num_states, ragged):
    from pplseq.infer.discrete import long, table
    from pplseq.models.hmm import rows

    model, x = model_and_rows("words", num_states, 3, 40)
    x, lengths = holes(x, "words") if ragged else (x, None)
    plain = model.posterior(x, lengths)
    monkeypatch.setattr(rows, "MOST_NUMBERS", 0)
    assert type(model._chain_of_rows(Batch(x, lengths))) is table.TableChain
    monkeypatch.setattr(long, "LONG", 0)
    short = model._chain_of_rows(Batch(x, lengths))
    assert type(short) is table.LongTableChain
    torch.testing.assert_close(short.log_prob(), plain.log_prob(), rtol=1e-12, atol=0)
    torch.testing.assert_close(short.marginals().probs, plain.marginals().probs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(short.filtered_states().probs, plain.filtered_states().probs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(short.expected_counts().transition, plain.expected_counts().transition)
    paths, log_prob = short.viterbi()
    assert torch.equal(paths, plain.viterbi()[0])
    torch.testing.assert_close(log_prob, plain.viterbi()[1], rtol=1e-12, atol=0)
    assert model.score(x, lengths) == pytest.approx(float(plain.log_prob().sum()), rel=1e-12)
