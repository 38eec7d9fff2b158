"""What is written to: files are replaced whole, links followed, devices and pipes written through, full disks named."""

import errno
import io
import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from pplseq.cli import main
from pplseq.data.tagged import TaggedSentence, write_tagged
from pplseq.files import check_writable, json_line, new_file, printable, write_text
from pplseq.report.canvas import new_figure, save_figure
from pplseq.report.markup import escape, page

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="devices of Linux")


def test_a_device_stays_one():
    before = os.stat("/dev/null")
    write_text("/dev/null", "text")
    save_figure(new_figure(1, 1), "/dev/null")
    check_writable(Path("/dev/null"))
    after = os.stat("/dev/null")
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/counts"])
def test_counts_say_that_a_device_is_no_folder(out, tmp_path):
    (tmp_path / "text").write_text("the cat\n")
    result = CliRunner().invoke(main, ["count", str(tmp_path / "text"), "--max-lag", "1", "--out", out])
    assert result.exit_code == 2 and "/dev/null: expected a folder, got a file or a device" in result.stderr


def test_a_link_is_followed_and_permissions_stay(tmp_path):
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "page.html"
    target.write_text("before")
    target.chmod(0o640)
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "broken").symlink_to(tmp_path / "there" / "new")
    write_text(tmp_path / "link", "after")
    write_text(tmp_path / "broken", "made")
    assert (tmp_path / "link").is_symlink() and target.read_text() == "after" and target.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "broken").is_symlink() and (tmp_path / "there" / "new").read_text() == "made"
    assert sorted(os.listdir(tmp_path / "there")) == ["new", "page.html"]


def test_a_pipe_is_written_through(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join()
    assert read == ["through"] and pipe.is_fifo()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_text("/dev/full", "text")
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"), new_file(path) as new:
        new.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["page.html"]
    with pytest.raises(FileNotFoundError, match="absent"), new_file(path) as new:
        new.with_name("absent").read_text()
    with pytest.raises(IsADirectoryError, match="got a folder"):
        write_text(tmp_path, "text")
    with pytest.raises(IsADirectoryError, match="got a folder"):
        check_writable(tmp_path)


STEERING = "\x1b]0;title\x07 \x9b31m \u202egnp.exe\u202c \u2066 \x7f \r \ud800"
SPELT = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f469\u200d\U0001f4bb a\xa0b Silben\xadtrennung"


def test_a_terminal_is_not_steered():
    shown = printable(STEERING)
    assert shown.encode() and not any(char in shown for char in "\x1b\x07\x9b\u202e\u202c\u2066\x7f\r\ud800")
    assert printable(f"{SPELT}\n\t") == f"{SPELT}\n\t"
    line = json_line([STEERING, SPELT])
    assert not any(char in line for char in "\x1b\x07\x9b\u202e\u202c\u2066\x7f\r\ud800") and SPELT in line
    assert json.loads(line) == [STEERING, SPELT]


def test_pages_keep_what_words_are_spelt_with_and_fetch_nothing():
    assert escape(SPELT) == SPELT and escape("<\x1b\u202e>") == "&lt;\ufffd\ufffd&gt;"
    made = page("title", "", [("heading", escape("<script>"))], "foot")
    assert "Content-Security-Policy\" content=\"default-src 'none'" in made and "http:" not in made and "<script" not in made


def test_tagged_text_steers_no_terminal(monkeypatch):
    """What goes on to another program has the words as they are."""
    sentences = [TaggedSentence(("the\x1b[31m", "\u202ecat"), ("D", "N"))]
    for terminal, expected in ((True, b"the\\x1b[31m_D \\u202ecat_N\n"), (False, "the\x1b[31m_D \u202ecat_N\n".encode())):
        stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
        stdout.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr("sys.stdout", stdout)
        write_tagged("-", sentences, "word_tag")
        assert stdout.buffer.getvalue() == expected
