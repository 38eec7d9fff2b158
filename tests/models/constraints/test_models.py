"""Models of words under constraints: what they draw, what they refuse."""

import math

import pytest
import torch
from support.grids import grid

from pplseq import HMM, LDS, VLHMM, Constraint, SemiMarkovHMM, Vocabulary
from pplseq.models.constraints.constraint import Constraint as Same
from pplseq.models.estimator import Sample

F64 = torch.float64
WORDS = ("<eos>", "the", "stock", "market", "fell", "rose", "<unk>", "today")
VOCABULARY = Vocabulary(WORDS)
BLOCKS = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3])


def vlhmm(transition="softmax", reset_id=0, **more):
    torch.manual_seed(1)
    options = dict(hidden_size=4, init_scale=1.0, transition=transition, reset_id=reset_id) | more
    model = VLHMM(8, num_words=8, blocks=BLOCKS, **options).double()
    model.vocabulary = VOCABULARY
    return model


def hmm():
    torch.manual_seed(1)
    model = HMM(3, num_words=8).double()
    model.vocabulary = VOCABULARY
    return model


MODELS = {
    "hmm": hmm, "softmax": vlhmm, "hierarchical": lambda: vlhmm("hierarchical"), "no reset": lambda: vlhmm(reset_id=None),
    "tables": lambda: vlhmm(parameterization="scalar"), "factored": lambda: vlhmm("hierarchical", parameterization="factored"),
}  # fmt: skip
ABOUT = Constraint.containing("stock market") & Constraint.excluding("fell", "<unk>")


def by_enumeration(model, texts):
    """log p of texts that end with <eos>."""
    ids = [VOCABULARY.encode(text).tolist() for text in texts]
    lengths = torch.tensor([len(row) for row in ids])
    x = torch.zeros(len(ids), int(lengths.max()), dtype=torch.long)
    for row, text in enumerate(ids):
        x[row, : len(text)] = torch.tensor(text)
    return model.log_prob(x, lengths)


@pytest.mark.parametrize("name", MODELS)
def test_the_probability_of_a_constraint_is_that_of_its_texts(name):
    import itertools

    model = MODELS[name]()
    texts = [(*text, "<eos>") for n in (2, 3) for text in itertools.product(WORDS[1:], repeat=n) if ABOUT.accepts(text)]
    expected = by_enumeration(model, texts).logsumexp(0)
    chain = model.constrained(ABOUT, length=(2, 3))
    torch.testing.assert_close(chain.log_prob()[0], expected)
    # and behind a prefix
    behind = by_enumeration(model, [("the", "fell", *text) for text in texts]).logsumexp(0)
    prefix = model.log_prob(torch.tensor([VOCABULARY.encode(("the", "fell")).tolist()]))[0]
    for given in ("the fell", ["the", "fell"], torch.tensor([1, 4])):
        torch.testing.assert_close(model.constrained(ABOUT, prefix=given, length=(2, 3)).log_prob()[0], behind - prefix)
    best = chain.viterbi()
    text = VOCABULARY.decode(best.words[0, 0, : best.lengths[0, 0]].tolist())
    assert ABOUT.accepts(text[:-1]) and text[-1] == "<eos>"


@pytest.mark.parametrize("name", ["hmm", "softmax", "hierarchical"])
def test_all_that_is_drawn_satisfies(name):
    model = MODELS[name]()
    drawn = model.sample(constraint=ABOUT, prefix="the", length=(3, 9), num_sequences=40, seed=0)
    assert isinstance(drawn, Sample) and drawn.x.shape == drawn.states.shape == (40, 10)
    assert drawn.words is not None
    for words in drawn.words:
        assert words[-1] == "<eos>" and words.count("<eos>") == 1 and 4 <= len(words) <= 10 and ABOUT.accepts(words[:-1])
    again = model.sample(constraint=ABOUT, prefix="the", length=(3, 9), num_sequences=40, seed=0)
    assert again.words == drawn.words
    assert len({tuple(words) for words in drawn.words}) > 5


def test_a_length_alone_and_no_end_word():
    model = hmm()
    assert all(len(words) == 5 and words[-1] == "<eos>" for words in model.sample(length=4, num_sequences=5).words)
    endless = model.sample(length=4, num_sequences=30, end=None)
    assert endless.x.shape == (30, 4) and bool((endless.x >= 0).all())
    assert {len(words) for words in model.sample(length=(0, 2), num_sequences=60, end=None, seed=1).words} == {0, 1, 2}
    assert model.constrained(length=5, end=None).log_prob().item() == pytest.approx(0.0, abs=1e-12)
    stops = model.constrained(length=(0, 100)).log_prob().item()
    assert -1e-2 < stops <= 1e-9  # nearly all texts end by then


