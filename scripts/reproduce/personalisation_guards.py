"""What a guard costs and what it saves: PROPS beside its frozen source, by the source's least weight.

    python scripts/reproduce/personalisation_guards.py

A guard promises how much any stretch of a stream can lose to the source (pplseq/models/props/guard.py). On the streams of
development (scripts/reproduce/personalisation.py --development) this is measured for least weights and shares given back: the
promise for any 200 words, what is gained over the source in all, and the worst 200 words in a row and the worst beginning of
at most 20 words, means over two random starts. Chosen: of least weights that cost less than one per cent of the gain with
either set of sources the largest, with the share in the middle.

Writes results/personalisation_guards.json. Corpora are found through PPLSEQ_DATA.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]
from personal_streams import (  # noqa: E402
    BACK,
    WINDOW,
    development_streams,
    figures,
    first_words,
    guarded,
    log_probs,
    props,
    source_of,
    wiki_lines,
)
from record import record  # noqa: E402

NUM_WORDS, SEEDS = 13_711, 2
GUARDS = [(least, back) for least in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2) for back in (0.0005, 0.002, 0.01)]


def main() -> None:
    import numpy as np

    from pplseq.data import Vocabulary
    from pplseq.models.props.guard import SourceGuard
    from pplseq.sources import OnlineNGram, UnigramCache

    train = wiki_lines("train")
    vocabulary = Vocabulary.build(train, max_size=NUM_WORDS)
    source, size = source_of("", train, vocabulary), len(vocabulary)
    found: dict = {"source": [], "source, online, cache": []}
    streams = development_streams()
    for name, words in streams.items():
        lines = first_words(words, vocabulary)
        own = log_probs(source_of(name, train, vocabulary) if name == BACK else source, lines)
        three = [own, *(log_probs(lambda kind=kind: kind(size), lines) for kind in (OnlineNGram, UnigramCache))]
        for kind, said, own_states in (("source", [own], 2), ("source, online, cache", three, 1)):
            common = dict(num_perturbations=own_states, num_words=size, guard=0)
            bare = np.stack([props(said, lines, seed=seed, **common) for seed in range(SEEDS)])
            found[kind].append((own, bare))
    results: dict = {}
    for kind, parts in found.items():
        rows = results[kind] = {}
        for guard in [None, *GUARDS]:
            name = "none" if guard is None else f"least {guard[0]}, back {guard[1]}"
            told, gain = [], 0.0
            for own, bare in parts:
                options = {} if guard is None else {"least": guard[0], "back": guard[1]}
                values = bare if guard is None else np.stack([guarded(own, row, **options) for row in bare])
                told.append(figures(values, own))
                gain += float((values - own).sum(1).mean())
            rows[name] = {
                "promise": None if guard is None else round(SourceGuard(guard[0], back=guard[1]).bound(WINDOW), 2),
                "gain": round(gain, 1),
                "cost_percent": round(100 * (1 - gain / rows["none"]["gain"]), 2) if rows else 0.0,
                "worst_of_first_20": min(row["worst_of_first_20"] for row in told),
                "worst_window": dict(zip(streams, (row["worst_window"] for row in told), strict=True)),
            }
            print(f"{kind:24}{name:24}" + "  ".join(f"{key} {value}" for key, value in rows[name].items()), flush=True)
    record("personalisation_guards", results, folder=".", facts={"seeds": SEEDS, "window": WINDOW})


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
