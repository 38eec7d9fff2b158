"""The input-output HMM in use: networks, tables, effects, bad input."""

import numpy as np
import pytest
import torch
from support.iohmm_models import GRAPH, LENGTHS, OPTIONS, data, make
from support.iohmm_truth import Truth
from support.oracles.discrete import generic_log_prob
from torch import nn

from pplseq.models import IOHMM
from pplseq.models.iohmm.networks import ConstantNetwork, LayeredNetwork, LinearNetwork, TableNetwork

close = torch.testing.assert_close


@pytest.fixture(params=OPTIONS)
def model(request):
    return make(request.param)


def gradients(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


# ---------------------------------------------------------------- networks
def test_networks_by_hand():
    torch.manual_seed(0)
    x, symbols = torch.randn(2, 5, 3).double(), torch.randint(4, (2, 5))
    linear = LinearNetwork(3, (2, 3), torch.float64)
    linear.randomise(1.0)
    for j in range(2):
        expected = x @ linear.weight[j, :3] + linear.weight[j, 3]
        close(linear(x)[..., j, :], expected)
    table = TableNetwork(4, (2, 3), torch.float64)
    table.randomise(1.0)
    close(table(symbols)[1, 2], table.logits[symbols[1, 2]])
    layered = LayeredNetwork(3, (2, 3), (5, 4), torch.float64)
    for j in range(2):
        value = x
        for weight in layered.layers:
            value = (x @ weight[j, :-1] if value is x else value.tanh() @ weight[j, :-1]) + weight[j, -1]
        close(layered(x)[..., j, :], value)
    lookup, start = (LayeredNetwork(4, shape, (5,), torch.float64, symbols=True) for shape in ((2, 3), (3,)))
    one_hot = nn.functional.one_hot(symbols, 4).double()
    for network, shape in ((lookup, (2, 3)), (start, (3,))):
        vectors = LayeredNetwork(4, shape, (5,), torch.float64)
        vectors.load_state_dict(network.state_dict())
        close(network(symbols), vectors(one_hot))
    assert ConstantNetwork((2, 3), torch.float64)().shape == (2, 3)


def test_a_graph_gives_exact_zeros_and_no_gradient():
    model = make("graph")
    x, inputs = data(model)
    curves = model.effect_curves(0, torch.linspace(-2, 2, 5))
    assert not curves[:, ~GRAPH].any() and (curves[:, GRAPH] > 0).all()
    (gradient,) = torch.autograd.grad(model.log_joint(x, inputs=inputs), [model.transition_network.weight])
    assert torch.isfinite(gradient).all() and not gradient.transpose(-1, -2)[~GRAPH].any()
    paths = model.posterior(x, inputs=inputs).sample(20)
    assert GRAPH[paths[..., :-1], paths[..., 1:]].all()
    counts = model.posterior(x, inputs=inputs).expected_counts().transition
    assert not counts[~GRAPH].any()


class Gate(nn.Module):
    """A module of a user's: one hidden layer for all states."""

    def __init__(self, num_inputs, *shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_inputs, 4), nn.ReLU(), nn.Linear(4, int(np.prod(shape))))

    def forward(self, inputs):
        return self.layers(inputs)


def own(seed=0):
    torch.manual_seed(seed)
    return IOHMM(
        3, num_inputs=2, num_outputs=2, outputs="gaussian", mealy=True, initial="inputs",
        transition=Gate(2, 3, 3), emission=Gate(2, 3, 2), initial_network=Gate(2, 3), priors={"emission": 2.0},
    )  # fmt: skip


