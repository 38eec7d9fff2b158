"""Maps of transitions against the whole matrix of a tiny model, and states in words."""

import numpy as np
import pytest
import torch
from support.report_models import WORDS, tiny_model

from pplseq.distributions.block import BlockTransition
from pplseq.report import blocks
from pplseq.report.blocks import (
    TransitionMap,
    describe_groups,
    describe_states,
    group_states,
    informative_transitions,
    top_words,
    transition_map,
)
from pplseq.report.usage import state_usage


def chain_of(model):
    return model.posterior(torch.zeros(1, 1, dtype=torch.long))


def measured(model, text, **options):
    usage = state_usage(model, text, **options)
    groups = group_states(chain_of(model), usage)
    return usage, groups, transition_map(chain_of(model), groups, usage, text)


@torch.no_grad()
def whole_matrix_map(model, usage, groups):
    transition = chain_of(model).transition
    matrix = (transition.log_matrix() if hasattr(transition, "log_matrix") else transition.matrix).exp().numpy()
    start = transition.initial_log_prob().exp().numpy()
    joint = usage.leaving[:, None] * matrix + usage.restarts[:, None] * start
    member = np.eye(len(groups) + 1)[groups.of_state][:, : len(groups)]
    return member.T @ joint @ member


KINDS = [{}, {"reset_id": None}, {"states_per_block": [1, 2, 4, 5]}, {"parameterization": "scalar"}]
KINDS += [{"transition": "hierarchical", "num_topics": 3}]


@pytest.mark.parametrize("options", KINDS)
def test_blocks(text, options):
    model = tiny_model(**options)
    usage, groups, transitions = measured(model, text)
    assert groups.kind == "block" and len(groups) == 4
    np.testing.assert_allclose(transitions.model, whole_matrix_map(model, usage, groups), atol=1e-7)
    assert transitions.model.sum() == pytest.approx(text.num_tokens - 1)
    np.testing.assert_allclose(transitions.probs.sum(1), 1, atol=1e-9)
    assert groups.slot.min() == 0 and groups.slot.max() == 1


def test_no_matrix_of_all_states_is_built(monkeypatch, model, text):
    def forbidden(*args):
        raise AssertionError("this builds Z x Z")

    monkeypatch.setattr(BlockTransition, "log_matrix", forbidden)
    monkeypatch.setattr(BlockTransition, "rows", forbidden)
    monkeypatch.setattr(blocks, "TILE_CELLS", 1)
    largest = 0
    original = blocks.transition_rows

    def spied(transition, states):
        nonlocal largest
        largest = max(largest, len(states))
        return original(transition, states)

    monkeypatch.setattr(blocks, "transition_rows", spied)
    usage, groups, transitions = measured(model, text)
    assert largest == 1
    monkeypatch.undo()
    np.testing.assert_allclose(transitions.model, whole_matrix_map(model, usage, groups), atol=1e-7)


def test_pairs_of_the_text_are_the_expected_counts_of_its_chain(text):
    model = tiny_model(reset_id=None)
    _, _, transitions = measured(model, text)
    counts = model.posterior(torch.from_numpy(text.tokens.astype(np.int64))[None]).expected_counts()
    expected = np.zeros((4, 4))
    for (i, j), mass in zip(counts.block_pairs.tolist(), counts.transition.sum((-1, -2)).tolist(), strict=True):
        expected[i, j] = mass
    np.testing.assert_allclose(transitions.text, expected, atol=1e-8)
    np.testing.assert_allclose(transitions.text_probs.sum(1), 1)


def test_a_model_without_blocks_shows_its_most_used_states(monkeypatch, hmm, text):
    monkeypatch.setattr(blocks, "MAX_STATE_GROUPS", 3)
    usage, groups, transitions = measured(hmm, text, protocol="sentence")
    assert groups.kind == "state" and transitions.text is None
    assert groups.ids.tolist() == np.argsort(-usage.visits)[:3].tolist()
    np.testing.assert_allclose(transitions.model, whole_matrix_map(hmm, usage, groups), atol=1e-7)
    # what goes into the states that are not shown is missing from the rows
    np.testing.assert_allclose(transitions.leaving, usage.leaving[groups.ids], atol=1e-9)
    np.testing.assert_allclose(transitions.probs, hmm.transition[groups.ids][:, groups.ids], atol=1e-7)


