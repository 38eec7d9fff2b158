"""Automata out of Graphviz's language."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pplseq import checks

_WORD = r'(?:"(?:[^"\\]|\\[\s\S])*"|[\w.+-]+)'
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/|^\s*\#[^\n]*', re.S | re.M)
_STATEMENT = re.compile(rf"\s*({_WORD})\s*(?:->\s*({_WORD})\s*)?(?:\[((?:[^\]\"]|\"(?:[^\"\\]|\\[\s\S])*\")*)\])?\s*(?:;|\n|$)")
_SETTING = re.compile(rf"\s*\w+\s*=\s*{_WORD}\s*(?:;|\n|$)")
_ATTRIBUTE = re.compile(rf"({_WORD})\s*=\s*({_WORD})")
NO_CIRCLE = ("none", "point", "plaintext", "plain")
MOVES = ",", "\\n", "\\l", "\\r"  # between moves of one arrow: a comma, or another line


def written(names: Sequence[str], between: str = ", ") -> str:
    """A quoted label of names, in which a backslash stands before what would part them, and before spaces at their ends."""
    return '"' + between.join(re.sub(r'\A\s|\s\Z|[\\",/]', r"\\\g<0>", name) for name in names) + '"'


def _parts(label: str, *marks: str) -> list[str]:
    """What stands between marks that have no backslash, of a label as it is written."""
    parts = [""]
    for piece in re.findall(r"\\.|.", label, re.S):
        if piece in marks:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _name(part: str) -> str:
    """A part of a label, without spaces around it and without backslashes."""
    found = re.fullmatch(r"\s*((?:\\.|[^\\])*?)\s*", part, re.S)
    return re.sub(r"\\(.)", r"\1", part if found is None else found[1], flags=re.S)


def read_dot(text: str, labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """Symbols, transitions, outputs, start and labels of :meth:`~pplseq.models.automata.automaton.Automaton.from_dot`, which
    says what is read and raised."""
    nodes, starts, arrows, first = _graph(text)
    return _automaton(nodes, starts, arrows, first, tuple(labels))


def machine_of_dot(text: str) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, tuple[str, ...], int]:
    """Symbols, transitions, outputs, labels and start of :meth:`~pplseq.models.automata.mealy.MealyMachine.from_dot`."""
    nodes, starts, arrows, first = _graph(text)
    names = [name for name in nodes if name not in starts]
    moves: dict[tuple[str, str], tuple[str, str]] = {}
    for source, target, label in arrows:
        for part in _parts(label or "", *MOVES):
            found = [*map(_name, _parts(part, "/"))]
            if len(found) != 2 or not all(found):
                raise ValueError(
                    f"text: expected input/output on the arrow from {source!r} to {target!r}, got {checks.shown(label)}; "
                    "a slash or a comma of a name has a backslash before it"
                )
            symbol, output = found
            if moves.setdefault((source, symbol), (target, output)) != (target, output):
                raise ValueError(f"text: state {source!r} has two moves with {symbol!r}; make the machine deterministic")
    symbols, labels = sorted({symbol for _, symbol in moves}), sorted({output for _, output in moves.values()})
    for name in names:
        for symbol in symbols:
            if (name, symbol) not in moves:
                raise ValueError(f"text: state {name!r} has no move with {symbol!r}; draw all moves")
    table = np.array([[names.index(moves[name, symbol][0]) for symbol in symbols] for name in names])
    said = np.array([[labels.index(moves[name, symbol][1]) for symbol in symbols] for name in names])
    return tuple(symbols), table, said, tuple(labels), names.index(first)


def _graph(text: str) -> tuple[dict[str, dict[str, str]], list[str], list[tuple[str, str, str | None]], str]:
    """Nodes with their attributes, those that only mark the start, arrows (from, to, label) between the others, the start;
    attributes and labels with their backslashes."""
    if not isinstance(text, str):
        raise TypeError(f"text: expected a graph in Graphviz's language, digraph {{ ... }}, got {checks.shown(text)}")
    body = re.fullmatch(rf"\s*(?:strict\s+)?digraph\s*({_WORD})?\s*\{{(.*)\}}\s*", _COMMENT.sub(r"\1", text), re.S)
    if body is None:
        raise ValueError(f"text: expected a graph of arrows, digraph {{ ... }}, got {checks.shown(text)}")
    nodes: dict[str, dict[str, str]] = {}
    arrows: list[tuple[str, str, str | None]] = []
    place, inside = 0, body[2]
    while place < len(inside):
        found = _SETTING.match(inside, place) or _STATEMENT.match(inside, place)
        if found is None or not found[0]:
            if not inside[place:].strip(" \t\r\n;"):
                break
            if inside[place].isspace() or inside[place] == ";":
                place += 1
                continue
            raise ValueError(f"text: cannot be read at {checks.shown(inside[place : place + 40])}")
        place = found.end()
        if found.re is _SETTING:
            continue
        source, target = _plain(found[1]), None if found[2] is None else _plain(found[2])
        own = {_plain(name): _bare(value) for name, value in _ATTRIBUTE.findall(found[3] or "")}
        if source in ("node", "edge", "graph") and target is None:
            continue
        for name in (source, target):
            if name is not None:
                nodes.setdefault(name, {})
        if target is None:
            nodes[source] |= own
        else:
            arrows.append((source, target, own.get("label")))
    starts = [name for name, own in nodes.items() if own.get("shape") in NO_CIRCLE or name.startswith("__start")]
    first = [target for source, target, _ in arrows if source in starts]
    if len(first) != 1:
        raise ValueError(f"text: one arrow from a node without a circle marks the start, got {len(first)} of them")
    return nodes, starts, [arrow for arrow in arrows if arrow[0] not in starts], first[0]


def _automaton(nodes, starts, arrows, first, labels):
    names = [name for name in nodes if name not in starts]
    moves: dict[tuple[str, str], str] = {}
    for source, target, label in arrows:
        if label is None:
            raise ValueError(f"text: the arrow from {source!r} to {target!r} has no label, which is its symbol")
        for part in _parts(label, *MOVES):
            symbol = _name(part)
            if not symbol:
                raise ValueError(f"text: the arrow from {source!r} to {target!r} has an empty symbol in its label {label!r}")
            if len(_parts(part, "/")) > 1 and len(symbol) > 1:
                raise ValueError(
                    f"text: {symbol!r} on the arrow from {source!r} is an input and an output, as of a Mealy machine; "
                    "read it with MealyMachine.from_dot, of which to_moore() is an Automaton"
                )
            if moves.setdefault((source, symbol), target) != target:
                raise ValueError(f"text: state {source!r} has two moves with {symbol!r}; make the automaton deterministic")
    symbols = tuple(sorted({symbol for _, symbol in moves}))
    told = {name: re.fullmatch(r".+?(?:: |[:/])(.+)", nodes[name].get("label", "")) for name in names}
    if names and all(told.values()):
        said = [_name(found[1]) for found in told.values() if found is not None]
        labels = tuple(sorted(set(said)))
        outputs = [labels.index(label) for label in said]
    else:
        outputs = [int(nodes[name].get("shape") == "doublecircle" or nodes[name].get("peripheries") == "2") for name in names]
    missing = [(name, symbol) for name in names for symbol in symbols if (name, symbol) not in moves]
    if missing and all(told.values()):
        name, symbol = missing[0]
        raise ValueError(f"text: state {name!r} has a label of its own and no move with {symbol!r}; draw all moves")
    numbers = {name: number for number, name in enumerate(names)}
    table = [[numbers[moves[name, symbol]] if (name, symbol) in moves else len(names) for symbol in symbols] for name in names]
    if missing:
        table, outputs = [*table, [len(names)] * len(symbols)], [*outputs, 0]
    transitions = np.array(table, dtype=int).reshape(len(outputs), len(symbols))
    return symbols, transitions, np.array(outputs), numbers[first], labels


def _plain(word: str) -> str:
    """A word of the language without its quotes."""
    return re.sub(r"\\(.)", r"\1", _bare(word), flags=re.S)


def _bare(word: str) -> str:
    return word[1:-1] if word.startswith('"') else word
