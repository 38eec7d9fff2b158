"""IOHMM.fit: many kinds of models and data, ways to fit, and the choice among restarts."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pplseq.models import IOHMM
from pplseq.models.iohmm.fit import load_restart
from pplseq.models.iohmm.restarts.history import RestartBlock

B, T, U, L = 12, 8, 2, 3
KINDS = {
    "symbols, words": (dict(num_symbols=L, num_outputs=4), "words", "symbols"),
    "symbols, words, Mealy, start by input": (
        dict(num_symbols=L, num_outputs=4, mealy=True, initial="inputs"), "words", "symbols",
    ),
    "vectors, words, graph": (dict(num_inputs=U, num_outputs=4, mealy=True, graph="left_right"), "words", "vectors"),
    "vectors, bits": (dict(num_inputs=U, outputs="bernoulli", num_outputs=2, initial="transition"), "bits", "vectors"),
    "vectors, bits, Mealy": (dict(num_inputs=U, outputs="bernoulli", num_outputs=2, mealy=True), "bits", "vectors"),
    "vectors, vectors, Mealy": (
        dict(num_inputs=U, outputs="gaussian", num_outputs=2, mealy=True, initial="inputs"), "vectors", "vectors",
    ),
    "symbols, vectors, full": (
        dict(num_symbols=L, outputs="gaussian", num_outputs=2, covariance="full", start_states=[0]), "vectors", "symbols",
    ),
    "symbols, vectors, tied": (
        dict(num_symbols=L, outputs="gaussian", num_outputs=2, covariance="tied", mealy=True), "vectors", "symbols",
    ),
    "vectors, vectors, spherical": (
        dict(num_inputs=U, outputs="gaussian", num_outputs=2, covariance="spherical"), "vectors", "vectors",
    ),
    "targets are states": (dict(num_symbols=L, outputs="states", initial="transition"), "states", "symbols"),
    "layers": (dict(num_inputs=U, num_outputs=4, hidden=(3,), mealy=True), "words", "vectors"),
    "layers, vectors": (
        dict(num_inputs=U, outputs="gaussian", num_outputs=2, hidden={"transition": (3,)}), "vectors", "vectors",
    ),
    "feedback": (dict(num_symbols=L, num_outputs=4, feedback=True), "words", "symbols"),
    "feedback, vectors": (dict(num_inputs=U, outputs="gaussian", num_outputs=2, feedback=True), "vectors", "vectors"),
    "different inputs": (
        dict(num_inputs={"emission": 1}, num_symbols={"transition": L}, mealy=True, num_outputs=4), "words", "both",
    ),
}  # fmt: skip


def data(outputs, inputs, missing=0.2):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, T + 1, (B,), generator=generator).tolist()
    words = [torch.randint(4, (n,), generator=generator) for n in lengths]
    gone = [torch.rand(n, generator=generator) < missing for n in lengths]
    symbols = [(w + torch.randint(2, w.shape, generator=generator)) % L for w in words]
    vectors = [
        torch.randn(n, U, generator=generator, dtype=torch.float64) + w.unsqueeze(-1)
        for n, w in zip(lengths, words, strict=True)
    ]
    if outputs == "words":
        x = [w.masked_fill(g, -1) for w, g in zip(words, gone, strict=True)]
    elif outputs == "states":
        x = [(w % 3).masked_fill(g, -1) for w, g in zip(words, gone, strict=True)]
    elif outputs == "bits":
        x = [
            torch.stack([w % 2, w // 2], -1).double().masked_fill(g.unsqueeze(-1), torch.nan)
            for w, g in zip(words, gone, strict=True)
        ]
    else:
        noise = [torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in lengths]
        x = [
            (e + 3 * w.unsqueeze(-1)).masked_fill(g.unsqueeze(-1), torch.nan)
            for e, w, g in zip(noise, words, gone, strict=True)
        ]
    together = {"emission": [v[:, :1] for v in vectors], "transition": symbols}
    return x, {"symbols": symbols, "vectors": vectors, "both": together}[inputs]


@pytest.mark.parametrize("kind", KINDS)
def test_what_restarts_learn_is_what_the_model_says(kind):
    """The likelihood of the learning side is the chain's, before and after; it grows; and single fits end in the same place."""
    options, outputs, inputs = KINDS[kind]
    x, u = data(outputs, inputs)
    torch.manual_seed(0)
    model = IOHMM(3, **options)
    before = model.score(x, inputs=u)
    model.fit(x, inputs=u, warm_start=True, max_iterations=3, tolerance=0.0)
    history = model.history
    assert_close(history.log_likelihoods[0], before, rtol=1e-9, atol=1e-9)
    assert_close(history.log_likelihoods[-1], model.score(x, inputs=u), rtol=1e-9, atol=1e-9)
    assert history.log_likelihoods == sorted(history.log_likelihoods) and len(history.log_likelihoods) == 4
    model.fit(x, inputs=u, num_restarts=5, seed=1, max_iterations=4, tolerance=0.0)
    report = model.history.restarts
    assert len(report) == 5 and report.chosen in report.kept
    assert_close(float(report.log_likelihoods[report.chosen]), model.score(x, inputs=u), rtol=1e-9, atol=1e-9)
    assert bool((report.log_likelihoods[report.kept] <= report.log_likelihoods[report.chosen]).all())


