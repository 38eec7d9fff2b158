"""Constrained texts of every family, against the product as one matrix and against every text and path."""

import itertools
import math

import pytest
import torch
from support.grids import grid
from support.oracles.constrained import every_text, product_log_prob
from support.rounding import roundings
from support.tiny_families import FAMILIES

from pplseq.distributions.hierarchical import HierarchicalTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import MISSING
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.constrained.build import constrain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.steps import TiledSteps, wide_steps

F64 = torch.float64
close = torch.testing.assert_close
KINDS = [name for name in FAMILIES if name not in ("Gaussian", "Step")]
RESETS = ["Reset", "ForbiddenReset", "ResetOneBlock"]
# classes of words 0..4: {0, 3}, {1}, {2, 4}; accepted is what has a 1 right behind a 0 or 3, and no 2 or 4 behind that
MOVES = WordMoves.of([0, 1, 2, 0, 2], [[1, 0, 0], [1, 2, 0], [2, 2, 3], [3, 3, 3]], [False, False, True, False])
LOOSE = WordMoves.of([0, 1, 1, 0, 0], [[1, 0], [1, 2], [2, 2]], [True, False, True])  # settles, and may stop at once


class Hierarchical(FAMILIES["UnevenBlocks"]):
    """The next block first, then the state in it."""

    def make_scores(self):
        super().make_scores()
        self.weight, self.bias = self.free(3, 3), self.free(3)

    def score(self):
        inner, blocks = self.out @ self.into.T, (self.out @ self.weight.T + self.bias).log_softmax(-1)
        parts = zip(inner.split(self.sizes, -1), blocks.split(1, -1), strict=True)
        return torch.cat([part.log_softmax(-1) + block for part, block in parts], -1)

    def transition(self, initial, **options):
        return HierarchicalTransition(self.layout, initial, self.out, self.into, self.weight, self.bias, **options)


class Truth:
    """Every text and path of a tiny family, by its hand-made tables: (P, N) words and states, -1 behind the end, and log p."""

    def __init__(self, family, moves, lengths, log_weights=None):
        initial, matrix, emission = (value.detach() if torch.is_tensor(value) else value for value in family.tables())
        table = emission(torch.arange(family.num_words)).T.detach()  # (Z, V)
        resets = family.reset_id is not None
        matrices = torch.stack(
            [family.matrix(torch.tensor(w)).detach() if resets else matrix for w in range(family.num_words)]
        )
        parts = []
        for place, length in enumerate(lengths):
            texts = torch.tensor(list(itertools.product(range(family.num_words), repeat=length)))
            texts = texts[moves.accepting[moves.run(texts)]]
            paths = torch.tensor(list(itertools.product(range(len(initial)), repeat=length)))
            text, path = texts.repeat_interleave(len(paths), 0), paths.repeat(len(texts), 1)
            total = initial[path[:, 0]] + table[path, text].sum(-1)
            for t in range(1, length):
                total = total + matrices[text[:, t - 1], path[:, t - 1], path[:, t]]
            total = total + (0.0 if log_weights is None else log_weights[place])
            pad = (0, max(lengths) - length)
            parts.append(
                (torch.nn.functional.pad(text, pad, value=-1), torch.nn.functional.pad(path, pad, value=-1), total)
            )
        self.words, self.states, self.log_prob = (torch.cat(part) for part in zip(*parts, strict=True))
        possible = self.log_prob > -math.inf
        self.words, self.states, self.log_prob = self.words[possible], self.states[possible], self.log_prob[possible]
        self.total = self.log_prob.logsumexp(0)

    def shares(self, values, size):
        """(N, size) p(values (P, N) are ...)."""
        hot = torch.nn.functional.one_hot(values + 1, size + 1)[..., 1:].to(F64)
        return (hot * (self.log_prob - self.total).exp()[:, None, None]).sum(0)


