"""A training that is refused leaves nothing behind, and nothing that stands in the way of the next one."""

import os

import pytest
from click.testing import CliRunner
from support.small_runs import write_data

import pplseq
from pplseq.cli import main
from pplseq.files import locked


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    data = write_data(tmp_path_factory.mktemp("data"))
    folder = data["text.txt"].parent
    made = {
        "empty.txt": "", "one.txt": "+ 01\n+ 0\n", "class.csv": "u,y\n1,2\n2,x\n", "huge.csv": "u,y\n1,2\n2,1e200\n3,1\n",
        "tags-broken.txt": "the_D cat\n", "binary.txt": None,
    }  # fmt: skip
    for name, text in made.items():
        data[name] = folder / name
        data[name].write_bytes(b"\xff\xfe\x00" * 9 if text is None else text.encode())
    return data


REFUSED = {
    "vlhmm blocks": ("vlhmm", "text.txt", "--num-states", 6, "--num-blocks", 4, "--min-count", 1),
    "vlhmm memory": ("vlhmm", "text.txt", "--num-states", 1 << 36, "--num-blocks", 4, "--min-count", 1, "--hidden-size", 8),
    "lstm memory": ("lstm", "text.txt", "--hidden-size", 10_000_000),
    "awd-lstm memory": ("awd-lstm", "text.txt", "--num-layers", 10**12),
    "ff memory": ("ff", "text.txt", "--hidden-size", 8, "--order", 10**12),
    "rnn memory": ("rnn", "text.txt", "--hidden-size", 10_000_000),
    "tagger memory": ("tagger", "tags.txt", "--system", "unsupervised", "--set", "num_states=100000000"),
    "hmm memory": ("hmm", "text.txt", "--num-states", 10_000_000),
    "lds memory": ("lds", "rows.csv", "--outputs", "y", "--num-states", 10_000_000),
    "iohmm memory": ("iohmm", "rows.csv", "--outputs", "y", "--num-states", 10_000_000),
    "strings memory": ("iohmm", "strings.txt", "--num-states", 10_000_000, "--no-merging"),
    "hmm empty": ("hmm", "empty.txt", "--num-states", 2),
    "hmm bytes": ("hmm", "binary.txt", "--num-states", 2),
    "lstm nothing there": ("lstm", "absent.txt"),
    "lstm grown": ("vlhmm", "text.txt", "--num-states", 16, "--grow-from", "nowhere"),
    "lds column": ("lds", "rows.csv", "--outputs", "z"),
    "lds words": ("lds", "class.csv", "--outputs", "y"),
    "lds huge": ("lds", "huge.csv", "--outputs", "y"),
    "iohmm graph": ("iohmm", "rows.csv", "--outputs", "y", "--graph", "nowhere"),
    "iohmm validation": ("iohmm", "rows.csv", "--outputs", "y", "--validation", "nowhere.csv"),
    "iohmm one class": ("iohmm", "one.txt"),
    "tagger broken": ("tagger", "tags-broken.txt", "--system", "hmm"),
    "tagger option": ("tagger", "tags.txt", "--system", "hmm", "--set", "none=1"),
    "text-lds no counts": ("text-lds", "text.txt", "--num-states", 2, "--lag", 0),
    "text-lds empty": ("text-lds", "empty.txt", "--num-states", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_left(name, data, tmp_path):
    model, source, *options = REFUSED[name]
    data.setdefault(source, data["text.txt"].with_name(source))
    out = tmp_path / "new" / "runs" / "run"
    result = CliRunner().invoke(main, ["train", model, str(data[source]), "--out", str(out), *map(str, options)])
    assert result.exit_code in (1, 2) and isinstance(result.exception, SystemExit), result.output
    assert os.listdir(tmp_path) == [], [*tmp_path.rglob("*")]
    assert not name.endswith(" memory") or "memory" in result.output or "GiB" in result.output


def test_a_name_that_is_not_utf8_is_named(data, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/n\xff.csv")
    with open(odd, "w") as file:
        file.write(data["rows.csv"].read_text())
    with pytest.raises(ValueError, match=r"n\\udcff.csv': its name, or one among the settings, is not UTF-8 text"):
        pplseq.train("lds", odd, folder=tmp_path / "run", outputs="y")
    assert not (tmp_path / "run").exists()


def test_what_was_there_stays(data, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError):
        pplseq.train("lds", data["rows.csv"], folder=tmp_path / "run", outputs="z")
    assert os.listdir(tmp_path / "run") == []
    (tmp_path / "run" / "notes").write_text("mine")
    with pytest.raises(ValueError, match="not empty and holds no run"):
        pplseq.train("lds", data["rows.csv"], folder=tmp_path / "run", outputs="y")
    assert os.listdir(tmp_path / "run") == ["notes"]


def test_the_files_of_another_process_stay(data, tmp_path):
    """It has begun between the look at the folder and the lock, or is still preparing."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("")
    with locked(run / ".lock"), pytest.raises(ValueError, match="another process is training there"):
        pplseq.train("lds", data["rows.csv"], folder=run, outputs="y")
    assert os.listdir(run) == ["config.toml"]


def test_what_took_long_is_kept_where_the_disk_was_full(data, tmp_path, monkeypatch):
    from pplseq.models.vlhmm import fit

    options = dict(num_states=8, num_blocks=4, hidden_size=4, min_count=1, epochs=1, batch_size=4)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fit, "train", full)
    with pytest.raises(OSError, match="No space"):
        pplseq.train("vlhmm", data["text.txt"], folder=tmp_path / "run", **options)
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"clusters.paths", "clusters.paths.sha256", "config.toml", "data.json", "status.json"}
    with pytest.raises(ValueError, match="divisible"):
        pplseq.train("vlhmm", data["text.txt"], folder=tmp_path / "run", **options | {"num_states": 9})
    with pytest.raises(OSError, match="No space"):
        pplseq.train("vlhmm", data["stream.txt"], folder=tmp_path / "run", **options)
