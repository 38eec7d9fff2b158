"""The CRF against enumeration of all taggings, against autograd through it, and against crfsuite."""

import itertools
import math

import numpy as np
import pyro
import pytest
import torch

from pplseq.data.columns import TaggedSentence
from pplseq.infer.programs.linear_chain import LinearChain
from pplseq.models.taggers.columns import Columns
from pplseq.models.taggers.conditional import CRFTagger
from pplseq.models.taggers.conditional_programs import LinearChainCRF
from pplseq.models.taggers.tagger import load_tagger
from pplseq.models.taggers.weights import CRFSettings, LBFGSSearch, SparseRows, TagData, sparse_product

TRAIN = [
    TaggedSentence(("The", "dog", "barks"), ("D", "N", "V")),
    TaggedSentence(("Yes",), ("I",)),
    TaggedSentence((), ()),
    TaggedSentence(("A", "cat", "sees", "the", "dog", "."), ("D", "N", "V", "D", "N", ".")),
    TaggedSentence(("the", "bark", "hurts", "."), ("D", "N", "V", ".")),
    TaggedSentence(("Dogs", "bark", "."), ("N", "V", ".")),
]
TEMPLATES = ["word[0]", "lower[-1]", "suffix2[0]", "lower[0]|lower[1]"]
NEW = [("the", "cat", "barks"), (), ("Mice", "sleep", "."), ("x",)]


def all_scores(scores, pair):
    """(K,) * T log-scores of all paths; pair (T-1, K, K)."""
    num_steps, num_states = scores.shape
    total = scores.new_zeros((num_states,) * num_steps)
    for t in range(num_steps):
        total = total + scores[t].reshape([num_states if d == t else 1 for d in range(num_steps)])
        if t:
            total = total + pair[t - 1].reshape([num_states if d in (t - 1, t) else 1 for d in range(num_steps)])
    return total


def random_tagger(seed=0, scale=1.0, **options):
    """Fitted with one iteration, then random weights."""
    settings = CRFSettings(max_iterations=1)
    tagger = CRFTagger(TEMPLATES, settings=settings, dtype="float64", **options).fit(TRAIN)
    generator = torch.Generator().manual_seed(seed)
    for parameter in tagger.weights.parameters():
        parameter.data = scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return tagger


# ------------------------------------------------------------------------------------------------ the distribution
@pytest.mark.parametrize("per_step", [False, True])
def test_linear_chain_against_enumeration_with_unknown_states_and_padding(per_step):
    torch.manual_seed(1)
    num_steps, num_states, lengths = 4, 3, torch.tensor([4, 1, 3, 2])
    scores = torch.randn(4, num_steps, num_states, dtype=torch.float64, requires_grad=True)
    shape = (4, num_steps - 1) if per_step else ()
    pair = torch.randn(*shape, num_states, num_states, dtype=torch.float64, requires_grad=True)
    value = torch.tensor([[0, 2, 1, 1], [2, -1, 0, 0], [-1, 1, -1, 2], [1, 0, 7, -1]])
    law = LinearChain(scores, pair, lengths)
    assert law.batch_shape == (4,) and law.event_shape == (num_steps,)
    got = law.log_prob(value)
    expected = []
    for b, length in enumerate(lengths.tolist()):
        pairs = pair[b, : length - 1] if per_step else pair.expand(length - 1, num_states, num_states)
        table = all_scores(scores[b, :length], pairs)
        known = tuple(slice(None) if v < 0 else v for v in value[b, :length].tolist())
        expected.append(table[known].reshape(-1).logsumexp(0) - table.reshape(-1).logsumexp(0))
    expected = torch.stack(expected)
    torch.testing.assert_close(got, expected)
    weight = torch.randn(4, dtype=torch.float64)
    got, expected = (torch.autograd.grad((v * weight).sum(), (scores, pair)) for v in (got, expected))
    torch.testing.assert_close(got, expected)


