"""The dense HMM: against hmmlearn and Pyro's own enumeration, in every way of fitting, on every shape of data."""

import copy
import warnings

import numpy as np
import pytest
import torch
from hmmlearn import hmm as peer
from pyro import poutine
from support.grids import grid
from support.hmm_models import (
    COVARIANCES,
    LENGTHS,
    MODELS,
    D,
    V,
    Z,
    close,
    every_model,
    padded,
    ragged,
    vectors_model,
    words_model,
)
from support.oracles.discrete import generic_log_prob

from pplseq.distributions import dense
from pplseq.distributions.state import MISSING
from pplseq.models import HMM


# ------------------------------------------------------------------------------------------------ peers
def as_peer(model, implementation="scaling"):
    options = dict(implementation=implementation, n_iter=1, tol=-np.inf, init_params="")
    if model.num_words is not None:
        other = peer.CategoricalHMM(model.num_states, n_features=model.num_words, params="ste", **options)
        other.emissionprob_ = model.emission.numpy()
    else:
        covariance = model.config["covariance"]
        other = peer.GaussianHMM(
            model.num_states, covariance, params="stmc", covars_prior=0, covars_weight=1, min_covar=0, **options
        )
        other.n_features = model.num_features
        other.means_ = model.loc.numpy()
        full = model.covariances.numpy()
        other.covars_ = np.diagonal(full, axis1=1, axis2=2) if covariance == "diag" else full
    other.startprob_, other.transmat_ = model.initial.numpy(), model.transition.numpy()
    return other


@grid({"kind": ["words", "diag", "full"], "implementation": ["scaling", "log"]})
def test_as_hmmlearn(kind, implementation):
    model = MODELS[kind]()
    sequences = ragged(model, (60, 1, 25, 40))
    other = as_peer(model, implementation)
    together = np.concatenate(sequences)
    together, lengths = together.reshape(len(together), -1), [len(s) for s in sequences]
    assert model.score(sequences) == pytest.approx(other.score(together, lengths))
    np.testing.assert_array_equal(np.concatenate(model.predict(sequences)), other.predict(together, lengths))
    np.testing.assert_allclose(np.concatenate(model.predict_proba(sequences)), other.predict_proba(together, lengths))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hmmlearn's, on the covariance prior switched off
        other.fit(together, lengths)
    model.fit(sequences, warm_start=True, max_iterations=1)
    np.testing.assert_allclose(model.initial, other.startprob_, atol=1e-12)
    np.testing.assert_allclose(model.transition, other.transmat_, atol=1e-12)
    if kind == "words":
        np.testing.assert_allclose(model.emission, other.emissionprob_, atol=1e-12)
    else:
        np.testing.assert_allclose(model.loc, other.means_, atol=1e-9)
        np.testing.assert_allclose(model.covariances, other.covars_, atol=1e-9)


@every_model
def test_as_pyros_own_enumeration(kind):
    model = MODELS[kind]()
    x, lengths = padded(ragged(model))
    wanted = generic_log_prob(model, x, lengths)
    wanted_gradients = torch.autograd.grad(wanted, list(model.parameters()))
    got = model.log_joint(x, lengths)
    close(got, wanted)
    for name_and_value, gradient in zip(model.named_parameters(), wanted_gradients, strict=True):
        (found,) = torch.autograd.grad(got, name_and_value[1], retain_graph=True)
        close(found, gradient, msg=name_and_value[0])


