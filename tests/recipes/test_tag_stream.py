"""Standard input tagged as it comes: each line before the next one is there, and as a file is tagged."""

import io
import json

import pytest
from click.testing import CliRunner
from support.slow_streams import slowly
from support.tagged_toy import tagged_sentences

from pplseq.cli import main
from pplseq.data.sources import available_lines
from pplseq.recipes.taggers.settings import TagQuestions
from pplseq.recipes.taggers.stream import holds_words, tag_stream
from pplseq.recipes.taggers.systems import train_tagger

LINES = ["the dog barks", "", " a new  dog ", "the\x00dog", "The station .", "no end"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream") / "model"
    return train_tagger("hmm", tagged_sentences(40), folder=folder)[0], folder


def test_every_line_is_answered_before_the_next_is_read(saved):
    events = []
    stream = slowly([b"the dog", b" barks\n", b"a dog .\nThe ", b"old house\n", b"no end"], events)
    assert holds_words(stream, saved[0])
    tag_stream(stream, saved[0], TagQuestions(), events.append, events.append)
    assert events == [
        b"the dog", b" barks\n", "the_DET dog_NOUN barks_VERB\n", b"a dog .\nThe ", "a_DET dog_NOUN ._PUNCT\n", b"old house\n",
        "The_DET old_ADJ house_NOUN\n", b"no end", events[-1],
    ]  # fmt: skip
    assert events[-1].startswith("no_")
    assert [list(available_lines(slowly(pieces))) for pieces in ([], [b"\n\n"])] == [[], [[b"", b""]]]


OPTIONS = [[], ["--to", "conllu"], ["--to", "columns"], ["--probabilities"], ["--json"], ["--num-samples", "2"]]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_output_is_that_of_a_file(saved, options, tmp_path):
    raw = "\n".join(LINES).encode()
    (tmp_path / "text").write_bytes(raw)
    command = ["tag", "run", str(saved[1]), *options]
    whole = CliRunner().invoke(main, [*command[:3], str(tmp_path / "text"), "--format", "words", *options])
    for pieces in ([raw], [raw[i : i + 7] for i in range(0, len(raw), 7)]):
        found = CliRunner().invoke(main, command, input=slowly(pieces))
        assert found.exit_code == whole.exit_code == 1 and "line 4" in found.stderr  # the NUL byte
        if "--json" in options or "--num-samples" in options:
            told, wanted = ([json.loads(line) for line in text.splitlines()] for text in (found.stdout, whole.stdout))
            assert told == wanted
        else:
            assert found.stdout.split() == whole.stdout.split()


def test_what_is_no_stream_of_words_is_read_whole(saved):
    for first in (b"# text = a\n", b"1\ta\t_\n", b"1-2\ta\t_\n", b"", b"\n \n"):
        assert not holds_words(slowly([first] if first else []), saved[0])
    assert holds_words(slowly([b"\n1 a\n"]), saved[0]) and not holds_words(io.BytesIO(b"a"), saved[0])
    conllu = b"1\tthe\t_\t_\t_\t_\t0\t_\t_\t_\n2\tdog\t_\t_\t_\t_\t0\t_\t_\t_\n\n"
    command = ["tag", "run", str(saved[1]), "--format", "conllu"]
    found = CliRunner().invoke(main, command, input=slowly([conllu[:20], conllu[20:]]))
    assert found.exit_code == 0 and "2\tdog\t_\tNOUN" in found.stdout
    refused = CliRunner().invoke(main, ["tag", "run", str(saved[1]), "--json", "--to", "conllu"], input="a\n")
    assert refused.exit_code == 2 and "--to chooses a format of tagged files" in refused.stderr
