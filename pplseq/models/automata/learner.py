"""Regular languages from labelled strings: by merging states, and by many restarts of EM as one batch, made hard."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pplseq import checks
from pplseq.files import write_text
from pplseq.kernels import compiled
from pplseq.models.automata.automaton import LABELS, Automaton, Candidate, String, distinct_automata, harden
from pplseq.models.automata.em import SymbolTables, TableFit, check_tables, draw_tables, training_log_likelihood
from pplseq.models.automata.label_evidence import label_evidence
from pplseq.models.automata.labels import encoded_labels, refuse_contradictions
from pplseq.models.automata.of_iohmm import model_of_tables
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.automata.training import AutomatonTraining, Told, TriedSize
from pplseq.models.iohmm.program import IOHMM
from pplseq.models.iohmm.restarts.history import RestartBlock
from pplseq.runs.loop import run_training
from pplseq.runs.progress import recorder
from pplseq.threads import undisturbed

SAVED_EVERY = 60.0  # seconds between two checkpoints, beside those of a size that is done and of a stop

RECIPE = (
    RestartBlock(200, concentration=0.5, fixed_start=True),
    RestartBlock(200),
    RestartBlock(200, fixed_start=True),
    RestartBlock(200, concentration=5.0, fixed_start=True),
    RestartBlock(200, prior=1.5, prior_iterations=150),
)
"""A thousand restarts of five kinds: no kind is the best for every language."""

ROUGH, ROUGH_ITERATIONS = tuple(replace(block, num_restarts=20) for block in RECIPE), 60
SHOWN = 10  # candidates that a report lists


@dataclass(frozen=True)
class LearnedAutomaton:
    """What :meth:`AutomatonLearner.fit` found.

    Attributes:
        candidates: languages that fit as well, the most probable first, as :class:`AutomatonLearner` says.
        chosen: the place of the chosen one in them.
        validation_right: of each candidate, how many validation strings it labels right; None without any.
        num_validation: strings to choose by.
        consistent: whether all training strings are labelled right; else the candidates are those with most right.
        sizes: what was tried.
        candidate_tables: of each candidate's restart with the highest log-likelihood, candidates last.
        log_likelihoods: of these restarts, nats.
        num_restarts: members of candidates from this place on come from merging states, not from restarts of EM.
        merging: what merging found, in words.
        noisy: whether an automaton that labels all training strings right was found, and labels are taken for wrong instead.
    """

    candidates: list[Candidate]
    chosen: int
    validation_right: list[int] | None
    num_validation: int
    consistent: bool
    sizes: list[TriedSize]
    candidate_tables: SymbolTables
    log_likelihoods: list[float]
    num_restarts: int = 0
    merging: str = ""
    noisy: bool = False

    def __repr__(self) -> str:
        size, number = self.automaton.num_states, len(self.candidates)
        return f"{type(self).__name__}(num_states={size}, consistent={self.consistent}, candidates={number}): see its report"

    @property
    def automaton(self) -> Automaton:
        """The chosen language, in its smallest form."""
        return self.candidates[self.chosen].automaton

    @property
    def tables(self) -> SymbolTables:
        """Of the chosen language: start (Z,), transition (L, Z, Z) and output (Z, Y)."""
        return self.candidate_tables.restarts(self.chosen).reached()

    @property
    def model(self) -> IOHMM:
        """The same as an input-output HMM, for probabilities of labels and for fits that go on from there."""
        return model_of_tables(self.tables)

    def choose(self, strings: Sequence[String], labels: Sequence[bool | int | str]) -> LearnedAutomaton:
        """The same, with the candidate chosen by (other) validation strings; nothing is trained.

        Raises:
            ValueError: another number of labels; a symbol or label that training does not have.
        """
        any_candidate = self.candidates[0].automaton
        told = _validation(strings, labels, any_candidate.symbols, any_candidate.labels)
        right = [sum(c.automaton.classify(s) == label for s, label in told) for c in self.candidates]
        chosen = max(range(len(right)), key=lambda place: right[place])  # the first of equals is the most probable
        return replace(self, chosen=chosen, validation_right=right, num_validation=len(told))

    def found_by(self, candidate: Candidate) -> str:
        """What found a candidate, in words."""
        restarts = sum(place < self.num_restarts for place in candidate.members)
        found = ["state merging"] if restarts < candidate.num_found else []
        return " and ".join([*found, f"{restarts} restarts"] if restarts or not found else found)

    @property
    def report(self) -> str:
        """What was tried and what fits, in words; with strings whose labels would decide between the first ten languages."""
        lines = [self.merging] if self.merging else []
        for size in self.sizes:
            repaired = f", {size.num_repaired} of them repaired" if size.num_repaired else ""
            dropped = f", {size.num_collapsed} collapsed and were dropped" if size.num_collapsed else ""
            lines.append(
                f"{size.num_states} states: {size.num_consistent} of {size.num_restarts} restarts label all training strings "
                f"right{repaired}{dropped} ({size.seconds:.1f} s)"
            )
        number = len(self.candidates)
        if not self.consistent and not self.noisy:
            lines.append("no automaton that was tried labels all training strings right")
        automata, verb = ("automaton", "fits") if number == 1 else ("automata", "fit")
        verb = verb if self.consistent else "labels most of your data right" if number == 1 else "label most of your data right"
        lines.append(f"{number} different {automata} {verb}" + (" your data" if self.consistent else ""))
        shown = list(range(min(number, SHOWN)))
        for place in [*shown, *([] if self.chosen in shown else [self.chosen])]:
            candidate = self.candidates[place]
            found = f"{candidate.automaton.num_states} states, found by {self.found_by(candidate)}"
            if self.validation_right is not None:
                found += f", {self.validation_right[place]} of {self.num_validation} validation strings right"
            if place != self.chosen:
                found += f"; first differs on {checks.shown(self.automaton.difference(candidate.automaton))}"
            lines.append(f"  {'*' if place == self.chosen else ' '} {found}")
        if number > len(shown):
            lines.append(f"  ... and {number - len(shown)} more: see candidates")
        return "\n".join(lines)


class AutomatonLearner(checks.NamedArguments):
    """Learns the smallest automaton that labels strings right, by merging states and by restarts of EM on an input-output HMM.

    First states of the strings' prefix tree are merged, and a search over merges finds the smallest automata, or proves that it
    has found all of them. EM goes over the sizes below that are not ruled out, down from the largest while it finds one; where
    merging found nothing, over all sizes from the first on. For n states all restarts run as one batch; their tables are made
    hard and those are kept whose automaton labels every training string right. Of all automata that do, the language is chosen
    that labels most validation strings right; between equals the most probable one: those are probable that are told in few
    bits (few states, moves that permute them as counters do, states that symbols leave alone), and under which strings of each
    label are likely, if strings are likelier drawn label by label than drawn first and labelled then. Equals: the one that most
    restarts have found, and, of merging, that agrees most with the others. A larger automaton may be more probable than the
    smallest ones.

    An automaton that labels all strings right comes before all that do not, unless it is beyond doubt that labels are wrong: of
    100 strings or more, where a smaller automaton and the list of its exceptions, at most a quarter of the strings, take fewer
    bits by more than a third of a bit a string. These are looked for, by a short EM, only where they could be.

    Args:
        num_states: how many to try, in order; a number, or several, and then larger automata are not taken from merging
            either. Default: 2 to 8 by EM, any number by merging.
        blocks: of restarts.
        max_iterations: of EM.
        seed: of the first tables.
        repair: change single transitions of automata that label some training strings wrong, while that makes more right;
            finds rare languages more often, and of two symbols takes a fiftieth of EM's time.
        merging: whether states are merged first; False is EM alone, as it is where numba is missing.
        max_wrong: the largest share of labels that may be wrong, 0 for none; then the automaton that takes the fewest bits with
            its exceptions is chosen. Default: as said above.

    Raises:
        ValueError: no sizes or blocks, a size below 1, or a share outside 0 to 1.
    """

    def __init__(
        self,
        num_states: int | Iterable[int] | None = None,
        *,
        blocks: Sequence[RestartBlock] = RECIPE,
        max_iterations: int = 300,
        seed: int = 0,
        repair: bool = True,
        merging: bool = True,
        max_wrong: float | None = None,
    ) -> None:
        self.largest = None if num_states is None else 0  # of an automaton; None: any
        num_states = range(2, 9) if num_states is None else num_states
        self.sizes = list(num_states) if isinstance(num_states, Iterable) else [num_states]
        whole = all(isinstance(size, Integral) and not isinstance(size, bool) for size in self.sizes)
        if not self.sizes or not whole or min(self.sizes) < 1:
            raise ValueError(f"num_states: expected one or more numbers of states, 1 or more each, got {self.sizes}")
        if not blocks:
            raise ValueError("blocks: expected at least one RestartBlock, got none")
        checks.count("max_iterations", max_iterations)
        if max_wrong is not None and not (isinstance(max_wrong, Real) and 0 <= max_wrong < 1):
            raise ValueError(f"max_wrong: expected a share of the labels from 0 to 1, got {checks.shown(max_wrong)}")
        self.max_wrong = max_wrong
        self.largest = None if self.largest is None else max(self.sizes)
        self.merging = merging and compiled.available()
        self.blocks, self.max_iterations, self.repair = tuple(blocks), max_iterations, repair
        self.seed = checks.seed("seed", seed)
        self._tried: tuple | None = None
        self._pos_label: str | None = None

    @undisturbed
    def fit(
        self,
        strings: Sequence[String],
        labels: Sequence[bool | int | str],
        *,
        validation: tuple[Sequence[String], Sequence[bool | int | str]] | None = None,
        symbols: Sequence[str] | None = None,
        pos_label: bool | int | str | None = None,
        each: Callable[[TriedSize], None] | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        max_time: float | None = None,
        progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        began: float | None = None,
    ) -> LearnedAutomaton:
        """Learn from labelled strings.

        Args:
            strings: of characters or sequences of symbols; the empty one is a string as well.
            labels: whether each is in the language; or names of several classes, for a Moore machine.
            validation: strings and labels to choose by, among the languages that fit the training strings.
            symbols: default: those of the strings.
            pos_label: the label of strings that are in the language, as scikit-learn calls it. Default: True, or 1 of 0 and
                1, or what usual words say, as "+" of "+" and "-", "accept" of "accept" and "reject". Where labels are others,
                the automaton classifies strings, but :meth:`~pplseq.models.automata.automaton.Automaton.accepts` is an error.
            each: is told each size after it was tried.
            folder: of a run: its checkpoint ``last/``, ``best/`` with the model and the automaton of the sizes tried, and
                ``metrics.jsonl``; a size that ``max_time`` cuts short is judged as it is where there is no other.
            progress: show a bar.
            resume, max_time, on_record, began: see :func:`~pplseq.runs.loop.run_training`. The same numbers come out however
                often it was stopped and resumed.

        Raises:
            ValueError: no strings, another number of labels, all of one label, one string with two labels, a validation
                symbol or label that training does not have, a ``pos_label`` that is no label.
        """
        names, numbers, self._pos_label = encoded_labels(strings, labels, pos_label)
        tree = PrefixTree.grow(strings, numbers, symbols)
        refuse_contradictions(tree, strings)
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) != 2:
                raise TypeError("validation: expected (strings, labels)")
            _validation(*validation, tree.symbols, names)  # refused now rather than after training
        if not self.merging:  # which may find that none of the sizes is needed
            check_tables(self.blocks, max(self.sizes), len(tree.symbols))
        self._tried = None
        settings = self.sizes, self.largest, self.blocks, self.max_iterations, self.seed, self.repair, self.merging
        settings = *settings, self.max_wrong
        digest = hashlib.sha256(repr([list(strings), numbers, tree.symbols, *settings]).encode()).hexdigest()
        training = AutomatonTraining(self, Told(tree, strings, numbers, names, validation, digest), each)
        with recorder(progress, on_record) as record:
            run_training(
                training, folder=folder, resume=resume, max_time=max_time, on_record=record, began=began,
                checkpoint_interval=SAVED_EVERY,
            )  # fmt: skip
        if not training.tried:
            training.cut()
        learnt = self.so_far()
        if learnt is None:
            raise FloatingPointError(
                "every restart collapsed: its log-likelihood is not finite; try other blocks or seeds"
            )
        return learnt

    def so_far(self) -> LearnedAutomaton | None:
        """What the sizes have given that the last :meth:`fit` finished, also where it was interrupted; None for nothing."""
        if self._tried is None:
            return None
        tree, names, validation, sizes, most, tables, num_restarts, merging, noisy = self._tried
        log_likelihood = training_log_likelihood(tree, tables)
        candidates = distinct_automata(hardened(tables, tree.symbols, names, self._pos_label))
        if not num_restarts:  # in the order of merging
            candidates.sort(key=lambda candidate: candidate.members[0])
        elif most == len(tree.end) and len(candidates) > 1:
            candidates = _most_likely_first(candidates, tree)
        best = torch.tensor([max(c.members, key=lambda place: float(log_likelihood[place])) for c in candidates])
        learnt = LearnedAutomaton(
            candidates, 0, None, 0, most == len(tree.end), sizes, tables.restarts(best), log_likelihood[best].tolist(),
            num_restarts, merging, noisy,
        )  # fmt: skip
        return learnt if validation is None else learnt.choose(*validation)

    def begin_size(self, tree: PrefixTree, num_states: int, num_labels: int, rough: bool = False) -> TableFit:
        """EM of all restarts of a size, or a short one of a tenth of them, before its first iteration."""
        generator = np.random.default_rng([self.seed, num_states])
        blocks, iterations = (ROUGH, ROUGH_ITERATIONS) if rough else (self.blocks, self.max_iterations)
        tables = draw_tables(blocks, num_states, len(tree.symbols), num_labels, generator)
        return TableFit(tree, tables, iterations, blocks=blocks)

    def save(self, folder: Path) -> None:
        """Writes what :meth:`so_far` gives, in a folder that is there: its model, and ``automaton.json``."""
        if (found := self.so_far()) is not None:
            found.model.save(folder)
            write_text(folder / "automaton.json", json.dumps(found.automaton.to_dict(), indent=1) + "\n")


def hardened(
    tables: SymbolTables, symbols: Sequence[str], labels: Sequence[str] = LABELS, pos_label: str | None = None
) -> list[Automaton]:
    """The automaton of each restart."""
    start, transition, output = (table.movedim(-1, 0).numpy() for table in tables)
    return [harden(*table, symbols, labels, pos_label) for table in zip(start, transition, output, strict=True)]


def _most_likely_first(candidates: list[Candidate], tree: PrefixTree) -> list[Candidate]:
    """The smallest automata in the order of what they say of strings drawn label by label, if the best says that these were."""
    smallest = [c for c in candidates if c.automaton.num_states == candidates[0].automaton.num_states]
    evidence = label_evidence([candidate.automaton for candidate in smallest], tree).round(9)  # equals stay in order
    if evidence.max() <= 0:
        return candidates
    return [smallest[place] for place in np.argsort(-evidence, kind="stable")] + candidates[len(smallest) :]


def _validation(
    strings: Sequence[String], labels: Sequence[bool | int | str], symbols: tuple[str, ...], names: tuple[str, ...]
) -> list[tuple[String, str]]:
    """Validation strings with the names of their labels."""
    if len(strings) != len(labels):
        raise ValueError(f"validation: expected a label for each of {len(strings)} strings, got {len(labels)}")
    told = [names[int(label)] if names == LABELS and label in (0, 1) else str(label) for label in labels]
    for string, name in zip(strings, told, strict=True):
        unknown = [symbol for symbol in string if symbol not in symbols]
        if unknown or name not in names:
            what = f"symbol {unknown[0]!r}" if unknown else f"label {name!r}"
            raise ValueError(
                f"validation: {what} is not in the training strings; give symbols= or leave the string out"
            )
    return list(zip(strings, told, strict=True))