def test_linear_chain_draws_paths_by_their_probability():
    pyro.set_rng_seed(0)
    scores = torch.tensor([[[0.5, 0.0], [0.0, 1.0]], [[0.0, 2.0], [9.0, 9.0]]], dtype=torch.float64)
    law = LinearChain(scores, torch.tensor([[1.0, 0.0], [0.0, 0.5]], dtype=torch.float64), torch.tensor([2, 1]))
    draws = law.sample((4000,))
    assert draws.shape == (4000, 2, 2) and (draws[:, 1, 1] == -1).all()
    for path in itertools.product(range(2), repeat=2):
        value = torch.tensor([path, (path[0], 0)])
        share = (draws[:, 0] == value[0]).all(-1).double().mean()
        assert abs(share - law.log_prob(value)[0].exp()) < 0.03
    assert abs((draws[:, 1, 0] == 1).double().mean() - torch.sigmoid(torch.tensor(2.0))) < 0.03
    assert law.sample().shape == (2, 2) and law.expand([3, 2]).sample((5,)).shape == (5, 3, 2, 2)


def test_linear_chain_names_wrong_shapes_and_what_it_cannot_say():
    with pytest.raises(ValueError, match=r"scores must have shape"):
        LinearChain(torch.zeros(3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"pair must have shape \(3, 3\)"):
        LinearChain(torch.zeros(2, 3), torch.zeros(2, 2))
    with pytest.raises(TypeError, match="says nothing about words"):
        LinearChain(torch.zeros(1, 2, 3), torch.zeros(3, 3)).chain().next()


# ------------------------------------------------------------------------------------------------ sparse products
def test_sparse_rows_are_a_matrix():
    table = np.array([[0, 4, -1], [-1, -1, -1], [4, 2, 4], [3, -1, 0]])
    values = np.arange(12.0).reshape(4, 3) + 1
    for given in (None, values):
        dense = torch.zeros(4, 6, dtype=torch.float64)
        for n, row in enumerate(table):
            for k, column in enumerate(row):
                if column >= 0:
                    dense[n, column] += 1.0 if given is None else values[n, k]
        rows = SparseRows.from_table(table, 6, given)
        matrix = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(4, 2, dtype=torch.float64)
        results = [sparse_product(rows, matrix), dense @ matrix]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad((r * weight).sum(), matrix)[0] for r in results))
        some, used = rows.rows(torch.tensor([2, 0, 1]))
        torch.testing.assert_close(some.times(matrix.detach()[used]), results[1].detach()[[2, 0, 1]])
    empty = SparseRows.from_table(np.full((3, 1), -1), 6)
    assert (sparse_product(empty, matrix) == 0).all()


def test_some_sentences_have_the_scores_and_gradients_they_have_among_all():
    tagger = random_tagger()
    data = tagger.encode([s.words for s in TRAIN if s.words], [s.tags for s in TRAIN if s.words])
    weights = tagger.weights
    parts = [data.sentences(torch.tensor(rows)) for rows in ([3, 0], [1], [4, 2])]
    total = weights.loss(data, 0.3)
    split = sum(weights.loss(part, 0.3, part.num_sentences / 5) for part in parts)
    torch.testing.assert_close(total, split)
    parameters = list(weights.parameters())
    torch.testing.assert_close(torch.autograd.grad(total, parameters), torch.autograd.grad(split, parameters))


