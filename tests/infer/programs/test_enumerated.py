"""State sites in tensor code, enumerated over the support that they declare."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.path_truth import PathTruth
from support.tiny_programs import F64, Tables, program, traced_log_prob, words

from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.infer.programs.markov import markov
from pplseq.infer.programs.states import infer_states

close = torch.testing.assert_close


def tensor_program(x, logs, support, *, lengths=None, seen=None, loop=pyro.markov):
    """The same HMM with states as tensors; ``support(t)`` gives the ids that are open at step t."""
    start, table, emit = logs
    z = None
    with pyro.plate("sequences", len(x), dim=-1):
        for t in loop(range(x.shape[1])):
            with poutine.mask(mask=True if lengths is None else t < lengths):
                law = dist.Categorical(logits=start if z is None else table[z])
                z = pyro.sample(f"z_{t}", law, infer={"support": support(t)})
                with poutine.mask(mask=True if seen is None else seen[:, t]):
                    pyro.sample(f"x_{t}", dist.Categorical(logits=emit[z]), obs=x[:, t])


def everything(num_states=3):
    return lambda t: torch.arange(num_states)


SITUATIONS = {
    "plain": dict(),
    "ragged": dict(lengths=torch.tensor([4, 1, 2])),
    "empty row": dict(lengths=torch.tensor([4, 0, 2])),
    "missing": dict(seen=torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_full_support_is_the_lazy_form(situation):
    tables, x, options = Tables(), words(), SITUATIONS[situation]
    lazy, _ = traced_log_prob(program, x, tables.specs(), **options)
    eager, handler = traced_log_prob(tensor_program, x, tables.logs(), everything(), **options)
    close(eager, lazy)
    for a, b in zip(tables.gradients(eager)[:3], tables.gradients(lazy)[:3], strict=True):
        close(a, b)
    chain = handler.chains["z_0"]
    valid = None if "lengths" not in options else torch.arange(4).unsqueeze(-1) < options["lengths"]
    twin = build_chain(*tables.specs(), x.T, valid=valid, seen=options["seen"].T if "seen" in options else None)
    assert torch.equal(chain.viterbi()[0], twin.viterbi()[0])
    close(chain.viterbi()[1], twin.viterbi()[1])
    close(chain.k_best(3)[1], twin.k_best(3)[1])
    close(chain.marginals().dense(3), twin.marginals().probs)
    close(chain.pair_marginals().probs, twin.pair_marginals().probs)
    close(chain.entropy(), twin.entropy())
    close(chain.token_log_probs().sum(0), twin.token_log_probs().sum(0))
    if situation != "empty row":
        close(chain.filtered().dense(3), twin.filtered().dense(3))
    assert chain.sample(5).shape == (5, 3, 4)


BLOCK = torch.tensor([[0, 1], [2, 3]])  # states by block
BLOCK_OF_WORD = torch.tensor([0, 1, 1, 0])


def block_tables(seed=0):
    """Tables whose words are said by the states of one block only."""
    tables = Tables(num_states=4, seed=seed)
    closed = torch.ones(4, 4, dtype=torch.bool)
    for word, block in enumerate(BLOCK_OF_WORD):
        closed[BLOCK[block], word] = False
    start, table, emit = tables.leaves
    logs = start.log_softmax(-1), table.log_softmax(-1), emit.masked_fill(closed, -1e9).log_softmax(-1)
    return tables, logs


@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 1])])
def test_a_support_per_row(lengths):
    tables, logs = block_tables()
    x = torch.tensor([[0, 2, 3], [1, 1, 0]])
    got, handler = traced_log_prob(
        tensor_program, x, logs, lambda t: BLOCK[BLOCK_OF_WORD[x[:, t]]], lengths=lengths
    )
    chain = handler.chains["z_0"]
    rows = [x[b, : x.shape[1] if lengths is None else lengths[b]] for b in range(2)]
    truths = [PathTruth(logs[0], logs[1].expand(len(row) - 1, 4, 4), logs[2].T[row]) for row in rows]
    expected = sum(truth.log_prob for truth in truths)
    close(got, expected)
    close(tables.gradients(got)[:3], tables.gradients(expected)[:3])
    paths, log_prob = chain.viterbi()
    marginals, belief = chain.marginals(), chain.filtered()
    pairs = chain.pair_marginals()
    assert marginals.probs.shape == (2, 3, 2) and marginals.ids.shape == (2, 3, 2) and pairs.ids.shape == (2, 3, 2)
    samples = chain.sample(10)
    for b, truth in enumerate(truths):
        close(log_prob[b], truth.scores.max().detach())
        close(truth.score_of(paths[b, : truth.num_steps]), truth.scores.max().detach())
        close(marginals.dense(4)[b, : truth.num_steps], truth.marginals())
        close(belief.dense(4)[b].exp(), truth.filtered().exp())
        assert all(torch.isfinite(truth.score_of(path)) for path in samples[:, b, : truth.num_steps])


def test_states_at_their_sites():
    _, logs = block_tables()
    x = torch.tensor([[0, 2, 3], [1, 1, 0]])
    support = lambda t: BLOCK[BLOCK_OF_WORD[x[:, t]]]  # noqa: E731
    _, handler = traced_log_prob(tensor_program, x, logs, support)
    trace = poutine.trace(infer_states(tensor_program)).get_trace(x, logs, support)
    states = torch.stack([trace.nodes[f"z_{t}"]["value"] for t in range(3)], 1)
    assert torch.equal(states, handler.chains["z_0"].viterbi()[0])


def test_other_emissions_and_inputs():
    # what the lazy form has no spec for: an emission and a transition in free tensor code
    y, u = torch.randn(3, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    weight = torch.randn(3, 3, dtype=F64)
    loc = torch.tensor([-1.0, 0.0, 2.0], dtype=F64)

    def model(y):
        z = torch.zeros(3, dtype=torch.long)
        with pyro.plate("sequences", 3, dim=-1):
            for t in pyro.markov(range(4)):
                logits = weight[z] * u[:, t].unsqueeze(-1)
                z = pyro.sample(f"z_{t}", dist.Categorical(logits=logits), infer={"support": torch.arange(3)})
                pyro.sample(f"y_{t}", dist.StudentT(3.0, loc[z], 1.0), obs=y[:, t])
                pyro.sample(f"sign_{t}", dist.Normal(0.5 * loc[z], 1.0), obs=y[:, t])

    got, _ = traced_log_prob(model, y)
    total = 0.0
    for b in range(3):
        emit = dist.StudentT(3.0, loc, 1.0).log_prob(y[b].unsqueeze(-1))
        emit = emit + dist.Normal(0.5 * loc, 1.0).log_prob(y[b].unsqueeze(-1))
        matrices = torch.stack([(weight * u[b, t]).log_softmax(-1) for t in range(1, 4)])
        total = total + PathTruth((weight[0] * u[b, 0]).log_softmax(-1), matrices, emit).log_prob
    close(got, total)


def test_scale_and_outer_plate():
    tables, x = Tables(), words()
    once, _ = traced_log_prob(tensor_program, x, tables.logs(), everything())
    half, _ = traced_log_prob(poutine.scale(tensor_program, 0.5), x, tables.logs(), everything())
    close(half, 0.5 * once)


def test_a_state_that_is_observed():
    tables, x = Tables(), words(2, 4)
    fixed = poutine.condition(tensor_program, {"z_2": torch.tensor([1, 2])})
    states = torch.full((4, 2), -1)
    states[2] = torch.tensor([1, 2])
    close(
        traced_log_prob(fixed, x, tables.logs(), everything())[0],
        build_chain(*tables.specs(), x.T, states=states).log_prob().sum(),
    )


def test_a_long_chain():
    tables, x = Tables(), words(2, 90)
    got, handler = traced_log_prob(tensor_program, x, tables.logs(), everything())
    twin = build_chain(*tables.specs(), x.T)
    close(got, twin.log_prob().sum())
    assert torch.equal(handler.chains["z_0"].viterbi()[0], twin.viterbi()[0])


def test_a_row_without_plate():
    tables, x = Tables(), words()[0]
    start, table, emit = tables.logs()

    def model(x):
        z = None
        for t in pyro.markov(range(4)):
            law = dist.Categorical(logits=start if z is None else table[z])
            z = pyro.sample(f"z_{t}", law, infer={"support": torch.arange(3)})
            pyro.sample(f"x_{t}", dist.Categorical(logits=emit[z]), obs=x[t])

    close(traced_log_prob(model, x)[0], build_chain(*tables.specs(), x).log_prob())


# ------------------------------------------------------------------------------------------------ refusals
def of_order(lag):
    start, table, emit = Tables().logs()

    def model(x):
        states = []
        for t in range(len(x)):
            law = dist.Categorical(logits=start if t < lag else table[states[t - lag]])
            states.append(pyro.sample(f"z_{t}", law, infer={"support": torch.arange(3)}))
            pyro.sample(f"x_{t}", dist.Categorical(logits=emit[states[-1]]), obs=x[t])

    return model


@pytest.mark.parametrize("lag", [2, 3, 4, 6])
def test_higher_order_is_refused(lag):
    with pytest.raises(ValueError, match="must be first-order"):
        traced_log_prob(of_order(lag), words(1, 9)[0])


def test_an_observation_of_an_older_state_is_refused():
    start, table, emit = Tables().logs()

    def model(x):
        first = z = None
        for t in range(4):
            law = dist.Categorical(logits=start if z is None else table[z])
            z = pyro.sample(f"z_{t}", law, infer={"support": torch.arange(3)})
            first = z if first is None else first
            pyro.sample(f"x_{t}", dist.Categorical(logits=emit[first]), obs=x[t])

    with pytest.raises(ValueError, match="must be first-order"):
        traced_log_prob(model, words(1, 4)[0])


def test_bad_supports_are_refused():
    logs, x = Tables().logs(), words()
    with pytest.raises(ValueError, match="equal sizes"):
        traced_log_prob(tensor_program, x, logs, lambda t: torch.arange(2 + t % 2))
    for wrong in (torch.tensor(1), torch.tensor([0.5, 1.0])):
        with pytest.raises(ValueError, match="must hold integer ids"):
            traced_log_prob(tensor_program, x, logs, lambda t, wrong=wrong: wrong)


def test_padding_in_the_middle_is_refused():
    logs, x = Tables().logs(), words(3, 4)
    holes = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]).bool()

    def model(x):
        z, (start, table, emit) = None, logs
        with pyro.plate("sequences", 3, dim=-1):
            for t in pyro.markov(range(4)):
                with poutine.mask(mask=holes[:, t]):
                    law = dist.Categorical(logits=start if z is None else table[z])
                    z = pyro.sample(f"z_{t}", law, infer={"support": torch.arange(3)})
                    pyro.sample(f"x_{t}", dist.Categorical(logits=emit[z]), obs=x[:, t])

    with pytest.raises(ValueError, match="padding must come behind"):
        traced_log_prob(model, x)


def test_a_vectorised_loop_goes_step_by_step():
    logs, x = Tables().logs(), words()
    expected = traced_log_prob(tensor_program, x, logs, everything())[0]
    for loop in (markov, lambda steps: markov(steps, vectorize=False)):
        close(traced_log_prob(tensor_program, x, logs, everything(), loop=loop)[0], expected)


def test_an_impossible_row_is_named():
    start, table, emit = Tables().logs()
    emit = emit.clone().detach()
    emit[:, 3] = -float("inf")
    x = torch.tensor([[0, 1], [0, 3]])
    with pytest.raises(ValueError, match="row 1, step 1"):
        traced_log_prob(tensor_program, x, (start, table, emit), everything())


@pytest.mark.parametrize("query", ["next", "expected_counts", "missing_words", "sample_words"])
def test_queries_that_need_a_spec_are_refused(query):
    handler = BlockedEnum()
    with poutine.block(), handler:
        tensor_program(words(), Tables().logs(), everything())
    with pytest.raises(TypeError, match="support"):
        getattr(handler.chains["z_0"], query)()


def test_other_places_are_refused():
    start, table, emit = Tables().logs()

    def deeper(x):
        z = pyro.sample("z_0", dist.Categorical(logits=start), infer={"support": torch.arange(3)})
        with pyro.plate("tones", 4, dim=-1):
            pyro.sample("x_0", dist.Categorical(logits=emit[z]), obs=x)

    def scaled(x):
        z = pyro.sample("z_0", dist.Categorical(logits=start), infer={"support": torch.arange(3)})
        with poutine.scale(scale=0.5):
            pyro.sample("x_0", dist.Categorical(logits=emit[z]), obs=x[0])

    def unseen(x):
        z = pyro.sample("z_0", dist.Categorical(logits=start), infer={"support": torch.arange(3)})
        pyro.sample("x_0", dist.Categorical(logits=emit[z]))

    for model, message in ((deeper, "same plates"), (scaled, "scale"), (unseen, "'x_0' .* is not observed")):
        with pytest.raises(ValueError, match=message):
            traced_log_prob(model, words(1, 4)[0])


@pytest.mark.parametrize("loop", [pyro.markov, markov])
def test_programs_without_any_plate(loop):
    """One sequence, whose observations are carried on, beside a factor and an observed site that are no emissions."""
    words, numbers = torch.tensor([0, 1, 1, 0]), torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64)
    moves = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64, requires_grad=True)
    says = torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.3, 0.7]]], dtype=torch.float64)

    def model():
        z = w = torch.tensor(0)
        for t in loop(range(4)):
            z = pyro.sample(f"z_{t}", dist.Categorical(moves[z]), infer={"enumerate": "parallel"})
            w = pyro.sample(f"w_{t}", dist.Categorical(says[z, w]), obs=words[t])
            pyro.sample(f"v_{t}", dist.Normal(numbers.new_zeros(()), 1.0), obs=numbers[t])
            pyro.factor(f"f_{t}", numbers.new_tensor(-1.0))

    message, before = moves.new_tensor([1.0, 0.0]), 0
    for word in words.tolist():
        message, before = (message @ (moves / moves.sum(-1, keepdim=True))) * says[:, before, word], word
    expected = 4 - message.sum().log() - dist.Normal(0.0, 1.0).log_prob(numbers).sum()
    found = TraceBlockedEnum_ELBO(max_plate_nesting=0).differentiable_loss(model, lambda: None)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, moves), torch.autograd.grad(expected, moves))
