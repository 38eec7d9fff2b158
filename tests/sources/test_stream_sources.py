"""Sources: probabilities that sum to one, the same by every way of asking, resumed exactly, guarded, aligned."""

import contextlib
import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pplseq.baselines import LSTM, RNN, FeedForward, KneserNey
from pplseq.data import Text, Vocabulary
from pplseq.models import HMM, VLHMM
from pplseq.models.props.source import CheckedSource, stream_log_probs
from pplseq.sources import (
    ArraySource,
    CallableSource,
    MixtureSource,
    ModelSource,
    NGramSource,
    OnlineNGram,
    Source,
    TorchLanguageModelSource,
    UnigramCache,
)
from pplseq.sources.alignment import check_alignment, measure_alignment

NUM_WORDS = 7  # w0..w4, <eos>, <unk>


@pytest.fixture(scope="module")
def text():
    """Words that are mostly followed by the next one."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(60):
        word, line = rng.integers(5), []
        for _ in range(rng.integers(1, 8)):
            line.append(f"w{word}")
            word = (word + 1) % 5 if rng.random() < 0.8 else rng.integers(5)
        lines.append(line)
    return Text.from_lines(lines, Vocabulary((*(f"w{n}" for n in range(5)), "<eos>", "<unk>")))


class Logits(torch.nn.Module):
    """A causal module that is not the library's: logits of the next token from the last two."""

    def __init__(self, num_words):
        super().__init__()
        torch.manual_seed(5)
        self.table = torch.nn.Parameter(torch.randn(num_words, num_words))

    def forward(self, ids):
        before = torch.cat([ids[:, :1], ids[:, :-1]], 1)
        return self.table[ids] + 0.5 * self.table[before]


def vlhmm(**options):
    torch.manual_seed(2)
    blocks = torch.tensor([0, 0, 1, 1, 0, 2, 0] if "num_topics" in options else [0, 0, 1, 1, 2, 2, 2])
    return VLHMM(9, num_words=NUM_WORDS, blocks=blocks, hidden_size=4, init_scale=1.0, **options).double()


def hmm():
    torch.manual_seed(3)
    model = HMM(3, num_words=NUM_WORDS)
    for parameter in model.parameters():
        parameter.data.normal_()
    return model


SOURCES = {
    "cache": lambda text: UnigramCache(NUM_WORDS),
    "decaying cache": lambda text: UnigramCache(NUM_WORDS, decay=0.8, smoothing=0.3),
    "online 3-gram": lambda text: OnlineNGram(NUM_WORDS),
    "online unigram": lambda text: OnlineNGram(NUM_WORDS, 1, discount=0.5),
    "3-gram": lambda text: NGramSource(KneserNey(3).fit(text)),
    "unigram": lambda text: NGramSource(KneserNey(1).fit(text)),
    "lstm": lambda text: TorchLanguageModelSource(LSTM(text.vocabulary, 4, seed=1).double()),
    "rnn": lambda text: TorchLanguageModelSource(RNN(text.vocabulary, 4, seed=1).double()),
    "ff": lambda text: TorchLanguageModelSource(FeedForward(text.vocabulary, 4, order=3, seed=1).double()),
    "module": lambda text: TorchLanguageModelSource(Logits(NUM_WORDS).double(), NUM_WORDS, start=5),
    "vlhmm": lambda text: ModelSource(vlhmm()),
    "vlhmm with reset": lambda text: ModelSource(vlhmm(reset_id=5)),
    "vlhmm with topics": lambda text: ModelSource(vlhmm(reset_id=5, num_topics=2)),
    "hmm": lambda text: ModelSource(hmm()),
    "function": lambda text: CallableSource(after_the_last, NUM_WORDS, max_context=2),
    "mixture": lambda text: MixtureSource([UnigramCache(NUM_WORDS), OnlineNGram(NUM_WORDS, 2)], [1, 3], learn=True),
    "array": lambda text: ArraySource(np.random.default_rng(4).dirichlet(np.ones(NUM_WORDS), 400)),
}


def after_the_last(prefix):
    probs = np.full(NUM_WORDS, 0.5 / NUM_WORDS)
    probs[(prefix[-1] + 1) % 5 if prefix else 0] += 0.5
    return probs


@pytest.fixture(params=SOURCES)
def make(request, text):
    return lambda: SOURCES[request.param](text)


