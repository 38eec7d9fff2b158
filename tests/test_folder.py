"""Folders are whole or absent, every damage is named, and readers and writers do not disturb each other."""

import errno
import json
import math
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.stored import rewrite

from pplseq.files import is_held, json_line, locked, new_file, write_text
from pplseq.folder import FolderError, FolderKind, SaveError, replace_folder, whole_folder

KIND = FolderKind("tests", 3, header="head.json", tensors="t.safetensors", arrays="a.npz", what="toy", again="make it again")
TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(9, dtype=torch.uint8)}
ARRAYS = {"c": np.arange(4), "d": np.eye(2)}
HEADER = {"step": 3, "best": float("inf"), "value": 0.1 + 0.2, "pair": (1, 2), "ä": {"1": None}}


def words(folder):
    (folder / "vocab.txt").write_text("the\ncat\n")
    (folder / "inner").mkdir()
    (folder / "inner" / "more.txt").write_text("more")


def write(folder, **changes):
    return KIND.write(folder, {**HEADER, **changes}, tensors=TENSORS, arrays=ARRAYS, more=words)


@pytest.fixture
def saved(tmp_path):
    return write(tmp_path / "toy")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_round_trip_is_exact(saved):
    header, tensors, arrays, more = KIND.read(saved, more=lambda folder, header: (folder.name, header["step"]))
    assert header == {**HEADER, "pair": [1, 2]} and more == ("toy", 3)
    assert tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert arrays.keys() == ARRAYS.keys() and all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    assert KIND.read_header(saved) == header and KIND.is_at(saved) and not KIND.is_at(saved.parent)
    assert names(saved) == ["a.npz", "head.json", "inner", "t.safetensors", "vocab.txt"] and names(saved.parent) == ["toy"]


def test_files_are_open_to_whom_the_user_says(tmp_path):
    before = os.umask(0o022)
    try:
        folder = write(tmp_path / "toy")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {0o644}


def test_tensors_that_share_memory(tmp_path):
    table = torch.arange(12.0).view(3, 4)
    tensors = {"table": table, "again": table, "rows": table[1:], "columns": table[:, :2], "turned": table.T}
    tensors |= {"empty": torch.zeros(0, 3), "none": torch.zeros(0), "scalar": torch.tensor(2.5), "low": table.bfloat16()}
    read = KIND.read(KIND.write(tmp_path / "toy", {}, tensors=tensors)).tensors
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in tensors.items())


def test_a_link_is_followed(saved, tmp_path):
    (tmp_path / "link").symlink_to(saved)
    write(tmp_path / "link", step=4)
    assert (tmp_path / "link").is_symlink() and KIND.read_header(saved)["step"] == 4
    os.rename(saved, tmp_path / ".toy.old")
    assert KIND.read_header(tmp_path / "link")["step"] == 4


# ---- damage
FILES = ["a.npz", "t.safetensors", "vocab.txt", "inner/more.txt", "head.json"]


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_is_read(saved, name):
    path = saved / name
    data = path.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 60)):
        for bit in (0, 5):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            with pytest.raises((FolderError, FileNotFoundError), match=name if name != "head.json" else "head.json|missing"):
                KIND.read(saved)
    path.write_bytes(data)
    KIND.read(saved)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_no_file_cut_short_is_read(saved, name, keep):
    data = (saved / name).read_bytes()[:keep]
    if data == (saved / name).read_bytes():
        keep = 2
    (saved / name).write_bytes((saved / name).read_bytes()[:keep])
    expected = "not readable as JSON" if name == "head.json" else f"{name}: cut short or changed: expected .* bytes, found"
    if name == "head.json" and keep == -1:  # the line's end
        KIND.read(saved)
        return
    with pytest.raises(FolderError, match=f"{expected}.*make it again"):
        KIND.read(saved)


@pytest.mark.parametrize("name", FILES)
def test_no_missing_file_goes_unnoticed(saved, name):
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match="no toy at .*no head.json" if name == "head.json" else f"{name}: missing"):
        KIND.read(saved)


