"""The taggers that `pplseq tag` knows by name, made, saved and loaded. Their modules are imported on use."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pplseq.checks import nearest
from pplseq.models.taggers import TAGGERS


class System(NamedTuple):
    """How a tagger is made.

    Attributes:
        tagger: its name in `pplseq.models.taggers.TAGGERS`. preset: a class method that makes it. options: of either.
        text: a line for --help.
        untagged: whether it learns from words without tags as well.
    """

    tagger: str
    preset: str | None
    options: dict[str, Any]
    text: str
    untagged: bool = False


SYSTEMS = {
    "hmm": System("hmm-tagger", "bigram", {}, "bigram HMM, otherwise as enhanced"),
    "trigram": System("hmm-tagger", None, {"order": 2}, "trigram HMM; the same as tnt unless options are --set"),
    "tnt": System("hmm-tagger", "tnt", {}, "trigram HMM with the smoothing and suffixes of TnT"),
    "enhanced": System(
        "hmm-tagger", "enhanced", {}, "trigram HMM with word shapes, Witten-Bell and lower-case back-off"
    ),
    "plain": System("hmm-tagger", "plain", {}, "bigram HMM by maximum likelihood, nothing smoothed"),
    "latent": System("latent-tagger", None, {}, "HMM over tags split into substates"),
    "crf": System("crf-tagger", None, {}, "linear-chain conditional random field"),
    "memm": System("memm-tagger", None, {}, "maximum-entropy Markov model"),
    "most-frequent": System("most-frequent", None, {}, "the most frequent tag of every word"),
    "rules": System("rules", None, {}, "regular expressions"),
    "nltk-ngram": System("nltk-ngram", None, {}, "NLTK's n-gram back-off"),
    "nltk-brill": System("nltk-brill", None, {}, "NLTK's transformation rules"),
    "nltk-tnt": System("nltk-tnt", None, {}, "NLTK's TnT"),
    "nltk-perceptron": System("nltk-perceptron", None, {}, "NLTK's averaged perceptron"),
    "crfsuite": System("crfsuite", None, {}, "crfsuite's conditional random field"),
    "maxent": System("maxent", None, {}, "scikit-learn's maximum entropy classifier"),
    "semi-supervised": System(
        "dictionary-tagger", "semi_supervised", {}, "HMM, EM on text that is partly tagged", True
    ),
    "dictionary": System(
        "dictionary-tagger", "from_dictionary", {}, "HMM, EM with the tags of a dictionary (--set lexicon=FILE)", True
    ),
    "unsupervised": System(
        "dictionary-tagger", "unsupervised", {}, "HMM, Baum-Welch on words alone; its tags are numbered states", True
    ),
}
# those that `compare` trains unless told otherwise: trigram is tnt, and some are for other text
COMPARED = tuple(name for name, system in SYSTEMS.items() if name != "trigram" and not system.untagged)


class SavedTagger(NamedTuple):
    """A tagger from a folder.

    Attributes:
        tagger: as it was saved. system: its name in the table.
        column: that its tags were read from, where that was chosen. format: of the training text.
        ambiguous: words that the training text tags in more than one way; None where that is not known.
    """

    tagger: Any
    system: str
    column: str | int | None
    format: str | None
    ambiguous: frozenset[str] | None

    @property
    def columns(self) -> dict[str, str | int | None]:
        """The column of its tags by the format of a file, as `read_tagged` takes it."""
        return {} if self.format is None else {self.format: self.column}


def make_tagger(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """An untrained tagger of a system.

    Args:
        options: that its class takes, or fields of its `settings`.

    Raises:
        ValueError: no such system, or an option it does not take.
        ImportError: the system, or a package that it needs, is not there.
    """
    system = check_system(name)
    made_by = made = _class_of(system)
    if system.preset is not None:
        made_by = getattr(made, system.preset)
    named, any_other = _parameters(made_by)
    if any_other and made_by is not made:
        named += [name for name in _parameters(made)[0] if name not in named]  # which the preset hands on
    given = {**system.options, **(options or {})}
    tagger = made_by(**{option: value for option, value in given.items() if option in named})
    given = {option: value for option, value in given.items() if option not in named}
    settings = getattr(tagger, "settings", None)
    fields = [field.name for field in dataclasses.fields(settings)] if dataclasses.is_dataclass(settings) else []
    for option in given:
        if option not in fields:
            raise ValueError(
                f"--set {option}: the system {name!r} has no such option.{nearest(option, named + fields)}"
            )
    if given:
        tagger.settings = dataclasses.replace(settings, **given)
    return tagger


def _parameters(make: Any) -> tuple[list[str], bool]:
    """Names that a callable takes, and whether it takes any other."""
    parameters = inspect.signature(make).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "settings"]
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def check_out(folder: Path) -> None:
    """ValueError where saving would replace a folder that holds something else than a tagger."""
    if not folder.name:
        raise ValueError(f"--out: expected the name of a new folder, got {folder}")
    check_writable(folder)
    if folder.is_dir() and any(folder.iterdir()):
        from pplseq.models.storage import MODEL

        try:
            header = MODEL.read_header(folder)
        except (OSError, ValueError):
            header = {}
        if header.get("model") != "tagger":
            raise ValueError(
                f"--out: {folder} is not empty and holds no tagger, and would be replaced; name a new folder"
            )


def check_writable(*paths: Path | None) -> None:
    """Makes the folders of what is to be written and tries them, before the work that would be lost."""
    for path in paths:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass


def save_tagger(
    tagger: Any, folder: Path, *, system: str, column: str | int | None, file_format: str, ambiguous: frozenset[str]
) -> None:
    """Save a tagger, and with it what `pplseq tag` needs to know of its training."""
    training = {"system": system, "column": column, "file_format": file_format, "ambiguous_words": sorted(ambiguous)}
    tagger.save(folder, training)


def load_tagger(folder: Path) -> SavedTagger:
    """A tagger that `pplseq tag train` saved, or its own `save`.

    Raises:
        FileNotFoundError: no tagger there.
        ValueError: a damaged folder, or one of something else.
        ImportError: the system, or a package that it needs, is not there.
    """
    from pplseq.models.storage import MODEL
    from pplseq.models.taggers import tagger as taggers

    tagger = taggers.load_tagger(folder)
    training = MODEL.read_header(folder)["training"]
    if training is None:
        return SavedTagger(tagger, tagger.name, None, None, None)  # saved from Python
    words = frozenset(training["ambiguous_words"])
    return SavedTagger(tagger, training["system"], training["column"], training["file_format"], words)


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` pairs; values are read as JSON where they are JSON, else as text."""
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set: expected NAME=VALUE, got {setting!r}")
        try:
            found[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            found[name.replace("-", "_")] = value
    return found


def check_system(name: str) -> System:
    """The system of a name; ValueError where there is none."""
    if name not in SYSTEMS:
        raise ValueError(f"no system {name!r}.{nearest(name, SYSTEMS)}")
    return SYSTEMS[name]


def _class_of(system: System) -> Any:
    if system.tagger not in TAGGERS:
        raise ImportError(f"there is no tagger {system.tagger!r}")
    return TAGGERS[system.tagger]
