"""EM for lookup tables on labelled strings, many restarts as one batch, over the tree of the strings' prefixes.

An input-output HMM of symbols whose label is given after the last one only. What a prefix says about the state is the same for
all strings that begin with it, and needs no scaling: without outputs on the way it is alpha = p(state | prefix). Backwards goes
the derivative of the log-likelihood, which is a sum over strings and thus over the tree's branches:

    alpha_child   = alpha_parent Phi_symbol
    back_node     = sum_children Phi_symbol back_child + sum_labels weight output_label / (alpha_node . output_label)
    counts_symbol = Phi_symbol * sum_nodes alpha_parent' back_child

Seeds are the last axis of all tables, so that every operation runs over long vectors however few the states are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.iohmm.restarts.history import RestartBlock

MAX_TABLES = 2**29  # numbers in the tables of all restarts, 4 GiB; fitting them takes a few times that
MAX_ENTRIES = 2**26  # of an array over nodes, states and restarts; more restarts are several batches
NEGLIGIBLE = 1e-100  # smaller probabilities become 0: they change no result, and numbers below 1e-308 are slow


class SymbolTables(NamedTuple):
    """Lookup tables of R restarts.

    Attributes:
        start: (Z, R) p(state of the empty string).
        transition: (L, Z, Z, R) p(next state | symbol, state), [symbol, from, to].
        output: (Z, Y, R) p(label | state).
    """

    start: Tensor
    transition: Tensor
    output: Tensor

    @property
    def num_restarts(self) -> int:
        return self.start.shape[-1]

    def restarts(self, which: int | slice | Tensor) -> SymbolTables:
        """The tables of some restarts; a number takes the last axis away."""
        return SymbolTables(*(table[..., which] for table in self))

    def padded(self, num_states: int) -> SymbolTables:
        """The same with further states that nothing leads to."""
        more = num_states - len(self.start)
        pad = torch.nn.functional.pad
        transition = pad(self.transition, (0, 0, 0, more, 0, more))
        own = torch.arange(len(self.start), num_states)
        transition[:, own, own] = 1.0
        output = pad(self.output, (0, 0, 0, 0, 0, more), value=1.0 / self.output.shape[1])
        output[: len(self.start)] = self.output
        return SymbolTables(pad(self.start, (0, 0, 0, more)), transition, output)

    def reached(self) -> SymbolTables:
        """Of one restart, start (Z,), transition (L, Z, Z), output (Z, Y): the states that strings can lead to."""
        reached, moves = self.start > 0, (self.transition > 0).any(0)
        for _ in range(len(self.start)):
            reached = reached | moves[reached].any(0)
        return SymbolTables(self.start[reached], self.transition[:, reached][:, :, reached], self.output[reached])


class TableCounts(NamedTuple):
    """Expected counts of a :class:`SymbolTables`'s entries.

    Attributes:
        log_likelihood: (R,) nats. start, transition, output: as the tables.
    """

    log_likelihood: Tensor
    start: Tensor
    transition: Tensor
    output: Tensor


def check_tables(blocks: Sequence[RestartBlock], num_states: int, num_symbols: int) -> None:
    """Raises ValueError for more states and seeds than memory may hold."""
    num_restarts = sum(block.num_restarts for block in blocks)
    if num_restarts * num_symbols * num_states**2 > MAX_TABLES:
        raise ValueError(
            f"num_states: {num_states} states, {num_symbols} symbols and {num_restarts} restarts make tables of "
            f"{num_restarts * num_symbols * num_states**2 / 2**27:,.0f} GiB; take fewer states or restarts"
        )


def draw_tables(
    blocks: Sequence[RestartBlock], num_states: int, num_symbols: int, num_labels: int, generator: np.random.Generator
) -> SymbolTables:
    """First tables of all seeds of the blocks, one block after the other.

    Raises:
        ValueError: for more states and seeds than memory may hold.
    """
    check_tables(blocks, num_states, num_symbols)

    def dirichlet(concentration: float, *shape: int, axis: int) -> Tensor:
        drawn = generator.standard_gamma(concentration, shape).clip(np.finfo(np.float64).tiny)
        return torch.from_numpy(drawn / drawn.sum(axis, keepdims=True))

    parts = []
    for block in blocks:
        size, concentration = block.num_restarts, block.concentration
        start = dirichlet(concentration, num_states, size, axis=0)
        if block.fixed_start:
            start = torch.zeros_like(start)
            start[0] = 1.0
        transition = dirichlet(concentration, num_symbols, num_states, num_states, size, axis=2)
        parts.append((start, transition, dirichlet(concentration, num_states, num_labels, size, axis=1)))
    return SymbolTables(*(torch.cat(tables, -1) for tables in zip(*parts, strict=True)))


def state_probabilities(tree: PrefixTree, tables: SymbolTables) -> Tensor:
    """(N, Z, R) p(state | prefix) at every node: production, equation 4."""
    start, transition, _ = tables
    alpha = start.new_empty(tree.num_nodes, *start.shape)
    alpha[0] = start
    for nodes, symbol, parents in tree.groups:
        before, after = alpha[parents].unsqueeze(2), alpha[nodes]
        torch.mul(before[:, 0], transition[symbol, 0], out=after)
        for state in range(1, len(start)):
            after.addcmul_(before[:, state], transition[symbol, state])
    return alpha


def label_probabilities(tree: PrefixTree, tables: SymbolTables) -> Tensor:
    """(B, Y, R) p(label | string) of the strings that the tree was grown from: equation 3."""
    alpha = state_probabilities(tree, tables)[tree.of_string]
    return torch.einsum("bzr,zyr->byr", alpha, tables.output)


def expected_counts(tree: PrefixTree, tables: SymbolTables) -> TableCounts:
    """The E-step of all restarts, exact.

    Cost: 3 N Z^2 R multiplications.

    Source: Bengio and Frasconi (1995), equations 10 and 11, with targets at the last step only.
    """
    start, transition, output = tables
    num_states = len(start)
    alpha = state_probabilities(tree, tables)
    given = output[:, tree.label].transpose(0, 1)  # (M, Z, R) p(the label that is given | state)
    joint = alpha[tree.end] * given
    likelihood = joint.sum(1, keepdim=True)
    weight = tree.weight.to(start).view(-1, 1, 1)
    back = torch.zeros_like(alpha).index_add_(0, tree.end, given * (weight / likelihood))
    counts = torch.zeros_like(transition)
    for nodes, symbol, parents in reversed(tree.groups):
        after, table, count = back[nodes], transition[symbol], counts[symbol]
        passed = after[:, :1] * table[:, 0]
        for state in range(1, num_states):
            passed.addcmul_(after[:, state, None], table[:, state])
        back.index_add_(0, parents, passed)
        if len(parents) <= num_states:
            for parent, child in zip(parents.tolist(), after, strict=True):
                count.addcmul_(alpha[parent].unsqueeze(1), child)
        else:
            before = alpha[parents].unsqueeze(2)
            for state in range(num_states):
                count[state] += (before[:, state] * after).sum(0)
    labels = torch.zeros_like(output.transpose(0, 1)).index_add_(0, tree.label, joint * (weight / likelihood))
    log_likelihood = (weight * likelihood.log()).sum((0, 1))
    return TableCounts(log_likelihood, start * back[0], counts.mul_(transition), labels.transpose(0, 1))


def _normalised(counts: Tensor, axis: int, old: Tensor) -> Tensor:
    """Counts as probabilities; rows that nothing visits stay what they were."""
    total = counts.sum(axis, keepdim=True)
    table = torch.where(total > NEGLIGIBLE, counts / total.clamp_min(NEGLIGIBLE), old)
    return torch.where(table < NEGLIGIBLE, 0.0, table)


def maximise(counts: TableCounts, tables: SymbolTables, pseudo_count: Tensor | float = 0.0) -> SymbolTables:
    """The M-step: equation 12, expected counts as relative frequencies.

    Args:
        tables: the old ones. pseudo_count: (R,) the Dirichlet prior's parameter less 1, for transitions and outputs.
    """
    return SymbolTables(
        _normalised(counts.start, 0, tables.start),
        _normalised(counts.transition + pseudo_count, 2, tables.transition),
        _normalised(counts.output + pseudo_count, 1, tables.output),
    )


class TableFit:
    """EM of many restarts, an iteration of one batch of them a step; what :meth:`state` gives goes on to the same numbers.

    Without a prior no iteration lowers a restart's log-likelihood.

    Args:
        tables: where to start. max_iterations: of each batch.
        blocks: what the seeds' priors are, as many seeds as the tables have; default: none.
    """

    def __init__(
        self, tree: PrefixTree, tables: SymbolTables, max_iterations: int = 300, *, blocks: Sequence[RestartBlock] = ()
    ):
        self.tree, self.max_iterations = tree, max_iterations
        self.held = torch.zeros(2, tables.num_restarts, dtype=tables.start.dtype)
        if blocks:
            settings = [(b.prior - 1.0, 1.0 / b.prior_iterations if b.prior_iterations else 0.0) for b in blocks]
            self.held = torch.tensor(np.repeat(settings, [block.num_restarts for block in blocks], axis=0).T)
        self.size = max(1, MAX_ENTRIES // (tree.num_nodes * len(tables.start)))
        self.iteration = 0  # of the batch that runs
        self.batch = 0
        self._take(tables)

    def _take(self, tables: SymbolTables) -> None:
        places = range(0, tables.num_restarts, self.size)
        self.parts = [_in_order(tables.restarts(slice(first, first + self.size))) for first in places]

    @property
    def ended(self) -> bool:
        return self.batch == len(self.parts) or self.max_iterations == 0

    def step(self) -> Tensor:
        """One iteration; the log-likelihoods before it, nats, of the batch that it was of."""
        tables, batch = self.parts[self.batch], slice(self.batch * self.size, (self.batch + 1) * self.size)
        counts, (extra, fall) = expected_counts(self.tree, tables), self.held[:, batch]
        tables = maximise(counts, tables, extra * (1.0 - fall * self.iteration).clamp_min(0.0))
        self.parts[self.batch] = _in_order(tables)
        self.iteration += 1
        if self.iteration == self.max_iterations:
            self.batch, self.iteration = self.batch + 1, 0
        return counts.log_likelihood

    @property
    def tables(self) -> SymbolTables:
        """Of all restarts, as they are now."""
        return SymbolTables(*(torch.cat(parts, -1) for parts in zip(*self.parts, strict=True)))

    def outcome(self) -> tuple[SymbolTables, Tensor]:
        """The tables, and (R,) log p(labels | strings), nats; not finite for a restart that has collapsed."""
        return self.tables, torch.cat([training_log_likelihood(self.tree, tables) for tables in self.parts])

    def state(self) -> dict[str, Any]:
        """All that :meth:`restore` needs."""
        return {"tables": tuple(self.tables), "batch": self.batch, "iteration": self.iteration}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what :meth:`state` said."""
        self.batch, self.iteration = state["batch"], state["iteration"]
        self._take(SymbolTables(*state["tables"]))


def _in_order(tables: SymbolTables) -> SymbolTables:
    """In one order in memory, whatever made them: sums are then the same to the last digit."""
    return SymbolTables(*(table.contiguous() for table in tables))


def fit_tables(
    tree: PrefixTree, tables: SymbolTables, max_iterations: int = 300, *, blocks: Sequence[RestartBlock] = ()
) -> tuple[SymbolTables, Tensor]:
    """All iterations of :class:`TableFit`, and its outcome."""
    fit = TableFit(tree, tables, max_iterations, blocks=blocks)
    while not fit.ended:
        fit.step()
    return fit.outcome()


def training_log_likelihood(tree: PrefixTree, tables: SymbolTables) -> Tensor:
    """(R,) log p(labels | strings), nats."""
    alpha = state_probabilities(tree, tables)[tree.end]
    probabilities = torch.einsum("mzr,zmr->mr", alpha, tables.output[:, tree.label])
    return tree.weight.to(probabilities) @ probabilities.log()