@grid({"name": [name for name in KINDS if name not in RESETS], "moves": [MOVES, LOOSE]})  # resets are enumerated below
def test_log_prob_and_gradients_are_those_of_the_product(name, moves):
    family = FAMILIES[name](seed=3)
    initial, matrix, emission = family.tables()
    table = emission(torch.arange(family.num_words)).T
    for length in (0, 1, 4):
        got = constrain(*family.specs(), moves, length).log_prob()
        expected = product_log_prob(initial, matrix, table, *moves[:3], moves.start, length)
        close(got, expected.view(1))
        if expected > -math.inf and length:
            ours = torch.autograd.grad(got.sum(), family.parameters, retain_graph=True, allow_unused=True)
            truth = torch.autograd.grad(expected, family.parameters, retain_graph=True, allow_unused=True)
            for mine, own in zip(ours, truth, strict=True):
                zero = torch.zeros(()) if own is None and mine is None else None
                if zero is None:
                    one = mine if mine is not None else own
                    mine, own = (torch.zeros_like(one) if value is None else value for value in (mine, own))
                    close(mine, own)
        with torch.no_grad():
            close(constrain(*family.specs(), moves, length).log_prob(), expected.detach().view(1))


@grid({"name": ["Forbidden", "UnevenBlocks", *RESETS], "moves": [MOVES, LOOSE]})
def test_everything_is_that_of_enumeration(name, moves):
    family = FAMILIES[name](seed=3)
    lengths, weights = (2, 3), torch.tensor([0.3, 0.7], dtype=F64).log()
    truth = Truth(family, moves, lengths, weights)
    with torch.no_grad():
        chain = constrain(*family.specs(), moves, 3, 2, log_lengths=weights)
        close(chain.log_prob()[0], truth.total)
        found = chain.marginals()
        close(found.states[0], truth.shares(truth.states, found.states.shape[-1]))
        close(found.words[0], truth.shares(truth.words, 5))
        behind = torch.stack([moves.run(truth.words[:, : s + 1].clamp_min(0)) for s in range(3)], 1)
        behind = behind.masked_fill(truth.words < 0, -1)
        close(found.automaton[0], truth.shares(behind, moves.num_states))
        size = (truth.words >= 0).sum(-1, keepdim=True)
        close(found.lengths, truth.shares(size, 4))
        close(chain.next()[0].exp(), found.words[0, 0])
        # the best texts and paths, in their order; equal ones in any
        best = truth.log_prob.topk(7)
        got = chain.k_best(7)
        close(got.log_prob[:, 0], best.values)
        both = torch.cat([got.words[:, 0], got.states[:, 0]], -1)
        every = torch.cat([truth.words, truth.states], -1)
        same = (both.unsqueeze(1) == every).all(-1)
        assert same.sum(-1).tolist() == [1] * 7 and len(both.unique(dim=0)) == 7
        close(truth.log_prob[same.long().argmax(-1)], best.values)
        assert got.lengths[:, 0].tolist() == (got.words[:, 0] >= 0).sum(-1).tolist()
        close(chain.viterbi().log_prob[0, 0], best.values[0])


def test_all_texts_and_no_more_are_found_where_there_are_few():
    family = FAMILIES["Forbidden"](seed=3)
    truth = Truth(family, MOVES, (2,))
    with torch.no_grad():
        got = constrain(*family.specs(), MOVES, 2).k_best(len(truth.words) + 3)
    assert int((got.log_prob > -math.inf).sum()) == len(truth.words)
    assert got.lengths[:, 0].tolist() == [2] * len(truth.words) + [0] * 3


