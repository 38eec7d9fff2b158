"""The report as one HTML page: no scripts, no other files, light and dark."""

from __future__ import annotations

import math
from pathlib import PurePath

import numpy as np

from pplseq.report.drawing import MAX_MAP_GROUPS, curve_figure, histogram_figure, map_figure, topics_figure
from pplseq.report.markup import escape, figure, folded, number, page, percent, swatch, table, token, word, words
from pplseq.report.run import measures_table, written
from pplseq.report.strip import sentence_strip, strip_caption
from pplseq.report.summary import Report, Topics


def render_page(report: Report) -> str:
    """The page of a report."""
    blocks = report.groups.kind == "block"
    sections = [
        ("The run", _run(report)),
        *_test(report),
        ("Learning", _learning(report)),
        ("Sentences", _sentences(report)),
        *([] if report.topics is None else [("Topics", _topics(report.topics))]),
        ("States", _states(report)),
        (
            "Blocks" if blocks else "Transitions between states",
            _transitions(report) + (_blocks(report) if blocks else ""),
        ),
    ]
    if report.costs is not None:
        sections.append(("Perplexity of tokens", _costs(report)))
    sections.append(("Settings", _settings(report)))
    footer = "Posteriors, entropies and the perplexities of this checkpoint are exact. Written by <code>pplseq report</code>"
    return page(report_title(report), _head(report), sections, footer)


def report_title(report: Report) -> str:
    """Model and data, a path by its last part."""
    data = str(report.settings.get("data") or "")
    name = PurePath(data).name if "/" in data and not data.startswith("hf:") else data
    return f"{report.model_name} on {name}" if name else report.model_name


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _group_name(report: Report, group: int) -> str:
    name = token(report.group_summaries[group].name, 16)
    return name if report.groups.kind == "block" else f"{report.groups.ids[group]}&nbsp;<small>{name}</small>"


def _following(report: Report, following: list[tuple[int, float]]) -> str:
    return " ".join(f"{_group_name(report, g)}&nbsp;<small>{percent(p)}</small>" for g, p in following) or "–"


def _head(report: Report) -> str:
    groups, learning = report.groups, report.learning
    lead = f"A hidden Markov model with {report.num_states:,} states"
    lead += f" in {len(groups):,} blocks" if groups.kind == "block" else ""
    lead += f", over {report.num_words:,} words"
    if learning is not None:
        lead += f"; {learning.steps:,} steps"
        lead += f", {_duration(learning.seconds)} of training" if learning.seconds is not None else ""
    keys = []
    for curve in () if learning is None else learning.validation:
        protocol = "" if curve.label == "validation" else f", {escape(curve.label)}"
        keys.append((number(curve.perplexity[curve.best]), f"best validation perplexity{protocol}"))
    if not keys:
        keys = [(number(score.perplexity), f"perplexity, {score.protocol}") for score in report.scores]
    keys.append((f"{report.usage.effective_states:,.0f}", f"effective states, of {report.num_states:,}"))
    keys.append((f"{float(report.usage.entropy.mean()) / math.log(2):.2f}", "bits, mean entropy of a token’s state"))
    facts = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for value, label in keys)
    notes = "".join(f'<p class="notice">{escape(note)}</p>' for note in report.notes)
    title = escape(report_title(report))
    return f'<h1>{title}</h1><p class="lead">{lead}.</p>{notes}<dl class="keys">{facts}</dl>'


def _run(report: Report) -> str:
    settings, learning = report.settings, report.learning
    rows = [("Model", _model_line(report)), ("Parameters", f"{report.num_weights:,}")]
    if settings.get("data"):
        rows.append(("Trained on", f"{escape(settings['data'])}; {report.num_words:,} words in the vocabulary"))
    if learning is not None:
        parts = [f"{learning.steps:,} steps"]
        parts += [f"epoch {learning.epochs:,}"] if learning.epochs is not None else []
        parts += [_duration(learning.seconds)] if learning.seconds is not None else []
        if learning.tokens_per_second is not None:
            parts.append(f"{learning.tokens_per_second:,.0f} tokens a second (median)")
        rows.append(("Training", ", ".join(parts)))
    measured = (
        f"{report.num_tokens:,} tokens of {escape(report.text_name)}, {report.num_unknown:,} of them unknown words"
    )
    if report.written:
        measured = f"{report.num_tokens:,} tokens that the model wrote itself"
    rows.append(("Measured on", measured))
    parts = [table((), [(f"<b>{name}</b>", value) for name, value in rows], "kl")]
    scores = []
    for curve in () if learning is None else learning.validation:
        for label, at in (("recorded, best", curve.best), ("recorded, last", len(curve.steps) - 1)):
            scores.append((f"validation, {label}", curve.label, f"{curve.steps[at]:,}", float(curve.nats[at])))
    scores += [(report.text_name, score.protocol, "this checkpoint", score.nats_per_token) for score in report.scores]
    if not scores:
        return parts[0] + '<p class="facts">No perplexity is known of this run.</p>'
    cells = [
        (escape(label), escape(protocol), step, f"{math.exp(nats):,.2f}", f"{nats:.4f}", f"{nats / math.log(2):.4f}")
        for label, protocol, step, nats in scores
    ]
    caption = (
        "<b>Perplexity.</b> <i>Carried</i>: the filtered belief runs on from segment to segment. <i>Sentence</i>: every "
        "line starts from the start distribution. Every token counts once, ends of lines and unknown words included."
    )
    if report.text_is_cut and report.scores:
        caption += f" {escape(report.text_name)}: its first {report.num_tokens:,} tokens, in whole lines."
    head = ("Text", "Protocol", "Step", "Perplexity", "Nats per token", "Bits per token")
    parts.append(table(head, cells, "llrrrr", caption))
    return "".join(parts)