# ------------------------------------------------------------------------------------------------ the model
def test_gradient_is_expected_less_observed_counts_and_that_of_enumeration():
    tagger, l2 = random_tagger(), 0.7
    weights, num_tags = tagger.weights, len(tagger.tags)
    sentences = [s for s in TRAIN if 0 < len(s.words) < 5]
    data = tagger.encode([s.words for s in sentences], [s.tags for s in sentences])
    loss = weights.loss(data, l2)
    gradient = torch.autograd.grad(loss, (weights.weights, weights.transition))

    # all taggings, one by one
    slow = l2 * (weights.weights.square().sum() + weights.transition.square().sum())
    features = tagger.features.encode([s.words for s in sentences])
    table = torch.zeros(tagger.num_features * num_tags, dtype=torch.float64)
    table = table.index_put((weights.pairs,), weights.weights).reshape(-1, num_tags)
    scores = torch.stack([table[row[row >= 0]].sum(0) for row in torch.from_numpy(features)])
    counts = torch.zeros_like(table), torch.zeros(num_tags, num_tags, dtype=torch.float64)
    start = 0
    for sentence in sentences:
        length = len(sentence.words)
        part, ids = scores[start : start + length], features[start : start + length]
        joint = all_scores(part, weights.transition.expand(max(length - 1, 0), num_tags, num_tags))
        gold = tuple(tagger.tags.index(tag) for tag in sentence.tags)
        slow = slow - joint[gold] + joint.reshape(-1).logsumexp(0)
        probs = torch.softmax(joint.reshape(-1), 0).reshape(joint.shape).detach()
        for path in itertools.product(range(num_tags), repeat=length):
            weight = float(probs[path]) - (path == gold)
            for t in range(length):
                for feature in ids[t][ids[t] >= 0]:
                    counts[0][feature, path[t]] += weight
                if t:
                    counts[1][path[t - 1], path[t]] += weight
        start += length
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, (weights.weights, weights.transition)))
    by_counts = counts[0].reshape(-1)[weights.pairs] + 2 * l2 * weights.weights.detach()
    torch.testing.assert_close(gradient, (by_counts, counts[1] + 2 * l2 * weights.transition.detach()))


def test_answers_are_those_of_enumeration():
    tagger = random_tagger()
    num_tags = len(tagger.tags)
    words = ("the", "cat", "barks", ".")
    joint = all_scores(tagger.weights.scores(tagger.encode([words])), tagger.weights.transition.expand(3, num_tags, num_tags))
    probs = torch.softmax(joint.detach().reshape(-1), 0).reshape(joint.shape)
    marginals = torch.stack([probs.sum([d for d in range(4) if d != t]) for t in range(4)])
    batch = [words, (), *NEW]
    np.testing.assert_allclose(tagger.smooth(batch)[0], marginals.numpy(), atol=1e-12)
    assert tagger.smooth(batch)[1].shape == (0, num_tags)
    order = probs.reshape(-1).argsort(descending=True).tolist()
    best = [tuple(tagger.tags[k] for k in np.unravel_index(i, probs.shape)) for i in order]
    assert tagger.tag(batch)[0] == best[0] and tagger.tag(batch)[1] == ()
    assert tagger.tag(batch, decoder="posterior")[0] == tuple(tagger.tags[k] for k in marginals.argmax(-1))
    three = tagger.n_best(words, 3)
    assert [path for path, _ in three] == best[:3]
    np.testing.assert_allclose([p for _, p in three], probs.reshape(-1).sort(descending=True)[0][:3].log().numpy())
    entropy = -(probs * probs.log()).sum()
    np.testing.assert_allclose(tagger.entropy(batch)[0], float(entropy))
    log_probs = tagger.log_prob(
        [TaggedSentence(words, best[1]), TaggedSentence((), ()), TaggedSentence(words, (best[1][0], None, None, None))]
    )
    np.testing.assert_allclose(log_probs, [three[1][1], 0.0, float(marginals[0].log()[tagger.tags.index(best[1][0])])])
    draws = [tags for (tags,) in tagger.sample_states([words], 500, seed=3)]
    assert draws == [tags for (tags,) in tagger.sample_states([words], 500, seed=3)] and set(draws) <= set(best)