@pytest.mark.parametrize("name", ["Forbidden", "UnevenBlocks", *RESETS])
def test_samples_come_as_often_as_they_should(name):
    family = FAMILIES[name](seed=3)
    weights = torch.tensor([0.3, 0.7], dtype=F64).log()
    truth = Truth(family, MOVES, (2, 3), weights)
    torch.manual_seed(0)
    with torch.no_grad():
        found = constrain(*family.specs(), MOVES, 3, 2, log_lengths=weights).sample(4000)
    assert found.words.shape == (4000, 1, 3)
    both = torch.cat([found.words[:, 0], found.states[:, 0]], -1)
    same = (both.unsqueeze(1) == torch.cat([truth.words, truth.states], -1)).all(-1)
    assert bool((same.sum(-1) == 1).all())  # none that is not allowed
    counts, expected = same.sum(0) / 4000, (truth.log_prob - truth.total).exp()
    distance = (counts - expected).abs().sum()
    assert distance < 1.3 * (2 * expected * (1 - expected) / 4000 / math.pi).sqrt().sum()  # its mean, and a third more


@pytest.mark.parametrize("name", ["Dense", "UnevenBlocks", "Reset", "ResetOneBlock"])
def test_behind_a_prefix_and_word_by_word(name):
    family = FAMILIES[name](seed=5)
    x = torch.tensor([[0, 1], [3, 4], [2, 1]])
    with torch.no_grad():
        inputs = family.inputs(x.T, None, None)
        chain = build_chain(*family.specs(), x.T, inputs=inputs)
        start = MOVES.run(x)
        longer = chain.constrained(MOVES, 3, start=start)
        both = constrain(*family.specs(), MOVES, 5)
        joint = both.after_each_word(x[:1])
        for row in range(3):
            close(longer.log_prob()[row], both.after_each_word(x[row : row + 1])[0, 2])
        # p(constraint) is the mean over what comes next
        words = both.words_ahead(both.begin())
        close(words.logsumexp(-1), joint[:, 0])
        at = both.read(both.read(both.begin(), x[:1, 0]), x[:1, 1])
        close(both.words_ahead(at).logsumexp(-1), joint[:, 2])
        close(longer.next()[0], both.words_ahead(at)[0] - joint[0, 2])


@pytest.mark.parametrize("name", ["Dense", "Reset", "UnevenBlocks"])
def test_an_end_word_ends_texts(name):
    family = FAMILIES[name](seed=2)
    end = 1  # of the reset family, the word that resets
    inner = WordMoves.of([0, 1, 1, 0, 0], [[1, 0], [1, 0]], [False, True])
    whole = WordMoves.of([0, 2, 1, 0, 0], [[1, 0, 3], [1, 0, 2], [3, 3, 3], [3, 3, 3]], [False, False, True, False])
    truth = Truth(family, whole, (2, 3))  # with the end word
    with torch.no_grad():
        chain = constrain(*family.specs(), inner, 2, 1, end=end)
        close(chain.log_prob()[0], truth.total)
        drawn = chain.sample(50)
    for row, size in zip(drawn.words[:, 0].tolist(), drawn.lengths[:, 0].tolist(), strict=True):
        assert row[size - 1] == end and row.count(end) == 1 and 2 <= size <= 3


