"""Optimizers of torch that leave its compiler alone.

Torch's own load it, for most of a second, only to tell it what not to compile. Here are the functions themselves.
"""

from __future__ import annotations

import inspect

import torch
from torch.optim import Optimizer


class _Plain:
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


class Adagrad(_Plain, torch.optim.Adagrad):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adagrad.step))


class Adam(_Plain, torch.optim.Adam):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(_Plain, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class LBFGS(_Plain, torch.optim.LBFGS):
    pass
