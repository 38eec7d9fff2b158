"""PersonalStream from Python: a stream that is taken up again goes on as if nothing had happened."""

import json
import math

import numpy as np
import pytest

from pplseq.data.vocabulary import Vocabulary
from pplseq.sources import PersonalStream
from pplseq.sources.opening import Opened

GENERAL = [*["the cat sees a dog", "a dog likes the cat here", "the bird finds my fish"] * 20, "a rare word"]
MINE = ["my cat sees my fish", "the zebra likes my cat", "my fish"] * 10


@pytest.fixture
def general(tmp_path):
    path = tmp_path / "general.txt"
    path.write_text("\n".join(GENERAL))
    return [f"ngram:{path}", "cache"]


def read(stream, lines):
    return [stream.read(line).answer(stream.names[1:]) for line in lines]


@pytest.mark.parametrize("stop", [1, 13, 29])
def test_goes_on_to_the_same_numbers(general, tmp_path, stop):
    with PersonalStream.open(general, order=3) as stream:
        whole = read(stream, MINE)
    assert not stream.resumed and "perturbation" in whole[0]
    with PersonalStream.open(general, state=tmp_path / "state", order=3) as stream:
        first = read(stream, MINE[:stop])
    with PersonalStream.open(general, state=tmp_path / "state") as stream:  # the state brings order=3
        assert stream.resumed and stream.num_lines == stop and stream.options.order == 3
        assert first + read(stream, MINE[stop:]) == whole


def test_what_is_saved_is_never_ahead_of_what_was_told(general, tmp_path):
    stream = PersonalStream.open(general, state=tmp_path / "state", save_every=2)
    told = read(stream, MINE[:5])
    stream.close()  # as if it had died: lines 1 to 4 are saved, line 5 comes again
    with PersonalStream.open(general, state=tmp_path / "state") as stream:
        assert stream.num_lines == 4 and read(stream, MINE[4:5]) == told[4:]


def test_read_and_follow_say_the_same(general, tmp_path):
    path, out = tmp_path / "mine.txt", tmp_path / "out.jsonl"
    path.write_text("\n".join(MINE))
    with PersonalStream.open(general) as stream:
        assert stream.follow(str(path), out) == 0
    with PersonalStream.open(general) as stream:
        assert [json.loads(line) for line in out.read_text().splitlines()] == read(stream, MINE)


def test_a_line_that_cannot_be_read_is_named(general):
    with PersonalStream.open(general, unknown="error") as stream:
        line = stream.read("the unicorn")
    assert "unicorn" in line.error and line.tokens == [] and math.isnan(line.log_prob)


def test_a_list_of_words_is_a_line(general):
    with PersonalStream.open(general) as one, PersonalStream.open(general) as other:
        for words in (["the", "cat"], ("a", "dog")):
            assert one.read(words).log_prob == other.read(" ".join(words)).log_prob
        before = one.num_lines
        for bad in (None, 5, ["the", None], {"the": 1}):
            with pytest.raises(TypeError, match="line must be text, or a list of words, got"):
                one.read(bad)
        assert one.num_lines == before


def test_other_choices_than_the_state(general, tmp_path):
    with PersonalStream.open(general, state=tmp_path / "state", seed=3) as stream:
        stream.read("the cat")
    with pytest.raises(ValueError, match="seed = 3, not 4"):
        PersonalStream.open(general, state=tmp_path / "state", seed=4)
    with pytest.raises(ValueError, match="lower = False, not True"):
        PersonalStream.open(general, state=tmp_path / "state", lower=True)
    with pytest.raises(TypeError, match="sede: no option"):
        PersonalStream.open(general, sede=4)
    with pytest.raises(FileNotFoundError, match="no state"):
        PersonalStream.open(general, state=tmp_path / "other", learn=False)


def test_a_failure_leaves_the_state_before(general, tmp_path):
    with pytest.raises(RuntimeError, match="mine"):
        with PersonalStream.open(general, state=tmp_path / "state") as stream:
            stream.read("the cat")
            stream.save()
            stream.read("a dog")
            raise RuntimeError("mine")
    with PersonalStream.open(general, state=tmp_path / "state") as stream:
        assert stream.num_lines == 1


def test_a_single_source_has_counts_and_cache_beside_it(general, tmp_path):
    single = general[0]
    with PersonalStream.open([single, "online-ngram", "cache"]) as stream:
        expected = read(stream, MINE)
    said = []
    for sources in (single, [single]):
        with PersonalStream.open(sources, say=said.append) as stream:
            assert read(stream, MINE) == expected
    assert any("--alone" in line for line in said)
    with PersonalStream.open(single, state=tmp_path / "three") as stream:
        first = read(stream, MINE[:7])
    with PersonalStream.open(single, state=tmp_path / "three") as stream:
        assert first + read(stream, MINE[7:]) == expected


def test_a_source_alone(general, tmp_path):
    single = general[0]
    with PersonalStream.open(single, alone=True) as stream:
        assert len(stream.sources) == 1
        whole = read(stream, MINE)
    with PersonalStream.open(single, state=tmp_path / "state", alone=True) as stream:
        first = read(stream, MINE[:7])
    with PersonalStream.open(single, state=tmp_path / "state") as stream:  # a state goes on as it was begun
        assert first + read(stream, MINE[7:]) == whole
    with PersonalStream.open(single.replace("ngram:", "words:")) as stream:  # a streaming HMM is asked for
        assert not stream.sources
    with pytest.raises(ValueError, match="alone: expected a single source, got 2"):
        PersonalStream.open(general, alone=True)


