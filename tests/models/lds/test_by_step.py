"""Matrices and noises of single steps that are known: likelihoods against the textbook's filter, and EM."""

import numpy as np
import pyro
import pytest
import torch
from support.grids import grid
from support.oracles.gaussian import GaussianSequence, kalman_loop

import pplseq
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.models import LDS

F64 = torch.float64
B, T, H, N, U = 3, 6, 2, 3, 2
LENGTHS = torch.tensor([6, 1, 4])
close = torch.testing.assert_close
SIZES = {
    "transitions": (H, H), "emissions": (N, H), "state_noises": (H, H), "emission_noises": (N, N), "transition_offsets": (H,),
    "emission_offsets": (N,),
}  # fmt: skip
NAMES = tuple(SIZES)


def spd(*shape):
    root = torch.randn(*shape, shape[-1], dtype=F64)
    return root @ root.mT / shape[-1] + 0.1 * torch.eye(shape[-1], dtype=F64)


def made(which, *, rows=True, missing=True, seed=0, **options):
    """A model, and data with what is known of its steps."""
    torch.manual_seed(seed)
    model = LDS(H, N, **options).set_parameters(
        transition=0.5 * torch.randn(H, H), state_noise=spd(H) if options.get("state_noise") != "diagonal" else [0.3, 2.0],
        emission=torch.randn(N, H), emission_noise=[0.5, 1.0, 2.0], initial_mean=torch.randn(H), initial_covariance=spd(H),
        transition_offset=torch.randn(H), emission_offset=torch.randn(N),
    )  # fmt: skip
    x, known = torch.randn(B, T, N, dtype=F64), {}
    if missing:
        x[0, 2], x[0, 4, 1], x[2, 0, :2] = torch.nan, torch.nan, torch.nan
    for name in which:
        shape = (*((B, T) if rows else (T,)), *SIZES[name])
        known[name] = spd(*shape[:-1]) if "noise" in name else torch.randn(shape, dtype=F64)
    return model, x, known


def truth(model, x, known):
    total = 0.0

    def at(name, row, default):
        value = known.get(name)
        return [default] * T if value is None else list(value if value.dim() == 1 + len(SIZES[name]) else value[row])

    for row, n in enumerate(LENGTHS.tolist()):
        A, C = at("transitions", row, model.transition), at("emissions", row, model.emission)
        Q = [model.state_noise + part for part in at("state_noises", row, 0.0)]
        R = [model.emission_noise + part for part in at("emission_noises", row, 0.0)]
        a = [model.transition_offset + part for part in at("transition_offsets", row, 0.0)]
        c = [model.emission_offset + part for part in at("emission_offsets", row, 0.0)]
        seen = [~y.isnan() for y in x[row, :n]]
        total = total + kalman_loop(GaussianSequence(
            *model._initial_belief, A[1:n], Q[1:n], a[1:n],
            [C[t][o] for t, o in enumerate(seen)], [R[t][o][:, o] for t, o in enumerate(seen)],
            [c[t][o] for t, o in enumerate(seen)], [x[row, t][o] if bool(o.any()) else None for t, o in enumerate(seen)],
        )).log_prob  # fmt: skip
    return total


SOME = [(name,) for name in NAMES] + [NAMES, ("transitions", "emission_noises")]


def split(known, at):
    """What is known of the first steps, and of those to come."""
    whole = {n: v if v.dim() == 2 + len(SIZES[n]) else v.expand(B, *v.shape) for n, v in known.items()}
    return {name: v[:, :at] for name, v in whole.items()}, {f"future_{name}": v[:, at:] for name, v in whole.items()}