def test_modules_of_ones_own(tmp_path):
    model = own()
    x, inputs = data(model)
    close(model.log_prob(x, inputs=inputs)[1], Truth(model, x, inputs, 1, 5).likelihood().log().detach())
    before = model.log_joint(x, inputs=inputs)
    assert all(bool(g.any()) for g in gradients(model, before))
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="initial, transition, emission networks of its user's"):
        IOHMM.load(tmp_path / "model")
    other = own(seed=1).load_weights(tmp_path / "model")
    close(other.log_joint(x, inputs=inputs), before)
    with pytest.raises(ValueError, match="built in another way"):
        make("vectors").load_weights(tmp_path / "model")
    with pytest.raises(ValueError, match="a network of your own must map inputs"):
        IOHMM(3, num_inputs=2, num_outputs=2, transition=nn.Linear(2, 4)).log_prob(
            torch.zeros(1, 2).long(), inputs=inputs[:1, :2]
        )
    table = TableNetwork(2, (3, 3), torch.float64)
    kept = IOHMM(3, num_symbols=np.int64(2), num_outputs=2, transition=table).transition_network
    assert kept is table and not kept.logits.any(), "weights of one's own must stay"
    with pytest.raises(ValueError, match=r"transition network must have shape \(3, 3\)"):
        IOHMM(3, num_symbols=2, num_outputs=2, transition=TableNetwork(2, (2, 2), torch.float64))
    with pytest.raises(ValueError, match="emission network: this part sees no inputs"):
        IOHMM(3, num_symbols=2, num_outputs=2, emission=TableNetwork(2, (3, 2), torch.float64))
    with pytest.raises(ValueError, match="transition network takes symbols, but this part sees vectors"):
        IOHMM(3, num_inputs=2, num_outputs=2, transition=table)
    with pytest.raises(TypeError, match="transition network must be a torch module"):
        IOHMM(3, num_inputs=2, num_outputs=2, transition=lambda u: u)


def test_saved_in_every_option(model, tmp_path):
    x, inputs = data(model)
    loaded = IOHMM.load(model.save(tmp_path / "model"))
    assert loaded.config == model.config and loaded.feedback == model.feedback
    close(loaded.log_prob(x, inputs=inputs), model.log_prob(x, inputs=inputs), rtol=0, atol=0)


def test_tables_from_probabilities():
    model = make("as the paper starts")
    transition = torch.zeros(3, 3, 3).double()
    transition[:, :, 1] = 1.0
    model._set_tables(transition=transition, emission=[[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    x, u = torch.zeros(1, 4).long(), torch.randint(3, (1, 4))
    close(model.log_prob(x, inputs=u), torch.zeros(1).double())
    assert model.log_prob(x + 1, inputs=u).tolist() == [-torch.inf]
    with pytest.raises(ValueError, match="row 0, step 0: observation 1 is impossible"):
        model.smooth(x + 1, inputs=u)
    close(model.effect_curves(None, [2, 0]), transition[:2])
    with pytest.raises(ValueError, match="emission: every row must hold probabilities that sum to 1"):
        model._set_tables(emission=[[0.2, 0.2], [1.0, 0.0], [0.5, 0.5]])
    with pytest.raises(ValueError, match=r"transition must have shape \(3, 3, 3\)"):
        model._set_tables(transition=torch.ones(3, 3))
    bits = make("bits", mealy=False)
    bits._set_tables(emission=[[0.25, 1.0]] * 3)
    close(bits.classify(torch.zeros(1, 2, 2)), torch.tensor([[0.25, 1.0]]).double())


def test_certain_outcomes_have_gradients():
    """Zeros in tables, as after EM: no NaN, neither here nor under Pyro's own enumeration."""
    model = IOHMM(2, num_symbols=2, outputs="bernoulli", num_outputs=1, initial="transition", start_states=[0], mealy=True)
    model._set_tables(
        transition=[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.5, 0.5]]], emission=[[[1.0], [0.0]], [[0.5], [0.25]]]
    )
    u = torch.tensor([[0, 1, 1, 0, 1]])
    x, *_ = model.sample(inputs=u, seed=0)
    got = model.log_joint(x, inputs=u)
    close(generic_log_prob(model, x, inputs=u), got)
    close(Truth(model, x, u, 0, 5).likelihood().log(), got)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(model, got))


def test_the_empty_string_is_answered_from_z_0():
    model = make("as the paper starts")
    inputs, lengths = torch.tensor([[1, 2], [0, 0], [0, 0]]), torch.tensor([2, 0, 1])
    got = model.classify(inputs, lengths)
    close(got[1], model.emission_network.logits[0].softmax(-1).detach())
    close(got[0], model.open_loop(inputs[:1]).outputs[0, 1])
    with pytest.raises(ValueError, match="sequence 1 is empty; only a model with initial='transition'"):
        make("symbols, moore").classify(inputs, lengths)