@pytest.mark.parametrize("name", ["hmm", "softmax"])
def test_a_draw_is_one_sentence(name):
    model = MODELS[name]()
    running, drawn = (model.sample(12, 60, seed=0, **end) for end in ({"end": None}, {}))
    assert bool((running.x >= 0).all()) and [len(words) for words in running.words] == [12] * 60
    cut = 0
    for x, states, words, whole in zip(drawn.x, drawn.states, drawn.words, running.words, strict=True):
        length = whole.index("<eos>") + 1 if "<eos>" in whole else 12
        assert words == whole[:length] and x[:length].tolist() == VOCABULARY.encode(words).tolist()
        assert bool((x[length:] == -1).all() & (states[length:] == -1).all() & (states[:length] >= 0).all())
        cut += length < 12
    assert cut > 10
    at_fell = model.sample(12, 60, seed=0, end="fell")
    assert torch.equal(at_fell.x, model.sample(12, 60, seed=0, end=4).x)
    assert all("fell" not in words[:-1] for words in at_fell.words) and any("<eos>" in words[:-1] for words in at_fell.words)
    with pytest.raises(TypeError, match="end: no vector ends a sequence"):
        HMM(2, num_features=1).set_parameters(initial=[0.5, 0.5]).sample(3, end=0)


@grid({"end": ["<eos>", None], "name": MODELS})
def test_bounds_may_be_wider_than_what_the_constraint_allows(name, end):
    chain = MODELS[name]().constrained(Constraint.matching("the (stock | market)?"), length=(0, 5), end=end)
    found = chain.marginals()
    longest = 3 if end else 2
    assert found.words.shape == (1, chain.num_steps, 8) and chain.num_steps > longest
    for marginals in (found.words, found.states, found.automaton):
        assert not marginals[:, longest:].any()
        torch.testing.assert_close(marginals.sum(-1)[0, :longest], found.lengths[0].flip(0).cumsum(0).flip(0)[1 : longest + 1])
    torch.testing.assert_close(found.lengths.sum(), torch.tensor(1.0, dtype=F64))


def test_the_constraint_may_read_the_prefix():
    model = hmm()
    half = Constraint.containing("stock market")
    alone, whole = (model.constrained(half, prefix="the stock", length=3, whole=whole) for whole in (False, True))
    assert whole.log_prob() > alone.log_prob()
    begun = model.constrained(half, prefix="the stock market", length=3, whole=True)
    assert begun.log_prob().item() == pytest.approx(model.constrained(prefix="the stock market", length=3).log_prob().item())
    with pytest.raises(ValueError, match="row 0 cannot satisfy it within 3 words"):
        model.constrained(Constraint.excluding("the"), prefix="the", length=2, whole=True).sample()


def test_after_each_word_and_next():
    model = vlhmm()
    chain = model.constrained(ABOUT, length=6, end=None)
    x = torch.tensor([VOCABULARY.encode("the stock market rose today the".split()).tolist()])
    values = chain.after_each_word(x)[0]
    assert values.shape == (7,) and values[0] < values[2] < values[3] and values[-1] == 0
    assert (chain.after_each_word(torch.tensor([[4, 4]]))[0, 1:] == -math.inf).all()  # "fell" cannot be taken back
    probs = chain.next()[0].exp()
    assert probs.sum().item() == pytest.approx(1.0) and probs[4] == 0 and probs[6] == 0


def test_models_of_ids_take_digits():
    torch.manual_seed(0)
    model = HMM(2, num_words=4)
    drawn = model.sample(constraint=Constraint.containing("3 1"), length=5, num_sequences=20, seed=0)
    assert drawn.words is None and all(" 3 1 " in f" {' '.join(map(str, row))} " for row in drawn.x.tolist())


def test_regimes():
    torch.manual_seed(0)
    model = SemiMarkovHMM(2, num_words=4, max_duration=3)
    drawn = model.sample(constraint=Constraint.containing("3 1"), length=(4, 5), num_sequences=20, seed=0)
    assert bool(((drawn.states == -1) == (drawn.x == -1)).all()) and int(drawn.states.max()) <= 1
    assert model.sample(5, 2).x.shape == (2, 5)


