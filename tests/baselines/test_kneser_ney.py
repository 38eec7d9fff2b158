"""Kneser-Ney: against a slow twin written with dictionaries, as a distribution, and on real text."""

import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from pplseq.baselines import KneserNey
from pplseq.data import Text, Vocabulary, load_corpus
from pplseq.data.builtin import generated_language

PTB_BY_ORDER = {2: (199.02, 185.70), 3: (157.77, 148.28), 4: (149.90, 142.72), 5: (148.01, 141.19)}  # KenLM's


class SlowKneserNey:
    """Interpolated modified Kneser-Ney, word by word."""

    def __init__(self, lines, vocabulary, order):
        self.vocabulary, self.order = vocabulary, order
        counts, before = Counter(), defaultdict(set)
        for line in lines:
            padded = ["<s>", *line, "<eos>"]
            for end in range(1, len(padded) + 1):
                for start in range(max(0, end - order), end):
                    ngram = tuple(padded[start:end])
                    counts[ngram] += 1
                    if start > 0:
                        before[ngram].add(padded[start - 1])
        del counts[("<s>",)]
        self.adjusted = {
            ngram: count if len(ngram) == order or ngram[0] == "<s>" else len(before[ngram])
            for ngram, count in counts.items()
        }
        self.discounts = {length: self.discounts_of(length) for length in range(1, order + 1)}
        self.followers = defaultdict(list)
        for ngram in self.adjusted:
            self.followers[ngram[:-1]].append(ngram)

    def discounts_of(self, length):
        number = Counter(count for ngram, count in self.adjusted.items() if len(ngram) == length)
        if not number[1] or not number[2] or not number[3]:
            return [0.5, 1.0, 1.5]
        y = number[1] / (number[1] + 2 * number[2])
        discounts = [i - (i + 1) * y * number[i + 1] / number[i] for i in (1, 2, 3)]
        in_range = all(0 < discount <= i for i, discount in enumerate(discounts, start=1))
        return discounts if in_range else [0.5, 1.0, 1.5]

    def discount(self, ngram):
        return self.discounts[len(ngram)][min(self.adjusted[ngram], 3) - 1]

    def prob(self, word, context):
        lower = self.prob(word, context[1:]) if context else 1 / len(self.vocabulary)
        followers = self.followers[context]
        if not followers:
            return lower
        total = sum(self.adjusted[ngram] for ngram in followers)
        freed = sum(self.discount(ngram) for ngram in followers)
        ngram = (*context, word)
        kept = self.adjusted[ngram] - self.discount(ngram) if ngram in self.adjusted else 0.0
        return (kept + freed * lower) / total

    def log_prob(self, lines):
        for line in lines:
            padded = ["<s>", *line, "<eos>"]
            for end in range(1, len(padded)):
                context = tuple(padded[max(0, end - self.order + 1) : end])
                yield math.log(self.prob(padded[end], context))


def test_no_word_is_impossible_where_counts_would_give_a_discount_of_zero():
    times = {"x y": 4, "z": 4, "u": 3, "p": 2, "q": 2, "r": 2, "s": 1, "t": 1}  # of the bigrams 2, 3, 1 and 3 come 1 to 4 times
    lines = [line.split() for line, number in times.items() for _ in range(number)]
    vocabulary = Vocabulary(("x", *"yzupqrst"), unknown=None)
    model = KneserNey(2).fit(Text.from_lines(lines, vocabulary))
    probs = np.exp(model.next_word(["x"]))
    assert probs.min() > 0 and abs(probs.sum() - 1) < 1e-12
    assert np.isfinite(model.log_prob(Text.from_lines([["x", "z"]], vocabulary))).all()


@pytest.fixture(scope="module")
def lines():
    generated, _ = generated_language(seed=7, num_sentences=240, num_words=100)
    rare = [[f"rare{i}", "<unk>"] for i in range(20)]  # gives counts of one
    return [*generated[:200], [], *rare, []], [*generated[200:], [], ["<unk>", "rare3", "<unk>"]]