@grid({"rows, missing, noise": [(True, True, "full"), (False, True, "diagonal"), (True, False, "full")], "which": SOME})
def test_likelihoods_and_gradients_are_the_textbook_s(which, rows, missing, noise):
    model, x, known = made(which, rows=rows, missing=missing, emission_noise=noise)
    for value in known.values():
        value.requires_grad_()
    wanted, found = truth(model, x, known), model.log_joint(x, LENGTHS, **known)
    close(found, wanted, rtol=1e-11, atol=0)
    held = [*known.values(), *model.parameters()]
    grads = [torch.autograd.grad(value, held, allow_unused=True) for value in (found, wanted)]
    for one, other, of in zip(*grads, held, strict=True):
        one, other = (torch.zeros_like(of) if g is None else g for g in (one, other))
        if of.dim() > 2 and of.shape[-1] == of.shape[-2] and of is not known.get("transitions"):
            one, other = one + one.mT, other + other.mT  # of covariances only the symmetric part is defined
        close(one, other, rtol=1e-8, atol=1e-9)
    with torch.no_grad():
        plain = {name: value.detach() for name, value in known.items()}
        assert model.score(x, LENGTHS, **plain) == pytest.approx(float(wanted), rel=1e-11)


@grid({"missing": [False, True], "which": SOME})
def test_statistics_have_the_gradient_of_the_likelihood(which, missing):
    """Fisher's identity: at the parameters of the E-step the expected log-density rises as the likelihood does."""
    model, x, known = made(which, missing=missing)
    batch = model._as_batch(x, LENGTHS, **known)
    found = model.expected_statistics(model.chain_of(batch), batch)
    model.log_joint(batch.x, batch.lengths, **batch.known).backward()
    for kind, size in (("transition", H), ("emission", N)):
        noise = getattr(model, "state_noise" if kind == "transition" else "emission_noise").detach()
        slope = torch.linalg.solve(noise, found[f"{kind}_cross"])
        weights = getattr(model, kind).grad
        close(slope[:, :H], torch.zeros(size, H, dtype=F64) if weights is None else weights, rtol=1e-8, atol=1e-8)
        close(slope[:, H], getattr(model, f"{kind}_offset").grad, rtol=1e-8, atol=1e-8)
        inverse = torch.linalg.inv(noise)
        wanted = (inverse @ found[f"{kind}_scatter"] @ inverse - found[f"{kind}_count"] * inverse) / 2
        scale = model.state_scale if kind == "transition" else model.emission_scale
        if kind == "transition":
            close((2 * wanted @ scale.detach()).tril(), scale.grad.tril(), rtol=1e-8, atol=1e-8)
        else:
            factor = scale.detach().tril(-1) + torch.diag(scale.detach().diagonal().exp())
            slopes = 2 * wanted @ factor
            close(slopes.tril(-1) + torch.diag(slopes.diagonal() * factor.diagonal()), scale.grad.tril(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("missing", [False, True])
def test_constant_matrices_have_the_sums_of_the_fast_way(missing):
    model, x, _ = made((), missing=missing)
    same = {"state_noises": torch.zeros(T, H, H), "emission_noises": torch.zeros(T, N, N)}
    batches = [model._as_batch(x, LENGTHS, **known) for known in ({}, same)]
    plain, stepwise = (model.expected_statistics(model.chain_of(batch), batch) for batch in batches)
    for name, value in plain.items():
        close(stepwise[name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("which", [("emission_noises",), NAMES], ids="+".join)
def test_em_never_falls(which):
    model, x, known = made(which, seed=2)
    before = [model.transition.detach().clone(), model.emission.detach().clone()]
    model.fit(x, LENGTHS, **known, warm_start=True, max_iterations=8, tolerance=0.0, fixed=("initial_mean",))
    likelihoods = model.history.log_likelihoods
    assert (np.diff(likelihoods) > -1e-9).all() and likelihoods[-1] > likelihoods[0] + 1
    for name, value in zip(("transition", "emission"), before, strict=True):  # what is not asked stays
        assert torch.equal(getattr(model, name), value) == (f"{name}s" in which)


def test_measurement_errors_that_are_known_are_told_from_the_noise():
    """A level observed with errors of known and very different sizes: what is learned is the rest."""
    torch.manual_seed(1)
    steps = 200
    level = torch.randn(steps, dtype=F64).mul(0.3).cumsum(0)
    sizes = torch.where(torch.arange(steps) % 2 == 0, 0.1, 25.0).to(F64)
    x = (level + sizes.sqrt() * torch.randn(steps, dtype=F64) + 0.5 * torch.randn(steps, dtype=F64))[None, :, None]
    errors = sizes[:, None, None]
    found = []
    for method in ("em", "lbfgs"):
        model = LDS(1, 1, offsets="none", initial="diffuse").set_parameters(transition=[[1.0]], emission=[[1.0]])
        model.fit(x, emission_noises=errors, fixed=("transition", "emission"), method=method)
        found.append([model.state_noise.item(), model.emission_noise.item(), model.score(x, emission_noises=errors)])
    close(torch.tensor(found[0]), torch.tensor(found[1]), rtol=0.02, atol=0.01)
    assert 0.03 < found[1][0] < 0.2 and 0.1 < found[1][1] < 0.6  # drawn with 0.09 and 0.25, of which 200 steps say so much
    assert model.score(x, emission_noises=errors) > model.score(x) + 50
    ragged = [x[0, :7], x[0, 7:9]]
    found = model.smooth(ragged, emission_noises=[errors[:7], errors[7:9]])
    close(found.means[1], model.smooth(x[:, 7:9], emission_noises=errors[7:9]).means[0])


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"emission_noises": torch.ones(T, N)}, r"emission_noises must have shape \(3, 6, 3, 3\)"),
        ({"emission_noises": -torch.eye(N).expand(T, N, N)}, "emission_noises must be positive semidefinite"),
        ({"state_noises": torch.randn(T, H, H)}, "state_noises must be"),
        ({"transitions": torch.full((T, H, H), torch.nan)}, "transitions must be finite"),
        ({"emissions": [torch.zeros(2, N, H)] * 3}, "emissions must have shape|emissions must have the shapes"),
    ],
)
def test_what_does_not_fit_is_said(known, message):
    model, x, _ = made(())
    with pytest.raises((ValueError, TypeError), match=message):
        model.score(x, **known)