def test_penalised_fit_is_where_the_gradient_vanishes_and_either_optimiser_gets_there():
    settings = CRFSettings(l2=0.5, tolerance=1e-12, max_iterations=200)
    tagger = CRFTagger(TEMPLATES, settings=settings, dtype="float64").fit(TRAIN)
    words, tags = ([s.words for s in TRAIN if s.words], [s.tags for s in TRAIN if s.words])
    data = tagger.encode(words, tags)
    loss = tagger.weights.loss(data, 0.5)
    loss.backward()
    assert max(float(p.grad.abs().max()) for p in tagger.weights.parameters() if p.numel()) < 1e-4
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(tagger.history))
    loss = float(loss.detach())
    assert math.isclose(tagger.history[-1], loss, rel_tol=1e-12)
    assert tagger.tag(words) == [tuple(t) for t in tags]
    sgd = CRFSettings(l2=0.5, method="sgd", epochs=40, batch_size=2, lr=0.3)
    other = CRFTagger(TEMPLATES, settings=sgd, dtype="float64").fit(TRAIN)
    assert float(other.weights.loss(data, 0.5).detach()) < loss + 0.02


def test_words_without_tags_are_summed_over():
    half = [s._replace(tags=tuple(None if t % 2 else tag for t, tag in enumerate(s.tags))) for s in TRAIN]
    tagger = CRFTagger(TEMPLATES, settings=CRFSettings(max_iterations=40), dtype="float64").fit(half)
    words = [s.words for s in half]
    # the likelihood of what is known, by its share of all taggings
    expected = []
    for sentence, paths in zip(half, (tagger.n_best(w, 5**6) for w in words), strict=True):
        agree = [p for path, p in paths if all(a in (None, b) for a, b in zip(sentence.tags, path, strict=True))]
        expected.append(np.logaddexp.reduce(agree) if agree else -np.inf)
    np.testing.assert_allclose(tagger.log_prob(half), expected, atol=1e-9)
    assert np.exp(expected).min() > 0.1


def test_program_draws_tags_and_has_one_site_for_sentences_of_like_length():
    tagger = random_tagger()
    data = tagger.encode([s.words for s in TRAIN if s.words])
    trace = pyro.poutine.trace(tagger.weights).get_trace(data)
    sites = [name for name, msg in trace.nodes.items() if name.startswith("tags_")]
    assert len(sites) == len(data.buckets) and sum(len(b.lengths) for b in data.buckets) == 5
    assert {name for name, msg in trace.nodes.items() if msg["type"] == "param"} == {"weights", "transition"}


# ------------------------------------------------------------------------------------------------ real-valued columns
class WordLengths:
    """Dense: how long a word is and how many of its letters are e; or, sparse, its length as a number of one column."""

    def __init__(self, sparse=False):
        self.sparse, self.num_columns = sparse, 12 if sparse else 2

    def __call__(self, sentences):
        words = [word for sentence in sentences for word in sentence]
        values = np.array([[len(w), w.count("e")] for w in words], dtype=np.float64).reshape(-1, 2)
        if not self.sparse:
            return Columns(values)
        ids = np.array([[min(len(w), 11), -1] for w in words]).reshape(-1, 2)
        return Columns(values + 0.5, ids)


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_are_features_with_values(sparse, tmp_path):
    settings = CRFSettings(l2=0.01)
    tagger = CRFTagger(["shape[0]"], columns=WordLengths(sparse), settings=settings, dtype="float64", pairs="all").fit(TRAIN)
    data = tagger.encode([("cats", "eel")])
    rows = WordLengths(sparse)([("cats", "eel")])
    table = tagger.weights.table()
    base = table[tagger.features.encode([("cats", "eel")]).clip(0)[:, 0]]
    if sparse:
        first = tagger.features.num_features
        expected = base + table[first + rows.ids[:, 0]] * torch.tensor(rows.values[:, :1])
    else:
        words = [w for s in TRAIN for w in s.words]
        seen = np.array([[len(w), w.count("e")] for w in words])
        expected = base + torch.tensor((rows.values - seen.mean(0)) / seen.std(0)) @ tagger.weights.column_weights
    known = tagger.features.encode([("cats", "eel")])[:, 0] >= 0
    torch.testing.assert_close(tagger.weights.scores(data)[known], expected[known])
    assert known.any()
    learned = tagger.weights.table()[-12:] if sparse else tagger.weights.column_weights
    assert bool((learned != 0).any())

    again = load_tagger(tagger.save(tmp_path / "tagger"))
    with pytest.raises(ValueError, match="was trained with .* real-valued features"):
        again.tag(NEW)
    again.columns = WordLengths(sparse)
    assert again.tag(NEW) == tagger.tag(NEW)


