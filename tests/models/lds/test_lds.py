"""The linear dynamical system as a program: against one big Gaussian, Pyro's GaussianHMM and finite differences."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.dense_lds import dense, joint, values

from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.models.lds.program import LDS

F64 = torch.float64
close = torch.testing.assert_close
H, N, U, B, T = 2, 3, 2, 4, 6
LENGTHS = torch.tensor([6, 1, 4, 5])
OPTIONS = {
    "plain": dict(),
    "diagonal": dict(state_noise="diagonal", emission_noise="diagonal"),
    "inputs": dict(num_inputs=U),
    "inputs into moves": dict(num_inputs=U, inputs_to="transition", offsets="none", emission_noise="diagonal"),
    "inputs into observations": dict(num_inputs=U, inputs_to="emission", offsets="transition"),
    "stationary": dict(initial="stationary"),
    "one state": dict(num_states=1),
    "more states than features": dict(num_states=5),
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def make(options=None, seed=3):
    torch.manual_seed(seed)
    options = {"num_states": H, **(options or {})}
    model = LDS(options.pop("num_states"), N, **options)
    for name, value in model.named_parameters():
        if name != "transition":
            value.data += 0.3 * torch.randn_like(value)
    return model


def data(model, holes="none", seed=0):
    """(B, T, n) observations, padded with nonsense behind LENGTHS, and inputs or None."""
    torch.manual_seed(seed)
    x = torch.randn(B, T, N, dtype=F64)
    if holes != "none":
        x[0, 2] = x[3, 0] = x[2, 3] = torch.nan
    if holes == "partly":
        x[0, 3, 1] = x[1, 0, 0] = x[2, 1, :2] = torch.nan
    return x, torch.randn(B, T, model.num_inputs, dtype=F64) if model.num_inputs else None


def truths(model, x, inputs, lengths=LENGTHS, **matrices):
    rows = []
    for row, length in enumerate(lengths.tolist()):
        u = None if inputs is None else inputs[row, :length].numpy()
        own = {name: value[..., row, :length, :, :].numpy() for name, value in matrices.items()}
        rows.append(dense(values(model), x[row, :length].numpy(), u, **own))
    return rows


# ------------------------------------------------------------------------------------------------ exactness
@every_option
@pytest.mark.parametrize("holes", ["none", "whole", "partly"])
def test_as_one_big_gaussian(options, holes):
    model = make(options)
    x, inputs = data(model, holes)
    chain = model.posterior(x, LENGTHS, inputs=inputs)
    wanted = truths(model, x, inputs)
    np.testing.assert_allclose(chain.log_prob(), [truth.log_prob for truth in wanted], atol=1e-9)
    moments = model.smooth(x, LENGTHS, inputs=inputs)
    lag_one = chain.lag_one_covariances().dense()
    for row, (length, truth) in enumerate(zip(LENGTHS.tolist(), wanted, strict=True)):
        np.testing.assert_allclose(moments.means[row, :length], truth.mean, atol=1e-8)
        for t in range(length):
            np.testing.assert_allclose(moments.covariances[row, t], truth.covariance[t, :, t], atol=1e-8)
        for t in range(length - 1):
            np.testing.assert_allclose(lag_one[row, t], truth.covariance[t + 1, :, t], atol=1e-8)


@every_option
def test_filters_predicts_and_forecasts_as_the_joint_gaussian(options):
    model = make(options)
    x, inputs = data(model, "partly")
    filtered = model.filter(x, LENGTHS, inputs=inputs)
    predicted = model.one_step(x, LENGTHS, inputs=inputs)
    torch.manual_seed(5)
    future_inputs = None if inputs is None else torch.randn(B, 3, model.num_inputs, dtype=F64)
    forecast = model.forecast(x, 3, LENGTHS, inputs=inputs, future_inputs=future_inputs)
    parameters = values(model)

    def of_observations(truth, t, u):
        _, _, look, shift, noise = joint(parameters, t + 1, u)
        h = model.num_states
        look, cut = look[-N:, -h:], slice(t * N, None)
        mean = look @ truth.mean[t] + shift[cut]
        return mean, look @ truth.covariance[t, :, t] @ look.T + noise[cut, cut]

    for row, length in enumerate(LENGTHS.tolist()):
        u = None if inputs is None else inputs[row, :length].numpy()
        for t in range(length):
            past = x[row, : t + 1].numpy().copy()
            own = None if u is None else u[: t + 1]
            truth = dense(parameters, past, own)
            np.testing.assert_allclose(filtered.means[row, t], truth.mean[t], atol=1e-8)
            np.testing.assert_allclose(filtered.covariances[row, t], truth.covariance[t, :, t], atol=1e-8)
            past[t] = np.nan
            mean, covariance = of_observations(dense(parameters, past, own), t, own)
            np.testing.assert_allclose(predicted.means[row, t], mean, atol=1e-8)
            np.testing.assert_allclose(predicted.covariances[row, t], covariance, atol=1e-8)
        longer = np.concatenate([x[row, :length].numpy(), np.full((3, N), np.nan)])
        own = None if u is None else np.concatenate([u, future_inputs[row].numpy()])
        truth = dense(parameters, longer, own)
        for k in range(3):
            t = length + k
            np.testing.assert_allclose(forecast.state_means[row, k], truth.mean[t], atol=1e-8)
            np.testing.assert_allclose(forecast.state_covariances[row, k], truth.covariance[t, :, t], atol=1e-8)
            mean, covariance = of_observations(
                truth._replace(mean=truth.mean[: t + 1]), t, None if own is None else own[: t + 1]
            )
            np.testing.assert_allclose(forecast.means[row, k], mean, atol=1e-8)
            np.testing.assert_allclose(forecast.covariances[row, k], covariance, atol=1e-8)


@every_option
def test_gradients_are_finite_differences(options):
    model = make(options)
    x, inputs = data(model, "partly")
    for vectorize in (True, False):
        model.vectorize = vectorize
        model.zero_grad()
        model.log_joint(x, LENGTHS, inputs=inputs).backward()
        for name, value in model.named_parameters():
            direction = torch.randn_like(value)
            if name.endswith("scale") and value.dim() == 2:
                direction = direction.tril()
            with torch.no_grad():
                results = []
                for step in (1e-5, -2e-5):
                    value += step * direction
                    results.append(model.log_joint(x, LENGTHS, inputs=inputs))
                value += 1e-5 * direction
            slope = (results[0] - results[1]) / 2e-5
            close((value.grad * direction).sum(), slope, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("holes", ["none", "whole", "partly"])
def test_single_precision(holes):
    """Padded rows, one of them without a step, rows of which nothing is seen: as in double precision."""
    model = make(OPTIONS["inputs"])
    single = LDS(H, N, num_inputs=U, dtype="float32")
    single.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    x, inputs = data(model, holes)
    if holes != "none":
        x[3] = torch.nan
    lengths = torch.tensor([6, 0, 4, 5])
    results = []
    for owner, dtype in ((model, torch.float64), (single, torch.float32)):
        chain = owner.posterior(x.to(dtype), lengths, inputs=inputs.to(dtype))
        log_prob, states = chain.log_prob(), chain.smoothed_states()
        assert log_prob.dtype == states.means.dtype == states.covariances.table.dtype == dtype
        grads = torch.autograd.grad(owner.log_joint(x.to(dtype), lengths, inputs=inputs.to(dtype)), owner.parameters())
        results.append([v.double() for v in (log_prob, states.means, states.covariances.dense(), *grads)])
    close(*results, rtol=1e-4, atol=1e-4)
    assert float(results[1][0][1]) == 0 and (holes == "none" or float(results[1][0][3]) == 0)


def test_as_pyros_gaussian_hmm():
    """Pyro's chain moves before its first observation, so ours must start with what one move makes of its start."""
    model = make(dict(offsets="none"))
    torch.manual_seed(8)
    root = torch.randn(H, H, dtype=F64)
    mean, covariance = torch.randn(H, dtype=F64), root @ root.T + 0.1 * torch.eye(H)
    A, Q, C, R = (v.detach() for v in (model.transition, model.state_noise, model.emission, model.emission_noise))
    model.set_parameters(initial_mean=A @ mean, initial_covariance=A @ covariance @ A.T + Q)
    other = dist.GaussianHMM(
        dist.MultivariateNormal(mean, covariance), A.T, dist.MultivariateNormal(torch.zeros(H).double(), Q),
        C.T, dist.MultivariateNormal(torch.zeros(N).double(), R), duration=T,
    )  # fmt: skip
    x, _ = data(model)
    close(model.log_prob(x), other.log_prob(x))
    last = other.filter(x)
    belief = model.posterior(x).filtered()
    close(belief.mean, last.loc)
    close(belief.covariance.expand(B, H, H), last.covariance_matrix)