@pytest.mark.parametrize("kind", ["second order", "variable order"])
def test_states_of_two_order(kind):
    torch.manual_seed(0)
    size = 3
    table = torch.randn(size, size, size, dtype=F64, requires_grad=True)
    start = torch.randn(size * size, dtype=F64, requires_grad=True)
    emit = torch.randn(size * size, 5, dtype=F64, requires_grad=True)

    class Words:
        num_states, num_words, batch_shape = size * size, 5, torch.Size()

        def log_likelihood(self, obs):
            return emit.log_softmax(-1).T[obs]

    transition = SecondOrderTransition(start.log_softmax(-1), table.log_softmax(-1))
    if kind == "variable order":
        layout = transition.successor, transition.symbol
        transition = VariableOrderTransition(transition.initial, transition.table.flatten(0, 1), *layout)
    matrix = torch.full((size, size, size, size), -math.inf, dtype=F64)
    own = torch.arange(size)
    matrix = matrix.index_put((own.view(-1, 1), own.view(1, -1), own.view(1, -1)), table.log_softmax(-1))
    matrix = matrix.reshape(9, 9)
    got = constrain(transition, Words(), MOVES, 4).log_prob()
    expected = product_log_prob(transition.initial, matrix, emit.log_softmax(-1), *MOVES[:3], 0, 4)
    close(got, expected.view(1))
    ours, truth = (
        torch.autograd.grad(value, (table, start, emit), retain_graph=True) for value in (got.sum(), expected)
    )
    close(ours, truth)
    with torch.no_grad():
        chain = constrain(transition, Words(), MOVES, 4)
        close(chain.log_prob(), expected.detach().view(1))
        best, marginals = chain.viterbi(), chain.marginals()
        close(marginals.words[0].sum(-1), torch.ones(4, dtype=F64))
        path, words = best.states[0, 0], best.words[0, 0]
        score = (
            transition.initial[path[0]] + matrix[path[:-1], path[1:]].sum() + emit.log_softmax(-1)[path, words].sum()
        )
        close(best.log_prob[0, 0], score)
        assert bool(MOVES.accepting[MOVES.run(words.unsqueeze(0))[0]])


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_tiles_are_the_matrix(monkeypatch, kept_bytes, dtype):
    monkeypatch.setattr("pplseq.infer.discrete.constrained.steps.WIDE_CELLS", 12)
    monkeypatch.setattr("pplseq.distributions.hierarchical.WIDE_CELLS", 12)
    for kind in (FAMILIES["UnevenBlocks"], FAMILIES["ForbiddenBlocks"], Hierarchical):
        family = kind(seed=1, scale=40.0, dtype=dtype)  # entries far apart
        matrix = family.tables()[1].detach()
        for messages in (
            torch.randn(4, 6, dtype=dtype) * 40,
            torch.tensor([[-math.inf] * 5 + [0.0], [-math.inf] * 6], dtype=dtype),
        ):
            near = {"rtol": 0, "atol": roundings(matrix, messages)}
            with torch.no_grad():
                steps = TiledSteps(family.specs()[0], kept_bytes)
                for _ in range(2):
                    close(steps.backward(messages), (matrix + messages.unsqueeze(1)).logsumexp(-1), **near)
                    close(steps.forward(messages), (messages.unsqueeze(-1) + matrix).logsumexp(-2), **near)
                close(steps.best_backward(messages), (matrix + messages.unsqueeze(1)).amax(-1), **near)


def test_what_is_refused():
    dense, step = FAMILIES["Dense"](), FAMILIES["Step"]()
    with pytest.raises(TypeError, match="StepTransition, whose steps depend on more than the state"):
        wide_steps(step.specs()[0])
    with pytest.raises(ValueError, match="made for 3 words, but the emission has 5"):
        constrain(*dense.specs(), WordMoves.anything(3), 2)
    with pytest.raises(ValueError, match="shortest: expected at most longest = 2, got 3"):
        constrain(*dense.specs(), MOVES, 2, 3)
    with pytest.raises(ValueError, match="end: expected a word id in 0..4, got 9"):
        constrain(*dense.specs(), MOVES, 2, end=9)
    with pytest.raises(ValueError, match="log_lengths: expected \\(2,\\)"):
        constrain(*dense.specs(), MOVES, 3, 2, log_lengths=torch.zeros(3))
    with pytest.raises(
        ValueError, match="row 0 cannot satisfy it within 1 words: no text of so many words is accepted"
    ):
        constrain(*dense.specs(), MOVES, 1).sample()
    family = FAMILIES["Forbidden"](seed=3)
    with torch.no_grad():
        assert float(constrain(*family.specs(), MOVES, 1).log_prob()) == -math.inf
        never = constrain(*FAMILIES["ForbiddenReset"](seed=3).specs(), MOVES, 3)
        never.first[:] = -math.inf
        with pytest.raises(ValueError, match="words: row 0, word 0: the model gives id 2 probability zero here"):
            never.after_each_word(torch.tensor([[2, 1]]))
    with pytest.raises(ValueError, match="moves: expected numbers in 0..1, got 0..2"):
        WordMoves.of([0, 1], [[0, 2], [0, 0]], [True, False])
    with pytest.raises(ValueError, match="moves: expected classes"):
        WordMoves.of([0, 1], [[0, 0]], [True, False])
    for id_, got in ((MISSING, -1), (5, 5)):
        with pytest.raises(ValueError, match=rf"words: row 0, word 1: expected an id in 0\.\.4, got {got}; leave out the -1"):
            constrain(*FAMILIES["Dense"]().specs(), MOVES, 3).after_each_word(torch.tensor([[0, id_]]))
    with pytest.raises(TypeError, match="constraints are about words"):
        constrain(*FAMILIES["Gaussian"]().specs(), MOVES, 2)
    assert MISSING == -1


