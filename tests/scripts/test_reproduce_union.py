"""The union of several VLHMMs as one HMM, against its own dense forward recursion."""

import numpy as np
import pytest
import scipy.linalg
import torch
from support.scripts import load_script

from pplseq.data import Vocabulary
from pplseq.data.text import Text, load_corpus
from pplseq.models import VLHMM

WORDS, EOS = 5, 4
TEXT = [0, 2, 1, 4, 3, 3, 4, 4, 2, 0, 1, 1, 4, 0]


@pytest.fixture(scope="module")
def script():
    return load_script("reproduce/vlhmm_union.py")


def forward(models, texts, eos, weights, stay, drawn=(1.0,), kept=1.0):
    """log p(x_1..x_n) for all n, under the dense tables of the union; texts are the same words in each model's numbers.

    Its states are (model, topic, state): the tables of a model of topics go over (topic, state) in the order of its layout.
    """
    begin, of_model, of_topic, matrices, emitted = [], [], [], [], []
    with torch.no_grad():
        for k, (model, text) in enumerate(zip(models, texts, strict=True)):
            transition, emission = model.specs()
            start = transition.initial_log_prob().exp().double().numpy()
            places = torch.arange(len(start))
            topic = transition.layout.of_local(places)[0].numpy() if len(drawn) > 1 else np.zeros(len(start), int)
            begin.append(start / np.bincount(topic, start)[topic])  # p(state | topic)
            of_model, of_topic = of_model + [k] * len(start), of_topic + topic.tolist()
            matrices.append(transition.log_matrix().exp().double().numpy())
            emitted.append(emission.log_likelihood(torch.tensor(text)).exp().double().numpy())  # (steps, states)
    begin, emitted = np.concatenate(begin), np.concatenate(emitted, 1)
    of_model, of_topic = np.array(of_model), np.array(of_topic)
    weights, drawn = np.array(weights)[of_model], np.array(drawn)[of_topic]
    within = scipy.linalg.block_diag(*matrices)
    afresh = (stay * (of_model[:, None] == of_model) + (1 - stay) * weights) * begin
    afresh *= kept * (of_topic[:, None] == of_topic) + (1 - kept) * drawn
    message, expected = begin * weights * drawn, []
    for n, likely in enumerate(emitted):
        if n:
            message = message @ (afresh if texts[0][n - 1] == eos else within)
        message = message * likely
        expected.append(np.log(message.sum()))
    return np.array(expected)


def a_text(words):
    starts = np.array([0, *(n + 1 for n, word in enumerate(words[:-1]) if word == EOS), len(words)])
    return Text(np.array(words), starts, np.array([0, len(starts) - 1]), Vocabulary(("a", "b", "c", "d", "<eos>")))


@pytest.mark.parametrize("weights, stay", [((0.3, 0.7), 0.6), ((1.0, 0.0), 0.2), ((0.5, 0.5), 0.0), ((0.1, 0.9), 1.0)])
@pytest.mark.parametrize("topics", [1, 3])
def test_it_is_an_hmm(script, weights, stay, topics):
    torch.manual_seed(0)
    options = dict(hidden_size=4, reset_id=EOS, transition="hierarchical", init_scale=1.0, num_topics=topics)
    blocks = torch.tensor([0, 1, 0, 1, 2])
    models = [VLHMM(states, num_words=WORDS, blocks=blocks, **options).double().eval() for states in (6, 9)]
    if topics > 1:
        with torch.no_grad():
            for model in models:
                for table in (model.topic_words, model.topic_blocks, model.topic_starts, model.topic_prior):
                    table.normal_()
    moves = script.topic_moves(models)
    alone = np.stack([script.by_topic(model, a_text(TEXT)) for model in models])
    got = script.of_union(alone, np.array(TEXT) == EOS, np.array(weights), stay, *moves)
    np.testing.assert_allclose(got.cumsum(), forward(models, [TEXT, TEXT], EOS, weights, stay, *moves), rtol=1e-9)