@pytest.fixture(scope="module")
def texts(lines):
    train, test = lines
    vocabulary = Vocabulary.build([*train, *test])  # a few words stand in the test text only
    return Text.from_lines(train, vocabulary, name="train"), Text.from_lines(test, vocabulary, name="test")


@pytest.mark.parametrize("order", [1, 4])
def test_equals_the_slow_twin(lines, texts, order):
    slow = SlowKneserNey(lines[0], texts[0].vocabulary, order)
    fast = KneserNey(order).fit(texts[0])
    np.testing.assert_allclose(fast.discounts, list(slow.discounts.values()), rtol=1e-12)
    assert fast.num_ngrams[1:] == [sum(len(ngram) == n for ngram in slow.adjusted) for n in range(2, order + 1)]
    for text, its_lines in zip(texts, lines, strict=True):
        np.testing.assert_allclose(fast.log_prob(text), list(slow.log_prob(its_lines)), rtol=1e-10)


def test_both_kinds_of_discount_were_tested(texts):
    discounts = KneserNey(5).fit(texts[0]).discounts
    fallback = (discounts == [0.5, 1.0, 1.5]).all(axis=1)
    assert 0 < fallback.sum() < 5


def test_tiny_example_by_hand():
    """Order 2 on "a b" and "a": discounts fall back to 0.5, 1, 1.5."""
    text = Text.from_lines([["a", "b"], ["a"]])
    model = KneserNey(2).fit(text)
    # Adjusted unigrams: a after <s>; b after a; <eos> after b and a. Freed: 0.5 + 0.5 + 1 of 4.
    unigram = {"a": 0.5 / 4 + 2 / 4 / 3, "b": 0.5 / 4 + 2 / 4 / 3, "<eos>": 1 / 4 + 2 / 4 / 3}
    bigram = {
        ("<s>", "a"): (2 - 1) / 2 + 1 / 2 * unigram["a"],
        ("a", "b"): 0.5 / 2 + 1 / 2 * unigram["b"],
        ("a", "<eos>"): 0.5 / 2 + 1 / 2 * unigram["<eos>"],
        ("b", "<eos>"): 0.5 + 0.5 * unigram["<eos>"],
    }
    steps = [("<s>", "a"), ("a", "b"), ("b", "<eos>"), ("<s>", "a"), ("a", "<eos>")]
    np.testing.assert_allclose(np.exp(model.log_prob(text)), [bigram[step] for step in steps])


@pytest.mark.parametrize("order", [1, 2, 4])
def test_next_word_is_a_distribution(texts, order):
    model = KneserNey(order).fit(texts[0])
    rng = np.random.default_rng(0)
    num_words = len(model.vocabulary)
    observed = [line[:-1] for line in texts[1].lines()][:15]
    for context in [(), *observed, *(rng.integers(0, num_words, size=size) for size in (1, 2, 3, 6))]:
        log_probs = model.next_word(context)
        assert log_probs.shape == (num_words,)
        np.testing.assert_allclose(np.exp(log_probs).sum(), 1, rtol=1e-12)


def test_next_word_agrees_with_log_prob(texts):
    model = KneserNey(4).fit(texts[0])
    log_probs = model.log_prob(texts[1])
    for line, start in list(zip(texts[1].lines(), texts[1].line_starts, strict=False))[:20]:
        words = model.vocabulary.decode(line)
        for place, id_ in enumerate(line):
            for context in (line[:place], words[:place]):
                np.testing.assert_allclose(model.next_word(context)[id_], log_probs[start + place], rtol=1e-12)


def test_perplexity(texts):
    model = KneserNey(3).fit(texts[0])
    np.testing.assert_allclose(model.perplexity(texts[1]), np.exp(-model.log_prob(texts[1]).mean()))
    assert model.perplexity(texts[0]) < model.perplexity(texts[1]) < len(model.vocabulary)


