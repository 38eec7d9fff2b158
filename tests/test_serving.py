"""The programs of the page about serving do what it says."""

import re
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pplseq import HMM

PAGE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r'```python title="(\w+).py"\n(.*?)```', PAGE, re.DOTALL))
ROWS = [[0, 1, 2], [2, 1, 0, 1]]


@pytest.fixture
def model(tmp_path, monkeypatch):
    model = HMM(2, 3).fit(ROWS * 3, seed=0, max_iterations=3)
    model.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return model


def run(name, monkeypatch, program):
    """A program as a module, as it is imported."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # where pickles and annotations look for it
    threads = torch.get_num_threads()
    try:
        exec(compile(program, f"{name}.py", "exec"), vars(module))
    finally:
        torch.set_num_threads(threads)
    return module


def test_pool(model, monkeypatch):
    pool = run("pool", monkeypatch, PROGRAMS["pool"].replace('"spawn"', '"fork"'))  # starts faster
    assert pool.scores("model", ROWS) == [model.score([row]) for row in ROWS]


@pytest.mark.slow
def test_pool_of_new_processes(model, tmp_path):
    (tmp_path / "pool.py").write_text(PROGRAMS["pool"], encoding="utf-8")
    printed = subprocess.run([sys.executable, "pool.py"], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == repr([model.score([row]) for row in ROWS])


def test_service(model, monkeypatch):
    pytest.importorskip("fastapi")
    client = pytest.importorskip("fastapi.testclient").TestClient(run("service", monkeypatch, PROGRAMS["service"]).app)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda row: client.post("/score", json={"x": [row]}).json(), ROWS * 4))
        draws = list(pool.map(lambda _: client.post("/draw?num_steps=5&seed=3").json(), range(4)))
    assert found == [model.score([row]) for row in ROWS * 4]
    assert draws == [model.sample(5, seed=3).x.tolist()] * 4
