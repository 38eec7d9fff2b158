"""Sources that learn from the stream beside a network: a cache over hidden states, and dynamic evaluation."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq.baselines import LSTM, RNN
from pplseq.data import Vocabulary
from pplseq.models import HMM, PROPSLearner
from pplseq.models.props.source import stream_log_probs
from pplseq.sources import ContinuousCache, DynamicEvaluation, ModelSource, TorchLanguageModelSource, UnigramCache
from pplseq.sources.alignment import check_alignment

WORDS = Vocabulary((*"abcdefg", "<eos>", "<unk>"))
V = len(WORDS)


def network(kind=LSTM, seed=0):
    torch.manual_seed(seed)
    return kind(WORDS, 6, seed=seed).double().eval()


def stream(size=120, seed=0):
    random = np.random.default_rng(seed)
    return (random.random(size) ** 2 * (V - 1)).astype(int).tolist()


def run(sources, tokens):
    """(T, K) log p of every token; all are asked before any is told."""
    values = []
    for y in tokens:
        values.append([source.log_prob_of(y) for source in sources])
        for source in sources:
            source.observe(y)
    return np.array(values)


@pytest.mark.parametrize("size", [7, 500])
@pytest.mark.parametrize("sharpness", [0.0, 3.0])
def test_a_continuous_cache_is_its_formula(size, sharpness):
    base = TorchLanguageModelSource(network())
    cache, tokens, states = ContinuousCache(base, sharpness=sharpness, size=size, smoothing=2.0), stream(40), []
    for t, y in enumerate(tokens):
        h = base.hidden_state()
        h = h / np.linalg.norm(h)
        near = np.array([math.exp(sharpness * h @ past) for past in states[-size:]])
        n, expected = len(near), np.zeros(V)
        for word, weight in zip(tokens[max(t - size, 0) : t], near, strict=True):
            expected[word] += n / (n + 2) * weight / near.sum()
        expected += 2 / (n + 2) / V
        probs = cache.predict()
        np.testing.assert_allclose(probs, expected, rtol=1e-10)
        np.testing.assert_allclose([cache.log_prob_of(w) for w in range(V)], np.log(probs), rtol=1e-10)
        states.append(h)
        for source in (cache, base) if t % 2 else (base, cache):  # in either order, once it was asked
            source.observe(y)
        if t == 20:
            cache.reset(), base.reset()


def test_a_sharp_cache_has_the_nearest_word_however_far():
    """exp(-1000) of each is a number no more, and still they share all that is not the uniform distribution's."""
    states = iter(torch.eye(3, 3).tolist() + [[-1.0, 0.0, 0.0]])
    source = SimpleNamespace(num_words=V, hidden_state=lambda: next(states))
    cache = ContinuousCache(source, sharpness=1e3)
    for y in (4, 5, 6):
        cache.observe(y)
    np.testing.assert_allclose(cache.predict(), np.where(np.isin(range(V), (5, 6)), 3 / 8, 0) + 1 / 4 / V, rtol=1e-12)


def test_a_network_of_bfloat16_goes_on_from_a_state():
    model = network().bfloat16()
    source, other = TorchLanguageModelSource(model), TorchLanguageModelSource(model)
    source.observe(3)
    other.load_state_dict(source.state_dict())
    np.testing.assert_array_equal(other.predict(), source.predict())


def test_a_flat_cache_counts_words():
    cache, plain, base = None, UnigramCache(V), ModelSource(HMM(3, V))
    cache = ContinuousCache(base, sharpness=0.0, size=1000)
    found = run([cache, plain, base], stream())
    np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-12)


def slow_dynamic(model, tokens, step, decay, every, clip):
    """The network trained in place, by autograd."""
    model.eval()
    start = [p.detach().clone() for p in model.parameters()]
    state, words, values = model.initial_state(1), [model.eos_id], []
    before = state
    for y in tokens:
        with torch.no_grad():
            features, after = model(torch.tensor([words[-1:]]), state)
            values.append(float(torch.log_softmax(model.logits(features[0, -1]), -1)[y]))
        state, words = after, [*words, y]
        if len(words) > every:
            model.zero_grad()
            features, _ = model(torch.tensor([words[:-1]]), before)
            loss = torch.nn.functional.cross_entropy(model.logits(features[0]), torch.tensor(words[1:]))
            loss.backward()
            length = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
            with torch.no_grad():
                for p, first in zip(model.parameters(), start, strict=True):
                    p += -step / max(1, length / clip) * p.grad + decay * (first - p)
            words, before = words[-1:], state
    return np.array(values)


