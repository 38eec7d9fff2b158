"""What `pplseq personalize` and `pplseq compare-streams` do between reading their options and printing."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pplseq.cli.streams.words import Encoder, Line, Shown, as_json, rounded
from pplseq.data.vocabulary import Vocabulary
from pplseq.report.markup import number
from pplseq.report.personal import StreamTotals
from pplseq.runs.signals import Stopped, StopSignals
from pplseq.sources.lines import LineReader, LineWriter, Place
from pplseq.sources.opening import Opened, check_same_words
from pplseq.sources.personal_model import PersonalModel, ScoredToken, StreamModel, load_personal
from pplseq.sources.stream_state import START_ANEW, check_free, has_state, load_state, save_state


class StreamError(RuntimeError):
    """A stream that could not be gone on with; the state saved before is whole."""


# ---- one stream, one learning model


class PersonalStream:
    """A model that learns on a stream, with the folder it is kept in.

    Args:
        folder: for its state; None keeps nothing.
        sources: opened ones, the first with the words; one that only brings words is no source of the model.
        settings: of the model, JSON-able.
        options: of the command that whoever goes on needs too, JSON-able.
        given: names of the settings that the user gave, which have to be those of a state that is there already.
        make: from sources, number of words and settings to a model.
        create: whether a model is made where the folder holds none.

    Raises:
        ValueError: the folder's state is damaged, or was learned with other settings, sources or words.
    """

    def __init__(
        self,
        folder: Path | None,
        sources: Sequence[Opened],
        settings: Mapping[str, Any],
        make: Callable[..., PersonalModel],
        *,
        options: Mapping[str, Any] | None = None,
        given: Collection[str] = (),
        create: bool = True,
    ) -> None:
        self.folder, self.vocabulary = folder, sources[0].vocabulary
        self.sources = [source for source in sources if source.source is not None]
        for source in self.sources:
            if folder is not None and not hasattr(source.source, "state_dict"):
                raise ValueError(
                    f"--state {folder}: the source {source.spec} cannot say what it remembers, so the stream could not go on "
                    "exactly; leave --state out"
                )
        if folder is not None:
            check_free(folder)
        self.resumed = folder is not None and (has_state(folder) or not create)
        if not self.resumed:
            self.record: dict[str, Any] = {"streams": {}, "out": None, "options": dict(options or {})}
            self.settings = dict(settings)
            self.model = make([source.source for source in self.sources], len(self.vocabulary), self.settings)
        else:
            self.record, inner = load_state(folder)
            self.settings = self.record["settings"]
            self._check_sources(inner)
            self._check_settings({name: settings[name] for name in given})
            self.model = load_personal(inner, [source.source for source in self.sources])
        self.stream = ""

    def _check_settings(self, given: Mapping[str, Any]) -> None:
        changed = {name: value for name, value in given.items() if self.settings.get(name) != value}
        if changed:
            told = ", ".join(f"{name} = {self.settings.get(name)!r}, not {value!r}" for name, value in changed.items())
            raise ValueError(f"--state {self.folder}: it was begun with {told}; leave the option out, or {START_ANEW}")

    def _check_sources(self, inner: Path) -> None:
        known = Vocabulary.load(inner / "vocab.txt")
        check_same_words(f"--state {self.folder}", known, "SOURCE", self.vocabulary)
        saved = self.record["sources"]
        specs = [source.spec for source in self.sources]
        if len(saved) != len(specs):
            raise ValueError(
                f"--state {self.folder}: it was learned with {len(saved)} sources ({', '.join(s['spec'] for s in saved)}), got "
                f"{len(specs)} ({', '.join(specs)}); give the same ones, or {START_ANEW}"
            )
        for before, now in zip(saved, self.sources, strict=True):
            if before["fingerprint"] != now.fingerprint:
                raise ValueError(
                    f"--state {self.folder}: the source {now.spec} is not the one it was learned with ({before['spec']}): "
                    f"model, text or options (--order, --decay, ...) differ; give that one, or {START_ANEW}"
                )

    def reader(self, stream: str, *, rewind: bool = False) -> LineReader:
        """The stream from where this model left it; one that it does not know, and one to rewind, from its start."""
        self.stream = "-" if stream == "-" else str(Path(stream).resolve())
        known = self.record["streams"].get(self.stream)
        return LineReader(stream, None if known is None or rewind else Place(*known))

    def writer(self, out: Path | None) -> LineWriter:
        """The output, without what was written of lines that will come again."""
        saved = self.record["out"]
        name = None if out is None else str(out.resolve())
        written = saved["num_bytes"] if saved is not None and saved["path"] == name else None
        self.record["out"] = None if out is None else {"path": name, "num_bytes": written or 0}
        return LineWriter(out, written)

    def save(self, place: Place, writer: LineWriter) -> None:
        """Keep the model, the sources' memories and the places in the stream and in the output."""
        if self.folder is None:
            return
        writer.sync()
        self.record["streams"][self.stream] = list(place)
        self.record |= {
            "settings": self.settings,
            "sources": [{"spec": source.spec, "fingerprint": source.fingerprint} for source in self.sources],
        }
        if self.record["out"] is not None:
            self.record["out"]["num_bytes"] = writer.num_bytes

        def write(new: Path) -> None:
            self.vocabulary.save(new / "vocab.txt")
            self.model.save(new)

        save_state(self.folder, self.record, write)


