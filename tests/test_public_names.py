"""What `import pplseq` offers, and that it costs nothing."""

import importlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pplseq

NAMES = """
    VLHMM HMM SemiMarkovHMM LDS TextLDS IOHMM ARHMM SwitchingRegression StructuralModel PROPS MixtureHMM HMMTagger
    LatentTagger CRFTagger Constraint load train evaluate load_corpus sequences_by Vocabulary BlockedEnum markov
    TraceBlockedEnum_ELBO KalmanCollapse TraceKalman_ELBO infer_states NotFittedError warm_up explain
""".split()


def test_the_names():
    assert sorted(NAMES) == pplseq.__all__ == dir(pplseq)
    assert all(getattr(pplseq, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="module 'pplseq' has no attribute 'VLHM'"):
        pplseq.VLHM  # noqa: B018


@pytest.mark.parametrize(
    "module",
    ["pplseq", "pplseq.models", "pplseq.baselines", "pplseq.recipes", "pplseq.infer", "pplseq.distributions", "pplseq.data",
     "pplseq.sources", "pplseq.report", "pplseq.runs", "pplseq.cli"],
)  # fmt: skip
def test_importing_a_room_does_not_import_torch(module):
    code = f"import sys, {module}; assert not {{'torch', 'pyro', 'sklearn'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("room", "models infer distributions data recipes baselines sources".split())
def test_every_name_of_a_stub_is_there(room):
    """A stub says the module of each name, so that a checker knows the class; a name that moved must move there."""
    package = importlib.import_module(f"pplseq.{room}")
    for name in package.__all__:
        assert getattr(package, name) is not None


@pytest.mark.parametrize(
    "given, torch_first, wanted", [(None, False, "PASSIVE"), ("ACTIVE", False, "ACTIVE"), (None, True, None)]
)
def test_waiting_threads_sleep_where_nobody_said_otherwise(given, torch_first, wanted, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setitem(sys.modules, "torch", torch)
    if not torch_first:
        monkeypatch.delitem(sys.modules, "torch")
    runpy.run_path(pplseq.__file__, run_name="pplseq")
    assert os.environ.get("OMP_WAIT_POLICY") == wanted


@pytest.mark.parametrize(
    "groups, files, wanted",
    [
        ("0::/", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/jobs/one", {"jobs/one/cpu.max": "50000 100000\n", "cpu.max": "max 100000\n"}, 1),
        ("0::/pod/one", {"pod/one/cpu.max": "300000 100000\n", "pod/cpu.max": "200000 100000\n"}, 2),
        ("0::/pod/one", {"pod/one/cpu.max": "max 100000\n", "pod/cpu.max": "300000 100000\n"}, 3),
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/seen/from/outside", {"cpu.max": "100000 100000\n"}, 1),
        ("5:cpuacct,cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ("5:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "200000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 2),
        ("5:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/", {}, None),
    ],
)
def test_the_processors_that_a_container_may_use(groups, files, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4), raising=False)
    for name, content in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{n}": told for n, told in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert pplseq._few_processors(str(tmp_path)) == wanted
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(wanted or 4), raising=False)
    assert pplseq._few_processors(str(tmp_path)) is None  # no fewer than it sees


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no control groups here")
@pytest.mark.parametrize("said, wanted", [(None, "3"), ("2", "2")])
def test_a_container_limits_threads_where_nobody_said_otherwise(said, wanted, monkeypatch):
    """The program as it is imported, which finds a limit of three processors of eight."""
    told = {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "300000 100000"}
    monkeypatch.setenv("OMP_NUM_THREADS", said or "")
    if said is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    code = compile(Path(pplseq.__file__).read_text(), pplseq.__file__, "exec")
    exec(code, {"__name__": "pplseq", "__file__": pplseq.__file__, "open": lambda path, **_: io.StringIO(told[path])})
    assert os.environ["OMP_NUM_THREADS"] == wanted
