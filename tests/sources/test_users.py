"""Streams of many users of which few are in memory: the numbers of streams that are never closed."""

import random

import pytest

from pplseq.sources import PersonalStream, PersonalStreams

GENERAL = [*["the cat sees a dog", "a dog likes the cat here", "the bird finds my fish"] * 20, "a rare word"]
SAID = ["my cat sees my fish", "the zebra likes my cat", "my fish", "a dog here"]
NAMES = ["ann", "Ann", "bob/../ann", "日本", "a" * 300, "."]


@pytest.fixture
def general(tmp_path):
    path = tmp_path / "general.txt"
    path.write_text("\n".join(GENERAL))
    return f"ngram:{path}"


def test_users_who_come_and_go_are_never_noticed(general, tmp_path):
    random.seed(0)
    lines = [(random.choice(NAMES), random.choice(SAID)) for _ in range(60)]
    alone = {name: PersonalStream.open(general, min_count=2) for name in NAMES}
    with PersonalStreams(general, tmp_path / "users", most_open=2, min_count=2) as streams:
        for name, line in lines[:40]:
            assert streams[name].read(line).log_prob == alone[name].read(line).log_prob
            assert streams[name].suggest("my ") == alone[name].suggest("my ")
        assert len(streams._open) == 2 and all(name in streams for name, _ in lines[:40])
    with PersonalStreams(general, tmp_path / "users", most_open=3, min_count=2) as streams:
        for name, line in lines[40:]:
            assert streams[name].read(line).log_prob == alone[name].read(line).log_prob
    folders = [path.name for path in (tmp_path / "users").iterdir()]
    assert len({name.lower() for name in folders}) == len(folders) == len({name for name, _ in lines})


def test_models_are_in_memory_once_and_a_stream_that_went_refuses(general, tmp_path):
    with PersonalStreams(general, tmp_path / "users", most_open=1) as streams:
        ann = streams["ann"]
        ann.read("my cat")
        bob = streams["bob"]
        assert ann.sources[0].source.model is bob.sources[0].source.model
        assert ann.sources[1].source is not bob.sources[1].source
        with pytest.raises(ValueError, match="the stream was closed; open it again"):
            ann.read("my cat")
        assert streams["ann"].num_lines == 1 and "eve" not in streams
        streams.close("ann")
        assert streams["ann"].num_lines == 1


def test_what_is_refused(general, tmp_path):
    with pytest.raises(TypeError, match="sede: no option or setting of a stream"):
        PersonalStreams(general, tmp_path / "users", sede=3)
    with pytest.raises(ValueError, match="most_open"):
        PersonalStreams(general, tmp_path / "users", most_open=0)
    with PersonalStreams(general, tmp_path / "users") as streams:
        for name in ("", 3):
            with pytest.raises(TypeError, match="user must be a name"):
                streams[name]
        streams["ann"].read("my")
    with pytest.raises(ValueError, match="it was begun with min_count = 2, not 3"):
        PersonalStreams(general, tmp_path / "users", min_count=3)["ann"]
