"""Neural language models: against slow twins, ragged and carried as the library's own models are, trained by the same loop."""

import threading

import numpy as np
import pytest
import torch
from torch.nn import functional

from pplseq.baselines import AWDLSTM, HMMRNN, LSTM, RNN, FeedForward, SGDSettings, neural
from pplseq.baselines.neural import MaximumLikelihood, NeuralLanguageModel
from pplseq.data import Text, Vocabulary
from pplseq.data.batches import StreamBatches
from pplseq.runs.evaluation import score_text
from pplseq.runs.settings import TrainSettings
from pplseq.runs.training import train

MODELS = {
    "rnn": lambda v: RNN(v, 5, init_scale=0.7, seed=1),
    "lstm": lambda v: LSTM(v, 4, num_layers=3, seed=1),
    "one layer": lambda v: LSTM(v, 4, num_layers=1, seed=1),
    "awd-lstm": lambda v: AWDLSTM(v, 4, num_layers=3, width=5, seed=1),
    "ff": lambda v: FeedForward(v, 6, order=4, seed=1),
    "hmm-rnn": lambda v: HMMRNN(v, 5, seed=1),
    "one state": lambda v: HMMRNN(v, 1, seed=1),
    "bigram": lambda v: FeedForward(v, 3, order=2, seed=1),
}


@pytest.fixture(scope="module")
def text():
    rng = np.random.default_rng(0)
    lines = [[f"w{rng.integers(9)}" for _ in range(rng.integers(1, 8))] for _ in range(60)]
    return Text.from_lines(lines, Vocabulary.build(lines), name="toy")


@pytest.fixture(params=MODELS)
def model(request, text):
    return MODELS[request.param](text.vocabulary).double().eval()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow_lstm(model, ids):
    """Gate by gate, as the formulas say: log p of each word after those before it."""
    E, c = (w.detach().numpy() for w in model.softmax_weights)
    weights = {name: w.detach().numpy() for name, w in model.layers.named_parameters()}
    h, cell = (np.zeros((model.num_layers, model.hidden_size)) for _ in range(2))
    scores, word = [], model.vocabulary.eos_id
    for target in ids:
        x = E[word]
        for layer in range(model.num_layers):
            drive = weights[f"weight_ih_l{layer}"] @ x + weights[f"bias_ih_l{layer}"]
            drive = drive + weights[f"weight_hh_l{layer}"] @ h[layer] + weights[f"bias_hh_l{layer}"]
            i, f, g, o = np.split(drive, 4)
            cell[layer] = sigmoid(f) * cell[layer] + sigmoid(i) * np.tanh(g)
            x = h[layer] = sigmoid(o) * np.tanh(cell[layer])
        logits = E @ x + c
        scores.append(logits[target] - np.log(np.exp(logits).sum()))
        word = target
    return np.array(scores)


def test_one_layer_with_dropped_weights_is_an_lstm_until_it_is_trained(text):
    wide = AWDLSTM(text.vocabulary, 4, num_layers=1, seed=1).double().eval()
    plain = LSTM(text.vocabulary, 4, num_layers=1).double().eval()
    plain.load_state_dict({key.replace("layers.0.", "layers."): value for key, value in wide.state_dict().items()})
    np.testing.assert_allclose(wide.log_prob(text), plain.log_prob(text), rtol=1e-12)


@pytest.mark.parametrize("share", ["dropout", "hidden_dropout", "weight_dropout", "embedding_dropout"])
def test_what_is_left_out_of_training(share, text):
    """Each share alone makes a training step random, leaves evaluation as it is, and lets all weights learn."""
    none = dict.fromkeys(("dropout", "hidden_dropout", "weight_dropout", "embedding_dropout"), 0.0)
    whole = AWDLSTM(text.vocabulary, 4, num_layers=2, width=5, **none).double()
    thinned = AWDLSTM(text.vocabulary, 4, num_layers=2, width=5, **none | {share: 0.5}).double()
    x = torch.as_tensor(text.tokens[:12], dtype=torch.int64).view(2, 6)
    torch.testing.assert_close(whole.eval().loss(x), thinned.eval().loss(x))
    torch.testing.assert_close(whole.train().loss(x), whole.eval().loss(x))
    torch.manual_seed(0)
    losses = [thinned.train().loss(x) for _ in range(2)]
    assert abs(float((losses[0] - losses[1]).detach())) > 1e-6
    sum(losses).backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in thinned.parameters())


