"""Lag counts on the disk: there and back, damaged files, saves that fail."""

import errno

import numpy as np
import pytest
from support.lag_texts import drawn_lines
from support.stored import rewrite

from pplseq.data import Text
from pplseq.data.lag_counts import LagCounts
from pplseq.data.lag_files import load_counts, save_counts


@pytest.fixture
def saved(tmp_path):
    text = Text.from_lines(drawn_lines(1), name="mine")
    counts = LagCounts.merge(*(LagCounts.from_text(text, 3, shard=(i, 3)) for i in (1, 3)))
    return counts, save_counts(counts, tmp_path / "deep" / "counts")


def test_saved_and_loaded(saved):
    counts, folder = saved
    loaded = load_counts(folder)
    assert loaded == counts and loaded.parts == counts.parts and loaded.missing == counts.missing
    assert sorted(path.name for path in folder.iterdir()) == ["counts.json", "counts.npz", "vocab.txt"]
    assert [path.name for path in folder.parent.iterdir()] == ["counts"]
    assert all(matrix.dtype == np.int64 for matrix in loaded.lags)
    save_counts(loaded.cut(4), folder)
    assert load_counts(folder).num_words == 4


def test_large_counts_are_kept(saved, tmp_path):
    counts, _ = saved
    matrix = counts.lags[0] * 2**33
    huge = LagCounts(counts.vocabulary, counts.counts * 2**33, (matrix,))
    assert load_counts(save_counts(huge, tmp_path / "huge")) == huge


def test_damaged_files(saved):
    _, folder = saved
    npz, header, words = folder / "counts.npz", folder / "counts.json", folder / "vocab.txt"
    whole = {path: path.read_bytes() for path in (npz, header, words)}
    for path, content, message in (
        (npz, whole[npz][:-30], "counts.npz: cut short"),
        (npz, b"PK" + bytes(len(whole[npz]) - 2), "counts.npz: damaged: its checksum"),
        (header, whole[header][:50], "counts.json: not readable as JSON"),
        (header, b"[]", "holds no lag counts; check the path"),
        (words, whole[words][:-4], "vocab.txt: cut short"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            load_counts(folder)
        assert str(folder) in str(error.value)
        path.write_bytes(whole[path])
    rewrite(folder, "counts.json", version=9)
    with pytest.raises(ValueError, match="format version 9, but this pplseq reads version 2"):
        load_counts(folder)
    with pytest.raises(FileNotFoundError, match="no lag counts at"):
        load_counts(folder.parent)


def test_headers_of_other_counts(saved):
    _, folder = saved
    header = (folder / "counts.json").read_bytes()
    for change in ({"parts": [{"x": 1}]}, {"num_words": 2}, {"max_lag": 7}, {"unit": "page"}):
        rewrite(folder, "counts.json", **change)
        with pytest.raises(ValueError, match="counts.json(: | does not describe these counts).*count again"):
            load_counts(folder)
        (folder / "counts.json").write_bytes(header)
    rewrite(folder, "counts.json", without=("num_words",))
    with pytest.raises(ValueError, match="counts.json: num_words is missing"):
        load_counts(folder)


def test_npz_with_objects_is_not_unpickled(saved):
    _, folder = saved
    with np.load(folder / "counts.npz") as file:
        arrays = dict(file)
    arrays["counts"] = np.array([{"run": "me"}], dtype=object)
    np.savez(folder / "counts.npz", **arrays)
    rewrite(folder, "counts.json")
    with pytest.raises(ValueError, match="counts.npz: .*not the arrays of lag counts"):
        load_counts(folder)


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_fails_changes_nothing(saved, monkeypatch, failure):
    counts, folder = saved

    def fail(file, **arrays):
        file.write(b"half")
        raise failure

    monkeypatch.setattr(np, "savez", fail)
    expected = "No space left on device; the previous one there is whole" if isinstance(failure, OSError) else None
    with pytest.raises(type(failure), match=expected):
        save_counts(counts.cut(4), folder)
    assert load_counts(folder) == counts
    assert [path.name for path in folder.parent.iterdir()] == ["counts"]


def test_an_interrupted_swap_is_put_back(saved):
    counts, folder = saved
    folder.rename(folder.with_name(".counts.old"))
    assert load_counts(folder) == counts


def test_other_folders_are_not_replaced(saved, tmp_path):
    counts, _ = saved
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="something else than lag counts"):
        save_counts(counts, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").exists()