# ------------------------------------------------------------------------------------------------ folders and errors
def test_a_sentence_of_thousands_of_words():
    tagger = random_tagger(scale=3.0)
    words = ("the", "dog", "barks", ".") * 1250
    (tags,) = tagger.tag([words])
    assert len(tags) == 5000 and np.isfinite(tagger.entropy([words])).all()
    np.testing.assert_allclose(tagger.smooth([words])[0].sum(-1), 1.0)


def test_single_precision_scores_are_near():
    exact = random_tagger()
    rough = CRFTagger(TEMPLATES, settings=CRFSettings(max_iterations=1)).fit(TRAIN)
    rough.weights.load_state_dict(exact.weights.state_dict())
    for got, expected in zip(rough.smooth(NEW), exact.smooth(NEW), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="pairs must be one of observed, all; got 'some'"):
        CRFTagger(pairs="some")
    with pytest.raises(ValueError, match="dtype must be one of"):
        CRFTagger(dtype="half")
    with pytest.raises(ValueError, match="method: expected 'lbfgs' or 'sgd', got 'adam'"):
        CRFSettings(method="adam")
    with pytest.raises(ValueError, match="l2: expected 0 or more, got -1"):
        CRFSettings(l2=-1)
    with pytest.raises(ValueError, match="not one word has a tag"):
        CRFTagger().fit([TaggedSentence(("a",), (None,))])
    with pytest.raises(ValueError, match="at least one word"):
        CRFTagger().fit([])
    with pytest.raises(RuntimeError, match="call fit first"):
        CRFTagger().tag([("a",)])
    with pytest.raises(ValueError, match="tags: 'X' was not seen in training; known: "):
        random_tagger().log_prob([TaggedSentence(("a",), ("X",))])
    for wrong, told in (([["a", "b"]], r"got \['a', 'b'\] as number 0"), ("a.conllu", "got 'a.conllu'"), (None, "got None")):
        for asked in (CRFTagger().fit, random_tagger().log_prob, random_tagger().score):
            with pytest.raises(TypeError, match=f"x: expected tagged sentences, .* {told}"):
                asked(wrong)
    with pytest.raises(ValueError, match="it became nan"):
        weights = torch.zeros(1, requires_grad=True)
        LBFGSSearch([weights], lambda data, share: (weights * torch.nan).sum(), None, CRFSettings()).step()


# ------------------------------------------------------------------------------------------------ crfsuite
def crfsuite_weights(pycrfsuite, tagger, sentences, path, l2):
    """Trains crfsuite on our features; gives its loss, and its weights as ours."""
    trainer = pycrfsuite.Trainer(verbose=False, algorithm="lbfgs")
    for sentence, features in zip(sentences, tagger.features.as_strings([s.words for s in sentences]), strict=True):
        trainer.append(features, sentence.tags)
    trainer.set_params({"c1": 0.0, "c2": l2, "max_iterations": 500, "delta": 1e-12, "epsilon": 1e-9})
    trainer.train(str(path))
    outside = pycrfsuite.Tagger()
    outside.open(str(path))
    number = {name: i for i, name in enumerate(tagger.features.names())}
    tag = {name: k for k, name in enumerate(tagger.tags)}
    table = torch.zeros(tagger.num_features, len(tagger.tags), dtype=torch.float64)
    transition = torch.zeros(len(tagger.tags), len(tagger.tags), dtype=torch.float64)
    for (name, label), weight in outside.info().state_features.items():
        table[number[name], tag[label]] = weight
    for (first, second), weight in outside.info().transitions.items():
        transition[tag[first], tag[second]] = weight
    return trainer.logparser.last_iteration["loss"], table, transition, outside


