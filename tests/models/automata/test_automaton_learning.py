"""Learning automata from labelled strings: Tomita's languages, what is reported, bad input."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from pplseq import load
from pplseq.data.tomita import all_strings, random_strings, tomita
from pplseq.models.automata.automaton import LABELS, Automaton
from pplseq.models.automata.em import SymbolTables, draw_tables
from pplseq.models.automata.learner import AutomatonLearner, hardened
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.automata.repair import num_right, repair
from pplseq.models.automata.state_merging import merge_states
from pplseq.models.iohmm.restarts.history import RestartBlock

FEW = (RestartBlock(10, 0.5, True), RestartBlock(10))


def by_em(*arguments, **settings):
    """A learner that merges no states."""
    return AutomatonLearner(*arguments, merging=False, **settings)


def validation(grammar, number=30, seed=0):
    strings = random_strings(number, 12, seed=seed)
    return strings, [grammar.accepts(string) for string in strings]


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow), 6])
def test_languages_are_learnt_exactly(number):
    grammar = tomita(number)
    found = by_em(blocks=FEW, max_iterations=150).fit(grammar.strings, grammar.labels, validation=validation(grammar))
    assert found.consistent
    assert found.automaton.equals(Automaton.from_regex(grammar.regex, "01"))
    assert [size.num_consistent for size in found.sizes][:-1] == [0] * (len(found.sizes) - 1)
    assert found.sizes[-1].num_states == grammar.num_states
    assert sum(candidate.num_found for candidate in found.candidates) == found.sizes[-1].num_consistent


def test_validation_chooses_among_languages_that_fit():
    grammar = tomita(5)
    learner = by_em(4, blocks=(RestartBlock(50, 0.5, True), RestartBlock(100)), max_iterations=150)
    found = learner.fit(grammar.strings, grammar.labels, validation=validation(grammar))
    assert len(found.candidates) > 1
    assert found.automaton.equals(Automaton.from_regex(grammar.regex, "01"))
    assert max(found.validation_right) == found.num_validation == 30
    assert "different automata fit your data" in found.report and "first differs on '" in found.report
    # strings that speak for another candidate choose that one
    other = next(c for c in found.candidates if not c.automaton.equals(found.automaton)).automaton
    strings = all_strings(7)
    again = found.choose(strings, [other.accepts(string) for string in strings])
    assert again.automaton.equals(other) and again.num_validation == len(strings)
    (hard,) = hardened(type(again.tables)(*(table.unsqueeze(-1) for table in again.tables)), "01")
    assert hard.equals(other)
    # without them the most frequent one is taken
    plain = learner.fit(grammar.strings, grammar.labels)
    assert plain.validation_right is None
    assert plain.automaton.equals(plain.candidates[0].automaton)
    assert [c.num_found for c in plain.candidates] == sorted((c.num_found for c in plain.candidates), reverse=True)


def test_tables_are_those_of_the_automaton():
    grammar = tomita(6)
    found = by_em(3, blocks=FEW).fit(grammar.strings, grammar.labels)
    (again,) = hardened(type(found.tables)(*(table.unsqueeze(-1) for table in found.tables)), "01")
    assert again.equals(found.automaton)
    assert found.log_likelihoods[0] == pytest.approx(0.0, abs=0.1)


def test_hard_tables_label_as_their_automata():
    grammar = tomita(3)
    tree = PrefixTree.grow(grammar.strings, grammar.labels)
    tables = draw_tables(FEW, 5, 2, 2, np.random.default_rng(0))
    expected = [
        sum(automaton.accepts(s) == label for s, label in zip(grammar.strings, grammar.labels, strict=True))
        for automaton in hardened(tables, "01")
    ]
    assert num_right(tree, tables).tolist() == expected


@pytest.mark.parametrize("num_states", [1, 2, 5])
def test_repair_is_steepest_ascent_over_single_changes(num_states):
    """Against a loop that tries every change of one transition, one restart after the other."""
    grammar = tomita(4)
    strings, labels = grammar.strings, [int(label) for label in grammar.labels]
    tree = PrefixTree.grow(strings, labels)
    tables = draw_tables((RestartBlock(12),), num_states, 2, 2, np.random.default_rng(1))
    which = torch.arange(12) != 3
    found = repair(tree, tables, which)
    right = num_right(tree, found)

    def score(start, move):
        """Strings that the best labels of states label right."""
        counts = np.zeros((num_states, 2), dtype=int)
        for string, label in zip(strings, labels, strict=True):
            state = start
            for character in string:
                state = move[int(character)][state]
            counts[state, label] += 1
        return counts.max(1).sum()

    before = num_right(tree, tables).tolist()
    for seed, automaton in enumerate(hardened(tables, "01")):
        move, best = automaton.transitions.T.copy(), before[seed]
        while which[seed] and best < len(strings):
            tried = []
            for symbol, state, shift in np.ndindex(2, num_states, num_states - 1):
                changed = move.copy()
                changed[symbol, state] = (move[symbol, state] + shift + 1) % num_states
                tried.append((score(automaton.start, changed), changed))
            value, changed = max(tried, key=lambda pair: pair[0], default=(0, None))  # the first of equals
            if value <= best:
                break
            best, move = value, changed
        assert int(right[seed]) == best
        assert hardened(found, "01")[seed].transitions.T.tolist() == move.tolist()
    assert all(torch.equal(a, b) for a, b in zip(found.restarts(3), tables.restarts(3), strict=True))


def test_repair_in_several_batches_is_the_same(monkeypatch):
    from pplseq.models.automata import repair as automaton_repair

    grammar = tomita(2)
    tree = PrefixTree.grow(grammar.strings, grammar.labels)
    tables = draw_tables((RestartBlock(9),), 3, 2, 2, np.random.default_rng(0))
    which = torch.arange(9) % 4 != 1
    together = repair(tree, tables, which)
    monkeypatch.setattr(automaton_repair, "MAX_ENTRIES", 4 * 12 * tree.num_nodes)  # four restarts at once
    assert all(torch.equal(a, b) for a, b in zip(repair(tree, tables, which), together, strict=True))


def test_repaired_tables_are_probabilities_and_label_as_counted():
    grammar = tomita(4)
    tree = PrefixTree.grow(grammar.strings, grammar.labels)
    tables = draw_tables((RestartBlock(60),), 4, 2, 2, np.random.default_rng(0))
    found = repair(tree, tables, torch.ones(60, dtype=torch.bool))
    right = num_right(tree, found)
    assert (right >= num_right(tree, tables)).all() and (right > num_right(tree, tables)).any()
    for table, axis in zip(found, (0, 2, 1), strict=True):
        torch.testing.assert_close(table.sum(axis), torch.ones_like(table.sum(axis)))
    automata = hardened(found, "01")
    told = list(zip(grammar.strings, grammar.labels, strict=True))
    assert right.tolist() == [sum(automaton.accepts(s) == y for s, y in told) for automaton in automata]


def test_repair_finds_more_languages_that_fit():
    grammar = tomita(4)
    found = {
        repaired: by_em(4, blocks=(RestartBlock(60),), max_iterations=80, repair=repaired).fit(grammar.strings, grammar.labels)
        for repaired in (False, True)
    }
    plain, better = (found[key].sizes[0] for key in (False, True))
    assert plain.num_repaired == 0 and better.num_consistent == plain.num_consistent + better.num_repaired
    assert better.num_repaired > 0 and "of them repaired" in found[True].report
    assert found[True].automaton.equals(Automaton.from_regex(grammar.regex, "01"))
    assert found[True].log_likelihoods[0] == pytest.approx(0.0, abs=1e-6)


def test_moore_machine_with_names_of_labels_and_words_as_symbols():
    rng = np.random.default_rng(0)
    strings = [["up" if bit else "down" for bit in rng.integers(2, size=rng.integers(7))] for _ in range(60)]
    labels = ["zero one two".split()[(s.count("up") - s.count("down")) % 3] for s in strings]
    found = by_em(3, blocks=FEW[:1]).fit(strings, labels)
    assert found.automaton.labels == ("one", "two", "zero") and found.automaton.symbols == ("down", "up")
    assert found.automaton.num_states == 3
    assert found.automaton.classify(["up"] * 4) == "one" and found.automaton.classify([]) == "zero"


def test_the_same_seed_gives_the_same():
    grammar = tomita(2)
    runs = [by_em(3, blocks=FEW, max_iterations=40, seed=seed).fit(grammar.strings, grammar.labels) for seed in (3, 3, 5)]
    assert torch.equal(runs[0].tables.transition, runs[1].tables.transition)
    assert not torch.equal(runs[0].tables.transition, runs[2].tables.transition)


def test_no_consistent_automaton_gives_the_best_one_and_says_so():
    grammar = tomita(3)
    found = by_em([1, 2], blocks=(RestartBlock(20),), max_iterations=30).fit(grammar.strings, grammar.labels)
    assert np.isfinite(found.log_likelihoods).all()
    assert not found.consistent
    assert "no automaton that was tried labels all training strings right" in found.report
    assert "your data right" in found.report and "fit your data" not in found.report and "fits your data" not in found.report
    right = sum(found.automaton.accepts(s) == y for s, y in zip(grammar.strings, grammar.labels, strict=True))
    assert right == max(size.most_right for size in found.sizes) < len(grammar.strings)


def test_collapsed_restarts_are_dropped_and_reported(monkeypatch):
    from pplseq.models.automata import learner as automaton_learning

    def broken(blocks, *sizes):
        tables = automaton_em_draw(blocks, *sizes)
        tables.output[..., :5] = torch.nan
        return tables

    automaton_em_draw = automaton_learning.draw_tables
    monkeypatch.setattr(automaton_learning, "draw_tables", broken)
    grammar = tomita(1)
    found = by_em(2, blocks=FEW, max_iterations=60).fit(grammar.strings, grammar.labels)
    assert found.consistent and found.sizes[0].num_collapsed == 5
    assert "5 collapsed and were dropped" in found.report
    monkeypatch.setattr(automaton_learning, "draw_tables", lambda *a: broken(*a).restarts(slice(0, 5)))
    with pytest.raises(FloatingPointError, match="every restart collapsed"):
        by_em(2, blocks=(RestartBlock(5),), max_iterations=2).fit(grammar.strings, grammar.labels)


@pytest.mark.parametrize(
    "strings, labels, kind, message",
    [
        (["0", "1"], [True, True], ValueError, "labels: expected strings of two classes or more, all are True"),
        ([], [], ValueError, "labels: expected strings of two classes or more, there are none"),
        (["0", "1", "0"], [True, False, False], ValueError, "labels: expected one label for each string, got several for '0'"),
        (["0"], [True, False], ValueError, "labels: expected one for each of 1 strings, got 2"),
        (["0", "1"], [0.5, 0.0], TypeError, "labels: expected bools, whole numbers or names"),
    ],
)  # fmt: skip
def test_strings_that_cannot_be_learnt_from(strings, labels, kind, message):
    with pytest.raises(kind, match=message):
        by_em().fit(strings, labels)


@pytest.mark.parametrize(
    "told, message",
    [
        ((["2"], [True]), "validation: symbol '2' is not in the training strings"),
        ((["1"], ["x"]), "validation: label 'x' is not in"),
        ((["1"], []), "validation: expected a label for each of 1 strings, got 0"),
    ],
)
def test_validation_strings_that_cannot_be_used(told, message):
    with pytest.raises(ValueError, match=message):
        by_em().fit(["0", "1"], [True, False], validation=told)


def test_settings_that_are_none():
    for settings, message in (
        ({"num_states": 0}, "num_states: expected one or more"),
        ({"num_states": []}, "num_states: expected one or more"),
        ({"blocks": ()}, "blocks: expected at least one"),
        ({"max_iterations": 0}, "max_iterations must be at least 1"),
        ({"max_wrong": 1.5}, "max_wrong: expected a share of the labels from 0 to 1, got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            by_em(**settings)


def test_what_is_found_before_an_interruption_is_kept():
    learner = by_em([1, 2], blocks=[RestartBlock(4)], max_iterations=5)
    assert learner.so_far() is None

    def interrupted(size):
        if size.num_states == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.fit(["0", "00", "000"], [True, False, True], each=interrupted)
    found = learner.so_far()
    assert [size.num_states for size in found.sizes] == [1] and not found.consistent
    assert found.automaton.accepts("0")


def test_arguments_that_are_none():
    for sizes in (2.5, [2, "a"], True):
        with pytest.raises(ValueError, match="num_states: expected one or more numbers"):
            by_em(sizes)
    assert by_em(np.int64(2)).sizes == [2]
    learner = by_em(2, blocks=[RestartBlock(2)], max_iterations=2)
    with pytest.raises(TypeError, match="strings: expected symbols that are str, got"):
        learner.fit([[0, 1], [1, 0]], [True, False])
    with pytest.raises(TypeError, match="validation: expected"):
        learner.fit(["0", "1"], [True, False], validation=["0"])


def test_more_tables_than_memory_are_refused():
    with pytest.raises(ValueError, match="num_states: 9999 states, 2 symbols and 1000 restarts make tables of 1,490 GiB"):
        by_em(9999).fit(["0", "1"], [True, False])


def test_the_smallest_language_comes_first():
    """An even number of a, found once, before a number of a that three divides, found twice: both label all strings right."""
    tree = PrefixTree.grow(["", "a"], [1, 0], ["a"])
    cycles = [[1, 0, 2], [1, 2, 0], [1, 2, 0]]
    start = torch.zeros(3, 3).index_fill_(0, torch.tensor([0]), 1.0)
    transition = torch.stack([torch.eye(3)[cycle] for cycle in cycles], -1)[None]
    output = torch.stack([torch.tensor([[0.0, 1], [1, 0], [1, 0]])] * 3, -1)
    learner = by_em(3)
    learner._tried = tree, LABELS, None, [], 2, SymbolTables(start.double(), transition.double(), output.double()), 3, "", False
    found = learner.so_far()
    assert [(c.automaton.num_states, c.num_found) for c in found.candidates] == [(2, 1), (3, 2)]
    assert found.automaton.accepts("aa") and not found.automaton.accepts("aaa")
    told = found.choose(["aa", "aaa"], [False, True])  # strings that decide are heard first
    assert told.automaton.num_states == 3 and found.choose(["a"], [False]).automaton.num_states == 2


@pytest.mark.parametrize("size_of_batches", [2**26, 3000])
def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path, monkeypatch, size_of_batches):
    """Stopped twice, in the middle of a size and of the next, in one batch of restarts and in several."""
    from pplseq.models.automata import em

    monkeypatch.setattr(em, "MAX_ENTRIES", size_of_batches)
    grammar = tomita(4)
    told = grammar.strings, grammar.labels

    def learner(**changed):
        blocks = RestartBlock(6), RestartBlock(4, prior=1.5)
        return by_em([2, 3], **{"blocks": blocks, "max_iterations": 9, **changed})

    records, again = [], []
    whole = learner().fit(*told, on_record=records.append)
    for after in (5, len(records) - 4):

        def stop(record, after=after):
            again.append(record)
            if record["step"] == after:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            learner().fit(*told, folder=tmp_path, resume=after > 5, on_record=stop)
    with pytest.raises(ValueError, match="other strings or settings"):
        learner(max_iterations=8).fit(*told, folder=tmp_path, resume=True)
    found = learner().fit(*told, folder=tmp_path, resume=True, on_record=again.append)
    assert [r["nats_per_token"] for r in again] == [r["nats_per_token"] for r in records]
    assert [size[:-1] for size in found.sizes] == [size[:-1] for size in whole.sizes]  # all but the seconds
    assert found.log_likelihoods == whole.log_likelihoods
    for one, other in zip(found.candidate_tables, whole.candidate_tables, strict=True):
        assert torch.equal(one, other)
    assert Automaton.from_dict(json.loads((tmp_path / "best" / "automaton.json").read_text())).equals(found.automaton)
    assert load(tmp_path).num_states == found.tables.start.shape[0]


def test_a_size_that_the_time_cuts_short_is_judged_as_it_is(monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr("pplseq.runs.loop._Loop._clock", lambda loop: float(next(ticks)))
    grammar = tomita(1)
    found = by_em([2, 3], blocks=FEW).fit(grammar.strings, grammar.labels, max_time=20)
    assert [size.num_states for size in found.sizes] == [2] and found.automaton.num_states <= 2
    found = by_em([2, 3], blocks=FEW).fit(grammar.strings, grammar.labels, max_time=1e-9)
    assert len(found.sizes) == 1  # after one iteration


@pytest.mark.parametrize(
    ("labels", "pos_label"),
    [
        ("+-+-", None),
        (["accept", "reject"] * 2, None),
        (["Yes", "no"] * 2, None),
        ([1, -1] * 2, None),
        ([1, 2, 1, 2], 1),
        ([False, True] * 2, False),
        (["in_class", "zzz"] * 2, "in_class"),
    ],
)
def test_which_label_is_accepted_does_not_depend_on_the_alphabet(labels, pos_label):
    strings = ["0", "1", "00", "11"]
    for learn in (AutomatonLearner().fit, merge_states):
        found = learn(strings, list(labels), pos_label=pos_label)
        automaton = getattr(found, "automaton", found)
        assert [automaton.accepts(string) for string in strings] == [True, False, True, False]
        assert [automaton.classify(string) for string in strings] == [str(label) for label in labels]
        again = Automaton.from_dict(json.loads(json.dumps(automaton.to_dict())))
        assert again.accepts("0") and not again.accepts("1")
        assert again.equals(automaton) and again.pos_label == automaton.pos_label
        assert automaton.to_dot().count("doublecircle") == automaton.outputs.tolist().count(1)


def test_labels_that_do_not_say_which_is_accepted():
    found = AutomatonLearner().fit(["0", "1", "00", "11"], [1, 2, 1, 2])
    assert found.automaton.classify("0") == "1" and found.automaton.pos_label is None
    with pytest.raises(ValueError, match=r"pos_label: which of the labels 1, 2 .* fit\(\.\.\., pos_label='2'\)"):
        found.automaton.accepts("0")
    assert replace(found.automaton, pos_label="1").accepts("0")
    assert "doublecircle" not in found.automaton.to_dot()
    with pytest.raises(ValueError, match="pos_label: expected one of the labels 1, 2, got 3"):
        AutomatonLearner().fit(["0", "1"], [1, 2], pos_label=3)
    with pytest.raises(ValueError, match="labels: expected one for each of 2 strings, got 1"):
        AutomatonLearner().fit(["0", "1"], [1])
    named = AutomatonLearner().fit(["0", "1", "00", "11"], ["+", "-"] * 2)
    assert named.choose(["0"], ["+"]).validation_right[0] == 1


def test_regular_expressions_match_what_is_accepted():
    ones = Automaton(("0", "1"), np.array([[1, 2], [1, 2], [2, 2]]), np.array([1, 0, 1]), labels=("+", "-"))
    assert ones.equals("0+") and not ones.equals("0*")
    assert replace(ones, pos_label="-").equals("(0*1(0|1)*)?")
