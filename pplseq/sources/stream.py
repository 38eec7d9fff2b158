"""Resumable personalisation: a model that learns on a stream of text, with the folder it is kept in."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.files import json_line
from pplseq.folder import sound, tidy
from pplseq.report.personal import StreamTotals
from pplseq.runs.checkpoint import only_one_run
from pplseq.runs.signals import Stopped, StopSignals
from pplseq.sources.lines import LineReader, LineWriter, Place
from pplseq.sources.opening import Opened, check_same_words, open_all
from pplseq.sources.personal_model import (
    ScoredToken,
    StreamError,
    load_personal,
    make_personal,
    personal_name,
    score_line,
)
from pplseq.sources.settings import StreamOptions, StreamSettings
from pplseq.sources.stream_state import INNER, START_ANEW, check_free, has_state, load_state, save_state
from pplseq.sources.words import Encoder, Line, rounded

if TYPE_CHECKING:
    import numpy as np

SETTINGS: dict[str, Any] = asdict(StreamSettings())  # where nothing else is chosen
BESIDE = ("online-ngram", "cache")  # a single source; chosen on tweets and four genres of web text
HANDED = ""  # under which the record counts the lines that `PersonalStream.read` was given


class ReadLine(NamedTuple):
    """A line of a stream, and what the model made of its words before it learned from them.

    Attributes:
        line: number, words and ids. tokens: one for each word that was read, none where the line could not be read.
    """

    line: Line
    tokens: list[ScoredToken]

    @property
    def error(self) -> str | None:
        """Why the line could not be read."""
        return self.line.answer.get("error")

    @property
    def log_prob(self) -> float:
        """log p(line | stream so far), nats; NaN where the line could not be read, which ``error`` explains."""
        return math.nan if self.error is not None else sum(token.log_prob for token in self.tokens)

    def answer(self, names: Sequence[str]) -> dict[str, Any]:
        """The line as JSON, as `pplseq personalize` writes it; `names` are the sources'."""
        line, tokens = self.line, self.tokens
        if self.error is not None:
            return line.answer
        columns = {"token_log_probs": [token.log_prob for token in tokens]}
        for name in ("perturbation", "log_odds", "source_anomaly", "perturbation_anomaly"):
            columns[name] = [getattr(token, name) for token in tokens]
        answer = line.answer | {"log_prob": rounded([self.log_prob])[0]}
        answer |= {name: line.aligned(rounded(values)) for name, values in columns.items()}
        answer["sources"] = {
            name: line.aligned(rounded([token.source_log_probs[k] for token in tokens])) for k, name in enumerate(names)
        }
        return answer


class Suggestion(NamedTuple):
    """A word that may come next.

    Attributes:
        word: as it is written. prob: p(it comes next | stream so far). known: whether the vocabulary has it; of others that
            were read, p(the unknown word) is shared out by how often they were; one share is left for words never read.
    """

    word: str
    prob: float
    known: bool


