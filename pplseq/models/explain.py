"""Which way a question goes: by compiled loops or their twins, and why."""

from __future__ import annotations

from typing import Any

from pplseq.kernels import compiled


def explain(model: Any, x: Any, question: str = "score", **known: Any) -> str:
    """Asks, and says which compiled loops did the work, or their readable twins in torch, and why.

    The last digits of an answer depend on it. ``PPLSEQ_LOOPS=always`` in the environment, or ``with compiled.always():`` of
    ``pplseq.kernels``, fixes the choice; "auto" compiles a loop once the process has asked for as much work as compiling takes.

    Args:
        x, known: as ``question``, a method of the model such as "score", "decode" or "fit", takes them.

    Example::

        print(pplseq.explain(HMM(2, num_features=1).fit(x), x, "decode"))
    """
    call = getattr(model, question, None)
    if not callable(call):
        raise ValueError(f"question: expected a method of {type(model).__name__}, such as 'score', got {question!r}")
    with compiled.told() as notes:
        call(x, **known)
    lines = [f"{loop.removeprefix('kernels.')}: {why}" for loop, why in notes.items()]
    return "\n".join([f"{type(model).__name__}.{question}", *(lines or ["in torch: there is no loop for it"])])
