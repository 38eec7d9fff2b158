"""How a causal language model over pieces of words is read behind a context: along one word, or over all words at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 256  # nodes of a tree that go through the network together


class PieceTree:
    """The beginnings that words have in common: a node for each, the root (0) for the empty one, parents before children.

    Args:
        words: the pieces of each, at least one.

    Attributes:
        piece, parent: (N,) the last piece of each node, and the node before it; of the root nothing. children: of each node.
        words: (V,) the node at which each word ends. depth: pieces of the longest.
    """

    def __init__(self, words: list[list[int]]):
        pieces, parents, known, ends = [0], [0], {}, []
        for word in words:
            node = 0
            for piece in word:
                if (node, piece) not in known:
                    known[node, piece] = len(pieces)
                    pieces.append(piece)
                    parents.append(node)
                node = known[node, piece]
            ends.append(node)
        self.piece, self.parent, self.words = torch.tensor(pieces), parents, torch.tensor(ends)
        self.depth = max(map(len, words))
        self.children: list[list[int]] = [[] for _ in pieces]
        for node, parent in enumerate(parents[1:], 1):
            self.children[parent].append(node)

    def __len__(self) -> int:
        return len(self.parent)

    def path(self, node: int) -> list[int]:
        """The nodes from behind the root to this one."""
        nodes = []
        while node:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]

    def pieces_of(self, node: int) -> list[int]:
        """The pieces from behind the root to a node."""
        return self.piece[self.path(node)].tolist()


class Reader:
    """Reads every context from its start: slow, and what :class:`CachedReader` is compared with.

    Args:
        read: gives (N, S) log-probabilities behind N contexts.
        output: what the model answers to a context, asked for its hidden states.
    """

    def __init__(self, read: Callable[[list[list[int]]], Tensor], output: Callable[[list[int]], Any] | None = None):
        self.read, self.output = read, output

    def forget(self) -> None:
        """Nothing is kept."""

    def hidden(self, context: list[int]) -> Any:
        """What the model answers behind a context, its layers' hidden states among it."""
        assert self.output is not None
        return self.output(context)

    def along(self, context: list[int], pieces: list[int]) -> Tensor:
        """(n + 1, S) log-probabilities of the next piece behind the context and the first 0..n pieces."""
        return self.read([context + pieces[:n] for n in range(len(pieces) + 1)])

    def over(self, context: list[int], tree: PieceTree) -> Iterator[tuple[list[int], Tensor]]:
        """Some nodes of a tree and (N, S) log-probabilities behind each, until all were there; parents before children."""
        for first in range(0, len(tree), AT_ONCE):
            nodes = list(range(first, min(first + AT_ONCE, len(tree))))
            yield nodes, self.read([context + tree.pieces_of(node) for node in nodes])


def _new_cache(model: Any) -> Any:
    from transformers import DynamicCache

    try:
        return DynamicCache(config=model.config)
    except TypeError:  # older ones know no configuration, and no layers that differ
        return DynamicCache()


def cache_argument(model: Any) -> str | None:
    """The argument by which a model takes its keys and values, ``cache`` from transformers 5.24 on; None: it takes none."""
    known = inspect.signature(model.forward).parameters
    return next((name for name in ("past_key_values", "cache") if name in known), None)


def has_cache(model: Any) -> bool:
    """Whether a model keeps keys and values that can be cut at any place."""
    if cache_argument(model) is None or not hasattr(model, "config"):
        return False
    try:
        cache = _new_cache(model)
    except (ImportError, ValueError, AttributeError):
        return False
    layers = getattr(cache, "layers", [])
    # a window that slides, or a state that is carried, has forgotten what a cut would need
    return hasattr(cache, "crop") and not any(getattr(layer, "is_sliding", False) for layer in layers)


class CachedReader(Reader):
    """Keeps keys and values of what was read last, and reads only what a context has beyond it.

    The nodes of a tree stand in one sequence behind the context, each at its depth's position and seeing its own path alone.

    Args:
        model: of `transformers`, for which :func:`has_cache` holds. device: where it is.
        call: how the model is called; None: by itself.
    """

    def __init__(self, model: Any, device: torch.device, call: Callable[..., Any] | None = None):
        self.model, self.device, self.call = model, device, call or model
        name = cache_argument(model)
        assert name is not None
        self.argument = name
        self.forget()

    def forget(self) -> None:
        """The model is another one: what was read before does not hold."""
        self.cache, self.cached = _new_cache(self.model), list[int]()

    def _keep(self, pieces: list[int]) -> list[int]:
        """Cuts the cache to what it has of some pieces; returns those that it lacks."""
        same = next((n for n, (a, b) in enumerate(zip(self.cached, pieces, strict=False)) if a != b), None)
        same = min(len(self.cached), len(pieces)) if same is None else same
        if same < len(self.cached):
            self._cut(same)
        return pieces[same:]

    def _cut(self, size: int) -> None:
        if size < len(self.cached):
            self.cache.crop(size - len(self.cached))  # a negative number is what every version takes
            self.cached = self.cached[:size]

    def _feed(self, pieces: list[int], rows: slice, **more: Any) -> Tensor:
        return torch.log_softmax(self._output(pieces, **more).logits[0, rows].double(), -1)

    @torch.no_grad()
    def _output(self, pieces: list[int], **more: Any) -> Any:
        size = len(self.cached)
        try:
            more[self.argument] = self.cache
            output = self.call(input_ids=torch.tensor([pieces], device=self.device), use_cache=True, **more)
        except BaseException:
            self.cached = self.cached + pieces[: self.cache.get_seq_length() - size]
            self._cut(size)
            raise
        self.cached = self.cached + pieces
        return output

    def hidden(self, context: list[int]) -> Any:
        return self._output(self._keep(context[:-1]) + context[-1:], output_hidden_states=True)

    def along(self, context: list[int], pieces: list[int]) -> Tensor:
        # the context's last piece is read again: what is said behind it is not kept
        rest = self._keep(context[:-1]) + context[-1:] + pieces
        return self._feed(rest, slice(len(rest) - len(pieces) - 1, None))

    def over(self, context: list[int], tree: PieceTree) -> Iterator[tuple[list[int], Tensor]]:
        yield [0], self.along(context, [])
        size = len(context)
        for first in range(1, len(tree), AT_ONCE):
            nodes = list(range(first, min(first + AT_ONCE, len(tree))))
            paths = [tree.path(node) for node in nodes]
            inside = sorted({node for path in paths for node in path})  # with the beginnings of earlier parts
            place = {node: n for n, node in enumerate(inside)}
            sees = torch.zeros(len(inside), size + len(inside), dtype=torch.bool)
            sees[:, :size] = True
            depth = torch.zeros(len(inside), dtype=torch.long)
            for n, node in enumerate(inside):
                path = tree.path(node)
                sees[n, [size + place[step] for step in path]] = True
                depth[n] = len(path)
            self._keep(context)
            blocked = torch.zeros(sees.shape, dtype=self.model.dtype).masked_fill(~sees, torch.finfo(self.model.dtype).min)
            rows = self._feed(
                tree.piece[inside].tolist(),
                slice(None),
                attention_mask=blocked[None, None].to(self.device),
                position_ids=(size - 1 + depth)[None].to(self.device),
            )
            # what lies behind the context is a tree, not a text
            self._cut(size)
            yield nodes, rows[[place[node] for node in nodes]]
