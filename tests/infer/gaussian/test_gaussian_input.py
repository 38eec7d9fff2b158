"""What a Gaussian chain takes and refuses: shapes, masks, numbers that are none, matrices that are no covariances."""

import pytest
import torch

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.infer.gaussian.given import check_covariance

close = torch.testing.assert_close
F64 = torch.float64
T, B, H = 4, 4, 2  # T = B = 4 and T - 1 != B: what is time and what are rows must not be guessed from sizes


def arguments(num_steps=T, batch=(B,), dtype=F64):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=F64).to(dtype)

    root = normal(H, H)
    start = GaussianBelief(normal(*batch, H), torch.eye(H, dtype=dtype))
    dynamics = Dynamics(0.5 * normal(H, H), torch.eye(H, dtype=dtype), normal(H))
    evidence = Evidence(normal(num_steps, *batch, H), root @ root.T, normal(num_steps, *batch))
    return start, dynamics, evidence


# ------------------------------------------------------------------------------------------------ shapes
def test_what_rows_share_needs_no_dimension_of_rows():
    for num_steps in (T, B + 1):  # T = B, and T - 1 = B
        start, dynamics, evidence = arguments(num_steps)
        vector, constant = evidence.vector[:, 0], evidence.constant[:, 0]
        offset = torch.randn(num_steps - 1, H, dtype=F64)
        short = GaussianChain(start, dynamics._replace(offset=offset), Evidence(vector, evidence.matrix, constant))
        long = GaussianChain(
            start,
            dynamics._replace(offset=offset.unsqueeze(1).expand(-1, B, -1)),
            Evidence(vector.unsqueeze(1).expand(-1, B, -1), evidence.matrix, constant.unsqueeze(1).expand(-1, B)),
        )
        close(short.log_prob(), long.log_prob())
        close(short.smoothed_states().means, long.smoothed_states().means)


def test_matrices_of_one_of_two_plates():
    start, dynamics, evidence = arguments(3, (2, 3))
    weights = torch.rand(2, 3, dtype=F64) + 0.5  # of steps and the last plate's rows, T - 1 = the first plate's size
    matrix = weights[..., None, None] * dynamics.matrix
    short = GaussianChain(start, dynamics._replace(matrix=matrix), evidence)
    long = GaussianChain(start, dynamics._replace(matrix=matrix.unsqueeze(1).expand(2, 2, 3, H, H)), evidence)
    close(short.log_prob(), long.log_prob())


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_any_number_of_plates(batch):
    start, dynamics, evidence = arguments(5, batch)
    seen = torch.rand(5, *batch) > 0.3
    valid = torch.arange(5).view(5, *(1,) * len(batch)) < torch.randint(0, 6, batch)
    for masks in ({}, {"seen": seen}, {"valid": valid}, {"seen": seen, "valid": valid}):
        chain = GaussianChain(start, dynamics, evidence, **masks)
        states, draws = chain.smoothed_states(), chain.sample(2)
        assert chain.log_prob().shape == batch and chain.token_log_probs().shape == (*batch, 5)
        assert states.means.shape == (*batch, 5, H) and states.covariances.dense().shape == (*batch, 5, H, H)
        assert chain.lag_one_covariances().dense().shape == (*batch, 4, H, H)
        assert draws.shape == (2, *batch, 5, H) and chain.forecast(3).state_means.shape == (*batch, 3, H)
        assert chain.filtered().mean.shape == (*batch, H)
        belief = chain.filtered()
        # rows one at a time, without any plate
        for place in torch.ones(batch).nonzero().tolist():
            row = (slice(None), *place)
            one = GaussianChain(
                GaussianBelief(start.mean[tuple(place)], start.covariance),
                dynamics,
                Evidence(evidence.vector[row], evidence.matrix, evidence.constant[row]),
                **{name: mask[row] for name, mask in masks.items()},
            )
            close(chain.log_prob()[tuple(place)], one.log_prob())
            close(states.means[tuple(place)], one.smoothed_states().means)
            close(states.covariances.dense()[tuple(place)], one.smoothed_states().covariances.dense())
            close(belief.mean[tuple(place)], one.filtered().mean)


