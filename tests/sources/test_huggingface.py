"""A causal language model over pieces of words, as a source of words: tiny, with random weights."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pplseq.data import Vocabulary
from pplseq.sources import HuggingFaceSource
from pplseq.sources.piece_reader import PieceTree, cache_argument
from tests.support.letter_pieces import Letters


@pytest.fixture(scope="module")
def source():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=6, n_positions=32, n_embd=8, n_layer=1, n_head=2, initializer_range=1.0)
    vocabulary = Vocabulary(("a", "b", "ab", "abb", "ba", "<eos>", "<unk>"))
    return HuggingFaceSource(transformers.GPT2LMHeadModel(config).double(), Letters(), vocabulary)


def slow_log_prob(source, context, pieces):
    """Piece by piece, the network read anew for each."""
    total, ids = 0.0, list(context)
    for piece in pieces:
        total += float(torch.log_softmax(source.model(input_ids=torch.tensor([ids])).logits[0, -1], -1)[piece])
        ids.append(piece)
    last = torch.softmax(source.model(input_ids=torch.tensor([ids])).logits[0, -1], -1)
    return total + math.log(float(last[:4].sum()))  # end, line end, " a", " b": a word is over


def test_unknown_words_behind_each_other_are_read_once():
    source = HuggingFaceSource.__new__(HuggingFaceSource)  # without a network, and so without transformers
    vocabulary, read = Vocabulary(("a", "b", "<unk>")), []

    def over(context, tree):
        read.append(list(context))
        return iter([([0], torch.zeros(1, 6).double().log_softmax(-1)), ([1, 2], torch.zeros(2, 6).double().log_softmax(-1))])

    tree = PieceTree([[2], [3], [2]])
    source.__dict__.update(
        vocabulary=vocabulary, num_words=3, name="pieces", tree=tree, max_context=9, context=[0], pieces=[[2], [3], [2]],
        _known=None, _shared=torch.zeros(3),
        _begins=torch.tensor([True] * 4 + [False] * 2), _reader=SimpleNamespace(over=over),
    )  # fmt: skip
    first = source.log_prob_of(2)
    source.observe(2)
    assert source.log_prob_of(2) == first and len(read) == 1
    source.observe(1)
    source.predict()
    assert read == [[0], [0, 3]]


@pytest.mark.slow  # importing transformers takes seconds
@torch.no_grad()
def test_words_out_of_pieces(source):
    source.reset()
    for y in [2, 0, 5, 4, 3]:
        context = list(source.context)
        one_by_one = [source.log_prob_of(word) for word in range(6)]
        probs = source.predict()
        np.testing.assert_allclose(probs.sum(), 1)
        for word in range(6):
            expected = slow_log_prob(source, context, source.pieces[word])
            np.testing.assert_allclose([one_by_one[word], np.log(probs[word])], expected, rtol=1e-9)
        np.testing.assert_allclose(source.log_prob_of(6), np.log(1 - probs[:6].sum()), rtol=1e-6)
        source.observe(y)
        assert source.context == (context + source.pieces[y] if y != 6 else context)


@pytest.mark.slow  # importing transformers takes seconds
@torch.no_grad()
def test_all_strings_of_letters_share_the_mass(source):
    """Words of up to 3 letters, and beginnings of longer ones: with the line's end they make up everything."""
    source.reset()
    total = sum(
        math.exp(slow_log_prob(source, source.context, [2 + w[0], *(4 + letter for letter in w[1:])]))
        for n in (1, 2, 3)
        for w in itertools.product(range(2), repeat=n)
    )
    rows = source._read_anew([source.context])[0].exp()
    longer = 0.0
    for w in itertools.product(range(2), repeat=3):
        pieces, ids, prob = [2 + w[0], *(4 + letter for letter in w[1:])], list(source.context), 1.0
        for piece in pieces:
            prob *= float(source._read_anew([ids])[0, piece].exp())
            ids.append(piece)
        longer += prob * float(source._read_anew([ids])[0, 4:].exp().sum())
    # a word may begin with a letter that no space stands before only in the middle of a line's first word
    np.testing.assert_allclose(total + longer, float(rows[2:4].sum()), rtol=1e-9)


