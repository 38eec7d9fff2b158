"""RPNI, the usual non-probabilistic learner of automata: merges states of the prefix tree as long as no label contradicts."""

from __future__ import annotations

from collections.abc import Sequence

from pplseq.models.automata.asking import of_peer
from pplseq.models.automata.automaton import Automaton, String
from pplseq.models.automata.labels import encoded_labels


def rpni(
    strings: Sequence[String],
    labels: Sequence[bool | int | str],
    *,
    symbols: Sequence[str] | None = None,
    pos_label: bool | int | str | None = None,
) -> Automaton:
    """The automaton that AALpy's RPNI learns, in its smallest form.

    Args:
        strings, labels, pos_label: as :class:`~pplseq.models.automata.learner.AutomatonLearner` takes them, of two classes.
        symbols: default: those of the strings. A symbol that no training string has at a state leads to a state that
            rejects for ever.

    Raises:
        ImportError: AALpy is not installed.
        ValueError: a string with two labels, other than two classes, classes that do not say which of them is accepted.

    Source: J. Oncina and P. García, Identifying regular languages in polynomial time (1992).
    """
    try:
        from aalpy.learning_algs import run_RPNI
    except ImportError as error:
        raise ImportError('RPNI needs the package AALpy: pip install "pplseq[automata]"') from error
    names, numbers, positive = encoded_labels(strings, labels, pos_label)
    if len(names) != 2 or positive is None:
        raise ValueError(f"pos_label: expected two labels and which of them is accepted, got {', '.join(names)}")
    data = [(tuple(string), bool(number)) for string, number in zip(strings, numbers, strict=True)]
    symbols = tuple(sorted({s for string, _ in data for s in string})) if symbols is None else tuple(symbols)
    learnt = run_RPNI(data, "dfa", print_info=False)
    if learnt is None:
        raise ValueError(
            "labels: expected one label for each string, got several for one of them; remove the wrong ones"
        )
    return of_peer(learnt, symbols)
