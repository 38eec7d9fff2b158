"""Steps of training as a CUDA graph: a step of a thousand small kernels waits for the host, which starts them one by one; a graph
starts all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.drawing import generator_of
from pplseq.runs import checkpoint


class CapturedStep:
    """Loss and gradients of batches of one shape behind another, and the belief that they leave.

    A shape is captured when it comes for the second time in a row; other steps run as they are. What is drawn in a replay is
    what the step itself would have drawn.

    Args:
        step: (x, start) -> (what is carried on, a named tuple of tensors; the loss), with gradients in ``parameters``. It must
            ask the device nothing, and be the same function for the same ``key``.
        parameters: whose gradients it leaves.
    """

    def __init__(self, step: Callable[[Tensor, Any], tuple[Any, Tensor]], parameters: Sequence[Tensor], device: torch.device):
        self.step, self.parameters, self.device = step, parameters, device
        self.last = self.key = self.graph = None

    def __call__(self, x: Tensor, start: Any, key: Any) -> tuple[Any, Tensor]:
        key = (key, x.shape, start if start is None else tuple(None if value is None else value.shape for value in start))
        again, self.last = key == self.last, key
        if self.key != key:
            if not again:
                return self.step(x, start)
            self._capture(x, start, key)
        self.x.copy_(x)
        for own, value in zip(self.start or (), start or (), strict=True):
            if own is not None:
                own.copy_(value)
        assert self.graph is not None
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.carried, self.loss.clone()

    def _capture(self, x: Tensor, start: Any, key: Any) -> None:
        self.graph = self.key = self.gradients = self.carried = self.loss = None  # what was kept gives its memory to what comes
        self.x = x.clone()
        self.start = None if start is None else type(start)(*(None if value is None else value.clone() for value in start))
        before = checkpoint.random_states(self.device)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):  # whatever is made once
            self._clear()
            self.step(self.x, self.start)
            self._clear()
        torch.cuda.current_stream(self.device).wait_stream(side)
        checkpoint.restore_random_states(before, self.device)
        graph = torch.cuda.CUDAGraph()
        own = generator_of(self.device)
        if own is not None:
            graph.register_generator_state(own)
        with torch.cuda.graph(graph):
            self.carried, self.loss = self.step(self.x, self.start)
        self.gradients = [parameter.grad for parameter in self.parameters]
        self.graph, self.key = graph, key

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
