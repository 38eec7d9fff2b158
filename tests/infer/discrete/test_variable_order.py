"""Variable-order chains against the dense second-order chain that they stand for: values, gradients, paths, draws."""

import math

import pytest
import torch

from pplseq.distributions.dense import CategoricalEmission
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.states import constrain_states
from pplseq.infer.discrete.contexts import VariableOrderChain
from pplseq.kernels.contexts import reference as kernel

close = torch.testing.assert_close
F64 = torch.float64


def layout(size, own):
    """Contexts: pairs (a, b) of their own, then (*, b). Of each pair its context (M, M), and each context's symbol."""
    of_pair = (torch.arange(size) + len(own)).expand(size, size).clone()
    for number, (a, b) in enumerate(own):
        of_pair[a, b] = number
    return of_pair, torch.tensor([b for _, b in own] + list(range(size)))


def chains(size, x, lengths=None, seen=None, zeros=False, spread=1.0, seed=0, **options):
    """The chain, its dense twin over pairs, and the parameters they have in common."""
    torch.manual_seed(seed)
    own = [(a, b) for a in range(size) for b in range(size) if torch.rand(()) < 0.4]
    of_pair, symbol = layout(size, own)
    score = spread * torch.randn(len(symbol), size, dtype=F64)
    words = torch.randn(size, 4, dtype=F64)
    if zeros:
        score[:, 1:] = score[:, 1:].masked_fill(torch.rand_like(score[:, 1:]) < 0.3, -math.inf)
        words[:, 1:] = words[:, 1:].masked_fill(torch.rand_like(words[:, 1:]) < 0.3, -math.inf)
    table, words = (value.log_softmax(-1).requires_grad_() for value in (score, words))
    first = torch.randn(size, dtype=F64).log_softmax(-1).requires_grad_()
    valid = None if lengths is None else torch.arange(len(x))[:, None] < lengths
    options |= {"valid": valid, "seen": seen}
    initial = torch.full((len(symbol),), -math.inf, dtype=F64).index_put((of_pair[-1],), first)
    transition = VariableOrderTransition(initial, table, of_pair[symbol], symbol)
    contexts = build_chain(transition, CategoricalEmission(words[symbol]), x, **options)
    pairs = torch.full((size, size), -math.inf, dtype=F64).index_put((torch.tensor(size - 1), torch.arange(size)), first)
    second = SecondOrderTransition(pairs.flatten(), table[of_pair])
    dense = build_chain(second, CategoricalEmission(words.repeat(size, 1)), x, **options)
    assert isinstance(contexts, VariableOrderChain)
    return contexts, dense, (first, table, words), of_pair.flatten()


def by_context(probs, of_pair):
    """(..., M^2) summed over the pairs of each context."""
    return probs.new_zeros(*probs.shape[:-1], int(of_pair.max()) + 1).index_add(-1, of_pair, probs)


SITUATIONS = {
    "ragged": dict(size=3, lengths=torch.tensor([6, 2, 1, 5])),
    "one symbol": dict(size=1, lengths=torch.tensor([6, 3, 1, 2])),
    "zeros": dict(size=5, lengths=torch.tensor([6, 6, 4, 1]), zeros=True),
    "peaked": dict(size=3, lengths=torch.tensor([6, 5, 4, 3]), spread=400.0),
    "missing": dict(size=4, missing=True),
}


@pytest.fixture(params=list(SITUATIONS))
def both(request, monkeypatch):
    if request.param == "ragged":
        monkeypatch.setattr(kernel, "MAX_MOVES", 4)  # sums in parts
    options = dict(SITUATIONS[request.param])
    x = torch.randint(4, (6, 4), generator=torch.Generator().manual_seed(1))
    if options.get("zeros"):
        x[:] = 0  # the word that all symbols may have
        x[1::2, :2] = 3
    seen = None
    if options.pop("missing", False):
        seen = torch.ones(6, 4, dtype=torch.bool)
        seen[2, :2] = seen[0, 3] = False
    return chains(options.pop("size"), x, options.pop("lengths", None), seen, check=False, **options)


def test_log_prob_and_gradients(both):
    contexts, dense, parameters, _ = both
    close(contexts.token_log_probs(), dense.token_log_probs())
    possible = ~torch.isneginf(dense.log_prob())
    assert possible.any()
    found, expected = (torch.autograd.grad(chain.log_prob()[possible].sum(), parameters) for chain in (contexts, dense))
    close(found, expected)


