"""Continuous caches and dynamic evaluation of users' own modules and of Hugging Face models, against slow twins."""

import copy
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pplseq.baselines import LSTM
from pplseq.data import Vocabulary
from pplseq.models import PROPSLearner
from pplseq.models.props.source import stream_log_probs
from pplseq.sources import ContinuousCache, DynamicEvaluation, HuggingFaceSource, ModelSource, TorchLanguageModelSource
from pplseq.sources.weights import WeightedSource
from tests.support.letter_pieces import Letters

V, LINE = 7, -2  # LINE: a sequence ends
SETTINGS = {"step": 0.5, "decay": 0.02, "every": 4, "clip": 0.6}
WORDS = Vocabulary(("a", "b", "ab", "abb", "ba", "<eos>", "<unk>"))


class Causal(torch.nn.Module):
    """Means of what came so far, in two layers; pairs of logits and hidden states, or one of the two."""

    def __init__(self, num_words=V, gives="both"):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.middle = torch.nn.Embedding(num_words, 5), torch.nn.Linear(5, 5)
        self.out, self.gives = torch.nn.Linear(5, num_words), gives
        self.double()

    def hidden(self, ids):
        sums = self.table(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None] + self.table(ids)
        return torch.tanh(self.middle(sums))

    def forward(self, ids):
        hidden = self.hidden(ids)
        logits = self.out(hidden)
        return {
            "both": (logits, hidden),
            "logits": logits,
            "state": (logits, (hidden, hidden)),
            "last": (logits, hidden[:, -1]),
        }[self.gives]


class Pieces(torch.nn.Module):
    """A causal model that answers as those of `transformers` do, without them."""

    def __init__(self, gives_hidden=True):
        super().__init__()
        self.inside, self.config = Causal(6, "both"), SimpleNamespace(max_position_embeddings=10)
        self.gives_hidden = gives_hidden

    def get_output_embeddings(self):
        return self.inside.out

    def forward(self, input_ids, output_hidden_states=False):
        logits, hidden = self.inside(input_ids)
        layers = (hidden * 0, hidden) if output_hidden_states and self.gives_hidden else None
        return SimpleNamespace(logits=logits, hidden_states=layers)


def module_source(**options):
    return TorchLanguageModelSource(Causal(), V, start=0, max_context=6, **options)


def pieces_source(kind="plain"):
    if kind == "plain":
        return HuggingFaceSource(Pieces(), Letters(), WORDS)
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=6, n_positions=16, n_embd=8, n_layer=2, n_head=2, initializer_range=0.6)
    return HuggingFaceSource(transformers.GPT2LMHeadModel(config).double(), Letters(), WORDS)


KINDS = ["module", "plain", pytest.param("gpt2", marks=pytest.mark.slow)]  # importing transformers takes seconds


def make(kind):
    return module_source() if kind == "module" else pieces_source(kind)


def stream(size=40, seed=0):
    """Words, unknown ones (6) among them, and ends of sequences."""
    random = np.random.default_rng(seed)
    words = (random.random(size) ** 1.5 * V).astype(int).tolist()
    return [LINE if t % 11 == 10 else y for t, y in enumerate(words)]


def follow(sources, tokens):
    """(T, K) log p of every word; all are asked before any is told."""
    values = []
    for y in tokens:
        if y != LINE:
            values.append([source.log_prob_of(y) for source in sources])
        for source in sources:
            source.reset() if y == LINE else source.observe(y)
    return np.array(values)


