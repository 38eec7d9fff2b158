"""Words of a stream coloured by what two models make of them: log-likelihood ratios and log-odds of perturbation states.

The page of `pplseq personalize` and `pplseq compare-streams`. It takes plain arrays, so that any two models can be shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pplseq.report.drawing import curve_figure
from pplseq.report.learning import Curve, Learning
from pplseq.report.markup import escape, figure, folded, number, page, table, token, word

MAX_ROWS = 5000  # of the folded table of numbers
LISTED_WORDS = 10
LEAST_LINES = 4  # that a curve is drawn of
LONGEST_WORD = 24
PERSONAL_STYLE = """
:root { --cold: 29 90 122 } @media (prefers-color-scheme: dark) { :root { --cold: 96 176 214 } }
.stream { line-height: 1.2; margin: .5rem 0 .9rem; max-width: none; hyphens: none }
.stream .n { color: var(--muted); font-size: .78rem; margin-inline-end: .5rem }
.stream > span[title] { display: inline-block; margin: 0 .1rem .3rem; padding: .1rem .26rem .12rem; border-radius: 3px;
  text-align: center; background: rgb(var(--c, 128 128 128) / calc(var(--wash) * var(--s, 0)));
  border-bottom: 2px solid rgb(var(--c, 128 128 128) / var(--s, 0)); print-color-adjust: exact;
  -webkit-print-color-adjust: exact }
.stream small { display: block; color: var(--ink); font: .66rem/1.25 system-ui, "Helvetica Neue", Arial,
  sans-serif }
.up { --c: var(--cold) } .down { --c: var(--hot) }
.scale { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem; color: var(--muted);
  font: .78rem system-ui, Arial, sans-serif }
.scale i { width: 11rem; max-width: 45vw; height: .7rem; border-radius: 3px; background: linear-gradient(90deg,
  rgb(var(--hot) / var(--wash)), transparent, rgb(var(--cold) / var(--wash))) }
"""


@dataclass
class StreamTotals:
    """Running sums over all tokens of a stream; what a page says of a stream too long to show.

    Attributes:
        num_tokens: T.
        nats: model -> sum_t -log p(y_t | y_1..y_{t-1}).
        probs: model -> sum_t p(y_t | y_1..y_{t-1}).
        num_unknown: of the tokens, those read as the unknown word. known_nats: as nats, of the others.
    """

    num_tokens: int = 0
    nats: dict[str, float] = field(default_factory=dict)
    probs: dict[str, float] = field(default_factory=dict)
    num_unknown: int = 0
    known_nats: dict[str, float] = field(default_factory=dict)

    def add(self, log_probs: Mapping[str, Sequence[float]], known: Sequence[bool] | None = None) -> None:
        """Take in further tokens: model -> (T,) nats, the same T and models every time; known: (T,), all by default."""
        lengths = {len(values) for values in log_probs.values()}
        if len(lengths) != 1 or self.nats and self.nats.keys() != log_probs.keys():
            raise ValueError(
                f"log_probs: expected as many values of each of {', '.join(self.nats or log_probs) or 'the models'}, got "
                f"{ {name: len(values) for name, values in log_probs.items()} }"
            )
        length = lengths.pop()
        self.num_tokens += length
        kept = np.ones(length, dtype=bool) if known is None else np.asarray(known, dtype=bool)
        self.num_unknown += int((~kept).sum())
        for name, values in log_probs.items():
            values = np.asarray(values, float)
            self.nats[name] = self.nats.get(name, 0.0) - float(values.sum())
            self.known_nats[name] = self.known_nats.get(name, 0.0) - float(values[kept].sum())
            self.probs[name] = self.probs.get(name, 0.0) + float(np.exp(values).sum())

    def perplexity(self, name: str) -> float:
        """exp of a model's nats per token; infinite where it excluded a token."""
        nats = self.nats[name] / self.num_tokens
        return math.exp(nats) if nats < 700 else math.inf

    def known_perplexity(self, name: str) -> float:
        """Perplexity without the unknown word, easier than the words it stands for; nan where there is nothing else."""
        if self.num_tokens == self.num_unknown:
            return math.nan
        nats = self.known_nats[name] / (self.num_tokens - self.num_unknown)
        return math.exp(nats) if nats < 700 else math.inf

    def mean_prob(self, name: str) -> float:
        """Mean predictive probability of a model."""
        return self.probs[name] / self.num_tokens

    def mean_ratio(self, first: str, second: str) -> float:
        """Mean log-likelihood ratio of two models, nats a token; nan where both excluded a token."""
        return (self.nats[second] - self.nats[first]) / self.num_tokens