@pytest.mark.parametrize("which", SOME, ids="+".join)
def test_forecasts_are_predictions_of_steps_that_are_missing(which):
    """And what is left unknown of the steps to come is asked for by name."""
    model, x, known = made(which, missing=False)
    past, ahead = split(known, 4)
    x[:, 4:] = torch.nan
    found, wanted = model.forecast(x[:, :4], 2, **past, **ahead), model.one_step(x, **known)
    close(found.means, wanted.means[:, 4:])
    close(found.covariances, wanted.covariances[:, 4:])
    states = model.smooth(x, **known)
    close(found.state_means, states.means[:, 4:])
    close(found.state_covariances, states.covariances[:, 4:])
    one = model.predict_next(x[:, :4], **past, **{name: value[:, :1] for name, value in ahead.items()})
    close(one.means, found.means[:, 0])
    for name in which:
        with pytest.raises(ValueError, match=f"future_{name}: must be given"):
            model.forecast(x[:, :4], 2, **past, **{key: value for key, value in ahead.items() if key != f"future_{name}"})


def test_signals_errors_and_features_know_the_steps():
    model, x, known = made(NAMES)
    states = model.smooth(x, LENGTHS, **known)
    signal = (known["emissions"] @ states.means.unsqueeze(-1)).squeeze(-1) + model.emission_offset + known["emission_offsets"]
    found = model.reconstruct(x, LENGTHS, **known).means
    for row, n in enumerate(LENGTHS.tolist()):
        close(found[row, :n], signal[row, :n].detach())
    close(model.transform(x, LENGTHS, **known), states.means)
    ragged = model.reconstruct([x[0], x[2, :4]], **{name: [value[0], value[2, :4]] for name, value in known.items()})
    close(ragged.means[1], found[2, :4])
    told = model.one_step(x, **known)
    errors = model.diagnostics(x, **known, skip=0, lags=2).errors
    close(errors, (x - told.means) / told.covariances.diagonal(dim1=-2, dim2=-1).sqrt(), equal_nan=True)
    for ask in (model.one_step, model.reconstruct, model.diagnostics, model.transform):
        with pytest.raises(TypeError, match="no argument 'transition'"):
            ask(x, transition=known["transitions"])
    with pytest.raises(TypeError, match="no argument 'future_transition'.*future_transitions"):
        model.forecast(x, 2, future_transition=known["transitions"])
    with pytest.raises(ValueError, match=r"future_emissions must have shape \(3, 2, 3, 2\)"):
        model.forecast(x, 2, future_emissions=known["emissions"])


