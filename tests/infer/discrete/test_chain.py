"""Every query of every family of chains against enumeration of all paths."""

import itertools
import math

import pytest
import torch
from support.tiny_chains import case, cases, dense_pairs
from support.tiny_families import FAMILIES

from pplseq.infer.discrete.build import build_chain

every_case = pytest.mark.parametrize("family, situation", list(cases()))
close = torch.testing.assert_close


def by_row(c, query):
    return [query(truth) for truth in c.truths]


@every_case
def test_log_prob_and_its_gradient(family, situation):
    c = case(family, situation)
    result, expected = c.chain().log_prob(), torch.stack(by_row(c, lambda t: t.log_prob))
    close(result, expected)
    weight = torch.linspace(0.5, 2.0, len(expected), dtype=expected.dtype)
    parameters = c.family.parameters
    if not expected.requires_grad:
        return
    wanted = torch.autograd.grad((expected * weight).sum(), parameters, allow_unused=True, retain_graph=True)
    got = torch.autograd.grad((result * weight).sum(), parameters, allow_unused=True)
    for parameter, a, b in zip(parameters, got, wanted, strict=True):
        zero = torch.zeros_like(parameter)
        close(zero if a is None else a, zero if b is None else b)


@every_case
def test_token_log_probs(family, situation):
    c = case(family, situation)
    result = c.chain().token_log_probs()
    expected = torch.zeros_like(result)
    for row, truth in enumerate(c.truths):
        expected[row, : truth.num_steps] = truth.token_log_probs()
    if c.states is None:
        close(result, expected)
    close(result.sum(1), expected.sum(1))


@every_case
def test_marginals(family, situation):
    c = case(family, situation)
    result = c.chain().marginals().dense(c.family.num_states)
    for row, truth in enumerate(c.truths):
        close(result[row, : truth.num_steps], truth.marginals())
        assert (result[row, truth.num_steps :] == 0).all()


@every_case
def test_filtered_states(family, situation):
    c = case(family, situation)
    if c.states is not None:
        return  # a prefix of a row with hidden words and known states is no row of this kind
    result = c.chain().filtered_states().dense(c.family.num_states)
    for row, truth in enumerate(c.truths):
        for t in range(truth.num_steps):
            close(result[row, t], truth.prefix(t + 1).marginals()[-1])
        assert (result[row, truth.num_steps :] == 0).all()


@every_case
def test_pair_marginals(family, situation):
    c = case(family, situation)
    result = dense_pairs(c, c.chain().pair_marginals())
    for row, truth in enumerate(c.truths):
        last = max(0, truth.num_steps - 1)
        close(result[row, :last], truth.pair_marginals())
        assert (result[row, last:] == 0).all()


@every_case
def test_viterbi(family, situation):
    c = case(family, situation)
    paths, log_prob = c.chain().viterbi()
    for row, truth in enumerate(c.truths):
        close(log_prob[row], truth.scores.max().detach())
        close(truth.score_of(paths[row, : truth.num_steps]), truth.scores.max().detach())
        assert (paths[row, truth.num_steps :] == -1).all()


@every_case
def test_k_best(family, situation):
    c = case(family, situation)
    for k in (3, 100):
        check_k_best(c, k)


def check_k_best(c, k):
    paths, log_probs = c.chain().k_best(k)
    assert paths.shape == (k, *c.seen.T.shape) and log_probs.shape == (k, c.seen.shape[1])
    for row, truth in enumerate(c.truths):
        expected = truth.scores.detach().sort(descending=True).values[:k]
        expected = torch.cat([expected, expected.new_full((k - len(expected),), -math.inf)])
        close(log_probs[:, row], expected)
        possible = torch.isfinite(expected)
        found = [tuple(path) for path in paths[possible, row, : truth.num_steps].tolist()]
        assert len(set(found)) == len(found), "the same path twice"
        for path, log_prob in zip(found, expected, strict=False):
            close(truth.score_of(path), log_prob)
        assert (paths[:, row, truth.num_steps :] == -1).all()


@every_case
def test_sample(family, situation):
    c = case(family, situation)
    torch.manual_seed(1)
    num_samples = 1000
    samples = c.chain().sample(num_samples)
    assert samples.shape == (num_samples, *c.seen.T.shape)
    for row, truth in enumerate(c.truths):
        assert (samples[:, row, truth.num_steps :] == -1).all()
        z, steps = truth.num_states, truth.num_steps
        assert torch.isfinite(torch.stack([truth.score_of(path) for path in samples[:20, row, :steps]])).all()
        agree(torch.nn.functional.one_hot(samples[:, row, :steps], z).to(truth.probs), truth.marginals())
        if steps > 1:
            pairs = samples[:, row, : steps - 1] * z + samples[:, row, 1:steps]
            agree(torch.nn.functional.one_hot(pairs, z * z).to(truth.probs), truth.pair_marginals().flatten(-2))