def test_an_input_of_ones_is_an_offset():
    model, other = make(dict(num_inputs=1, offsets="none")), make(dict(offsets="both"))
    shared = {name: value for name, value in values(model).items() if not name.endswith(("offset", "inputs"))}
    offsets = {f"{kind}_offset": values(model)[f"{kind}_inputs"][:, 0] for kind in ("transition", "emission")}
    other.set_parameters(**shared, **offsets)
    x, _ = data(model, "partly")
    ones = torch.ones(B, T, 1, dtype=F64)
    close(model.log_prob(x, LENGTHS, inputs=ones), other.log_prob(x, LENGTHS))
    close(model.forecast(x, 2, inputs=ones, future_inputs=ones[0, :2]).means, other.forecast(x, 2).means)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("holes", ["none", "partly"])
def test_matrices_of_their_own_at_every_step(shared, holes):
    model = make(dict(offsets="both"))
    x, _ = data(model, holes)
    torch.manual_seed(2)
    rows = () if shared else (B,)
    transitions, emissions = 0.5 * torch.randn(*rows, T, H, H).double(), torch.randn(*rows, T, N, H).double()
    every = {name: m.expand(B, *m.shape[-3:]) for name, m in (("transitions", transitions), ("emissions", emissions))}
    chain = model.posterior(x, LENGTHS, transitions=transitions, emissions=emissions)
    wanted = truths(model, x, None, **every)
    np.testing.assert_allclose(chain.log_prob(), [truth.log_prob for truth in wanted], atol=1e-9)
    means = chain.smoothed_states().means
    for row, length in enumerate(LENGTHS.tolist()):
        np.testing.assert_allclose(means[row, :length], wanted[row].mean, atol=1e-8)