def test_controls_whose_matrices_are_known_in_time():
    """B_t u_t is an offset of each move: with one B for all steps it is an input."""
    torch.manual_seed(0)
    controls, matrix = torch.randn(B, T, U, dtype=F64), torch.randn(H, U, dtype=F64)
    _, x, _ = made(())
    plain, driven = made(())[0], LDS(H, N, num_inputs=U, inputs_to="transition")
    driven.set_parameters(**{n: v for n, v in plain.values._asdict().items() if v is not None}, transition_inputs=matrix)
    pushes = controls @ matrix.T
    assert plain.score(x, transition_offsets=pushes) == pytest.approx(driven.score(x, inputs=controls), rel=1e-12)
    both = driven.score(x, inputs=controls, transition_offsets=pushes[0], emission_offsets=torch.ones(T, N))
    driven.set_parameters(emission_offset=driven.emission_offset + 1)
    assert both == pytest.approx(driven.score(x, inputs=controls, transition_offsets=pushes[0]), rel=1e-12)
    turned = torch.randn(T, H, U, dtype=F64)
    known = dict(transition_offsets=(turned @ controls.unsqueeze(-1)).squeeze(-1))
    plain.fit(x, LENGTHS, **known, warm_start=True, max_iterations=5, tolerance=0.0)
    assert (np.diff(plain.history.log_likelihoods) > -1e-9).all()


@pytest.mark.parametrize("rows", [True, False])
def test_control_matrices_of_single_steps(rows):
    """Likelihood and its gradients against the textbook's filter, EM and answers against offsets B_t u_t made by hand."""
    controls = torch.randn(B, T, U, dtype=F64)
    _, x, known = made(("transition_offsets",), rows=rows)
    shapes = {"transition_controls": (H, U), "emission_controls": (N, U)}
    matrices = {n: torch.randn(*((B,) if rows else ()), T, *s, dtype=F64).requires_grad_() for n, s in shapes.items()}
    pushes, shifts = ((m @ controls.unsqueeze(-1)).squeeze(-1) for m in matrices.values())
    by_hand = {"transition_offsets": known["transition_offsets"] + pushes, "emission_offsets": shifts}
    plain = made((), num_inputs=0)[0]
    model = LDS(H, N, num_inputs=U, inputs_to="none")
    model.set_parameters(**{n: v for n, v in plain.values._asdict().items() if v is not None})
    expected = truth(plain, x, by_hand)
    value = pytest.approx(expected.item(), rel=1e-12)
    model(x, LENGTHS, inputs=controls, **known, **matrices)
    close(model.chain.log_prob().sum(), expected)
    leaves = [*matrices.values(), model.transition, model.emission]
    own = [*matrices.values(), plain.transition, plain.emission]
    got, wanted = torch.autograd.grad(model.chain.log_prob().sum(), leaves), torch.autograd.grad(expected, own)
    for one, other in zip(got, wanted, strict=True):
        close(one, other)
    data = {name: value.detach() for name, value in matrices.items()} | known
    by_hand = {name: value.detach() for name, value in by_hand.items()}
    assert model.score(x, LENGTHS, inputs=controls, **data) == value
    ragged = {n: [v[r, :m] if v.dim() == 2 + len(SIZES.get(n, (0, 0))) else v[:m] for r, m in enumerate(LENGTHS.tolist())]
              for n, v in data.items()}  # fmt: skip
    cut = ([row[:m] for row, m in zip(rows_of, LENGTHS.tolist(), strict=True)] for rows_of in (x, controls))
    sequences, given = cut
    assert model.score(sequences, inputs=given, **ragged) == value
    for one, what in ((model, {"inputs": controls} | data), (plain, by_hand)):
        one.fit(x, LENGTHS, **what, warm_start=True, max_iterations=4, tolerance=0.0)
    assert (np.diff(model.history.log_likelihoods) > -1e-9).all()
    np.testing.assert_allclose(model.history.log_likelihoods, plain.history.log_likelihoods, rtol=1e-10)
    close(model.smooth(x, LENGTHS, inputs=controls, **data).means, plain.smooth(x, LENGTHS, **by_hand).means)
    ahead = {f"future_{name}": value[..., :2, :] if "off" in name else value[..., :2, :, :] for name, value in data.items()}
    future = {f"future_{name}": value[..., :2, :] for name, value in by_hand.items()}
    for got, wanted in zip(
        model.forecast(x, 2, LENGTHS, inputs=controls, future_inputs=controls[:, :2], **data, **ahead),
        plain.forecast(x, 2, LENGTHS, **by_hand, **future), strict=True,
    ):  # fmt: skip
        close(got, wanted)
    ahead.pop("future_emission_controls")
    with pytest.raises(ValueError, match=r"future_emission_controls: must be given, \(3, 2, 3, 2\) or \(2, 3, 2\)"):
        model.forecast(x, 2, LENGTHS, inputs=controls, future_inputs=controls[:, :2], **data, **ahead)


