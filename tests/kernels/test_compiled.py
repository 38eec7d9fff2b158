"""When loops are compiled, and how their machine code is kept."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from pplseq import files
from pplseq.kernels import compiled

numba = pytest.importorskip("numba")
from pplseq.kernels import machine_code  # noqa: E402

LOOP = "kernels.product_loops.multiply"


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has asked for nothing, with an empty folder for code."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PPLSEQ_LOOPS", "auto")
    monkeypatch.setattr(compiled, "_used", set())
    monkeypatch.setattr(compiled, "_worked", {})
    compiled._is_kept.cache_clear()
    yield tmp_path / "pplseq"
    compiled._is_kept.cache_clear()


def total(x):
    found = 0.0
    for value in x:
        found += value
    return found


def in_another_process(code: str, **environment) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_twin_works_until_compiling_pays(fresh):
    calls = 0
    while not compiled.pays(LOOP, operations=0.3 * compiled.WORTH / compiled.OPERATION):
        calls += 1
    assert calls == 3 and compiled.pays(LOOP)
    compiled.worked("kernels.chain.loops.viterbi", 0, 2 * compiled.WORTH / compiled.MULTIPLICATION)  # known afterwards
    assert compiled.pays("kernels.chain.loops.viterbi")
    assert compiled.pays("kernels.chain.piece_loops.forward", 0, 1e12), "a call that is worth it by itself"


def test_what_was_decided_is_told(fresh):
    with compiled.told() as notes:
        compiled.pays(LOOP, 1)
        compiled.pays("kernels.chain.loops.viterbi", 1e9)
    assert "twin in torch: 5e-06 of 2 s" in notes[LOOP] and "compiled now" in notes["kernels.chain.loops.viterbi"]


def test_the_choice_can_be_fixed(fresh, monkeypatch):
    with compiled.always():
        assert compiled.pays(LOOP)
        with compiled.twins_only():
            assert not compiled.pays(LOOP, 1e12) and not compiled.available()
    assert compiled.pays(LOOP) and not compiled.pays("kernels.chain.loops.viterbi")
    monkeypatch.setenv("PPLSEQ_LOOPS", "never")
    assert not compiled.pays(LOOP, 1e12)
    monkeypatch.setenv("PPLSEQ_LOOPS", "perhaps")
    with pytest.raises(ValueError, match="PPLSEQ_LOOPS: expected 'auto', 'always' or 'never', got 'perhaps'"):
        compiled.pays(LOOP)


def test_code_on_disk_is_used_at_once(fresh):
    def pays():
        compiled._used.clear()
        compiled._is_kept.cache_clear()
        return compiled.pays(LOOP)

    assert not pays()
    in_another_process(
        "import numpy as np; from pplseq.kernels.product_loops import multiply; multiply(*np.zeros((3, 2, 2)))"
    )
    assert pays()
    (stored,) = fresh.glob("product_loops.multiply-*.code")
    whole = stored.read_bytes()
    stored.write_bytes(whole[:99])  # which is not there, then
    assert not pays()
    stored.write_bytes(whole)
    assert pays()
    stored.rename(stored.with_name("product_loops.multiply-0123456789abcdef-0123456789abcdef.code"))  # of another version
    assert not pays()


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "other"])
def test_damaged_code_is_made_again(fresh, damage):
    x = np.arange(4.0)
    assert compiled.jit(total, entry=True)(x) == 6.0
    (stored,) = fresh.glob("*.code")
    content = stored.read_bytes()
    middle = len(content) // 2
    wrong = {"empty": b"", "cut": content[:middle], "other": b"no code at all" * 9}
    wrong["changed"] = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    stored.write_bytes(wrong[damage])
    again = compiled.jit(total, entry=True)
    assert again(x) == 6.0 and again._cache.is_there()
    assert compiled.jit(total, entry=True)._cache.load_overload(again.signatures[0], again.targetctx) is not None


def versions(body: str, constant: int):
    """A loop that calls another one."""
    space = {"jit": compiled.jit, "LIMIT": constant}
    exec(f"def inner(x):\n    return {body}\ninner = jit(inner)\ndef outer(x):\n    return inner(x) + LIMIT", space)
    return machine_code.parts_of(space["outer"])


@pytest.mark.parametrize(
    "before, after",
    [(np.float32(1), np.float32(2)), (np.float32(1), np.float64(1)), (np.ones(2), np.zeros(2)),
     (namedtuple("P", "a b"), namedtuple("P", "b a")), (frozenset({1}), frozenset({2})), (np.float32, np.float64), (0.0, -0.0)],
)  # fmt: skip
def test_code_is_that_of_constants_of_any_kind(before, after):
    """Of names of tuples, too: code finds their parts by place."""
    assert versions("x", before) == versions("x", before) != versions("x", after)


def test_code_is_that_of_what_it_calls_and_reads():
    assert versions("x + 1", 3) == versions("x + 1", 3)
    assert versions("x + 1", 3) != versions("x + 2", 3)
    assert versions("x + 1", 3) != versions("x + 1", 4)


def test_what_another_process_compiles_is_waited_for(fresh):
    """And is not made twice."""
    def loop():
        return compiled.jit(entry=True)(total)

    assert loop()(np.ones(3)) == 3.0
    (file,) = fresh.glob("*.code")
    content = file.read_bytes()
    file.unlink()
    later, found = loop(), []
    with files.locked(fresh / f"{file.name}.lock"):
        asker = threading.Thread(target=lambda: found.append(later(np.ones(4))))
        asker.start()
        asker.join(0.3)
        assert asker.is_alive() and not found
        file.write_bytes(content)
    asker.join(60)
    assert found == [4.0] and sum(later.stats.cache_hits.values()) == 1 and not later.stats.cache_misses
    assert {path.suffix for path in fresh.iterdir()} == {".code"}


def test_where_nothing_can_be_kept_it_is_said_once(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("not a folder")
    machine_code._writable.cache_clear()
    with pytest.warns(RuntimeWarning, match="compiled anew by every process.*set NUMBA_CACHE_DIR") as told:
        for _ in range(2):
            assert compiled.jit(total, entry=True)(np.ones(3)) == 3.0
    assert len(told) == 1


def test_an_installation_that_was_warmed_up_serves_users_who_cannot_write_to_it(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = compiled.folders()
    assert first == Path(compiled.__file__).parent / "__pycache__" and second.name == "pplseq"


def test_waiting_is_said_once(monkeypatch):
    machine_code._say_waiting.cache_clear()
    said, handler = [], logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    logger = logging.getLogger("pplseq")
    monkeypatch.setattr(logger, "handlers", [handler])
    before = logger.level
    logger.setLevel(logging.INFO)  # an attribute alone would leave what loggers remember of earlier levels
    try:
        for _ in range(2):
            machine_code._say_waiting()
    finally:
        logger.setLevel(before)
    assert said == [machine_code.MESSAGE]


def test_nobody_is_told_of_compiling_that_came_to_nothing(fresh):
    with pytest.raises(Exception, match="nothing"):
        compiled.jit(entry=True)(lambda x: x.nothing())(1)
    assert not any(isinstance(each, threading.Timer) and not each.finished.is_set() for each in threading.enumerate())


def test_a_function_of_no_file_is_compiled_all_the_same(fresh):
    assert compiled.jit(entry=True)(eval("lambda x: 2 * x", {"__name__": "nowhere"}))(21) == 42


def test_a_first_answer_compiles_nothing(tmp_path):
    """Of what a newcomer tries: the twins answer, no code appears, and torch's own compiler stays unloaded."""
    code = """
import numpy, torch, pplseq
import pplseq.kernels.path_scan, pplseq.kernels.scan
from pplseq import HMM, LDS
x = torch.from_numpy(numpy.random.default_rng(0).normal(size=(1, 60, 2)))
for model in (HMM(2, num_features=2), LDS(2, num_features=2)):
    model.fit(x, max_iterations=5).fit(x, method="lbfgs", num_steps=2).fit(x, method="sgd", num_steps=2)
    model.score(x), model.decode(x), model.smooth(x)
    pplseq.load(model.save(FOLDER)).score(x)
import sys
print({"numba", "torch._dynamo"} & {*sys.modules})
"""
    code = code.replace("FOLDER", repr(str(tmp_path / "model")))
    found = in_another_process(code, PPLSEQ_LOOPS="auto", NUMBA_CACHE_DIR=str(tmp_path))
    assert found.endswith("set()\n"), found and not list(tmp_path.rglob("*.code"))


# processor seconds that compiling may take; measured ones are about half of these
BUDGET, LARGER = 6.0, {"piece_loops": 12.0, "table_loops": 12.0, "mean_loops": 9.0, "covariance_loops": 10.0}


@pytest.mark.slow
def test_no_loop_takes_longer_to_compile_than_its_budget(tmp_path):
    """What a call waits for once; a loop that grows shows here."""
    code = """
import json, time
from numba.core import event
found, begun = {}, []
class Listener(event.Listener):
    def on_start(self, event):
        begun.append(time.process_time())
    def on_end(self, event):
        seconds, loop = time.process_time() - begun.pop(), event.data["dispatcher"].py_func
        if not begun:
            name = f"{loop.__module__.rpartition('.')[2]}.{loop.__name__}"
            found[name] = max(found.get(name, 0.0), seconds)
event.register("numba:compile", Listener())
import pplseq
pplseq.warm_up()
print(json.dumps(found))
"""
    found = json.loads(in_another_process(code, NUMBA_CACHE_DIR=str(tmp_path)).splitlines()[-1])
    assert len(found) > 15
    late = {name: took for name, took in found.items() if took > LARGER.get(name.split(".")[0], BUDGET)}
    assert not late