def test_swapped_lines_are_noticed(saved):
    (saved / "vocab.txt").write_text("cat\nthe\n")
    with pytest.raises(FolderError, match="vocab.txt: damaged: its checksum is not the one in head.json; make it again"):
        KIND.read(saved)


def test_tensors_of_another_folder(saved):
    save_file({"a": torch.ones(2, 3), "b": TENSORS["b"]}, saved / "t.safetensors")
    with pytest.raises(FolderError, match="t.safetensors: damaged"):
        KIND.read(saved)


def test_a_changed_number_in_the_header(saved):
    text = (saved / "head.json").read_text()
    (saved / "head.json").write_text(text.replace('"step": 3', '"step": 4'))
    for read in (KIND.read, KIND.read_header):
        with pytest.raises(FolderError, match="head.json: damaged: its checksum is not that of its content; make it again"):
            read(saved)


@pytest.mark.parametrize("content", [[1, 2], {}, {"format": "other", "version": 3}, {"model_type": "gpt2"}])
def test_foreign_headers(saved, content):
    (saved / "head.json").write_text(json.dumps(content))
    with pytest.raises(FolderError, match='expected "format": "tests"; this folder was not written by pplseq, or holds no toy'):
        KIND.read(saved)


@pytest.mark.parametrize("version", [0, 2, 4, None, "3"])
def test_another_version(saved, version):
    rewrite(saved, "head.json", version=version)
    with pytest.raises(FolderError, match="reads version 3; use the pplseq that wrote it, or make it again"):
        KIND.read(saved)


def test_nothing_is_unpickled(saved):
    np.savez(saved / "a.npz", c=np.array([{"run": "me"}], dtype=object))
    rewrite(saved, "head.json")
    with pytest.raises(FolderError, match="a.npz: not the arrays of toy .*allow_pickle"):
        KIND.read(saved)
    torch.save(TENSORS, saved / "t.safetensors")
    rewrite(saved, "head.json")
    with pytest.raises(FolderError, match="t.safetensors: not a whole safetensors file"):
        KIND.read(saved)


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no toy at .*nowhere: there is no such folder; check the path"):
        KIND.read(tmp_path / "nowhere")


# ---- writing that fails
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_failed_save_keeps_the_one_before(saved, failure):
    def fail(folder):
        (folder / "half").write_text("half of it")
        raise failure

    message = "could not save .*toy: .*No space left on device; the previous one there is whole"
    expected = (SaveError, message) if isinstance(failure, OSError) else (type(failure), None)
    with pytest.raises(expected[0], match=expected[1]):
        KIND.write(saved, {"step": 9}, more=fail)
    assert KIND.read(saved).header["step"] == 3 and names(saved.parent) == ["toy"]


def test_a_failed_first_save_leaves_nothing(tmp_path):
    def fail(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(SaveError, match="nothing was left behind"):
        replace_folder(tmp_path / "toy", fail)
    assert names(tmp_path) == []


def test_a_disk_that_is_full_of_tensors(saved, monkeypatch):
    import safetensors.torch
    from safetensors import SafetensorError

    def full(*arguments):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(SaveError, match="toy: No space left on device; the previous one there is whole"):
        write(saved, step=9)
    assert KIND.read(saved).header["step"] == 3


def test_a_folder_within_one_names_the_outer_once(saved, tmp_path):
    def inner(new):
        KIND.write(new / "in", {}, more=lambda folder: (_ for _ in ()).throw(OSError("full")))

    with pytest.raises(SaveError, match="could not save .*outer: full; nothing was left behind there"):
        KIND.write(tmp_path / "outer", {}, more=inner)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_something_else_is_not_replaced(tmp_path, what):
    place = tmp_path / "mine"
    if what == "folder":
        place.mkdir()
    letter = place / "letter.txt" if what == "folder" else place
    letter.write_text("dear")
    with pytest.raises(ValueError, match="something else than toy, which is not replaced; choose another folder"):
        write(place)
    assert letter.read_text() == "dear"


def test_the_current_folder_is_read_and_not_replaced(saved, monkeypatch):
    monkeypatch.chdir(saved)
    for place in ("", ".", Path("../") / saved.name):
        assert KIND.read(place).header["step"] == 3
        with pytest.raises(ValueError, match="it is the current folder, which is not replaced from within"):
            write(place, step=4)
    with pytest.raises(FileNotFoundError, match="no toy at /: "):
        KIND.read("/")


def test_a_small_file_is_whole_or_absent(tmp_path, monkeypatch):
    write_text(tmp_path / "status.json", "one")
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_text(tmp_path / "status.json", "two")
    assert (tmp_path / "status.json").read_text() == "one" and names(tmp_path) == ["status.json"]
    monkeypatch.undo()
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "status.json") as new:
        new.write_text("half")
        raise ZeroDivisionError
    assert (tmp_path / "status.json").read_text() == "one" and names(tmp_path) == ["status.json"]