def slow_feed_forward(model, ids):
    E, c = (w.detach().numpy() for w in model.softmax_weights)
    W, b = model.window.weight.detach().numpy(), model.window.bias.detach().numpy()  # (D, D, n - 1), oldest word first
    U, a = model.hidden.weight.detach().numpy(), model.hidden.bias.detach().numpy()
    words, scores = [model.vocabulary.eos_id] * (model.order - 1), []
    for target in ids:
        drive = b + sum(W[:, :, k] @ E[word] for k, word in enumerate(words))
        logits = E @ np.maximum(U @ np.maximum(drive, 0) + a, 0) + c
        scores.append(logits[target] - np.log(np.exp(logits).sum()))
        words = [*words[1:], target]
    return np.array(scores)


def slow_hmm_rnn(model, ids):
    """The beliefs of an HMM before each word, from its joint probabilities with all words so far; a network's output."""
    E, c = (w.detach().numpy() for w in model.softmax_weights)
    e = np.exp(np.longdouble(E + c[:, None]))  # whose smallest number is 1e-4932: probabilities of 300 words are not scaled
    e = e / e.sum(0)
    A = np.exp(model.transition.detach().numpy())
    A = A / A.sum(1, keepdims=True)
    forward, scores, word = np.full(model.hidden_size, 1 / model.hidden_size), [], model.vocabulary.eos_id
    for target in ids:
        forward = (forward * e[word]) @ A  # p(words so far, state)
        logits = E @ (forward / forward.sum()) + c
        scores.append(logits[target] - np.log(np.exp(logits).sum()))
        word = target
    return np.array(scores)


SLOW = {"lstm": slow_lstm, "one layer": slow_lstm, "ff": slow_feed_forward, "bigram": slow_feed_forward}
SLOW |= {"hmm-rnn": slow_hmm_rnn, "one state": slow_hmm_rnn}


@pytest.mark.parametrize("name", SLOW)
def test_equals_the_slow_twin(name, text):
    model = MODELS[name](text.vocabulary).double()
    slow = SLOW[name](model, text.tokens)
    np.testing.assert_allclose(model.log_prob(text, at_once=7), slow, rtol=1e-10)
    np.testing.assert_allclose(model.next_word(text.tokens[:4])[text.tokens[4]], slow[4], rtol=1e-10)


def test_segments_ragged_rows_and_empty_rows(model, text):
    """Rows cut anywhere, padded with anything, give what each row gives alone and whole."""
    ids = torch.as_tensor(text.tokens, dtype=torch.int64)
    rows = [ids[:9], ids[9:13], ids[13:20]]
    whole = [model.posterior(row[None]).token_log_probs()[0] for row in rows]
    first, second = torch.randint(len(text.vocabulary), (3, 4)), torch.randint(len(text.vocabulary), (3, 5))
    lengths = torch.tensor([4, 1, 3]), torch.tensor([5, 3, 0])
    for n, row in enumerate(rows):
        a, b = int(lengths[0][n]), int(lengths[1][n])
        first[n, :a], second[n, :b] = row[:a], row[a : a + b]
    start = model.posterior(first, lengths[0])
    rest = model.posterior(second, lengths[1], start.filtered())
    for n, row in enumerate(whole):
        a, b = int(lengths[0][n]), int(lengths[1][n])
        torch.testing.assert_close(start.token_log_probs()[n, :a], row[:a])
        torch.testing.assert_close(rest.token_log_probs()[n, :b], row[a : a + b])
        assert not start.token_log_probs()[n, a:].any() and not rest.token_log_probs()[n, b:].any()
    # a row without words leaves its state alone
    for before, after in zip(start.filtered(), rest.filtered(), strict=True):
        if before is not None:
            torch.testing.assert_close(after[2], before[2])
    torch.testing.assert_close(rest.log_prob(), rest.token_log_probs().sum(1))


