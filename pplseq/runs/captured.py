"""Steps of training as a CUDA graph: a step of a thousand small kernels waits for the host, which starts them one by one; a
graph starts all of them at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.drawing import generator_of
from pplseq.runs import checkpoint

AGREEMENT = 1e-2  # of what is replayed with what was run, relative; sums on a GPU come in no fixed order


class CapturedStep:
    """Loss and gradients of batches of one shape behind another, and the belief that they leave.

    A shape is captured when it comes for the second time in a row; other steps run as they are. What is drawn in a replay is
    what the step itself would have drawn. The first replay is compared with the step; where a step cannot be captured, or comes
    out otherwise, a RuntimeWarning says so, and all steps run as they are from then on.

    Args:
        step: (x, start) -> (what is carried on, a named tuple of tensors; the loss), with gradients in ``parameters``. It must
            ask the device nothing, and be the same function for the same ``key``.
        parameters: whose gradients it leaves.
    """

    def __init__(self, step: Callable[[Tensor, Any], tuple[Any, Tensor]], parameters: Sequence[Tensor], device: torch.device):
        self.step, self.parameters, self.device = step, parameters, device
        self.works, self.last, self.key = True, None, None
        self.kept: _Kept | None = None

    def __call__(self, x: Tensor, start: Any, key: Any) -> tuple[Any, Tensor]:
        key = (key, x.shape, start if start is None else tuple(None if value is None else value.shape for value in start))
        again, self.last = key == self.last, key
        if self.works and self.key != key and again:
            before = checkpoint.random_states(self.device)
            try:
                return self._capture(x, start, key, before)
            except RuntimeError as error:
                self.works = False
                warnings.warn(f"steps are not captured as a graph, and run one by one: {error}", RuntimeWarning, stacklevel=2)
                self._forget()
                checkpoint.restore_random_states(before, self.device)
        if self.kept is None or self.key != key:
            return self.step(x, start)
        return self._replay(self.kept, x, start)

    def _capture(self, x: Tensor, start: Any, key: Any, before: dict[str, Tensor]) -> tuple[Any, Tensor]:
        """What the step gives, by its first replay."""
        self._forget()
        own = x.clone(), _map(torch.clone, start)
        expected = self._aside(*own)
        checkpoint.restore_random_states(before, self.device)
        self._clear()
        replay, (carried, loss) = recorded(lambda: self.step(*own), self.device)
        self.kept = _Kept(replay, *own, carried, loss, [parameter.grad for parameter in self.parameters])
        found = self._replay(self.kept, x, start)
        if not torch.allclose(self._figures(found[1]), expected, rtol=AGREEMENT):
            raise RuntimeError(f"loss and gradients are {self._figures(found[1]).tolist()[:3]}, not {expected.tolist()[:3]}")
        self.key = key
        return found

    def _aside(self, x: Tensor, start: Any) -> Tensor:
        """Runs the step beside what else the device does, so that whatever is made once is there; its figures."""
        if self.device.type != "cuda":
            return self._figures(self.step(x, start)[1])
        side, here = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self._clear()
            figures = self._figures(self.step(x, start)[1])
        here.wait_stream(side)
        return figures

    def _figures(self, loss: Tensor) -> Tensor:
        """The loss, and the norm of each gradient."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return torch.stack([loss.double(), *(value.double().norm() for value in gradients)])

    def _replay(self, kept: _Kept, x: Tensor, start: Any) -> tuple[Any, Tensor]:
        kept.x.copy_(x)
        for own, value in zip(kept.start or (), start or (), strict=True):
            if own is not None:
                own.copy_(value)
        kept.replay()
        for parameter, gradient in zip(self.parameters, kept.gradients, strict=True):
            parameter.grad = gradient
        return kept.carried, kept.loss.clone()

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _forget(self) -> None:
        """Gives the memory of what was captured to what comes."""
        self.key = self.kept = None
        self._clear()


class _Kept(NamedTuple):
    """A captured step: what runs it, and the tensors that it reads and writes."""

    replay: Callable[[], None]
    x: Tensor
    start: Any
    carried: Any
    loss: Tensor
    gradients: list[Tensor | None]


def _map(function: Callable[[Tensor], Tensor], carried: Any) -> Any:
    return None if carried is None else type(carried)(*(None if value is None else function(value) for value in carried))


def recorded(run: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """What runs again what ``run`` does on a GPU, into the same tensors, and these tensors."""
    graph, own = torch.cuda.CUDAGraph(), generator_of(device)
    if own is not None:
        graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result