@dataclass(frozen=True, eq=False)
class StreamView:
    """Tokens of a stream to show, with what the models made of them.

    Args:
        words: (T,).
        log_probs: model -> (T,) log p(y_t | y_1..y_{t-1}), nats; one model, or two to compare (first against second).
        log_odds: (T,) log p_t / (1 - p_t), where p_t = p(state is a perturbation | y_1..y_t), nats; None without such.
        line_starts: (L,) first token of every line, from 0; None for one line.
        line_numbers: (L,) of the lines in the stream, from 1.
        known: (T,) False for words that the models read as their unknown word.
        totals: of the whole stream where it is longer than what is shown; None to sum up the tokens shown.

    Raises:
        ValueError: nothing to show, or arrays of different lengths.

    Source: Wojnowicz and Zhao, PROPS (2018), figures 3 to 5.
    """

    words: Sequence[str]
    log_probs: Mapping[str, Sequence[float]]
    log_odds: Sequence[float] | None = None
    line_starts: Sequence[int] | None = None
    line_numbers: Sequence[int] | None = None
    known: Sequence[bool] | None = None
    totals: StreamTotals | None = None

    def __post_init__(self) -> None:
        count = len(self.words)
        if count == 0:
            raise ValueError("words: there is no token to show; the stream was empty")
        if len(self.log_probs) not in (1, 2):
            raise ValueError(f"log_probs: expected one model, or two to compare, got {len(self.log_probs)}")
        given = {f"log_probs[{name!r}]": values for name, values in self.log_probs.items()}
        for name, values in (given | {"log_odds": self.log_odds, "known": self.known}).items():
            if values is not None and len(values) != count:
                raise ValueError(f"{name}: expected a value for each of the {count} words, got {len(values)}")
        if self.line_starts is not None:
            starts = list(self.line_starts)
            if (
                starts[:1] != [0]
                or any(b <= a for a, b in zip(starts, starts[1:], strict=False))
                or starts[-1] >= count
            ):
                raise ValueError(f"line_starts: expected rising places from 0 to {count - 1}, got {starts[:10]}")
            if self.line_numbers is not None and len(self.line_numbers) != len(starts):
                raise ValueError(f"line_numbers: expected {len(starts)}, one a line, got {len(self.line_numbers)}")

    @property
    def ratios(self) -> np.ndarray | None:
        """(T,) log-likelihood ratios, first model against second, nats; nan where both exclude a word. None of one model."""
        if len(self.log_probs) < 2:
            return None
        first, second = (np.asarray(values, float) for values in self.log_probs.values())
        with np.errstate(invalid="ignore"):
            return first - second

    @property
    def summed(self) -> StreamTotals:
        """Totals of the stream, or of what is shown of it."""
        if self.totals is not None:
            return self.totals
        totals = StreamTotals()
        totals.add(self.log_probs)
        return totals

    def place(self, count: int | None = None) -> str:
        """Which words of the stream the first `count` shown ones are (default: all that are shown)."""
        count = len(self.words) if count is None else min(count, len(self.words))
        total = self.summed.num_tokens
        first = total - len(self.words) + 1
        if count == total:
            return f"all {total:,} words"
        named = f"words {first:,} to {first + count - 1:,} of {total:,}"
        if self.line_numbers is None:
            return named
        numbers = [number for number, places in self.lines() if places.start < count]
        return f"{named}, " + (f"line {numbers[0]}" if len(numbers) == 1 else f"lines {numbers[0]} to {numbers[-1]}")

    def lines(self) -> Iterator[tuple[int | None, range]]:
        """(number of the line or None, places of its tokens)."""
        starts = [0] if self.line_starts is None else [int(start) for start in self.line_starts]
        numbers = [None] * len(starts) if self.line_numbers is None else self.line_numbers
        for line, start, stop in zip(numbers, starts, [*starts[1:], len(self.words)], strict=True):
            yield line, range(start, stop)