class Slow:
    """Every word by itself from its context's start, by a copy of the module that is trained in place."""

    def __init__(self, source):
        self.model, self.like, self.start = copy.deepcopy(source.model), source, list(source.state_dict().values())[0]
        self.words = hasattr(source, "vocabulary")
        self.context = list(self.start)

    def run(self, ids):
        result = self.model(input_ids=torch.tensor([ids]), output_hidden_states=True) if self.words else None
        if result is None:
            logits, hidden = self.model(torch.tensor([ids]))
        else:
            logits, hidden = result.logits, result.hidden_states[-1]
        return torch.log_softmax(logits[0, -1], -1), hidden[0, -1].detach().numpy()

    def log_prob(self, context, y):
        if not self.words:
            return self.run(context)[0][y]
        total, ids = 0.0, list(context)
        for piece in self.like.pieces[y]:
            total, ids = total + self.run(ids)[0][piece], [*ids, piece]
        return total + torch.logsumexp(self.run(ids)[0][:4], 0)

    def read(self, y):
        if y == LINE:
            self.context = list(self.start)
        elif not self.words:
            self.context = [*self.context, y][-6:]
        elif y != WORDS.unknown_id:
            self.context = self.context + self.like.pieces[y]
        if self.words and len(self.context) + 3 > self.like.max_context:
            self.context = self.context[-(self.like.max_context // 2) :]


def slow_dynamic(source, tokens, step, decay, every, clip):
    """Plain stochastic gradient descent on the way."""
    slow, values, waiting = Slow(source), [], []
    weights = [p for p in slow.model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in weights]
    for y in tokens:
        if y != LINE:
            if slow.words and y == WORDS.unknown_id:
                known = torch.stack([slow.log_prob(slow.context, w) for w in range(6)])
                values.append(math.log(1 - float(known.exp().sum().detach())))
            else:
                values.append(float(slow.log_prob(slow.context, y).detach()))
            waiting.append((list(slow.context), y))
        slow.read(y)
        if len(waiting) == every:
            told = [(context, w) for context, w in waiting if not (slow.words and w == WORDS.unknown_id)]
            loss = -torch.stack([slow.log_prob(context, w) for context, w in told]).mean()
            optimiser = torch.optim.SGD(weights, lr=step)
            optimiser.zero_grad()
            loss.backward()
            moved = [p.detach() - first for p, first in zip(weights, start, strict=True)]
            torch.nn.utils.clip_grad_norm_(weights, clip)
            optimiser.step()
            with torch.no_grad():
                for p, far in zip(weights, moved, strict=True):
                    p -= decay * far
            waiting = []
    return np.array(values)


@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_evaluation_is_gradient_descent_on_the_way(kind):
    tokens, source = stream(), make(kind)
    before = copy.deepcopy(source.model.state_dict())
    dynamic, frozen = DynamicEvaluation(source, **SETTINGS), make(kind)
    found = follow([dynamic, frozen], tokens)
    # torch clips by |g| + 1e-6
    np.testing.assert_allclose(found[:, 0], slow_dynamic(make(kind), tokens, **SETTINGS), rtol=2e-5)
    assert np.abs(found[:4, 0] - found[:4, 1]).max() < 1e-12 < np.abs(found[4:, 0] - found[4:, 1]).max()
    np.testing.assert_allclose(dynamic.predict().sum(), 1.0)
    assert all(torch.equal(value, before[name]) for name, value in source.model.state_dict().items())
    assert source.state_dict() == make(kind).state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_every_word_by_itself(kind):
    source, slow = make(kind), Slow(make(kind))
    words = [y for y in stream() if y != LINE]
    leaves = {name: p.detach().requires_grad_() for name, p in source.model.named_parameters()}
    source.weights = leaves
    nats, expected = source.nats(source.state_dict(), words), []
    for y in words:
        if not (slow.words and y == WORDS.unknown_id):
            expected.append(-slow.log_prob(slow.context, y))
        slow.read(y)
    expected = torch.stack(expected)
    torch.testing.assert_close(nats, expected)
    random = torch.randn(len(nats), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(random @ nats, list(leaves.values()))
    wanted = torch.autograd.grad(random @ expected, list(slow.model.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [5, 100])
def test_a_continuous_cache_is_its_formula(kind, size):
    base, slow, seen = make(kind), Slow(make(kind)), []
    cache = ContinuousCache(base, sharpness=3.0, size=size, smoothing=2.0)
    for y in stream():
        if y == LINE:
            cache.reset(), base.reset(), slow.read(y)
            continue
        h = slow.run(slow.context)[1]  # behind the context: what the word's first piece is predicted from
        h = h / np.linalg.norm(h)
        near = [(word, math.exp(3.0 * h @ past)) for word, past in seen[-size:]]
        expected, n = np.full(V, 2 / (len(near) + 2) / V), len(near)
        for word, weight in near:
            expected[word] += n / (n + 2) * weight / sum(w for _, w in near)
        np.testing.assert_allclose(cache.predict(), expected, rtol=1e-9)
        np.testing.assert_allclose(cache.log_prob_of(y), math.log(expected[y]), rtol=1e-9)
        seen.append((y, h))
        for source in (cache, base):
            source.observe(y)
        slow.read(y)


@pytest.mark.parametrize("kind", KINDS)
def test_users_of_one_network_do_not_hear_of_each_other(kind):
    shared, streams = make(kind), [stream(30, seed) for seed in range(3)]

    def both():
        dynamic = DynamicEvaluation(shared, **SETTINGS)
        return [ContinuousCache(dynamic, size=10), dynamic]

    users, together = [both() for _ in streams], [[] for _ in streams]
    for t in range(30):
        for user, tokens, found in zip(users, streams, together, strict=True):
            found.extend(follow(user, tokens[t : t + 1]))
    for tokens, found in zip(streams, together, strict=True):
        np.testing.assert_allclose(found, follow(both(), tokens), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_are_saved_and_put_back(kind, tmp_path):
    def learner():
        dynamic = DynamicEvaluation(make(kind), **SETTINGS)
        return [ContinuousCache(dynamic, size=10), dynamic]

    tokens = [y for y in stream(60) if y != LINE]
    one = PROPSLearner(learner(), V, num_perturbations=1, seed=0)
    one.learn_many(tokens[:22])
    one.new_sequence()
    one.learn_many(tokens[22:27])
    back, expected = one.mark(), [one.score_one(y) for y in range(V)]
    weights = one.sources[1].weights
    one.learn_one(tokens[27])
    assert one.sources[1].weights is not weights  # which makes an update
    back()
    np.testing.assert_allclose([one.score_one(y) for y in range(V)], expected, rtol=1e-12)
    again = PROPSLearner.load(one.save(tmp_path / "state"), learner())
    rest = [(one.learn_one(y).log_prob, again.learn_one(y).log_prob) for y in tokens[27:]]
    np.testing.assert_allclose(*zip(*rest, strict=True), rtol=1e-12)
    if kind == "module":  # without a cache of keys, the same numbers to the last bit
        assert all(a == b for a, b in rest)


def test_weights_that_may_not_move_stay():
    source = module_source()
    source.model.table.requires_grad_(False)
    dynamic = DynamicEvaluation(source, **SETTINGS)
    assert set(dynamic.weights) == {"middle.weight", "middle.bias", "out.weight", "out.bias"}
    tokens = stream()
    np.testing.assert_allclose(follow([dynamic], tokens)[:, 0], slow_dynamic(source, tokens, **SETTINGS), rtol=2e-5)
    assert set(dynamic.state_dict()["weights"]) == set(dynamic.weights)


def test_what_cannot_be_is_refused():
    for gives in ("state", "last"):
        with pytest.raises(TypeError, match=r"pair \(logits, hidden\) with hidden states"):
            follow([TorchLanguageModelSource(Causal(gives=gives), V, start=0)], [1, 2])
    alone = TorchLanguageModelSource(Causal(gives="logits"), V, start=0)
    with pytest.raises(TypeError, match=r"Causal gives logits alone.*pair \(logits, hidden\)"):
        ContinuousCache(alone).predict()
    with pytest.raises(ValueError, match=r"logits of Causal must have shape \(1, 1, 9\).*got \(1, 1, 7\)"):
        TorchLanguageModelSource(Causal(), 9, start=0).predict()
    for model in (Pieces(gives_hidden=False), Blind()):
        with pytest.raises(TypeError, match="gives no hidden states; .*output_hidden_states"):
            ContinuousCache(HuggingFaceSource(model, Letters(), WORDS)).predict()
    with pytest.raises(TypeError, match="model: dynamic evaluation takes.*got Linear"):
        DynamicEvaluation(torch.nn.Linear(2, 2))
    from pplseq.models import HMM

    with pytest.raises(TypeError, match="got ModelSource, whose weights it cannot move"):
        DynamicEvaluation(ModelSource(HMM(2, V)))
    still = module_source()
    still.model.requires_grad_(False)
    with pytest.raises(ValueError, match="model: Causal has no weights that may move"):
        DynamicEvaluation(still)
    with pytest.raises(ValueError, match=r"weights in torch.bfloat16.*model.float\(\)"):
        DynamicEvaluation(TorchLanguageModelSource(Causal().bfloat16(), V, start=0))
    other = DynamicEvaluation(TorchLanguageModelSource(Causal(num_words=9), 9, start=0))
    with pytest.raises(ValueError, match="model: the state has the weights"):
        DynamicEvaluation(module_source()).load_state_dict(other.state_dict())
    network = module_source()
    network.model.out.bias.data[3] = math.inf
    with pytest.raises(ValueError, match="gradient of Causal has length nan"):
        dynamic = DynamicEvaluation(network, every=1)
        dynamic.observe(2)


class Blind(Pieces):
    """Which knows nothing of hidden states."""

    def forward(self, input_ids):
        return super().forward(input_ids)


def test_all_sources_with_networks_take_other_weights():
    network = LSTM(WORDS, 4, seed=0)
    for source in (TorchLanguageModelSource(network), module_source(), pieces_source()):
        assert isinstance(source, WeightedSource)
        before, y = source.predict().copy(), 2
        source.observe(y)
        behind = source.predict()
        source.weights = {name: value * 0.5 for name, value in source.model.named_parameters()}
        assert np.abs(source.predict() - behind).max() > 1e-4
        source.weights = None
        np.testing.assert_allclose(source.predict(), behind)
        np.testing.assert_allclose(source.apart().predict(), before)


@pytest.mark.parametrize("kind", ["library", "module", "plain"])
def test_a_network_that_is_being_trained_is_read_in_evaluation_mode(kind):
    """Its owner's mode comes back, and no prediction or gradient has dropout."""
    source = TorchLanguageModelSource(LSTM(WORDS, 4, dropout=0.5, seed=0)) if kind == "library" else make(kind)
    if kind != "library":
        inside = source.model if kind == "module" else source.model.inside
        inside.register_forward_hook(lambda part, given, said: (torch.dropout(said[0], 0.5, part.training), said[1]))
    tokens = [y for y in stream(12) if y != LINE]
    expected = follow([source.apart(), DynamicEvaluation(source, every=3)], tokens)
    whole = stream_log_probs(source.apart(), np.array(tokens))
    sources, other = [source.apart(), DynamicEvaluation(source, every=3)], source.apart()
    source.model.train()
    np.testing.assert_array_equal(follow(sources, tokens), expected)
    np.testing.assert_array_equal(stream_log_probs(other, np.array(tokens)), whole)
    assert all(part.training for part in source.model.modules())


def test_users_in_threads_do_not_hear_of_each_other():
    """While one of them reads the network with weights of its own, or without the dropout that it is trained with."""
    source = module_source()
    inside, read, found = threading.Event(), threading.Event(), []
    expected = source.log_prob_of(1)

    def slowly(part, given):
        if threading.current_thread() is slow:
            inside.set()
            read.wait(0.05)

    source.model.register_forward_pre_hook(slowly)
    for way in ("weights", "mode"):
        mine, other = source.apart(), source.apart()
        if way == "weights":
            mine.weights = {name: value + 1 for name, value in source.model.named_parameters()}
        else:
            source.model.train()
        slow = threading.Thread(target=lambda reader=mine: found.append(reader.log_prob_of(1)))
        inside.clear(), read.clear()
        slow.start()
        assert inside.wait(10)
        assert other.log_prob_of(1) == expected
        read.set()
        slow.join()
        assert source.model.training == (way == "mode")
    assert found[0] != expected == found[1]


def test_what_no_source_can_read_is_refused_by_name():
    network = TorchLanguageModelSource(LSTM(WORDS, 4, seed=0))
    sources = [network, module_source(), pieces_source(), ContinuousCache(module_source()), DynamicEvaluation(network)]
    for source in sources:
        for y in (-1, V):
            before = source.predict()
            for ask in (source.log_prob_of, source.observe):
                with pytest.raises(ValueError, match=rf"token {y} is not in 0..{V - 1}"):
                    ask(y)
            np.testing.assert_array_equal(source.predict(), before)
    for wrong in ({"sharpness": math.inf}, {"smoothing": math.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be finite"):
            ContinuousCache(module_source(), **wrong)
    with pytest.raises(ValueError, match="step must be finite"):
        DynamicEvaluation(network, step=math.inf)
    with pytest.raises(ValueError, match="start, num_words: Causal cannot read ids from 99 to 99.*start is 99"):
        TorchLanguageModelSource(Causal(), V, start=99).predict()
    broken = module_source()
    broken.model.middle.bias.data[0] = math.nan
    with pytest.raises(ValueError, match="continuous cache of Causal: the hidden state holds nan"):
        ContinuousCache(broken).predict()