@pytest.mark.parametrize(
    ("kind", "covariance"),
    [("vectors, bits, Mealy", None)]
    + [("symbols, vectors, full", c) for c in ("diag", "full", "tied", "spherical")]
    + [("vectors, vectors, Mealy", c) for c in ("diag", "full")]
    + [("layers, vectors", "full")],
)
def test_vectors_that_lack_some_dimensions(kind, covariance):
    options, outputs, inputs = KINDS[kind]
    x, u = data(outputs, inputs)
    for k, row in enumerate(x):
        row[k % 2 :: 3, k % 2] = torch.nan
    options = options | ({} if covariance is None else dict(covariance=covariance))
    torch.manual_seed(0)
    model = IOHMM(2, **options)
    before = model.score(x, inputs=u)
    model.fit(x, inputs=u, warm_start=True, max_iterations=4, tolerance=0.0)
    found = model.history.log_likelihoods
    assert_close([found[0], found[-1]], [before, model.score(x, inputs=u)], rtol=1e-8, atol=1e-8)
    assert found == sorted(found) and len(found) == 5
    if covariance is None or "layers" in kind:  # separable bits have no maximum
        return
    model.fit(x, inputs=u, warm_start=True, max_iterations=100, tolerance=1e-9)
    batch = model._as_batch(x, inputs=u)
    objective = model.log_joint(batch.x, batch.lengths, **batch.known)
    for gradient in torch.autograd.grad(objective, [*model.emission_network.parameters(), *model.noise.parameters()]):
        assert float(gradient.abs().max()) < 0.05  # where EM stops the likelihood is flat


def test_observed_states_and_final_targets():
    generator = torch.Generator().manual_seed(0)
    u = torch.randint(2, (30, 6), generator=generator)
    parity = u.cumsum(1) % 2
    model = IOHMM(2, num_symbols=2, num_outputs=2, initial="transition")
    model.fit(parity[:, -1], inputs=u, num_restarts=30, seed=0, max_iterations=200)  # one target a sequence
    assert bool((model.classify(u).argmax(-1) == parity[:, -1]).all())
    states = torch.where(torch.rand(30, 6, generator=generator) < 0.5, parity, -1)
    model.fit(parity[:, -1], inputs=u, states=states, seed=0, max_iterations=50)
    assert bool((model.decode(parity, inputs=u) == parity).all())  # states have their names now


