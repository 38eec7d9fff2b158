"""The taggers that are known by name: made, trained, compared, saved and loaded. Their modules are imported on use."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pplseq import checks
from pplseq.checks import nearest
from pplseq.data.columns import TaggedSentence
from pplseq.data.tag_formats import CONLLU_COLUMNS, ConlluFormat
from pplseq.files import beside, check_name, check_writable
from pplseq.folder import check_content
from pplseq.models.taggers import TAGGERS
from pplseq.models.taggers.saved_columns import COLUMN_KINDS, open_columns, with_columns

if TYPE_CHECKING:
    from pplseq.models.taggers.comparison import CurvePoint, SystemResult


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
    "latent-product": System("product-tagger", None, {}, "product of several latent taggers"),
    "product": System(
        "product-of-taggers", None, {}, "product of several systems: latent-product and crf, or those of --set members=[...]"
    ),
    "morphology": System(
        "morphology-tagger", None, {}, "latent, of several columns at once, and lemmas (--column upos,feats,lemma)"
    ),
    "crf": System("crf-tagger", None, {}, "linear-chain conditional random field"),
    "spans": System(
        "crf-tagger", "of_spans", {}, "crf of chunks or entities (B-NP I-NP O), which keeps to their scheme"
    ),
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
        "self-trained-tagger", None, {}, "latent, which guesses tags that the text lacks and learns from them", True
    ),
    "partly-tagged": System("partly-tagged-tagger", None, {}, "HMM, EM on text that is partly tagged", True),
    "dictionary": System(
        "dictionary-tagger", "from_dictionary", {}, "HMM, EM with the tags of a dictionary (--lexicon FILE)", True
    ),
    "unsupervised": System(
        "dictionary-tagger", "unsupervised", {}, "HMM, Baum-Welch on words alone; its tags are numbered states", True
    ),
}
# those that `compare` trains unless told otherwise: trigram is tnt, and some are for other text or tags, or slow
NOT_COMPARED = ("trigram", "spans", "latent-product", "product", "morphology")
LEXICON_SYSTEMS = (
    "hmm", "trigram", "tnt", "enhanced", "plain", "latent", "latent-product", "product", "crf", "memm", "semi-supervised",
    "partly-tagged", "dictionary",
)  # fmt: skip
MEMBERS = ("latent-product", "crf")  # of a product, unless others are asked for
COMPARED = tuple(name for name, system in SYSTEMS.items() if name not in NOT_COMPARED and not system.untagged)
ALIKE = ("conllu", "conllup"), ("columns", "tabs")  # formats that call columns the same


class SavedTagger(NamedTuple):
    """A tagger from a folder.

    Attributes:
        tagger: as it was saved. system: its name in the table.
        column: that its tags were read from, where that was chosen. format: of the training text.
        ambiguous: words that the training text tags in more than one way; None where that is not known.
        word_column: that its words were read from. separator: between word and tag of that text, in word_tag.
    """

    tagger: Any
    system: str
    column: str | int | None
    format: str | None
    ambiguous: frozenset[str] | None
    word_column: int = 0
    separator: str = "_"

    @property
    def columns(self) -> dict[str, str | int | None]:
        """The column of its tags by the format of a file, as `read_tagged` takes it."""
        return dict.fromkeys(self.formats, self.column)

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of files whose columns are called as in the text it was trained on."""
        return next((alike for alike in ALIKE if self.format in alike), () if self.format is None else (self.format,))

    def columns_in(self, file_format: str | None) -> dict[str, Any]:
        """The columns of its tags and words in files of a format, where it was trained on one of those, as `write_tagged`
        takes them."""
        return {"column": self.column, "word_column": self.word_column} if file_format in self.formats else {}


def make_tagger(name: str, **settings: Any) -> Any:
    """An untrained tagger of a system.

    Args:
        name: in :data:`SYSTEMS`. **settings: arguments of its class (`get_params` has them all), over those of the preset; and
            of taggers with columns `embeddings` or `states`, a path of
            :class:`~pplseq.models.taggers.saved_columns.SavedColumns`.
            Of "product" `members`, each the name of a system and behind it options as `--set` takes them; other settings are
            for those members that have them.

    Raises:
        ValueError: no such system, or a setting it does not take.
        ImportError: the system, or a package that it needs, is not there.

    Example::

        tagger = make_tagger("crf", l2=0.5).fit(read_tagged("train.conllu"))
    """
    system = check_system(name)
    if name == "product":
        settings = {"members": _members(**settings)}
    try:
        kind = TAGGERS[system.tagger]
    except AttributeError as error:  # of a module that does not have it
        raise ImportError(str(error)) from error
    tagger = (kind if system.preset is None else getattr(kind, system.preset))(**system.options)
    known = tagger.get_params()
    if "columns" in known and "column_scale" in known:
        from pplseq.loading import load_text_model

        settings = with_columns(settings, load_text_model)
    for setting in settings:
        if setting not in known:
            if setting == "lexicon":
                hint = f" Those that have one: {', '.join(LEXICON_SYSTEMS)}"
            elif setting == "lexicon_strength" and "lexicon_limits" in known:
                hint = " lexicon_limits=false leaves other tags possible"
            else:
                hint = nearest(setting, known)
            raise ValueError(f"{setting}: the system {name!r} has no such setting.{hint}")
    return tagger.set_params(**settings) if settings else tagger