def test_all_ways_of_asking_agree(make, text):
    source, twin, stream = make(), make(), text.tokens[:40]
    assert isinstance(source, Source)
    at_once = stream_log_probs(make(), stream)
    for t, y in enumerate(stream.tolist()):
        probs = source.predict()
        assert probs.shape == (NUM_WORDS,) and probs.min() >= 0
        np.testing.assert_allclose(probs.sum(), 1, atol=1e-12)
        if hasattr(twin, "log_prob_of"):
            alone = np.exp([twin.log_prob_of(word) for word in range(NUM_WORDS)])
            np.testing.assert_allclose(alone, probs, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(at_once[t], np.log(probs[y]), rtol=1e-9, atol=1e-12)
        source.observe(y)
        twin.observe(y)


def test_resumed_exactly_and_through_json(make, text):
    source, stream = make(), text.tokens[:60]
    for y in stream[:30].tolist():
        source.predict()
        source.observe(y)
    saved = json.loads(json.dumps(source.state_dict(), default=lambda array: array.tolist()))
    other = make()
    other.load_state_dict(saved)
    np.testing.assert_array_equal(stream_log_probs(other, stream[30:]), stream_log_probs(source, stream[30:]))


def test_a_stream_at_once_leaves_the_source_where_it_was(make, text):
    source = make()
    if not hasattr(source, "log_probs"):
        pytest.skip("asked one by one")
    for y in text.tokens[:5].tolist():
        source.observe(y)
    before = source.predict()
    first = source.log_probs(text.tokens[5:30])
    np.testing.assert_array_equal(source.predict(), before)
    np.testing.assert_array_equal(source.log_probs(text.tokens[5:30]), first)
    assert len(source.log_probs(text.tokens[:0])) == 0


@pytest.mark.parametrize("position", [0, 20])
def test_a_mark_puts_back_what_comes_next(make, text, position):
    for observes in ([], [3], [9], None):  # nothing, a token, what is no token, and None for a reset
        put_back(make, text, position, observes)


def put_back(make, text, position, observes):
    source, stream = make(), text.tokens[:60]
    for y in stream[:position].tolist():
        source.predict()
        source.observe(y)
    state, asked = json.dumps(source.state_dict(), default=lambda array: array.tolist()), source.predict()
    back = CheckedSource(source).mark()
    if observes is None:
        source.reset()
    for y in observes or ():
        with contextlib.suppress(IndexError, KeyError, ValueError):
            source.observe(y)
    back()
    assert json.dumps(source.state_dict(), default=lambda array: array.tolist()) == state
    np.testing.assert_array_equal(source.predict(), asked)
    twin = make()
    twin.load_state_dict(json.loads(state))
    np.testing.assert_array_equal(stream_log_probs(source, stream[20:40]), stream_log_probs(twin, stream[20:40]))


def test_a_mark_where_counts_are_scaled_back():
    source = UnigramCache(5, decay=0.5)
    source._unit = 1e12
    source.observe(1)
    before, back = source.predict(), source.mark()
    source.observe(2)
    back()
    np.testing.assert_array_equal(source.predict(), before)


def test_reset_begins_a_sequence(text):
    for name in ("3-gram", "vlhmm", "hmm", "function", "module", "online 3-gram"):
        source = SOURCES[name](text)
        first = source.predict()
        for y in (1, 2, 3):
            source.observe(y)
        source.reset()
        if name == "online 3-gram":  # what was counted stays, the context goes
            assert source.log_prob_of(2) == pytest.approx(math.log(0.75 * 3 / 3 / NUM_WORDS + 0.25 / 3))
        else:
            np.testing.assert_allclose(source.predict(), first, atol=1e-12)


# ---------------------------------------------------------------- against formulas
def test_cache_counts_by_age():
    tokens, decay, a = [3, 1, 3, 0, 3, 1], 0.7, 0.4
    source = UnigramCache(5, decay=decay, smoothing=a)
    source._unit = 1e11  # it is scaled back on the way
    for n, y in enumerate(tokens):
        weights = decay ** np.arange(n - 1, -1, -1)
        counts = np.array([weights[[z == w for z in tokens[:n]]].sum() for w in range(5)])
        np.testing.assert_allclose(source.predict(), (counts + a / 5) / (counts.sum() + a), rtol=1e-9)
        source.observe(y)


def test_online_ngram_equals_its_formula():
    rng = np.random.default_rng(1)
    tokens, V, D = rng.integers(4, size=60).tolist(), 5, 0.6
    source = OnlineNGram(V, 3, discount=D)

    def prob(word, context, past):
        lower = 1 / V if not context and not past else None
        grams = Counter(tuple(past[n : n + len(context) + 1]) for n in range(len(past) - len(context)))
        behind = {gram[-1]: count for gram, count in grams.items() if gram[:-1] == context}
        if lower is None:
            lower = prob(word, context[1:], past) if context else 1 / V
        total = sum(behind.values())
        if not total:
            return lower
        return (max(behind.get(word, 0) - D, 0) + D * len(behind) * lower) / total

    for t, y in enumerate(tokens):
        context = tuple(tokens[max(0, t - 2) : t])
        expected = [prob(word, context, tokens[:t]) for word in range(V)]
        np.testing.assert_allclose(source.predict(), expected, rtol=1e-9)
        source.observe(y)


def test_ngram_equals_the_model_line_by_line(text):
    model = KneserNey(3).fit(text)
    np.testing.assert_allclose(stream_log_probs(NGramSource(model), text.tokens), model.log_prob(text), rtol=1e-9)


def test_networks_and_models_equal_their_own_scores(text):
    model = LSTM(text.vocabulary, 4, seed=1).double()
    np.testing.assert_allclose(TorchLanguageModelSource(model).log_probs(text.tokens), model.log_prob(text), rtol=1e-9)
    model = vlhmm()
    x = torch.as_tensor(text.tokens[None].astype(np.int64))
    expected = model.posterior(x).token_log_probs()[0].numpy()
    np.testing.assert_allclose(stream_log_probs(ModelSource(model), text.tokens), expected, rtol=1e-9)


def test_mixture_finds_the_better_part():
    rng = np.random.default_rng(0)
    stream = rng.choice(3, size=400, p=[0.8, 0.1, 0.1])
    good, bad = (CallableSource(lambda prefix, p=p: np.array(p), 3) for p in ([0.8, 0.1, 0.1], [0.1, 0.1, 0.8]))
    mixture = MixtureSource([bad, good], learn=True)
    stream_log_probs(mixture, stream)
    assert mixture.weights[1] > 0.9 and mixture.weights.sum() == pytest.approx(1)
    fixed = MixtureSource([bad, good], [1, 3])
    np.testing.assert_allclose(fixed.predict(), [0.625, 0.1, 0.275])
    stream_log_probs(fixed, stream[:5])
    np.testing.assert_array_equal(fixed.weights, [0.25, 0.75])


def test_a_mixture_has_words_far_below_the_smallest_number():
    def saying(value):
        said = SimpleNamespace(num_words=2, log_prob_of=lambda y: (0.0, value)[y], predict=lambda: np.array([1.0, 0.0]))
        said.observe, said.reset = lambda y: None, lambda: None
        return said

    mixture = MixtureSource([saying(-800.0), saying(-801.0), saying(-np.inf)], learn=True)
    assert mixture.log_prob_of(1) == pytest.approx(-800 + math.log((1 + math.exp(-1)) / 3))
    mixture.observe(1)
    share = 1 / (1 + math.exp(-1))
    expected = 1 / 3 + 2**-0.8 * (np.array([share, 1 - share, 0]) - 1 / 3)
    np.testing.assert_allclose(mixture.weights, expected)
    assert MixtureSource([saying(-np.inf)]).log_prob_of(1) == -np.inf


# ---------------------------------------------------------------- the guard
@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([0.5, np.nan, 0.5], "bad: the probability of word 1 is nan"),
        ([0.5, np.inf, 0.5], "bad: the probability of word 1 is inf"),
        ([0.7, -0.2, 0.5], "bad: the probability of word 1 is -0.2"),
        ([0.5, 0.2, 0.2], "bad: its probabilities sum to 0.9 instead of 1"),
        ([-1.0, -1.0, -1.0], "are these log-probabilities"),
        ([0.5, 0.5], r"bad: predict\(\) must give \(3,\) probabilities.*got shape \(2,\)"),
    ],
)
def test_bad_probabilities_are_named(probs, message):
    source = CheckedSource(CallableSource(lambda prefix: np.array(probs), 3, name="bad"))
    with pytest.raises(ValueError, match=message):
        source.predict()


