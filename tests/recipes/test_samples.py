"""`pplseq train vlhmm samples:...`: an HMM that learns what a language model says."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from support.commands import pplseq

from pplseq import Constraint, Vocabulary, load
from pplseq.baselines import LSTM
from pplseq.recipes.text.corpus import corpus_of_run
from pplseq.sources.drawing import LanguageModel, draw_from_network, draw_texts, open_language_model, spellings

TRAIN = ["--num-states", 8, "--num-blocks", 4, "--hidden-size", 4, "--epochs", 1, "--threads", 1, "--validate-per-epoch", 1]
WORDS = ("<eos>", "the", "stock", "fell", "<unk>")


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    torch.manual_seed(3)
    network = LSTM(Vocabulary(WORDS), hidden_size=4, num_layers=1).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
    return network, network.save(tmp_path_factory.mktemp("networks") / "lstm")


def test_texts_come_as_often_as_the_network_says(lstm):
    network, _ = lstm
    torch.manual_seed(0)
    drawn = Counter(tuple(row) for row in draw_from_network(network, 20_000, 1).tolist())
    assert sum(drawn.values()) == 20_000
    for first in range(5):
        for second in range(5):
            if first:  # otherwise it has ended
                share = float(network.posterior(torch.tensor([[first, second]])).log_prob()[0].exp())
            elif second == 0:
                share = float(network.posterior(torch.tensor([[0]])).log_prob()[0].exp())
            else:
                share = 0.0
            assert drawn[(first, second)] / 20_000 == pytest.approx(share, abs=0.015)


def test_an_hmm_of_a_run(lstm, tmp_path):
    _, folder = lstm
    data = f"samples:{folder}"
    options = [*TRAIN, "--num-samples", 120, "--sample-length", 12]
    shown = pplseq("train", "vlhmm", data, *options, "--out", tmp_path / "one")
    assert json.loads(shown.stdout)["steps"] > 0 and "drew 120 texts" in shown.stderr
    corpus = corpus_of_run(tmp_path / "one", data)
    assert corpus.vocabulary.words == WORDS and corpus.vocabulary.unknown_id == 4
    lines = [line.tolist() for line in [*corpus.train.lines(), *corpus.valid.lines()]]
    assert all(line[-1] == 0 and 0 not in line[:-1] and len(line) <= 13 for line in lines)  # of a stream: what has ended
    texts = draw_texts(open_language_model(str(folder)), 120, 12)
    assert sorted(lines) == sorted(text for text in texts if text[-1] == 0)
    scores = json.loads(pplseq("evaluate", tmp_path / "one", "--split", "valid").stdout.splitlines()[0])
    assert scores["nats_per_token"] > 0
    assert "no test split" in pplseq("evaluate", tmp_path / "one", code=2).stderr
    model = load(tmp_path / "one")
    chain = model.constrained(Constraint.containing("stock"), length=(1, 4))
    assert float(chain.log_prob().detach()) < 0
    assert b"drew" not in pplseq("train", "--resume", tmp_path / "one", "--epochs", 2).stderr_bytes  # they are kept
    pplseq("train", "vlhmm", data, *options, "--protocol", "sentence", "--out", tmp_path / "two")
    every = corpus_of_run(tmp_path / "two", data)
    assert len(list(every.train.lines())) + len(list(every.valid.lines())) == 120
    assert max(map(len, every.train.lines())) <= 13


@pytest.mark.parametrize("kind", ["hmm", pytest.param("vlhmm", marks=pytest.mark.slow)])
def test_an_hmm_of_tokens_of_a_transformer(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=9, n_positions=32, n_embd=8, n_layer=1, n_head=2, initializer_range=1.0, bos_token_id=3, eos_token_id=3
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    options = TRAIN if kind == "vlhmm" else ["--num-states", 3, "--epochs", 2]
    pplseq(
        "train", kind, f"samples:hf:{tmp_path / 'gpt2'}", *options, "--protocol", "sentence", "--num-samples", 60,
        "--sample-length", 8, "--out", tmp_path / "run",
    )  # fmt: skip
    model = load(tmp_path / "run")
    assert model.vocabulary.words == (*"012", "<eos>", *"45678")  # word i is token i
    long = pplseq(
        "train", kind, f"samples:hf:{tmp_path / 'gpt2'}", *options, "--sample-length", 31, "--out", tmp_path / "no", code=2
    )  # fmt: skip
    assert "has 32 positions; give at most 30, got 31" in long.stderr


def test_pieces_become_words():
    class Tokenizer:
        names = ["Ġthe", "Ġthe", None, " ", "a b"]

        def __len__(self):
            return 5

        def convert_ids_to_tokens(self, ids):
            return [self.names[number] for number in ids]

    assert spellings(Tokenizer(), 7, 6) == ("Ġthe", "Ġthe<1>", "2", "<3>", "ab", "5", "<eos>")
    assert spellings(Tokenizer(), 11, 0)[:3] == ("<eos>", "1", "2")  # it is of another model
    Vocabulary(spellings(Tokenizer(), 7, 0))


def test_what_is_refused(lstm, tmp_path):
    _, folder = lstm
    out = ["--out", tmp_path / "run"]

    def said(*arguments):
        return " ".join(pplseq("train", *arguments, *out, code=2).stderr.split())

    assert "samples:nowhere: there is no such folder; expected samples:RUN" in said("vlhmm", "samples:nowhere", *TRAIN)
    assert "samples of a language model are for vlhmm and hmm, which steer it; got lstm" in said("lstm", f"samples:{folder}")
    assert "lower: the words of samples are the language model's own" in said("vlhmm", f"samples:{folder}", *TRAIN, "--lower")
    assert "samples are drawn where a run is trained" in pplseq("info", "vlhmm", f"samples:{folder}", code=2).stderr
    never = LanguageModel(Vocabulary(WORDS), lambda rows, longest: torch.ones(rows, longest + 1, dtype=torch.long))
    assert draw_texts(never, 2, 3) == [[1, 1, 1]] * 2
    few = said("vlhmm", f"samples:{folder}", *TRAIN, "--sample-length", 1, "--num-samples", 50)
    assert "give --protocol sentence, where a cut text counts as a beginning" in few
    with pytest.raises(FileNotFoundError, match="samples are drawn where a run is trained"):
        corpus_of_run(tmp_path, "samples:x")


def test_damaged_samples(lstm, tmp_path):
    _, folder = lstm
    pplseq("train", "vlhmm", f"samples:{folder}", *TRAIN, "--num-samples", 40, "--out", tmp_path / "run")
    np.savez(tmp_path / "run" / "samples.npz", train=[1])
    assert "damaged" in pplseq("evaluate", tmp_path / "run", "--split", "valid", code=2).stderr
