"""Lines of a stream, the output and the state: what has to be right for a stream to go on exactly where it stopped."""

import io
import json
import os
import signal
import sys
import threading
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from pplseq.data.vocabulary import Vocabulary
from pplseq.files import json_line
from pplseq.folder import FolderError, SaveError
from pplseq.runs.signals import Stopped, StopSignals
from pplseq.sources.lines import LineReader, LineWriter, Place, max_line_bytes
from pplseq.sources.pages import Shown
from pplseq.sources.stream_state import has_state, load_state, save_state
from pplseq.sources.words import Encoder, rounded

RECORD = {"options": {}, "settings": {}, "streams": {}, "sources": [], "x": 0.1, "ä": [1]}  # what a state must say, and more


def read_all(reader, count=None):
    lines = []
    with StopSignals() as signals:
        while count is None or len(lines) < count:
            line = reader.read_line(signals)
            if line is None:
                break
            lines.append(line)
    return lines


# ---- reading

TEXTS = [
    b"",
    b"a\n",
    b"a",
    b"\n",
    b"a\n\nb \xff\r\nlast",
    b"x" * 200_000 + b"\ny\n" * 30_000,
    b"\xef\xbb\xbfa b\n\xef\xbb\xbfc\n",
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_lines_are_those_of_python(text, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(text)
    reader = LineReader(str(path))
    expected = [line.removesuffix(b"\n") for line in io.BytesIO(text.removeprefix(b"\xef\xbb\xbf"))]
    assert read_all(reader) == expected
    assert reader.place == Place(len(expected), len(text), zlib.crc32(text))
    reader.close()


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_a_reader_goes_on_where_another_stopped(stop, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo \n\nfour")
    first = LineReader(str(path))
    lines = read_all(first, stop)
    first.close()
    second = LineReader(str(path), first.place)
    lines += read_all(second)
    assert lines == [b"one", b"two ", b"", b"four"] and second.place.num_lines == 4
    second.close()


def test_a_file_that_has_changed(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo")
    reader = LineReader(str(path))
    read_all(reader)
    reader.close()
    path.write_bytes(b"one\ntwo\nthree\n")
    with pytest.raises(ValueError, match="line 2 had no end when it was read"):
        LineReader(str(path), reader.place)
    for changed in (b"one\ntwx\n", b"one"):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="its first 7 bytes are not those"):
            LineReader(str(path), reader.place)
    path.write_bytes(b"one\ntwo")
    again = LineReader(str(path), reader.place)
    assert read_all(again) == []
    again.close()


def test_a_line_too_long_is_not_kept(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a\n" + b"x" * (max_line_bytes() + 5) + b"\nb\n")
    reader = LineReader(str(path))
    assert read_all(reader) == [b"a", max_line_bytes() + 6, b"b"]
    assert reader.place.num_bytes == path.stat().st_size
    reader.close()


def test_what_is_no_stream(tmp_path):
    with pytest.raises(ValueError, match="got a folder"):
        LineReader(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no such file"):
        LineReader(str(tmp_path / "text"))
    (tmp_path / "text.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="packed"):
        LineReader(str(tmp_path / "text.gz"))


def pipe(monkeypatch):
    """Standard input as a pipe; what writes into it."""
    read_end, write_end = os.pipe()
    file = os.fdopen(read_end, "rb")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
    return file, os.fdopen(write_end, "wb", buffering=0)


def test_standard_input_comes_line_by_line(monkeypatch):
    file, into = pipe(monkeypatch)
    reader = LineReader("-", Place(7, 100, 5))
    with file, into, StopSignals() as signals:
        into.write(b"one\ntw")
        assert reader.read_line(signals) == b"one"  # though no more has come
        into.write(b"o\nthree")
        assert reader.read_line(signals) == b"two"
        into.close()
        assert reader.read_line(signals) == b"three" and reader.read_line(signals) is None
        assert reader.place.num_lines == 10
        reader.close()
        assert not file.closed


def test_a_signal_ends_the_wait_for_a_line(monkeypatch):
    file, into = pipe(monkeypatch)
    with file, into, StopSignals() as signals:
        into.write(b"one\n")
        reader = LineReader("-")
        assert reader.read_line(signals) == b"one"
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        began = time.monotonic()
        with pytest.raises(Stopped):
            reader.read_line(signals)
        timer.join()
        assert time.monotonic() - began < 5 and signals.received == signal.SIGTERM
        assert reader.place.num_lines == 1


# ---- writing


def test_output_is_cut_to_what_was_saved(tmp_path):
    path = tmp_path / "new" / "out"
    writer = LineWriter(path)
    writer.write("ä")
    saved = writer.num_bytes
    assert saved == 3 and path.read_bytes() == "ä\n".encode()  # flushed
    writer.write("lost")
    writer.close()
    writer = LineWriter(path, saved)
    writer.write("b")
    writer.sync()
    writer.close()
    assert path.read_text(encoding="utf-8") == "ä\nb\n"
    with pytest.raises(ValueError, match="not empty"):
        LineWriter(path)
    with pytest.raises(ValueError, match="fewer than the 50"):
        LineWriter(path, 50)
    assert LineWriter(None).num_bytes is None


# ---- the state


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    save_state(folder, RECORD, lambda new: (new / "numbers").write_bytes(b"0123456789"))
    return folder


def test_state_comes_back(state, tmp_path):
    assert has_state(state) and not has_state(tmp_path / "other")
    record, inner = load_state(state)
    assert record == RECORD and (inner / "numbers").read_bytes() == b"0123456789"


def test_a_save_that_fails_leaves_the_old_state(state):
    def fail(new):
        raise OSError("disk full")

    with pytest.raises(SaveError, match="the previous one there is whole"):
        save_state(state, {"x": 2}, fail)
    assert load_state(state)[0]["x"] == 0.1


def test_cut_off_between_the_renames_of_a_save(state):
    os.rename(state / "saved", state / ".saved.old")
    assert load_state(state)[0]["x"] == 0.1


@pytest.mark.parametrize("name", ["numbers", "stream.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_damaged_states(state, name, damage):
    path = state / "saved" / name
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            data[:-4]
            if damage == "cut"
            else data.replace(b"1", b"2", 1)
            if name == "numbers"
            else data.replace(b"0.1", b"0.2")
        )
    with pytest.raises((FolderError, FileNotFoundError), match=name):
        load_state(state)


def test_states_of_others(state, tmp_path):
    with pytest.raises(FileNotFoundError, match="no state of `pplseq personalize`"):
        load_state(tmp_path / "nowhere")
    path = state / "saved" / "stream.json"
    header = json.loads(path.read_text())
    for change, message in (({"format": "x"}, "was not written by pplseq"), ({"version": 9}, "version 9")):
        path.write_text(json.dumps(header | change))
        with pytest.raises(FolderError, match=message):
            load_state(state)


# ---- words

VOCABULARY = Vocabulary(("<eos>", "<unk>", "the", "cat"))


@pytest.mark.parametrize(
    "raw,options,words,ids",
    [
        (b"the dog", {}, ["the", "dog", "<eos>"], [2, 1, 0]),
        (b"the dog <eos>", {}, ["the", "dog", "<eos>"], [2, 1, 0]),
        (b"The dog", {"eos": False, "lower": True}, ["the", "dog"], [2, 1]),
        (b"the dog cat", {"unknown": "skip", "eos": False}, ["the", "cat"], [2, 3]),
        (b'{"words": ["cat"], "id": 7}', {"eos": False}, ["cat"], [3]),
        (b"  ", {}, [], []),
    ],
)
def test_encoding(raw, options, words, ids):
    line = Encoder(VOCABULARY, **options).encode(5, raw)
    assert (line.words, line.ids, line.answer["line"]) == (words, ids, 5)
    assert line.known == [word in VOCABULARY for word in words] and "error" not in line.answer
    assert line.answer.get("id") == (7 if b"id" in raw else None)


def test_words_left_out_are_null_in_the_answer():
    line = Encoder(VOCABULARY, unknown="skip").encode(1, b"the dog cat dog")
    assert line.answer["words"] == ["the", "dog", "cat", "dog", "<eos>"] and line.answer["unknown"] == [1, 3]
    assert line.aligned([1.0, 2.0, 3.0]) == [1.0, None, 2.0, None, 3.0]


@pytest.mark.parametrize(
    "raw,options,message",
    [
        (b"a \xff", {}, "not UTF-8"),
        (b"{x", {}, "JSON object"),
        (b"the\0dog", {}, "a NUL byte, so this is not a UTF-8 text file"),
        (b'{"words": ["the", "\\u0000"]}', {}, "a NUL byte"),
        (b'{"words": ["a", null]}', {}, "no gaps"),
        (b"the dog", {"unknown": "error"}, "'dog' is not among the 4"),
        (max_line_bytes() + 1, {}, "break it into several"),
    ],
)
def test_lines_that_cannot_be_read(raw, options, message):
    line = Encoder(VOCABULARY, **options).encode(3, raw)
    assert message in line.answer["error"] and line.answer["line"] == 3 and line.ids == []


def test_words_without_an_unknown_word():
    bare = Vocabulary(("the", "cat"))
    assert "'dog' is not among the 2" in Encoder(bare).encode(1, b"the dog").answer["error"]
    assert Encoder(bare).encode(1, b"the cat").words == ["the", "cat"]
    with pytest.raises(ValueError, match="--eos"):
        Encoder(bare, eos=True)
    with pytest.raises(ValueError, match="--unknown unk"):
        Encoder(bare, unknown="unk")


def test_json_has_no_infinities():
    assert json_line({"x": rounded([1.23456789, float("inf"), float("-inf"), float("nan")])}) == (
        '{"x": [1.234568, null, null, null]}'
    )


def test_shown_words_are_the_last_lines_and_totals_are_of_all():
    shown, encoder = Shown(["m", "s"], 4), Encoder(VOCABULARY, eos=False)
    for number in range(1, 6):
        shown.add(encoder.encode(number, b"the cat"), [[-1.0, -2.0], [-3.0, -3.0]], [0.5, float(number)])
    shown.add(encoder.encode(6, b""), [[], []], [])
    view = shown.view("m", "s")
    assert view.words == ["the", "cat"] * 2 and view.line_numbers == [4, 5] and view.line_starts == [0, 2]
    assert view.log_odds == [0.5, 4.0, 0.5, 5.0] and view.totals.num_tokens == 10
    assert view.totals.mean_ratio("m", "s") == pytest.approx(1.5)
    assert list(shown.view("s").log_probs) == ["s"] and list(shown.view("s").totals.nats) == ["s"]
    shown.add(encoder.encode(7, b"the cat the cat the cat"), [[0.0] * 6] * 2, [0.0] * 6)
    assert len(shown.view("m").words) == 6  # a whole line, even where it is longer
    with pytest.raises(ValueError, match="empty"):
        Shown(["m"], 4).view("m")


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="a device of Unix")
def test_an_output_that_is_no_file_is_written_to():
    writer = LineWriter(Path("/dev/null"))
    writer.write("a line")
    writer.sync()
    writer.close()
    assert writer.num_bytes is None and not Path("/dev/null").is_file()


@pytest.mark.parametrize("asked", [None, "cp1252"])
def test_words_of_any_script_go_through_a_pipe_of_another_code_page(asked, general, tmp_path, monkeypatch):
    """As on Windows, where a pipe has the system's: UTF-8 goes in and out; an encoding that was asked for has escapes."""
    from pplseq.cli import main

    said = "the 漢字 “cat” \N{GRINNING FACE}"
    (tmp_path / "stream.txt").write_text(said + "\n", encoding="utf-8")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))
    monkeypatch.setenv("PYTHONIOENCODING", asked) if asked else monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    stream = str(tmp_path / "stream.txt")
    main(["personalize", general, "--unknown", "skip", "--stream", stream], standalone_mode=False)
    sys.stdout.flush()
    line = written.getvalue().decode(asked or "utf-8")
    if asked:
        assert "\\u6f22\\u5b57" in line and "“cat”" in line
    else:
        assert json.loads(line)["words"] == [*said.split(), "<eos>"]