def test_softmax_and_least_squares_recover_a_system():
    torch.manual_seed(0)
    truth = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1, mealy=True)
    with torch.no_grad():
        truth.transition_network.weight.copy_(torch.tensor([[[-3.0, 3.0], [1.0, -1.0]], [[3.0, -3.0], [-1.0, 1.0]]]))
        truth.emission_network.weight.copy_(torch.tensor([[[2.0], [1.0]], [[-1.0], [-3.0]]]))
        truth.noise.set(torch.tensor([[[0.04]], [[0.25]]], dtype=torch.float64))
    u = torch.randn(20, 50, 1, dtype=torch.float64)
    x, states, _ = truth.sample(inputs=u, seed=1)
    model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1, mealy=True)
    model.fit(x, inputs=u, num_restarts=2, seed=0)
    assert model.history.converged
    assert model.score(x, inputs=u) > truth.score(x, inputs=u)
    order = model.emission_network.weight[:, 1, 0].argsort(descending=True)
    assert_close(model.emission_network.weight[order], truth.emission_network.weight, rtol=0.05, atol=0.05)
    assert_close(model.noise.covariances()[order], truth.noise.covariances(), rtol=0.1, atol=0.01)
    value = torch.linspace(-2, 2, 9, dtype=torch.float64).unsqueeze(-1)
    found, expected = (m.transition_network(value).softmax(-1) for m in (model, truth))
    assert_close(found[:, order][:, :, order], expected, rtol=0, atol=0.08)
    assert float((order[states] == model.decode(x, inputs=u)).double().mean()) > 0.97


SYMBOLS, VECTORS, LAYERS = dict(num_symbols=L), dict(num_inputs=U, mealy=True), dict(num_inputs=U, hidden=(3,))


@pytest.mark.parametrize(
    ("family", "options"),
    [("words", SYMBOLS), ("words", VECTORS), ("bits", VECTORS), ("bits", LAYERS), ("vectors", SYMBOLS), ("vectors", LAYERS)],
)
def test_with_priors_em_climbs_the_posterior(options, family):
    x, u = data(family, "symbols" if "num_symbols" in options else "vectors")
    outputs = {"words": dict(num_outputs=4), "bits": dict(outputs="bernoulli", num_outputs=2)}
    outputs["vectors"] = dict(outputs="gaussian", num_outputs=2)
    model = IOHMM(2, **options, **outputs[family], priors=True)
    exact = not options.get("hidden") and family != "vectors"
    model.fit(x, inputs=u, seed=0, max_iterations=400 if exact else 8, tolerance=1e-10 if exact else 0.0)
    history = model.history
    assert history.log_posteriors == sorted(history.log_posteriors)
    batch = model._as_batch(x, inputs=u)
    objective = model.log_joint(batch.x, batch.lengths, **batch.known)
    assert_close(float(objective.detach()), history.log_posteriors[-1], rtol=1e-9, atol=1e-9)
    if exact:
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(objective, list(model.parameters()))])
        assert float(gradient.abs().max()) < 1e-2


@pytest.mark.parametrize("method", ["gem", "sgd"])
def test_gradients_learn_too(method):
    x, u = data("words", "vectors")
    model = IOHMM(2, num_inputs=U, num_outputs=4, hidden=(4,))
    before = model.score(x, inputs=u)
    options = dict(max_iterations=15) if method == "gem" else dict(batch_size=5, num_steps=60)
    model.fit(x, inputs=u, method=method, num_restarts=3, seed=0, **options)
    assert model.score(x, inputs=u) > before + 5
    assert model.history.method == method
    assert_close(model.history.log_likelihoods[-1], model.score(x, inputs=u), rtol=1e-9, atol=1e-9)