def test_a_source_is_asked_before_it_is_told():
    source = CheckedSource(UnigramCache(3))
    with pytest.raises(RuntimeError, match="observe.1. before predict"):
        source.observe(1)
    source.predict()
    source.observe(1)
    with pytest.raises(RuntimeError, match="before predict"):
        source.observe(1)
    with pytest.raises(ValueError, match=r"cache: token 3 is not in 0\.\.2"):
        source.log_prob_of(3)
    with pytest.raises(TypeError, match="without observe"):
        CheckedSource(type("Half", (), {"predict": lambda self: 0})())

    class Sure(UnigramCache):
        def log_prob_of(self, y):
            return 0.3

    with pytest.raises(ValueError, match="no probability is above 1"):
        CheckedSource(Sure(3)).log_prob_of(0)
    with pytest.raises(TypeError, match="no state_dict"):
        CheckedSource(
            type("Bare", (), {m: (lambda *a: 0) for m in ("predict", "observe", "reset")} | {"num_words": 2})()
        ).state_dict()


class Shifted:
    """A source that has been told too much (+1: the stream's next token), or too little (-1)."""

    def __init__(self, stream, shift):
        self.stream, self.shift, self.num_words, self.t = stream.tolist(), shift, NUM_WORDS, 0

    def predict(self):
        seen = self.stream[: max(self.t + self.shift, 0)]
        return after_the_last(seen)

    def observe(self, y):
        self.t += 1

    def reset(self):
        self.t = 0


