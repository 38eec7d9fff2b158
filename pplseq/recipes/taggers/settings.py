"""What the training of a tagger, its evaluation and questions to it can be told."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pplseq import checks
from pplseq.recipes.recipe import Question, RunSettings, UseSettings
from pplseq.recipes.settings import setting
from pplseq.recipes.taggers.systems import SYSTEMS

MODEL, RECORD = "last", "tagger.json"  # a run's tagger, and what is said of its training
SO_MANY = partial(checks.count, least=0)
Format = Literal["conllu", "conllup", "columns", "tabs", "word_tag", "words"]


def system(name: str, value: str) -> str:
    """The value, the name of a tagging system."""
    return checks.choice(name, value, SYSTEMS)


@dataclass(kw_only=True)
class TaggedReading:
    """The text.

    Args:
        column: that holds the tags: upos, xpos, feats, ... of CoNLL-U, or a key as misc:Entity; a number of columns, the word
            being 0 (default: upos, and 1; of a run, the one it was trained on).
        format: of the file (default: by its name or first lines; of a run, the one it was trained on where they may be of it);
            "tabs" are columns between tabs alone, whose words may hold spaces.
        word_column: that holds the words, of columns and tabs (default: 0; of a run, the one it was trained on).
        separator: between word and tag of word_tag (default: _; of a run, the one it was trained on).
        on_error: stop at a sentence that cannot be read, or go on without it and say its lines.
    """

    column: str | None = None
    format: Format | None = None
    word_column: int | None = None
    separator: str | None = None
    on_error: Literal["raise", "skip"] = "raise"


@dataclass(kw_only=True)
class TolerantReading(TaggedReading):
    """The text."""

    on_error: Literal["raise", "skip"] = "skip"


@dataclass(frozen=True, kw_only=True)
class TagQuestions:
    """What is told of every sentence beside its tags.

    Args:
        probabilities: p(tag | words) of every tag.
        top: as many alternatives of every word, with probabilities (JSON).
        num_paths: as many of the most probable taggings (JSON).
        num_samples: as many taggings drawn from the posterior (JSON).
        seed: of the draws.
        entropy: of the taggings given the words, nats (JSON).
        log_prob: log p(words), nats, of generative taggers (JSON).
        surprising: -log p(word | words before) of every word, nats, and which words are the most surprising (JSON).
        decoder: the most probable tagging, or of every word the most probable tag (default: the system's).
    """

    probabilities: bool = setting(False, flag="--probabilities")
    top: int = setting(0, check=SO_MANY)
    num_paths: int = setting(0, check=SO_MANY)
    num_samples: int = setting(0, check=SO_MANY)
    seed: int = setting(0, check=checks.seed)
    entropy: bool = setting(False, flag="--entropy")
    log_prob: bool = setting(False, flag="--log-prob")
    surprising: bool = setting(False, flag="--surprising")
    decoder: Literal["viterbi", "posterior"] | None = None

    @property
    def beyond_tags(self) -> bool:
        """Whether anything is asked that a file of tags has no place for."""
        return bool(self.top or self.num_paths or self.num_samples or self.entropy or self.log_prob or self.surprising)


@dataclass(kw_only=True)
class TaggerSettings(TaggedReading, RunSettings):
    """The tagger.

    Args:
        system: which; `pplseq tag --help` lists them.
        set: an option of the system, NAME=VALUE; may be repeated.
        validation: text to tune or stop by, where the system does; its accuracy is told in any case.
        embeddings: a run of `train text-lds`, whose embeddings of words in their sentences are features, or an .npz of `query
            RUN types`; of crf, memm, spans and product.
        states: a run of `train vlhmm` or `train hmm`, whose probabilities of states are features; of the same systems.
        clusters: a file of `pplseq cluster`, whose clusters of words are features; of those and the latent systems.
        lexicon: a file of words and their tags (a line a word, `run NOUN VERB`), which hold for words that the text lacks too;
            of hmm, trigram, tnt, enhanced, the latent systems, crf, memm, product, partly-tagged and dictionary.
        partial: let words lack tags, _ (default: for the systems that learn from such text).
        device: where it is trained; taggers are small, and know the cpu alone.
    """

    system: str = setting("latent", check=system)
    set: tuple[str, ...] = setting((), repeat=True)
    validation: str | None = None
    embeddings: str | None = None
    states: str | None = None
    clusters: str | None = None
    lexicon: str | None = None
    partial: bool = False
    device: str = setting("cpu", free=True)

    def __post_init__(self) -> None:
        for name in ("validation", "embeddings", "states", "clusters", "lexicon"):
            path = getattr(self, name)
            if path is not None and Path(path).exists():
                setattr(self, name, str(Path(path).resolve()))
        if self.device not in ("cpu", "auto"):
            raise ValueError(f"device: taggers are trained on the CPU; got {self.device!r}")


@dataclass(kw_only=True)
class TaggerEvaluation(TaggedReading, UseSettings):
    """The evaluation.

    Args:
        decoder: the most probable tagging, or of every word the most probable tag (default: the system's).
        clusters: the tags are clusters without names (default: of unsupervised).
    """

    decoder: Literal["viterbi", "posterior"] | None = None
    clusters: bool = False


@dataclass(kw_only=True)
class TaggerAsking(TaggedReading, UseSettings):
    """The question.

    Args:
        decoder: the most probable tagging, or of every word the most probable tag (default: the system's).
        top: alternatives of every word.
        num_paths: most probable taggings.
        num_samples: draws.
        seed: of the draws.
    """

    decoder: Literal["viterbi", "posterior"] | None = None
    top: int = setting(3, check=checks.count)
    num_paths: int = setting(5, check=checks.count)
    num_samples: int = setting(1, check=checks.count)
    seed: int = setting(0, check=checks.seed)


QUESTIONS = {
    "tag": Question("tags, and p(tag | words) of each where the system has it", ("decoder",)),
    "alternatives": Question("the most probable tags of every word, with probabilities", ("decoder", "top")),
    "n-best": Question("the most probable taggings", ("decoder", "num_paths")),
    "sample": Question("taggings drawn from the posterior", ("decoder", "num_samples", "seed")),
    "entropy": Question("of the taggings given the words, nats", ("decoder",)),
    "score": Question("log p(words), and -log p(word | words before) of every word, nats", ("decoder",)),
}