def test_lines_are_independent(texts):
    """Each line starts from <s>: scoring lines in another order only reorders the scores."""
    model = KneserNey(4).fit(texts[0])
    words = [model.vocabulary.decode(line[:-1]) for line in texts[1].lines()]
    backwards = Text.from_lines(words[::-1], model.vocabulary)
    scores = np.split(model.log_prob(backwards), backwards.line_starts[1:-1])[::-1]
    np.testing.assert_allclose(np.concatenate(scores), model.log_prob(texts[1]))


def test_text_without_eos():
    lines = [["a", "b", "a"], [], ["b"]]
    text = Text.from_lines(lines, Vocabulary(("a", "b", "never")))
    model = KneserNey(2).fit(text)
    assert model.log_prob(text).shape == (4,)
    np.testing.assert_allclose(np.exp(model.next_word(["a"])).sum(), 1)


def test_order_longer_than_every_line():
    text = Text.from_lines([["a"], ["b"], ["a"]])
    model = KneserNey(9).fit(text)
    assert len(model.num_ngrams) == len(model.discounts) == 3
    longer = Text.from_lines([["a", "b", "a", "b", "b"]], text.vocabulary)
    assert np.isfinite(model.log_prob(longer)).all()
    np.testing.assert_allclose(np.exp(model.next_word(["a", "b", "a", "b"])).sum(), 1)


def test_refusals(texts):
    with pytest.raises(TypeError, match="order: expected an integer"):
        KneserNey(2.0)
    with pytest.raises(ValueError, match="order must be at least 1"):
        KneserNey(0)
    model = KneserNey(2)
    for use in (lambda: model.log_prob(texts[0]), lambda: model.perplexity(texts[0]), lambda: model.next_word()):
        with pytest.raises(RuntimeError, match=r"call fit\(text\) first"):
            use()
    model.fit(texts[0])
    with pytest.raises(ValueError, match="encoded with another vocabulary"):
        model.log_prob(Text.from_lines([["a"]]))
    with pytest.raises(ValueError, match="context: expected ids from 0"):
        model.next_word([-1])
    with pytest.raises(TypeError, match="expected a list of words"):
        model.next_word("the cat")
    empty = Text.from_lines([["a"]], Vocabulary(("a",)))
    empty = Text(empty.tokens[:0], np.array([0, 0]), np.array([0, 1]), texts[0].vocabulary)
    for use in (model.fit, model.perplexity):
        with pytest.raises(ValueError, match="has no tokens"):
            use(empty)


def test_reproduction_script(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "reproduce" / "kneser_ney.py"
    corpus = tmp_path / "data" / "tiny"
    corpus.mkdir(parents=True)
    (corpus / "train.txt").write_text("a b\nb a\n<unk> a\n", encoding="utf-8")
    (corpus / "valid.txt").write_text("a b c\n", encoding="utf-8")
    output = tmp_path / "results" / "kneser_ney.json"
    options = ["--data", tmp_path / "data", "--corpus", "tiny", "--order", "2", "--output", output]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    model = KneserNey(2).fit(load_corpus(corpus).train)
    assert report["results"][0]["valid_perplexity"] == model.perplexity(load_corpus(corpus).valid)
    options[3] = "absent"
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "none of absent found" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("order", sorted(PTB_BY_ORDER))
def test_penn_treebank_equals_kenlm(data_folder, order):
    corpus = load_corpus(data_folder / "ptb")
    model = KneserNey(order).fit(corpus.train)
    measured = [model.perplexity(corpus.valid), model.perplexity(corpus.test)]
    np.testing.assert_allclose(measured, PTB_BY_ORDER[order], atol=0.01)


@pytest.mark.slow
def test_wikitext2_equals_kenlm(data_folder):
    corpus = load_corpus(data_folder / "wikitext2")
    assert KneserNey(5).fit(corpus.train).perplexity(corpus.valid) == pytest.approx(234.86, abs=0.01)