def test_loss_and_gradient_equal_the_plain_softmax(model, text, monkeypatch):
    monkeypatch.setattr(neural, "ROWS_AT_ONCE", 3)
    x, lengths = torch.randint(len(text.vocabulary), (3, 5)), torch.tensor([5, 2, 4])
    valid = torch.arange(5) < lengths.unsqueeze(1)
    eos = torch.full((3, 1), text.vocabulary.eos_id)
    features, _ = model(torch.cat([eos, x[:, :-1]], 1), model.initial_state(3))
    plain = functional.cross_entropy(model.logits(features)[valid], x[valid], reduction="sum")
    expected = torch.autograd.grad(plain, list(model.parameters()))
    loss = model.loss(x, lengths)
    torch.testing.assert_close(loss, plain)
    for got, wanted in zip(torch.autograd.grad(loss, list(model.parameters())), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(-model.posterior(x, lengths).log_prob().sum(), loss)


@pytest.mark.parametrize("protocol", ["carried", "sentence"])
def test_scored_as_any_model_is(model, text, protocol):
    options = {"num_streams": 1, "segment_length": 5} if protocol == "carried" else {}
    score = score_text(model, text, protocol, **options)
    alone = [text] if protocol == "carried" else [Text.from_lines([line], text.vocabulary) for line in words(text)]
    np.testing.assert_allclose(
        score.token_log_probs, np.concatenate([model.log_prob(part) for part in alone]), atol=1e-10
    )


def words(text):
    ends = text.line_starts[1:] - 1  # lines without their <eos>
    return [text.vocabulary.decode(text.tokens[a:b]) for a, b in zip(text.line_starts, ends, strict=False)]


@pytest.mark.parametrize("name", ["lstm", pytest.param("awd-lstm", marks=pytest.mark.slow), "ff", "rnn", "hmm-rnn"])
def test_training_learns_and_resumes_to_the_bit(name, text, tmp_path):
    """With dropout and carried states: two epochs in one go, and one epoch at a time."""

    def run(folder, epochs, resume=False):
        torch.manual_seed(0)
        model = MODELS[name](text.vocabulary)
        batches = StreamBatches(text, 4, 6, shuffle="line", seed=0)
        settings = TrainSettings(lr=0.02, epochs=epochs, checkpoint_interval=1e9)
        history = train(
            model, batches, evaluate=lambda: score_text(model, text, "carried").summary(), settings=settings,
            folder=folder, resume=resume, elbo=MaximumLikelihood,
        )  # fmt: skip
        return model, history

    whole, history = run(tmp_path / "whole", 2)
    run(tmp_path / "parts", 1)
    parts, _ = run(tmp_path / "parts", 2, resume=True)
    for (key, expected), value in zip(whole.state_dict().items(), parts.state_dict().values(), strict=True):
        assert torch.equal(expected, value), key
    checks = [record["nats_per_token"] for record in history.records if record["kind"] == "validation"]
    assert checks[-1] < checks[0] - 0.02
    assert whole.training  # validation left the mode as it was
    best = NeuralLanguageModel.load(tmp_path / "whole" / "best")
    assert type(best) is type(whole) and best.config == whole.config and not best.training


@pytest.mark.parametrize("name", ["lstm", "ff"])
def test_descent_with_dropout_resumes_to_the_same_numbers(name, text, tmp_path):
    settings = SGDSettings(lr=0.5, batch_size=3, segment_length=5, epochs=4)

    def stop(record):
        if record["epoch"] == 2:
            raise InterruptedError

    torch.manual_seed(5)
    straight = MODELS[name](text.vocabulary).fit(text, text, settings=settings)
    torch.manual_seed(5)
    with pytest.raises(InterruptedError):
        MODELS[name](text.vocabulary).fit(text, text, settings=settings, folder=tmp_path, on_record=stop)
    torch.manual_seed(6)
    resumed = MODELS[name](text.vocabulary).fit(text, text, settings=settings, folder=tmp_path, resume=True)
    found, expected = ([record["perplexity"] for record in model.history] for model in (resumed, straight))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    other = Text.from_lines([["w1", "w2"]] * 30, text.vocabulary, name="other")
    with pytest.raises(ValueError, match="text: it has 90 tokens and is not the text"):
        MODELS[name](text.vocabulary).fit(other, text, settings=settings, folder=tmp_path, resume=True)


def test_a_loaded_network_learns_with_dropout(text, tmp_path):
    settings = SGDSettings(lr=0.5, batch_size=3, segment_length=5, epochs=1)
    perplexities, new = [], FeedForward(text.vocabulary, 8, dropout=0.5)
    for model in (FeedForward.load(new.save(tmp_path / "model")), new):
        torch.manual_seed(0)
        perplexities.append(model.fit(text, settings=settings).history[-1]["train_perplexity"])
    assert perplexities[0] == pytest.approx(perplexities[1])
    with pytest.raises(TypeError, match="epochs must be a whole number, got 2.5"):
        SGDSettings(epochs=2.5)


def test_scores_in_a_thread_while_another_ends(text):
    """Whoever ends first puts the mode back in which the owner trains it."""
    model = LSTM(text.vocabulary, 4, dropout=0.5, seed=1).train()
    expected, inside, read = model.log_prob(text), threading.Event(), threading.Event()

    def wait(part, given):
        if threading.current_thread() is slow:
            inside.set()
            read.wait(0.05)
        else:
            read.set()
            slow.join()

    slow = threading.Thread(target=model.next_word)
    model.register_forward_pre_hook(wait)
    slow.start()
    assert inside.wait(10)
    np.testing.assert_array_equal(model.log_prob(text), expected)
    assert all(part.training for part in model.modules())


def test_folders(tmp_path, text):
    model = LSTM(text.vocabulary, 4, num_layers=1, dropout=0.1)
    model.save(tmp_path / "lstm")
    loaded = NeuralLanguageModel.load(tmp_path / "lstm")
    sizes, weights = f"num_words={model.num_words}, hidden_size=4, num_layers=1, dropout=0.1", model.num_words * 5 + 2 * 16 * 5
    assert repr(model) == f"LSTM({sizes}): {weights} weights, not fitted"
    assert repr(loaded) == f"LSTM({sizes}): {weights} weights, fitted"
    np.testing.assert_array_equal(loaded.log_prob(text), model.eval().log_prob(text))
    with pytest.raises(ValueError, match="expected a model of kind 'ff', got 'lstm'"):
        FeedForward.load(tmp_path / "lstm")
    whole = (tmp_path / "lstm" / "model.safetensors").read_bytes()
    (tmp_path / "lstm" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cut short"):
        NeuralLanguageModel.load(tmp_path / "lstm")
    with pytest.raises(FileNotFoundError, match="no model at"):
        NeuralLanguageModel.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda v: LSTM(v, 0), ValueError, "hidden_size must be at least 1, got 0"),
        (lambda v: LSTM(v, 4, num_layers=2.0), TypeError, "num_layers must be a whole number"),
        (lambda v: LSTM(v, 4, dropout=1.0), ValueError, "dropout must lie in"),
        (lambda v: AWDLSTM(v, 4, weight_dropout=1.0), ValueError, "weight_dropout must lie in"),
        (lambda v: FeedForward(v, 4, order=1), ValueError, "order must be at least 2"),
    ],
)
def test_sizes_are_checked(text, make, error, message):
    with pytest.raises(error, match=message):
        make(text.vocabulary)


def test_layers_in_bfloat16_are_near_and_only_while_training_wants_it():
    from pplseq.kernels.precision import has_bfloat16_tensors, matmul_precision

    if not has_bfloat16_tensors():
        pytest.skip("this processor has no products of bfloat16 tensors, or torch rounds float32 ones for it")
    model = LSTM(Vocabulary(("a", "b", "<eos>")), hidden_size=16, dropout=0.0).train()
    words, lengths = torch.tensor([[0, 1, 2, 0], [1, 0, 2, 0]]), torch.tensor([4, 3])
    for sizes in (None, lengths):
        exact, _ = model(words, model.initial_state(2), sizes)
        with matmul_precision("bfloat16"):
            rounded, state = model(words, model.initial_state(2), sizes)
        again, _ = model(words, model.initial_state(2), sizes)
        seen = slice(None) if sizes is None else (torch.arange(4) < sizes[:, None])
        assert rounded.dtype == torch.float32 and all(part.dtype == torch.float32 for part in state)
        assert torch.equal(exact, again) and not torch.equal(exact[seen], rounded[seen])
        torch.testing.assert_close(rounded[seen], exact[seen], atol=0.01, rtol=0.05)
