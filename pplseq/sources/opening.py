"""Sources of next-word probabilities that the commands about streams know by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pplseq import checks
from pplseq.baselines import NETWORKS
from pplseq.checks import nearest
from pplseq.data.vocabulary import Vocabulary
from pplseq.sources.settings import StreamOptions

TEXT_KINDS = ("ngram", "unigram", "words")
STREAM_KINDS = ("cache", "online-ngram", "uniform")  # of the stream itself: they need the words of another source
HELP = (
    "a folder (a run of `pplseq train` with a language model, as hmm, vlhmm or lstm, or such a model saved), ngram:TEXT or "
    "unigram:TEXT (Kneser-Ney, of a text file or corpus), "
    "words:TEXT (no source, only words), hf:NAME (a Hugging Face language model); and, beside one of these, cache (words of "
    "the stream so far), online-ngram (counts learned on the stream) or uniform"
)


class Opened(NamedTuple):
    """A source that is ready.

    Attributes:
        spec: as the user wrote it. name: short, for tables and pages.
        source: with predict, observe, reset; None where there are only words. vocabulary: its words.
        fingerprint: changes with what it was made of.
    """

    spec: str
    name: str
    source: Any
    vocabulary: Vocabulary
    fingerprint: str


def check_spec(spec: str, *, first: bool) -> str:
    """The kind of a source: folder, ngram, unigram, words, hf, cache, online-ngram or uniform.

    Args:
        first: it has to bring the words.

    Raises:
        ValueError: no such source, one without words of its own in the first place, or nothing but words behind it.
        FileNotFoundError: a folder or text that is not there.
    """
    kind, colon, rest = spec.partition(":")
    if first and needs_words(spec):
        raise ValueError(
            f"{checks.shown(spec)} brings no words of its own; name a model or a text as SOURCE (words:TEXT for nothing but "
            "the words) and "
            f"add this one with --source {spec}"
        )
    if kind in STREAM_KINDS and not colon:
        return kind
    if kind == "words" and not first:
        raise ValueError(f"--source {spec}: the words come from SOURCE, and this brings nothing else; leave it out")
    if kind in TEXT_KINDS or kind == "hf":
        if not rest:
            raise ValueError(
                f"{checks.shown(spec)}: expected {kind}:{'NAME' if kind == 'hf' else 'TEXT'}, with nothing behind the colon"
            )
        if kind != "hf" and not rest.startswith(("builtin:", "hf:")) and not Path(rest).exists():
            raise FileNotFoundError(f"{spec}: {rest} is not there; check the path, or give builtin:python")
        return kind
    path = Path(spec)
    if path.is_dir():
        return "folder"
    if path.is_file():
        raise ValueError(f"{spec} is a file; to make a source of a text write ngram:{spec} or unigram:{spec}")
    names = [*STREAM_KINDS, *(f"{name}:" for name in TEXT_KINDS)]
    raise FileNotFoundError(f"{checks.shown(spec)}: there is no such folder.{nearest(spec, names)}. A source is {HELP}")


def needs_words(spec: str) -> bool:
    """Whether a source works with the words of another one."""
    return spec in STREAM_KINDS or spec.startswith("hf:")


def open_source(spec: str, options: StreamOptions, vocabulary: Vocabulary | None = None) -> Opened:
    """Make a source ready.

    Args:
        spec: what `check_spec` takes.
        vocabulary: of the source before it; None for the first, which brings its own.

    Raises:
        ValueError: another vocabulary, or as `check_spec`.
    """
    kind, rest = check_spec(spec, first=vocabulary is None), spec.partition(":")[2]
    if vocabulary is not None and kind in STREAM_KINDS:
        source = stream_source(kind, len(vocabulary), options)
        return Opened(spec, spec, source, vocabulary, f"{kind} {options.decay}" if kind == "cache" else kind)
    if kind in TEXT_KINDS:
        return _of_text(spec, kind, rest, options, vocabulary)
    if vocabulary is not None and kind == "hf":
        from pplseq.sources import HuggingFaceSource

        return Opened(spec, rest, HuggingFaceSource.from_pretrained(rest, vocabulary), vocabulary, rest)
    return _of_folder(spec, options, vocabulary)


def open_all(
    specs: Sequence[str],
    options: StreamOptions | None = None,
    vocabulary: Vocabulary | None = None,
    *,
    say: Callable[[str], None] | None = None,
) -> list[Opened]:
    """Sources over one vocabulary, the one given or that of the first; every spec is looked at before any is made.

    Args:
        say: told of each before it is made, which takes a while for a large text or model.

    Raises:
        ValueError, FileNotFoundError: as :func:`open_source`.
    """
    options = options or StreamOptions()
    for place, spec in enumerate(specs):
        check_spec(spec, first=place == 0 and vocabulary is None)
    opened: list[Opened] = []
    for spec in specs:
        if say is not None and spec not in STREAM_KINDS:
            say(f"opening {spec}")
        found = open_source(spec, options, opened[0].vocabulary if opened else vocabulary)
        same = sum(found.name in (other.name, other.name.rpartition(" #")[0]) for other in opened)
        opened.append(found._replace(name=f"{found.name} #{same + 1}") if same else found)
    return opened


def stream_source(kind: str, num_words: int, options: StreamOptions) -> Any:
    """A source that learns from the stream alone."""
    from pplseq.sources import OnlineNGram, UniformSource, UnigramCache

    if kind == "uniform":
        return UniformSource(num_words)
    return UnigramCache(num_words, decay=options.decay) if kind == "cache" else OnlineNGram(num_words)


def _of_text(spec: str, kind: str, text_name: str, options: StreamOptions, vocabulary: Vocabulary | None) -> Opened:
    """A Kneser-Ney model, or only the words, of the training part of a corpus, or of a whole file."""
    from pplseq.baselines import KneserNey
    from pplseq.data.coding import CodedLines
    from pplseq.data.sources import read_lines
    from pplseq.data.text import load_corpus, read_text

    name = Path(text_name).name
    if Path(text_name).is_file():
        if vocabulary is None:
            lines = CodedLines(read_lines(text_name, lower=options.lower, units=options.units), text_name, units=options.units)
            lines.warn()
            vocabulary = lines.vocabulary(min_count=options.min_count, max_size=options.max_vocabulary)
        text = read_text(text_name, vocabulary, lower=options.lower)
    else:
        sizes: dict[str, Any] = {"min_count": options.min_count, "max_vocabulary": options.max_vocabulary}
        sizes["units"] = options.units if vocabulary is None else None
        text = load_corpus(text_name, vocabulary=vocabulary, lower=options.lower, **sizes).train
    if kind == "words":
        return Opened(spec, name, None, text.vocabulary, kind)
    from pplseq.sources import NGramSource

    order = 1 if kind == "unigram" else options.order
    content = hashlib.sha256(f"{order} {text.vocabulary.fingerprint()} ".encode())
    content.update(text.tokens.tobytes())
    source = NGramSource(KneserNey(order).fit(text))
    return Opened(
        spec, f"{f'{order}-gram' if order > 1 else kind}, {name}", source, text.vocabulary, content.hexdigest()
    )


def _of_folder(spec: str, options: StreamOptions, vocabulary: Vocabulary | None) -> Opened:
    """A model of the library, or one of its neural networks."""
    from pplseq.loading import OTHERS, load_text_model, saved_kind
    from pplseq.sources import ModelSource, TorchLanguageModelSource

    folder, others = Path(spec), OTHERS | {"text_lds": "a text_lds"}
    if (kind := saved_kind(folder)) in others:
        raise ValueError(f"{spec} holds {others[kind]}, which gives no probabilities of next words; a source is {HELP}")
    model = load_text_model(folder, options.checkpoint)
    words = model.vocabulary
    if vocabulary is not None:
        check_same_words(spec, words, "the first source", vocabulary)
    source = TorchLanguageModelSource(model) if model.name in NETWORKS else ModelSource(model)
    content = hashlib.sha256(words.fingerprint().encode())
    for name, tensor in sorted(model.state_dict().items()):
        content.update(name.encode())
        content.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return Opened(spec, f"{model.name}, {folder.resolve().name}", source, words, content.hexdigest())


def check_same_words(what: str, words: Vocabulary, other: str, others: Vocabulary) -> None:
    """Raise ValueError unless two vocabularies encode alike."""
    if words.fingerprint() == others.fingerprint():
        return
    pairs = zip(words.words, others.words, strict=False)
    first = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(words), len(others)))
    raise ValueError(
        f"vocabulary mismatch: {what} has {len(words):,} words, {other} {len(others):,}, and they differ from word {first} on; "
        "models that work together have to be made with the same vocabulary"
    )