def test_no_rows_at_all():
    chain = GaussianChain(*arguments(3, (0,)))
    assert chain.log_prob().shape == (0,) and chain.filtered().mean.shape == (0, H)
    assert chain.smoothed_states().means.shape == (0, 3, H) and chain.sample(2).shape == (2, 0, 3, H)


WRONG_SHAPES = {
    "start.mean": ("start", lambda v: v._replace(mean=torch.zeros(B, 3, dtype=F64))),
    "start.mean ": ("start", lambda v: v._replace(mean=torch.zeros(3, H, dtype=F64))),
    "start.covariance": ("start", lambda v: v._replace(covariance=torch.eye(3, dtype=F64))),
    "start.covariance must be": ("start", lambda v: v._replace(covariance=torch.eye(H, dtype=F64).expand(3, H, H))),
    "dynamics.matrix": ("dynamics", lambda v: v._replace(matrix=torch.zeros(T, H, H, dtype=F64))),
    "dynamics.matrix must": ("dynamics", lambda v: v._replace(matrix=torch.zeros(T - 1, 3, H, H, dtype=F64))),
    "dynamics.noise": ("dynamics", lambda v: v._replace(noise=torch.zeros(H, dtype=F64))),
    "dynamics.offset": ("dynamics", lambda v: v._replace(offset=torch.zeros(T, H, dtype=F64))),
    "dynamics.offset must": ("dynamics", lambda v: v._replace(offset=torch.zeros(3, dtype=F64))),
    "evidence.matrix": ("evidence", lambda v: v._replace(matrix=torch.zeros(T, B, B, H, H, dtype=F64))),
    "evidence.matrix must": ("evidence", lambda v: v._replace(matrix=torch.zeros(T - 1, H, H, dtype=F64))),
    "evidence.constant": ("evidence", lambda v: v._replace(constant=torch.zeros(T - 1, B, dtype=F64))),
    "evidence.vector": ("evidence", lambda v: v._replace(vector=torch.zeros(H, dtype=F64))),
    "evidence.vector: a chain needs at least one step": (
        "evidence", lambda v: v._replace(vector=torch.zeros(0, B, H, dtype=F64)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG_SHAPES)
def test_wrong_shapes_are_named(message):
    which, change = WRONG_SHAPES[message]
    given = dict(zip(("start", "dynamics", "evidence"), arguments(), strict=True))
    given[which] = change(given[which])
    with pytest.raises(ValueError, match=message.strip()):
        GaussianChain(**given)


def test_wrong_options_are_named():
    given = arguments()
    full = torch.ones(T, B, dtype=torch.bool)
    hole = full.clone()
    hole[1, 2] = False
    for options, error, message in (
        (dict(tol=-0.1), ValueError, "tol must be an error"),
        (dict(tol=1.0), ValueError, "tol must be an error"),
        (dict(valid=full.double()), TypeError, "valid must be bool"),
        (dict(seen=full[:3]), ValueError, r"seen must be \(T, \*B\) = \(4, 4\)"),
        (dict(seen=full[:, 0]), ValueError, "seen must be"),
        (dict(valid=hole), ValueError, "padding must come behind"),
    ):
        with pytest.raises(error, match=message):
            GaussianChain(*given, **options)


def test_one_dtype_for_all():
    start, dynamics, evidence = arguments()
    with pytest.raises(TypeError, match="evidence.vector must be float32 or float64, got torch.int64"):
        GaussianChain(start, dynamics, evidence._replace(vector=evidence.vector.long()))
    with pytest.raises(TypeError, match="dynamics.noise is torch.float32, but evidence.vector is torch.float64"):
        GaussianChain(start, dynamics._replace(noise=dynamics.noise.float()), evidence)


# ------------------------------------------------------------------------------------------------ numbers
def test_numbers_that_are_none_are_found():
    start, dynamics, evidence = arguments()
    bad = evidence.vector.clone()
    bad[2, 1, 0] = torch.nan
    with pytest.raises(ValueError, match="evidence.vector: row 1, step 2 is NaN"):
        GaussianChain(start, dynamics, evidence._replace(vector=bad))
    constant = evidence.constant.clone()
    constant[3, 0] = -torch.inf
    with pytest.raises(ValueError, match="evidence.constant: row 0, step 3"):
        GaussianChain(start, dynamics, evidence._replace(constant=constant))
    nan = torch.full((H, H), torch.nan, dtype=F64)
    for message, changed in (
        ("start.covariance must be finite", (start._replace(covariance=nan), dynamics, evidence)),
        ("start.mean must be finite", (start._replace(mean=start.mean * torch.nan), dynamics, evidence)),
        ("dynamics.matrix must be finite", (start, dynamics._replace(matrix=nan), evidence)),
        ("dynamics.offset must be finite", (start, dynamics._replace(offset=nan[0]), evidence)),
        ("evidence.matrix must be finite", (start, dynamics, evidence._replace(matrix=nan))),
    ):
        with pytest.raises(ValueError, match=message):
            GaussianChain(*changed)


def test_large_evidence_that_is_finite_is_taken():
    start, dynamics, evidence = arguments(dtype=torch.float32)
    huge = torch.full_like(evidence.vector, 3e38)  # whose sum is infinite
    GaussianChain(start, dynamics, evidence._replace(vector=huge))


def test_nonsense_at_padded_and_missing_steps_changes_nothing():
    """Neither values nor gradients: NaN times zero would be NaN."""
    start, dynamics, evidence = arguments()
    valid = torch.arange(T).unsqueeze(1) < torch.tensor([4, 0, 2, 3])
    seen = torch.ones(T, B, dtype=torch.bool)
    seen[1, 0] = seen[0, 2] = seen[2, 3] = False
    matrices = evidence.matrix.expand(T, B, H, H)
    used = seen & valid
    clean = Evidence(evidence.vector, matrices, evidence.constant)
    spoilt = Evidence(*(torch.where(used.view(T, B, *(1,) * (v.dim() - 2)), v, torch.nan) for v in clean))
    results = []
    for given in (clean, spoilt):
        inputs = [p.clone().requires_grad_() for p in (*start, *dynamics, *given)]
        chain = GaussianChain(
            GaussianBelief(*inputs[:2]), Dynamics(*inputs[2:5]), Evidence(*inputs[5:]), valid=valid, seen=seen
        )
        states = chain.smoothed_states()
        answers = chain.log_prob(), states.means, states.covariances.dense(), chain.token_log_probs()
        gradients = torch.autograd.grad(sum(a.sin().sum() for a in answers), inputs)
        results.append((answers, gradients))
    close(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_a_covariance(dtype):
    eye = torch.eye(3, dtype=dtype)
    root = torch.randn(3, 1, dtype=dtype)
    for fine in (eye, 0 * eye, 1e30 * eye, 1e-42 * eye, root @ root.T, torch.stack([0 * eye, eye, root @ root.T])):
        check_covariance("noise", fine)
    for bad in (-eye, torch.diag(torch.tensor([1.0, 1.0, -0.01]).to(dtype)), torch.stack([eye, -1e-42 * eye])):
        with pytest.raises(ValueError, match="noise must be positive semidefinite, got an eigenvalue of -"):
            check_covariance("noise", bad)
    with pytest.raises(ValueError, match="noise must be symmetric"):
        check_covariance("noise", eye + torch.tensor([[0, 0.1, 0], [0, 0, 0], [0, 0, 0]]).to(dtype))


def test_no_covariance_is_refused_and_unchecked_chains_are_not():
    start, dynamics, evidence = arguments()
    bad = torch.diag(torch.tensor([1.0, -0.2], dtype=F64))
    for message, changed in (
        ("start.covariance must be positive", (start._replace(covariance=bad), dynamics, evidence)),
        ("dynamics.noise must be positive", (start, dynamics._replace(noise=bad), evidence)),
        ("evidence.matrix must be positive", (start, dynamics, evidence._replace(matrix=bad))),
    ):
        with pytest.raises(ValueError, match=message):
            GaussianChain(*changed)
        GaussianChain(*changed, check=False)
