"""The keyboard and the chat of people with words of their own."""

import pytest

from pplseq.sources import PersonalStream, PersonalStreams

pytestmark = pytest.mark.slow  # no part of the library

GENERAL = [*["the cat sees a dog", "a dog likes the cat here", "the bird finds my fish"] * 20, "a rare word"]
MINE = ["the zebra likes my cat", "my zebra sees the fish"] * 6


@pytest.fixture
def general(tmp_path):
    path = tmp_path / "general.txt"
    path.write_text("\n".join(GENERAL))
    return f"ngram:{path}"


def test_a_keyboard_saves_keys_and_more_when_it_knows_its_user(general):
    from keyboard import type_lines

    with PersonalStream.open(general, by_line=True) as stream:
        typed = type_lines(stream, MINE)
    first, last = (sum(one.saved for one in part) / 3 for part in (typed[:3], typed[-3:]))
    assert 0 < first < last < 1 and typed[-1].keys < 10  # of 23 letters, a word that nobody knew before among them


def test_a_chat_keeps_everybody_s_words(general, tmp_path):
    from chat import answers

    lines = [f"{name}: {MINE[0]}" for _ in range(4) for name in ("ann", "bob", "eve")] + ["no name", "ann:", " : nobody"]
    with PersonalStreams(general, tmp_path / "users", most_open=2, by_line=True) as streams:
        found = list(answers(streams, lines))
        assert [name for name, *_ in found] == ["ann", "bob", "eve"] * 4 and len(streams._open) == 2
        assert found[-1][1] > found[0][1] and found[0][1] == found[1][1] and found[-1][2][0] == "the"
