"""What only block-sparse chains have: dropped states, nested plates, words against states, and nothing Z x Z."""

import math

import pytest
import torch
from support.grids import grid
from support.path_truth import PathTruth
from support.tiny_chains import case
from support.tiny_families import FAMILIES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pplseq.distributions import block
from pplseq.distributions.block import BlockEmission, EmbeddingTransition, TableTransition
from pplseq.distributions.state import MISSING, Belief
from pplseq.infer.discrete import block as block_chain
from pplseq.infer.discrete import gap_sums as gaps
from pplseq.infer.discrete.block import BlockChain
from pplseq.infer.discrete.build import build_chain
from pplseq.kernels import log_semiring, path_scan
from pplseq.models.vlhmm.program import VLHMM

F64 = torch.float64
close = torch.testing.assert_close


# ------------------------------------------------------------------------------------------------ dropped states
def dropped(family, rate=0.5):
    """Specs over the kept states only, and the kept states (Z,)."""
    layout = family.layout.dropped(rate)
    kept = layout.kept_ids
    initial = family.start[kept].log_softmax(-1)
    _, emission = family.specs()
    first = family.layout.state_ids[:, :1]
    slot = (layout.state_ids - first)[family.block_of_word]
    emission = BlockEmission(layout, family.block_of_word, emission.word_log_probs.gather(-1, slot))
    options = dict(reset_id=family.reset_id, emission=emission)
    if hasattr(family, "out"):
        transition = EmbeddingTransition(
            layout, initial, family.out[kept], family.into[kept], out_of=lambda ids: family.out[ids], **options
        )
    else:
        transition = TableTransition(layout, initial, family.score(), **options)
    is_kept = torch.zeros(family.num_states, dtype=torch.bool).index_fill_(0, kept, True)
    return transition, emission, is_kept


def dropped_truth(family, is_kept, x, start=None):
    """Dense tables of a row with every dropped state closed and the rest normalised again."""
    score = family.score().masked_fill(~is_kept, -math.inf).log_softmax(-1)
    initial = family.start.masked_fill(~is_kept, -math.inf).log_softmax(-1)
    matrices, restart = [], family.reset_id
    for word in x[:-1]:
        matrices.append(initial.expand_as(score) if restart is not None and int(word) == restart else score)
    if start is not None:
        belief, last = start
        first = initial.expand_as(score) if restart is not None and last == restart else score
        joint = belief.unsqueeze(-1) + first
        open_states = ~torch.isneginf(joint).all(0)
        initial = joint[:, open_states].logsumexp(0).new_full((len(score),), -math.inf).masked_scatter(
            open_states, joint[:, open_states].logsumexp(0)
        )
    emit = family.tables()[2](x).masked_fill(~is_kept, -math.inf)
    return PathTruth(initial, torch.stack(matrices) if matrices else emit.new_zeros(0, *score.shape), emit)


@pytest.mark.parametrize("family", ["Blocks", "UnevenBlocks", "Table", "OneBlock", "Reset", "ResetOneBlock"])
def test_dropped_states(family):
    family = FAMILIES[family](seed=1)
    transition, emission, is_kept = dropped(family)
    x = torch.tensor([[0, 2, 1, 4], [1, 3, 3, 0]])
    inputs = family.inputs(x.T, None, None)
    chain = build_chain(transition, emission, x.T, inputs=inputs)
    truths = [dropped_truth(family, is_kept, row) for row in x]
    expected = torch.stack([t.log_prob for t in truths])
    close(chain.log_prob(), expected)
    for a, b in zip(
        torch.autograd.grad(chain.log_prob().sum(), family.parameters),
        torch.autograd.grad(expected.sum(), family.parameters),
        strict=True,
    ):
        close(a, b)
    assert is_kept[chain.viterbi()[0]].all() and is_kept[chain.sample(20)].all()
    close(chain.marginals().dense(family.num_states)[0], truths[0].marginals())
    close(chain.filtered().dense(family.num_states)[1].exp(), truths[1].filtered().exp())


@pytest.mark.parametrize("family", ["Blocks", "UnevenBlocks", "Table", "Reset", "ResetOneBlock"])
def test_a_belief_carried_to_other_kept_states(family):
    family = FAMILIES[family](seed=2)
    x = torch.tensor([[0, 2, 1, 4], [1, 3, 3, 1]])
    before, after = x[:, :2], x[:, 2:]
    first = dropped(family)
    second = dropped(family)
    while torch.equal(first[2], second[2]):
        second = dropped(family)
    belief = build_chain(*first[:2], before.T, inputs=family.inputs(before.T, None, None)).filtered()
    chain = build_chain(*second[:2], after.T, start=belief, inputs=family.inputs(after.T, None, belief))
    truths = []
    for row in range(2):
        carried = dropped_truth(family, first[2], before[row]).filtered()
        truths.append(dropped_truth(family, second[2], after[row], (carried, int(before[row, -1]))))
    expected = torch.stack([t.log_prob for t in truths])
    close(chain.log_prob(), expected)
    for a, b in zip(
        torch.autograd.grad(chain.log_prob().sum(), family.parameters, allow_unused=True),
        torch.autograd.grad(expected.sum(), family.parameters, allow_unused=True),
        strict=True,
    ):
        if a is not None or b is not None:
            close(a, b)
    close(chain.marginals().dense(family.num_states)[0], truths[0].marginals())


