"""Spans as tags: reading any scheme as conlleval does, writing each, what is allowed, scores; the CRF under a scheme."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.spans.schemes import (
    SCHEMES,
    Span,
    allowed,
    are_spans,
    converted,
    in_scheme,
    spans_of,
    tags_of,
)
from pplseq.models.taggers.spans.scores import score_spans

LETTERS = {"iob1": ("O", "B-x", "I-x", "B-y", "I-y"), "bio": ("O", "B-x", "I-x", "B-y", "I-y")}
LETTERS["bioes"] = ("O", *(f"{letter}-{kind}" for letter in "BIES" for kind in "xy"))


def starts_and_ends(tags):
    """Spans by conlleval's two functions, as its program has them, with S beside E."""
    tags = ["O", *tags, "O"]
    split = [(tag[0], tag[2:]) for tag in tags]
    spans, start = [], None
    for i, ((p, pk), (t, k)) in enumerate(zip(split, split[1:], strict=False)):
        end = (p, t) in {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O"), ("E", "B")}
        end |= p != "O" and pk != k
        end |= p == "S" or (p != "O" and t == "S")
        begin = (p, t) in {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E"), ("E", "B")}
        begin |= t != "O" and pk != k
        begin |= t == "S" or (p == "S" and t != "O")
        if end and start is not None:
            spans.append(Span(pk, start, i))
            start = None
        if begin:
            start = i
    return spans


def test_spans_as_conlleval_reads_them():
    for number in range(5):
        for tags in itertools.product(LETTERS["bioes"], repeat=number):
            assert spans_of(tags) == starts_and_ends(tags), tags
    assert spans_of(["B-PER", "L-PER", "U-LOC", "M-X"]) == [Span("PER", 0, 2), Span("LOC", 2, 3), Span("X", 3, 4)]
    assert spans_of(["B", "I", "O", "I-a-b"]) == [Span("", 0, 2), Span("a-b", 3, 4)]
    with pytest.raises(ValueError, match="got 'NN'"):
        spans_of(["NN"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_allowed_taggings_are_the_spans_one_to_one(scheme):
    tags = LETTERS[scheme]
    first, after, last = allowed(tags, scheme)
    for number in range(1, 5):
        legal = set()
        for path in itertools.product(range(len(tags)), repeat=number):
            names = tuple(tags[k] for k in path)
            keeps = first[path[0]] and last[path[-1]] and all(after[a, b] for a, b in itertools.pairwise(path))
            # a tagging keeps to the scheme where writing its spans gives it back
            assert keeps == (tags_of(spans_of(names), number, scheme) == names), names
            if keeps:
                legal.add(tuple(spans_of(names)))
        every = {tuple(spans_of(names)) for names in itertools.product(tags, repeat=number)}
        assert legal == every


def test_schemes_convert_into_each_other():
    sentence = TaggedSentence(("a", "b", "c", "d"), ("I-x", "B-x", "I-x", "O"))
    assert converted([sentence], "bio")[0].tags == ("B-x", "B-x", "I-x", "O")
    assert converted([sentence], "bioes")[0].tags == ("S-x", "B-x", "E-x", "O")
    for scheme in SCHEMES:
        assert converted(converted([sentence], scheme), "iob1") == [sentence]
    with pytest.raises(ValueError, match="number 0 has a word without a tag"):
        converted([TaggedSentence(("a",), (None,))], "bio")
    with pytest.raises(ValueError, match="overlaps"):
        tags_of([Span("x", 0, 2), Span("x", 1, 3)], 4, "bio")
    assert are_spans(["O", "B-x", None]) and not any(are_spans(tags) for tags in (["O"], ["NN", "O"], ["B", "O"], ["I-"]))


@pytest.mark.parametrize(("scheme", "written"), [("bio", "BIOBO"), ("bioes", "BEOSO"), ("iob1", "IIOIO")])
def test_spans_without_a_kind_are_written_as_they_came(scheme, written):
    from pplseq.models import CRFTagger

    text = [TaggedSentence(tuple("abcdc"), tuple("BIOBO")), TaggedSentence(tuple("dab"), tuple("BBI"))]
    tagger = CRFTagger(["word[0]", "word[1]"], spans=scheme, l2=0.01).fit(text)
    assert tagger.tag([text[0].words]) == [tuple(written)] and set(written) <= set(tagger.tags)
    assert in_scheme(tagger, text)[0].tags == tuple(written)
    assert tagger.log_prob(in_scheme(tagger, text)).min() > -1


def test_scores_of_spans():
    gold = [TaggedSentence(tuple("abcde"), ("B-x", "I-x", "O", "B-y", "I-y")), TaggedSentence(("f",), ("B-y",))]
    found = score_spans(gold, [("B-x", "E-x", "O", "B-x", "I-y"), ("O",)])  # x right; x and y for y; one y missed
    assert found.overall == (1, 3, 3) and found.overall.f1 == pytest.approx(1 / 3)
    assert found.by_kind["x"].precision == 0.5 and found.by_kind["x"].recall == 1.0 and found.by_kind["y"] == (0, 1, 2)
    assert found.summary()["kinds"]["y"]["f1"] == 0.0
    nothing = score_spans([TaggedSentence(("a",), ("O",)), TaggedSentence(("b",), (None,))], [(None,), ("B-x",)])
    assert math.isnan(nothing.overall.f1) and nothing.summary()["f1"] is None and nothing.by_kind == {}
    with pytest.raises(ValueError, match="expected 1 tags in sentence 1, got 2"):
        score_spans(gold, [("O",) * 5, ("O", "O")])


# ------------------------------------------------------------------------------------------------ the CRF under a scheme
def text(scheme="bio"):
    from pplseq.data.tag_formats import Word

    rng, sentences = np.random.default_rng(0), []
    for _ in range(25):
        words, tags = [], []
        for _ in range(rng.integers(1, 5)):
            number = int(rng.integers(1, 4))
            kind = str(rng.choice(["x", "y"]))
            words += [Word(f"{kind}{rng.integers(3)}", {1: f"{kind}{min(i, 1)}"}) for i in range(number)]
            tags += [f"B-{kind}", *[f"I-{kind}"] * (number - 1)]
            if rng.random() < 0.5:
                words.append(Word("o", {1: "o"}))
                tags.append("O")
        sentences.append(TaggedSentence(tuple(words), tuple(tags)))
    return converted(sentences, scheme)


@grid({"num_words": [1, 2, 4], "scheme": SCHEMES})
def test_the_constrained_crf_is_the_sum_over_legal_taggings(scheme, num_words):
    """log p(tags | words) and its gradients, against every legal tagging one by one."""
    from pplseq.models import CRFTagger
    from pplseq.models.taggers.conditional_programs import FeatureWeights

    tagger = CRFTagger(("word[0]",), spans=scheme, max_iterations=1, dtype="float64").fit(text())
    words = [("x1", "new", "o", "y0")[:num_words], ("y2",)]
    weights = tagger.weights
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    first, after, last = allowed(tagger.tags, scheme)
    legal = [
        path
        for path in itertools.product(range(len(tagger.tags)), repeat=num_words)
        if first[path[0]] and last[path[-1]] and all(after[a, b] for a, b in itertools.pairwise(path))
    ]
    data = tagger.encode(words)

    def brute(path):
        scores = weights.scores(data)
        totals = torch.stack([
            sum((scores[t, k] for t, k in enumerate(p)), torch.zeros(()))
            + sum((weights.transition[a, b] for a, b in itertools.pairwise(p)), torch.zeros(()))
            for p in legal
        ])  # fmt: skip
        return (totals - totals.logsumexp(0))[legal.index(path)]

    for path in legal[:: max(len(legal) // 3, 1)]:
        tags = [tuple(tagger.tags[k] for k in path), ("O",)]
        known = tagger.encode(words, tags)
        log_prob = weights.log_probs(known)[0]
        torch.testing.assert_close(log_prob, brute(path), rtol=1e-9, atol=1e-9)
        program = FeatureWeights.loss(weights, known, 0.3)
        torch.testing.assert_close(weights.loss(known, 0.3), program, rtol=1e-9, atol=1e-9)
        for ours, theirs in zip(
            torch.autograd.grad(weights.loss(known, 0.3), list(weights.parameters()), allow_unused=True),
            torch.autograd.grad(program, list(weights.parameters()), allow_unused=True),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        parameters = list(weights.parameters())
        for ours, theirs in zip(
            torch.autograd.grad(log_prob, parameters, allow_unused=True),
            torch.autograd.grad(brute(path), parameters, allow_unused=True),
            strict=True,
        ):
            if theirs is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    found = tagger.n_best(words[0], 10_000)
    assert {tags for tags, _ in found} == {tuple(tagger.tags[k] for k in path) for path in legal}
    assert np.exp([log_prob for _, log_prob in found]).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
def test_spans_and_columns_are_learned_and_kept(scheme, tmp_path):
    from pplseq.models import CRFTagger
    from pplseq.models.taggers.tagger import load_tagger

    options = {"spans": scheme, "word_columns": (1,), "max_iterations": 20}
    tagger = CRFTagger(("word[0]",), **options).fit(text("iob1"))  # whatever scheme the text has
    words = [sentence.words for sentence in text()]
    assert score_spans(text(), tagger.tag(words)).overall.f1 > 0.95
    plain = CRFTagger(("word[0]",), spans=scheme, max_iterations=20).fit(text())
    assert score_spans(text(), plain.tag(words)).overall.f1 < 0.9
    loaded = load_tagger(tagger.save(tmp_path / "tagger"))
    assert loaded.tag(words) == tagger.tag(words) and loaded.word_columns == (1,)
    np.testing.assert_array_equal(tagger.features.encode(words[:2]), tagger.features.encode(words)[: sum(map(len, words[:2]))])
    with pytest.raises(ValueError, match="the word 'x1' has no column 1.*word_columns=.1,."):
        loaded.tag([("x1",)])
    with pytest.raises(ValueError, match="MEMMTagger chooses tags one by one"):
        from pplseq.models import MEMMTagger

        MEMMTagger(spans="bio")
    with pytest.raises(ValueError, match="number 0 has a word without a tag"):
        tagger.fit([TaggedSentence(("a", "b"), ("B-x", None))])


def test_gazetteers_and_clusters(tmp_path):
    from pplseq.models import CRFTagger
    from pplseq.models.taggers.spans.word_lists import Gazetteers, read_clusters
    from pplseq.models.taggers.tagger import load_tagger

    found = Gazetteers({"city": ["New York", "York"], "paper": ["New York Times", "York"]})
    assert found.of_sentence("New York Times in New York , York New".split()) == [
        "B-paper", "I-paper", "I-paper", None, "B-city", "I-city", None, "B-city+paper", None,
    ]  # fmt: skip
    (tmp_path / "city.txt").write_text("New York\nRome\n")
    (tmp_path / "paths").write_text("0010 in 7\n0010 at\n11 Rome 2\n")
    options = {"gazetteers": [tmp_path / "city.txt"], "clusters": str(tmp_path / "paths"), "spans": "bio", "max_iterations": 9}
    training = [TaggedSentence(("in", "Rome"), ("O", "B-c")), TaggedSentence(("the", "end"), ("O", "O"))]
    tagger = CRFTagger(("word[0]",), **options).fit(training)
    assert tagger.tag([("at", "New", "York")])[0][:2] == ("O", "B-c")  # by the gazetteer: neither word was seen
    (tmp_path / "city.txt").unlink()
    loaded = load_tagger(tagger.save(tmp_path / "tagger"))
    assert loaded.tag([("at", "Rome")]) == tagger.tag([("at", "Rome")]) == [("O", "B-c")]
    names = tagger.features.names()
    assert {"gazetteer[0]=B-city", "cluster4[0]=0010", "cluster20[0]=11"} <= set(names)
    with pytest.raises(ValueError, match="line 1: expected a path of bits"):
        (tmp_path / "bad").write_text("in 0010\n")
        read_clusters(tmp_path / "bad")
    with pytest.raises(TypeError, match="expected a list of files"):
        CRFTagger(gazetteers="city.txt")


def test_one_text_has_one_accuracy(tmp_path):
    """Tags of another scheme than the model's say the same of a text in training, when systems are compared and in a report."""
    from pplseq.data import write_tagged
    from pplseq.recipes import evaluate, train
    from pplseq.recipes.taggers.systems import compare, train_tagger

    text = [
        TaggedSentence(("Ann", "saw", "Rome"), ("I-PER", "O", "I-LOC")), TaggedSentence(("Bob", "left"), ("I-PER", "O")),
        TaggedSentence(("we", "met", "Ann", "Lee"), ("O", "O", "I-PER", "I-PER")),
    ] * 8  # fmt: skip
    assert train_tagger("spans", text, text)[1]["dev_accuracy"] == 1
    assert compare(["spans"], text, text).results[0].scores.accuracy == 1
    write_tagged(tmp_path / "text.txt", text, "columns")
    summary = train(
        "tagger", tmp_path / "text.txt", folder=tmp_path / "run", system="spans", validation=str(tmp_path / "text.txt")
    )
    [found] = evaluate(tmp_path / "run", tmp_path / "text.txt")
    assert summary["dev_accuracy"] == found["all"]["accuracy"] == found["spans"]["f1"] == 1