def test_alignment(text):
    stream = np.array([y for y in text.tokens if y < 5])
    found = check_alignment(Shifted(stream, 0), stream)
    assert found.current > found.previous and found.current > found.following and found.late < 0 > found.early
    with pytest.raises(ValueError, match="Shifted: .*it has already seen the token"):
        check_alignment(Shifted(stream, 1), stream)
    behind = check_alignment(Shifted(stream, -1), stream)
    assert behind.late > 3 and behind.previous > behind.current
    assert check_alignment(UnigramCache(NUM_WORDS), text.tokens).early < 3  # which repeats what it observed
    with pytest.raises(ValueError, match="at least 12"):
        measure_alignment(UnigramCache(NUM_WORDS), text.tokens[:5])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UnigramCache(0), "num_words"),
        (lambda: UnigramCache(3, decay=0), "decay"),
        (lambda: UnigramCache(3, smoothing=0), "smoothing"),
        (lambda: OnlineNGram(3, 0), "order"),
        (lambda: OnlineNGram(3, discount=1), "discount"),
        (lambda: MixtureSource([]), "sources"),
        (lambda: MixtureSource([UnigramCache(3), UnigramCache(4)]), "same words"),
        (lambda: MixtureSource([UnigramCache(3)], [-1]), "weights"),
        (lambda: MixtureSource([UnigramCache(3)], exponent=0.5), "exponent"),
        (lambda: ArraySource([0.5, 0.5]), "probs"),
        (lambda: CallableSource(len, 3, max_context=-1), "max_context"),
        (lambda: NGramSource(KneserNey(2)), "fitted"),
        (lambda: TorchLanguageModelSource(Logits(3)), "num_words, start"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_source_says_how_many_words_it_has():
    with pytest.raises(TypeError, match="Bare must say how many words it has as num_words, got None"):
        CheckedSource(type("Bare", (), {name: lambda self: None for name in ("predict", "observe", "reset")})())
    with pytest.raises(TypeError, match="wrap a function of the prefix"):
        MixtureSource([lambda prefix: np.ones(3) / 3])


def test_a_mixture_forgets_what_it_was_asked_at_a_boundary():
    mixtures = [MixtureSource([UnigramCache(5), OnlineNGram(5, 2)], learn=True) for _ in range(2)]
    for mixture in mixtures:
        for y in [1, 2, 1, 2, 1]:
            mixture.log_prob_of(y)
            mixture.observe(y)
    mixtures[0].log_prob_of(2)  # asked within the sequence, told behind its end
    for mixture in mixtures:
        mixture.reset()
        mixture.predict()
        mixture.observe(2)
    np.testing.assert_array_equal(mixtures[0].weights, mixtures[1].weights)


def test_counts_of_another_order_are_refused():
    source = OnlineNGram(5, 3)
    source.observe(1)
    with pytest.raises(ValueError, match="order: the counts are of 3-grams, this source has order 2"):
        OnlineNGram(5, 2).load_state_dict(source.state_dict())


def test_an_array_ends():
    source = ArraySource(np.full((2, 2), 0.5))
    with pytest.raises(IndexError, match="predictions for 2 tokens"):
        stream_log_probs(source, [0, 1, 0])


def test_weights_of_a_mixture_are_those_of_online_em():
    """w += (r - w) / (t + 1)^exponent at token t, with the responsibilities r before it."""
    tables = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    mixture = MixtureSource([ArraySource(np.tile(table, (6, 1))) for table in tables], learn=True, exponent=0.7)
    weights = np.array([0.5, 0.5])
    for t, word in enumerate([2, 0, 2, 1, 2, 2], start=1):
        assert mixture.log_prob_of(word) == pytest.approx(math.log(weights @ tables[:, word]), rel=1e-12)
        joint = weights * tables[:, word]
        weights = weights + (joint / joint.sum() - weights) / (t + 1) ** 0.7
        mixture.observe(word)
        np.testing.assert_allclose(mixture.weights, weights, rtol=1e-12)