class PersonalStream:
    """A model that learns on a stream of text as it comes (PROPS), with the folder it is kept in.

    Example::

        with PersonalStream.open(["ngram:general.txt", "cache"], state="runs/mine") as stream:
            for line in my_lines[stream.num_lines:]:
                print(stream.read(line).log_prob)

    Opened again with the same sources and folder, it goes on to the numbers it would have given uninterrupted.

    Args:
        sources: opened ones, the first with the words; one that only brings words is no source of the model. For a source of
            your own give ``Opened(spec, name, source, vocabulary, fingerprint)``.
        settings: of the model, those of :data:`SETTINGS`; JSON-able.
        folder: for its state; None keeps nothing.
        options: how lines are read.
        given: names of the settings that the user chose, which have to be those of a state that is there already.
        create: whether a model is made where the folder holds none.
        save_every: lines read between two saves of the state.

    Attributes:
        model: a :class:`~pplseq.sources.personal_model.PersonalModel`. sources, vocabulary, settings, options, folder.
        resumed: whether it goes on from a state. record: what the state knows of streams and output.

    Raises:
        ValueError: the folder's state is damaged, or was learned with other settings, sources or words.
    """

    def __init__(
        self,
        sources: Sequence[Opened],
        settings: Mapping[str, Any] = SETTINGS,
        *,
        folder: str | Path | None = None,
        options: StreamOptions | None = None,
        given: Collection[str] = (),
        create: bool = True,
        save_every: int = 100,
    ) -> None:
        folder = None if folder is None else Path(folder)
        self.folder, self.vocabulary, self.save_every = folder, sources[0].vocabulary, save_every
        self.options = options or StreamOptions()
        self.sources = [source for source in sources if source.source is not None]
        for source in self.sources:
            if folder is not None and not hasattr(source.source, "state_dict"):
                raise ValueError(
                    f"state {folder}: the source {source.spec} cannot say what it remembers, so the stream could not go on "
                    "exactly; give no folder for the state"
                )
        if folder is not None:
            check_free(folder)
        self.resumed = folder is not None and (has_state(folder) or not create)
        if folder is None or not self.resumed:
            self.record: dict[str, Any] = {"streams": {}, "out": None, "options": asdict(self.options)}
            self.settings = dict(settings)
            if not self.sources and "guard" not in given and settings.get("guard") == SETTINGS["guard"]:
                self.settings["guard"] = 0.0  # a streaming HMM has no source to be guarded against
            self.model = make_personal([source.source for source in self.sources], len(self.vocabulary), self.settings)
        else:
            self.record, inner = load_state(folder)
            self.settings = {"guard": 0.0} | self.record["settings"]  # streams that were begun before there was one have none
            self._check_sources(inner)
            self._check_settings({name: settings[name] for name in given})
            self.model = load_personal(inner, [source.source for source in self.sources])
        with sound(f"state {self.folder}: its totals", START_ANEW):
            totals = self.record.get("totals") or {}
            self.totals: dict[str, StreamTotals] = {name: StreamTotals(**found) for name, found in totals.items()}
        self.encoder = Encoder(
            self.vocabulary, eos=self.options.eos, unknown=self.options.unknown, lower=self.options.lower
        )
        self._unsaved, self._held = 0, ExitStack()
        self._failed: StreamError | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        sources: str | Sequence[str],
        state: str | Path | None = None,
        *,
        alone: bool = False,
        learn: bool = True,
        save_every: int = 100,
        say: Callable[[str], None] | None = None,
        **chosen: Any,
    ) -> PersonalStream:
        """Begin a stream, or go on with the one whose state the folder holds; the folder is locked until :meth:`close`.

        Args:
            sources: specs, the first of which brings the words: a folder (a run or a saved model), ngram:TEXT, unigram:TEXT,
                hf:NAME, words:TEXT (no source at all: a streaming HMM), and behind it also cache, online-ngram, uniform. A
                single source has counts and a cache of the stream beside it (:data:`BESIDE`).
            alone: leave a single source without those.
            state: folder for the state; None keeps nothing.
            learn: False opens a state only to score with it: there has to be one, and it may be read with other options.
            say: told of each source before it is opened.
            **chosen: fields of :class:`~pplseq.sources.settings.StreamOptions`, and settings of the model (those of
                :data:`SETTINGS`). A state that is there already brings its own; another choice is an error.

        Raises:
            FileNotFoundError, ValueError: a source that is not there, another choice than the state's, a damaged state.
            TypeError: an unknown option or setting.
        """
        folder = None if state is None else Path(state)
        names = [field.name for field in fields(StreamOptions)]
        for name in chosen:
            if name not in names and name not in SETTINGS:
                raise TypeError(f"{name}: no option or setting of a stream; there are: {', '.join([*names, *SETTINGS])}")
        options = {name: value for name, value in chosen.items() if name in names}
        settings = {name: value for name, value in chosen.items() if name in SETTINGS}
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
        reading = resumed_options(folder, options, learning=learn)
        specs = [sources] if isinstance(sources, str) else list(sources)
        if alone and len(specs) > 1:
            raise ValueError(f"alone: expected a single source, got {len(specs)} ({', '.join(specs)}); leave it out")
        if not alone and lacks_others(specs, folder):
            specs += BESIDE
            if say is not None:
                say(f"{specs[0]} with {' and '.join(BESIDE)} beside it; --alone is without")
        return cls.of_sources(open_all(specs, reading, say=say), settings, folder, reading, learn=learn, save_every=save_every)

    @classmethod
    def of_sources(
        cls, opened: Sequence[Opened], chosen: Mapping[str, Any], folder: Path | None, options: StreamOptions, *,
        learn: bool = True, save_every: int = 100,
    ) -> PersonalStream:  # fmt: skip
        """As :meth:`open`, of sources that are ready."""
        with ExitStack() as held:
            if folder is not None:
                held.enter_context(only_one_run(folder))
                tidy(folder / INNER)
            stream = cls(
                opened,
                SETTINGS | dict(chosen),
                folder=folder,
                options=options,
                given=chosen,
                create=learn,
                save_every=save_every,
            )
            stream._held = held.pop_all()
        return stream

    def _check_settings(self, given: Mapping[str, Any]) -> None:
        changed = {name: value for name, value in given.items() if self.settings.get(name) != value}
        if changed:
            told = ", ".join(f"{name} = {self.settings.get(name)!r}, not {value!r}" for name, value in changed.items())
            raise ValueError(f"state {self.folder}: it was begun with {told}; leave the option out, or {START_ANEW}")

    def _check_sources(self, inner: Path) -> None:
        known = Vocabulary.load(inner / "vocab.txt", **self.record.get("special_words", {}))
        check_same_words(f"state {self.folder}", known, "the first source", self.vocabulary)
        saved = self.record["sources"]
        specs = [source.spec for source in self.sources]
        if len(saved) != len(specs):
            raise ValueError(
                f"state {self.folder}: it was learned with {len(saved)} sources ({', '.join(s['spec'] for s in saved)}), got "
                f"{len(specs)} ({', '.join(specs)}); give the same ones, or {START_ANEW}"
            )
        for before, now in zip(saved, self.sources, strict=True):
            if before["fingerprint"] != now.fingerprint:
                raise ValueError(
                    f"state {self.folder}: the source {now.spec} is not the one it was learned with ({before['spec']}): "
                    f"model, text or options (order, decay, ...) differ; give that one, or {START_ANEW}"
                )

    @property
    def names(self) -> list[str]:
        """What the model and its sources are called, on pages and in answers."""
        return [personal_name(self.sources), *(source.name for source in self.sources)]

    # ---------------------------------------------------------------- lines handed over
    @property
    def num_lines(self) -> int:
        """Lines that :meth:`read` was given, those before the state was saved included."""
        return self.record["streams"].get(HANDED, [0])[0]

    def read(self, line: str | bytes | Sequence[str], *, learn: bool = True) -> ReadLine:
        """Score every word of a line, and learn from each before the next.

        Saves the state first where `save_every` lines were read since the last time, so what is saved is never ahead of what
        the caller was told.

        Args:
            line: words between spaces, a list of words, or JSON {"words": [...]}. learn: False leaves the parameters as they
                are.

        Raises:
            TypeError: for what is no line.
            StreamError: a source or the model failed; the state saved before is whole, and this stream goes no further.
        """
        if isinstance(line, (list, tuple)) and all(isinstance(word, str) for word in line):
            line = json.dumps({"words": line})
        if not isinstance(line, (str, bytes)):
            raise TypeError(f"line must be text, or a list of words, got {checks.shown(line)}")
        if self._unsaved >= self.save_every:
            self.save()
        number = self.num_lines + 1
        found = self._read(number, line.encode() if isinstance(line, str) else line, learn)
        self.record["streams"][HANDED] = list(Place(number))
        return found

    def _read(self, number: int, raw: bytes | int, learn: bool) -> ReadLine:
        self._check_whole()
        line = self.encoder.encode(number, raw)
        try:
            tokens = score_line(self.model, line, learn=learn, by_line=self.options.by_line)
        except StreamError as error:
            self._failed = error
            raise
        self._unsaved += 1
        if learn:
            new = self.record.setdefault("new_words", {})
            for word, known in zip(line.words, line.known, strict=True):
                if not known:
                    new[word] = new.get(word, 0) + 1
        return ReadLine(line, tokens)

    def suggest(self, prefix: str = "", k: int = 5) -> list[Suggestion]:
        """The k words that come next with the highest probability, exactly, as a keyboard offers them; nothing is learned.

        Args:
            prefix: what was typed of the line so far. Its last word is the beginning of the one that is meant, unless a space
                stands behind it; words before that are read as words of the stream. Characters and bytes are read as a whole,
                and the next ones offered.

        Returns:
            Words that begin so, the most probable first; words of the stream that the vocabulary lacks among them, where
            unknown words are read as the unknown word.

        Raises:
            ValueError: for words that cannot be read, or before which a source cannot be put back to where it stands.

        Cost: O(V K), and V comparisons of strings.
        """
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be text, got {checks.shown(prefix)}")
        checks.count("k", k)
        self._check_whole()
        if self.options.lower:
            prefix = prefix.lower()
        *before, last = self.vocabulary.split(prefix + "x")  # a letter more shows whether the last word goes on
        beginning = last[:-1]
        probs = self._next_probs(before)
        special = {self.vocabulary.eos, self.vocabulary.unknown}
        found = [
            Suggestion(word, float(prob), True)
            for word, prob in zip(self.vocabulary.words, probs, strict=True)
            if word.startswith(beginning) and word not in special
        ]
        new, unknown_id = self.record.get("new_words", {}), self.vocabulary.unknown_id
        if self.encoder.unknown == "unk" and unknown_id is not None:
            share = float(probs[unknown_id]) / (1 + sum(new.values()))
            found += [Suggestion(word, n * share, False) for word, n in new.items() if word.startswith(beginning)]
        return heapq.nlargest(k, found, key=lambda one: one.prob)

    def _next_probs(self, before: Sequence[str]) -> np.ndarray:
        """(V,) of the word behind these, which are read and forgotten again."""
        predict = self.model.learner.predict_proba_one
        ids = self.encoder.of_words(before).ids
        if (back := self.model.mark(learn=False)) is None:
            if not before and not self.options.by_line:
                return predict()
            raise ValueError(
                "prefix: a source cannot be put back to where it stands, so that no words are read on trial; give the "
                "beginning of the next word alone, of a stream that is not by_line"
            )
        try:
            if self.options.by_line:
                self.model.new_line()
            for word in ids:
                self.model.step(word, learn=False)
            return predict()
        finally:
            back()

    def _add(self, name: str, found: ReadLine) -> None:
        """Take a line into the totals of a stream, which go on where the stream does."""
        scores = [[token.log_prob for token in found.tokens]]
        scores += [[token.source_log_probs[k] for token in found.tokens] for k in range(len(self.sources))]
        totals = self.totals.setdefault(name, StreamTotals())
        totals.add({str(k): values for k, values in enumerate(scores)}, found.line.known if found.tokens else [])

    def save(self) -> None:
        """Keep the model, the sources' memories and the places in the streams; without a folder nothing."""
        self._check_whole()
        self._unsaved = 0
        if self.folder is None:
            return
        self.record |= {
            "settings": self.settings,
            "special_words": self.vocabulary.special_words,
            "totals": {name: asdict(totals) for name, totals in self.totals.items()},
            "sources": [{"spec": source.spec, "fingerprint": source.fingerprint} for source in self.sources],
        }

        def write(new: Path) -> None:
            self.vocabulary.save(new / "vocab.txt")
            self.model.save(new)

        save_state(self.folder, self.record, write)

    def _check_whole(self) -> None:
        """Refuse to go on when closed, or behind a part of a line: its words would be learned twice, or left out of a state."""
        if self._closed:
            raise ValueError(f"state {self.folder}: the stream was closed; open it again")
        if self._failed is not None:
            raise StreamError(f"the stream ended within a line ({self._failed}); open it again: it goes on from its last state")

    def close(self) -> None:
        """Let other processes have the folder; what was not saved is lost."""
        self._closed = self.folder is not None
        self._held.close()

    def __enter__(self) -> PersonalStream:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: Any) -> None:
        try:
            if failed is None and self._unsaved and self._failed is None:
                self.save()
        finally:
            self.close()

    # ---------------------------------------------------------------- files
    def follow(
        self,
        path: str = "-",
        out: str | Path | None = None,
        *,
        rewind: bool = False,
        learn: bool = True,
        on_line: Callable[[ReadLine], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> int:
        """Answer and learn line after line of a file, from where this state left it; JSON lines out.

        The state is saved before the first line, every `save_every` lines, at the end, and when a signal (Ctrl-C, SIGTERM) asks
        to stop. Given a file, a stream that was interrupted in any way goes on to the same numbers and the same output file.

        Args:
            path: of a text file, or "-" for standard input. out: file of the answers; None is standard output.
            rewind: read the file from its start, though the state has read some of it.
            on_line: called after each line was answered. say: told of an interruption.

        Returns:
            Lines that could not be read.

        Raises:
            StreamError: a source or the model failed in a line. ValueError: not the file that was read before.
            KeyboardInterrupt, SystemExit: a signal came; the state is saved.
        """
        out = None if out is None else Path(out)
        name = "-" if path == "-" else str(Path(path).resolve())
        known = self.record["streams"].get(name)
        if known is None or rewind:
            self.totals.pop(name, None)
        reader = LineReader(path, None if known is None or rewind else Place(*known))
        with ExitStack() as files:
            files.callback(reader.close)
            writer = self._writer(out)
            files.callback(writer.close)
            return self._follow(name, reader, writer, learn, on_line, say)

    def _writer(self, out: Path | None) -> LineWriter:
        """The output, without what was written of lines that will come again."""
        saved = self.record["out"]
        name = None if out is None else str(out.resolve())
        written = saved["num_bytes"] if saved is not None and saved["path"] == name else None
        self.record["out"] = None if out is None else {"path": name, "num_bytes": written or 0}
        return LineWriter(out, written)

    def _follow(
        self,
        name: str,
        reader: LineReader,
        writer: LineWriter,
        learn: bool,
        on_line: Callable[[ReadLine], None] | None,
        say: Callable[[str], None] | None,
    ) -> int:
        failed, begun, start = 0, False, reader.place

        def save(place: Place) -> None:
            writer.sync()
            self.record["streams"][name] = list(place)
            if self.record["out"] is not None:
                self.record["out"]["num_bytes"] = writer.num_bytes
            self.save()

        with StopSignals() as signals:
            try:
                while (raw := reader.read_line(signals)) is not None:
                    if not begun:  # so that whatever comes after, it is known which output belongs to which stream
                        save(start)
                        begun = True
                    found = self._read(reader.place.num_lines, raw, learn)
                    failed += found.error is not None
                    self._add(name, found)
                    writer.write(json_line(found.answer(self.names[1:])))
                    if on_line is not None:
                        on_line(found)
                    if self._unsaved >= self.save_every:
                        save(reader.place)
            except Stopped:
                pass
            if self._unsaved:
                save(reader.place)
        if signals.received is not None and say is not None:
            kept = "nothing is kept without a state" if self.folder is None else "saved; the same command goes on from there"
            say(f"stopped behind line {reader.place.num_lines}; {kept}")
        signals.reraise()
        return failed


def lacks_others(specs: Sequence[str], folder: Path | None) -> bool:
    """Whether there is a single source, and no state that goes on with that one alone."""
    if len(specs) != 1 or specs[0].startswith("words:"):
        return False
    return folder is None or not has_state(folder) or len(load_state(folder)[0]["sources"]) > 1


def resumed_options(folder: Path | None, given: Mapping[str, Any], *, learning: bool = True) -> StreamOptions:
    """The options of a folder's stream with those given, or the given ones where the folder holds none.

    Raises:
        ValueError: where a stream that is still learned from is to be read in another way than it was begun.
    """
    if folder is None or not has_state(folder):
        return StreamOptions(**given)
    saved = load_state(folder)[0]["options"]
    for name, value in given.items():
        if learning and name in saved and saved[name] != value:
            raise ValueError(
                f"state {folder}: it was begun with {name} = {saved[name]!r}, not {checks.shown(value)}, and would go on to "
                "other numbers; "
                f"leave the option out, or {START_ANEW}"
            )
    return StreamOptions(**{**saved, **given})
