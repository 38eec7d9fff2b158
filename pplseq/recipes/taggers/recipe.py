"""Taggers, trained on tagged sentences.

Settings and names; what works stands in `tagging` and `pplseq.baselines.tagging_systems`, which import torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pplseq import checks
from pplseq.baselines.tagging_systems import SYSTEMS, parse_settings
from pplseq.files import write_text
from pplseq.folder import sealed, unsealed
from pplseq.recipes.recipe import Job, Question, Recipe, RunSettings, UseSettings, register
from pplseq.recipes.settings import setting
from pplseq.runs.progress import Watch
from pplseq.runs.signals import TimeOver

MODEL, RECORD = "last", "tagger.json"  # a run's tagger, and what is said of its training
Format = Literal["conllu", "columns", "word_tag", "words"]


def system(name: str, value: str) -> str:
    """The value, the name of a tagging system."""
    return checks.choice(name, value, SYSTEMS)


@dataclass(kw_only=True)
class TaggedReading:
    """The text.

    Args:
        column: that holds the tags: upos, xpos, feats, ... of CoNLL-U; a number of columns, the word being 0 (default: upos,
            and 1; of a run, the one it was trained on).
        format: of the file (default: by its name or first lines).
        separator: between word and tag of word_tag.
        on_error: stop at a sentence that cannot be read, or go on without it and say its lines.
    """

    column: str | None = None
    format: Format | None = None
    separator: str = "_"
    on_error: Literal["raise", "skip"] = "raise"


@dataclass(kw_only=True)
class TolerantReading(TaggedReading):
    """The text."""

    on_error: Literal["raise", "skip"] = "skip"


@dataclass(kw_only=True)
class TaggerSettings(TaggedReading, RunSettings):
    """The tagger.

    Args:
        system: which; `pplseq tag --help` lists them.
        set: an option of the system, NAME=VALUE; may be repeated.
        dev: text to tune or stop by, where the system does; its accuracy is told in any case.
        partial: let words lack tags, _ (default: for the systems that learn from such text).
        device: where it is trained; taggers are small, and know the cpu alone.
    """

    system: str = setting("enhanced", check=system)
    set: tuple[str, ...] = setting((), repeat=True)
    dev: str | None = None
    partial: bool = False
    device: str = setting("cpu", free=True)

    def __post_init__(self) -> None:
        if self.dev is not None and Path(self.dev).is_file():
            self.dev = str(Path(self.dev).resolve())
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
    seed: int = 0


QUESTIONS = {
    "tag": Question("tags, and p(tag | words) of each where the system has it", ("decoder",)),
    "alternatives": Question("the most probable tags of every word, with probabilities", ("decoder", "top")),
    "n-best": Question("the most probable taggings", ("decoder", "num_paths")),
    "sample": Question("taggings drawn from the posterior", ("decoder", "num_samples", "seed")),
    "entropy": Question("of the taggings given the words, nats", ("decoder",)),
    "score": Question("log p(words), and -log p(word | words before) of every word, nats", ("decoder",)),
}


@dataclass(frozen=True)
class TaggerRecipe(Recipe):
    """A tagger of one of the named systems."""

    evaluation = TaggerEvaluation
    asking = TaggerAsking
    cpu_only = one_model = True

    @property
    def questions(self) -> Mapping[str, Question]:
        return QUESTIONS

    def has_all(self, folder: Path) -> bool:
        return (folder / RECORD).is_file()  # which is written behind the last checkpoint

    def summary(self, folder: Path) -> Mapping[str, Any] | None:
        return unsealed(folder / RECORD, "remove it, and go on with the run") if self.has_all(folder) else None

    def train(self, job: Job) -> dict[str, Any]:
        """The whole text at once, which takes seconds to minutes; those of the library that iterate
        stop and resume anywhere."""
        from pplseq.baselines.tagging_systems import make_tagger, save_tagger, summary_of, train_tagger, trained
        from pplseq.models.taggers.training import IterativeTagger, run_tagger_training
        from pplseq.recipes.taggers.tagging import read

        settings, record, folder = job.settings, job.folder / RECORD, job.folder / MODEL
        if job.resume and record.is_file():
            before = unsealed(record, "remove it, and the run ends anew")
            if before["stop_reason"] == "finished":
                return before
        chosen = parse_settings(settings.set)
        if "seed" in make_tagger(settings.system).get_params():
            chosen = {"seed": settings.seed, **chosen}
        tagger = make_tagger(settings.system, **chosen)  # before the text is read: it may be refused
        partial = settings.partial or SYSTEMS[settings.system].untagged
        with job.preparing(f"reading {Path(job.data).name}"):
            sentences = read(job.data, settings, job.watch.say, tags="optional" if partial else "required")
            dev = None if settings.dev is None else read(settings.dev, settings, job.watch.say)
        what = f"training {settings.system} on {len(sentences):,} sentences"
        if not isinstance(tagger, IterativeTagger):
            with job.preparing(what):
                _, summary = train_tagger(settings.system, sentences, dev, folder=folder, **chosen)
            summary = {"stop_reason": "finished", "steps": 1, **summary}
        else:
            with job.preparing(what):
                training = tagger.training(list(sentences), None if dev is None else list(dev))
            saved = trained(tagger, settings.system, sentences)
            training.save_model = lambda place: save_tagger(saved, place)
            history = run_tagger_training(
                training, folder=job.folder, resume=job.resume, max_time=settings.max_time, watch=job.watch, began=job.started
            )
            if not folder.exists():
                raise TimeOver
            p = history.progress
            reason = "max_time" if history.stop_reason == "max_time" else "finished"
            summary = {"stop_reason": reason, "steps": p.step, **summary_of(saved, sentences, dev, p.seconds)}
        write_text(record, sealed(summary))
        return summary

    def info(self, data: str, settings: Any) -> dict[str, Any]:
        from pplseq.recipes.taggers.tagging import describe

        return describe(data, settings)

    def load(self, folder: Path, settings: Any) -> Any:
        return self._saved(folder).tagger

    @staticmethod
    def _saved(folder: Path) -> Any:
        from pplseq.baselines.tagging_systems import load_tagger

        return load_tagger(folder)

    def evaluate(self, folder: Path, data: str | None, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
        """Accuracy of all, known, unknown and ambiguous words and whole sentences; of every tag precision, recall and F1."""
        from pplseq.recipes.taggers.tagging import read, score, scores_json

        if data is None:
            raise ValueError("give DATA: a file of sentences with the right tags")
        saved = self._saved(folder)
        sentences = read(data, settings, watch.say, saved, tags="optional")
        result = score(saved, sentences, settings.decoder, settings.clusters)
        yield scores_json(str(folder), data, result, None, None)

    def query(
        self, folder: Path, question: str, lines: str | Path | Iterable[str | bytes], settings: Any, watch: Watch
    ) -> Iterator[dict[str, Any]]:
        from pplseq.models.answers import answer_lines
        from pplseq.models.taggers.answers import TagQuestions, answer, check_answerable
        from pplseq.recipes.text.answers import opened

        saved = self._saved(folder)
        asked = {
            "tag": {"probabilities": hasattr(saved.tagger, "smooth")},
            "alternatives": {"top": settings.top},
            "n-best": {"n_best": settings.num_paths},
            "sample": {"num_samples": settings.num_samples, "seed": settings.seed},
            "entropy": {"entropy": True},
            "score": {"log_prob": True, "surprising": True},
        }[question]
        questions = TagQuestions(decoder=settings.decoder, **asked)
        check_answerable(saved.tagger, questions)
        numbers = itertools.count()

        def ask(words: list[str | None]) -> dict[str, Any]:
            if None in words:
                raise ValueError("a sentence has no gaps to a tagger: null is no word")
            drawn = replace(questions, seed=settings.seed + next(numbers))
            return answer(saved.tagger, [[word for word in words if word is not None]], drawn)[0]

        with opened(lines) as source:
            yield from answer_lines(source, ask)


register(
    TaggerRecipe(
        "tagger",
        "part-of-speech tagger: hmm, latent, crf, memm, NLTK's, ... (--system)",
        "a file of tagged sentences: CoNLL-U, columns as CoNLL-2000's, or word_TAG a sentence a line; .gz and .xz as well",
        TaggerSettings,
    )
)
