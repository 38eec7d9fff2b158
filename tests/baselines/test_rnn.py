"""The recurrent baseline: against a slow twin in numpy, resumed to the bit, steered by its schedule, started linearly."""

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.stored import rewrite

from pplseq.baselines import RNN, SGDSettings
from pplseq.baselines.neural import NeuralLanguageModel
from pplseq.data import Text, Vocabulary
from pplseq.runs.metrics_log import read_metrics
from pplseq.runs.settings import NonFiniteLoss


def slow_log_probs(tokens, eos_id, A, B, C, c):
    """Word by word, as the formula says."""
    h, word, scores = np.full(len(A), 0.5), eos_id, []
    for target in tokens:
        h = 1 / (1 + np.exp(-(A @ h + B[:, word])))
        logits = C @ h + c
        scores.append(logits[target] - np.log(np.exp(logits).sum()))
        word = target
    return np.array(scores)


def arrays(model):
    return [w.detach().numpy().copy() for w in (model.transition, model.embedding.T, model.output, model.output_bias)]


@pytest.fixture(scope="module")
def texts():
    """Sentences in which each word is mostly followed by one of two."""
    rng = np.random.default_rng(3)
    lines = []
    for _ in range(480):
        word, line = rng.integers(20), []
        for _ in range(rng.integers(1, 12)):
            line.append(f"w{word}")
            word = rng.integers(20) if rng.random() < 0.1 else (7 * word + rng.integers(2)) % 20
        lines.append(line)
    vocabulary = Vocabulary.build(lines)
    return Text.from_lines(lines[:400], vocabulary, name="train"), Text.from_lines(
        lines[400:], vocabulary, name="valid"
    )


@pytest.fixture
def model(texts):
    return RNN(texts[0].vocabulary, 5, init_scale=0.7, seed=1).double()


SETTINGS = SGDSettings(lr=1.0, batch_size=4, segment_length=7, epochs=3)


@pytest.mark.parametrize("at_once", [1, 7, 512])
def test_equals_the_slow_twin(texts, model, at_once):
    model.set_unigram(texts[0])
    slow = slow_log_probs(texts[1].tokens, texts[1].vocabulary.eos_id, *arrays(model))
    np.testing.assert_allclose(model.log_prob(texts[1], at_once=at_once), slow, rtol=1e-12)
    np.testing.assert_allclose(model.perplexity(texts[1]), np.exp(-slow.mean()), rtol=1e-12)


def test_a_step_follows_the_gradient_of_the_slow_twin(texts):
    """One segment as long as the text: the change of the weights is -lr times the finite differences of the nats."""
    text = Text.from_lines([["a", "b", "a"], ["c"]], name="short")
    model = RNN(text.vocabulary, 3, init_scale=0.8).double()
    before = arrays(model)
    settings = SGDSettings(lr=0.01, batch_size=1, segment_length=text.num_tokens, epochs=1, clip=None)
    model.fit(text, settings=settings)
    eos_id = text.vocabulary.eos_id
    for which, (old, new) in enumerate(zip(before, arrays(model), strict=True)):
        expected = np.zeros_like(old)
        for place in np.ndindex(old.shape):
            nats = []
            for step in (1e-6, -1e-6):
                moved = [part.copy() for part in before]
                moved[which][place] += step
                nats.append(-slow_log_probs(text.tokens, eos_id, *moved).sum())
            expected[place] = (nats[0] - nats[1]) / 2e-6
        np.testing.assert_allclose((old - new) / 0.01, expected, rtol=1e-5, atol=1e-7)


def test_clipped_step_has_the_largest_norm(texts, model):
    before = arrays(model)
    text = texts[0]
    settings = replace(SETTINGS, epochs=1, clip=0.1, segment_length=text.num_tokens)
    model.fit(text, settings=settings)
    change = sum(((old - new) ** 2).sum() for old, new in zip(before, arrays(model), strict=True))
    np.testing.assert_allclose(np.sqrt(change), 0.1, rtol=1e-9)


