"""The Gaussian of a word against dense V x V algebra on the complement of u."""

import math

import pyro
import pytest
import torch
from torch.distributions import MultivariateNormal

from pplseq.distributions.word_gaussian import WordEmission, WordGaussian, precision_factor

V, H = 6, 2


def close(one, two, rtol=1e-10, atol=1e-10):
    torch.testing.assert_close(one, two, rtol=rtol, atol=atol)


def make(num_words=V, num_states=H, seed=0, scale=0.3, **options):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(num_words, generator=generator, dtype=torch.float64) + 0.1
    probs = probs / probs.sum()
    matrix = torch.randn(num_words, num_states, generator=generator, dtype=torch.float64) * scale
    factor = torch.randn(num_states, num_states, generator=generator, dtype=torch.float64)
    return WordEmission(probs, matrix, factor @ factor.T, **options)


def complement(emission):
    """(V, V-1) an orthonormal basis of the complement of u."""
    return torch.linalg.svd(emission.unit.unsqueeze(0))[2][1:].T


def dense(emission):
    """(basis, C, D) on the complement of u, D written out from M."""
    basis = complement(emission)
    noise = torch.eye(emission.num_words).double() - torch.outer(emission.unit, emission.unit)
    noise = noise - emission.matrix @ emission.reduction @ emission.matrix.T
    return basis, basis.T @ emission.matrix, basis.T @ noise @ basis


def dense_log_prob(emission, state, words):
    basis, matrix, noise = dense(emission)
    return MultivariateNormal(state @ matrix.T, noise).log_prob(emission.whiten(words) @ basis)


@pytest.mark.parametrize("num_words, num_states", [(6, 2), (7, 1), (2, 1), (5, 4)])
def test_log_prob_is_the_dense_gaussian(num_words, num_states):
    emission = make(num_words, num_states)
    words = torch.arange(num_words).repeat(2)
    state = torch.randn(len(words), num_states, dtype=torch.float64)
    close(WordGaussian(state, emission).log_prob(words), dense_log_prob(emission, state, words))


def test_gradients_are_those_of_the_dense_gaussian():
    words = torch.tensor([0, 3, 5, 3])
    state = torch.randn(4, H, dtype=torch.float64)
    probs, gradients = make().probs, []
    for log_prob in (lambda e, z: e(z).log_prob(words), lambda e, z: dense_log_prob(e, z, words)):
        torch.manual_seed(1)
        leaves = [torch.randn(V, H).double(), torch.randn(H, H).double(), state.clone(), probs.clone()]
        for leaf in leaves:
            leaf.requires_grad_()
        emission = WordEmission(leaves[3], leaves[0] * 0.3, leaves[1] @ leaves[1].T)
        weights = torch.tensor([1.0, -2.0, 0.5, 3.0]).double()
        gradients.append(torch.autograd.grad((log_prob(emission, leaves[2]) * weights).sum(), leaves))
    for name, one, two in zip(("matrix", "factor", "state"), *gradients, strict=False):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8, msg=name)


def test_evidence_is_the_log_prob_as_a_function_of_the_state():
    emission = make()
    words = torch.tensor([[0, 1, 2], [5, 4, 0]])
    vector, matrix, constant = emission.evidence(words)
    assert vector.shape == (2, 3, H) and matrix.shape == (H, H) and constant.shape == (2, 3)
    for _ in range(3):
        state = torch.randn(2, 3, H, dtype=torch.float64)
        quadratic = ((state @ matrix) * state).sum(-1)
        close(constant + (vector * state).sum(-1) - quadratic / 2, dense_log_prob(emission, state, words))
    _, dense_matrix, noise = dense(emission)
    close(matrix, dense_matrix.T @ torch.linalg.solve(noise, dense_matrix))
    close(emission.table()[words], vector)


