"""Inputs that are numbers of symbols: vectors stand for them, as if symbols were numbers 0 or 1 under weights of low rank."""

import numpy as np
import pytest
import torch

from pplseq.models import IOHMM
from pplseq.models.iohmm.embeddings import EmbeddedNetwork

SYMBOLS = 7
EMBEDDED = {"num_inputs": 3, "embeddings": {1: (SYMBOLS, 2)}, "mealy": True, "initial": "inputs"}
OUTPUTS = {
    "categorical": dict(num_outputs=3),
    "bernoulli": dict(outputs="bernoulli", num_outputs=2),
    "gaussian": dict(outputs="gaussian", num_outputs=2),
    "columns": dict(outputs=["normal", "poisson"]),
}


def drawn_inputs(rows=4, steps=6, symbols=SYMBOLS):
    inputs = torch.randn(rows, steps, 3).double()
    inputs[..., 1] = torch.randint(symbols, (rows, steps)).double()
    return inputs


def pair(**options):
    """A model with embeddings, and the same without: symbols one-hot, the vectors' weights multiplied out."""
    torch.manual_seed(3)
    embedded = IOHMM(3, **EMBEDDED, **options)
    plain = IOHMM(3, num_inputs=2 + SYMBOLS, mealy=True, initial="inputs", **options)
    for part in ("initial", "transition", "emission"):
        one, other = embedded.network(part), plain.network(part)
        weight = one.top.weight.detach()
        vectors = one.tables[0].detach() @ weight[..., 2:4, :]
        other.weight.data = torch.cat([weight[..., :2, :], vectors, weight[..., -1:, :]], -2)
    if embedded.noise is not None:
        plain.noise.load_state_dict(embedded.noise.state_dict())
    return embedded, plain


def one_hot(inputs):
    return torch.cat([inputs[..., [0, 2]], torch.nn.functional.one_hot(inputs[..., 1].long(), SYMBOLS).double()], -1)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_as_numbers_0_and_1_under_the_product(outputs):
    embedded, plain = pair(**OUTPUTS[outputs])
    inputs = drawn_inputs()
    x = plain.sample(inputs=one_hot(inputs), seed=1).x
    lengths = torch.tensor([6, 2, 6, 5])
    for model, given in ((embedded, inputs), (plain, one_hot(inputs))):
        model.zero_grad()
        model.log_joint(x, lengths, inputs=given).sum().backward()
    torch.testing.assert_close(embedded.score(x, lengths, inputs=inputs), plain.score(x, lengths, inputs=one_hot(inputs)))
    for part in ("initial", "transition", "emission"):
        one, other = embedded.network(part), plain.network(part)
        whole, weight = other.weight.grad, one.top.weight.detach()
        torch.testing.assert_close(one.top.weight.grad[..., [0, 1, -1], :], whole[..., [0, 1, -1], :])
        torch.testing.assert_close(
            one.top.weight.grad[..., 2:4, :], one.tables[0].detach().mT @ whole[..., 2:-1, :], check_stride=False
        )
        own = whole[..., 2:-1, :] @ weight[..., 2:4, :].mT  # summed over states, which share the vectors
        torch.testing.assert_close(one.tables[0].grad, own if own.dim() == 2 else own.sum(0))
    torch.testing.assert_close(embedded.one_step(x, inputs=inputs).outputs, plain.one_step(x, inputs=one_hot(inputs)).outputs)