def test_states_counts_and_entropy(both):
    contexts, dense, _, of_pair = both
    possible = ~torch.isneginf(dense.log_prob())
    for ask in ("marginals", "filtered_states", "predicted_states"):
        found, expected = getattr(contexts, ask)().probs, by_context(getattr(dense, ask)().probs, of_pair)
        close(found[possible], expected[possible])
    close(contexts.entropy()[possible], dense.entropy()[possible])
    probs = contexts.marginals().probs[possible]
    goes_on = probs[:, 1:].sum(-1, keepdim=True) > 0
    close(contexts.pair_marginals().probs[possible].sum(-1), probs[:, :-1] * goes_on)
    if possible.all():
        found, expected = contexts.expected_counts(), dense.expected_counts()
        close(found.occupancy, by_context(expected.occupancy, of_pair))
        pairs = expected.transition.flatten(0, 1)
        close(found.transition, pairs.new_zeros(found.transition.shape).index_add(0, of_pair, pairs))
        close(contexts.next_after(contexts.filtered()).state_log_probs.exp(),
              by_context(dense.next_after(dense.filtered()).state_log_probs.exp(), of_pair))  # fmt: skip


def test_paths(both):
    contexts, dense, _, of_pair = both
    possible = ~torch.isneginf(dense.log_prob())
    (path, log_prob), (_, expected) = contexts.viterbi(), dense.viterbi()
    close(log_prob[possible], expected[possible])
    paths, log_probs = contexts.k_best(5)
    close(path[possible], paths[0, possible])
    others, expected = dense.k_best(5)
    close(log_probs[:, possible], expected[:, possible])
    symbols = torch.cat([contexts.transition.symbol, torch.tensor([-1])])
    size = contexts.transition.num_symbols
    there = (log_probs > -math.inf) & (log_probs.diff(dim=0, append=log_probs[-1:] - 1).abs() > 1e-9)
    there[1:] &= (log_probs[1:] - log_probs[:-1]).abs() > 1e-9  # ties may come in any order
    for k, row in (there & possible).nonzero().tolist():
        tags = torch.where(others[k, row] < 0, -1, others[k, row] % size)
        assert symbols[paths[k, row]].tolist() == tags.tolist()


def test_draws():
    x = torch.randint(4, (5, 1), generator=torch.Generator().manual_seed(2))
    contexts, _, _, _ = chains(3, x)
    torch.manual_seed(0)
    drawn = contexts.sample(4000)[:, 0]
    shares = torch.nn.functional.one_hot(drawn, contexts.transition.num_states).double().mean(0)
    close(shares, contexts.marginals().probs[0], atol=0.03, rtol=0)


def test_under_an_automaton():
    x = torch.randint(4, (5, 2), generator=torch.Generator().manual_seed(3))
    contexts, dense, _, _ = chains(3, x)
    # symbol 0 an even number of times
    flips = torch.tensor([[1, 0], [0, 1]])
    size = contexts.transition.num_symbols
    classes = (contexts.transition.symbol > 0).long(), (torch.arange(size**2) % size > 0).long()
    even = torch.tensor([True, False])
    found, expected = (
        constrain_states(chain, WordMoves.of(c, flips, even, 0)).log_prob()
        for chain, c in zip((contexts, dense), classes, strict=True)
    )
    close(found, expected)


def test_what_is_refused():
    x = torch.zeros(3, 2, dtype=torch.long)
    contexts, *_ = chains(3, x)
    with pytest.raises(TypeError, match="no tables of steps"):
        contexts.differentiable_entropy()
    table = torch.full((3, 3), 1 / 3).log()
    start, symbol = table[0], torch.arange(3)
    with pytest.raises(ValueError, match="end with the symbol"):
        VariableOrderTransition(start, table, torch.zeros(3, 3, dtype=torch.long), symbol)
    with pytest.raises(ValueError, match=r"contexts 0\.\.2"):
        VariableOrderTransition(start, table, symbol.expand(3, 3) + 1, symbol)
    with pytest.raises(ValueError, match="successor"):
        VariableOrderTransition(start, table, symbol.expand(2, 3), symbol)
    with pytest.raises(ValueError, match="one batch dimension"):
        build_chain(contexts.transition, contexts.emission, x[:, 0])