def test_one_block_counts_as_none(text):
    model = tiny_model().__class__(6, num_words=len(WORDS), hidden_size=4, reset_id=0).double().eval()
    usage, groups, transitions = measured(model, text)
    assert groups.kind == "state" and len(groups) == 6
    np.testing.assert_allclose(transitions.model, whole_matrix_map(model, usage, groups), atol=1e-7)


def test_informative_transitions():
    def found_in(model):
        model = np.array(model)
        return informative_transitions(TransitionMap(model, model.sum(1), None))

    found = found_in([[9.0, 1.0], [1.0, 9.0]])
    assert found == [(0, 0, pytest.approx(0.9), pytest.approx(1.8)), (1, 1, pytest.approx(0.9), pytest.approx(1.8))]
    assert found_in(np.zeros((2, 2))) == found_in(np.ones((2, 2))) == []


def test_groups_in_words(model, text, vocabulary):
    usage, groups, transitions = measured(model, text)
    counts = np.bincount(text.tokens, minlength=len(WORDS))
    summaries = describe_groups(chain_of(model), groups, transitions, usage, counts, vocabulary)
    assert [group.num_words for group in summaries] == [1, 3, 4, 4]
    assert [group.num_states for group in summaries] == [3] * 4
    assert sum(group.share for group in summaries) == pytest.approx(1)
    for number, group in enumerate(summaries):
        members = [word for word, block in zip(WORDS, model.block_of_word.tolist(), strict=True) if block == number]
        assert {word for word, _ in group.words} == set(members)
        assert group.name == max(members, key=lambda word: counts[WORDS.index(word)])
        assert 1 <= group.effective_states <= 3
        assert all(transitions.probs[number, into] == p for into, p in group.following)


def test_a_block_that_the_text_never_uses(model, vocabulary):
    from pplseq.data.text import Text

    text = Text.from_lines([["the"], ["the", "'s"]], vocabulary)
    usage, groups, transitions = measured(model, text)
    counts = np.bincount(text.tokens, minlength=len(WORDS))
    unused = describe_groups(chain_of(model), groups, transitions, usage, counts, vocabulary)[3]
    assert unused.share == 0 and unused.following == [] and unused.name == "$x$"


@torch.no_grad()
def test_states_in_words(model, text, vocabulary):
    usage, groups, _ = measured(model, text)
    chain = chain_of(model)
    states = describe_states(chain, groups, usage, text, vocabulary, num_states=20)
    assert len(states) == 12 and [s.share for s in states] == sorted((s.share for s in states), reverse=True)
    matrix, start = chain.transition.log_matrix().exp(), chain.transition.initial_log_prob().exp()
    for state in states:
        probs = chain.emission.distribution(torch.tensor(state.id)).probs
        assert state.words[0][1] == pytest.approx(float(probs.max()))
        assert dict(state.words) == pytest.approx({word: float(probs[WORDS.index(word)]) for word, _ in state.words})
        assert state.group == state.id // 3
        row = start if state.group == 0 else matrix[state.id]
        assert dict(state.following) == pytest.approx({g: float(row.view(4, 3)[g].sum()) for g, _ in state.following})
        for before, word, behind, prob in state.contexts:
            lines = [" ".join(vocabulary.decode(line)) for line in text.lines()]
            assert any(" ".join(part for part in (before, word, behind) if part) in line for line in lines)
            assert prob in usage.best_prob[usage.best_state == state.id]


def test_a_block_fills_the_list_with_no_more_than_three(text, vocabulary):
    model = tiny_model(states_per_block=[2, 5, 3, 2])
    usage, groups, _ = measured(model, text)
    states = describe_states(chain_of(model), groups, usage, text, vocabulary, num_states=50)
    assert np.bincount([state.group for state in states]).tolist() == [2, 3, 3, 2]


def test_the_first_word_is_always_there(hmm, vocabulary):
    hmm = type(hmm)(2, num_words=len(WORDS))
    hmm.set_parameters(emission=np.full((2, len(WORDS)), 1 / len(WORDS)))
    assert all(len(words) == 1 for words in top_words(chain_of(hmm), [0, 1], vocabulary, num_words=1))
