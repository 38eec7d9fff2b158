"""EM over the tree of prefixes: against a loop over strings and seeds, gradients, and what EM promises."""

import numpy as np
import pytest
import torch

from pplseq.models.automata import em as automaton_em
from pplseq.models.automata.em import (
    SymbolTables,
    TableFit,
    draw_tables,
    expected_counts,
    fit_tables,
    label_probabilities,
    maximise,
)
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.iohmm.restarts.history import RestartBlock

STRINGS = ["", "0", "01", "011", "110", "01", "1", "0110100", "0110101", "22", "0"]
LABELS = [1, 0, 0, 1, 2, 0, 1, 0, 1, 2, 2]  # 01 comes twice, 0 with two labels
TREE = PrefixTree.grow(STRINGS, LABELS)


BLOCKS = (RestartBlock(3), RestartBlock(2, 0.3, True))


def random_tables(num_states=3, seed=0, blocks=BLOCKS) -> SymbolTables:
    return draw_tables(blocks, num_states, 3, 3, np.random.default_rng(seed))


def string_counts(start, transition, output, string, label):
    """Forward-backward of one string in one restart, with matrices of numpy: log-likelihood and expected counts."""
    alphas = [start]
    for symbol in string:
        alphas.append(alphas[-1] @ transition[symbol])
    likelihood = alphas[-1] @ output[:, label]
    beta = output[:, label]
    counts, labels = np.zeros_like(transition), np.zeros_like(output)
    labels[:, label] = alphas[-1] * beta / likelihood
    for t in range(len(string) - 1, -1, -1):
        counts[string[t]] += alphas[t][:, None] * transition[string[t]] * beta / likelihood
        beta = transition[string[t]] @ beta
    return np.log(likelihood), start * beta / likelihood, counts, labels


def loop_counts(tables: SymbolTables, seed: int):
    totals = None
    for string, label in zip(STRINGS, LABELS, strict=True):
        parts = string_counts(*(t.numpy() for t in tables.restarts(seed)), ["012".index(c) for c in string], label)
        totals = parts if totals is None else [a + b for a, b in zip(totals, parts, strict=True)]
    return totals


def test_tree_shares_prefixes():
    assert TREE.num_nodes == 1 + len({s[:k] for s in STRINGS for k in range(1, len(s) + 1)})
    assert TREE.symbols == ("0", "1", "2")
    assert TREE.weight.sum() == len(STRINGS) and len(TREE.end) == 10
    covered = [node for group in TREE.groups for node in range(group.nodes.start, group.nodes.stop)]
    assert covered == list(range(1, TREE.num_nodes))
    # every node's string, put together on the way from the root
    names = [""] * TREE.num_nodes
    for nodes, symbol, parents in TREE.groups:
        for child, parent in zip(range(nodes.start, nodes.stop), parents.tolist(), strict=True):
            assert parent < child
            names[child] = names[parent] + TREE.symbols[symbol]
    assert [names[node] for node in TREE.of_string.tolist()] == STRINGS


@pytest.mark.parametrize("num_states", [1, 2, 3, 7])
def test_counts_equal_a_loop(num_states):
    tables = random_tables(num_states)
    counts = expected_counts(TREE, tables)
    for seed in range(tables.num_restarts):
        for found, expected in zip(counts, loop_counts(tables, seed), strict=True):
            np.testing.assert_allclose(found[..., seed].numpy(), expected, rtol=1e-12, atol=1e-14)


def test_counts_are_gradients():
    """Fisher's identity: a parameter times the derivative of the log-likelihood is its expected count."""
    tables = SymbolTables(*(table.requires_grad_() for table in random_tables(4)))
    labels = torch.tensor(LABELS)
    given = label_probabilities_of_autograd(tables).gather(1, labels.view(-1, 1, 1).expand(-1, 1, tables.num_restarts))
    log_likelihood = given.log().sum((0, 1))
    gradients = torch.autograd.grad(log_likelihood.sum(), tables)
    counts = expected_counts(TREE, SymbolTables(*(table.detach() for table in tables)))
    torch.testing.assert_close(counts.log_likelihood, log_likelihood.detach(), rtol=1e-12, atol=0)
    for count, table, gradient in zip(counts[1:], tables, gradients, strict=True):
        torch.testing.assert_close(count, (table * gradient).detach(), rtol=1e-10, atol=1e-13)


def label_probabilities_of_autograd(tables: SymbolTables) -> torch.Tensor:
    rows = []
    for string in STRINGS:
        state = tables.start
        for character in string:
            state = torch.einsum("ir,ijr->jr", state, tables.transition[int(character)])
        rows.append(torch.einsum("zr,zyr->yr", state, tables.output))
    return torch.stack(rows)