def test_state_is_carried_but_not_its_gradient(texts):
    """Segments of one token: A's gradient is the outer product of the step's own error and the carried state."""
    text = Text.from_lines([["a", "b"]])
    model = RNN(text.vocabulary, 2, init_scale=0.5).double()
    A, B, C, c = arrays(model)
    h, word, lr = np.full(2, 0.5), text.vocabulary.eos_id, 0.1
    for target in text.tokens:
        previous, h = h, 1 / (1 + np.exp(-(A @ h + B[:, word])))
        error = np.exp(C @ h + c) / np.exp(C @ h + c).sum() - np.eye(3)[target]
        inner = (C.T @ error) * h * (1 - h)
        C, c = C - lr * np.outer(error, h), c - lr * error
        A = A - lr * np.outer(inner, previous)
        B[:, word] -= lr * inner
        word = target
    model.fit(text, settings=SGDSettings(lr=lr, batch_size=1, segment_length=1, epochs=1, clip=None))
    for mine, slow in zip(arrays(model), (A, B, C, c), strict=True):
        np.testing.assert_allclose(mine, slow, rtol=1e-10)


@pytest.mark.slow
def test_learns_more_than_frequencies(texts):
    train, valid = texts
    counts = np.bincount(train.tokens, minlength=len(train.vocabulary)) + 1.0
    unigram = np.exp(-np.log(counts / counts.sum())[valid.tokens].mean())
    found = {}
    for precision in ("full", "bfloat16"):
        model = RNN(train.vocabulary, 12, init_scale=0.5).set_unigram(train)
        settings = SGDSettings(
            lr=0.5, batch_size=2, segment_length=5, epochs=25, min_improvement=0, precision=precision
        )
        found[precision] = model.fit(train, valid, settings=settings).perplexity(valid)
        np.testing.assert_allclose(found[precision], min(r["perplexity"] for r in model.history), rtol=1e-6)
    assert found["full"] < 0.5 * unigram
    # Coarser products go another way to the same place.
    assert found["full"] != found["bfloat16"]
    np.testing.assert_allclose(found["bfloat16"], found["full"], rtol=0.05)


def test_learning_rate_falls_when_validation_stalls(texts):
    """Held-out text that gets worse: each epoch is taken back, the rate halves, and the second time it ends."""
    train, _ = texts
    lines = [[train.vocabulary.words[-1]] * 9] * 9
    model = RNN(train.vocabulary, 4).double()
    with torch.no_grad():
        model.output_bias[-1] = 5.0
    before = arrays(model)
    model.fit(train, Text.from_lines(lines, train.vocabulary), settings=replace(SETTINGS, epochs=9))
    assert [record["lr"] for record in model.history] == [1.0, 1.0, 0.5]
    for old, new in zip(before, arrays(model), strict=True):
        np.testing.assert_array_equal(old, new)


class StopAt:
    """Raises SIGTERM in the middle of an epoch."""

    def __init__(self, model, step):
        self.model, self.step, self.calls, self.forward = model, step, 0, model.nats

    def __call__(self, *args):
        self.calls += 1
        if self.calls == self.step:
            signal.raise_signal(signal.SIGTERM)
        return self.forward(*args)