def _members(members: Sequence[str | Any] = MEMBERS, **shared: Any) -> list[Any]:
    """Untrained taggers of a product; shared: settings for those of them that have such."""
    if not isinstance(members, (list, tuple)) or not members:
        raise ValueError(f'members: expected a list of systems, as JSON ["latent", "crf l2=0.1"]; got {checks.shown(members)}')
    made, taken = [], set()
    for member in members:
        if not isinstance(member, str):
            made.append(member)
            continue
        try:
            name, *options = shlex.split(member)
        except ValueError as error:  # a quotation without an end, or nothing but spaces
            raise ValueError(f"members: expected a system and its options, got {checks.shown(member)}: {error}") from None
        known = make_tagger(name).get_params()
        own = {key: value for key, value in shared.items() if key in known or (key in COLUMN_KINDS and "columns" in known)}
        taken |= set(own)
        made.append(make_tagger(name, **(own | parse_settings(tuple(options)))))
    for key in shared:
        if key not in taken:
            raise ValueError(f"{key}: no member of the product has such a setting: {', '.join(map(str, members))}")
    return made


def train_tagger(
    system: str,
    sentences: Sequence[TaggedSentence],
    validation: Sequence[TaggedSentence] | None = None,
    *,
    folder: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> tuple[SavedTagger, dict[str, Any]]:
    """Train a system, save it where a folder is given, and tell what came of it.

    Args:
        system: in :data:`SYSTEMS`. sentences: tagged ones; with those of `read_tagged` the column of their tags is kept too.
        validation: to tune or stop by, where the system does; its accuracy is told in any case.
        folder: a new one, or that of a tagger, which is replaced.
        **settings: of :func:`make_tagger`.

    Returns:
        the tagger, and "system", "sentences", "tokens", "words", "tags", "seconds" and, with `validation`, "dev_accuracy".

    Raises:
        ValueError, ImportError: as :func:`make_tagger`, and for text that the system cannot learn from.
    """
    if folder is not None:
        check_out(Path(folder))
    tagger, began = make_tagger(system, **settings), time.perf_counter()
    tagger.fit(list(sentences), None if validation is None else list(validation), progress=progress)
    saved = trained(tagger, system, sentences)
    if folder is not None:
        save_tagger(saved, folder)
    return saved, summary_of(saved, sentences, validation, time.perf_counter() - began)


def trained(tagger: Any, system: str, sentences: Sequence[TaggedSentence]) -> SavedTagger:
    """A tagger with what is kept of the text it learns from."""
    from pplseq.models.taggers.scores import training_words

    tag_format, file_format = getattr(sentences, "tag_format", None), getattr(sentences, "format", None)
    # by names, where columns have some: another file may have them in another order
    named = isinstance(tag_format, ConlluFormat)
    column = ",".join(tag_format.column_names) if named else getattr(tag_format, "column", None)
    word_column = getattr(tag_format, "word_column", 0)
    separator = getattr(tag_format, "separator", "_")
    return SavedTagger(tagger, system, column, file_format, training_words(sentences).ambiguous, word_column, separator)


def summary_of(
    saved: SavedTagger, sentences: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None, seconds: float
) -> dict[str, Any]:
    """What :func:`train_tagger` tells of a training."""
    from pplseq.models.taggers.scores import score_tags, training_words
    from pplseq.models.taggers.spans.schemes import in_scheme

    words = training_words(sentences)
    summary = {
        "system": saved.system,
        "sentences": len(sentences),
        "tokens": sum(len(sentence.words) for sentence in sentences),
        "words": len(words.known),
        "tags": len(saved.tagger.tags),
        "seconds": round(seconds, 3),
    }
    if validation is not None and any(len(s.words) for s in validation) and saved.system != "unsupervised":
        summary["dev_accuracy"] = score_tags(
            in_scheme(saved.tagger, validation), saved.tagger.tag([s.words for s in validation]), words
        ).accuracy
    return summary


class Comparison(NamedTuple):
    """Results of systems in their order, and the learning curves of those that worked."""

    results: list[SystemResult]
    curves: dict[str, list[CurvePoint]]

    @property
    def failed(self) -> bool:
        """Whether a system failed whose package is there."""
        return any(result.scores is None and not result.missing for result in self.results)

    def summary(self) -> dict[str, Any]:
        """The numbers, JSON-able."""
        return {
            "systems": {result.name: _result_json(result) for result in self.results},
            "learning_curves": {
                name: [
                    {"num_sentences": point.num_sentences, "num_tokens": point.num_tokens, **_result_json(point.result)}
                    for point in points
                ]
                for name, points in self.curves.items()
            },
        }


def compare(
    systems: Iterable[str],
    train: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    validation: Sequence[TaggedSentence] | None = None,
    *,
    fractions: Sequence[float] = (),
    seed: int = 0,
    word_columns: Sequence[int] = (),
    say: Callable[[str], None] | None = None,
) -> Comparison:
    """Train systems on one text and score them on another; one that fails is reported with its error, and the others go on.

    Args:
        systems: names in :data:`SYSTEMS`. fractions: of the training text, for learning curves. seed: of their sentences.
        word_columns: numbers of the columns that the words were read with, for the systems that look at such.
        say: told of every system.

    Raises:
        ValueError: an unknown system, or fractions that are none.
    """
    from pplseq.models.taggers.comparison import check_fractions, compare_taggers, learning_curve

    names = list(dict.fromkeys(systems))
    for name in names:
        check_system(name)
    if fractions:
        check_fractions(fractions)  # now, and not when all systems are trained
    makers = {name: partial(_make_compared, name, tuple(word_columns)) for name in names}
    tell = say or (lambda line: None)

    def told(result: SystemResult) -> None:
        if result.scores is not None:
            tell(f"{result.name:<16} {result.scores.accuracy:.4f}  {result.train_seconds:8.1f} s")
        else:
            tell(f"{result.name:<16} {'not there' if result.missing else 'failed'}: {result.error}")

    results = compare_taggers(
        makers, train, test, validation=validation, on_start=lambda name: tell(f"{name:<16} training"), on_result=told
    )
    curves = {}
    for result in results:
        if fractions and result.scores is not None:
            tell(f"{result.name:<16} learning curve")
            curves[result.name] = learning_curve(makers[result.name], train, test, fractions, validation=validation, seed=seed)
    return Comparison(results, curves)


def _make_compared(name: str, word_columns: tuple[int, ...]) -> Any:
    tagger = make_tagger(name)
    if word_columns and "word_columns" in tagger.get_params():
        tagger.set_params(word_columns=word_columns)
    return tagger


def _result_json(result: SystemResult) -> dict[str, Any]:
    if result.scores is None:
        return {"error": result.error, "missing": result.missing}
    numbers = {"train_seconds": result.train_seconds, "tokens_per_second": result.tokens_per_second}
    return {**result.scores.summary(), **numbers}


def check_out(folder: Path) -> None:
    """ValueError where saving would replace a folder that holds something else than a tagger."""
    if not folder.name:
        raise ValueError(f"--out: expected the name of a new folder, got {folder}")
    check_name(folder)
    check_writable(beside(folder, "trial"))
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


def save_tagger(saved: SavedTagger, folder: str | Path) -> None:
    """Save a tagger, and with it what is known of its training."""
    training = {
        "system": saved.system,
        "column": saved.column,
        "word_column": saved.word_column,
        "file_format": saved.format,
        "separator": saved.separator,
        "ambiguous_words": None if saved.ambiguous is None else sorted(saved.ambiguous),
    }
    saved.tagger.save(folder, training)


def load_tagger(folder: str | Path) -> SavedTagger:
    """A tagger of a run's folder, or of the one that :func:`save_tagger` or its own `save` wrote.

    Raises:
        FileNotFoundError: no tagger there.
        ValueError: a damaged folder, or one of something else.
        ImportError: the system, or a package that it needs, is not there.
    """
    from pplseq.loading import load_text_model, model_folder
    from pplseq.models.storage import MODEL
    from pplseq.models.taggers import tagger as taggers

    folder = model_folder(folder)
    tagger = taggers.load_tagger(folder)
    open_columns(tagger, load_text_model)
    training = MODEL.read_header(folder)["training"]
    if training is None:
        return SavedTagger(tagger, tagger.name, None, None, None)  # saved from Python
    again = "train again, as by `pplseq train tagger`"
    noted = {"system": str, "column?": (str, int), "word_column?": int, "file_format?": str, "separator?": str,
             "ambiguous_words?": [str]}  # fmt: skip
    check_content(training, noted, folder, again, "training")
    words = training["ambiguous_words"]
    known = None if words is None else frozenset(words)
    column, file_format = training["column"], training["file_format"]
    if file_format == ConlluFormat.name and column in range(len(CONLLU_COLUMNS)):  # as it was written once
        column = CONLLU_COLUMNS[column]
    word_column, separator = training.get("word_column") or 0, training.get("separator") or "_"
    return SavedTagger(tagger, training["system"], column, file_format, known, word_column, separator)


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` pairs; values are read as JSON where they are JSON, else as text."""
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set: expected NAME=VALUE, got {checks.shown(setting)}")
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