def personalize_lines(
    stream: PersonalStream,
    reader: LineReader,
    writer: LineWriter,
    encoder: Encoder,
    shown: Shown,
    *,
    learn: bool = True,
    save_every: int = 100,
    by_line: bool = False,
) -> int:
    """Answer and learn line after line; the state is saved every so often, at the end, and when a signal asks to stop.

    Returns:
        Lines that could not be read.

    Raises:
        StreamError: a source or the model failed in a line.
        KeyboardInterrupt, SystemExit: a signal came; the state is saved.
    """
    failed, unsaved, begun = 0, 0, False
    with StopSignals() as signals:
        try:
            place = reader.place
            while (raw := reader.read_line(signals)) is not None:
                if not begun:  # so that whatever comes after, it is known which output belongs to which stream
                    stream.save(place, writer)
                    begun = True
                line = encoder.encode(reader.place.num_lines, raw)
                failed += "error" in line.answer
                tokens = score_line(stream.model, line, learn=learn, by_line=by_line)
                writer.write(as_json(personal_answer(line, tokens, [source.name for source in stream.sources])))
                shown.add(line, *shown_numbers(tokens, len(stream.sources)))
                unsaved += 1
                if unsaved == save_every:
                    stream.save(reader.place, writer)
                    unsaved = 0
        except Stopped:
            pass
        if unsaved:
            stream.save(reader.place, writer)
    if signals.received is not None:
        kept = (
            "nothing is kept without --state" if stream.folder is None else "saved; the same command goes on from there"
        )
        click.echo(f"stopped behind line {reader.place.num_lines}; {kept}", err=True)
    signals.reraise()
    return failed


def score_line(model: StreamModel, line: Line, *, learn: bool, by_line: bool = False) -> list[ScoredToken]:
    """Every token of a line, in order.

    Raises:
        StreamError: naming the line and the word.
    """
    if by_line and line.ids:
        model.new_line()
    tokens = []
    for word, word_id in zip(line.words, line.ids, strict=True):
        try:
            tokens.append(model.step(word_id, learn=learn))
        except (ValueError, ArithmeticError, RuntimeError) as error:
            raise StreamError(f"line {line.answer['line']}, word {len(tokens) + 1} ({word!r}): {error}") from error
    return tokens


def personal_answer(line: Line, tokens: Sequence[ScoredToken], names: Sequence[str]) -> dict[str, Any]:
    """The JSON line of a line of a stream."""
    if "error" in line.answer:
        return line.answer
    columns = {
        "token_log_probs": [token.log_prob for token in tokens],
        "perturbation": [token.perturbation for token in tokens],
        "log_odds": [token.log_odds for token in tokens],
        "source_anomaly": [token.source_anomaly for token in tokens],
        "perturbation_anomaly": [token.perturbation_anomaly for token in tokens],
    }
    answer = line.answer | {"log_prob": rounded([sum(columns["token_log_probs"])])[0]}
    answer |= {name: line.aligned(rounded(values)) for name, values in columns.items()}
    answer["sources"] = {
        name: line.aligned(rounded([token.source_log_probs[k] for token in tokens])) for k, name in enumerate(names)
    }
    return answer