def colour_scale(values: Sequence[float] | np.ndarray) -> float:
    """The size at which a word is fully coloured: a round number that 5 % of the sizes exceed, at least 1 nat."""
    sizes = np.abs(np.asarray(values, float))
    sizes = sizes[np.isfinite(sizes)]
    rough = max(float(np.quantile(sizes, 0.95)), 1.0) if len(sizes) else 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 3, 4, 5, 7, 10) if power * factor >= rough * 0.999)


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, the true minus; ± infinity; a dash for nan."""
    if math.isnan(value):
        return "–"
    sign = "−" if value < 0 else "+"
    if math.isinf(value):
        return f"{sign}∞"
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else sign + text


def render_personal_page(view: StreamView, *, title: str, notes: Sequence[str] = (), command: str = "") -> str:
    """The page: totals, words coloured by ratio and by log-odds, the words that gain and lose most, all numbers.

    It needs no other file and runs no script.

    Args:
        view: what to show. title: of the page.
        notes: paragraphs above the words. command: the `pplseq` command that the footer names.
    """
    names, ratios = list(view.log_probs), view.ratios
    sections = []
    if ratios is not None:
        a, b = map(escape, names)
        caption = (
            f"<b>Log-likelihood ratio</b> log p(word | words before) under {a}, less the same under {b}, in nats. Blue: "
            f"{a} expected the word more; orange: {b} did."
        )
        sections.append(("Which model expected each word", _words(view, ratios, caption)))
    if view.log_odds is not None:
        caption = (
            "<b>Log-odds of the perturbation states</b>: log p / (1 − p), p the probability, given all words up to this one, "
            "that it came from the personal part of the model and not from a source. Blue: personal; orange: a source."
        )
        sections.append(("Personal or general", _words(view, np.asarray(view.log_odds, float), caption)))
    if ratios is None and view.log_odds is None:
        surprise = -np.asarray(view.log_probs[names[0]], float)
        caption = "<b>Surprise</b> −log p(word | words before), in nats, above (blue) and below (orange) its mean."
        mean = float(surprise[np.isfinite(surprise)].mean()) if np.isfinite(surprise).any() else 0.0
        sections.append(("Surprise", _words(view, surprise - mean, caption, surprise)))
    course = _course(view)
    if course:
        sections.insert(0, ("Perplexity line by line", course))
    shown = ratios if ratios is not None else view.log_odds
    if shown is not None:
        sections.append(("Words", _extremes(view, np.asarray(shown, float))))
    sections.append(("Numbers", _numbers(view)))
    paragraphs = "".join(f'<p class="notice">{escape(note)}</p>' for note in notes)
    by = f" by <code>{escape(command)}</code>" if command else ""
    head = f"<h1>{escape(title)}</h1>{_lead(view)}{paragraphs}{_keys(view)}"
    return page(title, head, sections, f"Written{by}", PERSONAL_STYLE)


def _lead(view: StreamView) -> str:
    count = view.summed.num_tokens
    lead = f"{count:,} tokens" + (f"; shown are {view.place()}" if count > len(view.words) else "")
    if view.known is not None and not all(view.known):
        lead += "; words unknown to the models are dotted"
    return f'<p class="lead">{lead}.</p>'


def _keys(view: StreamView) -> str:
    totals, names = view.summed, list(view.log_probs)
    keys = [(number(totals.perplexity(name)), f"perplexity, {escape(name)}") for name in names]
    keys += [(f"{totals.mean_prob(name):.2g}", f"mean probability, {escape(name)}") for name in names]
    if len(names) == 2:
        keys.append((signed(totals.mean_ratio(*names), 3), "mean log-likelihood ratio, nats a token"))
    facts = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for value, label in keys)
    return f'<dl class="keys">{facts}</dl>'


def _words(view: StreamView, values: np.ndarray, caption: str, labels: np.ndarray | None = None) -> str:
    """The text, a line of the stream a paragraph, every word coloured by its value and labelled with it."""
    scale = colour_scale(values)
    legend = f'<div class="scale"><span>{signed(-scale, 0)}</span><i></i><span>{signed(scale, 0)} nats and beyond</span></div>'
    parts = [f'<p class="caption">{caption}</p>{legend}']
    for line, places in view.lines():
        count = "" if line is None else f'<span class="n">{line}</span>'
        parts.append(
            f'<p class="stream" dir="auto">{count}{"".join(_word(view, t, values, labels, scale) for t in places)}</p>'
        )
    return "".join(parts)


def _word(view: StreamView, t: int, values: np.ndarray, labels: np.ndarray | None, scale: float) -> str:
    value = float(values[t])
    kind = "" if math.isnan(value) else "up" if value > 0 else "down"
    names = " ".join(name for name in (kind, "" if view.known is None or view.known[t] else "unknown") if name)
    strength = 0.0 if math.isnan(value) else min(abs(value) / scale, 1.0)
    said = [f"{name}: p = {math.exp(float(log_probs[t])):.3g}" for name, log_probs in view.log_probs.items()]
    if view.log_odds is not None:
        said.append(f"log-odds of the perturbation states {signed(float(view.log_odds[t]), 2)}")
    label = signed(value) if labels is None else f"{labels[t]:.1f}"
    return (
        f'<span class="{names}" style="--s:{strength:.2f}" title="{escape("; ".join(said))}">'
        f"{word(view.words[t], LONGEST_WORD)}<small>{label}</small></span>"
    )


def _course(view: StreamView) -> str:
    """Perplexity of the words up to the end of each line, of each model; nothing of a few lines."""
    ends = np.array([places.stop for _, places in view.lines()])
    if len(ends) < LEAST_LINES:
        return ""
    curves = []
    for name, log_probs in view.log_probs.items():
        nats = -np.cumsum(np.asarray(log_probs, float))[ends - 1] / ends
        told = nats < 700  # beyond, as where a word was impossible, perplexity is no number
        if told.any():
            curves.append(Curve(name[:14], np.arange(1, len(ends) + 1)[told], nats[told]))
    if not curves:
        return ""
    drawn = curve_figure(Learning(None, tuple(curves), (), len(ends), None, None, None), along="line")
    return figure(drawn, f"<b>Perplexity of {view.place()}</b> up to the end of each line, logarithmic.")


def _extremes(view: StreamView, values: np.ndarray) -> str:
    """The words whose values sum to most and to least."""
    sums: dict[str, list[float]] = {}
    for text, value in zip(view.words, values.tolist(), strict=True):
        if math.isfinite(value):
            sums.setdefault(text, []).append(value)
    ranked = sorted(sums.items(), key=lambda item: -sum(item[1]))
    gain = [item for item in ranked if sum(item[1]) > 0][:LISTED_WORDS]
    loss = [item for item in reversed(ranked) if sum(item[1]) < 0][:LISTED_WORDS]
    what = "log-likelihood ratio" if view.ratios is not None else "log-odds of the perturbation states"
    parts = []
    for chosen, name in ((gain, "above"), (loss, "below")):
        rows = [
            (token(text), f"{len(found):,}", signed(sum(found), 2), signed(sum(found) / len(found), 2))
            for text, found in chosen
        ]
        caption = f"<b>Words furthest {name} zero</b> by the sum of their {what}, nats."
        if rows:
            parts.append(table(("Word", "Count", "Sum", "Mean"), rows, "lrrr", caption))
    return "".join(parts) or "<p>No word has a finite value.</p>"


def _numbers(view: StreamView) -> str:
    names, ratios = list(view.log_probs), view.ratios
    head = ["Word", *(f"log p, {escape(name)}" for name in names)]
    head += ["Ratio"] * (ratios is not None) + ["Log-odds"] * (view.log_odds is not None)
    count = min(len(view.words), MAX_ROWS)
    rows = []
    for t in range(count):
        row = [word(view.words[t]), *(signed(float(view.log_probs[name][t]), 3) for name in names)]
        row += [signed(float(ratios[t]), 3)] if ratios is not None else []
        row += [signed(float(view.log_odds[t]), 3)] if view.log_odds is not None else []
        rows.append(row)
    summary = "Every token shown" if count == len(view.words) else f"The first {count:,} tokens"
    return folded(f"{summary}, in nats", table(head, rows, "l" + "r" * (len(head) - 1)))