@pytest.mark.parametrize("topics", [1, 3])
def test_one_model_is_itself(script, topics):
    torch.manual_seed(0)
    options = dict(hidden_size=4, reset_id=EOS, transition="hierarchical", init_scale=1.0, num_topics=topics)
    model = VLHMM(6, num_words=WORDS, blocks=torch.tensor([0, 1, 0, 1, 2]), **options).double().eval()
    got = script.of_union(
        script.by_topic(model, a_text(TEXT))[None], np.array(TEXT) == EOS, np.ones(1), 1.0, *script.topic_moves([model])
    )
    assert got.sum() == pytest.approx(float(model.log_prob(torch.tensor([TEXT])).detach()), rel=1e-12)


def test_what_no_model_can_say_is_impossible_and_the_rest_is_not(script):
    impossible = np.array([[-1000.0, -np.inf, -1.0], [-1.0, -np.inf, -1.0]])
    got = script.of_union(impossible[:, None], np.array([False, True, False]), np.array([0.5, 0.5]), 0.5, np.ones(1), 1.0)
    np.testing.assert_allclose(got, [-1 - np.log(2), -np.inf, -1.0])
    far = np.array([[-800.0, -1, -1], [-1, -900, -1]])[:, None]
    got = script.of_union(far, np.zeros(3, bool), np.array([0.5, 0.5]), 0.0, np.ones(1), 1.0)
    np.testing.assert_allclose(got, [-1 - np.log(2), -800.0, -1.0])


@pytest.fixture
def runs(tmp_path, monkeypatch, script):
    """Two models of the same words in another order, and a corpus."""
    random = np.random.default_rng(0)
    (tmp_path / "ptb").mkdir()
    for name, lines in (("train", 60), ("valid", 40), ("test", 50)):
        text = "".join(" ".join(random.choice(["a", "b", "c", "<unk>"], random.integers(1, 9))) + "\n" for _ in range(lines))
        (tmp_path / "ptb" / f"ptb.{name}.txt").write_text(text)
    monkeypatch.setenv("PPLSEQ_DATA", str(tmp_path))
    torch.manual_seed(0)
    folders = []
    for name, words, states in (("first", "a b c <unk> <eos>", 4), ("second", "<eos> c <unk> b a", 6)):
        vocabulary = Vocabulary(tuple(words.split()))
        options = dict(hidden_size=4, reset_id=vocabulary.eos_id, transition="hierarchical", init_scale=1.0)
        model = VLHMM(states, num_words=5, blocks=torch.arange(5) % 2, **options).eval()
        model.vocabulary = vocabulary
        model.save(tmp_path / name / "best")
        folders.append(tmp_path / name)
    return folders


def run(script, monkeypatch, folders):
    written = {}
    monkeypatch.setattr(script, "record", lambda name, results, **more: written.update(results))
    monkeypatch.setattr("sys.argv", ["vlhmm_union.py", "ptb", *map(str, folders), "--label", "toy"])
    script.main()
    return written


def test_a_whole_text_is_one_sequence(script, runs, tmp_path, monkeypatch):
    results = run(script, monkeypatch, runs)
    models = [VLHMM.load(folder / "best") for folder in runs]
    for name in ("valid", "test"):
        texts = [load_corpus(tmp_path / "ptb", vocabulary=m.vocabulary) for m in models]
        texts = [getattr(corpus, name).tokens.tolist() for corpus in texts]
        expected = forward(models, texts, models[0].vocabulary.eos_id, results["weights"], results["stay"])
        assert results[name] == pytest.approx(np.exp(-expected[-1] / len(texts[0])), abs=6e-4)
    assert results["states"] == 10


def test_models_of_other_words_are_refused(script, runs, tmp_path, monkeypatch):
    model = VLHMM.load(runs[1] / "best")
    model.vocabulary = Vocabulary(("<eos>", "c", "<unk>", "b", "d"))
    model.save(tmp_path / "third" / "best")
    with pytest.raises(SystemExit, match="third: its words are not those of"):
        run(script, monkeypatch, [*runs, tmp_path / "third"])
    model = VLHMM.load(runs[1] / "best")
    model.reset_id = None
    monkeypatch.setattr(script.VLHMM, "load", lambda folder: model)
    with pytest.raises(SystemExit, match="a model without a reset at <eos>"):
        run(script, monkeypatch, runs)


def test_weights_to_choose_among(script):
    some = [w.tolist() for w in script.simplex(2, 2)]
    assert sorted(some) == [[0, 2], [1, 1], [2, 0]]
    assert len(list(script.simplex(4, 3))) == 15