def test_the_next_word_under_dropout():
    family = FAMILIES["UnevenBlocks"](seed=3)
    transition, emission, is_kept = dropped(family)
    x = torch.tensor([[0, 2, 3]])
    result = build_chain(transition, emission, x.T).next()
    now = dropped_truth(family, is_kept, x[0]).filtered()
    states = now.exp() @ family.score().masked_fill(~is_kept, -math.inf).log_softmax(-1).exp()
    close(result.state_log_probs[0].exp(), states.detach())
    close(result.word_log_probs[0].exp(), (family.tables()[2](torch.arange(5)).exp() @ states).detach())


def test_missing_tokens_under_dropout():
    family = FAMILIES["UnevenBlocks"](seed=4)
    transition, emission, is_kept = dropped(family)
    x, seen = torch.tensor([[0, 2, 3, 1]]), torch.tensor([[True, False, True, False]])
    chain = build_chain(transition, emission, x.T, seen=seen.T)
    truth = dropped_truth(family, is_kept, x[0])
    truth = PathTruth(truth.initial, truth.matrices, truth.emit.where(seen.T, torch.zeros(()).to(F64)))
    close(chain.log_prob()[0], truth.log_prob)
    close(chain.marginals().dense(family.num_states)[0], truth.marginals())
    close(chain.viterbi()[1][0], truth.scores.max().detach())
    close(truth.score_of(chain.viterbi()[0][0]), truth.scores.max().detach())


# ------------------------------------------------------------------------------------------------ shapes of batches
@grid({"situation": ["plain", "ragged", "missing"], "family": ["Reset", "UnevenBlocks", "ResetOneBlock"]})
def test_batches_of_other_shapes(family, situation):
    c = case(family, situation)
    rows = c.obs.shape[1]

    def folded(value):
        return None if value is None else torch.stack([value, value.flip(1)], 1)

    options = dict(valid=folded(c.valid), seen=folded(c.seen), inputs=folded(c.inputs))
    chain = build_chain(*c.family.specs(), folded(c.obs), **options)
    flat = c.chain()
    assert chain.log_prob().shape == (2, rows)
    close(chain.log_prob()[0], flat.log_prob())
    close(chain.log_prob()[1], flat.log_prob().flip(0))
    close(chain.token_log_probs()[0], flat.token_log_probs())
    for query in (lambda c: c.viterbi()[0], lambda c: c.k_best(2)[0][0]):
        close(query(chain)[0], query(flat))
    close(chain.viterbi()[1][0], flat.viterbi()[1])
    close(chain.k_best(2)[1][:, 0], flat.k_best(2)[1])
    close(chain.entropy()[0], flat.entropy())
    close(chain.pair_marginals().probs[0], flat.pair_marginals().probs)
    z = c.family.num_states
    close(chain.filtered().dense(z)[0], flat.filtered().dense(z))
    close(chain.next().state_log_probs[0], flat.next().state_log_probs)
    close(chain.next().word_log_probs[0], flat.next().word_log_probs)
    close(chain.expected_counts().occupancy, 2 * flat.expected_counts().occupancy)
    assert chain.sample(3).shape == (3, 2, rows, len(c.obs))
    if situation != "missing":
        close(chain.marginals().dense(z)[0], flat.marginals().dense(z))
    # a start of that shape too
    again = build_chain(*c.family.specs(), folded(c.obs), **options, start=chain.filtered())
    if c.inputs is None:
        close(again.log_prob()[0], c.chain(start=flat.filtered()).log_prob())


def test_no_batch_dimension():
    c = case("Reset", "plain")
    one = build_chain(*c.family.specs(), c.obs[:, 0], inputs=c.inputs[:, 0])
    close(one.log_prob(), c.chain().log_prob()[0])
    close(one.viterbi()[0], c.chain().viterbi()[0][0])
    close(one.next().word_log_probs, c.chain().next().word_log_probs[0])


# ------------------------------------------------------------------------------------------------ observed states
def test_a_state_outside_its_words_block_is_impossible():
    c = case("UnevenBlocks", "plain")
    states = torch.full_like(c.obs, -1)
    states[2, 1] = int(c.family.layout.state_ids[(c.family.block_of_word[c.obs[2, 1]] + 1) % 3, 0])
    with pytest.raises(ValueError, match="row 1, step 2"):
        c.chain(states=states).log_prob()


