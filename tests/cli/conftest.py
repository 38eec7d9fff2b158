"""For the commands about streams: a general text, a person's text, and what comes of reading it whole."""

import pytest
from support.commands import pplseq

NOUNS, VERBS = "cat dog bird fish".split(), "sees likes finds".split()


@pytest.fixture(scope="session")
def general_lines():
    lines = [f"the {NOUNS[i % 4]} {VERBS[i * i % 3]} a {NOUNS[i // 3 % 4]}" + " here" * (i % 2) for i in range(120)]
    return [*lines, "my own word", "my word"]


@pytest.fixture(scope="session")
def personal_lines():
    return [f"my {NOUNS[i % 2]} {VERBS[i % 3]} my fish here" if i % 4 else "the zebra sees a dog" for i in range(30)]


@pytest.fixture(scope="session")
def general(general_lines, tmp_path_factory):
    """A source."""
    path = tmp_path_factory.mktemp("texts") / "general.txt"
    path.write_text("\n".join(general_lines) + "\n")
    return f"ngram:{path}"


@pytest.fixture(scope="session")
def personal(personal_lines, tmp_path_factory):
    """The path of a stream."""
    path = tmp_path_factory.mktemp("texts") / "personal.txt"
    path.write_text("\n".join(personal_lines) + "\n")
    return path


@pytest.fixture(scope="session")
def options():
    """Of the stream that `whole` is of."""
    return ("--order", 3, "--source", "cache")


@pytest.fixture(scope="session")
def whole(general, personal, options, tmp_path_factory):
    """(output, state folder) of a stream that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    out, state = folder / "out", folder / "state"
    pplseq("personalize", general, *options, "--stream", personal, "--out", out, "--state", state)
    return out.read_bytes(), state