def test_a_module_of_ones_own():
    x, u = data("words", "vectors")
    net = nn.Sequential(nn.Linear(U, 5), nn.Tanh(), nn.Linear(5, 4))
    model = IOHMM(2, num_inputs=U, num_outputs=4, transition=net)
    before = model.score(x, inputs=u)
    model.fit(x, inputs=u, num_restarts=4, seed=0, max_iterations=10)
    assert model.score(x, inputs=u) > before
    assert_close(model.history.log_likelihoods[-1], model.score(x, inputs=u), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_distributions_over_weights(method):
    x, u = data("words", "symbols")
    model = IOHMM(2, num_symbols=L, num_outputs=4, priors=True)
    options = dict(num_steps=10) if method == "svi" else dict(num_samples=4, warmup_steps=4, max_tree_depth=2)
    model.fit(x, inputs=u, method=method, seed=0, **options)
    assert model.history.method == method
    if method == "nuts":
        assert model.history.samples["transition_network.logits"].shape == (4, L, 2, 2)


# ---------------------------------------------------------------- choices
def parity_data(rows=24, seed=0):
    u = torch.randint(2, (rows, 6), generator=torch.Generator().manual_seed(seed))
    return u.sum(1) % 2, u


def test_blocks_of_settings_and_the_smallest_consistent():
    x, u = parity_data()
    model = IOHMM(2, num_symbols=2, num_outputs=2, initial="transition")
    blocks = [RestartBlock(10, concentration=0.5, fixed_start=True), dict(num_restarts=5, prior=1.5, prior_iterations=20)]
    model.fit(x, inputs=u, num_restarts=blocks, select="smallest_consistent", seed=0, max_iterations=200)
    report = model.history.restarts
    assert report.block.tolist() == [0] * 10 + [1] * 5
    assert float(report.scores[report.chosen]) == 1 and "15 restarts" in report.summary()
    right = [float((_labels(model, report, r, u) == x).double().mean()) for r in range(15)]
    expected = [float(share == 1) for share in right]
    assert [s for s in report.scores.tolist() if s == s] == [
        e for e, s in zip(expected, report.scores.tolist(), strict=True) if s == s
    ]


def _labels(model, report, restart, u):
    load_restart(model, report.parameters, restart)
    return model.classify(u).argmax(-1)


def test_validation_and_sizes():
    x, u = parity_data()
    other, v = parity_data(rows=30, seed=7)
    held_out = {"x": other, "inputs": v}
    options = dict(num_symbols=2, num_outputs=2, initial="transition")
    fit = dict(num_restarts=10, seed=0, max_iterations=100)
    model = IOHMM(2, **options).fit(x, inputs=u, select="validation", validation=held_out, **fit)
    report = model.history.restarts
    assert_close(float(report.scores[report.chosen]), model.score(**held_out), rtol=1e-8, atol=1e-8)
    assert float(report.scores[report.kept].max()) == float(report.scores[report.chosen])
    small = IOHMM.fit_sizes([1, 2, 3], x, inputs=u, model=options, select="smallest_consistent", **fit)
    assert small.num_states == 2 and [size for size, _ in small.history.sizes] == [1, 2]
    best = IOHMM.fit_sizes([1, 2], x, inputs=u, model=options, select="bic", **fit)
    assert_close(max(score for _, score in best.history.sizes), -best.bic(x, inputs=u) / 2, rtol=1e-6, atol=1e-6)


def test_collapsed_restarts_are_dropped_and_told(monkeypatch):
    x, u = data("vectors", "symbols")
    import pplseq.models.iohmm.fit as fitting

    draw = fitting.draw_parameters

    def broken(problem, blocks):
        parameters = draw(problem, blocks)
        parameters["emission"]["logits"][..., 1] = torch.nan
        return parameters

    monkeypatch.setattr(fitting, "draw_parameters", broken)
    model = IOHMM(2, num_symbols=L, outputs="gaussian", num_outputs=2)
    with pytest.warns(RuntimeWarning, match="1 of 3 restarts collapsed and were dropped; restart 1: its log-likelihood is NaN"):
        model.fit(x, inputs=u, num_restarts=3, seed=0, max_iterations=5)
    assert 1 in model.history.restarts.dropped and model.history.restarts.chosen != 1
    monkeypatch.setattr(
        fitting,
        "draw_parameters",
        lambda p, b: {k: {n: v * torch.nan for n, v in w.items()} for k, w in draw(p, b).items()},
    )
    with pytest.raises(ArithmeticError, match="all 2 restarts collapsed"):
        model.fit(x, inputs=u, num_restarts=2)


def test_groups_of_restarts_that_fit_into_memory(monkeypatch):
    x, u = data("words", "vectors")
    model = IOHMM(2, num_inputs=U, num_outputs=4)
    blocks = [RestartBlock(3), RestartBlock(4, concentration=0.3)]
    monkeypatch.setattr("pplseq.models.iohmm.fit.CELLS", 1000)
    model.fit(x, inputs=u, num_restarts=blocks, seed=0, max_iterations=5, tolerance=0.0)
    report = model.history.restarts
    assert len(report) == 7 and report.trace.shape == (6, 7) and report.block.tolist() == [0] * 3 + [1] * 4
    assert_close(float(report.log_likelihoods[report.chosen]), model.score(x, inputs=u), rtol=1e-9, atol=1e-9)


def test_repeatable_and_the_generator_left_alone():
    x, u = data("words", "symbols")
    model = IOHMM(2, num_symbols=L, num_outputs=4)
    torch.manual_seed(5)
    first = model.fit(x, inputs=u, num_restarts=4, seed=3, max_iterations=3).score(x, inputs=u)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert_close(torch.rand(1), after)
    assert model.fit(x, inputs=u, num_restarts=4, seed=3, max_iterations=3).score(x, inputs=u) == first


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (dict(method="newton"), ValueError, "method must be one of em, gem"),
        (dict(select="best"), ValueError, "select must be one of likelihood"),
        (dict(select="validation"), ValueError, "validation: select='validation' needs"),
        (dict(num_restarts=0), ValueError, "num_restarts must be at least 1"),
        (dict(num_restarts="many"), TypeError, "num_restarts must be a number"),
        (dict(num_restarts=[3]), TypeError, "num_restarts must list"),
        (dict(num_restarts=2, warm_start=True), ValueError, "a warm start has one"),
        (dict(method="svi"), ValueError, "needs priors"),
        (dict(batch_size=3), ValueError, "batch_size: mini-batches are for"),
        (dict(lr=0.1), TypeError, "method 'em' has no option 'lr'; it takes max_iterations"),
        (dict(max_iterations=0), ValueError, "max_iterations must be at least 1"),
        (dict(validation=3, select="validation"), TypeError, "validation: x"),
        (dict(early_stop=3), ValueError, "early_stop: counts scores of held-out data"),
    ],
)
def test_bad_options(options, error, match):
    x, u = data("words", "symbols")
    with pytest.raises(error, match=match):
        IOHMM(2, num_symbols=L, num_outputs=4).fit(x, inputs=u, **options)


