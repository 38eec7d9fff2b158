"""How far two ways of the same sum may differ: by roundings of what they sum, not by a number that fits one processor."""

import torch


def roundings(*summed: torch.Tensor, times: float = 32) -> float:
    """``times`` spacings of numbers as large as the largest finite one of ``summed``, in the coarsest of their types."""
    finite = [value.detach()[value.detach().isfinite()].abs() for value in summed]
    largest = max((float(value.max()) for value in finite if value.numel()), default=0.0)
    return times * max(torch.finfo(value.dtype).eps for value in summed) * max(largest, 1.0)
