"""Two models on one stream: which of them expected each word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pplseq.data.vocabulary import Vocabulary
from pplseq.files import json_line
from pplseq.report.personal import StreamTotals
from pplseq.runs.signals import Stopped, StopSignals
from pplseq.sources.lines import LineReader, LineWriter
from pplseq.sources.opening import check_same_words, needs_words, open_all
from pplseq.sources.personal_model import (
    SourceModel,
    StreamError,
    StreamModel,
    load_personal,
    personal_name,
    score_line,
)
from pplseq.sources.settings import StreamOptions
from pplseq.sources.stream import resumed_options
from pplseq.sources.stream_state import has_learned, has_state, load_state
from pplseq.sources.words import Encoder, Line, rounded


class ComparedLine(NamedTuple):
    """A line under two models: (T,) nats of each, and log-odds of the perturbation states where one is personal."""

    line: Line
    log_probs: list[list[float]]
    log_odds: list[float] | None


class StreamPair:
    """Two models to compare on a stream.

    Args:
        specs: two sources, or state folders of `pplseq personalize`, which bring their own sources and the options they were
            read with.
        say: told of each source before it is opened.
        **options: fields of :class:`~pplseq.sources.settings.StreamOptions`, before those of the state folders.

    Attributes:
        models, names: two of each. vocabulary, options.

    Raises:
        ValueError: different vocabularies, or as where sources are opened.
    """

    def __init__(self, specs: Sequence[str], *, say: Callable[[str], None] | None = None, **options: Any) -> None:
        saved: dict[str, Any] = {}
        self.say, self.states = say or (lambda line: None), list[Path]()
        for spec in reversed(specs):
            folder = Path(spec) if Path(spec).is_dir() else None
            if folder is not None and has_state(folder):
                saved |= asdict(resumed_options(folder, {}))
                self.states.append(folder)
        self.options = StreamOptions(**{**saved, **options})
        opened: dict[int, tuple[StreamModel, str, Vocabulary]] = {}
        words: Vocabulary | None = None
        for place in sorted(range(len(specs)), key=lambda i: needs_words(specs[i])):
            opened[place] = _open_model(specs[place], self.options, words, say)
            if words is not None:
                check_same_words(specs[place], opened[place][2], specs[1 - place], words)
            words = opened[place][2]
        self.models, self.names = [opened[place][0] for place in (0, 1)], [opened[place][1] for place in (0, 1)]
        if self.names[0] == self.names[1]:
            self.names = [f"{name} ({letter})" for name, letter in zip(self.names, "ab", strict=True)]
        self.vocabulary = opened[0][2]
        self.encoder = Encoder(
            self.vocabulary, eos=self.options.eos, unknown=self.options.unknown, lower=self.options.lower
        )

    def read(self, number: int, raw: bytes | int, *, learn: bool = False) -> ComparedLine:
        """A line under both models; one that cannot be read has an "error" in its answer.

        Raises:
            StreamError: a model failed in the line. Both are then where they stood before it, unless the message names one that
                cannot be put back.
        """
        line = self.encoder.encode(number, raw)
        marks = [model.mark(learn=learn) for model in self.models]
        try:
            scored = [score_line(model, line, learn=learn, by_line=self.options.by_line) for model in self.models]
        except BaseException as error:
            for back in marks:
                if back is not None:
                    back()
            lost = [name for name, back in zip(self.names, marks, strict=True) if back is None]
            if isinstance(error, StreamError) and lost:
                raise StreamError(
                    f"{error}; and {', '.join(lost)} could not be put back to before the line, as a source has neither mark() "
                    "nor state_dict(): begin anew"
                ) from error
            raise
        odds = next((tokens for tokens in scored if tokens and tokens[0].log_odds is not None), None)
        return ComparedLine(
            line,
            [[token.log_prob for token in tokens] for tokens in scored],
            None if odds is None else [token.log_odds for token in odds if token.log_odds is not None],
        )

    def follow(
        self,
        path: str = "-",
        out: str | Path | None = None,
        *,
        learn: bool = False,
        on_line: Callable[[ComparedLine], None] | None = None,
        summary: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> int:
        """Answer line after line of a file ("-" is standard input), JSON lines out; nothing is kept of what is learned.

        Args:
            summary: asked at the end for a last line.

        Returns:
            Lines that could not be read.

        Raises:
            StreamError: a model failed in a line. KeyboardInterrupt, SystemExit: a signal came.
        """
        for folder in self.states:
            if has_learned(folder, path):
                self.say(
                    f"Warning: {folder} has learned from this very text: what it says of it is no measure of how well it "
                    "predicts; compare on text that it has not seen"
                )
        failed, reader = 0, LineReader(path)
        with ExitStack() as files:
            files.callback(reader.close)
            writer = LineWriter(None if out is None else Path(out))
            files.callback(writer.close)
            with StopSignals() as signals:
                try:
                    while (raw := reader.read_line(signals)) is not None:
                        found = self.read(reader.place.num_lines, raw, learn=learn)
                        failed += "error" in found.line.answer
                        writer.write(json_line(comparison_answer(*found)))
                        if on_line is not None:
                            on_line(found)
                except Stopped:
                    pass
            signals.reraise()
            if summary is not None and (last := summary()) is not None:
                writer.write(json_line(dict(last)))
        return failed


def _open_model(
    spec: str, options: StreamOptions, vocabulary: Vocabulary | None, say: Callable[[str], None] | None
) -> tuple[StreamModel, str, Vocabulary]:
    folder = Path(spec)
    if not (folder.is_dir() and has_state(folder)):
        opened = open_all([spec], options, vocabulary, say=say)[0]
        if opened.source is None:
            raise ValueError(
                f"{spec} has words only, nothing that predicts them; personalize it first, or give a source"
            )
        return SourceModel(opened.source, opened.name), opened.name, opened.vocabulary
    record, inner = load_state(folder)
    texts = StreamOptions(**{**asdict(options), **record["options"]})
    words = Vocabulary.load(inner / "vocab.txt", **record.get("special_words", {}))
    sources = open_all([source["spec"] for source in record["sources"]], texts, words, say=say)
    for source, saved in zip(sources, record["sources"], strict=True):
        if source.fingerprint != saved["fingerprint"]:
            raise ValueError(
                f"{spec}: its source {source.spec} has changed since the state was learned; put the model or the text back"
            )
        check_same_words(f"the source {source.spec}", source.vocabulary, spec, words)
    name = f"{personal_name(sources)}, {folder.resolve().name}"
    return load_personal(inner, [source.source for source in sources]), name, words


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
    summary: dict[str, Any] = {"num_tokens": totals.num_tokens, "num_unknown": totals.num_unknown}
    for key, name in zip(("a", "b"), names, strict=True):
        found = rounded([totals.perplexity(name), totals.known_perplexity(name), totals.mean_prob(name)])
        summary[key] = {"name": name, **dict(zip(("perplexity", "known_perplexity", "mean_prob"), found, strict=True))}
    return summary | {"mean_log_likelihood_ratio": rounded([totals.mean_ratio(*names)])[0]}
