"""Standard input and output that are closed, or whose reader has gone: commands end quietly."""

import os
import signal
import sys
import time

import pytest
import torch
from support.faulty_disk import command, forked, import_everything, warm
from support.grids import grid
from support.small_runs import write_data

from pplseq.runs.status import run_status

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """name -> (arguments, whether it reads standard input)."""
    import_everything()
    place = tmp_path_factory.mktemp("closed")
    data = write_data(place)
    text, source = data["text.txt"], f"unigram:{data['text.txt']}"
    warm(command("train", "hmm", text, "--out", place / "hmm", "--num-states", 3, "--min-count", 1, "--epochs", 1))
    warm(command("train", "tagger", data["tags.txt"], "--out", place / "tagger", "--system", "hmm"))
    table = ("--outputs", "y", "--inputs", "u")
    warm(command("train", "lds", data["rows.csv"], *table, "--max-iterations", 2, "--out", place / "lds"))
    warm(command("personalize", source, "--stream", data["stream.txt"], "--state", place / "state"))
    reading = {
        "query": ("query", place / "hmm", "score"),
        "evaluate": ("evaluate", place / "hmm", "-"),
        "query lds": ("query", place / "lds", "smooth", "-"),
        "tag run": ("tag", "run", place / "tagger", "--format", "words"),
        "tag run json": ("tag", "run", place / "tagger", "--format", "words", "--json"),
        "personalize": ("personalize", source),
        "compare-streams": ("compare-streams", source, source),
        "count": ("count", "-", "--max-lag", 1, "--out", place / "counts", "--force"),
        "info": ("info", "lds", "-", *table),
    }
    writing = {
        "query file": ("query", place / "hmm", "score", text),
        "query text": ("query", place / "hmm", "score", text, "--text"),
        "personalize file": ("personalize", source, "--stream", text),
        "personalize state": ("personalize", source, "--stream", text, "--state", place / "other"),
        "compare-streams file": ("compare-streams", source, source, "--stream", text),
        "evaluate file": ("evaluate", place / "hmm", text),
        "tag eval": ("tag", "eval", place / "tagger", data["tags.txt"]),
        "info run": ("info", place / "hmm"),
        "help": ("--help",),
        "lds file": ("query", place / "lds", "smooth", data["rows.csv"]),
        **makers(data, place),
    }
    return {name: (found, name in reading) for name, found in {**reading, **writing}.items()}


def makers(data, place):
    """name -> arguments of commands whose result is what they write, {} being a folder of a call's own."""
    text, shards = data["text.txt"], [place / f"shard{k}" for k in (0, 1)]
    for k, shard in enumerate(shards):
        warm(command("count", text, "--max-lag", 1, "--shard", f"{k + 1}/2", "--out", shard))
    return {
        "train": ("train", "tagger", data["tags.txt"], "--system", "hmm", "--out", "{}/run"),
        "train loop": ("train", "lds", data["rows.csv"], "--outputs", "y", "--max-iterations", 2, "--out", "{}/run"),
        "report": ("report", place / "lds", "--out", "{}/page.html"),
        "cluster": ("cluster", text, "--num-clusters", 3, "--out", "{}/paths"),
        "count-merge": ("count-merge", *shards, "--out", "{}/counts"),
    }


MADE = {
    "train": "run/tagger.json", "train loop": "run/best", "report": "page.html", "cluster": "paths", "count-merge": "counts",
}  # fmt: skip


def ended(arguments, given, log, closed=(), pipe=False, unread=False):
    """(exit code, stderr) of a command in a process of its own.

    Args:
        given: bytes on standard input. closed: descriptors that are not open at all. pipe: standard output has no reader.
        unread: neither has standard error.
    """
    inner, outer = os.pipe()
    os.write(outer, given)
    os.close(outer)
    process = forked()
    if process == 0:
        code = 70
        try:
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python has it
            target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            read, write = os.pipe()
            os.close(read)
            os.dup2(inner, 0), os.dup2(write if unread else target, 2)
            os.dup2(write if pipe else os.open(os.devnull, os.O_WRONLY), 1)
            names = ("stdin", "stdout", "stderr")
            for descriptor in (0, 1, 2):
                if descriptor in closed:
                    os.close(descriptor)
                mode = "r" if descriptor == 0 else "w"
                stream = None if descriptor in closed else open(descriptor, mode, closefd=False)  # as Python begins
                setattr(sys, names[descriptor], stream)
            try:
                command(*arguments)()
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except BaseException:
            import traceback

            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(inner)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code, log.read_text(errors="replace")


def test_a_forked_process_computes_beside_threads():
    """Without care it waits for ever for threads that its parent alone has."""
    table = torch.rand(1000, 1000)
    table.softmax(-1) @ table  # the parent's threads are made
    if (process := forked()) == 0:
        table.softmax(-1).log() @ table
        os._exit(0)
    until = time.monotonic() + 60
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0 and time.monotonic() < until:
        time.sleep(0.02)
    if ended[0] == 0:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert ended == (process, 0)


QUICK = ["query", "personalize", "tag run", "query lds", "personalize state", "train", "cluster"]
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in (
        "evaluate", "tag run json", "compare-streams", "count", "info", "query file", "query text", "personalize file",
        "compare-streams file", "evaluate file", "tag eval", "info run", "help", "lds file",
        "train loop", "report", "count-merge",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_reader_that_has_gone(name, commands, tmp_path):
    arguments, reads = commands[name]
    rows = b"u,y\n1,2\n2,3\n3,1\n"
    given = rows if "lds" in str(arguments) else b"the cat sees a dog\n" * 50
    arguments = [str(part).replace("{}", str(tmp_path)) for part in arguments]
    code, told = ended(arguments, given if reads else b"", tmp_path / "log", pipe=True)
    assert name not in MADE or (tmp_path / MADE[name]).exists()
    assert code in (0, 1) and "Traceback" not in told and "Broken pipe" not in told, told


@grid({
    "name": [*QUICK, *SLOW],
    "closed": [(0, 1, 2), *(pytest.param(each, marks=pytest.mark.slow) for each in [(0,), (1,), (2,), (0, 1)])],
})
def test_nothing_is_open(name, closed, commands, tmp_path):
    arguments, reads = commands[name]
    rows = b"u,y\n1,2\n2,3\n3,1\n"
    given = rows if "lds" in str(arguments) else b"the cat sees a dog\n" * 3
    arguments = [str(part).replace("{}", str(tmp_path)) for part in arguments]
    code, told = ended(arguments, given if reads else b"", tmp_path / "log", closed=closed)
    assert name not in MADE or (tmp_path / MADE[name]).exists()
    assert code in (0, 1, 2) and "Traceback" not in told, told
    if not reads or 0 not in closed:
        assert code == 0, told


@pytest.mark.parametrize("name", ["train", "train loop"])
def test_a_training_goes_on_where_nobody_reads_its_remarks(name, commands, tmp_path):
    arguments = [str(part).replace("{}", str(tmp_path)) for part in commands[name][0]]
    code, _ = ended(arguments, b"", tmp_path / "log", unread=True)
    assert code == 0 and (tmp_path / MADE[name]).exists()
    assert run_status(tmp_path / "run")["status"] == "finished"