def test_resumed_run_equals_one_never_stopped(texts, tmp_path):
    train, valid = texts

    def fresh(seed=0):
        return RNN(train.vocabulary, 5, seed=seed).double().set_unigram(train)

    straight = fresh().fit(train, valid, settings=SETTINGS, folder=tmp_path / "straight")
    cut = fresh()
    cut.nats = StopAt(cut, 30)
    with pytest.raises(SystemExit):
        cut.fit(train, valid, settings=SETTINGS, folder=tmp_path / "cut")
    resumed = fresh(seed=9).fit(train, valid, settings=SETTINGS, folder=tmp_path / "cut", resume=True)
    assert cut.nats.calls == 30 and len(resumed.history) == len(straight.history)
    # Equal but for the last bits, which depend on where in memory a matrix lies.
    for mine, other in zip(arrays(resumed), arrays(straight), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-10)
    kept = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("straight", "cut")]
    for mine, other in zip(*kept, strict=True):
        assert mine.keys() == other.keys() and mine["step"] == other["step"]
        for key in mine.keys() - {"kind", "seconds"}:
            np.testing.assert_allclose(mine[key], other[key], rtol=1e-10)
    best = RNN.load(tmp_path / "cut" / "best")
    np.testing.assert_allclose(best.log_prob(valid), straight.log_prob(valid), rtol=1e-5)
    with pytest.raises(ValueError, match="already holds a run"):
        fresh().fit(train, settings=SETTINGS, folder=tmp_path / "cut")
    with pytest.raises(ValueError, match="settings: lr 1.0 -> 2.0"):
        fresh().fit(train, valid, settings=replace(SETTINGS, lr=2.0), folder=tmp_path / "cut", resume=True)


def test_next_word(texts, model):
    words = texts[1].vocabulary.decode(texts[1].tokens[:6])
    for place in range(6):
        log_probs = model.next_word(words[:place])
        np.testing.assert_allclose(np.exp(log_probs).sum(), 1, rtol=1e-12)
        np.testing.assert_allclose(log_probs[texts[1].tokens[place]], model.log_prob(texts[1])[place], rtol=1e-10)


def test_save_and_load(texts, model, tmp_path):
    model = model.float()
    model.save(tmp_path / "rnn")
    loaded = RNN.load(tmp_path / "rnn")
    np.testing.assert_allclose(loaded.log_prob(texts[1]), model.log_prob(texts[1]), rtol=1e-6)
    assert not [path for path in (tmp_path / "rnn").iterdir() if path.suffix in (".pkl", ".pt", ".bin")]
    rewrite(tmp_path / "rnn", model="lstm")
    with pytest.raises(ValueError, match="expected a model of kind 'rnn', got 'lstm'"):
        RNN.load(tmp_path / "rnn")
    with pytest.raises(FileNotFoundError, match="no model at"):
        RNN.load(tmp_path / "absent")


@pytest.fixture
def filter_arrays(texts):
    """A stable linear filter with inputs of mean zero, and outputs that keep the sum of probabilities."""
    rng = np.random.default_rng(5)
    num_words, hidden_size = len(texts[0].vocabulary), 4
    A = rng.normal(size=(hidden_size, hidden_size))
    A *= 0.6 / np.abs(np.linalg.eigvals(A)).max()
    B = rng.normal(size=(hidden_size, num_words))
    mu = np.bincount(texts[0].tokens, minlength=num_words) + 1.0
    mu /= mu.sum()
    C = 0.002 * mu[:, None] * rng.normal(size=(num_words, hidden_size))
    return A, B - (B @ mu)[:, None], C - mu[:, None] * C.sum(0), mu


def test_linear_start_follows_the_filter(texts, filter_arrays):
    """Small pre-activations and small changes: log-probabilities move with the linear filter's probabilities."""
    A, B, C, mu = filter_arrays
    train, valid = texts
    model = RNN.from_linear(A, B, C, train, scale=1e-3).double()
    x, word, change = np.zeros(len(A)), valid.vocabulary.eos_id, []
    for target in valid.tokens:
        x = A @ x + B[:, word]
        change.append(C @ x / mu)
        word = target
    change = np.array(change)
    # The gain is one number: read it off one logit, check all the others.
    features, _ = model(
        torch.from_numpy(np.append(valid.vocabulary.eos_id, valid.tokens[:-1]).astype(np.int64))[None],
        model.initial_state(1),
    )
    logits = model.logits(features[0]).detach().numpy() - np.log(mu)
    gain = (logits * change).sum() / (change**2).sum()
    assert 0 < gain < 2
    np.testing.assert_allclose(logits, gain * change, atol=0.02 * gain * np.abs(change).max())