def test_targets_at_last_steps_only():
    model = make("symbols, moore")
    inputs = [[0, 1, 2], [1], [2, 2]]
    batch = model._as_batch([1, 0, 1], inputs=inputs)
    assert batch.x.tolist() == [[-1, -1, 1], [0, -1, -1], [-1, 1, -1]] and batch.lengths.tolist() == [3, 1, 2]
    probs = model.classify(inputs)
    assert model.score([1, 0, 1], inputs=inputs) == pytest.approx(
        float(probs[torch.arange(3), torch.tensor([1, 0, 1])].log().sum())
    )
    bits = make("bits")
    batch = bits._as_batch(torch.tensor([[1.0, 0.0]]), inputs=torch.zeros(1, 3, 2))
    assert batch.x[0, -1].tolist() == [1, 0] and batch.x[0, :2].isnan().all()
    with pytest.raises(ValueError, match="sequence 1 is empty, so that no step can bear its target"):
        model._as_batch(torch.tensor([0, 1]), torch.tensor([3, 0]), inputs=torch.zeros(2, 3).long())
    with pytest.raises(ValueError, match=r"one target a sequence must have shape \(3,\)"):
        model._as_batch([1, 0], inputs=inputs)


def test_single_inputs_and_outputs_may_be_plain_numbers():
    model = make("spherical")
    x, u = data(model)
    expected = model.score(x, LENGTHS, inputs=u)
    assert model.score(x.squeeze(-1).numpy(), LENGTHS.tolist(), inputs=u.squeeze(-1).numpy()) == expected
    flat = [[row[:n, 0].tolist() for row, n in zip(value, LENGTHS, strict=True)] for value in (x, u)]
    assert model.score(flat[0], inputs=flat[1]) == pytest.approx(expected)
    close(
        model.predict_next(flat[0], inputs=flat[1], next_inputs=0.5).means,
        model.forecast(flat[0], 1, inputs=flat[1], future_inputs=[0.5]).means[:, 0],
    )
    got = model.forecast(flat[0], inputs=flat[1], future_inputs=[0.5, 0.2])
    close(got.means, model.forecast(x, inputs=u, future_inputs=torch.tensor([[0.5], [0.2]]), lengths=LENGTHS).means)


def test_observed_and_partly_observed_states():
    model = make("vectors")
    x, inputs = data(model)
    states = torch.tensor([[0, -1, 2, -1, 1], [2, 0, 0, 0, 0], [-1, -1, -1, 0, 0]])
    got = model.log_prob(x, LENGTHS, inputs=inputs, states=states)
    for row, length in enumerate(LENGTHS.tolist()):
        truth = Truth(model, x, inputs, row, length)
        for t in range(length):
            if states[row, t] >= 0:
                density, state = truth.density(t), int(states[row, t])
                truth.__dict__.setdefault("seen", {})[t] = nn.functional.one_hot(torch.tensor(state), 3) * density
        original, seen = truth.density, truth.__dict__.get("seen", {})
        truth.density = lambda t, original=original, seen=seen: seen.get(t, None) if t in seen else original(t)
        close(got[row], truth.likelihood().log().detach())
    everything = model._as_batch(x, LENGTHS, states=states, inputs=inputs)
    close(model.posterior(everything.x, everything.lengths, **everything.known).log_prob(), got)
    assert model.score(x, LENGTHS, inputs=inputs, states=states) == pytest.approx(float(got.sum()))
    # the same as targets that are states
    model = make("states")
    x, inputs = data(model)
    x[0, 1:4] = -1
    silent = model.format.missing(3, 5)
    close(model.log_prob(silent, inputs=inputs, states=x), model.log_prob(x, inputs=inputs))