def test_label_probabilities():
    tables = random_tables(4)
    torch.testing.assert_close(label_probabilities(TREE, tables), label_probabilities_of_autograd(tables))


def test_batch_equals_single_seeds():
    blocks = (RestartBlock(2), RestartBlock(1, 0.4, True), RestartBlock(2, prior=1.7, prior_iterations=6))
    tables = random_tables(3, blocks=blocks)
    together, log_likelihood = fit_tables(TREE, tables, 15, blocks=blocks)
    kinds = [blocks[0]] * 2 + [blocks[1]] + [blocks[2]] * 2
    for seed, kind in enumerate(kinds):
        own = (RestartBlock(1, kind.concentration, kind.fixed_start, kind.prior, kind.prior_iterations),)
        alone, single = fit_tables(TREE, tables.restarts(slice(seed, seed + 1)), 15, blocks=own)
        torch.testing.assert_close(single, log_likelihood[seed : seed + 1], rtol=1e-10, atol=1e-12)
        for one, all_of_them in zip(alone, together, strict=True):
            torch.testing.assert_close(one, all_of_them[..., seed : seed + 1], rtol=1e-8, atol=1e-10)


def test_many_restarts_are_several_batches(monkeypatch):
    blocks = (RestartBlock(4), RestartBlock(3, prior=1.7, prior_iterations=6))
    tables = random_tables(3, blocks=blocks)
    together = fit_tables(TREE, tables, 10, blocks=blocks)
    monkeypatch.setattr(automaton_em, "MAX_ENTRIES", 2 * TREE.num_nodes * 3)  # two restarts at once
    apart = fit_tables(TREE, tables, 10, blocks=blocks)
    torch.testing.assert_close(apart, together, rtol=1e-9, atol=1e-12)


def test_no_iteration_lowers_the_likelihood():
    seen = []
    fit = TableFit(TREE, random_tables(4), 60)
    while not fit.ended:
        seen.append(fit.step())
    tables, last = fit.outcome()
    seen = torch.stack([*seen, last])
    assert (seen.diff(dim=0) > -1e-9).all()
    for table, axis in zip(tables, (0, 2, 1), strict=True):
        torch.testing.assert_close(table.sum(axis), torch.ones_like(table.sum(axis)))


def test_fixed_start_stays():
    tables, _ = fit_tables(TREE, random_tables(3, blocks=(RestartBlock(4, fixed_start=True),)), 20)
    assert tables.start[0].eq(1.0).all() and tables.start[1:].eq(0.0).all()


def test_states_that_nothing_visits_keep_their_rows():
    tables = random_tables(2, blocks=(RestartBlock(1, fixed_start=True),))
    tables.transition[:, 0, 0], tables.transition[:, 0, 1] = 1.0, 0.0
    fitted = maximise(expected_counts(TREE, tables), tables)
    torch.testing.assert_close(fitted.transition[:, 1], tables.transition[:, 1])
    torch.testing.assert_close(fitted.output[1], tables.output[1])


def test_prior_falls_to_nothing():
    """With a prior, the first M-step adds pseudo-counts, and after its iterations it is plain EM."""
    tables, block = random_tables(3, blocks=(RestartBlock(2),)), RestartBlock(2, prior=3.0, prior_iterations=1)
    first, _ = fit_tables(TREE, tables, 1, blocks=(block,))
    expected = maximise(expected_counts(TREE, tables), tables, 2.0)
    torch.testing.assert_close(first.transition, expected.transition)
    second, _ = fit_tables(TREE, tables, 2, blocks=(block,))
    torch.testing.assert_close(second.output, maximise(expected_counts(TREE, first), first).output)


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"num_restarts": 0}, "num_restarts must be at least 1, got 0"),
        ({"concentration": 0.0}, "concentration must be positive, got 0.0"),
        ({"prior": 0.5}, "prior must be at least 1"),
        ({"prior_iterations": -1}, "prior_iterations must be at least 0"),
    ],
)
def test_blocks_that_are_none(setting, message):
    with pytest.raises(ValueError, match=message):
        RestartBlock(**setting)


def test_strings_that_are_none():
    with pytest.raises(ValueError, match="strings: expected at least one"):
        PrefixTree.grow([])
    with pytest.raises(ValueError, match="labels: expected one for each of 2 strings, got 1"):
        PrefixTree.grow(["0", "1"], [1])
    with pytest.raises(ValueError, match="strings: symbol '1' is not one of 0"):
        PrefixTree.grow(["0", "1"], symbols="0")