@every_model
def test_priors_are_sites_of_the_program(kind):
    model = MODELS[kind](priors=dict(transition=2.0, sticky=3.0, initial=[1.5, 2.0, 4.0]))
    x, _ = padded(ragged(model, (4, 4)))
    trace = poutine.trace(model).get_trace(x)
    latent = {name for name, _ in trace.iter_stochastic_nodes()} - {"sequences"}  # the plate
    gaussian = {"loc", "precision_diag", "precision_lower"} if kind in ("full", "tied") else {"loc", "precision"}
    assert latent == {"initial", "transition"} | ({"emission"} if kind == "words" else gaussian)
    # at the point estimate the program and log_prior tell the same, but for the change of variables of matrices
    fixed = poutine.condition(model, data=model.sites())
    trace = poutine.trace(fixed).get_trace(x)
    trace.compute_log_prob()
    chain = next(site["log_prob_sum"] for name, site in trace.nodes.items() if name.endswith("chain"))
    close(chain, model.log_prob(x).sum())
    if kind in ("words", "diag", "spherical"):
        prior = sum(site["log_prob_sum"] for name, site in trace.nodes.items() if name in latent)
        close(prior, model.log_prior().detach())


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_density_of_precision_matrices(covariance):
    """Bartlett's sites against the Wishart density: p(squares, lower) = p(matrix) |d matrix / d (squares, lower)|."""
    model = vectors_model(covariance, priors=dict(precision_shape=2.5, precision_rate=0.7))
    sites = {name: value.detach() for name, value in model.emissions.sites().items()}

    def matrix(squares, lower):
        value = model.emissions.from_sites(sites["loc"], precision_diag=squares, precision_lower=lower)["precision"]
        return value[..., *torch.tril_indices(D, D)]

    with poutine.trace() as tracer, poutine.condition(data=sites):
        model.emissions.drawn_spec(model.priors)
    drawn = tracer.trace.log_prob_sum()
    parts = (sites["precision_diag"], sites["precision_lower"])
    blocks = torch.autograd.functional.jacobian(matrix, parts)
    size, states = D * (D + 1) // 2, 1 if covariance == "tied" else Z
    jacobian = torch.cat([block.reshape(states * size, -1) for block in blocks], 1)
    close(drawn, (model.emissions.log_prior(model.priors) + torch.linalg.slogdet(jacobian).logabsdet).detach())


# ------------------------------------------------------------------------------------------------ shapes of data
@every_model
def test_ragged_is_padded_is_one_by_one(kind):
    model = MODELS[kind](priors=True)
    sequences = ragged(model)
    x, lengths = padded(sequences, fill=1)
    close(model.log_prob(x, lengths), torch.cat([model.log_prob(torch.tensor(s[None])) for s in sequences]))
    assert model.score(sequences) == pytest.approx(model.score(x, lengths))
    assert model.score(sequences, per_token=True) == pytest.approx(model.score(sequences) / sum(LENGTHS))
    paths, probs = model.predict(x, lengths), model.predict_proba(x, lengths)
    assert paths.shape == x.shape[:2] and probs.shape == (*x.shape[:2], Z)
    for row, (path, prob) in enumerate(zip(model.predict(sequences), model.predict_proba(sequences), strict=True)):
        close(path, paths[row, : LENGTHS[row]])
        close(prob, probs[row, : LENGTHS[row]])
        assert (paths[row, LENGTHS[row] :] == -1).all() and (probs[row, LENGTHS[row] :] == 0).all()
    fits = [copy.deepcopy(model).fit(*data, warm_start=True, max_iterations=2) for data in ([sequences], [x, lengths])]
    for one, two in zip(*(fit.parameters() for fit in fits), strict=True):
        close(one, two)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_densities_in_pieces_are_the_same(covariance, monkeypatch):
    model = vectors_model(covariance)
    x, *_ = model.sample(7, 3)
    whole = model.emissions.spec().log_likelihood(x)
    monkeypatch.setattr(dense, "DENSITY_CELLS", 4 * Z * D)
    close(model.emissions.spec().log_likelihood(x), whole)


@every_model
def test_missing_observations_are_summed_out(kind):
    model = MODELS[kind](priors=True)
    x, _ = padded(ragged(model, (5, 5)))
    gap = x.clone()
    gap[0, 2] = MISSING if kind == "words" else torch.nan
    gap[1, 3:] = MISSING if kind == "words" else torch.nan
    assert float(model.log_prob(gap)[1]) == pytest.approx(float(model.log_prob(x[1:, :3])))
    if kind == "words":
        every = gap[:1].repeat(V, 1)
        every[:, 2] = torch.arange(V)
        close(torch.logsumexp(model.log_prob(every), 0), model.log_prob(gap)[0])
    fitted = copy.deepcopy(model).fit(gap, warm_start=True, max_iterations=3, tolerance=0)
    assert np.all(np.diff(fitted.history.log_posteriors) > 0) and not any(p.isnan().any() for p in fitted.parameters())