@pytest.mark.parametrize(
    ("method", "outputs", "hidden"),
    [("em", outputs, ()) for outputs in OUTPUTS]
    + [("gem", "gaussian", ()), ("sgd", "columns", ()), ("em", "columns", (4,)), ("gem", "categorical", (4,)),
       ("sgd", "bernoulli", (4,))],
)  # fmt: skip
def test_every_way_to_fit_goes_uphill(method, outputs, hidden):
    embedded, _ = pair(**OUTPUTS[outputs])
    inputs = drawn_inputs(5, 8)
    x = embedded.sample(inputs=inputs, seed=2).x
    model = IOHMM(2, **EMBEDDED, **OUTPUTS[outputs], hidden=hidden)
    steps = {"num_steps": 30} if method == "sgd" else {"max_iterations": 4}
    model.fit(x, inputs=inputs, method=method, num_restarts=2, seed=0, **steps)
    if method == "sgd":
        assert model.history.losses[-1] < model.history.losses[0]
    else:
        assert (np.diff(model.history.log_likelihoods) > -1e-8).all()
        assert model.history.log_likelihoods[-1] == pytest.approx(model.score(x, inputs=inputs), abs=1e-5)


def test_many_symbols_of_few_kinds_are_learned_with_fewer_numbers():
    """What 20 symbols do to two states is of one dimension: the slopes of both are found, with a better BIC."""
    generator = torch.Generator().manual_seed(0)
    size, strength = 20, torch.linspace(-2, 2, 20).double()[torch.randperm(20, generator=torch.Generator().manual_seed(1))]
    symbol = torch.randint(size, (6, 100), generator=generator)
    state = torch.arange(100).div(25, rounding_mode="floor").remainder(2).expand(6, -1)
    mean = torch.where(state == 0, 1.5 * strength[symbol], 3 - strength[symbol])
    x = (mean + 0.3 * torch.randn(mean.shape, generator=generator).double()).unsqueeze(-1)
    fit = dict(num_restarts=6, seed=0)
    common = dict(outputs="gaussian", num_outputs=1, mealy=True)
    coded = symbol.unsqueeze(-1).double()
    embedded = IOHMM(2, num_inputs={"emission": 1}, embeddings={0: (size, 1)}, **common)
    embedded.fit(x, inputs={"emission": coded}, max_iterations=60, **fit)
    given = {"emission": torch.nn.functional.one_hot(symbol, size)[..., 1:].double()}
    plain = IOHMM(2, num_inputs={"emission": size - 1}, **common).fit(x, inputs=given, **fit)
    assert embedded.num_free_parameters == plain.num_free_parameters - (size - 2)  # a matrix of rank 1
    assert embedded.bic(x, inputs={"emission": coded}) < plain.bic(x, inputs=given)
    found = embedded.effect_curves(0, torch.arange(size).double(), part="emission")[..., 0]
    slopes = [np.polyfit(strength, found[:, own], 1)[0] for own in range(2)]
    assert sorted(slopes) == pytest.approx([-1, 1.5], abs=0.1)


@pytest.mark.parametrize("hidden", [(), (3,)])
def test_no_more_numbers_count_than_of_symbols_one_hot(hidden):
    common = dict(outputs="gaussian", num_outputs=1, mealy=True, hidden=hidden)
    most = IOHMM(2, num_inputs={"emission": 11}, **common).num_free_parameters
    counts = [
        IOHMM(2, num_inputs={"emission": 1}, embeddings={0: (12, width)}, **common).num_free_parameters
        for width in range(1, 12)
    ]
    assert counts == sorted(counts) and counts[-1] == most
    responses = 2 * (hidden or (1,))[0]  # the matrix of effects is (11, responses): of that rank it is any matrix
    assert counts[responses - 1] == most and most - counts[0] == 10 * (responses - 1)


def test_symbols_that_training_lacks_are_like_the_others_on_average():
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randint(1, SYMBOLS, (5, 30, 1), generator=generator).double()
    lengths = torch.tensor([30, 30, 30, 12, 30])
    symbols[3, 12:] = 0.0  # behind the end
    y = symbols / 3 + 0.1 * torch.randn(5, 30, 1, generator=generator).double()
    y[0, 5], symbols[0, 5] = torch.nan, 0.0  # without a target it tells outputs nothing
    options = dict(num_inputs={"emission": 1}, embeddings={0: (SYMBOLS, 2)}, outputs="gaussian", num_outputs=1, mealy=True)
    model = IOHMM(1, **options).fit(y, lengths, inputs=symbols, num_restarts=2, seed=0)
    curve = model.effect_curves(0, torch.arange(SYMBOLS).double(), part="emission")[:, 0, 0]
    assert float(curve[0]) == pytest.approx(float(curve[1:].mean()), abs=1e-8)
    # what another fit has told of them stays
    table = model.network("emission").tables[0]
    table.data[0] = 7.0
    model.fit(y, lengths, inputs=symbols, warm_start=True, max_iterations=1)
    assert bool((table[0] == 7).all())


