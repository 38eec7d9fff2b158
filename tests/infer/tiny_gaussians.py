"""Small linear-Gaussian models, each as a fast chain and as one slow truth a row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief
from pplseq.infer.gaussian_chain import Dynamics, GaussianChain
from pplseq.infer.gaussian_oracle import GaussianSequence, kalman_loop

DOUBLE = torch.float64


@dataclass
class Case:
    """Parameters of a model with B rows, of which some steps are padded or missing; A = matrix, C = emission, D = noises."""

    mean: torch.Tensor  # (B, h)
    root: torch.Tensor  # (h, r), start covariance root root'
    matrix: torch.Tensor
    noise_root: torch.Tensor
    offset: torch.Tensor | None
    emission: torch.Tensor  # (n, h) or (T, B, n, h)
    variances: torch.Tensor  # (n,)
    observations: torch.Tensor  # (T, B, n)
    lengths: torch.Tensor
    seen: torch.Tensor | None

    @property
    def parameters(self):
        named = (self.mean, self.root, self.matrix, self.noise_root, self.offset, self.emission, self.variances)
        return [p for p in named if p is not None]

    @property
    def valid(self):
        return torch.arange(len(self.observations)).unsqueeze(1) < self.lengths

    def evidence(self):
        weighted = self.emission.mT / self.variances  # C' D^-1
        y = torch.nan_to_num(self.observations)
        vector = (weighted @ y.unsqueeze(-1)).squeeze(-1)
        constant = (
            -((y * y / self.variances).sum(-1) + self.variances.log().sum() + y.shape[-1] * math.log(2 * math.pi)) / 2
        )
        return Evidence(vector, weighted @ self.emission, constant)

    def chain(self, **options):
        valid = None if bool(self.valid.all()) else self.valid
        return GaussianChain(
            GaussianBelief(self.mean, self.root @ self.root.mT),
            Dynamics(self.matrix, self.noise_root @ self.noise_root.mT, self.offset),
            self.evidence(),
            valid=valid,
            seen=self.seen,
            **options,
        )

    def sequence(self, row):
        length = int(self.lengths[row])
        steps = range(length - 1)

        def each(value, matrices=2):
            if value.dim() == matrices:
                return [value] * (length - 1)
            return [value[t] if value.dim() == matrices + 1 else value[t, row] for t in steps]

        zero = torch.zeros(self.mean.shape[-1], dtype=DOUBLE)
        emission = [self.emission if self.emission.dim() == 2 else self.emission[t, row] for t in range(length)]
        seen = torch.ones(length, dtype=torch.bool) if self.seen is None else self.seen[:length, row]
        return GaussianSequence(
            self.mean[row],
            self.root @ self.root.mT if self.root.dim() == 2 else self.root[row] @ self.root[row].mT,
            each(self.matrix),
            each(self.noise_root @ self.noise_root.mT),
            each(zero if self.offset is None else self.offset, 1),
            emission,
            [torch.diag(self.variances)] * length,
            [torch.zeros_like(self.variances)] * length,
            [self.observations[t, row] if seen[t] else None for t in range(length)],
        )

    def truths(self):
        """One per row; None for rows without a step."""
        return [kalman_loop(self.sequence(row)) if n > 0 else None for row, n in enumerate(self.lengths.tolist())]


SITUATIONS = (
    "plain", "ragged", "missing", "ragged missing", "known start", "singular noise", "offset", "step offset",
    "changing", "changing missing", "changing by row", "own starts", "one state", "one step", "one row missing",
)  # fmt: skip


def tiny_case(situation: str, num_steps: int = 9, h: int = 3, n: int = 2, gradients: bool = True) -> Case:
    generator = torch.Generator().manual_seed(sum(map(ord, situation)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    B = 5
    h = 1 if situation == "one state" else h
    num_steps = 1 if situation == "one step" else num_steps
    B = 1 if situation == "one row missing" else B
    by_step = (num_steps - 1,) if "changing" in situation else ()
    by_row = (B,) if situation == "changing by row" else ()
    root = normal(B, h, h) if situation == "own starts" else normal(h, h)
    noise_root = 0.5 * normal(*by_step, *by_row, h, h)
    offset = None
    if situation == "known start":
        root = torch.zeros(h, h, dtype=DOUBLE)
    if situation == "singular noise":
        root, noise_root = normal(h, 1), normal(h, 1)
    if situation == "offset":
        offset = normal(h)
    if situation in ("step offset", "changing by row"):
        offset = normal(num_steps - 1, B, h)
    emission = normal(*((num_steps, B) if by_row else ()), n, h)
    lengths = torch.full((B,), num_steps)
    if "ragged" in situation or situation in ("offset", "changing by row"):
        lengths = torch.tensor([num_steps, 4, 1, 0, 6])
    seen = None
    if "missing" in situation:
        seen = torch.rand(num_steps, B, generator=generator) > 0.35
    observations = normal(num_steps, B, n)
    case = Case(
        normal(B, h), root, normal(*by_step, *by_row, h, h) * 0.5, noise_root, offset, emission,
        torch.rand(n, generator=generator, dtype=DOUBLE) + 0.3, observations, lengths, seen,
    )  # fmt: skip
    for parameter in case.parameters:
        parameter.requires_grad_(gradients)
    return case