# ---- interruptions, readers and writers
def test_cut_off_between_the_two_renames(saved):
    os.rename(saved, saved.with_name(".toy.old"))
    assert KIND.read(saved).header["step"] == 3 and KIND.is_at(saved)
    assert names(saved.parent) == [".toy.old"]  # a reader leaves that to the next writer
    with pytest.raises(SaveError):
        replace_folder(saved, lambda new: (_ for _ in ()).throw(OSError("full")))
    assert names(saved.parent) == ["toy"] and KIND.read(saved).header["step"] == 3


def test_cut_off_after_both_renames(saved):
    saved.with_name(".toy.old").mkdir()
    assert KIND.read(saved).header["step"] == 3
    write(saved, step=4)
    assert KIND.read(saved).header["step"] == 4 and names(saved.parent) == ["toy"]


WRITER = """
import os, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_folder
folder, rename, step = Path({folder!r}), os.rename, 3
def stop(*paths):
    rename(*paths)
    if folder.with_name("stop").exists() and Path(paths[0]) == folder:
        print(step, flush=True)
        time.sleep(60)
os.rename = stop
while step := step + 1:
    test_folder.write(folder, step=step)
"""


def test_readers_beside_a_writer_and_behind_one_that_is_killed_between_its_two_renames(saved):
    code = WRITER.format(tests=os.path.dirname(__file__), folder=str(saved))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            steps, until = set(), time.monotonic() + 90
            while len(steps) < 4 and time.monotonic() < until:
                header, _, _, text = KIND.read(saved, more=lambda folder, header: (folder / "vocab.txt").read_text())
                steps.add(header["step"])
                assert text == "the\ncat\n"
                time.sleep(0.001)  # the writer has to begin before it can be met
            assert len(steps) >= 4
            stop = saved.with_name("stop")
            stop.touch()
            before = int(process.stdout.readline()) - 1
            stop.unlink()
            assert not saved.exists() and whole_folder(saved).name == ".toy.old"
            assert KIND.read(saved).header["step"] == before  # beside the living writer, whose folders stay where they are
            assert names(saved.parent) == [".toy.lck", ".toy.new", ".toy.old"]
        finally:
            process.kill()
    assert KIND.read(saved).header["step"] == before
    write(saved, step=2)  # the lock went with its process
    assert KIND.read(saved).header["step"] == 2 and names(saved.parent) == ["toy"]


def test_a_folder_that_is_moved_aside_while_it_is_read(saved, monkeypatch):
    """Between the two renames of a writer: what was opened is gone, and the same header stands beside it."""
    aside, compare = saved.with_name(".toy.old"), type(KIND)._compare

    def moved(self, place, files):
        if place == saved:
            saved.rename(aside)
        compare(self, place, files)

    monkeypatch.setattr(type(KIND), "_compare", moved)
    assert KIND.read(saved).header["step"] == 3 and aside.exists() and not saved.exists()


