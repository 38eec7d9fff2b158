"""Dense chains at random: one matrix, one for some rows, or one a step, with holes; rows of random lengths."""

import math

import torch

F64 = torch.float64


def random_chain(links, num_steps, rows, num_states, scale=1.0, holes=0.0, dtype=F64):
    init = torch.randn(*rows, num_states, dtype=dtype).log_softmax(-1)
    lead = {"shared": (), "shared by some rows": (rows[0], *(1 for _ in rows[1:])), "a matrix a step": (num_steps - 1, *rows)}
    pair = (scale * torch.randn(*lead[links], num_states, num_states, dtype=dtype)).log_softmax(-1)
    emit = scale * torch.randn(num_steps, *rows, num_states, dtype=dtype)
    if holes:
        keep = torch.randint(num_states, pair.shape[:-1]).unsqueeze(-1) == torch.arange(num_states)
        pair = pair.masked_fill((torch.rand(pair.shape) < holes) & ~keep, -math.inf)
        emit = emit.masked_fill(torch.rand(emit.shape) < holes / 4, -math.inf)
    return init, pair, emit


def ragged(num_steps, rows, shortest=0):
    lengths = torch.randint(shortest, num_steps + 1, rows)
    lengths.view(-1)[0] = num_steps
    return torch.arange(num_steps).view(-1, *(1 for _ in rows)) < lengths
