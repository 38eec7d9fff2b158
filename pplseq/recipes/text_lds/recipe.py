"""The linear dynamical system for text, trained on counts.

Settings and names; what works stands in `training` and `answers`, which import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pplseq import checks
from pplseq.recipes.recipe import Question, Recipe, RunSettings, UseSettings, register
from pplseq.recipes.settings import setting
from pplseq.recipes.text.settings import QUESTIONS as TEXT_QUESTIONS
from pplseq.recipes.text.settings import AskSettings


@dataclass(kw_only=True)
class TextLDSSettings(RunSettings):
    """The model.

    Args:
        num_states: dimensions h of the state.
        pseudo_counts: added to every word's count: more for larger texts, and for rare words to say less.
        max_iterations: of EM on all words, in total.
        start: from subspace identification to first parameters; restricted runs EM in the subspace, for almost nothing.
        restricted_iterations: of that EM in the subspace.
        blocks: block rows r of the Hankel matrix (default: 4, or as many as the counted lags allow).
        horizon: lags that EM uses (default: all that were counted).
        update_state_noise: update Q in EM (no: it stays, as in the paper).
        validation: counts of other text, same vocabulary: its likelihood decides which iteration is best.
        patience: stop after this many iterations without a new best.
        dtype: of what has the vocabulary's size; float32 halves the memory.
        seed: of the randomised singular value decomposition.
        device: where it is trained: cpu, as the counts are sparse.
    """

    num_states: int = setting(200, check=checks.count)
    pseudo_counts: float = setting(1000.0, check=partial(checks.positive, zero=True))
    max_iterations: int = setting(50, free=True, check=partial(checks.count, least=0))
    start: Literal["restricted", "line_search", "paper", "consistent"] = "restricted"
    restricted_iterations: int = setting(150, check=checks.count)
    blocks: int | None = setting(None, check=partial(checks.count, least=2))
    horizon: int | None = setting(None, check=checks.count)
    update_state_noise: bool = True
    validation: str | None = None
    patience: int | None = setting(None, free=True, check=checks.count)
    dtype: Literal["float64", "float32"] = "float64"
    seed: int = setting(0, check=checks.seed)
    device: str = setting("cpu", free=True)

    def __post_init__(self) -> None:
        if self.validation is not None:
            self.validation = str(Path(self.validation).resolve())
        if self.device not in ("cpu", "auto"):
            raise ValueError(f"device: a text-lds is fitted on the CPU, whose products are sparse; got {self.device!r}")


@dataclass(kw_only=True)
class TextLDSEvaluation(UseSettings):
    """The evaluation.

    Args:
        split: of a corpus (default: test; a file is taken whole).
        tune_on: text on which to tune the next-word mixture's weight first.
        save_weight: keep that weight in the run's checkpoint.
    """

    split: Literal["train", "valid", "test"] | None = None
    tune_on: str | None = None
    save_weight: bool = False


@dataclass(kw_only=True)
class TextLDSAsking(AskSettings):
    """The linear dynamical system.

    Args:
        out: file to write instead: .npz, .tsv or .jsonl.
        kind: given the whole line, or the words so far only.
        plain: posterior means as they are, neither whitened nor of unit length.
        split: of a corpus (default: test; a file is taken whole).
        num_pairs: largest singular values.
        num_words: words of each vector.
        ranking: words by p(word | vector) / p(word), or by the difference.
        most_frequent: only words among that many most frequent ones.
        form: (A - AKC, AK, C) or (A - KCA, K, CA); both predict the same.
        coordinates: of inputs and outputs: word numbers and probabilities, or whitened vectors.
    """

    out: Path | None = None
    kind: Literal["smoothed", "filtered"] = "smoothed"
    plain: bool = False
    split: Literal["train", "valid", "test"] | None = None
    num_pairs: int = setting(10, check=checks.count)
    num_words: int = setting(6, check=checks.count)
    ranking: Literal["lift", "probability"] = "lift"
    most_frequent: int | None = setting(None, check=checks.count)
    form: Literal["predictor", "filtered"] = "predictor"
    coordinates: Literal["words", "whitened"] = "words"


QUESTIONS = {name: TEXT_QUESTIONS[name] for name in ("score", "next-word", "continue")} | {
    "embed": Question("a vector of every word in its line", ("out", "kind", "plain", "split")),
    "types": Question("a vector of every word of the vocabulary", ("out", "kind", "plain"), takes="nothing"),
    "pairs": Question(
        "singular vectors of the transition, as the words most likely there: what turns into what",
        ("num_pairs", "num_words", "ranking", "most_frequent"),
        takes="nothing",
    ),
    "export-rnn": Question(
        "the steady filter as the weights of a recurrent network, in --out FILE.npz",
        ("out", "form", "coordinates"),
        takes="nothing",
    ),
}


@dataclass(frozen=True)
class TextLDSRecipe(Recipe):
    """A model of words whose states are vectors."""

    evaluation = TextLDSEvaluation
    asking = TextLDSAsking
    cpu_only = True

    questions = QUESTIONS
    scored_on = "a text file, - for stdin, or a corpus"

    def training(self) -> Any:
        from pplseq.recipes.text_lds import training

        return training

    def using(self) -> Any:
        from pplseq.recipes.text_lds import answers

        return answers

    def readable(self, answer: dict[str, Any]) -> str:
        """As of other models of words; pairs as a table."""
        if "right_opposite" in answer:
            rows = ((f"{answer['value']:.4f}", "right", "left"), ("", "right_opposite", "left_opposite"))
            return "\n".join(f"{value:<8}{' '.join(answer[a])}  ->  {' '.join(answer[b])}" for value, a, b in rows)
        if {"embeddings", "file", "gain_per_token"} & set(answer):
            return super().readable(answer)
        from pplseq.recipes.text.readable import readable

        return readable(answer) or super().readable(answer)

    def viewing(self) -> Any:
        from pplseq.recipes.text_lds import view

        return view


register(
    TextLDSRecipe(
        "text-lds",
        "linear dynamical system for text, by EM on counts",
        "a folder of counts that `pplseq count` wrote",
        TextLDSSettings,
        saved_as="text_lds",
        limits="a text_lds has vectors as states, not numbered ones; `embed` gives their posterior means",
    )
)