def test_texts_that_are_accepted():
    found = every_text(
        lambda text: 0.0,
        3,
        torch.tensor([0, 1, 1]),
        torch.tensor([[1, 0], [1, 1]]),
        torch.tensor([False, True]),
        0,
        [2],
    )
    assert sorted(found) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]


@pytest.mark.parametrize("name", ["Forbidden", "UnevenBlocks", "Reset"])
def test_rows_do_not_meet(name):
    """Prefixes side by side, each with its own state of the automaton, as each alone."""
    family = FAMILIES[name](seed=3)
    x = torch.tensor([[0, 1], [1, 4], [3, 1], [1, 1]])
    with torch.no_grad():

        def chain_of(rows):
            words = x[rows]
            chain = build_chain(*family.specs(), words.T, inputs=family.inputs(words.T, None, None), check=False)
            return chain.constrained(LOOSE, 3, 1, start=LOOSE.run(words))

        whole = chain_of(slice(None))
        together, best = whole.marginals(), whole.k_best(4)
        for row in range(4):
            alone = chain_of(slice(row, row + 1))
            for ours, own in zip(together, alone.marginals(), strict=True):
                close(ours[row], own[0])
            close(best.log_prob[:, row], alone.k_best(4).log_prob[:, 0])
            close(whole.next()[row], alone.next()[0])
        drawn = whole.sample(200)
        assert drawn.words.shape == (200, 4, 3)
        for row in range(4):
            first = torch.bincount(drawn.words[:, row, 0], minlength=5) / 200
            assert float((first - together.words[row, 0]).abs().max()) < 0.15


@pytest.mark.parametrize("seed", range(8))
def test_any_automaton_on_any_family(seed):
    """Random automata: dead ends, states that are never reached, classes without words, everything or nothing accepted."""
    generator = torch.Generator().manual_seed(seed)
    size, classes = int(torch.randint(1, 6, (), generator=generator)), int(torch.randint(1, 5, (), generator=generator))
    moves = WordMoves.of(
        torch.randint(classes, (5,), generator=generator),
        torch.randint(size, (size, classes), generator=generator),
        torch.rand(size, generator=generator) < 0.4,
        int(torch.randint(size, (), generator=generator)),
    )
    for name in ("Dense", "OneState", "OneStateBlocks", "OneBlock", "ForbiddenBlocks"):
        family = FAMILIES[name](seed=seed)
        initial, matrix, emission = (v.detach() if torch.is_tensor(v) else v for v in family.tables())
        table = emission(torch.arange(5)).T.detach()
        with torch.no_grad():
            lengths = [product_log_prob(initial, matrix, table, *moves, length=n) for n in range(5)]
            chain = constrain(*family.specs(), moves, 4, 0)
            expected = torch.logsumexp(torch.stack(lengths), 0) - math.log(5)
            close(chain.log_prob()[0], expected)
            if expected > -math.inf:
                found = chain.marginals()
                close(found.lengths[0], (torch.stack(lengths) - math.log(5) - expected).exp())
                close(found.words.sum(-1), 1 - found.lengths.cumsum(-1)[:, :-1])
                best = chain.viterbi()
                text = best.words[0, 0, : best.lengths[0, 0]]
                assert bool(moves.accepting[moves.run(text.unsqueeze(0))[0]])