def agree(drawn, probs):
    """Frequencies (S, ...) within 5 standard errors (and one draw) of their probabilities; impossible ones are zero."""
    frequency, error = drawn.mean(0), (probs * (1 - probs) / len(drawn)).clamp_min(0).sqrt()
    assert (frequency[probs == 0] == 0).all(), "an impossible path was drawn"
    assert ((frequency - probs).abs() <= 5 * error + 1 / len(drawn)).all()


@every_case
def test_filtered(family, situation):
    c = case(family, situation)
    if c.start is None and bool((c.lengths == 0).any()):
        return
    result = c.chain().filtered().dense(c.family.num_states)
    for row, truth in enumerate(c.truths):
        expected = truth.filtered() if truth.num_steps else c.start.dense(c.family.num_states)[row]
        close(result[row], expected)


@every_case
def test_expected_counts(family, situation):
    c = case(family, situation)
    counts, z = c.chain().expected_counts(), c.family.num_states
    marginals = [truth.marginals() for truth in c.truths]
    start = sum(m[0] for m in marginals if len(m)) if c.start is None else torch.zeros(z)
    close(counts.start, torch.as_tensor(start, dtype=counts.start.dtype))
    close(counts.occupancy, sum(m.sum(0) for m in marginals))
    expected = sum((truth.pair_marginals().sum(0) for truth in c.truths), counts.occupancy.new_zeros(z, z))
    transition = counts.transition
    if counts.block_pairs is not None:
        ids = c.family.layout.state_ids
        index = ids[counts.block_pairs[:, 0]].unsqueeze(-1) * z + ids[counts.block_pairs[:, 1]].unsqueeze(-2)
        transition = expected.new_zeros(z * z).index_add(0, index.reshape(-1), transition.reshape(-1)).view(z, z)
    close(transition, expected)


@every_case
def test_entropy(family, situation):
    c = case(family, situation)
    close(c.chain().entropy(), torch.stack(by_row(c, lambda t: t.entropy())))


@every_case
def test_next(family, situation):
    c = case(family, situation)
    if c.start is None and bool((c.lengths == 0).any()):
        return
    chain = c.chain()
    inputs = None
    if c.family.input_dims == 1:
        inputs = c.inputs.cos()[0]
    if c.family.reset_id is not None:
        inputs = chain.filtered().last_observation
    result = chain.next() if c.family.input_dims == 0 else chain.next(inputs)
    _, _, emission = c.family.tables()
    for row, truth in enumerate(c.truths):
        now = truth.filtered() if truth.num_steps else c.start.dense(c.family.num_states)[row]
        states = (now.exp() @ c.family.matrix(None if inputs is None else inputs[row]).exp()).log().detach()
        close(result.state_log_probs[row], states)
        if result.word_log_probs is not None:
            words = emission(torch.arange(c.family.num_words)).exp() @ states.exp()
            close(result.word_log_probs[row].exp(), words.detach())
    assert (result.word_log_probs is None) == (family == "Gaussian")


def segmentations(steps):
    for cuts in itertools.product([False, True], repeat=steps - 1):
        edges = [0, *(t + 1 for t, cut in enumerate(cuts) if cut), steps]
        yield list(itertools.pairwise(edges))


@every_case
def test_continuing_from_a_belief_is_one_chain(family, situation):
    c = case(family, situation)
    if c.start is None and bool((c.lengths == 0).any()):
        return
    specs = c.family.specs()
    whole = c.chain()
    log_prob, last = whole.log_prob().detach(), whole.filtered().dense(c.family.num_states)
    for segments in segmentations(len(c.seen)):
        belief, total = c.start, 0.0
        for begin, end in segments:
            part = slice(begin, end)
            states = None if c.states is None else c.states[part]
            inputs = c.family.inputs(c.obs[part], c.seen[part], belief)
            if c.family.input_dims == 1:
                inputs = c.inputs[part]
            chain = build_chain(
                *specs, c.obs[part], valid=c.valid[part], seen=c.seen[part], states=states, start=belief, inputs=inputs
            )
            total = total + chain.log_prob().detach()
            belief = chain.filtered()
        close(total, log_prob, msg=lambda m, s=segments: f"{s}: {m}")
        close(belief.dense(c.family.num_states), last)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family):
    c = case(family, "ragged")
    chain = c.chain()
    for row, length in enumerate(c.lengths.tolist()):
        part = (slice(0, length), slice(row, row + 1))
        inputs = None if c.inputs is None else c.inputs[part]
        alone = build_chain(*c.family.specs(), c.obs[part], inputs=inputs)
        close(chain.log_prob()[row], alone.log_prob()[0])
        close(chain.viterbi()[0][row, :length], alone.viterbi()[0][0])
        close(chain.entropy()[row], alone.entropy()[0])
        close(chain.filtered().dense(c.family.num_states)[row], alone.filtered().dense(c.family.num_states)[0])
