"""The state of a stream that `pplseq personalize` keeps, as something to report on."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pplseq.recipes.recipe import Recipe, UseSettings
from pplseq.sources.stream_state import load_state

if TYPE_CHECKING:
    from pplseq.report.run import RunView


@dataclass(frozen=True)
class StreamRecipe(Recipe):
    """A model that learns from a stream; it is not trained as others are."""

    def training(self) -> Any:
        raise ValueError(f"there is no evaluation of {self.name}: {self.limits}, and each word was scored as it was read")

    def viewing(self) -> Any:
        return sys.modules[__name__]


def view(folder: Path, settings: Any) -> RunView:
    """Perplexities of each stream, every word told before it was learned from, beside those of each source alone."""
    from pplseq.report.run import Measure, RunView

    if settings.data is not None:
        raise ValueError("data: a stream is told as it is read, by `pplseq personalize --state`; leave --data out")
    record, _ = load_state(folder)
    measures = []
    for name, total in record.get("totals", {}).items():
        if not total["num_tokens"]:
            continue
        found = {key: _perplexity(nats / total["num_tokens"]) for key, nats in total["nats"].items()}
        rivals = [source["spec"] for source in record["sources"]] if len(found) > 1 else []
        what = f"perplexity of {PurePath(name).name}, {total['num_tokens']:,} words"
        measures += [Measure(what, found["0"], found[str(k)], rival) for k, rival in enumerate(rivals, 1)]
        if not rivals:
            measures.append(Measure(what, found["0"]))
    told = "the streams that were read; every word was told before it was learned from, so all are test words"
    return RunView(told, measures)


def _perplexity(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


PERSONALIZED = StreamRecipe("personalize", "", "", UseSettings, limits="it is the state of a stream")