def shown_numbers(tokens: Sequence[ScoredToken], num_sources: int) -> tuple[list[list[float]], list[float]]:
    """(log-probabilities of the model and of every source, log-odds) for a page."""
    log_probs = [[token.log_prob for token in tokens]]
    log_probs += [[token.source_log_probs[k] for token in tokens] for k in range(num_sources)]
    return log_probs, [token.log_odds for token in tokens]


# ---- two models, one stream


def compare_lines(
    models: Sequence[StreamModel],
    reader: LineReader,
    encoder: Encoder,
    shown: Shown,
    write: Callable[[str], None],
    *,
    learn: bool = False,
    by_line: bool = False,
) -> int:
    """Score line after line under two models.

    Returns:
        Lines that could not be read.

    Raises:
        StreamError: a model failed in a line. KeyboardInterrupt, SystemExit: a signal came.
    """
    failed = 0
    with StopSignals() as signals:
        try:
            while (raw := reader.read_line(signals)) is not None:
                line = encoder.encode(reader.place.num_lines, raw)
                failed += "error" in line.answer
                scored = [score_line(model, line, learn=learn, by_line=by_line) for model in models]
                odds = next((tokens for tokens in scored if tokens and tokens[0].log_odds is not None), None)
                odds = None if odds is None else [token.log_odds for token in odds]
                log_probs = [[token.log_prob for token in tokens] for tokens in scored]
                write(as_json(comparison_answer(line, log_probs, odds)))
                shown.add(line, log_probs, odds)
        except Stopped:
            pass
    signals.reraise()
    return failed


def comparison_answer(line: Line, log_probs: Sequence[Sequence[float]], odds: Sequence[float] | None) -> dict[str, Any]:
    """The JSON line of a line of a stream under two models."""
    if "error" in line.answer:
        return line.answer
    ratios = [first - second if first != second else 0.0 for first, second in zip(*log_probs, strict=True)]
    answer = line.answer | {
        "log_likelihood_ratio": rounded([sum(ratios)])[0],
        "token_ratios": line.aligned(rounded(ratios)),
    }
    answer |= {name: line.aligned(rounded(values)) for name, values in zip(("a", "b"), log_probs, strict=True)}
    return answer if odds is None else answer | {"log_odds": line.aligned(rounded(odds))}


def comparison_summary(totals: StreamTotals, names: Sequence[str]) -> dict[str, Any]:
    """Totals of two models, JSON-able."""
    summary: dict[str, Any] = {"num_tokens": totals.num_tokens}
    for key, name in zip(("a", "b"), names, strict=True):
        perplexity, prob = rounded([totals.perplexity(name), totals.mean_prob(name)])
        summary[key] = {"name": name, "perplexity": perplexity, "mean_prob": prob}
    return summary | {"mean_log_likelihood_ratio": rounded([totals.mean_ratio(*names)])[0]}


# ---- pages


def write_page(
    shown: Shown, names: Sequence[str], html: Path | None, png: Path | None, title: str, command: str
) -> None:
    """The page and the picture that were asked for, where there was a word to show, each whole or not at all.

    Args:
        names: of one model, or of two to compare. command: for the page's footer.
    """
    if shown.totals.num_tokens == 0 or html is None and png is None:
        return
    view = shown.view(*names)
    if html is not None:
        from pplseq.report.personal import render_personal_page

        unfinished = html.with_name(f".{html.name}.new")
        unfinished.write_text(render_personal_page(view, title=title, command=command), encoding="utf-8")
        os.replace(unfinished, html)
    if png is not None:
        from pplseq.report.personal_picture import draw_personal_picture

        draw_personal_picture(view, png, title=title)


def check_empty(totals: StreamTotals, failed: int, name: str, resumed: bool = False) -> None:
    """Raise ValueError for a stream without a word, unless it goes on from one that had some."""
    if totals.num_tokens == 0 and not resumed and not failed:
        raise ValueError(f"--stream {name}: it has no words; give a text, a line at a time")


def totals_text(totals: StreamTotals, names: Sequence[str]) -> str:
    """Totals for people."""
    if totals.num_tokens == 0:
        return "no further words"
    parts = [f"{name}: perplexity {number(totals.perplexity(name))}" for name in names]
    return f"{totals.num_tokens:,} tokens; {'; '.join(parts)}"