def test_linear_start_gain_is_the_likeliest(texts, filter_arrays):
    """A filter that copies the true bigram deviations: moving the gain either way makes the training text less likely."""
    train, _ = texts
    num_words = len(train.vocabulary)
    bigrams = np.zeros((num_words, num_words))
    previous = np.append(train.vocabulary.eos_id, train.tokens[:-1])
    np.add.at(bigrams, (train.tokens, previous), 1.0)
    joint = bigrams / bigrams.sum()
    mu = (np.bincount(train.tokens, minlength=num_words) + 1.0) / (train.num_tokens + num_words)
    later, earlier = joint.sum(1), joint.sum(0)
    psi = (joint - np.outer(later, earlier)) / np.maximum(earlier, 1e-3)
    U, s, V = np.linalg.svd(psi)
    model = RNN.from_linear(np.zeros((6, 6)), V[:6], U[:, :6] * s[:6], train, scale=0.5).double()
    best = model.log_prob(train).sum()
    assert best > np.log(mu)[train.tokens].sum() + 5
    output, bias = model.output.detach().clone(), model.output_bias.detach().clone()
    logs = torch.from_numpy(np.log(mu))
    for factor in (0.9, 1.1):
        with torch.no_grad():
            model.output.copy_(factor * output)
            model.output_bias.copy_(logs + factor * (bias - logs))
        assert model.log_prob(train).sum() < best - 1e-6


def test_refusals(texts, filter_arrays):
    train, valid = texts
    with pytest.raises(TypeError, match="hidden_size must be a whole number"):
        RNN(train.vocabulary, 2.0)
    with pytest.raises(ValueError, match="hidden_size must be at least 1"):
        RNN(train.vocabulary, 0)
    with pytest.raises(ValueError, match="it has no '<eos>'"):
        RNN(Vocabulary(("a", "b")), 2)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        SGDSettings(batch_size=0)
    with pytest.raises(ValueError, match="precision must be one of full, bfloat16"):
        SGDSettings(precision="half")
    model = RNN(train.vocabulary, 2)
    other = Text.from_lines([["a", "b"]])
    with pytest.raises(ValueError, match="validation: 'text' is encoded with another vocabulary"):
        model.fit(train, other)
    with pytest.raises(ValueError, match="another vocabulary"):
        model.log_prob(other)
    with pytest.raises(ValueError, match="context: expected ids"):
        model.next_word([len(train.vocabulary)])
    with pytest.raises(ValueError, match="there is no folder to resume from"):
        model.fit(train, resume=True)
    with torch.no_grad():
        model.transition.fill_(torch.nan)
    with pytest.raises(NonFiniteLoss, match=r"at step 1 \(epoch 1, lr 1\)"):
        model.fit(train, settings=SETTINGS)
    A, B, C, _ = filter_arrays
    with pytest.raises(ValueError, match="probs: expected shape"):
        RNN.from_linear(A, B, C, train, probs=np.ones(3))
    with pytest.raises(ValueError, match="probs: expected positive probabilities"):
        RNN.from_linear(A, B, C, train, probs=np.zeros(len(train.vocabulary)))
    with pytest.raises(ValueError, match="scale must be positive"):
        RNN.from_linear(A, B, C, train, scale=0.0)
    with pytest.raises(ValueError, match="C: expected shape"):
        RNN.from_linear(A, B, C.T, train)
    with pytest.raises(ValueError, match="expected a stable filter, got spectral radius 1.2"):
        RNN.from_linear(2 * A, B, C, train)
    with pytest.raises(ValueError, match="B must be finite"):
        RNN.from_linear(A, B * np.nan, C, train)
    with pytest.raises(NotImplementedError):
        NeuralLanguageModel(train.vocabulary).initial_state(1)
