"""The posterior strip: a column a token, in lines as wide as the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pplseq.report.blocks import Groups
from pplseq.report.markup import escape, folded, number, percent, state_colour, table, wide, word, words
from pplseq.report.sentence import SentencePosterior, TokenPosterior

HOT_BITS = 12.0  # surprisal at which a word is fully coloured
LINE_WIDTH = 720.0  # pixels for columns beside the row labels
LONGEST_WORD = 18

ROW_LABELS = (
    '<div class="labels"><div class="word">word</div><div class="value">surprisal, bits</div><div class="stack"></div>'
    '<div class="value">1st state</div><div class="value">2nd state</div><div class="value">entropy, bits</div></div>'
)


def strip_caption(groups: Groups) -> str:
    """How to read a strip."""
    colours = "a colour a state"
    if groups.kind == "block":
        colours = "hue is the block (neighbours in the tree of blocks look alike), lightness the state in it"
    return (
        "<b>Posterior of every token.</b> The word, coloured by its surprisal −log₂ p(word | words before). The column is "
        f"p(state | all words): a segment a state, the most probable at the bottom; {colours}. Below, the two most probable "
        "states, the one on the most probable path underlined, and the entropy of p(state | all words)."
    )


def sentence_strip(groups: Groups, sentence: SentencePosterior) -> str:
    """The strip of a sentence, its totals, and the same as a table to unfold."""
    lines = "".join(
        wide(f'<div class="strip">{ROW_LABELS}{"".join(_column(groups, token) for token in line)}</div>')
        for line in _lines(sentence.tokens)
    )
    log_prob = f"{sentence.log_prob:.2f}".replace("-", "−")
    facts = f"Perplexity {number(sentence.perplexity)}; log p = {log_prob} nats over {len(sentence.tokens)} tokens"
    if sentence.path_entropy is not None:
        facts += f"; entropy of the state path {sentence.path_entropy / math.log(2):.2f} bits"
    return f'{lines}<p class="facts">{facts}.</p>{folded("The same in numbers", _numbers(sentence))}'


def _lines(tokens: Sequence[TokenPosterior]) -> Iterator[list[TokenPosterior]]:
    """Tokens in lines, by a guess at the width of their columns."""
    line: list[TokenPosterior] = []
    room = LINE_WIDTH
    for token in tokens:
        width = max(61.0, 8.6 * min(len(token.word), LONGEST_WORD) + 16)
        if line and width > room:
            yield line
            line, room = [], LINE_WIDTH
        line.append(token)
        room -= width
    yield line


def _column(groups: Groups, token: TokenPosterior) -> str:
    segments = "".join(
        f'<i class="state" style="height:{prob:.1%};{state_colour(groups, state)}"></i>' for state, prob in token.states
    )
    states = []
    for rank in range(2):
        text = "&nbsp;"  # there may be no second state, or none worth its place
        if rank < len(token.states) and token.states[rank][1] >= 0.0005:
            state, prob = token.states[rank]
            text = f"<u>{state}</u>" if state == token.path_state else str(state)
            text += f" <small>{percent(prob)}</small>"
        states.append(f'<div class="value ink">{text}</div>')
    expected = ", ".join(f"{text} {percent(prob)}" for text, prob in token.expected)
    tip = f"{token.word}{'' if token.known else ' (unknown to the model)'}; expected here: {expected}"
    return (
        f'<div title="{escape(tip)}"><div class="word{"" if token.known else " unknown"}" '
        f'style="--s:{min(token.bits / HOT_BITS, 1.0):.2f}">{word(token.word, LONGEST_WORD)}</div>'
        f'<div class="value">{token.bits:.1f}</div><div class="stack">{segments}</div>{"".join(states)}'
        f'<div class="value">{token.entropy / math.log(2):.1f}</div></div>'
    )


def _numbers(sentence: SentencePosterior) -> str:
    rows = []
    for token in sentence.tokens:
        states = " ".join(f"{state}&nbsp;<small>{percent(prob)}</small>" for state, prob in token.states)
        rows.append(
            (
                word(token.word) + ("" if token.known else " <small>unknown</small>"),
                f"{token.surprisal:.3f}",
                f"{token.bits:.3f}",
                number(token.perplexity),
                words(token.expected),
                states,
                str(token.path_state),
                f"{token.entropy:.3f}",
            )
        )
    head = ("Word", "Nats", "Bits", "Perplexity", "Expected here", "States", "On path", "Entropy, nats")
    return table(head, rows, "lrrrllrr")