def _model_line(report: Report) -> str:
    config, parts = report.model_config, [f"<code>{escape(report.model_name)}</code>, {report.num_states:,} states"]
    if report.groups.kind == "block":
        sizes = np.bincount(report.groups.of_state)
        each = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
        parts.append(f"{len(report.groups):,} blocks of {each}")
    for key, text in (
        ("parameterization", "{} tables"),
        ("hidden_size", "width {}"),
        ("state_dropout", "state dropout {}"),
    ):
        if config.get(key) not in (None, 0, 0.0):
            parts.append(text.format(escape(config[key])))
    if config.get("reset_id") is not None:
        parts.append("fresh start after every line")
    return ", ".join(parts)


def _test(report: Report) -> list[tuple[str, str]]:
    """Test scores beside those of a rival, and sentences that the model writes."""
    view = report.view
    if view is None:
        return []
    parts = [("Scores", measures_table(view))] if view.measures else []
    return [*parts, ("Sentences that it writes", written(view.sentences))] if view.sentences else parts


def _learning(report: Report) -> str:
    learning = report.learning
    if learning is None:
        return '<p class="facts">No course of training was recorded: there is no metrics.jsonl with losses in it.</p>'
    caption = "<b>Perplexity against steps,</b> logarithmic."
    if learning.train is not None:
        caption += " Training perplexity is that of the steps since the record before"
        caption += ", with state dropout." if report.model_config.get("state_dropout") else "."
    if learning.rate_drops:
        some = ", ".join(f"{step:,}" for step in learning.rate_drops[:12])
        more = ", ..." if len(learning.rate_drops) > 12 else ""
        caption += f" Triangles on the axis: the learning rate was lowered, at steps {some}{more}."
    if not learning.validation:
        caption += " No validation was recorded."
    return figure(curve_figure(learning), caption)


def _sentences(report: Report) -> str:
    if not report.sentences:
        return '<p class="facts">The text has no line to show; give one with --sentence.</p>'
    chosen = " Typical lines of the text: their perplexity is nearest to its own." if report.chosen else ""
    strips = "".join(sentence_strip(report.groups, sentence) for sentence in report.sentences)
    return f'<p class="caption">{strip_caption(report.groups)}{chosen}</p>{strips}'


def _states(report: Report) -> str:
    rows, largest = [], max((state.share for state in report.states), default=1.0)
    for state in report.states:
        contexts = "".join(
            f'<div class="context">{word(before)} <b>{word(at)}</b> {word(behind)}&nbsp;<small>{percent(p)}</small></div>'
            for before, at, behind, p in state.contexts
        )
        bar = f'<span class="share" style="width:{1.6 * state.share / largest:.2f}rem"></span>'
        rows.append(
            (
                swatch(report.groups, state.id) + str(state.id),
                bar + percent(state.share),
                words(state.words, 6),
                contexts,
                _following(report, state.following),
            )
        )
    blocks = report.groups.kind == "block"
    caption = (
        f"<b>The most used states</b>{' (at most three of a block)' if blocks else ''}: expected share of the tokens, given "
        "all words; most probable words, p(word | state); where the text most surely uses the state, p(state | text); where "
        f"it goes next{', blocks by their most frequent word' if blocks else ''}."
    )
    head = ("State", "Use", "Words", "In the text", "Next block" if blocks else "Next state")
    return table(head, rows, "kklll", caption, name="states")


def _topics(topics: Topics) -> str:
    order = np.argsort(-topics.shares, kind="stable")
    names = [", ".join(topics.words[c][:3]) for c in order]
    titles = [f"{percent(float(topics.shares[c]))} of the words: {', '.join(topics.words[c])}" for c in order]
    drawn = topics_figure(topics.probs[:, order], topics.sizes, names, titles)
    caption = (
        "<b>Topics along the text:</b> p(topic of a sentence), given all words of the text. At the right, each one’s share of "
        f"the words. Behind a sentence a topic is kept with probability {topics.kept:.4f}."
    )
    rows = [(percent(float(topics.shares[c])), " ".join(token(text) for text in topics.words[c])) for c in order]
    lifted = "<b>The words that each topic lifts most</b> over what topics do on the whole, by nats."
    return figure(drawn, caption) + table(("Use", "Words"), rows, "rl", lifted)


