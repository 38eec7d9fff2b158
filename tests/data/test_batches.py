"""Batches: what is covered, in which order, and that a resumed epoch is the same epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pplseq.data import Text, Vocabulary, load_corpus
from pplseq.data.batches import SentenceBatches, StreamBatches


def text_of(line_lengths, article_starts=None):
    """A text whose token i is word i, without <eos>, so that every token can be told apart."""
    words = [f"w{i}" for i in range(sum(line_lengths))]
    bounds = np.cumsum([0, *line_lengths])
    lines = [words[start:stop] for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]
    return Text.from_lines(lines, Vocabulary(tuple(words)), article_starts=article_starts)


TEXT = text_of([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7], article_starts=[0, 4, 9, 14])  # 68 tokens


def streams_of(batches):
    """The B streams that an epoch's batches hold, padding removed."""
    collected = list(batches)
    streams = [[] for _ in range(len(collected[0].x))]
    for batch in collected:
        lengths = [batch.x.shape[1]] * len(batch.x) if batch.lengths is None else batch.lengths.tolist()
        for stream, row, length in zip(streams, batch.x.tolist(), lengths, strict=True):
            stream += row[:length]
    return streams


def assert_same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for field, other_field in zip(batch, other, strict=True):
            same = torch.equal(field, other_field) if isinstance(field, torch.Tensor) else field == other_field
            assert same


def test_streams_are_contiguous():
    batches = StreamBatches(TEXT, batch_size=3, segment_length=5)
    assert streams_of(batches) == [list(range(22)), list(range(22, 44)), list(range(44, 66))]
    collected = list(batches)
    assert [batch.x.shape for batch in collected] == [(3, 5)] * 4 + [(3, 2)]
    assert all(batch.lengths is None and batch.x.dtype == torch.int64 for batch in collected)
    assert [batch.is_first for batch in collected] == [True] + [False] * 4
    assert len(batches) == 5 and batches.num_tokens == 66