@grid({"every, clip": [(1, 0.3), (5, 10.0)], "kind": [LSTM, RNN]})
def test_dynamic_evaluation_is_training_on_the_way(kind, every, clip):
    tokens, frozen = stream(60), TorchLanguageModelSource(network(kind))
    dynamic = DynamicEvaluation(network(kind), step=0.4, decay=0.01, every=every, clip=clip)
    found = run([dynamic, frozen], tokens)
    expected = slow_dynamic(network(kind), tokens, 0.4, 0.01, every, clip)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9)
    np.testing.assert_allclose(found[:every, 0], found[:every, 1], rtol=1e-9)  # before the first update
    assert found[30:, 0].mean() > found[30:, 1].mean() + 0.05
    np.testing.assert_allclose(dynamic.predict().sum(), 1.0)
    for p, q in zip(dynamic.model.parameters(), network(kind).parameters(), strict=True):
        assert torch.equal(p, q)  # the network itself stays


def make_both():
    base = DynamicEvaluation(network(), step=0.3, every=3)
    return [ContinuousCache(base, size=20), base]


def test_they_go_on_from_a_state_and_are_put_back():
    tokens = stream(50)
    sources = make_both()
    run(sources, tokens[:30])
    states = [source.state_dict() for source in sources]
    marks = [source.mark() for source in sources]
    for source in sources:  # as a stream does: one token, and then a failure
        source.log_prob_of(tokens[30])
    for source in sources:
        source.observe(tokens[30])
    for back in marks:
        back()
    expected = run(sources, tokens[30:])
    again = make_both()
    for source, state in zip(again, states, strict=True):
        source.load_state_dict(state)
    np.testing.assert_allclose(run(again, tokens[30:]), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="size: 20 words were kept of 30, this cache keeps 25"):
        ContinuousCache(sources[1], size=25).load_state_dict(states[0])
    with pytest.raises(ValueError, match="model: the state has the weights"):
        DynamicEvaluation(network(RNN)).load_state_dict(states[1])


@pytest.mark.parametrize("size", [4, 100])
def test_any_number_of_words_is_put_back_to_any_mark(size):
    tokens, source = stream(40), TorchLanguageModelSource(network())
    sources = [ContinuousCache(source, size=size), source]
    run(sources, tokens[:10])
    first = [source.mark() for source in sources]
    run(sources, tokens[10:15])
    second = [source.mark() for source in sources]
    expected, state = run(sources, tokens[15:]), sources[0].state_dict()
    for back in second:
        back()
    assert (run(sources, tokens[15:]) == expected).all()
    for back in first:
        back()
    assert sources[0].count == 10
    assert (run(sources, tokens[10:])[5:] == expected).all()
    assert all(np.array_equal(state[name], value) for name, value in sources[0].state_dict().items())


def test_they_predict_before_they_observe_and_work_under_props(tmp_path):
    tokens = stream(150)
    check_alignment(DynamicEvaluation(network()), tokens)
    learner = PROPSLearner(make_both(), V, num_perturbations=1, seed=0)
    values = [learner.learn_one(y).log_prob for y in tokens[:100]]
    learner.new_sequence()
    folder = learner.save(tmp_path / "state")
    again = PROPSLearner.load(folder, make_both())
    rest = [(learner.learn_one(y).log_prob, again.learn_one(y).log_prob) for y in tokens[100:]]
    np.testing.assert_allclose(*zip(*rest, strict=True), rtol=1e-9)
    frozen = stream_log_probs(TorchLanguageModelSource(network()), tokens[:100])
    assert np.mean(values) > frozen.mean()


def test_what_cannot_be_is_refused():
    with pytest.raises(TypeError, match="hidden_state.*UnigramCache"):
        ContinuousCache(UnigramCache(V))
    with pytest.raises(TypeError, match="network of the library"):
        DynamicEvaluation(torch.nn.Linear(2, 2))
    module = TorchLanguageModelSource(torch.nn.Sequential(torch.nn.Embedding(V, V)), V, start=0)
    with pytest.raises(TypeError, match="its hidden state is not known"):
        ContinuousCache(module).predict()
    for wrong in ({"sharpness": -1.0}, {"size": 0}, {"smoothing": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ContinuousCache(TorchLanguageModelSource(network()), **wrong)
    for wrong in ({"step": 0.0}, {"decay": 1.0}, {"every": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DynamicEvaluation(network(), **wrong)