def test_what_is_refused():
    model = hmm()
    for options, message in (
        (dict(constraint="stock", length=3), "expected a Constraint, such as"),
        (dict(constraint=ABOUT), "length: beside constraint or prefix say"),
        (dict(constraint=ABOUT, length=3, num_steps=4), "in the place of num_steps"),
        (dict(constraint=ABOUT, length=(5, 3)), "expected \\(shortest, longest\\) with shortest <= longest"),
        (dict(constraint=ABOUT, length=(5, 3, 1)), "expected a number of words"),
        (dict(constraint=ABOUT, length=3, end="end"), "'end' is not in the vocabulary"),
        (dict(length=3, end=True), "end: expected the word that ends a text, or its id; None: texts just stop, got True"),
        (dict(num_steps=3, end=8), "end: expected a word id in 0..7, got 8"),
        (dict(constraint=ABOUT, length=3, prefix=[99]), "ids in 0..7"),
        (dict(constraint=Constraint.containing("stok"), length=3), "'stok' of containing 'stok' is not .* mean 'stock'"),
        (dict(constraint=ABOUT, length=1), "containing 'stock market': takes 2 words or more, and the length allows 1"),
        (dict(constraint=ABOUT & Constraint.containing("fell"), length=9), "no text of the model's words satisfies both"),
        (dict(constraint=Constraint.containing("<eos> the"), length=9), "containing '<eos> the': no text of the model's words"),
        (dict(), "say how many steps"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            model.sample(**options)
    with pytest.raises(TypeError, match="constraints are about words, and this model is about vectors"):
        HMM(2, num_features=1).constrained(ABOUT, length=3)
    assert not hasattr(LDS, "constrained") and Same is Constraint


@pytest.mark.parametrize("name", ["hmm", "softmax"])
def test_what_the_model_cannot_say(name):
    model = MODELS[name]()
    if name == "hmm":
        model.set_parameters(emission=torch.tensor([0.2, 0.2, 0.2, 0, 0.1, 0.1, 0.1, 0.1]).expand(3, -1))
    else:
        with torch.no_grad():
            model.word_score.bias[3] = -math.inf
    chain = model.constrained(ABOUT, length=5)
    assert chain.log_prob().item() == -math.inf
    with pytest.raises(ValueError, match="the model gives all such texts probability zero"):
        chain.sample()


def test_the_end_word_inside_a_constraint():
    model = hmm()
    free = model.constrained(length=(2, 4)).log_prob()
    torch.testing.assert_close(model.constrained(Constraint.excluding("<eos>"), length=(2, 4)).log_prob(), free)
    drawn = model.sample(constraint=Constraint.containing("<eos> the"), length=6, end=None, num_sequences=5, seed=0)
    assert all(" <eos> the " in f" {' '.join(words)} " for words in drawn.words)
    assert model.sample(constraint=Constraint.length(0, 0), length=(0, 3), seed=0).words == [["<eos>"]]


# ------------------------------------------------------------------------------------------------ the next word, as baselines
@pytest.mark.parametrize("name", MODELS)
def test_the_next_word_makes_up_the_text(name):
    model, text = MODELS[name](), ["the", "stock", "fell", "<eos>", "today"]
    steps = [model.next_word(text[:t])[VOCABULARY.index[word]] for t, word in enumerate(text)]
    ids = VOCABULARY.encode(text)
    assert sum(steps) == pytest.approx(float(model.log_prob(torch.as_tensor(ids)[None])[0]), rel=1e-6)
    for context in ("the stock", ["the", "stock"], ids[:2], ids[:2].tolist(), torch.as_tensor(ids[:2])):
        assert abs(sum(map(math.exp, model.next_word(context))) - 1) < 1e-5
        assert model.next_word(context)[ids[2]] == steps[2]
    assert (model.next_word(["unheard"]) == model.next_word(["<unk>"])).all()


@pytest.mark.parametrize("context", [[8], [-1], [True], 3, [0.5]])
def test_a_context_of_no_words_is_refused(context):
    with pytest.raises(ValueError, match=r"context: expected a string, a list of words, or of ids in 0\.\.7, got"):
        hmm().next_word(context)
    with pytest.raises(ValueError, match=r"prefix: expected a string, a list of words, or of ids in 0\.\.7, got"):
        hmm().sample(prefix=context, length=2)


def test_vectors_have_no_next_word():
    with pytest.raises(TypeError, match="next_word: this model is about vectors; ask predict_next or forecast"):
        HMM(2, num_features=1).set_parameters(loc=torch.zeros(2, 1)).next_word()
