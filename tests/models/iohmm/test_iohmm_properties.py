"""Properties of the input-output HMM on random ones: any spread of weights, zeros, missing targets, one state."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles.discrete import enumerate_paths, forward_loop

from pplseq.models import IOHMM

close = torch.testing.assert_close
quick = settings(max_examples=20, deadline=None, derandomize=True)


@st.composite
def cases(draw):
    """(model, x, inputs, lengths)."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    num_states, rows, steps = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    outputs = draw(st.sampled_from(["categorical", "bernoulli", "gaussian"]))
    symbols, mealy = draw(st.booleans()), draw(st.booleans())
    graph = torch.rand(num_states, num_states) < 0.6
    graph[:, 0] = True  # no dead end
    model = IOHMM(
        num_states, outputs=outputs, num_outputs=2, mealy=mealy, graph=graph if draw(st.booleans()) else None,
        initial=draw(st.sampled_from(["constant", "inputs", "transition"])), hidden=draw(st.sampled_from([(), (3,)])),
        start_states=draw(st.sampled_from([None, [0]])), **({"num_symbols": 2} if symbols else {"num_inputs": 2}),
    )  # fmt: skip
    model.initialize(scale=draw(st.sampled_from([0.0, 1.0, 30.0])))
    inputs = torch.randint(2, (rows, steps)) if symbols else torch.randn(rows, steps, 2).double()
    x = torch.randint(2, (rows, steps)) if outputs == "categorical" else torch.randint(2, (rows, steps, 2)).double()
    gone = torch.rand(rows, steps) < draw(st.sampled_from([0.0, 0.4]))
    x = x.masked_fill(gone, -1) if outputs == "categorical" else x.masked_fill(gone.unsqueeze(-1), torch.nan)
    return model, x, inputs, torch.randint(1, steps + 1, (rows,))


def factors(model, x, inputs, row, length):
    """Initial (Z,), matrices (T-1, Z, Z) and emissions (T, Z) of one row, in logarithms, step by step."""
    seen = model.format.network_inputs(x, inputs)
    weights = [None if seen["initial"] is None else seen["initial"][row : row + 1]]
    transition, emission = model.specs(*weights)
    start, values = transition.initial_log_prob().reshape(-1), x[row, :length]
    moves = [transition.matrices(seen["transition"][row, t]) for t in range(length)]
    if model.initial == "transition":
        start = torch.logsumexp(start.unsqueeze(-1) + moves[0], 0)
    emit = []
    for t in range(length):
        if model.format.discrete and int(values[t]) < 0 or not model.format.discrete and bool(values[t].isnan().any()):
            emit.append(torch.zeros(model.num_states).double())
        elif emission.takes_inputs:
            emit.append(emission.at(seen["emission"][row, t]).log_likelihood(values[t]))
        else:
            emit.append(emission.log_likelihood(values[t]))
    return start, torch.stack(moves)[1:], torch.stack(emit)


@quick
@given(cases())
def test_likelihood_and_gradients_are_those_of_all_paths(case):
    model, x, inputs, lengths = case
    chain = model.posterior(x, lengths, inputs=inputs)
    total = 0.0
    for row, length in enumerate(lengths.tolist()):
        each = factors(model, x, inputs, row, length)
        paths, score = enumerate_paths(*each)
        close(chain.log_prob()[row], torch.logsumexp(score, 0).detach())
        close(chain.viterbi()[1][row], score.max().detach())
        total = total + forward_loop(*each)
    got = model.log_joint(x, lengths, inputs=inputs)
    close(got, total)
    parameters = list(model.parameters())
    first, second = (torch.autograd.grad(value, parameters, allow_unused=True) for value in (got, total))
    for a, b, parameter in zip(first, second, parameters, strict=True):
        a, b = (torch.zeros_like(parameter) if g is None else g for g in (a, b))
        assert torch.isfinite(a).all()
        if torch.isfinite(b).all():  # (the loop's logsumexp has no gradient where a state is impossible)
            close(a, b, rtol=1e-6, atol=1e-7)


@quick
@given(cases())
def test_a_prefix_is_filtered_as_in_the_whole(case):
    model, x, inputs, _ = case
    whole = model.filter(x, inputs=inputs).probs
    for length in range(1, x.shape[1] + 1):
        lengths = [length] * len(x)  # (B, 1) alone could be one sequence of B
        close(model.filter(x[:, :length], lengths, inputs=inputs[:, :length]).probs, whole[:, :length])
        ends = model.smooth(x[:, :length], lengths, inputs=inputs[:, :length]).probs[:, -1]
        close(ends, whole[:, length - 1])


@quick
@given(cases())
def test_the_closed_loop_gives_the_likelihood(case):
    """p(x) is the product of the predictions of each output."""
    model, x, inputs, lengths = case
    if model.outputs != "categorical":
        return
    predicted = model.one_step(x, lengths, inputs=inputs).outputs
    each = predicted.gather(-1, x.clamp_min(0).unsqueeze(-1)).squeeze(-1).log()
    used = (x >= 0) & (torch.arange(x.shape[1]) < lengths.unsqueeze(-1))
    close(torch.where(used, each, 0.0).sum(-1), model.log_prob(x, lengths, inputs=inputs))