def test_data_that_no_start_can_explain():
    model = IOHMM(2, num_symbols=1, outputs="states", graph="left_right")
    with pytest.raises(ValueError, match="x: sequence 1 has probability zero under every start"):
        model.fit(torch.tensor([[0, 0, 1], [0, 1, 0]]), inputs=torch.zeros(2, 3, dtype=torch.long), num_restarts=3)
    with pytest.raises(ValueError, match="x must hold at least one target"):
        IOHMM(2, num_symbols=1, num_outputs=2).fit(torch.full((2, 3), -1), inputs=torch.zeros(2, 3, dtype=torch.long))


def test_no_inputs_are_like_one_constant_symbol():
    torch.manual_seed(0)
    x = [(torch.arange(n) // 5 % 2 * 3.0 + 0.5 * torch.randn(n)).double().unsqueeze(-1) for n in (30, 17, 1)]
    symbols = [torch.zeros(len(row), dtype=torch.long) for row in x]
    fitted = [
        IOHMM(2, outputs="gaussian", num_outputs=1, **size).fit(x, inputs=inputs, num_restarts=5, seed=0, tolerance=1e-10)
        for size, inputs in ((dict(num_inputs=0), None), (dict(num_symbols=1), symbols))
    ]
    assert fitted[0].score(x) == pytest.approx(fitted[1].score(x, inputs=symbols), rel=1e-5)
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        fitted[0].forecast(x, -1)
    ahead = [fitted[0].forecast(x, 3), fitted[1].forecast(x, inputs=symbols, future_inputs=torch.zeros(3, dtype=torch.long))]
    torch.testing.assert_close(ahead[0].means, ahead[1].means, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("values", [[0.0, float("nan")], [float("inf")], 1.0, [[1.0]]])
def test_effects_of_values_that_are_none(values):
    model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1)
    with pytest.raises(ValueError, match="values must be"):
        model.effect_curves(0, values)


def test_outputs_in_large_units_are_fitted_as_well():
    """1e-4 of the same numbers: the same states, and the likelihood of the change of units."""
    torch.manual_seed(0)
    u = [torch.randn(30, 1).double() for _ in range(6)]
    x = [torch.where(row > 0, 2 * row + 1, -row - 3) + 0.1 * torch.randn_like(row) for row in u]
    fitted = [
        IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1, mealy=True, covariance_floor=1e-4 * scale**2).fit(
            [scale * row for row in x], inputs=u, num_restarts=6, seed=0
        )
        for scale in (1.0, 1e-4)
    ]
    scores = [model.score([scale * row for row in x], inputs=u) for model, scale in zip(fitted, (1.0, 1e-4), strict=True)]
    assert scores[1] == pytest.approx(scores[0] - 180 * torch.tensor(1e-4).log().item(), abs=0.1)
    starts = fitted[1].history.restarts.log_likelihoods
    assert float((starts > starts.max() - 1).double().mean()) >= 0.5
    fitted[1].initialize(fitted[1]._as_batch([1e-4 * row for row in x], inputs=u))
    assert float(fitted[1].emission_network.weight.detach().abs().max()) < 1e-2


@pytest.mark.parametrize(("method", "every"), [("em", 1), ("sgd", 20)])
def test_every_restart_keeps_what_was_best_on_held_out_data(method, every):
    """Held-out data lead it, also where only iterations and not restarts are chosen by them."""
    torch.manual_seed(3)
    u, w = (torch.randn(5, 12, 1) for _ in range(2))
    x, v = ((each.squeeze(-1).cumsum(1) > 0) * 1 + (torch.rand(5, 12) < 0.4) for each in (u, w))
    steps = {"em": {"max_iterations": 60, "tolerance": 0.0}, "sgd": {"num_steps": 400, "lr": 0.05}}[method]
    model = IOHMM(3, num_inputs=1, num_outputs=3)
    model.fit(x, inputs=u, validation={"x": v, "inputs": w}, early_stop=2, method=method, num_restarts=3, seed=1, **steps)
    found, history = model.history.restarts, model.history
    assert history.reason == "early_stop" and history.validations[-1][0] == history.best_iteration + 2 * every
    scores = dict(history.validations)
    assert model.score(v, inputs=w, per_token=True) == pytest.approx(-scores[history.best_iteration], abs=1e-6)
    looks = ~found.validations.isnan()
    values, at = found.validations.nan_to_num(torch.inf).min(0)
    assert len(set(at.tolist())) > 1 and looks.sum(0).tolist() == (at // every + 2).tolist()
    for restart in range(3):  # each as if it were alone
        load_restart(model, found.parameters, restart)
        assert -model.score(v, inputs=w, per_token=True) == pytest.approx(float(values[restart]), abs=1e-6)
        assert model.score(x, inputs=u) == pytest.approx(float(found.log_likelihoods[restart]), abs=1e-3)
    if method == "em":  # a fit of as many iterations knows nothing of held-out data
        best = int(at[found.chosen])
        plain = IOHMM(3, num_inputs=1, num_outputs=3)
        plain.fit(x, inputs=u, num_restarts=3, seed=1, max_iterations=best, tolerance=0.0)
        load_restart(plain, plain.history.restarts.parameters, found.chosen)
        assert plain.score(v, inputs=w, per_token=True) == pytest.approx(-scores[best], abs=1e-6)