def test_a_state_from_before_there_was_a_guard_has_none(general, tmp_path):
    state = tmp_path / "state"
    stream = PersonalStream.open(general, state=state, guard=0)
    read(stream, MINE[:3])
    del stream.settings["guard"]
    stream.save()
    stream.close()
    with PersonalStream.open(general, state=state, guard=0.0) as stream:
        assert stream.resumed and stream.settings["guard"] == 0
    with pytest.raises(ValueError, match="begun with guard = 0.0, not 0.5"):
        PersonalStream.open(general, state=state, guard=0.5)


def test_a_guard_needs_a_source(general):
    words = general[0].replace("ngram:", "words:")
    with PersonalStream.open(words) as stream:
        assert stream.settings["guard"] == 0
    with pytest.raises(ValueError, match="guard: it is the least weight of the first source"):
        PersonalStream.open(words, guard=0.5)


# ------------------------------------------------------------------------------------------------ suggestions
def by_scoring(stream, words, beginning):
    """p of every word that may come next, from scores of each on trial, and of new words by their share of the unknown one."""
    new, ids = stream.record.get("new_words", {}), stream.vocabulary
    found = {}
    for word in ids.words:
        back = stream.model.mark(learn=False)
        if stream.options.by_line:
            stream.model.new_line()
        for before in ids.encode(words).tolist():
            stream.model.step(before, learn=False)
        found[word] = math.exp(stream.model.learner.score_one(ids.index[word]))
        back()
    unknown = found.pop(ids.unknown)
    found |= {word: unknown * count / (sum(new.values()) + 1) for word, count in new.items()}
    return {word: prob for word, prob in found.items() if word.startswith(beginning) and word != ids.eos}


@pytest.mark.parametrize("by_line", [False, True])
@pytest.mark.parametrize("text", ["", "m", "my ", "my ze", "the zebra likes ", "unheard of"])
def test_suggestions_are_the_most_probable_words_that_begin_so(general, text, by_line):
    with PersonalStream.open(general, by_line=by_line, min_count=2) as stream:
        read(stream, MINE[:6])
        words = text.split()
        beginning = words.pop() if words and text[-1] != " " else ""
        wanted = by_scoring(stream, words, beginning)
        found = stream.suggest(text, 4)
        assert [one.prob for one in found] == pytest.approx(sorted(wanted.values(), reverse=True)[:4], rel=1e-9)
        assert all(one.prob == pytest.approx(wanted[one.word], rel=1e-9) for one in found)
        assert all(one.known == (one.word in stream.vocabulary) for one in found)
        again = PersonalStream.open(general, by_line=by_line, min_count=2)
        read(again, MINE[:6])
        assert read(stream, MINE[6:9]) == read(again, MINE[6:9])  # nothing was learned by asking


def test_who_asked_reads_on_to_the_same_digits(general):
    """Probabilities of all words are a source's in other digits than that of the one that came."""

    class Rough:
        """A source whose vector is in single precision."""

        def predict(self):
            return np.float32([0.1, 0.7, 0.2]).astype(np.float64)

        def log_prob_of(self, y):
            return math.log([0.1, 0.7, 0.2][y])

        def observe(self, y=None):
            pass

        reset = state_dict = load_state_dict = observe

    vocabulary = Vocabulary(("a", "b", "c"), unknown=None)
    one, other = (PersonalStream([Opened("rough", "rough", Rough(), vocabulary, "")]) for _ in range(2))
    for line in ("a b", "c", "b b"):
        one.suggest()
        assert one.read(line) == other.read(line)


@pytest.mark.parametrize(
    ("options", "text", "before", "beginning"),
    [
        ({}, "the 1\u00a0", "the", "1\u00a0"), ({}, "the\t", "the", ""), ({"units": "characters"}, "the ca", "t h e ␠ c a", ""),
        ({"units": "characters"}, "the ", "t h e ␠", ""),
    ],
)  # fmt: skip
def test_a_word_ends_where_the_units_of_the_vocabulary_do(tmp_path, options, text, before, beginning):
    path = tmp_path / "general.txt"
    path.write_text("\n".join(["the cat sees 1\u00a0000 birds", "the 1\u00a0000 cats"] * 20))
    with PersonalStream.open(f"ngram:{path}", **options) as stream:
        wanted = by_scoring(stream, before.split(), beginning)
        found = stream.suggest(text, 3)
        assert {one.word: one.prob for one in found} == pytest.approx({one.word: wanted[one.word] for one in found})
        assert [one.prob for one in found] == pytest.approx(sorted(wanted.values(), reverse=True)[:3])


def test_words_of_ones_own_are_offered_and_kept(general, tmp_path):
    with PersonalStream.open(general, state=tmp_path / "state", min_count=2) as stream:
        assert stream.suggest("zeb") == []
        stream.read("the zebra sees the zebu", learn=False)
        assert stream.suggest("zeb") == []
        read(stream, ["the zebra sees a zebu", "my zebra"])
    with PersonalStream.open(general, state=tmp_path / "state") as stream:
        zebra, zebu = stream.suggest("the zeb")
        assert (zebra.word, zebu.word) == ("zebra", "zebu") and not zebra.known and zebra.prob == pytest.approx(2 * zebu.prob)
        assert stream.suggest("the zeb", 1) == [zebra] and stream.suggest("Zeb") == []
    with pytest.raises(ValueError, match="the stream was closed; open it again"):
        stream.suggest("zeb")
    with pytest.raises(ValueError, match="the stream was closed; open it again"):
        stream.read("the")


def test_what_is_no_beginning_is_refused(general):
    with PersonalStream.open(general, unknown="error") as stream:
        with pytest.raises(TypeError, match="prefix must be text, got 3"):
            stream.suggest(3)
        with pytest.raises(ValueError, match="k must be"):
            stream.suggest("a", 0)
        with pytest.raises(ValueError, match="'unicorn' is not among"):
            stream.suggest("unicorn li")