def test_effect_curves():
    model = make("vectors")
    curves = model.effect_curves(1, [0.0, 2.0], at=[0.5, 9.0])
    logits = model.transition_network(torch.tensor([0.5, 2.0]).double())
    close(curves[1], logits.softmax(-1).detach())
    start = model.effect_curves(0, [1.0], part="initial")
    close(start[0], model.initial_network(torch.tensor([1.0, 0.0]).double()).softmax(-1).detach())
    means = model.effect_curves(0, [1.0, 2.0, 3.0], part="emission")
    close(means[2], model.emission_network(torch.tensor([3.0, 0.0]).double()).detach())
    for arguments, message in (
        ((2, [0.0]), "feature must be the number of an input, 0..1, got 2"),
        ((None, [0.0]), "feature must be the number of an input"),
        ((0, [0.0], [1.0]), r"at must have shape \(U,\) = \(2,\)"),
        ((0, [0.0], None, "end"), "part must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            model.effect_curves(*arguments)
    with pytest.raises(ValueError, match="values must be symbols 0..2"):
        make("symbols, moore").effect_curves(None, [3])
    with pytest.raises(ValueError, match="emission sees no inputs"):
        make("symbols, moore").effect_curves(None, [0], part="emission")
    assert make("feedback of words").effect_curves(None, torch.arange(8)).shape == (8, 3, 3)


def test_free_parameters_are_counted():
    count = {name: make(name).num_free_parameters for name in OPTIONS}
    assert count["symbols, moore"] == 2 + 3 * 3 * 2 + 3
    assert count["symbols, mealy"] == 3 * 2 + 3 * 3 * 2 + 3 * 3
    assert count["as the paper starts"] == 0 + 18 + 3
    assert count["graph"] == 2 + 3 * (1 + 1 + 0) + 9
    assert count["left to right"] == 0 + 3 * (2 + 1 + 0) + 3
    assert count["bits"] == 2 + 18 + 3 * 3 * 2
    assert count["vectors"] == 6 + 18 + 18 + 6
    assert count["full covariances"] == 2 + 18 + 6 + 9
    assert count["tied covariance"] == 2 + 18 + 18 + 3
    assert count["spherical"] == 2 + 12 + 3 + 3
    assert count["states"] == 2 + 6
    assert count["one state"] == 0 + 0 + 6


# ---------------------------------------------------------------- bad input
BAD_OPTIONS = [
    (dict(num_outputs=2), "num_inputs, num_symbols: give the size of the inputs"),
    (dict(num_inputs=2, num_symbols=2, num_outputs=2), "has both"),
    (dict(num_inputs={"emission": 2}, num_outputs=2), "the emission part sees inputs only with mealy=True"),
    (dict(num_inputs={"transition": 2}, num_outputs=2, mealy=True), "mealy=True needs the size"),
    (dict(num_inputs={"start": 2}, num_outputs=2), "unknown part 'start'"),
    (dict(num_inputs=-1, num_outputs=2), "num_inputs must hold"),
    (dict(num_inputs=2), "num_outputs: say how many symbols"),
    (dict(num_inputs=2, num_outputs=0), "num_outputs must be at least 1, got 0"),
    (dict(num_inputs=2, num_outputs=2, outputs="posson"), "outputs: no family 'posson'. Did you mean 'poisson'"),
    (dict(num_inputs=2, outputs="states", mealy=True), "outputs='states': targets are the states"),
    (dict(num_inputs=2, num_outputs=2, graph=torch.tensor([[1, 1], [0, 0]]).bool()), "state 1 is a dead end"),
    (dict(num_inputs=2, num_outputs=2, graph=torch.ones(3, 3).bool()), r"graph must be a bool mask \(Z, Z\)"),
    (dict(num_inputs=2, num_outputs=2, graph="ring"), "graph must be"),
    (dict(num_inputs=2, num_outputs=2, start_states=[2]), "start_states must be among 0..1"),
    (dict(num_inputs=2, num_outputs=2, start_states=[]), "start_states must name at least one"),
    (dict(num_inputs=2, num_outputs=2, hidden=(0,)), "hidden must hold positive integers"),
    (dict(num_inputs=2, num_outputs=2, covariance_floor=0.0), "covariance_floor must be positive"),
    (dict(num_inputs=2, outputs="states", feedback=True), "feedback: with outputs='states'"),
    (dict(num_inputs=2, num_outputs=2, feedback="emission"), "feedback must be True, False or one of"),
]


@pytest.mark.parametrize("options, message", BAD_OPTIONS)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        IOHMM(2, **options)


def test_bad_data():
    model = make("vectors")
    x, u = data(model)
    nan = u.clone()
    nan[1, 3, 0] = torch.nan
    symbols = make("symbols, moore")
    ids, v = data(symbols)
    bits = make("bits")
    for call, error, message in (
        (lambda: model.log_prob(x, inputs=nan), ValueError, r"inputs: row 1, step 3 is \[nan, .*finite numbers"),
        (lambda: model.log_prob(x), ValueError, "this model needs inputs"),
        (lambda: model.log_prob(x, inputs=u[:, :4]), ValueError, "as many rows and steps as x"),
        (lambda: model.log_prob(x, inputs=u[..., :1]), ValueError, "U. with U = 2"),
        (lambda: model.log_prob(x, inputs={"end": u}), ValueError, "unknown part 'end'"),
        (lambda: model.log_prob(x / 0, inputs=u), ValueError, "outside its family: gaussian outputs are finite"),
        (lambda: model.log_prob(x.long(), inputs=u), TypeError, "x must be a floating-point tensor"),
        (lambda: bits.log_prob(x, inputs=u), ValueError, "bernoulli outputs are 0 and 1"),
        (lambda: symbols.log_prob(ids + 1, inputs=v), ValueError, "categorical outputs are 0..1"),
        (lambda: symbols.log_prob(ids, inputs=v + 2), ValueError, "expected symbols 0..2"),
        (lambda: symbols.log_prob(ids, inputs=v.double()), TypeError, "inputs must hold integers"),
        (lambda: symbols.log_prob(ids, inputs=v.tolist()), TypeError, "inputs must be a tensor"),
        (lambda: symbols.score(ids.tolist(), inputs=[[0, 1], [0], [1]]), ValueError, "x: sequence 0 has 5 steps, but that of"),
        (lambda: symbols.score(ids.tolist(), inputs=[[0, 1]]), ValueError, "x: 3 sequences, but inputs holds 1"),
        (
            lambda: symbols.score(ids.tolist(), LENGTHS, inputs=v.tolist()),
            ValueError,
            "sequences in a list have their own lengths",
        ),
        (lambda: symbols.score(ids.double(), inputs=v), TypeError, "x must be an integer tensor"),
        (lambda: symbols.score([0, 1, 1]), ValueError, "which also say how long rows are"),
        (lambda: symbols.log_prob(ids, states=ids + 5, inputs=v), ValueError, "states must have shape"),
        (lambda: symbols.sample(), ValueError, "this model needs inputs|num_steps"),
        (
            lambda: symbols.forecast(ids, inputs=v, future_inputs=v[:2]),
            ValueError,
            "future_inputs: must have one row for each of the 3",
        ),
        (
            lambda: symbols.forecast(ids, 2, inputs=v, future_inputs=v),
            ValueError,
            "future_inputs: must be of num_steps = 2 steps, got 5",
        ),
        (lambda: symbols.predict_next(ids, inputs=v), ValueError, "next_inputs: this model needs inputs"),
        (lambda: symbols.set_parameters(nothing=torch.zeros(1)), TypeError, "IOHMM has no parameter .nothing."),
    ):
        with pytest.raises(error, match=message):
            call()
    # what stands behind the end of a row does not count
    close(model.log_prob(x, torch.tensor([5, 3, 5]), inputs=nan)[[0, 2]], model.log_prob(x, inputs=u)[[0, 2]])


def test_inputs_say_how_much_is_drawn():
    model = IOHMM(2, num_inputs=1, num_outputs=3, outputs="categorical")
    inputs = torch.zeros(2, 4, 1, dtype=torch.float64)
    assert model.sample(4, 2, inputs=inputs).x.shape == model.sample(inputs=inputs).x.shape == (2, 4)
    for wrong in ((5,), (None, 3)):
        with pytest.raises(ValueError, match="2 sequences of 4 steps"):
            model.sample(*wrong, inputs=inputs)


def test_flat_targets_beside_one_column_of_inputs():
    model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1)
    x, inputs = torch.randn(5, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="one sequence of 5 or 5 sequences of one step"):
        model._as_batch(x, inputs=inputs)
    assert model._as_batch(x[None], inputs=inputs[None]).x.shape == (1, 5, 1)
    assert model._as_batch(x[:, None], inputs=inputs[:, :, None]).x.shape == (5, 1, 1)
    vectors = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=2)  # of one sequence, and so is the column
    assert vectors._as_batch(torch.randn(5, 2), inputs=inputs).known["inputs"].shape == (1, 5, 1)
    assert vectors._as_batch(torch.randn(5, 2), [3, 2], inputs=inputs).known["inputs"].shape == (2, 3, 1)
