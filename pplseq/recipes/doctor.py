"""What an installation is and has, and whether each family of models answers as it should: for reports of faults."""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pplseq.files import printable

NEEDED = ("torch", "pyro-ppl", "numpy", "numba", "opt-einsum", "safetensors", "click")
NO_EXTRAS = ("all", "bench", "docs", "test")  # of users: what contributors install, and the others together
CLOSE = 1e-9  # relative, of double precision


class Finding(NamedTuple):
    """One line of :func:`examine`. is_right: False where an answer is wrong or could not be had, None for what is only told."""

    name: str
    told: str
    is_right: bool | None = None


def examine() -> Iterator[Finding]:
    """Versions, processor, threads, where machine code is kept, GPU and extras; then a small question to each family.

    Families are asked what can be told in another way: by adding up all paths, or all texts. Takes seconds.
    """
    yield Finding("pplseq", f"{importlib.metadata.version('pplseq')} in {printable(str(Path(__file__).parents[1]))}")
    yield Finding("Python", f"{platform.python_version()}, {platform.platform()}")
    for name in NEEDED:
        version = _version(name)
        optional = name == "numba"  # which Pythons that it has not reached yet do without
        yield Finding(name, version or "not installed", None if version or optional else False)
    yield from _machine()
    for extra, names in _extras().items():
        there = [f"{name} {version}" if (version := _version(name)) else f"no {name}" for name in names]
        yield Finding(f"extra {extra}", ", ".join(there))
    for family, ask in FAMILIES.items():
        yield _asked(family, ask)


def _extras() -> dict[str, list[str]]:
    """What each extra installs."""
    found: dict[str, list[str]] = {}
    for needed in importlib.metadata.requires("pplseq") or ():
        name, extra = re.match(r"([\w.-]+)", needed), re.search(r"extra == ['\"]([\w-]+)['\"]", needed)
        if name and extra and extra[1] not in NO_EXTRAS:
            found.setdefault(extra[1], []).append(name[1])
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[Finding]:
    import torch

    from pplseq.kernels import compiled

    yield Finding("processor", f"{platform.machine()}, {os.cpu_count()} threads, torch uses {torch.get_num_threads()}")
    how = torch.backends.cpu.get_cpu_capability()
    yield Finding("vector instructions", how)
    if torch.cuda.is_available():
        yield Finding("GPU", f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    else:
        yield Finding("GPU", "none that torch can use")
    if _version("numba") is None:
        yield Finding("compiled loops", "numba is not installed: readable twins answer, more slowly")
        return
    folders = compiled.folders()
    writable = next((folder for folder in folders if _is_writable(folder)), None)
    where = "nowhere: set NUMBA_CACHE_DIR to a folder that can be written to" if writable is None else printable(str(writable))
    yield Finding("compiled loops", f"PPLSEQ_LOOPS={compiled.choice()}, kept in {where}")


def _is_writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _asked(family: str, ask: Callable[[], tuple[float, float]]) -> Finding:
    try:
        found, expected = ask()
    except ImportError as error:
        return Finding(family, printable(str(error).splitlines()[0]))
    except Exception as error:  # whatever it is, it is what the report is about
        return Finding(family, f"{type(error).__name__}: {printable(str(error)[:200])}", False)
    is_right = abs(found - expected) <= CLOSE * max(1.0, abs(expected))
    return Finding(family, f"{found:.12g}" if is_right else f"{found:.12g}, and {expected:.12g} is right", is_right)


# ---------------------------------------------------------------- a small question to each family, and what is right
def _hmm() -> tuple[float, float]:
    from pplseq import HMM

    initial, moves, words = [0.6, 0.4], [[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]]
    model = HMM(2, num_words=3).set_parameters(initial=initial, transition=moves, emission=words)
    text, total = [0, 2, 1, 2], 0.0
    for path in itertools.product(range(2), repeat=len(text)):
        prob = initial[path[0]] * math.prod(moves[i][j] for i, j in itertools.pairwise(path))
        total += prob * math.prod(words[state][word] for state, word in zip(path, text, strict=True))
    return model.score([text]), math.log(total)


def _vlhmm() -> tuple[float, float]:
    import torch

    from pplseq import VLHMM

    model = VLHMM(num_states=6, num_words=3, blocks=[0, 1, 1], hidden_size=4).double().eval()
    every = torch.tensor(list(itertools.product(range(3), repeat=3)))
    return float(model.log_prob(every).exp().sum()), 1.0


def _lds() -> tuple[float, float]:
    import torch

    from pplseq import LDS

    model = LDS(1, 1, offsets="none")
    model.set_parameters(
        transition=[[0.8]], state_noise=[[0.5]], emission=[[1.0]], emission_noise=[[0.3]], initial_mean=[0.0],
        initial_covariance=[[1.0]],
    )  # fmt: skip
    variances = [1.0]
    for _ in range(2):
        variances.append(0.64 * variances[-1] + 0.5)
    covariance = [[0.8 ** abs(i - j) * variances[min(i, j)] + 0.3 * (i == j) for j in range(3)] for i in range(3)]
    x = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros_like(x), x.new_tensor(covariance))
    return model.score(x[None, :, None]), float(normal.log_prob(x))


def _iohmm() -> tuple[float, float]:
    import torch

    from pplseq import IOHMM

    model = IOHMM(2, num_inputs=1, outputs="bernoulli", num_outputs=1).double()
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3))).double().unsqueeze(-1)
    inputs = torch.tensor([0.5, -1.0, 2.0]).double().expand(8, 3).unsqueeze(-1)
    return float(model.log_prob(every, inputs=inputs).exp().sum()), 1.0


def _props() -> tuple[float, float]:
    from pplseq.models import PROPSLearner

    learner = PROPSLearner([], num_words=4, seed=0)
    for word in (0, 1, 0, 2):
        learner.learn_one(word)
    return float(learner.predict_proba_one().sum()), 1.0


def _taggers() -> tuple[float, float]:
    from pplseq import HMMTagger
    from pplseq.data import TaggedSentence

    sentences = [TaggedSentence(tuple(words.split()), tuple("DNV")) for words in ("the dog barks", "a cat sees")]
    tags = HMMTagger().fit(sentences * 3).tag([["the", "cat", "barks"]])[0]
    return float(sum(a == b for a, b in zip(tags, "DNV", strict=True))), 3.0


def _text_lds() -> tuple[float, float]:
    from pplseq import TextLDS

    lines = [[0, 1, 2, 0], [1, 2, 0, 1]] * 8
    model = TextLDS(num_states=1, num_words=3).fit(lines, max_iterations=1, seed=0)
    states = model.smooth([[0, 1, 2]])
    return float(len(states.means[0])), 3.0


def _automata() -> tuple[float, float]:
    from pplseq.models import merge_states

    found = merge_states(["", "a", "aa", "aaa", "aaaa"], [True, False, True, False, True])
    return float(found.num_states), 2.0


FAMILIES: dict[str, Callable[[], tuple[float, float]]] = {
    "HMM": _hmm, "VLHMM": _vlhmm, "LDS": _lds, "IOHMM": _iohmm, "PROPS": _props, "taggers": _taggers,
    "text LDS": _text_lds, "automata": _automata,
}  # fmt: skip