def test_control_matrices_that_do_not_fit():
    controls, x = torch.randn(B, T, U, dtype=F64), torch.randn(B, T, N, dtype=F64)
    matrices = {"transition_controls": torch.randn(T, H, U, dtype=F64)}
    free = LDS(H, N, num_inputs=U, inputs_to="none")
    for call, message in [
        (lambda: LDS(H, N, num_inputs=U).fit(x, inputs=controls, **matrices), "learns transition_inputs.*'emission'"),
        (lambda: LDS(H, N).fit(x, **matrices), "transition_controls: they are the matrices of inputs; make"),
        (lambda: free.fit(x, **matrices), "transition_controls: they are the matrices of inputs; .* give the inputs"),
        (lambda: free.fit(x, inputs=controls), "with inputs_to='none' they enter by transition_controls or emission_controls"),
        (lambda: free.fit(x, inputs=controls, transition_controls=controls), r"controls must have shape \(3, 6, 2, 2\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    half = LDS(H, N, num_inputs=U, inputs_to="emission").fit(x, inputs=controls, **matrices, max_iterations=3, tolerance=0.0)
    assert (np.diff(half.history.log_likelihoods) > -1e-9).all() and half.emission_inputs.abs().max() > 0


def test_a_stationary_start_needs_one_transition():
    with pytest.raises(ValueError, match="initial: a stationary start is that of one transition"):
        LDS(H, N, initial="stationary").fit(torch.randn(2, 9, N), transitions=torch.zeros(9, H, H))


@grid({"name": NAMES, "initial": ["learned", "diffuse"]})
def test_queries_have_no_gradient_of_what_is_known(name, initial):
    """An answer of the model at test must not claim a gradient that was lost on the way."""
    model, x, known = made((name,), missing=False)
    if initial == "diffuse":
        model = LDS(H, N, initial="diffuse").set_parameters(
            transition=model.transition, state_noise=model.state_noise, emission=model.emission
        )
    value = known[name].requires_grad_()
    chain = model.posterior(x.requires_grad_(), **{name: value})
    answers = [chain.log_prob(), chain.token_log_probs(), *chain.filtered(), chain.smoothed_states().means]
    assert not any(answer.requires_grad for answer in answers)
    log_prob = model.log_joint(x, **{name: value})  # training has all of it
    assert all(bool((part != 0).any()) for part in torch.autograd.grad(log_prob, [x, value]))
    close(model.log_prob(x, **{name: value}).sum(), log_prob.detach())


class OwnProgram(LDS):
    def model(self, x=None, lengths=None, start=None, **sizes):
        given, z = self.given(x, lengths, start, **sizes), None
        noise, first = torch.eye(H, dtype=F64), (self.state_noise, self.initial_mean)
        with given.plate:
            for t in pplseq.markov(given.steps):
                z = pyro.sample(f"z_{t}", LinearGaussian(z, self.transition, *(first if z is None else (noise,))))
                pyro.sample(f"x_{t}", LinearGaussian(z, self.emission, torch.eye(N, dtype=F64)), obs=given.value(t))


def test_predictions_of_a_chain_at_test_have_no_gradients():
    model, x = OwnProgram(H, N), torch.randn(B, T, N, dtype=F64)
    chain = model.posterior(x)
    assert not any(part.requires_grad for part in [*chain.forecast(2), chain.innovations(x).values])
    model(x)
    assert model.chain.forecast(2).means.requires_grad and model.chain.innovations(x).values.requires_grad
