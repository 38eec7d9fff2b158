"""What a VLHMM tells: every verb against sums over all words that might come, with and without resets and words."""

import pytest
import torch

from pplseq.data import Vocabulary
from pplseq.models import VLHMM

close = torch.testing.assert_close
BLOCKS = torch.tensor([0, 0, 1, 1, 2, 2])
WORDS = ("<eos>", "the", "a", "cat", "dog", "<unk>")
SENTENCES = [["the", "cat"], ["a", "dog", "the", "<eos>", "a"], ["zebra"]]
IDS = [[1, 3], [2, 4, 1, 0, 2], [5]]


@pytest.fixture(params=["plain", "reset", "uneven, reset", "scalar", "dropout"])
def model(request):
    torch.manual_seed(1)
    options = {
        "plain": {},
        "reset": dict(reset_id=0),
        "uneven, reset": dict(reset_id=0, states_per_block=[1, 3, 2]),
        "scalar": dict(parameterization="scalar", reset_id=0),
        "dropout": dict(num_states=12, state_dropout=0.5),
    }[request.param]
    model = VLHMM(num_words=6, blocks=BLOCKS, **{"num_states": 6, "hidden_size": 8, "init_scale": 0.7, **options}).double()
    model.vocabulary = Vocabulary(WORDS)
    return model


def continued(model, row, num_steps):
    """p(x_{T+1}, .., x_{T+K} | row), a table of K axes of words."""
    words = torch.cartesian_prod(*[torch.arange(6)] * num_steps).view(-1, num_steps)
    longer = torch.cat([torch.tensor(row, dtype=torch.long).expand(len(words), -1), words], 1)
    log_probs = model.log_prob(longer) - (model.log_prob(torch.tensor([row])) if row else 0)
    return log_probs.exp().view([6] * num_steps)


def test_forecasts_are_sums_over_all_continuations(model):
    forecast = model.forecast([*IDS, []], 3)
    assert forecast.word_log_probs.shape == (4, 3, 6) and forecast.state_log_probs.shape == (4, 3, model.num_states)
    close(forecast.state_log_probs.exp().sum(-1), torch.ones(4, 3, dtype=torch.float64))
    for row, found in zip([*IDS, []], forecast.word_log_probs.exp(), strict=True):
        table = continued(model, row, 3)
        for step in range(3):
            close(found[step], table.sum([axis for axis in range(3) if axis != step]))
    close(model.predict_next([*IDS, []]).word_log_probs, forecast.word_log_probs[:, 0])


def test_sentences_of_words_are_as_good_as_ids(model):
    gaps = [["the", None], ["a", None, "dog"]]
    end = model.vocabulary.eos_id  # scored as the lines of a corpus
    ends = [] if end is None else [end]
    assert model.score(SENTENCES) == pytest.approx(model.score([[*row, *ends] for row in IDS]), abs=1e-12)
    assert model.score(["the cat", "zebra"]) == pytest.approx(model.score([[1, 3, *ends], [5, *ends]]), abs=1e-12)
    for verb in ("decode", "posterior", "sample_states"):
        assert getattr(model, verb)(SENTENCES) is not None
    assert [len(path) for path in model.decode(["the cat", "a"])] == [2, 1]
    assert [tuple(row.shape[:1]) for row in model.smooth(SENTENCES).probs] == [(2,), (5,), (1,)]
    close(model.predict_next(SENTENCES).word_log_probs, model.predict_next(IDS).word_log_probs)
    close(model.infill(gaps).log_probs, model.infill([[1, -1], [2, -1, 4]]).log_probs)
    with pytest.raises(TypeError, match="x holds words, and the model has no vocabulary"):
        VLHMM(6, num_words=6, blocks=BLOCKS, hidden_size=8).score(["the cat"])
    with pytest.raises(ValueError, match="'zebra' is not in the vocabulary"):
        model.vocabulary = Vocabulary(WORDS[:5])
        model.score(SENTENCES)


def test_gaps_are_filled_as_sums_say(model):
    found = model.infill([[1, -1, 3], [2, 0, -1]])
    every = torch.arange(6)
    for row, log_probs in zip(([1, None, 3], [2, 0, None]), found.log_probs, strict=True):
        filled = torch.tensor([[int(word) if known is None else known for known in row] for word in every])
        close(log_probs.exp(), torch.softmax(model.log_prob(filled), 0))
    with pytest.raises(ValueError, match="no observation is missing"):
        model.infill(IDS)


def test_states_come_with_their_ids(model):
    x = torch.tensor([[1, 3, 0, 2], [5, 5, 1, 0]])
    lengths = torch.tensor([4, 2])
    smoothed, filtered = model.smooth(x, lengths), model.filter(x, lengths)
    path, drawn = model.decode(x, lengths), model.sample_states(x, 50, lengths, seed=0)
    assert smoothed.probs.shape[:2] == filtered.probs.shape[:2] == (2, 4) and drawn.shape == (50, 2, 4)
    valid = torch.arange(4) < lengths.unsqueeze(-1)
    assert torch.equal(path >= 0, valid)
    for states in (smoothed, filtered):
        close(states.probs.sum(-1), valid.double())
    for ids in (smoothed.ids, filtered.ids):
        assert (drawn.movedim(0, -1).unsqueeze(-1) == ids.unsqueeze(-2)).any(-1)[valid].all()
    close(filtered.dense(model.num_states)[1, 1], smoothed.dense(model.num_states)[1, 1])  # the last word of a row
    shorter = model.smooth(x[:, :2]).dense(model.num_states)
    close(filtered.dense(model.num_states)[0, 1], shorter[0, 1])


def test_samples_have_words(model):
    sample = model.sample(6, 3, seed=0, end=None)
    assert sample.x.shape == sample.states.shape == (3, 6)
    assert sample.words == [[WORDS[i] for i in row] for row in sample.x.tolist()]
    again = model.sample(6, 3, seed=0, end=None)
    assert torch.equal(sample.x, again.x) and torch.equal(sample.states, again.states)
    many = model.sample(2, 4000, seed=1, end=None)
    block_of_state = torch.repeat_interleave(torch.arange(3), model._sizes)
    assert torch.equal(block_of_state[many.states], BLOCKS[many.x])
    expected = continued(model, [], 2)
    found = torch.zeros(6, 6, dtype=torch.float64).index_put_(tuple(many.x.T), torch.tensor(1 / 4000).double(), accumulate=True)
    assert float((found - expected).abs().max()) < 0.03


def test_its_arguments_and_how_it_is_shown(model):
    again = VLHMM(**model.get_params())
    assert again.config == model.config and torch.equal(again.block_of_word, model.block_of_word)
    assert "not fitted" in repr(model) and f"num_states={model.num_states}" in repr(model)
    before = model.score(IDS)
    model.set_params(temperature=2.0)
    assert model.vocabulary is not None and model.config["temperature"] == 2.0
    assert model.score(IDS) != before


def test_a_model_without_words_is_shown_too():
    model = VLHMM(num_states=8)
    assert "num_states=8" in repr(model) and "not fitted" in repr(model)
    assert VLHMM(**model.get_params()).num_states == 8
    assert model.set_params(num_states=16).num_states == 16
