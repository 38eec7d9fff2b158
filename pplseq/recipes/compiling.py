"""Compiling all loops for this machine beforehand: for images, servers and tests."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable


def warm_up(progress: bool = False) -> int:
    """Compiles the loops over time of all models, so that no later call waits for them; a few minutes, once a machine.

    Their machine code is kept beside the package, or in the user's cache folder where that cannot be written to, or in
    NUMBA_CACHE_DIR; from there every process takes it.

    Args:
        progress: whether a bar is drawn.

    Returns:
        The number of groups of loops; 0 without numba, of which there is nothing to compile.
    """
    if importlib.util.find_spec("numba") is None:
        return 0
    from tqdm.auto import tqdm

    from pplseq.kernels import compiled

    groups = calls()
    # what is fitted says nothing about anyone's data
    with compiled.always(), warnings.catch_warnings(action="ignore"):
        for name, call in (bar := tqdm(groups.items(), disable=not progress, unit="group")):
            bar.set_description(name)
            call()
    return len(groups)


def calls() -> dict[str, Callable[[], object]]:
    """Small calls that need every loop, dear ones first, by what they are about."""
    import torch

    from pplseq.models import HMM, IOHMM, LDS, CRFTagger, HMMTagger, StructuralModel
    from pplseq.models.automata.state_merging import merge_states

    def words(num_states: int, dtype: str = "float64"):
        def call():
            model, rows = HMM(num_states, num_words=4, dtype=dtype), [[(3 * t + n) % 4 for t in range(9 - n)] for n in range(3)]
            model.fit(rows, max_iterations=1, seed=0)
            for verb in ("score", "smooth", "decode", "sample_states"):
                getattr(model, verb)(rows)
            whole = torch.tensor([row[:6] for row in rows])
            model.fit(whole, max_iterations=1, seed=0).score(whole), model.decode(whole), model.smooth(whole)

        return call

    def vectors(num_states: int):
        def call():
            x = numbers(2)
            model = HMM(num_states, num_features=2).fit(x, max_iterations=1, seed=0)
            model.score(x), model.decode(x), model.smooth(x), model.log_joint(x).backward()

        return call

    def numbers(width: int):
        return torch.randn(2, 12, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def linear(num_states: int):
        def call():
            for gap in (False, True):
                model, x = LDS(num_states, num_features=2), numbers(2)
                if gap:
                    x[0, 3] = torch.nan
                model.log_joint(x).backward()
                model.is_fitted = True
                model.score(x), model.smooth(x), model.decode(x), model.fit(x, max_iterations=1)

        return call

    def inputs():
        u = numbers(1)
        model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=2).fit(numbers(2), inputs=u, max_iterations=1, seed=0)
        model.score(numbers(2), inputs=u), model.decode(numbers(2), inputs=u)

    def taggers():
        from pplseq.data import TaggedSentence

        sentences = [TaggedSentence(("a", "dog", "sleeps"), ("D", "N", "V")), TaggedSentence(("dogs", "sleep"), ("N", "V"))]
        CRFTagger().fit(sentences).tag([["a", "dog"]])
        tagger = HMMTagger().fit(sentences)
        tagger.tag([["a", "dog"]]), tagger.tag([["a", "dog"]], decoder="posterior")

    few: dict[str, Callable[[], object]] = {f"linear systems of {size} states": linear(size) for size in (2, 16)}
    few |= {f"words, {size} states": words(size) for size in (2, 3, 4, 5)}
    few |= {f"vectors, {size} states": vectors(size) for size in (2, 3, 4, 5)}
    few["words, single precision"] = words(5, "float32")
    few["inputs"], few["taggers"] = inputs, taggers
    few["seasons"] = lambda: StructuralModel(seasonal=3).fit(numbers(1)[0, :, 0].cumsum(0).numpy())
    few["merging of states"] = lambda: merge_states(["ab", "b", "aa"], [True, False, True])
    return few
