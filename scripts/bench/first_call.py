"""The first answer: processor seconds of a first call in a fresh process, with no compiled loops on disk and with all of them.

    python scripts/bench/first_call.py [--peers-python PATH] [--models lds,crf]

Each row is a process of its own, one thread: the first call of a verb, the second, and the same with the twins alone and with
loops compiled at once (``PPLSEQ_LOOPS=never`` and ``always``). ``warm`` finds all loops on disk. PATH is a Python that has
hmmlearn, dynamax or statsmodels; their rows are of processes of their own, too. What a process imports before the call is not
counted. Writes ``results/bench/first_call.json`` and ``first_call.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from record import ROOT, record

LOADED = 1.0  # processor seconds beyond the twin's that a first call may take


def walks(steps: int = 300, width: int = 2) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((steps, width)).cumsum(0)


def months() -> np.ndarray:
    t = np.arange(96)
    return 10 + 0.05 * t + 2 * np.sin(t * np.pi / 6) + 0.3 * np.random.default_rng(0).standard_normal(96)


def sentences(count: int, num_words: int = 300) -> list[list[str]]:
    rng = np.random.default_rng(0)
    return [[f"w{word}" for word in rng.integers(0, num_words, rng.integers(4, 20))] for _ in range(count)]


def tagged(count: int):
    from pplseq.data import TaggedSentence

    return [TaggedSentence(words, ["ABCD"[int(word[1:]) % 4] for word in words]) for words in sentences(count)]


def toy_corpus():
    from pplseq import load_corpus

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.txt"
        path.write_text("\n".join(map(" ".join, sentences(40, 100))))
        return load_corpus(path)


def gaussian_hmm():
    import torch

    from pplseq import HMM

    x, model = torch.from_numpy(walks()[None]), HMM(3, num_features=2)
    return {"fit": lambda: model.fit(x, seed=0), "score": lambda: model.score(x), "decode": lambda: model.decode(x)}


def word_hmm():
    from pplseq import HMM

    rng = np.random.default_rng(0)
    x, model = [rng.integers(0, 8, rng.integers(5, 40)) for _ in range(50)], HMM(4, num_words=8)
    return {"fit": lambda: model.fit(x, seed=0), "score": lambda: model.score(x), "decode": lambda: model.decode(x)}


def lds():
    import torch

    from pplseq import LDS

    x, model = torch.from_numpy(walks()[None]), LDS(2, num_features=2)
    return {"fit": lambda: model.fit(x), "score": lambda: model.score(x), "smooth": lambda: model.smooth(x)}


def lds_with_gap():
    import torch

    from pplseq import LDS

    x, model = torch.from_numpy(walks()[None].copy()), LDS(2, num_features=2)
    x[0, 40:45] = torch.nan
    return {"fit": lambda: model.fit(x), "score": lambda: model.score(x), "smooth": lambda: model.smooth(x)}


def structural():
    from pplseq import StructuralModel

    x, model = months(), StructuralModel(seasonal=12)
    return {"fit": lambda: model.fit(x), "forecast": lambda: model.forecast(x, 5)}


def crf():
    from pplseq import CRFTagger

    x, model = tagged(200), CRFTagger()
    return {"fit": lambda: model.fit(x), "tag": lambda: model.tag([x[0].words])}


def latent_tagger():
    from pplseq import LatentTagger

    x, model = tagged(40), LatentTagger()
    return {"fit": lambda: model.fit(x), "tag": lambda: model.tag([x[0].words])}


def vlhmm():
    from pplseq import VLHMM

    corpus, made = toy_corpus(), []

    def fit():
        made.append(VLHMM(num_states=64, hidden_size=32))
        made[-1].fit(corpus, num_blocks=8, epochs=4, batch_size=8, seed=0)

    return {"fit": fit, "sample": lambda: made[-1].sample(12, num_sequences=3, seed=0)}


def iohmm():
    import torch

    from pplseq import IOHMM

    y, u = torch.from_numpy(walks(300, 1)[None]), torch.from_numpy(walks()[None])
    model = IOHMM(2, num_inputs=2, outputs="gaussian", num_outputs=1)
    return {"fit": lambda: model.fit(y, inputs=u, seed=0), "score": lambda: model.score(y, inputs=u)}


def hmmlearn_hmm():
    from hmmlearn.hmm import GaussianHMM

    x, model = walks(), GaussianHMM(3, random_state=0)
    return {"fit": lambda: model.fit(x), "score": lambda: model.score(x), "decode": lambda: model.decode(x)}


def dynamax_lds():
    import jax
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM

    jax.config.update("jax_enable_x64", True)
    x, model, found = jax.numpy.asarray(walks()), LinearGaussianSSM(2, 2), {}

    def fit():
        found["parameters"] = model.fit_em(*model.initialize(jax.random.PRNGKey(0)), x, num_iters=50, verbose=False)[0]

    return {
        "fit": fit, "score": lambda: float(model.marginal_log_prob(found["parameters"], x)),
        "smooth": lambda: np.asarray(model.smoother(found["parameters"], x).smoothed_means),
    }  # fmt: skip


def dynamax_hmm():
    import jax
    from dynamax.hidden_markov_model import GaussianHMM

    x, model, found = jax.numpy.asarray(walks()), GaussianHMM(3, 2), {}

    def fit():
        found["parameters"] = model.fit_em(*model.initialize(jax.random.PRNGKey(0)), x, num_iters=50, verbose=False)[0]

    return {
        "fit": fit, "score": lambda: float(model.marginal_log_prob(found["parameters"], x)),
        "decode": lambda: np.asarray(model.most_likely_states(found["parameters"], x)),
    }  # fmt: skip


def statsmodels_structural():
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    x, found = months(), {}

    def fit():
        found["result"] = UnobservedComponents(x, "lltrend", seasonal=12).fit(disp=False)

    return {"fit": fit, "forecast": lambda: found["result"].forecast(5)}


OURS = [gaussian_hmm, word_hmm, lds, lds_with_gap, structural, crf, latent_tagger, vlhmm, iohmm]
PEERS = {
    "gaussian_hmm": [hmmlearn_hmm, dynamax_hmm], "lds": [dynamax_lds], "structural": [statsmodels_structural],
}  # fmt: skip


def measure(name: str) -> dict[str, list[float]]:
    """Processor seconds of the first and the second call of each verb, in this process."""
    warnings.simplefilter("ignore")
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:  # a peer's Python
        pass
    found = {}
    for verb, call in globals()[name]().items():
        times = [time.process_time()]
        for _ in range(2):
            call()
            times.append(time.process_time())
        found[verb] = [round(after - before, 3) for before, after in zip(times, times[1:], strict=False)]
    return found


def in_a_process(python: str, name: str, **environment: str) -> dict[str, list[float]] | None:
    """:func:`measure` in a process of its own; None where a library is missing."""
    command = [python, __file__, "--measure", name]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment)
    if done.returncode and "ModuleNotFoundError" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def table(results: dict) -> str:
    lines = [
        "| | | first ever | second | twins | all compiled at once | first, warm cache | peer, first and second |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        for verb, cold in row["auto"].items():
            peers = [f"{peer} {each[verb][0]:.2g}, {each[verb][1]:.2g}" for peer, each in row["peers"].items()]
            numbers = [cold[0], cold[1], *(row[kind][verb][0] for kind in ("never", "always", "warm"))]
            lines.append(f"| {name} | {verb} | {' | '.join(f'{each:.2g}' for each in numbers)} | {'; '.join(peers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--models", default=",".join(each.__name__ for each in OURS))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    results = {}
    for name in arguments.models.split(","):
        row = {}
        for kind in ("auto", "never", "always"):
            with tempfile.TemporaryDirectory() as folder:
                row[kind] = in_a_process(sys.executable, name, PPLSEQ_LOOPS=kind, NUMBA_CACHE_DIR=folder)
                if kind == "always":
                    row["warm"] = in_a_process(sys.executable, name, PPLSEQ_LOOPS="auto", NUMBA_CACHE_DIR=folder)
        found = {peer.__name__: in_a_process(arguments.peers_python, peer.__name__) for peer in PEERS.get(name, [])}
        row["peers"] = {peer: times for peer, times in found.items() if times is not None}
        results[name] = row
        print(json.dumps({name: row}), flush=True)
    load = [round(value, 1) for value in os.getloadavg()]
    path = record("first_call", results, load=load)
    late = [
        f"{name} {verb}" for name, row in results.items() for verb, times in row["auto"].items()
        if times[0] > row["never"][verb][0] + LOADED
    ]  # fmt: skip
    text = [
        "# The first answer", "",
        "Processor seconds of a first call in a fresh process without compiled loops on disk, of the second one, of the first",
        "with the readable twins alone, with every loop compiled at its first call, and with all loops on disk. One thread;",
        f"load {load[0]} on {os.cpu_count()} cores. `python scripts/bench/first_call.py`", "", table(results), "",
        f"More than a second beyond the twins' own work: {', '.join(late) or 'none'}.",
    ]  # fmt: skip
    (ROOT / "results" / "bench" / "first_call.md").write_text("\n".join(text) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
