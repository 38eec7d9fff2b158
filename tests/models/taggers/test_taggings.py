"""The best taggings and the entropy of taggings whose tags have several states, against all of them one by one."""

import itertools

import numpy as np
import pytest
from support.grids import grid

from pplseq import LatentTagger
from pplseq.data import TaggedSentence
from pplseq.models.taggers.substates.taggings import PosteriorChain, best_taggings, entropy_bounds


def random_chain(seed, num_steps, sizes, sparse=False):
    random = np.random.default_rng(seed)
    tags = np.repeat(np.arange(len(sizes)), sizes)
    first, steps = random.random(len(tags)) ** 3, random.random((num_steps - 1, len(tags), len(tags))) ** 6
    if sparse:
        steps[random.random(steps.shape) < 0.4] = 0.0
        steps[..., 0] += 1e-3
    return PosteriorChain(first / first.sum(), steps / steps.sum(-1, keepdims=True), np.eye(len(sizes))[tags])


def all_taggings(chain):
    found = {}
    for tags in itertools.product(range(chain.groups.shape[1]), repeat=len(chain.steps) + 1):
        forward = chain.first * chain.groups[:, tags[0]]
        for step, tag in zip(chain.steps, tags[1:], strict=True):
            forward = forward @ step * chain.groups[:, tag]
        if forward.sum() > 0:
            found[tags] = forward.sum()
    return sorted(found.items(), key=lambda entry: -entry[1])


@grid({"sparse": [False, True], "num_steps, sizes": [(1, (2, 3)), (5, (3, 1, 4)), (7, (4, 4)), (4, (1, 1, 1, 1)), (3, (5,))]})
def test_against_all_taggings(num_steps, sizes, sparse):
    for seed in range(4):
        chain = random_chain(seed, num_steps, sizes, sparse)
        truth = all_taggings(chain)
        for n in (1, 3, 10, 10_000):
            found = best_taggings(chain, n)
            assert len(found) == min(n, len(truth)) == len({tags for tags, _ in found})
            np.testing.assert_allclose(np.exp([p for _, p in found]), [p for _, p in truth[:n]], rtol=1e-9)
            lookup = dict(truth)
            np.testing.assert_allclose(np.exp([p for _, p in found]), [lookup[tags] for tags, _ in found], rtol=1e-9)
        entropy = -sum(p * np.log(p) for _, p in truth)
        lower, upper = entropy_bounds(chain)
        assert lower - 1e-12 <= entropy <= upper + 1e-12
        if num_steps <= 2 or max(sizes) == 1 or len(sizes) == 1:
            np.testing.assert_allclose([lower, upper], entropy, atol=1e-12)
        states = random_chain(seed, num_steps, sizes, sparse)._replace(groups=np.eye(sum(sizes)))
        assert upper < entropy_bounds(states)[0] or max(sizes) == 1  # that of states is another


def log_prob_of(chain, tags):
    forward, log_prob = chain.first * chain.groups[:, tags[0]], 0.0
    for step, tag in zip(chain.steps, tags[1:], strict=True):
        forward = forward @ step * chain.groups[:, tag]
        log_prob, forward = log_prob + np.log(forward.sum()), forward / forward.sum()
    return log_prob


def test_long_sentences_are_not_searched_through_nor_too_improbable():
    """Each of some thousand words has two taggings that are nearly equal: most of all beginnings are left, none is lost."""
    chain = random_chain(0, 3000, (2, 2))
    flat = chain._replace(steps=0.9 * chain.steps[:1] + 0.1 * chain.steps)
    found = best_taggings(flat, 4)
    assert len(found) == 4 and found[0][1] < -800  # below the smallest number that there is
    np.testing.assert_allclose([p for _, p in found], [log_prob_of(flat, tags) for tags, _ in found], rtol=1e-9)
    short = flat._replace(steps=flat.steps[:9])
    np.testing.assert_allclose(
        np.exp([p for _, p in best_taggings(short, 20)]), [p for _, p in all_taggings(short)[:20]], rtol=1e-9
    )


def test_too_much_to_search_or_to_hold_is_refused(monkeypatch):
    monkeypatch.setattr("pplseq.models.taggers.substates.taggings.MAX_PREFIXES", 50)
    with pytest.raises(ValueError, match="the 300 best taggings of these 7 words are too much alike"):
        best_taggings(random_chain(0, 7, (4, 4)), 300)
    train = [TaggedSentence(("a", "b", "a"), ("X", "Y", "X"))] * 40
    tagger = LatentTagger(num_substates=2, max_iterations=2).fit(train)
    size = len(tagger.tag_of_state())
    monkeypatch.setattr("pplseq.models.taggers.probabilistic.MAX_PAIRS", 10 * size**2)
    for ask in (lambda words: tagger.n_best(words, 2), lambda words: tagger.entropy([words])):
        ask(["a"] * 10)
        with pytest.raises(ValueError, match="sentence of 11 words; .* at most 10 words"):
            ask(["a"] * 11)


def test_a_latent_tagger_answers_about_taggings():
    """Substates of a tag are one answer; the best path of states alone would say less, and name others."""
    random = np.random.default_rng(0)
    words, tags = "a b c d e f".split(), "X Y Z".split()
    train = []
    for _ in range(80):
        said = random.integers(6, size=random.integers(2, 7))
        train.append(TaggedSentence(tuple(words[i] for i in said), tuple(tags[(i + random.integers(2)) % 3] for i in said)))
    tagger = LatentTagger(num_substates=4, max_iterations=8, noise=0.5).fit(train)
    sentence = "a b c d e".split()
    best = tagger.n_best(sentence, 3**5)
    probs = np.exp([p for _, p in best])
    assert len(best) == 3**5 == len({tagging for tagging, _ in best}) and (np.diff(probs) <= 1e-12).all()
    np.testing.assert_allclose(probs.sum(), 1.0)
    smoothed = np.zeros((5, 3))
    for tagging, prob in zip((tagging for tagging, _ in best), probs, strict=True):
        smoothed[range(5), [tagger.tags.index(tag) for tag in tagging]] += prob
    np.testing.assert_allclose(smoothed, tagger.smooth([sentence])[0], rtol=1e-7)
    entropy = -float((probs * np.log(probs)).sum())
    ((lower, upper),) = tagger.entropy_bounds([sentence])
    assert lower <= entropy <= upper == tagger.entropy([sentence])[0] and upper - lower < 0.05
    assert tagger.n_best([], 2) == [((), 0.0)] and tagger.entropy_bounds([[]]).tolist() == [[0.0, 0.0]]
