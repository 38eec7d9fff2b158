"""Small linear-Gaussian models, each as a fast chain and as one slow truth a row."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from support.oracles.gaussian import GaussianSequence, kalman_loop

DOUBLE = torch.float64


@dataclass
class Case:
    """Parameters of a model with B rows, of which some steps are padded or missing; A = matrix, C = emission, D = noises."""

    mean: torch.Tensor  # (B, h)
    root: torch.Tensor  # (h, r), start covariance root root'
    matrix: torch.Tensor
    noise_root: torch.Tensor
    offset: torch.Tensor | None
    emission: torch.Tensor  # (n, h), (T, n, h) or (T, B, n, h)
    variances: torch.Tensor  # (n,), or (n, n) a root of the noise's covariance
    observations: torch.Tensor  # (T, B, n)
    lengths: torch.Tensor
    seen: torch.Tensor | None
    more: tuple[
        torch.Tensor, torch.Tensor
    ]  # two (h, h) zeros: gradients of covariances, also where their roots have none
    which: torch.Tensor | None = None  # (T, B) the pattern of what is seen
    patterns: torch.Tensor | None = None  # (P, n) bool

    @property
    def parameters(self):
        named = (self.mean, self.root, self.matrix, self.noise_root, self.offset, self.emission, self.variances)
        return [p for p in (*named, *self.more, self.observations) if p is not None]

    @property
    def spread(self):
        return torch.diag(self.variances) if self.variances.dim() == 1 else self.variances @ self.variances.mT

    @property
    def covariance(self):
        return self.root @ self.root.mT + self.more[0] + self.more[0].mT

    @property
    def noise(self):
        return self.noise_root @ self.noise_root.mT + self.more[1] + self.more[1].mT

    @property
    def valid(self):
        return torch.arange(len(self.observations)).unsqueeze(1) < self.lengths

    def numbers(self):
        """What is observed, with a kind for each matrix of emissions."""
        emission, which = self.emission, self.which
        if emission.dim() > 2:
            steps, rows = torch.arange(len(emission)).unsqueeze(1), torch.arange(self.observations.shape[1])
            which = steps.expand(-1, len(rows)) if emission.dim() == 3 else steps * len(rows) + rows
            emission = emission.flatten(0, -3)
        noise = self.variances if self.variances.dim() == 1 else self.spread
        return LinearEvidence(self.observations, emission, noise, which, self.patterns)

    def evidence(self):
        """The same, written out as information."""
        whole = self.numbers().dense()
        by_step = self.emission.dim() == 3
        return whole._replace(matrix=whole.matrix[:, 0]) if by_step else whole

    def chain(self, gradients=True, dtype=DOUBLE, kind=GaussianChain, numbers=False, **options):
        valid = None if bool(self.valid.all()) else self.valid
        parts = [
            GaussianBelief(self.mean, self.covariance), Dynamics(self.matrix, self.noise, self.offset),
            self.numbers() if numbers else self.evidence(),
        ]  # fmt: skip

        def cast(value):
            return value.detach().to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        if not gradients or dtype != DOUBLE:
            parts = [
                dataclasses.replace(part, **{name: cast(value) for name, value in vars(part).items()})
                if isinstance(part, LinearEvidence)
                else type(part)(*map(cast, part))
                for part in parts
            ]
        return kind(*parts, valid=valid, seen=self.seen, **options)

    def sequence(self, row):
        length = int(self.lengths[row])
        steps = range(length - 1)

        def each(value, matrices=2):
            if value.dim() == matrices:
                return [value] * (length - 1)
            return [value[t] if value.dim() == matrices + 1 else value[t, row] for t in steps]

        zero = torch.zeros(self.mean.shape[-1], dtype=DOUBLE)
        shapes = {2: lambda t: self.emission, 3: lambda t: self.emission[t], 4: lambda t: self.emission[t, row]}
        emission = [shapes[self.emission.dim()](t) for t in range(length)]
        seen = torch.ones(length, self.observations.shape[-1], dtype=torch.bool)
        if self.which is not None:
            seen &= self.patterns[self.which[:length, row]]
        if self.seen is not None:
            seen &= self.seen[:length, row].unsqueeze(-1)
        return GaussianSequence(
            self.mean[row],
            self.covariance if self.root.dim() == 2 else self.covariance[row],
            each(self.matrix),
            each(self.noise),
            each(zero if self.offset is None else self.offset, 1),
            [emission[t][seen[t]] for t in range(length)],
            [self.spread[seen[t]][:, seen[t]] for t in range(length)],
            [self.observations.new_zeros(int(seen[t].sum())) for t in range(length)],
            [self.observations[t, row, seen[t]] if seen[t].any() else None for t in range(length)],
        )

    def truths(self):
        """One per row; None for rows without a step."""
        return [kalman_loop(self.sequence(row)) if n > 0 else None for row, n in enumerate(self.lengths.tolist())]


# rows that are not seen at the start, in the middle, at the end, anywhere
GAPS = ((0, 3), (4, 6), (7, 9), (0, 9), (0, 0))
SINGULAR = ("known start", "singular noise", "no noise", "known rows")  # a covariance of states may have no inverse
SITUATIONS = (
    "plain", "ragged", "missing", "ragged missing", "known start", "singular noise", "offset", "step offset",
    "changing", "changing missing", "changing by row", "own starts", "one state", "one step", "one row missing",
    "gaps", "gaps of all", "ragged gaps", "five states", "more features", "evidence by step", "evidence by row",
    "noise by row missing", "no noise", "no memory", "growing", "known rows", "one state changing by row",
)  # fmt: skip
# of the noise of numbers, of what is seen of them, of sizes
NUMBERS = (
    "full noise", "full noise partly seen", "partly seen ragged gaps", "many states", "long", "long ragged missing",
    "long offset", "one row long", "precise", "exact", "exact missing",
)  # fmt: skip


def tiny_case(situation: str, num_steps: int = 9, h: int = 3, n: int = 2, gradients: bool = True) -> Case:
    generator = torch.Generator().manual_seed(sum(map(ord, situation)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    B = 1 if "one row" in situation else 5
    num_steps = 40 if "long" in situation else num_steps
    h = 1 if "one state" in situation else 5 if situation == "five states" else 17 if situation == "many states" else h
    n = 7 if situation == "more features" else n
    num_steps = 1 if situation == "one step" else num_steps
    by_row = (B,) if "by row" in situation else ()
    by_step = (num_steps - 1,) if "changing" in situation else ()
    noise_by = (num_steps - 1, B) if situation == "noise by row missing" else by_step + by_row if by_step else ()
    matrix_by = by_step + by_row if by_step else ()
    emission_by = {"evidence by step": (num_steps,), "evidence by row": (num_steps, B)}.get(situation, ())
    emission_by = (num_steps, B) if by_step and by_row else emission_by
    root, noise_root = normal(h, h), 0.5 * normal(*noise_by, h, h)
    if situation == "many states":
        root, noise_root = root / 4, noise_root / 4
    matrix = 0.5 * normal(*matrix_by, h, h)
    offset = None
    if situation in ("own starts", "known rows"):
        root = normal(B, h, h)
    if situation == "known rows":
        root[1:3] = 0
    if situation == "known start":
        root = torch.zeros(h, h, dtype=DOUBLE)
    if situation == "singular noise":
        root, noise_root = normal(h, 1), normal(h, 1)
    if situation == "no noise":  # regression: a state that never moves
        matrix, noise_root = torch.eye(h, dtype=DOUBLE), torch.zeros(h, h, dtype=DOUBLE)
    if situation == "no memory":
        matrix = torch.zeros(h, h, dtype=DOUBLE)
    if situation in ("growing", "many states"):
        matrix = matrix * ((1.2 if situation == "growing" else 0.9) / torch.linalg.eigvals(matrix).abs().max())
    if situation in ("offset", "long offset"):
        offset = normal(h)
    if situation == "step offset" or "changing by row" in situation:
        offset = normal(num_steps - 1, B, h)
    emission = normal(*emission_by, n, h)
    lengths = torch.full((B,), num_steps)
    if "ragged" in situation or situation in ("offset", "changing by row", "evidence by row"):
        lengths = torch.tensor([num_steps, 4, 1, 0, 6])
    seen = None
    if "missing" in situation:
        seen = torch.rand(num_steps, B, generator=generator) > 0.35
    if "gaps" in situation:
        seen = torch.ones(num_steps, B, dtype=torch.bool)
        for row, (start, stop) in enumerate(GAPS):
            seen[start:stop, slice(None) if situation == "gaps of all" and row in (1, 2) else row] = False
    variances = torch.rand(n, generator=generator, dtype=DOUBLE) + 0.3
    variances = 0.3 * normal(n, n) + torch.eye(n) if "full noise" in situation else variances
    variances = variances * (1e-8 if situation == "precise" else 0.0 if "exact" in situation else 1.0)
    patterns = which = None
    if "partly seen" in situation:
        patterns = torch.tensor([[True] * n, [True] + [False] * (n - 1), [False] * (n - 1) + [True], [False] * n])
        which = torch.randint(4, (num_steps, B), generator=generator)
    case = Case(
        normal(B, h), root, matrix, noise_root, offset, emission, variances, normal(num_steps, B, n), lengths, seen,
        (torch.zeros(h, h, dtype=DOUBLE), torch.zeros(h, h, dtype=DOUBLE)), which, patterns,
    )  # fmt: skip
    for parameter in case.parameters:
        parameter.requires_grad_(gradients)
    return case


def system(h=3, n=2, radius=0.8, seed=0):
    """A, Q, C, D."""
    torch.manual_seed(seed)
    matrix, root, emission = (
        torch.randn(h, h, dtype=DOUBLE),
        torch.randn(h, h, dtype=DOUBLE),
        torch.randn(n, h, dtype=DOUBLE),
    )
    matrix *= radius / torch.linalg.eigvals(matrix).abs().max()
    return matrix, root @ root.T / h, emission, torch.diag(torch.rand(n, dtype=DOUBLE) + 0.3)


def chain_of(parts, y, covariance=None, mean=None, **options):
    """A chain of observations (T, B, n) under a system."""
    matrix, noise, emission, spread = parts
    weighted = torch.linalg.solve(spread, emission).T
    constant = torch.distributions.MultivariateNormal(torch.zeros_like(spread[0]), spread).log_prob(y)
    evidence = Evidence(y @ weighted.T, weighted @ emission, constant)
    mean = y.new_zeros(y.shape[1], len(matrix)) if mean is None else mean
    covariance = torch.eye(len(matrix), dtype=y.dtype) if covariance is None else covariance
    return GaussianChain(GaussianBelief(mean, covariance), Dynamics(matrix, noise), evidence, **options)