@given(
    num_tokens=st.integers(1, 90),
    batch_size=st.integers(1, 12),
    segment_length=st.integers(1, 9),
    shuffle=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_evaluation_covers_every_token_once(num_tokens, batch_size, segment_length, shuffle):
    text = text_of([num_tokens // 2, num_tokens - num_tokens // 2])
    batches = StreamBatches(
        text, batch_size, segment_length, shuffle="line" if shuffle else None, seed=5, drop_remainder=False
    )
    streams = streams_of(batches)
    tokens = sum(streams, [])
    assert sorted(tokens) == list(range(num_tokens))
    if not shuffle:
        assert tokens == list(range(num_tokens))
    assert batches.num_tokens == num_tokens
    collected = list(batches)
    assert len(collected) == len(batches)
    assert all(batch.lengths is None or batch.lengths.min() >= 1 for batch in collected)
    assert all(batch.lengths is None for batch in collected[:-1])
    assert all(batch.x.shape[1] == segment_length for batch in collected[:-1])


def test_padding_is_zero():
    last = list(StreamBatches(TEXT, batch_size=3, segment_length=5, drop_remainder=False))[-1]
    assert last.lengths.tolist() == [3, 3, 2]
    assert last.x[2, 2] == 0


@pytest.mark.parametrize(
    ("shuffle", "starts"), [("line", TEXT.line_starts), ("article", TEXT.line_starts[[0, 4, 9, 14]])]
)
def test_shuffling_keeps_units_whole(shuffle, starts):
    batches = StreamBatches(TEXT, batch_size=1, segment_length=7, shuffle=shuffle, drop_remainder=False)
    units = {int(start): int(stop) for start, stop in zip(starts[:-1], starts[1:], strict=True)}
    orders = []
    for _ in range(4):
        tokens, order = streams_of(batches)[0], []
        while tokens:
            size = units[tokens[0]] - tokens[0]
            assert tokens[:size] == list(range(tokens[0], tokens[0] + size))
            order.append(tokens[0])
            tokens = tokens[size:]
        assert sorted(order) == sorted(units)
        orders.append(order)
    assert any(order != orders[0] for order in orders[1:])  # epochs differ


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: StreamBatches(TEXT, 3, 4, shuffle="line", seed=seed),
        lambda seed: StreamBatches(TEXT, 3, 4, shuffle="article", seed=seed, drop_remainder=False),
        lambda seed: SentenceBatches(TEXT, 12, shuffle=True, seed=seed),
    ],
)
class TestResuming:
    def test_order_is_a_function_of_seed_and_epoch(self, make):
        first, second = make(1), make(1)
        epochs = [list(first) for _ in range(3)]
        second.load_state_dict({"epoch": 2, "position": 0})
        assert_same(list(second), epochs[2])
        other = make(2)
        assert any(not torch.equal(a.x, b.x) for a, b in zip(other, epochs[0], strict=False))

    def test_resumes_after_every_batch(self, make):
        whole = make(1)
        expected = [list(whole) for _ in range(3)]
        running = make(1)
        list(running)
        for position, _ in enumerate(running, start=1):
            state = running.state_dict()
            assert state == {"epoch": 1, "position": position}
            resumed = make(1)
            resumed.load_state_dict(state)
            assert_same(list(resumed), expected[1][position:])
            assert resumed.state_dict() == {"epoch": 2, "position": 0}
            assert_same(list(resumed), expected[2])

    def test_an_abandoned_epoch_starts_again(self, make):
        batches = make(1)
        next(iter(batches))
        assert len(list(batches)) == len(batches)
        assert batches.epoch == 1

    def test_state_is_checked(self, make):
        batches = make(1)
        for state in ({"epoch": 0, "position": len(batches) + 1}, {"epoch": -1, "position": 0}):
            with pytest.raises(ValueError, match="does not exist"):
                batches.load_state_dict(state)
        with pytest.raises(ValueError, match="expected the keys epoch and position"):
            batches.load_state_dict({"epoch": 0})


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 12, 1000])
def test_sentences_are_covered_and_bucketed(shuffle, batch_tokens):
    batches = SentenceBatches(TEXT, batch_tokens, shuffle=shuffle)
    assert batches.num_tokens == TEXT.num_tokens
    lines = list(TEXT.lines())
    seen = []
    for batch in batches:
        assert batch.is_first
        assert len(batch.index) == 1 or batch.x.numel() <= batch_tokens
        for row, length, line in zip(batch.x.tolist(), batch.lengths.tolist(), batch.index.tolist(), strict=True):
            assert row[:length] == lines[line].tolist()
            assert not any(row[length:])
            seen.append(line)
    assert sorted(seen) == list(range(TEXT.num_lines))
    assert len(batches) == {1: 14, 12: 8, 1000: 1}[batch_tokens]


def test_lines_without_tokens_are_left_out():
    text = Text.from_lines([["a"], [], ["a", "a"]], Vocabulary(("a",)))
    (batch,) = SentenceBatches(text)
    assert batch.index.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected at least 1"),
        ({"segment_length": 0}, "segment_length: expected at least 1"),
        ({"shuffle": "words"}, "shuffle: expected 'line', 'article' or None"),
        ({"batch_size": 69}, "has 68 tokens, too few for 69 streams"),
    ],
)
def test_stream_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        StreamBatches(TEXT, **options)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="batch_tokens must be at least 1"):
        SentenceBatches(TEXT, 0)
    for kind in (StreamBatches, SentenceBatches):
        with pytest.raises(TypeError, match="text: expected a Text, got list"):
            kind([["a", "b"]])


def test_real_corpora_give_the_published_number_of_steps(data_folder):
    for name, shuffle, steps in (("ptb", "line", 1816), ("wikitext2", "article", 4080)):
        train = load_corpus(data_folder / name).train
        batches = StreamBatches(train, 16, 32, shuffle=shuffle)
        assert len(batches) == steps
        assert batches.num_tokens == train.num_tokens // 16 * 16
        assert name != "ptb" or sum(batch.x.numel() for batch in batches) == batches.num_tokens
