"""Automata read off input-output HMMs, models of learnt tables, and EM over prefixes against the chain on padded strings."""

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq.data.tomita import all_strings, tomita
from pplseq.distributions.state import MISSING
from pplseq.models import IOHMM
from pplseq.models.automata.automaton import Automaton
from pplseq.models.automata.em import draw_tables, expected_counts, fit_tables
from pplseq.models.automata.learner import AutomatonLearner
from pplseq.models.automata.of_iohmm import extract_automaton, model_of_tables
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.iohmm.restarts.history import RestartBlock

STRINGS = [s for s in all_strings(4) if s]


def padded(strings, labels=None):
    """Symbols, lengths and outputs with the label at the last step only."""
    lengths = torch.tensor([len(s) for s in strings])
    inputs = torch.nn.utils.rnn.pad_sequence([torch.tensor([int(c) for c in s]) for s in strings], batch_first=True)
    x = torch.full_like(inputs, MISSING)
    if labels is not None:
        x[torch.arange(len(x)), lengths - 1] = torch.tensor(labels)
    return inputs, lengths, x


def hard(table, axis=-1):
    return torch.nn.functional.one_hot(table.argmax(axis), table.shape[axis]).double()


def random_model(seed=0, **options):
    torch.manual_seed(seed)
    return IOHMM(4, num_symbols=2, **({"outputs": "categorical", "num_outputs": 2, "initial": "transition"} | options))


@pytest.mark.parametrize("seed", range(3))
def test_counts_over_prefixes_equal_the_chain_on_padded_strings(seed):
    """log-likelihood, and by Fisher's identity its gradients, which are expected counts."""
    grammar = tomita(3)
    tables = draw_tables((RestartBlock(1),), 3, 2, 2, np.random.default_rng(seed)).restarts(0)
    model = model_of_tables(tables)
    inputs, lengths, x = padded(grammar.strings, [int(label) for label in grammar.labels])
    log_prob = model.log_joint(x, lengths, inputs=inputs)
    tree = PrefixTree.grow(grammar.strings, grammar.labels)
    counts = expected_counts(tree, type(tables)(*(table.unsqueeze(-1) for table in tables)))
    assert float(counts.log_likelihood) == pytest.approx(log_prob.item(), rel=1e-12)
    log_prob.backward()
    for network, count, table in (
        (model.initial_network, counts.start, tables.start),
        (model.transition_network, counts.transition, tables.transition),
        (model.emission_network, counts.output, tables.output),
    ):
        count = count.squeeze(-1)
        expected = count - table * count.sum(-1, keepdim=True)  # of the softmax's logits
        torch.testing.assert_close(network.logits.grad, expected, rtol=1e-8, atol=1e-11)


def test_model_of_learnt_tables_labels_as_the_automaton(tmp_path):
    grammar = tomita(6)
    found = AutomatonLearner(3, blocks=(RestartBlock(30),)).fit(grammar.strings, grammar.labels)
    model = found.model
    inputs, lengths, _ = padded(STRINGS)
    states = model.open_loop(inputs, lengths).outputs  # (B, T, labels)
    label = states[torch.arange(len(STRINGS)), lengths - 1].argmax(-1)
    assert label.tolist() == [int(found.automaton.accepts(s)) for s in STRINGS]
    assert extract_automaton(model).equals(found.automaton)
    assert found.automaton.equals(Automaton.from_regex(grammar.regex, "01"))
    model.save(tmp_path / "model")
    assert extract_automaton(IOHMM.load(tmp_path / "model")).equals(found.automaton)


@grid({
    "seed": range(3),
    "options": [
        {},
        {"mealy": True},
        {"initial": "constant"},
        {"initial": "inputs"},
        {"initial": "inputs", "mealy": True},
        {"outputs": "bernoulli", "num_outputs": 1},
        {"outputs": "states", "num_outputs": None},
        {"graph": "left_right"},
        {"start_states": [2]},
        {"num_outputs": 3, "mealy": True},
    ],
})
def test_automaton_is_the_model_made_hard(options, seed):
    """A model whose every distribution is its own argmax answers every string as the automaton does."""
    model = random_model(seed, **options)
    automaton = extract_automaton(model, empty=1)
    with torch.no_grad():
        for network, allowed in ((model.transition_network, model.graph), (model.initial_network, model.start_states)):
            logits = network.logits if allowed is None else network.logits.masked_fill(~allowed, -torch.inf)
            network.logits.copy_(200.0 * hard(logits))
        if model.emission_network is not None and model.outputs == "categorical":
            model.emission_network.logits.copy_(200.0 * hard(model.emission_network.logits))
    inputs, lengths, _ = padded(STRINGS)
    result = model.open_loop(inputs, lengths)
    found = (result.states if model.outputs == "states" else result.outputs)[torch.arange(len(STRINGS)), lengths - 1]
    found = (found.squeeze(-1) > 0.5).long() if model.outputs == "bernoulli" else found.argmax(-1)
    assert [automaton.labels[label] for label in found.tolist()] == [automaton.classify(s) for s in STRINGS]
    if model.initial != "transition" or model.mealy:
        assert automaton.classify("") == automaton.labels[1]


def test_models_that_are_no_automata():
    with pytest.raises(ValueError, match="model: expected lookup tables of symbols .* got a linear network"):
        extract_automaton(IOHMM(2, num_inputs=1, outputs="categorical", num_outputs=2))
    with pytest.raises(ValueError, match="got 2 of gaussian"):
        extract_automaton(random_model(outputs="gaussian", num_outputs=2))
    with pytest.raises(ValueError, match="symbols: expected 2 names, got 3"):
        extract_automaton(random_model(), "abc")
    with pytest.raises(ValueError, match="labels: expected 2 names, got 1"):
        extract_automaton(random_model(), labels=["a"])


def test_em_over_prefixes_equals_em_on_padded_strings():
    grammar = tomita(6)
    tables = draw_tables((RestartBlock(1),), 3, 2, 2, np.random.default_rng(2))
    tree = PrefixTree.grow(grammar.strings, grammar.labels)
    expected, _ = fit_tables(tree, tables, 4)
    model = model_of_tables(tables.restarts(0))
    inputs, lengths, x = padded(grammar.strings, [int(label) for label in grammar.labels])
    model.fit(x, inputs=inputs, lengths=lengths, method="em", warm_start=True, max_iterations=4, tolerance=0.0)
    for network, table in zip((model.initial_network, model.transition_network, model.emission_network), expected, strict=True):
        torch.testing.assert_close(network.logits.detach().softmax(-1), table[..., 0], rtol=1e-7, atol=1e-9)
