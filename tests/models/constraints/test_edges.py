"""Automata in the form of Ctrl-G: what its rule accepts is accepted, and as probable as enumeration says."""

import itertools
import json
import math
import pickle

import numpy as np
import pytest
import torch

from pplseq import HMM, Constraint, Vocabulary

V = 4
TEXTS = [text for length in range(5) for text in itertools.product(range(V), repeat=length)]


def mask(*tokens):
    return np.isin(np.arange(V), tokens)


PHRASE = {  # "1 2" stands in it; states are tuples of its tokens, as those of the builder of several phrases
    "edges": [
        ((), (1,), mask(1)), ((), (), mask(0, 2, 3)), ((1,), (1,), mask(1)), ((1,), (1, 2), mask(2)), ((1,), (), mask(0, 3)),
        ((1, 2), (1, 2), mask(0, 1, 2, 3)),
    ],
    "initial_state": (), "accept_states": {(1, 2)},
}  # fmt: skip
PLAIN = {"edges": [(0, 1, mask(1)), (1, 2, mask(2))], "initial_state": 0, "accept_states": [2]}
ODD = {  # tokens without an edge, a state that nothing leads to, and the start not the first
    "edges": [(5, 7, mask(0)), (3, 5, mask(1, 2)), (5, 3, mask(1)), (9, 3, mask(0)), (7, 7, mask(3))],
    "initial_state": 3, "accept_states": [7, 3],
}  # fmt: skip
NOTHING_LEADS_ON = {"edges": [(0, 1, mask(2))], "initial_state": 0, "accept_states": [1]}


def accepted(graph, text):
    """By its own rule: the first edge that has the token."""
    state = graph["initial_state"]
    for token in text:
        after = [v for u, v, tokens in graph["edges"] if u == state and tokens[token]]
        if not after:
            return False
        state = after[0]
    return state in graph["accept_states"]


def as_json(graph, tokens):
    edges = [(u, v, tokens(m)) for u, v, m in graph["edges"]]
    return json.dumps(graph | {"edges": edges, "accept_states": list(graph["accept_states"])})


@pytest.mark.parametrize("graph", [PHRASE, ODD, NOTHING_LEADS_ON])
def test_it_accepts_what_its_rule_accepts(graph, tmp_path):
    found = [Constraint.of_edges(graph, V), Constraint.of_edges(graph, Vocabulary(("a", "b", "c", "d"), unknown=None))]
    forms = (lambda m: m.tolist(), lambda m: m.astype(int).tolist(), lambda m: np.flatnonzero(m).tolist())
    for number, tokens in enumerate(forms):
        (tmp_path / f"{number}.json").write_text(as_json(graph, tokens))
        found.append(Constraint.of_edges(tmp_path / f"{number}.json", V))
    for text in TEXTS:
        wanted = accepted(graph, text)
        assert [one.accepts(["abcd"[t] if k == 1 else str(t) for t in text]) for k, one in enumerate(found)] == [wanted] * 5


def test_it_is_as_probable_as_enumeration_says():
    torch.manual_seed(0)
    model = HMM(3, num_words=V)
    model.is_fitted = True
    chain = model.constrained(Constraint.of_edges(PHRASE, V) & ~Constraint.containing("3"), length=4)
    texts = [text for text in itertools.product(range(V), repeat=4) if accepted(PHRASE, text) and 3 not in text]
    wanted = sum(math.exp(value) for value in model.log_prob(torch.tensor(texts)).tolist())
    assert float(chain.log_prob().exp()) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize(
    "graph, error, message",
    [
        ({"edges": []}, ValueError, "initial_state, accept_states not there"),
        ([1], TypeError, "expected a mapping"),
        (PHRASE | {"edges": [(0, 1)]}, ValueError, "edge 0: expected .from, to, tokens."),
        (PHRASE | {"edges": [(0, 1, [True, False])]}, ValueError, "edge 0: expected 4 truth values"),
        (PHRASE | {"edges": [(0, 1, [4])]}, ValueError, "ids in 0..3"),
        (PHRASE | {"edges": [(0, 1, mask(1)), (0, 2, mask(1, 2))]}, ValueError, "edge 1: a token leads from state 0 to two"),
        (PLAIN | {"initial_state": 77}, ValueError, "initial_state 77 is at no edge, .*edges have .0"),
        (PLAIN | {"initial_state": "0"}, ValueError, "state '0' is at no edge, where 0 is; write numbers and strings alike"),
        (PLAIN | {"accept_states": ["2"]}, ValueError, "state '2' is at no edge, where 2 is"),
        (PHRASE | {"edges": [(0.5, 1, mask(1))]}, TypeError, "numbers, strings or tuples"),
    ],
)
def test_what_is_no_automaton(graph, error, message):
    with pytest.raises(error, match=message):
        Constraint.of_edges(graph, V)


def test_states_that_no_edge_leads_to_are_never_reached():
    plain = Constraint.of_edges(PHRASE, V)
    assert Constraint.of_edges(PHRASE | {"accept_states": [*PHRASE["accept_states"], 77, (3, 4)]}, V).equals(plain)
    none = Constraint.of_edges(PHRASE | {"accept_states": [77]}, V)
    assert none.equals(~Constraint.anything())
    assert Constraint.of_edges({"edges": [], "initial_state": 5, "accept_states": [5]}, V).equals(Constraint.length(0, 0))


def test_files_that_are_not_read(tmp_path):
    (tmp_path / "dfa.pkl").write_bytes(pickle.dumps(PHRASE))
    with pytest.raises(ValueError, match="would run code"):
        Constraint.of_edges(tmp_path / "dfa.pkl", V)
    with pytest.raises(FileNotFoundError):
        Constraint.of_edges(tmp_path / "none.json", V)
    with pytest.raises(ValueError, match="max_states"):
        Constraint.of_edges(PHRASE, V, max_states=3)
