"""Reading lines: files, packed files, standard input, folders, and what is refused."""

import gzip
import io
import lzma
import sys
import types

import pytest

from pplseq.data import load_corpus, read_text
from pplseq.data.sources import find_splits, read_lines


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_are_split_at_white_space_only(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffThe  cat,\t sat .\r\n\n \nlast line\u00e9")
    assert list(read_lines(path)) == [["The", "cat,", "sat", "."], [], [], ["last", "line\u00e9"]]
    assert next(read_lines(path, lower=True))[0] == "the"


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_files(tmp_path, suffix, pack):
    assert list(read_lines(write(tmp_path / f"a.txt{suffix}", pack(b"a b\nc\n")))) == [["a", "b"], ["c"]]
    for damaged in (pack(b"a b\nc\n" * 50)[:-20], b"plain text"):
        with pytest.raises(ValueError, match=f"damaged or not a {suffix} file"):
            list(read_lines(write(tmp_path / f"b.txt{suffix}", damaged)))


def test_standard_input(monkeypatch):
    for read in (read_text, load_corpus):
        stdin = types.SimpleNamespace(buffer=io.BytesIO(b"a b\nb a\na a\nb b\n"))
        monkeypatch.setattr(sys, "stdin", stdin)
        loaded = read("-")
        assert loaded.name == "<stdin>"


def test_undecodable_file_names_the_byte(tmp_path):
    path = write(tmp_path / "latin1.txt", b"ab\nc\xe9d\n")
    with pytest.raises(ValueError, match=r"latin1\.txt: byte 4 \(line 2\) is 0xe9.*UTF-8"):
        read_text(path)


def test_binary_file_names_the_nul_byte(tmp_path):
    path = write(tmp_path / "model.bin", b"ab\ncd\0ef")
    with pytest.raises(ValueError, match=r"model\.bin: byte 5 \(line 2\) is NUL"):
        read_text(path)


@pytest.mark.parametrize("content", ["", "\n", "  \n\n"])
def test_empty_file(tmp_path, content):
    with pytest.raises(ValueError, match="the text is empty"):
        read_text(write(tmp_path / "a.txt", content))


def test_missing_path_suggests(tmp_path):
    write(tmp_path / "ptb.train.txt", "a")
    with pytest.raises(FileNotFoundError, match="did you mean .*ptb.train.txt"):
        read_text(tmp_path / "ptb.tran.txt")
    with pytest.raises(FileNotFoundError, match="holds: ptb.train.txt"):
        load_corpus(tmp_path / "zzz")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_corpus(tmp_path / "no" / "where.txt")


def test_a_folder_is_not_a_text(tmp_path):
    with pytest.raises(ValueError, match="expected a text file, got a folder"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"},
        {"train": "train.txt", "valid": "dev.txt", "test": "TEST.txt"},
        {"train": "my-train", "valid": "my-val", "test": "my_test.gz"},
        {"train": "en-training.tok", "valid": "validation.tok"},
        {"train": "train.txt"},
    ],
)
def test_find_splits(tmp_path, names):
    for name in [*names.values(), "README.md", "latest.txt", "intervals.txt", "devices.txt", ".train.txt.swp"]:
        write(tmp_path / name, "a")
    assert {split: path.name for split, path in find_splits(tmp_path).items()} == names


def test_find_splits_refuses(tmp_path):
    with pytest.raises(ValueError, match="no file whose name contains 'train'; found nothing"):
        find_splits(tmp_path)
    write(tmp_path / "notes.txt", "a")
    with pytest.raises(ValueError, match="no file whose name contains 'train'; found notes.txt"):
        find_splits(tmp_path)
    write(tmp_path / "train.txt", "a")
    write(tmp_path / "train.old.txt", "a")
    with pytest.raises(ValueError, match=r"2 files could be the train text \(train.old.txt, train.txt\)"):
        find_splits(tmp_path)


class FakeRows(list):
    column_names = ["id", "text"]


@pytest.fixture
def fake_datasets(monkeypatch):
    """A stand-in for the package `datasets` that knows the data sets NAME, NAME/CONFIG and OWNER/NAME[/CONFIG]."""
    calls = []

    def load_dataset(name, config=None):
        calls.append((name, config))
        if (name, config) not in {("tiny", None), ("tiny", "raw"), ("owner/tiny", None), ("owner/tiny", "raw")}:
            raise FileNotFoundError(name)
        rows = [{"text": "The cat\n"}, {"text": ""}, {"text": "a dog\nthe cat a dog"}]
        return {"train": FakeRows(rows), "validation": FakeRows([{"text": "the dog"}]), "unsupervised": FakeRows()}

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


@pytest.mark.parametrize(
    ("source", "last_call"),
    [
        ("hf:tiny", ("tiny", None)),
        ("hf:tiny/raw", ("tiny", "raw")),
        ("hf:owner/tiny", ("owner/tiny", None)),
        ("hf:owner/tiny/raw", ("owner/tiny", "raw")),
    ],
)
def test_datasets_source(fake_datasets, source, last_call):
    corpus = load_corpus(source, lower=True)
    assert fake_datasets[-1] == last_call
    decode = corpus.vocabulary.decode
    assert [" ".join(decode(line)) for line in corpus.train.lines()] == [
        "the cat <eos>",
        "<eos>",
        "a dog <eos>",
        "the cat a dog <eos>",
    ]
    assert corpus.valid.num_tokens == 3 and corpus.test is None


def test_datasets_source_refuses(fake_datasets, monkeypatch):
    with pytest.raises(ValueError, match="expected hf:NAME"):
        load_corpus("hf:")
    monkeypatch.setattr(FakeRows, "column_names", ["label"])
    with pytest.raises(ValueError, match="no column 'text' or 'sentence'; found label"):
        load_corpus("hf:tiny")
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", lambda name: {"test": FakeRows([{"text": "a"}])})
    monkeypatch.setattr(FakeRows, "column_names", ["text"])
    with pytest.raises(ValueError, match="no training split; found test"):
        load_corpus("hf:tiny")


def test_datasets_package_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'pip install "pplseq\[huggingface\]"'):
        load_corpus("hf:tiny")