def test_two_writers_take_turns(tmp_path):
    threads = [threading.Thread(target=lambda k=k: [write(tmp_path / "toy", step=k) for _ in range(8)]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert KIND.read(tmp_path / "toy").header["step"] in range(4) and names(tmp_path) == ["toy"]


def test_a_lock_that_is_removed_while_it_is_looked_at(tmp_path, monkeypatch):
    path, fstat, asked = tmp_path / ".lock", os.fstat, []

    def gone(descriptor):
        asked.append(descriptor)
        if len(asked) == 2:  # first when it is opened
            path.unlink()
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", gone)
    with locked(path, "busy"):
        assert len(asked) == 4 and is_held(path)
    assert names(tmp_path) == []


def test_locks(tmp_path):
    path = tmp_path / ".lock"
    assert not is_held(path)
    with locked(path, "busy: {pid}"):
        assert is_held(path)
        with pytest.raises(ValueError, match=f"busy: {os.getpid()}"), locked(path, "busy: {pid}"):
            pass
    assert not path.exists()
    path.write_text("12345\n")  # of a process that died
    assert not is_held(path) and path.exists()
    with locked(path, "busy: {pid}"):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_line_of_json_is_one_to_every_reader():
    def refuse(name):
        raise AssertionError(name)

    answer = {"log_prob": -math.inf, "paths": [{"p": (0.5, math.nan)}], "word": "naïve \udc80", "steps": 3, "best": None}
    line = json_line(answer)
    assert json.loads(line.encode(), parse_constant=refuse) == {**answer, "log_prob": None, "paths": [{"p": [0.5, None]}]}
    assert "naïve" in line and json_line({"x": 0.1 + 0.2}) == '{"x": 0.30000000000000004}'


def test_a_folder_replaced_while_its_tensors_are_mapped_is_read_again(saved, monkeypatch):
    """torch has a RuntimeError of its own for a file that is gone between its checksum and its mapping."""
    import safetensors.torch as safetensors

    load_file, calls = safetensors.load_file, []

    def replaced_under(path):
        calls.append(path)
        if len(calls) == 1:
            write(saved, step=9)
            raise RuntimeError(f"unable to open file <{path}> in read-only mode: No such file or directory (2)")
        return load_file(path)

    monkeypatch.setattr(safetensors, "load_file", replaced_under)
    assert KIND.read(saved).header["step"] == 9 and len(calls) == 2
    monkeypatch.setattr(safetensors, "load_file", lambda path: (_ for _ in ()).throw(RuntimeError("mapping failed")))
    with pytest.raises(OSError, match=r"t\.safetensors: cannot be read \(mapping failed\)"):
        KIND.read(saved)


@pytest.fixture
def windows(monkeypatch):
    """A system without fcntl and the flags of POSIX, whose locks are those of msvcrt: of bytes, by descriptor."""
    held, turn = {}, threading.Lock()

    def locking(descriptor, mode, num_bytes):
        assert mode == 2 and num_bytes == 1 and os.lseek(descriptor, 0, os.SEEK_CUR) == 1 << 30
        file = os.fstat(descriptor).st_ino
        with turn:
            if held.get(file) not in (None, descriptor) and _is_open(held[file], file):
                raise PermissionError(errno.EACCES, "Permission denied")
            held[file] = descriptor

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    monkeypatch.delattr(os, "O_NOFOLLOW")
    monkeypatch.delattr(os, "O_NONBLOCK")
    return monkeypatch


def _is_open(descriptor, file):
    try:
        return os.fstat(descriptor).st_ino == file
    except OSError:
        return False


def test_locks_of_windows(tmp_path, windows):
    test_locks(tmp_path)


def test_writers_take_turns_on_windows(tmp_path, windows):
    windows.setattr("pplseq.files.TURN", 0.001)
    test_two_writers_take_turns(tmp_path)


def test_windows_keeps_a_lock_file_that_is_open(tmp_path, windows):
    def busy(path, missing_ok=False):
        raise PermissionError(errno.EACCES, "in use")

    windows.setattr(Path, "unlink", busy)
    path = tmp_path / ".lock"
    for _ in range(2):
        with locked(path, "busy: {pid}"):
            assert is_held(path)
        assert not is_held(path) and path.exists()


def test_macos_flushes_through_the_memory_of_the_disk(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    asked = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: asked.append(command))
    write(tmp_path / "toy")
    assert len(asked) >= 3 and set(asked) == {51}

    def refuses(descriptor, command):
        raise OSError(errno.ENOTSUP, "no such command")

    monkeypatch.setattr(fcntl, "fcntl", refuses)  # a disk of the network
    write(tmp_path / "toy", step=2)
    assert KIND.read(tmp_path / "toy").header["step"] == 2