@quick
@given(cases(), st.randoms(use_true_random=False))
def test_names_of_states_do_not_matter(case, random):
    model, x, inputs, lengths = case
    if model.start_states is not None or model.graph is not None or model.transition_network.kind == "layered":
        return
    order = torch.tensor(random.sample(range(model.num_states), model.num_states))
    other = IOHMM.from_config(model.config, {})
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name, value in other.named_parameters():
            of = 0 if name.endswith("weight") or "noise" in name else -2  # the dimension of states that rows belong to
            dims = {"initial_network": (-1,), "transition_network": (of, -1)}.get(name.split(".")[0], (of,))
            for dim in dims:
                value.copy_(value.index_select(dim, order))
    close(other.log_prob(x, lengths, inputs=inputs), model.log_prob(x, lengths, inputs=inputs))
    close(other.smooth(x, lengths, inputs=inputs).probs, model.smooth(x, lengths, inputs=inputs).probs[..., order])


def in_parts(**options):
    torch.manual_seed(3)
    inputs = {"num_inputs": {"transition": 2}, "num_symbols": {"emission": 3}}
    model = IOHMM(2, **inputs, mealy=True, outputs="categorical", num_outputs=3, **options)
    model.initialize()
    model.is_fitted = True
    return model


def test_online_takes_inputs_by_part(tmp_path):
    model, x = in_parts(), [1, 0, 2]
    inputs = {"transition": np.random.default_rng(0).normal(size=(3, 2)), "emission": np.array([2, 0, 1])}
    ahead = {"transition": np.ones((2, 2)), "emission": np.array([1, 2])}
    reader = model.online()
    expected = model.open_loop({part: value[None] for part, value in ahead.items()}).outputs
    torch.testing.assert_close(reader.forecast(future_inputs=ahead).word_log_probs.exp(), expected)
    for t in range(3):
        reader.step(x[t], inputs={part: value[t] for part, value in inputs.items()})
    assert abs(reader.log_prob - model.score(x, inputs=inputs)) < 1e-12
    expected = model.forecast(x, inputs=inputs, future_inputs=ahead).word_log_probs
    torch.testing.assert_close(reader.forecast(future_inputs=ahead).word_log_probs, expected)
    again = model.online(reader.save(tmp_path / "reader.json"))
    torch.testing.assert_close(again.forecast(future_inputs=ahead).word_log_probs, expected)


@pytest.mark.parametrize("feedback", [False, "transition"])
def test_rows_without_steps_are_forecast_from_their_start(feedback):
    model = in_parts(feedback=feedback)
    inputs = {"transition": torch.randn(2, 2, 2).double(), "emission": torch.tensor([[0, 1], [2, 2]])}
    ahead = {"transition": torch.ones(1, 2).double(), "emission": torch.tensor([1])}
    known = {"lengths": torch.tensor([2, 0]), "inputs": inputs}
    found = model.forecast(torch.tensor([[0, 1], [0, 0]]), future_inputs=ahead, num_samples=3, **known)
    following = {part: value[0] for part, value in ahead.items()}
    exact = model.predict_next(torch.tensor([[0, 1], [0, 0]]), next_inputs=following, **known)
    torch.testing.assert_close(found.word_log_probs[:, 0], exact.word_log_probs)
    rows = {"inputs": {part: [value[0], value[1, :0]] for part, value in inputs.items()}}
    in_lists = model.predict_next([torch.tensor([0, 1]), []], next_inputs=following, **rows)
    torch.testing.assert_close(in_lists.word_log_probs, exact.word_log_probs)
    in_lists = model.forecast([torch.tensor([0, 1]), []], future_inputs=ahead, num_samples=3, **rows)
    torch.testing.assert_close(in_lists.word_log_probs[:, 0], exact.word_log_probs)
    with pytest.raises(ValueError, match="x: sequence 1 is empty"):  # and its inputs are not
        model.predict_next([[0, 1], []], next_inputs=following, inputs={part: [*value] for part, value in inputs.items()})


def test_counts_of_rows_without_steps_are_forecast_beside_others():
    model = IOHMM(2, num_inputs=0, outputs=["binomial", "gamma"])
    x, trials = [np.array([[2.0, 0.5], [np.nan, 0.3]]), np.zeros((0, 2)), np.array([[9.0, 1.0]])], [[3, 3], [], [9]]
    model.fit([x[0], x[2]], trials=[trials[0], trials[2]], max_iterations=2, seed=0)
    found = model.forecast(x, 2, trials=trials, future_trials=4)
    for row in (0, 2):
        alone = model.forecast([x[row]], 2, trials=[trials[row]], future_trials=4)
        torch.testing.assert_close(found.means[row], alone.means[0])
    nothing = model.forecast([x[1]], 2, future_trials=4)
    torch.testing.assert_close(found.means[1], nothing.means[0])


@pytest.mark.parametrize("lengths", [None, [1, 1, 1]])
def test_a_column_is_what_the_inputs_beside_it_are(lengths):
    inputs = {"num_inputs": {"emission": 1}, "num_symbols": {"transition": 3}}
    model = IOHMM(2, **inputs, mealy=True, outputs="categorical", num_outputs=3)
    model.is_fitted = True
    x, symbols, column = np.array([0, 2, 1]), np.array([0, 1, 2]), np.array([[0.3], [-1.0], [2.0]])
    rows = [[0, 1, 2]] if lengths is None else [[0], [1], [2]]
    apart = {"transition": [symbols[row] for row in rows], "emission": [column[row] for row in rows]}
    expected = model.log_prob([x[row] for row in rows], inputs=apart)
    torch.testing.assert_close(model.log_prob(x, lengths, inputs={"transition": symbols, "emission": column}), expected)