def test_counts_of_a_reset_model_include_restarts():
    c = case("ResetOneBlock", "plain")
    counts = c.chain().expected_counts()
    close(counts.transition.sum(), torch.tensor(float((len(c.obs) - 1) * c.obs.shape[1]), dtype=F64))


# ------------------------------------------------------------------------------------------------ sizes
class LargestTensor(TorchDispatchMode):
    """Records how many numbers the largest tensor that any operation returns owns."""

    def __init__(self):
        super().__init__()
        self.numel, self.operations, self.what = 0, 0, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                owned = leaf.untyped_storage().nbytes() // leaf.element_size()  # an expanded view owns little
                if owned > self.numel:
                    self.numel, self.what = owned, (str(func), tuple(leaf.shape))
        return result


@pytest.mark.parametrize("reset_id", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_nothing_is_z_by_z(reset_id, monkeypatch):
    monkeypatch.setattr(block, "WIDE_CELLS", 1 << 16)
    monkeypatch.setattr(log_semiring, "KEEP_CELLS", 0)
    for module in (log_semiring, path_scan):
        monkeypatch.setattr(module, "MAX_CELLS", 1 << 18)
    for module in (gaps, block_chain):
        monkeypatch.setattr(module, "GAP_CELLS", 1 << 17)
    num_blocks, width, num_words = 64, 32, 128
    num_states = num_blocks * width
    model = VLHMM(
        num_states, num_words=num_words, blocks=torch.arange(num_words) % num_blocks, hidden_size=16, reset_id=reset_id
    )
    x = torch.randint(num_words, (2, 6))
    x[0, 2] = x[1, 5] = MISSING
    x[1, 1:3] = MISSING
    with LargestTensor() as largest:
        model(x)
        model.chain.log_prob().sum().backward()
    assert largest.operations > 500, "the backward was not seen"
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert largest.numel <= 1 << 20, largest.what  # Z x Z is 1 << 22
    with LargestTensor() as largest:
        chain = model.posterior(x)
        chain.viterbi(), chain.sample(2), chain.marginals(), chain.filtered(), chain.next()
        model.posterior(x[:, :2], start=chain.filtered()).log_prob()
    assert largest.numel <= 1 << 20, largest.what


def test_tiles_change_nothing(monkeypatch):
    def answers():
        results = []
        for family in ("Reset", "UnevenBlocks"):
            for situation in ("missing and ragged", "leading and trailing", "start and empty rows", "all missing"):
                c = case(family, situation)
                chain = c.chain()
                log_prob = chain.log_prob()
                gradients = torch.autograd.grad(log_prob.sum(), c.family.parameters, allow_unused=True)
                zero = torch.zeros((), dtype=F64)
                results += [log_prob.detach(), *(zero if g is None else g for g in gradients)]
                results += [chain.viterbi()[0], chain.marginals().dense(6), chain.filtered().dense(6)]
                results += [chain.next().word_log_probs]
        return results

    expected = answers()
    monkeypatch.setattr(block, "WIDE_CELLS", 13)
    for module in (gaps, block_chain):
        monkeypatch.setattr(module, "GAP_CELLS", 1)
    for got, wanted in zip(answers(), expected, strict=True):
        close(got, wanted)


def test_missing_words_need_one_batch_dimension():
    c = case("UnevenBlocks", "missing")
    obs, seen = (value.unsqueeze(1).expand(-1, 2, -1) for value in (c.obs, c.seen))
    chain = build_chain(*c.family.specs(), obs, seen=seen)
    for query in (chain.missing_words, chain.sample_words, chain.marginals, chain.filtered_states):
        with pytest.raises(ValueError, match="one batch dimension"):
            query()


def test_queries_that_need_all_pairs_are_refused_at_large_sizes(monkeypatch):
    from pplseq.infer.discrete import gap as gap_chain

    monkeypatch.setattr(gap_chain, "DENSE_STATES", 3)
    chain = case("UnevenBlocks", "missing").chain()
    for query in (chain.pair_marginals, chain.expected_counts, lambda: chain.k_best(2)):
        with pytest.raises(ValueError, match="offered up to 3 states.*fill the gaps first"):
            query()


def test_build_chain_gives_the_narrow_chain_without_gaps():
    assert type(case("Reset", "ragged").chain()) is BlockChain
    assert type(case("Reset", "missing").chain()) is not BlockChain


def test_a_start_whose_last_word_is_unknown_never_resets():
    c = case("Reset", "start and empty rows")
    start = Belief(None, c.start.log_probs)
    obs = torch.full_like(c.obs, c.family.reset_id)  # also behind the rows, where it must not count
    inputs = c.family.inputs(obs, None, start)
    belief = build_chain(*c.family.specs(), obs, valid=c.valid, start=start, inputs=inputs).filtered()
    empty = c.lengths == 0
    assert (belief.last_observation[empty] < MISSING).all() and (belief.last_observation[~empty] == c.family.reset_id).all()
