"""Substates of tags: EM on tagged text against a dense chain and the block-sparse one, splitting, merging."""

import numpy as np
import pytest
import torch

from pplseq.data.columns import TaggedSentence
from pplseq.distributions.block import BlockEmission, TableTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.models.taggers.latent import LatentTagger
from pplseq.models.taggers.substates import split_merge
from pplseq.models.taggers.substates.split_merge import SubstateModel, TaggedTokens

TAG_OF_SYMBOL = [0, 0, 1, 1, 1, 2, 3]  # the last is the boundary
ROWS = [[0, 2, 5, 3, 1], [4], [], [1, 1, 0, 2, 3, 4, 5, 5], [2, 0], [5, 3, 4, 0], [3, 3, 3]]
TOKENS = TaggedTokens.pack(ROWS, TAG_OF_SYMBOL)


def random_model(sizes=(3, 2, 4, 1), seed=0) -> SubstateModel:
    """All probabilities are drawn; the tags have different numbers of substates."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(sizes)
    width, tag = int(sizes.max()), torch.tensor(TAG_OF_SYMBOL)
    filled = split_merge.filled_slots(sizes, width).double()
    before, after = TOKENS.pairs.unbind(-1)
    transition = torch.rand(len(before), width, width, generator=rng, dtype=torch.float64) + 0.05
    transition = transition * filled[before, :, None] * filled[after, None, :]
    emission = (torch.rand(len(tag), width, generator=rng, dtype=torch.float64) + 0.05) * filled[tag]
    return split_merge.maximise(split_merge.SubstateCounts(0.0, transition, emission, TOKENS.pairs), tag, sizes)


def dense_twin(model: SubstateModel):
    """log p and expected counts, summed over all paths of states one sentence after the other."""
    matrix, tag = model.matrix(), torch.tensor(TAG_OF_SYMBOL)
    filled = split_merge.filled_slots(model.sizes, model.width)
    of_state, slot = filled.nonzero(as_tuple=True)
    emission = torch.zeros(len(of_state), len(tag), dtype=torch.float64)
    for z in range(len(of_state)):
        own = tag == of_state[z]
        emission[z, own] = model.emission[own, slot[z]]
    log_prob, transition, visits = 0.0, torch.zeros_like(matrix), torch.zeros_like(emission)
    for row in ROWS:
        if not row:
            continue
        row = [*row, len(tag) - 1]
        alphas, beta = [matrix[-1] * emission[:, row[0]]], torch.ones(len(matrix), dtype=torch.float64)
        for symbol in row[1:]:
            alphas.append(alphas[-1] @ matrix * emission[:, symbol])
        total = alphas[-1].sum()
        log_prob += float(total.log())
        for t in range(len(row) - 1, -1, -1):
            visits[:, row[t]] += alphas[t] * beta / total
            before = alphas[t - 1] if t else torch.eye(len(matrix), dtype=torch.float64)[-1]
            transition += before[:, None] * matrix * (emission[:, row[t]] * beta) / total
            beta = matrix @ (emission[:, row[t]] * beta)
    return log_prob, transition, visits


def states_of(counts, model):
    """Counts by state rather than by slots of tags."""
    filled = split_merge.filled_slots(model.sizes, model.width)
    tag, slot = filled.nonzero(as_tuple=True)
    visits = torch.zeros(len(tag), len(TAG_OF_SYMBOL), dtype=torch.float64)
    own = tag[:, None] == torch.tensor(TAG_OF_SYMBOL)
    visits[own] = counts.emission.T[slot][own]
    return SubstateModel(counts.transition, counts.emission, model.sizes, counts.pairs).matrix(), visits


@pytest.mark.parametrize("sizes", [(3, 2, 4, 1), (1, 1, 1, 1), (4, 4, 4, 1)])
def test_expected_counts_are_those_of_the_dense_chain(sizes):
    model = random_model(sizes)
    counts = split_merge.expected_counts(model, TOKENS)
    log_prob, transition, visits = dense_twin(model)
    found_transition, found_visits = states_of(counts, model)
    np.testing.assert_allclose(counts.log_prob, log_prob, rtol=1e-12)
    torch.testing.assert_close(found_transition, transition, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found_visits, visits, rtol=1e-10, atol=1e-12)
    assert float(counts.emission[~split_merge.filled_slots(model.sizes, model.width)[TAG_OF_SYMBOL]].abs().sum()) == 0


def test_expected_counts_are_those_of_the_block_chain():
    model = random_model()
    counts = split_merge.expected_counts(model, TOKENS)
    layout, tag = model.layout, torch.tensor(TAG_OF_SYMBOL)
    matrix = model.matrix().log()
    rows = [[*row, len(tag) - 1] for row in ROWS if row]
    x = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows])
    valid = torch.arange(len(x))[:, None] < torch.tensor([len(row) for row in rows])
    emission = BlockEmission(layout, tag, model.emission.log())
    chain = build_chain(TableTransition(layout, matrix[-1], matrix), emission, x, valid=valid)
    np.testing.assert_allclose(counts.log_prob, float(chain.log_prob().sum()), rtol=1e-12)
    expected = chain.expected_counts()
    for (a, b), block in zip(expected.block_pairs.tolist(), expected.transition, strict=True):
        if a == len(layout.state_ids) - 1:  # the boundary before the first word is no step of the chain
            continue
        found = counts.transition[counts.pairs.tolist().index([a, b])]
        # padded slots of blocks mean nothing
        torch.testing.assert_close(found[: model.sizes[a], : model.sizes[b]], block[: model.sizes[a], : model.sizes[b]])


def fit_em(model, tokens, num_iterations, each=lambda log_prob: None):
    for _ in range(num_iterations):
        counts = split_merge.expected_counts(model, tokens)
        each(counts.log_prob)
        model = split_merge.maximise(counts, tokens.tag_of_symbol, model.sizes)
    return model


def test_likelihood_never_falls():
    model = split_merge.supervised(TOKENS)
    before, seen = -np.inf, []
    for k in range(3):
        model = split_merge.split(model, TOKENS.tag_of_symbol, seed=k, noise=0.3)
        log_probs = []
        model = fit_em(model, TOKENS, 30, log_probs.append)
        assert (np.diff(log_probs) >= -1e-9).all()
        assert log_probs[-1] > before
        before = log_probs[-1]
        seen.append(log_probs)
    assert seen[0][-1] > seen[0][0] + 0.1


def test_supervised_counts():
    model = split_merge.supervised(TOKENS)
    assert model.sizes.tolist() == [1, 1, 1, 1]
    # of six sentences two begin with tag 0
    torch.testing.assert_close(model.matrix()[3], torch.tensor([2, 3, 1, 0], dtype=torch.float64) / 6)
    torch.testing.assert_close(model.emission[:2, 0], torch.tensor([4, 3], dtype=torch.float64) / 7)
    torch.testing.assert_close(model.matrix().sum(-1), torch.ones(4, dtype=torch.float64))
    assert len(model.transition) == len(model.pairs) == int((model.matrix() > 0).sum()) < 16


def test_a_split_without_noise_changes_nothing():
    model = random_model((2, 3, 1, 1))
    parts = split_merge.split(model, TOKENS.tag_of_symbol, noise=0.0)
    assert parts.sizes.tolist() == [4, 6, 2, 1]
    whole = split_merge.expected_counts(model, TOKENS)
    split = split_merge.expected_counts(parts, TOKENS, merge_loss=True)
    np.testing.assert_allclose(split.log_prob, whole.log_prob, rtol=1e-12)
    np.testing.assert_allclose(split.merge_loss, 0, atol=1e-9)
    again, undone = split_merge.merge(split, TOKENS.tag_of_symbol, parts.sizes, 1.0)
    assert int(undone.sum()) == 6 and again.sizes.tolist() == model.sizes.tolist()
    fitted = fit_em(model, TOKENS, 1)
    torch.testing.assert_close(again.transition, fitted.transition)
    torch.testing.assert_close(again.emission, fitted.emission)


def test_merging_undoes_the_least_useful_split():
    """The words of tag 0 tell what follows them; those of the others are all alike."""
    rows = [[0, 2, 1, 3], [0, 2, 0, 2], [1, 3, 1, 3], [1, 3, 0, 2]] * 5
    tokens = TaggedTokens.pack(rows, [0, 0, 1, 2, 3])
    model = split_merge.split(split_merge.supervised(tokens), tokens.tag_of_symbol, noise=0.5, seed=1)
    model = fit_em(model, tokens, 50)
    counts = split_merge.expected_counts(model, tokens, merge_loss=True)
    merged, undone = split_merge.merge(counts, tokens.tag_of_symbol, model.sizes, 0.5)
    assert undone[:, 0].tolist()[0] is False and merged.sizes.tolist()[0] == 2
    assert merged.sizes.sum() == model.sizes.sum() - undone.sum()
    torch.testing.assert_close(merged.matrix().sum(-1), torch.ones(len(merged.matrix()), dtype=torch.float64))
    # the approximation is close to what merging really costs, where one tag is merged
    assert float(counts.merge_loss[0, 0]) > 1.0
    after = split_merge.expected_counts(merged, tokens).log_prob
    assert counts.log_prob - after < 0.1


def test_split_pairs_are_those_of_a_table_of_all_pairs():
    """The same draws, blown up to all pairs of tags and all slots."""
    model, noise, seed = random_model((3, 2, 4, 1)), 0.4, 5
    which = torch.tensor([True, False, True, False])
    parts = split_merge.split(model, TOKENS.tag_of_symbol, noise=noise, seed=seed, which=which)
    num_tags, width = len(model.sizes), parts.width
    draws = torch.rand(num_tags, num_tags, width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole, names = model.matrix(), [(tag, k) for tag in range(num_tags) for k in range(int(model.sizes[tag]))]
    new = [(tag, k) for tag in range(num_tags) for k in range(int(parts.sizes[tag]))]
    rows = []
    for a, i in new:
        row = []
        for b, j in new:
            old = whole[names.index((a, i // 2 if which[a] else i)), names.index((b, j // 2 if which[b] else j))]
            row.append(old * (1 + noise * (2 * draws[a, b, i, j] - 1)) * (0.5 if which[b] else 1.0))
        rows.append(torch.stack(row) / torch.stack(row).sum())
    torch.testing.assert_close(parts.matrix(), torch.stack(rows))


def test_no_words():
    with pytest.raises(ValueError, match="at least one sentence"):
        TaggedTokens.pack([[], []], TAG_OF_SYMBOL)


def test_some_tags_alone_are_split():
    """A tag that is not split keeps its numbers; what the model says of words and tags stays as it is without noise."""
    model = split_merge.split(split_merge.supervised(TOKENS), TOKENS.tag_of_symbol, noise=0.3, seed=2)
    before = split_merge.expected_counts(model, TOKENS).log_prob
    for which in ([True, False], [False, True], [False, False]):
        chosen = torch.tensor([*which, False, False])
        parts = split_merge.split(model, TOKENS.tag_of_symbol, noise=0.0, which=chosen)
        wanted = torch.where(chosen, 2 * model.sizes, model.sizes)
        wanted[-1] = 1
        assert parts.sizes.tolist() == wanted.tolist() and parts.width == int(wanted.max())
        assert split_merge.expected_counts(parts, TOKENS).log_prob == pytest.approx(before, rel=1e-6)
        matrix = parts.matrix()
        torch.testing.assert_close(matrix.sum(-1), torch.ones(len(matrix), dtype=matrix.dtype))


def test_tags_of_few_words_are_not_split():
    text = [TaggedSentence(("a", "b"), ("A", "B"))] * 12 + [TaggedSentence(("c",), ("C",))]
    tagger = LatentTagger(num_substates=8, max_iterations=1, min_count=3).fit(text)
    number = {tag: int((tagger.tag_of_state() == k).sum()) for k, tag in enumerate(tagger.tags)}
    assert number == {"A": 4, "B": 4, "C": 1}
    with pytest.raises(ValueError, match="min_count must not be negative"):
        LatentTagger(min_count=-1)