@pytest.mark.slow  # importing transformers takes seconds
def test_state_and_errors(source):
    source.reset()
    source.observe(3)
    state, before = source.state_dict(), source.predict()
    source.observe(1)
    source.load_state_dict(state)
    np.testing.assert_array_equal(source.predict(), before)
    with pytest.raises(ValueError, match="unknown word"):
        HuggingFaceSource(source.model, Letters(), Vocabulary(("a", "<eos>"), unknown=None))


class Positions(torch.nn.Module):
    """A causal model without `transformers`: what it says depends on the last piece, and it has eight positions."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=8)
        self.table = torch.nn.Embedding(6, 6)

    def get_output_embeddings(self):
        return self.table

    def forward(self, input_ids):
        if input_ids.shape[1] > 8:
            raise IndexError("index out of range in self")
        return SimpleNamespace(logits=self.table(input_ids))


def test_the_context_ends_where_the_positions_do():
    vocabulary = Vocabulary(("a", "b", "ab", "abb", "ba", "<eos>", "<unk>"))
    torch.manual_seed(0)
    model = Positions()
    source = HuggingFaceSource(model, Letters(), vocabulary)
    assert source.max_context == 8
    for y in [3, 3, 3, 3, 2, 0]:  # more pieces than positions
        assert math.isfinite(source.log_prob_of(y))
        source.observe(y)
    np.testing.assert_allclose(source.predict().sum(), 1.0)
    with pytest.raises(ValueError, match="max_context: the model has 8 positions, got 9; give at most 8"):
        HuggingFaceSource(model, Letters(), vocabulary, max_context=9)
    before = list(source.context)
    source.observe(6)
    assert source.context == before  # an unknown word is no text "<unk>"


class Marked:
    """A tokenizer as Llama's: a mark before every text and in the place of spaces, and what has no piece is one for all."""

    bos_token_id, eos_token_id, all_special_ids = 0, 0, [0]
    names = ["<s>", "\u2581", "<0x0A>", "a", "b", "<?>"]

    def __len__(self):
        return len(self.names)

    def encode(self, text, add_special_tokens=False):
        letters = ("\u2581" + text.replace("0", "")).replace(" ", "\u2581").replace("\n", "N")
        return [{"\u2581": 1, "N": 2, "a": 3, "b": 4}.get(letter, 5) for letter in letters]

    def convert_ids_to_tokens(self, ids):
        return [self.names[n] for n in ids]


def test_what_stands_before_a_text_stands_before_no_word():
    torch.manual_seed(0)
    source = HuggingFaceSource(Positions(), Marked(), Vocabulary(("a", "ab", "<eos>", "<unk>")))
    assert source.pieces[:3] == [[1, 3], [1, 3, 4], [2]]
    assert source._begins.tolist() == [True, True, True, False, False, False]


def test_words_of_the_same_pieces_share_what_these_have():
    torch.manual_seed(0)
    model = Positions()
    with torch.no_grad():
        model.table.weight[:, 1] += 3.0
        model.table.weight[:, 5] += 3.0
    source = HuggingFaceSource(model, Marked(), Vocabulary(("a", "x", "y", "z", "<eos>", "<unk>")))
    rows = torch.log_softmax(model.table.weight.detach().double(), -1)
    expected = float(rows[0, 1] + rows[1, 5] + rows[5, :3].logsumexp(0)) - math.log(3)
    for y in (1, 2, 3):
        assert source.log_prob_of(y) == pytest.approx(expected) == pytest.approx(math.log(source.predict()[y]))
    assert -source.nats(source.state_dict(), [2]).item() == pytest.approx(expected)
    with pytest.raises(ValueError, match="vocabulary: the tokenizer has no pieces for '0'; leave the word out"):
        HuggingFaceSource(model, NoMark(), Vocabulary(("a", "0", "<eos>", "<unk>")))


class NoMark(Marked):
    """Without any mark."""

    def encode(self, text, add_special_tokens=False):
        return super().encode(text.replace(" ", ""))[1:]


def test_a_word_far_below_the_smallest_number_has_a_log_probability():
    torch.manual_seed(0)
    model = Positions()
    with torch.no_grad():
        model.table.weight[:, 5] -= 900.0
    source = HuggingFaceSource(model, Letters(), Vocabulary(("a", "ab", "<eos>", "<unk>")))
    before = source.log_prob_of(1)
    assert source.predict()[1] == 0 and source.log_prob_of(1) == before < -800


