"""The commands and the Python of the page on clusters, on local workers."""

import re
import shlex
from pathlib import Path

import pytest
from support.commands import pplseq

from pplseq.data import load_counts
from pplseq.data.lag_streaming import count_lags
from pplseq.recipes import counting
from pplseq.runs.cluster import connected

pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("default")  # Dask's own
PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "cluster.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALLER = [
    ("--num-clusters 256", "--num-clusters 3"), ("64", "2"), ("--max-time 10m", "--epochs 1"),
    ("fit(text,", "fit(text, max_iterations=2,"),
]  # fmt: skip


def follow(address, monkeypatch, tmp_path):
    """All of the page, with its text in small and one cluster for all addresses; the places of ranges are made small too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counting.count_on, "__kwdefaults__", {**counting.count_on.__kwdefaults__, "range_bytes": 400})
    lines = [f"the {a} sees a {b}" for a in ("cat", "dog", "owl") for b in ("mouse", "cat", "bird", "stone")]
    for place, number in (("books/one.txt", 9), ("books/two.txt", 12), ("held-out/a.txt", 5)):
        Path(place).parent.mkdir(exist_ok=True)
        Path(place).write_text("\n".join(lines[:number]) + "\n")

    def small(text):
        for long, short in SMALLER:
            text = text.replace(long, short)
        return re.sub(r"tcp://head:8786|local:4", address, text)

    for command in COMMANDS:
        name, *arguments = shlex.split(small(command))
        assert name == "pplseq"
        pplseq(*arguments)
    whole = tmp_path / "whole.txt"
    whole.write_text("".join(Path(f"books/{name}.txt").read_text() for name in ("one", "two")))
    assert load_counts("runs/counts") == load_counts("runs/all") == count_lags(whole, 5)
    names: dict = {}
    for block in PYTHON:
        exec(small(block), names)
    assert names["some"].num_tokens < names["counts"].num_tokens
    assert len(names["model"].history.log_likelihoods) >= 2


def test_the_page_on_workers_within(here, monkeypatch, tmp_path):
    follow(here.client.scheduler.address, monkeypatch, tmp_path)


@pytest.mark.slow
def test_the_page_on_workers_of_their_own(monkeypatch, tmp_path):
    with connected("local:2") as cluster:
        follow(cluster.client.scheduler.address, monkeypatch, tmp_path)
