"""Properties that hold for every chain, on random ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles.discrete import forward_loop
from support.path_truth import PathTruth

from pplseq.distributions.block import BlockEmission, EmbeddingTransition
from pplseq.distributions.blocks import BlockLayout, WordGroups
from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.infer.discrete.build import build_chain

F64 = torch.float64
close = torch.testing.assert_close
quick = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def dense_chains(draw, max_states=4, max_steps=5, max_rows=3):
    """(initial, matrix, emit table, x (B, T), lengths, seen) with some zeros and any spread of logits."""
    z, v = draw(st.integers(1, max_states)), draw(st.integers(1, 4))
    rows, steps = draw(st.integers(1, max_rows)), draw(st.integers(1, max_steps))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([0.0, 1.0, 10.0, 200.0]))
    tables = [(torch.randn(s, generator=generator, dtype=F64) * spread) for s in ((z,), (z, z), (z, v))]
    if draw(st.booleans()) and z > 1:  # forbidden transitions, but never all of a row
        closed = torch.rand(z, z, generator=generator) < 0.3
        closed[:, 0] = False
        tables[1] = tables[1].masked_fill(closed, -torch.inf)
    tables = [table.log_softmax(-1) for table in tables]
    x = torch.randint(v, (rows, steps), generator=generator)
    lengths = torch.randint(1, steps + 1, (rows,), generator=generator)
    seen = torch.rand(rows, steps, generator=generator) < draw(st.sampled_from([1.1, 0.6]))
    return *tables, x, lengths, seen


def chain_of(initial, matrix, table, x, lengths=None, seen=None, **options):
    valid = None if lengths is None else torch.arange(x.shape[1]).unsqueeze(-1) < lengths
    seen = None if seen is None else seen.T
    return build_chain(
        DenseTransition(initial, matrix), CategoricalEmission(table), x.T, valid=valid, seen=seen, **options
    )


def emission_of(table, x, seen, row, length):
    return torch.where(seen[row, :length].unsqueeze(-1), table.T[x[row, :length]], 0.0)


@quick
@given(dense_chains())
def test_the_loop_is_the_enumeration(chain):
    initial, matrix, table, x, lengths, seen = chain
    got = chain_of(*chain)
    for row, length in enumerate(lengths.tolist()):
        emit = emission_of(table, x, seen, row, length)
        truth = PathTruth(initial, matrix.expand(length - 1, *matrix.shape), emit)
        close(forward_loop(initial, truth.matrices, emit), truth.log_prob)
        close(got.log_prob()[row], truth.log_prob)
        close(got.entropy()[row], truth.entropy(), rtol=1e-6, atol=1e-6)


@quick
@given(dense_chains())
def test_the_gradient_by_the_emission_is_the_marginal(chain):
    initial, matrix, table, x, lengths, seen = chain
    states = torch.eye(len(initial), dtype=F64)  # "words" are one-hot scores, so that each step has a gradient of its own

    class Scores(CategoricalEmission):
        def log_likelihood(self, obs):
            return obs

    steps, rows = x.T.shape
    scores = torch.where(seen.T.unsqueeze(-1), table.T[x.T], 0.0).detach().requires_grad_()
    emission = Scores(states.log())
    emission.event_shape = torch.Size([len(initial)])
    del emission.num_words  # its observations are no word ids
    valid = torch.arange(steps).unsqueeze(-1) < lengths
    got = build_chain(DenseTransition(initial, matrix), emission, scores, valid=valid)
    (gradient,) = torch.autograd.grad(got.log_prob().sum(), scores)
    close(gradient.transpose(0, 1), got.marginals().probs)
    close(gradient.sum(-1), valid.to(F64))


@quick
@given(dense_chains(), st.integers(1, 6))
def test_best_paths_score_best(chain, k):
    initial, matrix, table, x, lengths, seen = chain
    got = chain_of(*chain)
    path, best = got.viterbi()
    paths, log_probs = got.k_best(k)
    assert (log_probs.diff(dim=0).nan_to_num(-1.0) <= 1e-9).all()
    close(log_probs[0], best)
    for row, length in enumerate(lengths.tolist()):
        truth = PathTruth(initial, matrix.expand(length - 1, *matrix.shape), emission_of(table, x, seen, row, length))
        close(truth.score_of(path[row, :length]), truth.scores.max())
        assert best[row] <= got.log_prob()[row] + 1e-9


@quick
@given(dense_chains())
def test_the_filter_of_a_prefix_is_the_prefix_of_the_filter(chain):
    initial, matrix, table, x, lengths, seen = chain
    whole = chain_of(initial, matrix, table, x, None, seen).token_log_probs()
    for steps in range(1, x.shape[1] + 1):
        prefix = chain_of(initial, matrix, table, x[:, :steps], None, seen[:, :steps])
        close(prefix.token_log_probs(), whole[:, :steps])
        shorter = chain_of(initial, matrix, table, x, torch.full((len(x),), steps), seen)
        close(shorter.filtered().log_probs, prefix.filtered().log_probs)


@quick
@given(dense_chains(), st.randoms(use_true_random=False))
def test_new_names_for_states_change_nothing(chain, random):
    initial, matrix, table, x, lengths, seen = chain
    order = list(range(len(initial)))
    random.shuffle(order)
    order = torch.tensor(order)
    got = chain_of(*chain)
    renamed = chain_of(initial[order], matrix[order][:, order], table[order], x, lengths, seen)
    close(renamed.log_prob(), got.log_prob())
    close(renamed.token_log_probs(), got.token_log_probs())
    close(renamed.marginals().probs, got.marginals().probs[..., order])
    close(renamed.viterbi()[1], got.viterbi()[1])
    close(renamed.next().word_log_probs, got.next().word_log_probs)


@quick
@given(dense_chains())
def test_padding_changes_nothing(chain):
    initial, matrix, table, x, lengths, seen = chain
    together = chain_of(*chain)
    for row, length in enumerate(lengths.tolist()):
        alone = chain_of(initial, matrix, table, x[row : row + 1, :length], None, seen[row : row + 1, :length])
        close(together.log_prob()[row], alone.log_prob()[0])
        close(together.marginals().probs[row, :length], alone.marginals().probs[0])
        close(together.viterbi()[1][row], alone.viterbi()[1][0])
        close(together.filtered().log_probs[row], alone.filtered().log_probs[0])
        close(together.next().state_log_probs[row], alone.next().state_log_probs[0])


@st.composite
def block_chains(draw):
    """The same chain as block-sparse specs and as dense ones, with observations."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    words_of = draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    block_of_word = torch.tensor([m for m, count in enumerate(words_of) for _ in range(count)])
    block_of_word = block_of_word[torch.tensor(draw(st.permutations(range(len(block_of_word)))))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([0.3, 3.0, 30.0]))
    layout, words = BlockLayout.from_sizes(sizes), WordGroups(block_of_word, len(sizes))
    z, v = layout.num_states, len(block_of_word)
    initial, out, into, word = (
        torch.randn(s, generator=generator, dtype=F64) * spread for s in ((z,), (z, 2), (z, 2), (v, layout.width))
    )
    emission = BlockEmission(layout, block_of_word, words.log_softmax(words.rows(word)))
    transition = EmbeddingTransition(layout, initial.log_softmax(-1), out, into)
    table = emission.log_likelihood(torch.arange(v)).T
    dense = DenseTransition(initial.log_softmax(-1), (out @ into.T).log_softmax(-1)), CategoricalEmission(table)
    rows, steps = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    x = torch.randint(v, (steps, rows), generator=generator)
    valid = torch.arange(steps).unsqueeze(-1) < torch.randint(1, steps + 1, (rows,), generator=generator)
    seen = torch.rand(steps, rows, generator=generator) < draw(st.sampled_from([1.1, 0.5, 0.0]))
    return (transition, emission), dense, x, dict(valid=valid, seen=seen)


@quick
@given(block_chains())
def test_a_block_sparse_chain_is_its_dense_twin(both):
    specs, dense, x, options = both
    chain, twin = build_chain(*specs, x, **options), build_chain(*dense, x, **options)
    z = specs[0].num_states
    close(chain.log_prob(), twin.log_prob())
    close(chain.marginals().dense(z), twin.marginals().probs)
    close(chain.viterbi()[1], twin.viterbi()[1])
    close(chain.filtered().dense(z).exp(), twin.filtered().dense(z).exp())
    close(chain.next().word_log_probs.exp(), twin.next().word_log_probs.exp())
    close(chain.token_log_probs(), twin.token_log_probs())
    if z > 1:
        with pytest.MonkeyPatch.context() as patch:  # and however small its tiles
            from pplseq.distributions import block

            patch.setattr(block, "WIDE_CELLS", 7)
            again = build_chain(*specs, x, **options)
            close(again.log_prob(), twin.log_prob())
            close(again.marginals().dense(z), twin.marginals().probs)
