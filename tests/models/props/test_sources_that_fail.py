"""A source that raises leaves all sources and the learner as they were."""

import copy

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq.models import PROPSLearner
from pplseq.sources import CallableSource, NGramSource, OnlineNGram, PersonalStream, UnigramCache
from pplseq.sources.comparison import StreamPair
from pplseq.sources.opening import open_all
from pplseq.sources.personal_model import StreamError

STREAM = [1, 2, 3, 1, 2, 4, 1, 2, 3, 0] * 4


class Failing(UnigramCache):
    """A cache that fails once, before, within or after the work of a method."""

    name, when, method, left = "failing", "after", "observe", 10**9

    def fail(self, method, when):
        if method == self.method and when == self.when:
            self.left -= 1
            if self.left == 0:
                raise self.error

    def observe(self, y):
        self.fail("observe", "before")
        super().observe(y)
        self.fail("observe", "after")

    def reset(self):
        self.fail("reset", "before")
        super().reset()
        self.fail("reset", "after")


class Own:
    """A user's source without mark(), with a state that it changes in place."""

    num_words = 5

    def __init__(self):
        self.counts = [1] * 5

    def predict(self):
        return np.array(self.counts) / sum(self.counts)

    def observe(self, y):
        self.counts[y] += 1

    def reset(self):
        self.counts[0] += 1

    def state_dict(self):
        return {"counts": self.counts}

    def load_state_dict(self, state):
        self.counts = list(state["counts"])


def made(place=2, **failing):
    sources = [OnlineNGram(5, 3), Own()]
    sources.insert(place, Failing(5, decay=0.9))
    vars(sources[place]).update(failing)
    return PROPSLearner(sources, 5, num_perturbations=2, seed=0, averaging="recent", warm_up=5)


def state_of(learner):
    sources = [copy.deepcopy(source.state_dict()) for source in learner.sources]
    state = learner.state
    return repr((sources, state.filter, state.rho, state.rows, state.num_steps, state.fresh))


@grid({"learn": [True, False], "when": ["before", "after"], "place": [0, 1, 2]})
def test_nothing_has_changed(place, when, learn):
    learner, twin = (made(place, when=when, left=left, error=KeyError("gone")) for left in (12, 10**9))
    for t, y in enumerate(STREAM):
        step = "learn_one" if learn or t < 8 else "follow_one"
        if t == 11:
            before = state_of(learner)
            with pytest.raises(KeyError, match="gone"):
                getattr(learner, step)(y)
            assert state_of(learner) == before == state_of(twin)
        assert getattr(learner, step)(y).log_prob == getattr(twin, step)(y).log_prob
    np.testing.assert_array_equal(learner.predict_proba_one(), twin.predict_proba_one())


@pytest.mark.parametrize("place", [0, 2])
def test_a_boundary_is_everybodys_or_nobodys(place):
    learner, twin = (made(place, method="reset", left=left, error=OSError("gone")) for left in (1, 10**9))
    for each in (learner, twin):
        each.learn_many(STREAM[:9])
    before = state_of(learner)
    with pytest.raises(OSError, match="gone"):
        learner.new_sequence()
    assert state_of(learner) == before
    for each in (learner, twin):
        each.new_sequence()
    assert [i.log_prob for i in learner.learn_many(STREAM)] == [i.log_prob for i in twin.learn_many(STREAM)]


def test_what_cannot_be_put_back_is_named():
    class Forgetful(Own):
        state_dict = load_state_dict = None
        __getattribute__ = lambda self, name: (  # noqa: E731
            object.__getattribute__(self, name) if "state_dict" not in name else getattr(object(), name)
        )

    class Network(torch.nn.Module):
        num_words, predict, observe, reset = 5, Own.predict, Own.observe, Own.reset

        def __init__(self):
            super().__init__()
            self.counts = [1] * 5

    for other in (Forgetful(), Network()):
        learner = PROPSLearner([other, Failing(5)], 5)
        vars(learner.sources[1]).update(left=3, error=ValueError("gone"))
        learner.learn_many(STREAM[:2])
        with pytest.raises(RuntimeError, match=r"gone \(ValueError\); and source 0 \(\w+\) could not be put"):
            learner.learn_one(3)
        assert learner.num_steps == 2


