"""Small calls that have the loops compiled which many tests need: processes share the work instead of each doing all of it.

On a fresh clone compiling takes longer than anything else in a run of all tests; what one process has compiled the others find
on the disk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pplseq import HMM, LDS
from pplseq.kernels import compiled
from pplseq.models.automata.state_merging import merge_states

WORDS = [[(3 * t + n) % 4 for t in range(9 - n)] for n in range(3)]


def _ask(dtype: str, *verbs: str) -> None:
    model = HMM(3, num_words=4, dtype=dtype)
    model.is_fitted = True
    for verb in verbs:
        getattr(model, verb)(WORDS)


def _full_rows() -> None:
    x = torch.tensor([row[:6] for row in WORDS])
    model = HMM(3, num_words=4).fit(x, max_iterations=1)
    model.score(x), model.decode(x)


def _vectors() -> torch.Tensor:
    return torch.randn(2, 12, 2, dtype=torch.float64)


def _full_vectors() -> None:
    HMM(3, num_features=2).fit(_vectors(), max_iterations=1).fit(_vectors(), method="lbfgs", num_steps=1)


def _means() -> None:
    model = LDS(2, num_features=2)
    model.is_fitted = True
    model.smooth(_vectors())


# seconds, roughly, and what takes them
CALLS: list[tuple[int, Callable[[], object]]] = [
    (40, lambda: LDS(2, num_features=2).fit(_vectors(), max_iterations=1)),
    (23, lambda: _ask("float32", "smooth")),
    (22, lambda: _ask("float64", "smooth")),
    (15, _means),
    (12, _full_rows),
    (8, lambda: _ask("float64", "decode", "sample_states")),
    (8, _full_vectors),
    (5, lambda: _ask("float32", "decode", "sample_states")),
    (4, lambda: merge_states(["ab", "b", "aa"], [True, False, True])),
]


def compile_a_share(number: int, num_processes: int) -> None:
    """Has the part of process number (from 0) of the loops compiled, or read from the disk."""
    if not compiled.available():
        return
    given = [0] * num_processes
    for seconds, call in CALLS:
        process = given.index(min(given))
        given[process] += seconds
        if process == number:
            call()