@every_model
def test_one_state_and_one_step(kind):
    model = MODELS[kind](num_states=1)
    x, _ = padded(ragged(model, (6, 6)))
    wanted = model.emissions.spec().log_likelihood(x).sum((1, 2))
    close(model.log_prob(x), wanted.detach())
    close(model.predict(x), torch.zeros(2, 6, dtype=torch.long))
    model.fit(x, warm_start=True)
    if kind == "words":
        close(model.emission[0], torch.bincount(x.flatten(), minlength=V) / x.numel(), check_dtype=False)
    else:
        close(model.loc[0], x.mean((0, 1)))
    single = MODELS[kind]()
    x, _ = padded(ragged(single, (1, 1, 1)))
    wanted = torch.logsumexp(single.initial.log() + single.emissions.spec().log_likelihood(x)[:, 0], -1)
    close(single.log_prob(x), wanted.detach())
    before = single.transition
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three vectors collapse in three states
        single.fit(list(x), warm_start=True, max_iterations=1)
    close(single.transition, before)  # nothing was seen of it


def test_forbidden_transitions_stay_forbidden():
    """A left-to-right model: -inf logits through every query, EM and gradients."""
    matrix = np.array([[0.6, 0.4, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]])
    model = words_model().set_parameters(initial=[1.0, 0.0, 0.0], transition=matrix)
    x, states, _ = model.sample(9, 30, seed=3)
    assert (states.diff(dim=1) >= 0).all()
    assert (model.predict(x).diff(dim=1) >= 0).all()
    for options in (dict(method="em", max_iterations=5), dict(method="sgd", num_steps=20)):
        before = model.score(x)
        fitted = copy.deepcopy(model).fit(x, warm_start=True, **options)
        assert fitted.score(x) > before
        assert (fitted.transition.numpy()[matrix == 0] == 0).all() and fitted.initial[0] == 1
    close(model.log_joint(x), generic_log_prob(model, x))


# ------------------------------------------------------------------------------------------------ folders, samples, sizes
@every_model
def test_samples_have_the_models_moments(kind):
    model = MODELS[kind]()
    x, states, _ = model.sample(3, 4000, seed=0)
    close(torch.bincount(states[:, 0], minlength=Z) / 4000, model.initial, atol=0.03, rtol=0, check_dtype=False)
    if kind == "words":
        seen = torch.stack([torch.bincount(x[states == z], minlength=V) / (states == z).sum() for z in range(Z)])
        close(seen, model.emission, atol=0.05, rtol=0, check_dtype=False)
    else:
        close(torch.stack([x[states == z].mean(0) for z in range(Z)]), model.loc, atol=0.2, rtol=0)
        found = torch.stack([torch.cov(x[states == z].T) for z in range(Z)])
        close(found, model.covariances, atol=0.2, rtol=0.2)
    close(model.sample(3, 4000, seed=0)[0], x)


def test_number_of_parameters():
    assert words_model().num_free_parameters == 2 + 6 + Z * (V - 1)
    spread = {"diag": Z * D, "spherical": Z, "full": Z * 3, "tied": 3}
    for covariance, number in spread.items():
        assert vectors_model(covariance).num_free_parameters == 2 + 6 + Z * D + number
    model = words_model()
    x, *_ = model.sample(5, 4, seed=0)
    assert model.bic(x) - model.aic(x) == pytest.approx(model.num_free_parameters * (np.log(20) - 2))