def _transitions(report: Report) -> str:
    summaries, blocks = report.group_summaries, report.groups.kind == "block"
    shares = np.array([group.share for group in summaries])
    shown = np.sort(np.argsort(-shares, kind="stable")[:MAX_MAP_GROUPS])
    names = [summaries[g].name if blocks else f"{summaries[g].id} {summaries[g].name}" for g in shown]

    def drawing(probs: np.ndarray, caption: str) -> str:
        """The map, and its rows in numbers."""
        best = [np.argsort(-probs[g], kind="stable")[:6] for g in shown]
        shares_of = [[(summaries[j].name, float(probs[g, j])) for j in row] for g, row in zip(shown, best, strict=True)]
        into = [[(name, share) for name, share in row if share > 0] for row in shares_of]
        titles = [
            f"{summaries[g].name} ({percent(float(shares[g]))} of the tokens) → "
            f"{', '.join(f'{name} {percent(p)}' for name, p in row) or 'nowhere'}"
            for g, row in zip(shown, into, strict=True)
        ]
        drawn = map_figure(probs[np.ix_(shown, shown)], names, shares[shown].tolist(), titles)
        rows = [
            (word(name), percent(share), words(row) or "–")
            for name, share, row in zip(names, shares[shown].tolist(), into, strict=True)
        ]
        return figure(drawn, caption) + folded("The map’s rows in numbers", table(("From", "Use", "To"), rows, "lrl"))

    kind = "blocks" if blocks else "states"
    some = len(shown) < (len(summaries) if blocks else report.num_states)
    caption = (
        f"<b>Transitions between {kind},</b> "
        f"{'in the order of their tree, each named by its most frequent word' if blocks else 'by use'}: p(to | from) of the "
        "model, averaged over the states that the text is expected to be in, given all its words."
        f"{f' The {len(shown)} {kind} used most.' if some else ''} At the right, each row’s share of the text."
    )
    parts = [drawing(report.transitions.probs, caption)]
    if report.transitions.text is not None:
        found = drawing(
            report.transitions.text_probs,
            "<b>Pairs of blocks in the text itself.</b> A word opens one block, so these are counts, not posteriors.",
        )
        parts.append(folded("The text’s own pairs of blocks, to compare", found))
    rows = [
        (_group_name(report, i), _group_name(report, j), percent(p), f"{lift:,.1f}")
        for i, j, p, lift in report.informative
    ]
    if rows:
        half = -(-len(rows) // 2)
        pairs = [(*a, "", *b) for a, b in zip(rows[:half], [*rows[half:], ("",) * 4], strict=False)]
        informative = (
            f"<b>The most informative transitions:</b> the largest terms of the mutual information of neighbouring {kind}. "
            "Lift is p(to | from) / p(to)."
        )
        head = ("From", "To", "p", "Lift")
        parts.append(table((*head, "", *head), pairs, "llrrlllrr", informative))
    return "".join(parts)


def _blocks(report: Report) -> str:
    rows = []
    for place, group in sorted(enumerate(report.group_summaries), key=lambda item: -item[1].share):
        states = np.flatnonzero(report.groups.of_state == place)
        rows.append(
            (
                swatch(report.groups, int(states[len(states) // 2])) + str(group.id),
                percent(group.share),
                f"{group.num_words:,}",
                f"{group.effective_states:.1f}" if group.share > 0 else "–",
                words(group.words, 8),
                _following(report, group.following),
            )
        )
    caption = (
        "<b>Blocks</b> by share of the text: their number of words; how many of their states are in effective use (exp of the "
        "entropy of their shares); their most frequent words, with shares of the block; where they go next."
    )
    head, columns = ("Block", "Use", "Words", "States", "Most frequent", "Next block"), "krrrll"
    parts = [table(head, rows[:24], columns, caption, name="blocks")]
    if len(rows) > 24:
        parts.append(folded(f"The other {len(rows) - 24} blocks", table(head, rows[24:], columns, name="blocks")))
    return "".join(parts)


def _costs(report: Report) -> str:
    costs, protocol = report.costs, report.scores[0].protocol
    assert costs is not None, "it is drawn of reports that have costs"
    caption = f"<b>Tokens by surprisal</b> −log₂ p(word | words before), {escape(protocol)} protocol."
    parts = [figure(histogram_figure(costs.bits), caption)]
    head = ("Tokens", "Count", "Share", "Perplexity", "Nats per token", "Share of nats")
    for kind, caption in (
        (costs.kinds, "<b>By frequency of the word</b> in training. Perplexity is exp of the nats per token."),
        (costs.words, "<b>The words that cost most</b> in all."),
    ):
        rows = [
            (
                token(cost.name) if kind is costs.words else word(cost.name),
                f"{cost.count:,}",
                percent(cost.share),
                number(cost.perplexity),
                f"{cost.nats:.3f}",
                percent(cost.share_of_nats),
            )
            for cost in kind
        ]
        parts.append(table(head, rows, "lrrrrr", caption))
    return "".join(parts)


def _settings(report: Report) -> str:
    parts = []
    for what, settings in (("run", report.settings), ("model", report.model_config)):
        rows = [(f"<code>{escape(key)}</code>", escape(value)) for key, value in settings.items()]
        if rows:
            parts.append(folded(f"All {len(rows)} of the {what}", table((), rows, "kl")))
    return "".join(parts)