def test_singular_noise_and_a_known_start():
    """An AR(2) process: the second state only remembers, and the first two values are known."""
    model = make(dict(offsets="none")).set_parameters(
        transition=[[1.2, -0.5], [1.0, 0.0]], state_noise=[[0.7, 0.0], [0.0, 0.0]], initial_mean=[1.0, 2.0],
        initial_covariance=torch.zeros(2, 2),
    )  # fmt: skip
    np.testing.assert_allclose(model.state_noise.detach(), [[0.7, 0], [0, 0]], atol=1e-12)
    x, _ = data(model)
    wanted = truths(model, x, None)
    np.testing.assert_allclose(model.log_prob(x, LENGTHS), [truth.log_prob for truth in wanted], atol=1e-8)


# ------------------------------------------------------------------------------------------------ as a program
def test_samples_have_the_moments_of_the_joint_gaussian():
    model = make(OPTIONS["inputs"])
    inputs = torch.randn(1, 4, U, dtype=F64)
    x, states, _ = model.sample(4, 4000, inputs=inputs.expand(4000, -1, -1), seed=1)
    mean, covariance, look, shift, noise = joint(values(model), 4, inputs[0].numpy())
    assert states.shape == (4000, 4, H)
    np.testing.assert_allclose(states.mean(0).flatten(), mean, atol=0.15)
    np.testing.assert_allclose(x.mean(0).flatten(), look @ mean + shift, atol=0.2)
    wanted = look @ covariance @ look.T + noise
    np.testing.assert_allclose(np.cov(x.flatten(1).T), wanted, atol=0.12 * np.abs(wanted).max())
    again, *_ = model.sample(4, 2, inputs=inputs.expand(2, -1, -1), seed=1)
    assert torch.equal(again, model.sample(4, 2, inputs=inputs.expand(2, -1, -1), seed=1)[0])


@pytest.mark.parametrize("holes", ["none", "partly"])
def test_the_program_itself_has_the_same_joint_density(holes):
    """p(z, x) of the plain program, its states set to a posterior draw, over p(z | x) is p(x)."""
    model = make(OPTIONS["plain"])
    x, _ = data(model, holes)
    x = x[:1]
    truth = truths(model, x, None, lengths=torch.tensor([T]))[0]
    z = torch.from_numpy(truth.mean)
    conditioned = poutine.condition(model.model, data={f"z_{t}": z[t : t + 1] for t in range(T)})
    log_joint = poutine.trace(conditioned).get_trace(x).log_prob_sum().detach()
    covariance = truth.covariance.reshape(T * H, T * H)
    at_mean = -0.5 * (np.linalg.slogdet(covariance)[1] + T * H * np.log(2 * np.pi))
    assert float(log_joint) - at_mean == pytest.approx(truth.log_prob)


def test_a_mini_batch_stands_for_all():
    model = make()
    x, _ = data(model)
    trace = poutine.trace(model).get_trace(x[:2], num_total=8)
    close(trace.log_prob_sum(), 4 * model.log_prob(x[:2]).sum())