# ------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: HMM(3), ValueError, "exactly one"),
        (lambda: HMM(3, 4, num_features=2), ValueError, "exactly one"),
        (lambda: HMM(0, 4), ValueError, "num_states must be at least 1, got 0"),
        (lambda: HMM(3, 4.5), TypeError, "num_words must be a whole number, got 4.5"),
        (lambda: HMM(3, num_features=2, covariance="round"), ValueError, "diag, full, tied, spherical"),
        (lambda: HMM(3, 4, dtype="float16"), ValueError, "float64, float32"),
        (lambda: HMM(3, 4, priors=dict(transitoin=1)), ValueError, "unknown 'transitoin'"),
        (lambda: HMM(3, 4, priors=dict(transition=-1)), ValueError, "transition must be positive"),
        (lambda: HMM(3, 4, priors=dict(emission=[1.0, 2.0])), ValueError, r"emission .* shape \(3, 4\)"),
        (lambda: HMM(3, num_features=2, priors=dict(loc=[1.0, 2.0, 3.0])), ValueError, r"loc .* shape \(2,\)"),
        (lambda: words_model().fit([]), ValueError, "empty list"),
        (lambda: words_model().fit([[1, 2], []]), ValueError, "sequence 1 is empty"),
        (lambda: words_model().fit([["a", "b"]]), TypeError, "Vocabulary"),
        (lambda: words_model().fit([[0.0, np.nan]]), TypeError, "mark missing words with -1"),
        (lambda: words_model().fit([[0, V]]), ValueError, f"0..{V - 1}"),
        (lambda: words_model().fit([[0, -2]]), ValueError, "-2"),
        (lambda: words_model().fit(np.zeros((2, 0), int)), ValueError, "at least one step"),
        (lambda: words_model().fit("text"), TypeError, "list of sequences"),
        (lambda: words_model().fit([[1]], torch.tensor([1])), ValueError, "leave lengths out"),
        (lambda: words_model().fit(np.zeros((2, 3), int), [1]), ValueError, "lengths"),
        (lambda: words_model().fit([[1]], method="adam"), ValueError, "em, sgd, svi, nuts"),
        (lambda: words_model().fit([[1]], method="svi"), ValueError, "needs priors"),
        (lambda: words_model(priors=dict(emission=0.5)).fit([[1]]), ValueError, "no maximum"),
        (lambda: words_model().fit([[1, 1]], states=[[0, Z]]), ValueError, f"below {Z}"),
        (lambda: words_model().fit([[1, 1]], states=[[0]]), ValueError, "states must cover x"),
        (lambda: words_model().fit([[1]], warm_start=True, num_restarts=2), ValueError, "num_restarts"),
        (lambda: vectors_model().fit([[[1.0, 2.0, 3.0]]]), ValueError, f"D = {D}"),
        (lambda: vectors_model().fit([[[1.0, np.inf]]]), ValueError, "finite"),
        (lambda: vectors_model().fit(np.zeros((4, D + 1))), ValueError, r"\(B, T, D\)"),
        (lambda: vectors_model().fit([[[1.0, 2.0]]]), ValueError, "at least as many observations"),
        (lambda: vectors_model().emission, AttributeError, "loc and covariances"),
        (lambda: words_model().set_parameters(transition=np.ones((Z, Z))), ValueError, "sum to 1"),
        (lambda: words_model().set_parameters(initial=[1.0]), ValueError, "initial must have shape"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_comes_first_where_the_first_word_is_impossible():
    """What is read in the place of a row without steps must be possible, whatever the tables say."""
    model = HMM(2, num_words=3).set_parameters(
        initial=[0.3, 0.7], transition=[[0.5, 0.5], [0.2, 0.8]], emission=[[0, 0.5, 0.5], [0, 0.2, 0.8]]
    )
    bytes_ = torch.tensor([[1, 2], [0, 0]], dtype=torch.uint8)
    for data in ([[[1, 2], []]], [bytes_, torch.tensor([2, 0])]):
        found = model.forecast(data[0], 2, *data[1:]).word_log_probs.exp()[1].tolist()
        assert found == [pytest.approx([0, 0.29, 0.71]), pytest.approx([0, 0.287, 0.713])]
    above = HMM(2, emission="zero_truncated_poisson").set_parameters(
        initial=[0.3, 0.7], transition=[[0.5, 0.5], [0.2, 0.8]], rate=[[1.0], [2.0]]
    )
    first = above.predict_next(torch.ones(2, 3, 1, dtype=torch.int64), torch.tensor([3, 0])).state_log_probs[1]
    assert first.exp().tolist() == pytest.approx([0.3, 0.7])


def test_numbers_that_are_set_keep_their_digits():
    """Plain numbers in lists, which torch would take as single precision."""
    assert HMM(2, num_features=1).set_parameters(loc=[[0.1], [0.3]]).loc.flatten().tolist() == [0.1, 0.3]
