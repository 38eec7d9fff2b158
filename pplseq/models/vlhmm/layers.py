"""Layers between the embeddings of states and their scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pplseq.distributions.drawing import drawn
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


@drawn()
def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """``torch.nn.functional.dropout``, with shares in steps of 2^-16 on a CPU: four at a draw, where torch draws one."""
    left_out = round(share * 2**16)
    if not training or not 0 < left_out < 2**16 or x.device.type != "cpu":
        return nn.functional.dropout(x, share, training)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = (bits[: x.numel()] >= left_out - 2**15).view(x.shape)
    return x * kept.to(x.dtype).mul_(2**16 / (2**16 - left_out))