def test_the_longest_word_fits_behind_every_context():
    vocabulary = Vocabulary(("a", "abbab", "<eos>", "<unk>"))
    source = HuggingFaceSource(Positions(), Letters(), vocabulary)  # of half the context there would be no room
    for y in (1, 1, 0, 1, 0, 0, 1):
        source.observe(y)
        assert len(source.context) + 5 <= 8
    with pytest.raises(ValueError, match="max_context: the longest word has 5 pieces behind 1 of start, and at most 5 are"):
        HuggingFaceSource(Positions(), Letters(), vocabulary, max_context=5)


def tiny(kind, num_pieces=40):
    """A model of some architecture with random weights, and words of one to four pieces."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": num_pieces, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.5}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_positions=24, n_embd=16, n_layer=2, n_head=2, **sizes)
        return transformers.GPT2LMHeadModel(config).double()
    config = transformers.LlamaConfig(
        max_position_embeddings=24, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, **sizes
    )
    return transformers.LlamaForCausalLM(config).double()


class Numbers:
    """A tokenizer of words like "3.17.20": a piece a number."""

    bos_token_id, eos_token_id, all_special_ids = None, 0, [0]

    def __len__(self):
        return 40

    def encode(self, text, add_special_tokens=False):
        if text in ("\n", " <unk>"):
            return [1]
        first, *rest = (int(part) for part in text.strip().split("."))
        return [2 + first % 19, *(21 + part % 19 for part in rest)]

    def convert_ids_to_tokens(self, ids):
        return ["<|end|>" if n == 0 else "\n" if n == 1 else f" {n}" if n < 21 else str(n) for n in ids]


def test_both_names_of_the_cache_are_known():
    for name in ("past_key_values", "cache"):
        forward = {"past_key_values": lambda input_ids, past_key_values=None: 0, "cache": lambda input_ids, cache=None: 0}[name]
        assert cache_argument(SimpleNamespace(forward=forward)) == name
    assert cache_argument(Positions()) is None


@pytest.mark.slow  # importing transformers takes seconds
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_cache_changes_nothing(kind):
    """Words in and out, sequences begun anew, contexts that overflow: as without the cache."""
    random = np.random.default_rng(0)
    words = sorted({".".join(map(str, random.integers(19, size=n))) for n in (1, 2, 3, 4) for _ in range(100)})
    vocabulary = Vocabulary((*words, "<eos>", "<unk>"))
    model, unknown = tiny(kind), len(words) + 1
    fast, slow = (HuggingFaceSource(model, Numbers(), vocabulary, cache=cache) for cache in (None, False))
    assert type(fast._reader).__name__ == "CachedReader" and len(fast.tree) > 256
    for t, y in enumerate(random.integers(len(words), size=14).tolist()):
        asked = [y, *random.integers(len(words), size=2).tolist(), *([unknown] if t % 5 == 2 else [])]
        np.testing.assert_allclose([fast.log_prob_of(w) for w in asked], [slow.log_prob_of(w) for w in asked], rtol=1e-9)
        if t % 6 == 3:
            np.testing.assert_allclose(fast.predict(), slow.predict(), rtol=1e-8)
        back = fast.mark()
        for source in (fast, slow):
            source.observe(unknown if t == 4 else y)
        assert fast.context == slow.context and len(fast.context) + 4 <= 24
        if t == 5:
            expected = fast.log_prob_of(3)
            back()
            fast.observe(y)
            assert fast.log_prob_of(3) == pytest.approx(expected, abs=1e-12)
        if t == 9:
            fast.reset(), slow.reset()


@pytest.mark.slow  # importing transformers takes seconds
def test_a_model_that_fails_leaves_the_cache_as_it_was():
    model = tiny("gpt2")
    source = HuggingFaceSource(model, Numbers(), Vocabulary(("1", "2.3", "<eos>", "<unk>")))
    source.observe(1)
    expected = source.log_prob_of(0)
    forward = model.lm_head.forward
    model.lm_head.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        source.log_prob_of(1)
    model.lm_head.forward = forward
    assert source.log_prob_of(0) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="cache: Positions keeps no keys"):
        HuggingFaceSource(Positions(), Letters(), Vocabulary(("a", "b", "<eos>", "<unk>")), cache=True)
