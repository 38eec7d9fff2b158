"""Word clustering: the incremental table against a slow twin that tries all merges, and the promises on real text."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pplseq.data import brown
from pplseq.data.clustering import (
    Clusters,
    average_mutual_information,
    brown_clusters,
    clusters_from_counts,
    read_paths,
    uniform_clusters,
)
from pplseq.data.lag_counts import LagCounts
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary


def random_text(num_words=30, length=400, seed=0):
    """A text with structure: words of class k come mostly after words of class k - 1, frequencies fall."""
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, num_words + 1)
    kinds = np.arange(num_words) % 4
    tokens = [0]
    for _ in range(length - 1):
        likely = weights * np.where(kinds == (kinds[tokens[-1]] + 1) % 4, 8, 1)
        tokens.append(generator.choice(num_words, p=likely / likely.sum()))
    tokens[:num_words] = range(num_words)  # all occur
    return np.array(tokens)


# ---------------------------------------------------------------- the slow twin


class SlowWindow:
    """The window algorithm as the books have it: try every merge, compute the mutual information from scratch."""

    def __init__(self, pairs, own=()):
        self.pairs, self.own = pairs, set(own)
        self.first = {word: sum(a == word for a, _ in pairs) for word in {w for pair in pairs for w in pair}}
        self.second = {word: sum(b == word for _, b in pairs) for word in self.first}

    def information(self, slots):
        """N times the mutual information in nats, of the bigrams with both words in the slots."""
        slot_of = {word: i for i, words in slots.items() for word in words}
        count = {}
        for a, b in self.pairs:
            if a in slot_of and b in slot_of:
                key = slot_of[a], slot_of[b]
                count[key] = count.get(key, 0) + 1
        first = {i: sum(self.first[word] for word in words) for i, words in slots.items()}
        second = {i: sum(self.second[word] for word in words) for i, words in slots.items()}
        return sum(n * np.log(n * len(self.pairs) / (first[i] * second[j])) for (i, j), n in count.items())

    def losses(self, slots):
        """{(i, j): loss} of all merges that are allowed."""
        now = self.information(slots)
        open_slots = [i for i in sorted(slots) if not self.own & set(slots[i])]
        result = {}
        for i in open_slots:
            for j in open_slots:
                if i < j:
                    merged = {k: words for k, words in slots.items() if k != j} | {i: slots[i] + slots[j]}
                    result[i, j] = now - self.information(merged)
        return result

    def run(self, order, num_blocks, window):
        """Yield (losses, the pair merged) of each step, and leave the clusters in `self.slots`."""
        slots, free = {}, list(range(window + 1))[::-1]
        waiting = list(order)
        while waiting or len(slots) > num_blocks:
            if waiting:
                slots[free.pop()] = [waiting.pop(0)]
                if free:
                    continue
            losses = self.losses(slots)
            smallest = min(losses.values())
            i, j = min(pair for pair, loss in losses.items() if loss < smallest + 1e-7)
            if sum(self.first[word] for word in slots[i]) < sum(self.first[word] for word in slots[j]):
                i, j = j, i
            slots[i] += slots.pop(j)
            free.append(j)
            yield losses, (i, j)
        self.slots = slots


@pytest.mark.parametrize(
    "num_clusters, window, own, line_length",
    [(5, 5, (), None), (5, 5, (0, 17), None), (3, 7, (2,), None), (4, 4, (), 9), (1, 3, (), None), (2, 2, (29,), 3)],
)
def test_every_step_agrees_with_trying_all_merges(monkeypatch, num_clusters, window, own, line_length):
    tokens = random_text()
    line_starts = None if line_length is None else np.append(np.arange(0, len(tokens), line_length), len(tokens))
    pairs = [
        (int(tokens[t]), int(tokens[t + 1]))
        for t in range(len(tokens) - 1)
        if line_length is None or (t + 1) % line_length
    ]
    counts = np.bincount(tokens)
    order = sorted(range(30), key=lambda word: (word not in own, -counts[word], word))
    seen = []

    class Spy(brown.MergeTable):
        def best(self, tolerance):
            losses = {(i, j): x for (i, j), x in np.ndenumerate(self.losses()) if i < j and np.isfinite(x)}
            seen.append((losses, super().best(tolerance)))
            return seen[-1][1]

    monkeypatch.setattr(brown, "MergeTable", Spy)
    clusters = brown_clusters(tokens, 30, num_clusters, line_starts=line_starts, own_block=own, window=window)

    twin = SlowWindow(pairs, own)
    steps = list(twin.run(order, num_clusters, window))
    assert len(steps) == 30 - num_clusters
    for (losses, merge), (fast_losses, fast_merge) in zip(steps, seen, strict=False):
        assert fast_losses.keys() == losses.keys()
        np.testing.assert_allclose(list(fast_losses.values()), [losses[pair] for pair in fast_losses], atol=1e-8)
        assert fast_merge == merge
    blocks = {frozenset(np.flatnonzero(clusters.block_of_word == block).tolist()) for block in range(num_clusters)}
    assert blocks == {frozenset(words) for words in twin.slots.values()}
    information = twin.information(twin.slots) / len(pairs) / np.log(2)
    assert clusters.mutual_information == pytest.approx(information, abs=1e-12)


@given(st.lists(st.integers(0, 7), min_size=2, max_size=60), st.integers(1, 4), st.data())
@settings(max_examples=60, deadline=None)
def test_table_is_exact_after_any_inserts_and_merges(tokens, num_first, data):
    bigrams = brown.Bigrams(np.array(tokens[:-1]), np.array(tokens[1:]), 8)
    pairs = list(zip(tokens[:-1], tokens[1:], strict=True))
    table, slots, twin = brown.MergeTable(8), {}, SlowWindow(pairs)
    slot_of_word = np.full(8, 8)
    for word in sorted(twin.first):
        slot = min(set(range(8)) - set(slots))
        slots[slot] = [word]
        slot_of_word[word] = slot
        to, fro = (row[:8] for row in bigrams.neighbours(word, slot_of_word, 9))
        within, to[slot], fro[slot] = to[slot], 0, 0
        table.insert(slot, to, fro, within, bigrams.first_totals[word], bigrams.second_totals[word])
        if len(slots) > num_first:
            kept, gone = data.draw(st.permutations(sorted(slots)))[:2]
            table.merge(kept, gone)
            slot_of_word[slots[gone]] = kept
            slots[kept] += slots.pop(gone)
        losses = twin.losses(slots)
        fast = table.losses()
        assert np.isfinite(fast).sum() == 2 * len(losses)
        np.testing.assert_allclose([fast[pair] for pair in losses], list(losses.values()), atol=1e-9)
        before = fast.copy()
        table.recompute()
        np.testing.assert_allclose(table.losses(), before, atol=1e-9)


def test_recomputing_on_the_way_changes_no_result(monkeypatch):
    tokens = random_text(400, 3000)
    expected = brown_clusters(tokens, 400, 2)
    calls = []
    monkeypatch.setattr(brown.MergeTable, "recompute", lambda self: calls.append(self))
    assert brown_clusters(tokens, 400, 2).paths == expected.paths
    assert len(calls) == 400 // (32 * 3)


# ---------------------------------------------------------------- clusters


def test_two_kinds_of_words_are_found():
    generator = np.random.default_rng(0)
    tokens = np.stack([generator.integers(0, 10, 2000), generator.integers(10, 20, 2000)], axis=1).ravel()
    clusters = brown_clusters(tokens, 20, 2)
    assert len(set(clusters.block_of_word[:10])) == len(set(clusters.block_of_word[10:])) == 1
    assert clusters.mutual_information == pytest.approx(1, abs=1e-3)


def test_same_input_same_clusters():
    tokens = random_text(50, 1000)
    one, two = (brown_clusters(tokens, 50, 8, exchange_passes=2) for _ in range(2))
    assert one.paths == two.paths
    assert one.mutual_information == two.mutual_information


def test_mutual_information_is_that_of_the_formula():
    tokens = random_text()
    clusters = brown_clusters(tokens, 30, 6)
    joint = np.zeros((6, 6))
    blocks = clusters.block_of_word[tokens]
    for a, b in zip(blocks[:-1], blocks[1:], strict=True):
        joint[a, b] += 1 / (len(blocks) - 1)
    expected = sum(
        joint[a, b] * np.log2(joint[a, b] / (joint[a].sum() * joint[:, b].sum()))
        for a in range(6)
        for b in range(6)
        if joint[a, b]
    )
    assert average_mutual_information(tokens, clusters.block_of_word) == pytest.approx(expected, abs=1e-12)
    assert clusters.mutual_information == pytest.approx(expected, abs=1e-12)


def test_one_cluster_and_a_cluster_for_each_word():
    tokens = random_text()
    one = brown_clusters(tokens, 30, 1)
    assert one.num_blocks == 1 and set(one.paths) == {"0"}
    assert one.mutual_information == pytest.approx(0, abs=1e-12)
    each = brown_clusters(tokens, 30, 30)
    assert each.num_blocks == 30 and (each.sizes == 1).all()
    assert each.mutual_information == pytest.approx(average_mutual_information(tokens, np.arange(30)))
    assert brown_clusters(np.array([0, 0]), 1, 1).paths == ("0",)
    assert brown_clusters(np.array([0]), 2, 2).mutual_information == 0


@pytest.mark.parametrize("num_clusters", [1, 2, 7, 30])
def test_paths_are_a_tree_and_number_the_blocks(num_clusters):
    clusters = brown_clusters(random_text(), 30, num_clusters)
    names = sorted(set(clusters.paths))
    assert len(names) == clusters.num_blocks == num_clusters
    assert not any(b.startswith(a) for a, b in zip(names[:-1], names[1:], strict=True))
    if num_clusters > 1:
        assert sum(2.0 ** -len(name) for name in names) == 1
    assert [names[block] for block in clusters.block_of_word] == list(clusters.paths)
    assert clusters.block_of_word.dtype == np.int64


def test_coarser_blocks_of_the_tree_are_those_of_merging_on():
    tokens = random_text(40, 1500)
    clusters = brown_clusters(tokens, 40, 12)
    fewer = brown_clusters(tokens, 40, 2, window=12)
    halves = np.array([path[0] == "1" for path in clusters.paths])
    assert len(set(zip(halves, fewer.block_of_word, strict=True))) == 2


@pytest.mark.parametrize("exchange_passes", [0, 3])
def test_words_with_a_block_of_their_own(exchange_passes):
    tokens = random_text()
    clusters = brown_clusters(tokens, 30, 5, own_block=[3, 29], exchange_passes=exchange_passes)
    assert clusters.num_blocks == 5
    for word in (3, 29):
        assert clusters.sizes[clusters.block_of_word[word]] == 1
        assert clusters.paths[word].startswith("1")
    assert {path[0] for word, path in enumerate(clusters.paths) if word not in (3, 29)} == {"0"}
    alone = brown_clusters(np.array([0, 1, 2, 0]), 3, 3, own_block=[0, 1, 2])
    assert sorted(alone.paths) == ["00", "01", "10"]


def test_eos_is_cut_out_of_the_text():
    words = random_text(29, 300)
    ends = np.arange(10, 301, 10)
    tokens = np.insert(words, ends, 29)
    line_starts = np.concatenate([[0], ends + np.arange(1, len(ends) + 1)])
    assert (tokens[line_starts[1:] - 1] == 29).all()
    plain = brown_clusters(words, 29, 5)
    clusters = brown_clusters(tokens, 30, 6, eos_id=29)
    assert clusters.mutual_information == pytest.approx(plain.mutual_information, abs=1e-12)
    assert clusters.paths[:29] == tuple("0" + path for path in plain.paths)
    assert clusters.paths[29] == "1" and clusters.counts[29] == len(ends)
    within = brown_clusters(tokens, 30, 6, eos_id=29, line_starts=line_starts)
    inside = brown_clusters(words, 29, 5, line_starts=np.append(0, ends))
    assert within.paths[:29] == tuple("0" + path for path in inside.paths)
    assert within.mutual_information == pytest.approx(
        average_mutual_information(tokens, within.block_of_word, line_starts=line_starts, eos_id=29)
    )


def test_bigrams_stay_within_lines_if_asked_to():
    tokens = np.array([0, 1, 2, 3, 2])
    blocks = np.array([0, 1, 0, 1])
    # In lines 0 1 | 2 3 | 2 the first block is always followed by the second; with crossing bigrams 1 2, 3 2 also.
    assert average_mutual_information(tokens, blocks, line_starts=np.array([0, 2, 4, 5])) == 0
    assert average_mutual_information(tokens, blocks) == pytest.approx(1)
    empty_lines = np.array([0, 0, 2, 2, 4, 5, 5])
    assert average_mutual_information(tokens, blocks, line_starts=empty_lines) == 0


@pytest.mark.parametrize("own, passes, window", [((), 0, None), ((3, 29), 2, None), ((0,), 0, 12)])
def test_counts_give_the_clusters_of_the_text_they_are_of(own, passes, window):
    pytest.importorskip("scipy")
    words = tuple(f"w{number}" for number in range(30))
    tokens, ends = random_text(), np.array([0, 7, 7, 90, 91, 250, 400])
    text = Text(tokens, ends, np.array([0, 6]), Vocabulary(words))
    counts, options = LagCounts.from_text(text, 2), dict(own_block=own, exchange_passes=passes, window=window)
    found = clusters_from_counts(counts, 6, **options)
    expected = brown_clusters(tokens, 30, 6, line_starts=ends, **options)
    assert found.paths == expected.paths and found.mutual_information == pytest.approx(expected.mutual_information)
    with pytest.raises(ValueError, match="num_clusters: expected at most one block a word, got 31"):
        clusters_from_counts(counts, 31)
    with pytest.raises(ValueError, match="own_block: expected a word id in 0..29, got 30"):
        clusters_from_counts(counts, 6, own_block=[30])


def test_words_that_never_occur_join_the_rarest():
    tokens = np.array([0, 1, 0, 1, 0, 2, 0, 1, 0, 1])
    clusters = brown_clusters(tokens, 6, 2)
    assert len(set(clusters.block_of_word[3:])) == 1
    assert clusters.block_of_word[3] == clusters.block_of_word[2]
    assert clusters.counts.tolist() == [5, 4, 1, 0, 0, 0]
    assert brown_clusters(tokens, 6, 6).num_blocks == 6
    assert brown_clusters(tokens, 6, 4, exchange_passes=2).num_blocks == 4


def test_exchange_never_loses_information():
    tokens = random_text(60, 3000)
    information = [brown_clusters(tokens, 60, 6, exchange_passes=n).mutual_information for n in range(5)]
    assert all(b >= a for a, b in zip(information[:-1], information[1:], strict=True))
    assert information[-1] > information[0]
    # The same, move by move: no single move is left that gains more than rounding.
    clusters = brown_clusters(tokens, 60, 6, exchange_passes=50)
    for word in range(60):
        for block in range(6):
            moved = clusters.block_of_word.copy()
            moved[word] = block
            assert average_mutual_information(tokens, moved) < clusters.mutual_information + 1e-9


def test_uniform_clusters_are_even_and_random():
    clusters = uniform_clusters(np.arange(103), 8, seed=1)
    assert sorted(clusters.sizes) == [12] + [13] * 7
    assert clusters.counts.tolist() == list(range(103))
    assert uniform_clusters(103, 8, seed=1).paths == clusters.paths != uniform_clusters(103, 8, seed=2).paths
    assert {len(path) for path in clusters.paths} == {3}
    assert uniform_clusters(5, 1, seed=0).paths == ("0",) * 5


def test_repr_and_sizes():
    clusters = Clusters(("0", "10", "11", "10"), [5, 2, 1, 1], mutual_information=0.25)
    assert repr(clusters) == "Clusters(4 words in 3 blocks of 1 to 2, mutual information 0.2500 bits)"
    assert clusters.sizes.tolist() == [1, 2, 1] and len(clusters) == 4
    assert clusters.block_of_word.tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint64"])
def test_any_whole_numbers_will_do(kind):
    tokens = random_text()
    clusters = brown_clusters(tokens, 30, 5)
    assert brown_clusters(tokens.astype(kind), 30, 5).paths == clusters.paths
    blocks = clusters.block_of_word.astype(kind)
    assert average_mutual_information(tokens.astype(kind), blocks) == clusters.mutual_information


def test_progress_bar(capsys):
    brown_clusters(random_text(), 30, 4, exchange_passes=1, progress=True)
    assert "60/60" in capsys.readouterr().err
    brown_clusters(random_text(), 30, 4)
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "error, message, arguments",
    [
        (ValueError, "tokens: expected at least one token", {"tokens": np.array([], dtype=int)}),
        (ValueError, r"tokens: expected word ids in 0..4, got 7 at position 2", {"tokens": np.array([0, 1, 7])}),
        (ValueError, r"tokens: expected word ids in 0..4, got -1 at position 0", {"tokens": np.array([-1, 1])}),
        (TypeError, "tokens: expected a 1-dimensional array of whole numbers", {"tokens": np.array([0.5])}),
        (TypeError, r"tokens: .* shape \(1, 2\)", {"tokens": np.array([[0, 1]])}),
        (ValueError, "got 6 blocks for 5 words; ask for fewer", {"num_clusters": 6}),
        (ValueError, "num_clusters must be at least 1, got 0", {"num_clusters": 0}),
        (TypeError, "num_clusters: expected a whole number, got 2.5", {"num_clusters": 2.5}),
        (ValueError, "window: expected at least num_clusters = 2, got 1", {"window": 1}),
        (ValueError, "exchange_passes: expected 0 or more, got -1", {"exchange_passes": -1}),
        (ValueError, "own_block: expected a word id in 0..4, got 5", {"own_block": [5]}),
        (ValueError, "eos_id: expected a word id in 0..4, got -1", {"eos_id": -1}),
        (ValueError, "num_clusters: 2 words have a block of their own .* at least 3", {"own_block": [0], "eos_id": 1}),
        (ValueError, "line_starts: expected rising positions from 0 to N = 3, .* from 0 to 2", {"line_starts": [0, 2]}),
        (ValueError, "line_starts: expected rising positions", {"line_starts": [0, 2, 1, 3]}),
        (ValueError, "line_starts: expected rising positions", {"line_starts": []}),
    ],
)
def test_bad_arguments_are_named(error, message, arguments):
    with pytest.raises(error, match=message):
        brown_clusters(**{"tokens": np.array([0, 1, 2]), "num_words": 5, "num_clusters": 2, **arguments})


def test_bad_blocks_are_named():
    with pytest.raises(ValueError, match="num_blocks: expected 1 to 4"):
        uniform_clusters(4, 5)
    with pytest.raises(ValueError, match="digits 0 and 1, got '2'"):
        Clusters(("0", "2"), [1, 1])
    with pytest.raises(ValueError, match=r"counts: expected shape \(2,\)"):
        Clusters(("0", "1"), [1])
    with pytest.raises(ValueError, match="paths: expected a bit string for each word"):
        Clusters((), [])
    with pytest.raises(TypeError, match="block_of_word: expected a 1-dimensional array of whole numbers"):
        average_mutual_information(np.array([0]), np.array([0.0]))
    with pytest.raises(ValueError, match="block_of_word: expected block numbers from 0, got -1"):
        average_mutual_information(np.array([0]), np.array([-1]))


# ---------------------------------------------------------------- real text


def read_words(path, eos):
    index, ids = {}, []
    with open(path, encoding="utf-8") as file:
        for line in file:
            ids += [index.setdefault(word, len(index)) for word in line.split() + ["<eos>"] * eos]
    return np.array(ids), Vocabulary(tuple(index))


@pytest.mark.slow
@pytest.mark.parametrize(
    "corpus, text, least", [("ptb", "ptb.train.txt", 1.330), ("wikitext2", "wiki.train.tokens", 1.59)]
)
def test_information_and_memory_on_real_text(data_folder, corpus, text, least):
    tokens, vocabulary = read_words(data_folder / corpus / text, eos=corpus == "wikitext2")
    tracemalloc.start()
    clusters = brown_clusters(tokens, len(vocabulary), 128)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert clusters.num_blocks == 128
    assert clusters.mutual_information >= least
    assert peak < 200e6


@pytest.mark.slow
def test_published_clusters_of_ptb(data_folder):
    path = data_folder / "brown_published" / "ptb_c128.paths"
    tokens, vocabulary = read_words(data_folder / "ptb" / "ptb.train.txt", eos=False)
    clusters = read_paths(path, vocabulary)
    assert clusters.num_blocks == 128 and clusters.num_ignored == 0
    assert clusters.counts.tolist() == np.bincount(tokens).tolist()
    assert average_mutual_information(tokens, clusters.block_of_word) == pytest.approx(1.33457, abs=5e-6)
    with_eos = Vocabulary((*vocabulary.words, "<eos>"))
    with pytest.raises(ValueError, match="1 of the 10000 words of the vocabulary are not in the file: '<eos>'"):
        read_paths(path, with_eos)
    assert read_paths(path, with_eos, missing="own").num_blocks == 129