def test_a_missing_word_is_no_evidence():
    emission = make()
    words = torch.tensor([2, -1, 5])
    vector, matrix, constant = WordGaussian(torch.zeros(3, H).double(), emission).evidence(words)
    close(vector[1], torch.zeros(H).double())
    close(matrix[1], torch.zeros(H, H).double())
    assert constant[1] == 0
    close(matrix[0], emission.information)
    state = torch.randn(3, H, dtype=torch.float64)
    log_prob = WordGaussian(state, emission).log_prob(words)
    assert log_prob[1] == 0
    close(log_prob[[0, 2]], dense_log_prob(emission, state[[0, 2]], words[[0, 2]]))
    assert emission.iid_log_prob(words)[1] == 0


def test_whitened_words():
    emission = make()
    vectors = emission.whiten(torch.arange(V))
    close(vectors @ emission.unit, torch.zeros(V).double())
    covariance = vectors.T @ (vectors * emission.probs.unsqueeze(-1))
    close(covariance, torch.eye(V).double() - torch.outer(emission.unit, emission.unit))
    assert emission.matrix.T.mv(emission.unit).abs().max() < 1e-12


def test_measures():
    words, state = torch.tensor([1, 4, 0]), torch.randn(3, H, dtype=torch.float64)
    whitened, original, iid = (make(measure=name) for name in ("whitened", "original", "iid"))
    base = MultivariateNormal(torch.zeros(V - 1).double(), torch.eye(V - 1).double())
    baseline = base.log_prob(whitened.whiten(words) @ complement(whitened))
    close(whitened.iid_log_prob(words), baseline)
    close(iid(state).log_prob(words), whitened(state).log_prob(words) - baseline)
    close(original.iid_log_prob(words) - whitened.iid_log_prob(words), original.log_volume.expand(3))
    # the original coordinates: vectors that sum to zero, with an orthonormal basis of their own
    basis = torch.linalg.svd(torch.ones(1, V).double())[2][1:].T
    _, _, noise = dense(whitened)
    unwhiten = basis.T @ torch.diag(whitened.unit) @ complement(whitened)
    centred = torch.nn.functional.one_hot(words, V).double() - whitened.probs
    mean = state @ whitened.matrix.T @ torch.diag(whitened.unit) @ basis
    expected = MultivariateNormal(mean, unwhiten @ noise @ unwhiten.T).log_prob(centred @ basis)
    close(original(state).log_prob(words), expected)


@pytest.mark.parametrize("measure", ["whitened", "original", "iid"])
def test_vectors_and_ids_have_one_density(measure):
    emission = make(measure=measure)
    words, state = torch.tensor([1, 4, 0]), torch.randn(3, H, dtype=torch.float64)
    vectors = emission.whiten(words) + 7 * emission.unit  # what lies along u does not count
    close(emission(state).log_prob(vectors), emission(state).log_prob(words))


def test_draws_have_the_mean_and_covariance():
    emission = make()
    state = torch.tensor([0.5, -1.0], dtype=torch.float64)
    draws = WordGaussian(state, emission).sample((200_000,))
    assert draws.shape == (200_000, V) and (draws @ emission.unit).abs().max() < 1e-10
    _, covariance = emission.predict(state, torch.zeros(H, H).double())
    torch.testing.assert_close(draws.mean(0), emission.matrix @ state, rtol=0, atol=0.01)
    torch.testing.assert_close(draws.T.cov(), covariance, rtol=0, atol=0.02)


def test_forecasts():
    emission = make()
    factor = torch.randn(H, H, dtype=torch.float64)
    mean, covariance = emission.predict(torch.ones(3, H).double(), factor @ factor.T)
    basis, matrix, noise = dense(emission)
    close(mean @ basis, torch.ones(3, H).double() @ matrix.T)
    close(basis.T @ covariance @ basis, matrix @ factor @ factor.T @ matrix.T + noise)
    with pytest.raises(ValueError, match="5000 x 5000"):
        make(5000, 1).predict(torch.zeros(1).double(), torch.eye(1).double())


def from_reduction(probs, matrix, reduction):
    """The emission whose noise is Pi - C M C'."""
    matrix = matrix - torch.outer(probs.sqrt(), probs.sqrt() @ matrix)
    factor = precision_factor(matrix.T @ matrix, reduction)
    return WordEmission(probs, matrix, factor @ factor.T)