def test_log_likelihood_is_that_of_crfsuite(tmp_path):
    pycrfsuite = pytest.importorskip("pycrfsuite")
    l2, sentences = 0.3, [s for s in TRAIN if s.words]
    tagger = CRFTagger(TEMPLATES, settings=CRFSettings(max_iterations=1), dtype="float64").fit(TRAIN)
    loss, table, transition, outside = crfsuite_weights(pycrfsuite, tagger, sentences, tmp_path / "model", l2)
    tagger.weights.weights.data = table.reshape(-1)[tagger.weights.pairs]
    assert int((table != 0).sum()) <= len(tagger.weights.pairs)
    tagger.weights.transition.data = transition
    data = tagger.encode([s.words for s in sentences], [s.tags for s in sentences])
    assert math.isclose(float(tagger.weights.loss(data, l2).detach()), loss, rel_tol=1e-5)  # crfsuite tells six decimals
    words = [*(s.words for s in sentences), *filter(None, NEW)]
    for sentence, features in zip(words, tagger.features.as_strings(words), strict=True):
        tags = outside.tag(features)
        assert tagger.tag([sentence])[0] == tuple(tags)
        ours = tagger.log_prob([TaggedSentence(sentence, tuple(tags))])[0]
        assert math.isclose(ours, math.log(outside.probability(tags)), abs_tol=1e-5)
        for t, probs in enumerate(tagger.smooth([sentence])[0]):
            for tag, prob in zip(tagger.tags, probs, strict=True):
                assert math.isclose(prob, outside.marginal(tag, t), abs_tol=1e-5)


def test_data_without_words_has_empty_parts():
    data = TagData(SparseRows.from_table(np.zeros((0, 2), dtype=np.int64), 3), torch.zeros(0, dtype=torch.long))
    assert data.num_sentences == 0 and len(data.features) == 0
    assert LinearChainCRF(torch.arange(2), 3, 2, 0, torch.float64).scores(data).shape == (0, 2)


# ------------------------------------------------------------------------------------------------ a sentence alone
@pytest.mark.parametrize("sparse", [None, True])
def test_few_words_have_the_scores_and_gradients_of_the_whole_table_which_is_not_made(sparse, monkeypatch):
    torch.manual_seed(3)
    num_features, num_tags = 400, 3
    pairs = torch.randperm(num_features * num_tags)[:700].sort().values  # some features have no weight at all
    weights = LinearChainCRF(pairs, num_features, num_tags, 0, torch.float64)
    table = np.random.default_rng(0).integers(-1, num_features, (6, 5))
    table[2], table[4] = -1, table[3]
    given = None if sparse is None else np.random.default_rng(1).normal(size=table.shape)
    rows = SparseRows.from_table(table, num_features, given)
    data, factor = TagData(rows, torch.tensor([6])), torch.randn(6, num_tags, dtype=torch.float64)
    sizes, whole = [], LinearChainCRF.table

    def counted(self, used=None):
        found = whole(self, used)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(LinearChainCRF, "table", counted)
    for scale in (1.0, 7.0):  # weights change in ways that leave no trace on the parameter
        weights.weights.data.copy_(scale * torch.randn(700, dtype=torch.float64))
        weights.zero_grad()
        found = weights.scores(data)
        (found * factor).sum().backward()
        gradient = weights.weights.grad.clone()
        weights.zero_grad()
        expected = sparse_product(rows, whole(weights))
        (expected * factor).sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradient, weights.weights.grad)
    assert all(size < 30 for size in sizes)
    nothing = TagData(SparseRows.from_table(np.full((2, 4), -1), num_features), torch.tensor([2]))
    assert torch.equal(weights.scores(nothing), torch.zeros(2, num_tags, dtype=torch.float64))