def test_a_stream_that_failed_goes_on_from_its_state(tmp_path):
    (tmp_path / "text").write_text("the cat sees a dog\na dog sees the cat\n" * 9)
    lines, state = ["the cat sees a cat", "a dog", "the the dog", "sees a dog", "the cat sees"], tmp_path / "state"

    def begin(left=10**9):
        words = open_all([f"ngram:{tmp_path / 'text'}", "cache", "online-ngram"])
        cache = words[1].source
        failing = Failing(cache.num_words)
        vars(failing).update(left=left, error=ConnectionError())
        return PersonalStream([words[0], words[1]._replace(source=failing), words[2]], folder=state, save_every=2)

    with PersonalStream.open([f"ngram:{tmp_path / 'text'}", "cache", "online-ngram"]) as stream:
        expected = [stream.read(line).log_prob for line in lines]
    with begin(left=13) as stream:
        told = [stream.read(line).log_prob for line in lines[:2]]
        stream.save()
        with pytest.raises(StreamError, match="line 3, word [0-9].*ConnectionError"):
            for line in lines[2:]:
                stream.read(line)
        for further in (lambda: stream.read("a"), stream.save):
            with pytest.raises(StreamError, match="the stream ended within a line.*open it again"):
                further()
    with begin() as stream:
        assert stream.num_lines == 2
        assert told + [stream.read(line).log_prob for line in lines[2:]] == expected


def test_functions_and_ngrams_are_put_back():
    source = CallableSource(lambda prefix: np.full(5, 0.2), 5)
    source.observe(1)
    back = source.mark()
    source.reset()
    source.observe(2)
    back()
    assert source.prefix == [1]
    assert hasattr(NGramSource, "mark")


def test_many_tokens_are_taken_back():
    """Marks within marks, as of a line and of its words; what nobody marks is not kept."""
    for source in (UnigramCache(5, decay=0.5), OnlineNGram(5, 3)):
        for y in STREAM:
            source.observe(y)
        whole = repr(source.state_dict())
        outer = source.mark()
        for k, y in enumerate(STREAM[3:]):
            inner, before = source.mark(), repr(source.state_dict())
            source.observe(y)
            if k % 3 == 1:
                inner()
                assert repr(source.state_dict()) == before
            elif k % 3 == 2:
                source.reset()
        assert repr(source.state_dict()) != whole
        outer()
        assert repr(source.state_dict()) == whole
        outer()
        assert repr(source.state_dict()) == whole and source._trail._end[1] is None


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("by_line", [True, False])
def test_a_pair_of_models_stands_where_it_stood(tmp_path, learn, by_line):
    (tmp_path / "text").write_text("the cat sees a dog\na dog sees the cat\n" * 9)
    text, state = f"ngram:{tmp_path / 'text'}", tmp_path / "state"
    with PersonalStream.open([text, "cache", "online-ngram"], state=state, averaging="recent") as stream:
        for line in ["the cat sees a cat", "a dog sees"] * 3:
            stream.read(line)
    failing, twin = (StreamPair([str(state), text], by_line=by_line) for _ in range(2))
    lines = [b"the cat sees", b"a dog sees the cat", b"the dog"]
    source = failing.models[1].source.source  # of the second model, which comes after the first one has read the line

    def words(pair, number):
        found = pair.read(number, lines[number - 1], learn=learn)
        return found.log_probs, found.log_odds

    assert words(failing, 1) == words(twin, 1)
    observe = source.observe
    for left in (1, 4):
        calls = iter(range(left))
        source.observe = lambda y, calls=calls: observe(y) if next(calls, None) is not None else 1 / 0
        with pytest.raises(StreamError, match=f"line 2, word {left + 1}.*division by zero"):
            words(failing, 2)
        source.observe = observe
    assert words(failing, 2) == words(twin, 2) and words(failing, 3) == words(twin, 3)


def test_a_pair_with_a_model_that_cannot_be_put_back_says_so(tmp_path):
    (tmp_path / "text").write_text("the cat sees a dog\n" * 9)
    pair = StreamPair([f"ngram:{tmp_path / 'text'}", f"unigram:{tmp_path / 'text'}"])
    source = pair.models[0].source.source

    class Forgetful:
        name, num_words, predict, log_prob_of, reset = "own", source.num_words, source.predict, source.log_prob_of, source.reset

        def observe(self, y):
            raise ConnectionError("gone")

    pair.models[0].source.source = Forgetful()
    with pytest.raises(StreamError, match=r"gone; and 5-gram, text could not be put back to before the line"):
        pair.read(1, b"the cat")
