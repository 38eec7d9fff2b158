"""Layers between the embeddings of states and their scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pplseq.kernels.precision import network_precision


class ResidualLayer(nn.Module):
    """LayerNorm(relu(W2 u) + u), u = relu(W1 x); (..., D) -> (..., D)."""

    def __init__(self, size: int):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(size, size), nn.Linear(size, size), nn.LayerNorm(size)

    def forward(self, x: Tensor) -> Tensor:
        with network_precision(x):
            u = torch.relu(self.first(x))
            v = torch.relu(self.second(u)) + u
        return self.norm(v.to(x.dtype))