def test_reduction_and_precision_are_two_forms_of_one_noise():
    emission = make()
    again = from_reduction(emission.probs, emission.matrix, emission.reduction)
    close(again.precision, emission.precision)
    factor = precision_factor(emission.gram, emission.reduction)
    close(factor @ factor.T, emission.precision)
    close(emission.log_determinant, torch.logdet(dense(emission)[2]))
    singular = torch.tensor([[1.0, 1.0], [1.0, 1.0]]).double() * 0.1  # M need not have full rank
    close(from_reduction(emission.probs, emission.matrix, singular).reduction, singular)


def test_a_component_along_u_is_taken_out():
    emission = make()
    shifted = WordEmission(emission.probs, emission.matrix + emission.unit.unsqueeze(-1), emission.precision)
    words, state = torch.tensor([1, 4]), torch.randn(2, H, dtype=torch.float64)
    close(shifted(state).log_prob(words), emission(state).log_prob(words))


def test_rows_by_gather_and_by_table_are_the_same():
    emission, other = make(), make()
    many = torch.arange(V).repeat(3)
    close(emission.rows(many)[:4], other.rows(many[:4]))
    close(emission.rows(many[:2]), other.rows(many[:2]))


def test_in_a_program():
    emission, words = make(), torch.tensor([0, 2, 5, 1])

    def program(words=None):
        with pyro.plate("rows", 4):
            z = pyro.sample("z", pyro.distributions.Normal(torch.zeros(H).double(), 1.0).to_event(1))
            return pyro.sample("x", emission(z), obs=words)

    trace = pyro.poutine.trace(program).get_trace(words)
    z = trace.nodes["z"]["value"]
    trace.compute_log_prob()
    close(trace.nodes["x"]["log_prob"], dense_log_prob(emission, z, words))
    assert program().shape == (4, V)
    assert emission(z[0]).expand((4,)).log_prob(words).shape == (4,)


def test_float32_keeps_gains():
    words, state = torch.randint(0, 3000, (20,)), torch.randn(20, H)
    exact = make(3000, H, scale=0.02, measure="iid")
    small = WordEmission(exact.probs.float(), exact.matrix.float(), exact.precision.float(), measure="iid")
    close(small(state).log_prob(words).double(), exact(state.double()).log_prob(words), rtol=1e-4, atol=1e-4)


def test_errors():
    emission = make()
    probs, matrix = emission.probs, emission.matrix
    identity = torch.eye(H).double()
    with pytest.raises(ValueError, match=r"ids 0..5, or -1 for a missing word; got 0..6"):
        emission.evidence(torch.tensor([0, 6]))
    with pytest.raises(ValueError, match="got -2..1"):
        emission.evidence(torch.tensor([-2, 1]))
    with pytest.raises(TypeError, match="integer ids"):
        emission.evidence(torch.tensor([0.0]))
    with pytest.raises(ValueError, match="not positive definite.*at least 1; scale C down"):
        from_reduction(probs, matrix, 100 * identity)
    with pytest.raises(ValueError, match="positive semidefinite, but has an eigenvalue -1"):
        from_reduction(probs, matrix, -identity)
    with pytest.raises(ValueError, match="probs must be positive: word 2 has 0.0"):
        WordEmission(torch.tensor([0.5, 0.5, 0.0]).double(), matrix[:3], identity)
    with pytest.raises(ValueError, match="sum to one, got 2"):
        WordEmission(2 * probs, matrix, identity)
    with pytest.raises(ValueError, match="a row for each of the V"):
        WordEmission(probs[:-1], matrix, identity)
    with pytest.raises(ValueError, match=r"precision must be \(h, h\)"):
        WordEmission(probs, matrix, identity[:1])
    with pytest.raises(ValueError, match="measure must be one of"):
        WordEmission(probs, matrix, identity, measure="log")
    with pytest.raises(ValueError, match="state must have 2 dimensions"):
        emission(torch.zeros(3))
    assert math.isfinite(float(emission.log_volume))
