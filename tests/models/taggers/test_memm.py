"""The MEMM against products of local softmaxes over all taggings."""

import itertools
import math

import numpy as np
import pyro
import pytest
import torch

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.conditional import CRFTagger, MEMMTagger
from pplseq.models.taggers.weights import CRFSettings

TRAIN = [
    TaggedSentence(("The", "dog", "barks"), ("D", "N", "V")),
    TaggedSentence(("Yes",), ("I",)),
    TaggedSentence((), ()),
    TaggedSentence(("A", "cat", "sees", "the", "dog"), ("D", "N", "V", "D", "N")),
    TaggedSentence(("the", "bark", "hurts"), ("D", "N", "V")),
    TaggedSentence(("Dogs", "bark"), ("N", "V")),
]
TEMPLATES = ["word[0]", "suffix2[0]", "lower[0]|lower[1]"]


@pytest.fixture
def tagger():
    tagger = MEMMTagger(TEMPLATES, settings=CRFSettings(max_iterations=1), dtype="float64").fit(TRAIN)
    generator = torch.Generator().manual_seed(0)
    for parameter in tagger.weights.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return tagger


def joint(tagger, words):
    """{tags: log p(tags | words)}, each a sum over steps of log softmax."""
    scores = tagger.weights.scores(tagger.encode([words]))
    found = {}
    for path in itertools.product(range(len(tagger.tags)), repeat=len(words)):
        total = 0.0
        for t, k in enumerate(path):
            logits = scores[t] + (tagger.weights.transition[path[t - 1]] if t else 0.0)
            total = total + logits[k] - logits.logsumexp(0)
        found[tuple(tagger.tags[k] for k in path)] = total
    return found


def test_likelihood_and_gradient_are_those_of_local_softmaxes_in_every_form(tagger):
    sentences = [s for s in TRAIN if s.words]
    data = tagger.encode([s.words for s in sentences], [s.tags for s in sentences])
    expected = torch.stack([joint(tagger, s.words)[s.tags] for s in sentences])
    torch.testing.assert_close(tagger.weights.log_probs(data), expected)
    parameters = tagger.weights.weights, tagger.weights.transition
    slow = 0.4 * sum(p.square().sum() for p in parameters) - expected.sum()
    program = -pyro.poutine.trace(tagger.weights).get_trace(data, 0.4).log_prob_sum()
    chains = 0.4 * sum(p.square().sum() for p in parameters) - sum(
        tagger.weights.chain(bucket, tagger.weights.scores(data), data.tags).log_prob().sum() for bucket in data.buckets
    )
    gradient = torch.autograd.grad(slow, parameters)
    for loss in (tagger.weights.loss(data, 0.4), program, chains):
        torch.testing.assert_close(loss, slow)
        torch.testing.assert_close(torch.autograd.grad(loss, parameters), gradient)


def test_unknown_tags_are_summed_over(tagger):
    sentences = [
        TaggedSentence(("the", "dog", "barks"), ("D", None, "V")),
        TaggedSentence(("Yes",), (None,)),
        TaggedSentence(("a", "cat"), (None, "N")),
    ]
    expected = []
    for words, tags in sentences:
        agree = [p for path, p in joint(tagger, words).items() if all(a in (None, b) for a, b in zip(tags, path, strict=True))]
        expected.append(torch.stack(agree).logsumexp(0))
    expected = torch.stack(expected)
    np.testing.assert_allclose(tagger.log_prob(sentences), expected.detach().numpy(), atol=1e-12)
    data = tagger.encode([s.words for s in sentences], [s.tags for s in sentences])
    losses = tagger.weights.loss(data), -expected.sum()
    parameters = tagger.weights.weights, tagger.weights.transition
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, parameters) for loss in losses))
    fitted = MEMMTagger(TEMPLATES, settings=CRFSettings(max_iterations=30), dtype="float64").fit(sentences + TRAIN)
    assert fitted.tag([("the", "dog", "barks")]) == [("D", "N", "V")]


def test_tags_that_a_lexicon_rules_out_are_impossible_beside_unknown_ones():
    for kind in (MEMMTagger, CRFTagger):
        tagger = kind(TEMPLATES, max_iterations=1, lexicon={"mouse": ["N"]}).fit(TRAIN)
        some = [TaggedSentence(("the", "mouse"), tags) for tags in ((None, "V"), ("D", "V"), (None, "N"))]
        found = tagger.log_prob(some)
        assert found[0] == found[1] == -math.inf and abs(found[2]) < 1e-6


def test_answers_are_those_of_enumeration(tagger):
    words = ("the", "cat", "barks")
    log_probs = {tags: float(p.detach()) for tags, p in joint(tagger, words).items()}
    assert math.isclose(sum(map(math.exp, log_probs.values())), 1.0)
    ranked = sorted(log_probs, key=log_probs.get, reverse=True)
    batch = [words, (), ("x",)]
    assert tagger.tag(batch)[0] == ranked[0] and tagger.tag(batch)[1] == ()
    best = tagger.n_best(words, 4)
    assert [path for path, _ in best] == ranked[:4]
    np.testing.assert_allclose([p for _, p in best], [log_probs[path] for path in ranked[:4]])
    expected = np.zeros((3, len(tagger.tags)))
    for path, p in log_probs.items():
        for t, tag in enumerate(path):
            expected[t, tagger.tags.index(tag)] += math.exp(p)
    np.testing.assert_allclose(tagger.smooth(batch)[0], expected, atol=1e-12)
    entropy = -sum(p * math.exp(p) for p in log_probs.values())
    np.testing.assert_allclose(tagger.entropy(batch)[0], entropy)


def test_program_draws_tags(tagger):
    pyro.set_rng_seed(0)
    words = [("the", "dog")] * 3000
    data = tagger.encode(words)
    trace = pyro.poutine.trace(tagger.weights).get_trace(data)
    first, second = (trace.nodes[f"tags_0_{t}"]["value"] for t in range(2))
    for path, log_prob in joint(tagger, words[0]).items():
        ids = [tagger.tags.index(tag) for tag in path]
        share = ((first == ids[0]) & (second == ids[1])).double().mean()
        assert abs(float(share) - math.exp(float(log_prob.detach()))) < 0.03


@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
def test_fit_learns(method):
    settings = CRFSettings(l2=0.05, method=method, epochs=30, batch_size=2)
    tagger = MEMMTagger(TEMPLATES, settings=settings).fit(TRAIN)
    assert tagger.tag([s.words for s in TRAIN]) == [s.tags for s in TRAIN]
    assert tagger.history[-1] < tagger.history[0] / 2