def test_numbers_of_numpy_are_numbers(tmp_path):
    size, width = np.array([SYMBOLS, 2])
    model = IOHMM(2, num_inputs=3, num_outputs=3, embeddings={np.int64(1): (size, width)})
    model.save(tmp_path / "model")
    assert IOHMM.load(tmp_path / "model").embeddings == {1: (SYMBOLS, 2)}


def test_a_folder_keeps_the_vectors(tmp_path):
    embedded, _ = pair(**OUTPUTS["gaussian"])
    embedded.save(tmp_path / "model")
    again = IOHMM.load(tmp_path / "model")
    inputs = drawn_inputs()
    x = embedded.sample(inputs=inputs, seed=1).x
    assert again.embeddings == {1: (SYMBOLS, 2)} and isinstance(again.network("transition"), EmbeddedNetwork)
    torch.testing.assert_close(again.score(x, inputs=inputs), embedded.score(x, inputs=inputs))
    torch.testing.assert_close(IOHMM(**embedded.get_params()).embeddings, embedded.embeddings)


def test_past_outputs_stand_behind_the_inputs():
    model = IOHMM(2, **EMBEDDED, **OUTPUTS["gaussian"], feedback="emission")
    inputs = drawn_inputs()
    x = model.sample(inputs=inputs, seed=0).x
    assert model.network("emission").num_inputs == 3 + 2 + 1
    assert np.isfinite(model.score(x, inputs=inputs))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"embeddings": {3: (5, 2)}}, "embeddings: expected columns 0..2 of the inputs of initial, got 3"),
        ({"embeddings": {1: (5, 5)}}, "embeddings: of 5 symbols expected 1 to 4 dimensions, got 5 for column 1"),
        ({"embeddings": {1: 5}}, "embeddings: expected a mapping from columns"),
        ({"embeddings": {1: (1, 1)}}, "embeddings: expected 2 symbols or more in column 1, got 1"),
        (
            {"embeddings": {0: (5, 2)}, "num_inputs": 0, "initial": "constant", "mealy": False},
            "embeddings: expected columns of the inputs of transition, which sees none",
        ),
        ({"embeddings": {1: (5, 0.5)}}, "embeddings: expected a mapping from columns"),
        ({"embeddings": [(1, 5, 2), (1, 5, 2)]}, "embeddings: expected each column once"),
        ({"embeddings": {1: (5, 2)}, "num_inputs": None, "num_symbols": 4}, "embeddings: they are of columns of real inputs"),
    ],
)
def test_what_is_no_embedding(options, message):
    with pytest.raises(ValueError, match=message):
        IOHMM(2, **(EMBEDDED | OUTPUTS["categorical"] | options))


def test_what_is_no_number_of_a_symbol():
    model = IOHMM(2, **EMBEDDED, **OUTPUTS["categorical"])
    inputs = drawn_inputs()
    x = torch.zeros(4, 6, dtype=torch.long)
    for value in (0.5, -1.0, 7.0):
        inputs[2, 3, 1] = value
        with pytest.raises(ValueError, match="inputs: row 2, step 3 is .* numbers of symbols, 0..6 in column 1"):
            model.score(x, inputs=inputs)
    assert np.isfinite(model.score(x, torch.tensor([6, 6, 3, 6]), inputs=inputs))  # behind the end
    with pytest.raises(ValueError, match="summary: the initial network embeds symbols"):
        model.summary(x, inputs=drawn_inputs())
