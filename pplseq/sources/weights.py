"""A source whose network is read with weights other than its own: what dynamic evaluation asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.func import functional_call

from pplseq.threads import evaluating

Weights = dict[str, Tensor]


@runtime_checkable
class WeightedSource(Protocol):
    """A source out of a torch module, which stays as it is: `weights` stand in the place of its own while it is read.

    Beside these it has what every source has, with ``log_prob_of``, ``mark``, ``state_dict`` and ``load_state_dict``.

    Attributes:
        model: the module. weights: by their names, read in the place of the module's; None for the module's own.
        line_end: the token that ``reset`` makes it read; None where a sequence begins with nothing before it.
    """

    model: Any
    num_words: int
    name: str
    weights: Weights | None
    line_end: int | None

    def apart(self) -> WeightedSource:
        """The same source at its beginning, with weights, context and caches of its own; the module is shared."""
        ...

    def nats(self, state: dict[str, Any], words: list[int]) -> Tensor:
        """(n,) -log p of words behind a state (of ``state_dict``), as they were predicted; gradients flow to `weights`.

        A word that says nothing of the weights may be left out.
        """
        ...


def call_with(model: nn.Module, weights: Weights | None, *inputs: Any, **named: Any) -> Any:
    """What a module answers in evaluation mode, with some of its weights replaced."""
    # which puts them into the module itself for that long
    with evaluating(model, alone=weights is not None):
        return model(*inputs, **named) if weights is None else functional_call(model, weights, inputs, named)


def stretches(
    context: list[int],
    words: list[int],
    spell: Callable[[int], list[int]],
    after: Callable[[list[int], int], list[int]],
) -> Iterator[tuple[list[int], list[int]]]:
    """Words that can be read at once: a context and the words behind it, until the context is cut and another one begins.

    Args:
        context: ids before the first word. spell: the ids of a word. after: the context behind another context and a word.
    """
    begin, part = context, list[int]()
    for word in words:
        part.append(word)
        grown, context = context + spell(word), after(context, word)
        if context != grown:
            yield begin, part
            begin, part = context, []
    if part:
        yield begin, part