# ------------------------------------------------------------------------------------------------ bad input
def test_bad_options_are_named():
    for arguments, message in (
        (dict(num_states=0), "num_states"), (dict(num_features=1.5), "num_features"), (dict(num_inputs=-1), "num_inputs"),
        (dict(state_noise="spherical"), "state_noise"), (dict(emission_noise=1), "emission_noise"),
        (dict(initial="zero"), "initial"), (dict(offsets=True), "offsets"), (dict(noise_floor=0), "noise_floor"),
        (dict(num_inputs=2, inputs_to="nothing"), "inputs_to"), (dict(dtype="float16"), "dtype"),
        (dict(state_prior=dict(count=-1)), "state_prior"), (dict(emission_prior=(0, 0, 0)), "emission_prior"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=message):
            LDS(**{"num_states": 2, "num_features": 3, **arguments})


def test_bad_parameters_are_named():
    model, stationary = make(), make(dict(initial="stationary", state_noise="diagonal"))
    for owner, arguments, message in (
        (model, dict(transition=torch.eye(3)), "transition must have shape"),
        (model, dict(emission=torch.full((N, H), torch.nan)), "emission must be finite"),
        (model, dict(state_noise=-torch.eye(H)), "state_noise must be positive semi-definite"),
        (model, dict(emission_noise=-torch.ones(N)), "emission_noise must be positive semi-definite"),
        (model, dict(emission_noise=torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]])), "emission_noise must be symm"),
        (model, dict(transition_inputs=torch.zeros(H, 1)), "transition_inputs: this model has none"),
        (stationary, dict(initial_mean=torch.zeros(H)), "initial_mean: this model has none"),
        (stationary, dict(initial_covariance=torch.eye(H)), "initial_covariance: this model has none"),
        (stationary, dict(state_noise=[[1.0, 0.5], [0.5, 1.0]]), "state_noise must be diagonal"),
        (stationary, dict(transition=1.1 * torch.eye(H)), "transition: its spectral radius is 1.1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            owner.set_parameters(**arguments)


def test_bad_observations_are_named():
    model = make()
    x, _ = data(model)
    infinite = x.clone()
    infinite[1, 2, 0] = torch.inf
    for bad, error, message in (
        (infinite, ValueError, "x must be finite"), (x[..., :2], ValueError, "n = 3"), (x[0], ValueError, "n = 3"),
        (x[:0], ValueError, "at least one row"), (x.long(), TypeError, "x must be a floating-point"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            model.log_prob(bad)
    torch.testing.assert_close(model.log_prob(x.numpy()), model.log_prob(x))
    with pytest.raises(ValueError, match="lengths must lie in 0..6"):
        model.log_prob(x, torch.tensor([7, 1, 1, 1]))
    with pytest.raises(TypeError, match="start must be a GaussianBelief"):
        model.log_prob(x, start=torch.zeros(B, H))
    with pytest.raises(ValueError, match="start must have a mean"):
        model.log_prob(x, start=GaussianBelief(torch.zeros(B, 3).double(), torch.eye(3).double()))
    with pytest.raises(ValueError, match="emissions must have shape"):
        model.log_prob(x, emissions=torch.zeros(T, H, N).double())
    with pytest.raises(ValueError, match="num_steps"):
        model.model()


def test_bad_inputs_are_named():
    model = make(OPTIONS["inputs"])
    x, inputs = data(model)
    bad = inputs.clone()
    bad[0, 1, 0] = torch.nan
    for given, error, message in (
        (None, ValueError, "inputs must be given"), (inputs[:, :3], ValueError, "inputs must have shape"),
        (bad, ValueError, "inputs must be finite"), (inputs.long(), TypeError, "inputs must be a floating"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            model.log_prob(x, inputs=given)
    bad = inputs.clone()
    bad[1, 1:] = torch.nan  # padding may hold anything
    close(model.log_prob(x, LENGTHS, inputs=bad), model.log_prob(x, LENGTHS, inputs=inputs))
    with pytest.raises(ValueError, match="inputs: this model takes none"):
        make().log_prob(x, inputs=inputs)
    with pytest.raises(ValueError, match="future_inputs"):
        model.forecast(x, 2, inputs=inputs)
    with pytest.raises(ValueError, match="inputs must have a row for each step"):
        model.score([row.numpy() for row in x], inputs=[row[:3].numpy() for row in inputs])


def test_entropy_of_certain_paths_that_rounding_hides():
    for seed in range(8):
        torch.manual_seed(seed)
        root = torch.randn(3, 2, dtype=torch.float64)
        singular, x = root @ root.T, torch.randn(1, 3, 1, dtype=torch.float64)
        shaken = LDS(3, 1, dtype="float64").set_parameters(state_noise=singular)
        begun = LDS(3, 1, dtype="float64").set_parameters(initial_covariance=singular)
        assert [model.entropy(x).tolist() for model in (shaken, begun)] == [[-torch.inf], [-torch.inf]]
