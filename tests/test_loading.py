"""One function reads every folder with a model in it."""

import warnings

import numpy as np
import pytest
import torch

import pplseq
from pplseq.baselines import LSTM
from pplseq.baselines.taggers import MostFrequentTagger
from pplseq.data import TaggedSentence, Vocabulary
from pplseq.loading import load_text_model
from pplseq.models import HMM, IOHMM, LDS, VLHMM, HMMTagger, PROPSLearner
from pplseq.models.props.storage import save_stream

VOCABULARY = Vocabulary(("<eos>", "<unk>", "a", "b"))
SENTENCES = [TaggedSentence(("a", "b"), ("X", "Y"))]


def learner():
    made = PROPSLearner([], 4, seed=0)
    made.learn_many([0, 2, 3])
    return made


MAKERS = {
    "vlhmm": lambda: VLHMM(4, num_words=4, blocks=[0, 0, 1, 1], hidden_size=4),
    "hmm": lambda: HMM(2, num_words=4),
    "lds": lambda: LDS(2, 3),
    "iohmm": lambda: IOHMM(2, num_inputs=2, outputs="gaussian", num_outputs=2),
    "network": lambda: LSTM(VOCABULARY, 4),
    "tagger": lambda: HMMTagger.tnt().fit(SENTENCES),
    "tagger of a baseline": lambda: MostFrequentTagger().fit(SENTENCES),
    "props learner": learner,
}


@pytest.mark.parametrize("name", MAKERS)
def test_any_model(name, tmp_path):
    model = MAKERS[name]()
    again = pplseq.load(model.save(tmp_path / "model"))
    assert type(again) is type(model)
    if isinstance(model, torch.nn.Module):
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value)
        assert not again.training


def test_a_stream(tmp_path):
    made = learner()
    again = pplseq.load(save_stream(made.state, tmp_path / "stream"))
    assert np.array_equal(again.filter, made.state.filter)


def test_a_run_gives_its_best_else_its_last_checkpoint(tmp_path):
    first, second = HMM(2, num_words=4), HMM(3, num_words=4)
    second.vocabulary = VOCABULARY
    second.save(tmp_path / "run" / "last")
    assert pplseq.load(tmp_path / "run").num_states == 3
    with pytest.raises(FileNotFoundError, match="no 'best' checkpoint yet"):
        pplseq.load(tmp_path / "run", checkpoint="best")
    first.save(tmp_path / "run" / "best")
    assert pplseq.load(tmp_path / "run").num_states == 2
    assert pplseq.load(tmp_path / "run", checkpoint="last").vocabulary == VOCABULARY
    with pytest.raises(ValueError, match="checkpoint must be best, last or None, got 'newest'"):
        pplseq.load(tmp_path / "run", checkpoint="newest")


def test_a_run_whose_checkpoint_is_being_replaced(tmp_path):
    HMM(2, num_words=4).save(tmp_path / "run" / "best").rename(tmp_path / "run" / ".best.old")
    assert pplseq.load(tmp_path / "run").num_states == 2
    assert (tmp_path / "run" / ".best.old").exists()  # reading moves nothing


def test_a_run_that_has_saved_nothing(tmp_path):
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(FileNotFoundError, match="no 'last' checkpoint yet; train on"):
        pplseq.load(tmp_path)


def test_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such run or model folder"):
        pplseq.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no model at"):
        pplseq.load(tmp_path)


def test_models_of_text_have_words(tmp_path):
    model = HMM(2, num_words=4)
    with pytest.raises(ValueError, match="no vocab.txt, so its word ids have no words"):
        load_text_model(model.save(tmp_path / "model"))
    model.vocabulary = VOCABULARY
    assert load_text_model(model.save(tmp_path / "model")).vocabulary == VOCABULARY
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = MAKERS["tagger"]().save(tmp_path / "tagger")
    with pytest.raises(ValueError, match="holds a tagger, no model of text; use `pplseq tag`"):
        load_text_model(folder)


def test_a_model_of_ones_own(tmp_path, monkeypatch):
    class Mine(HMM):
        name = "mine"

    from pplseq.models import MODELS

    monkeypatch.setitem(MODELS, "mine", Mine)
    assert type(pplseq.load(Mine(2, num_words=4).save(tmp_path / "model"))) is Mine
