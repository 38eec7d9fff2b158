"""Fixtures shared by the whole suite."""

import gc
import os
import signal
import sys
from pathlib import Path

# threads that spin while they wait bring a machine with busy cores nearly to a halt; must stand before torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# a softmax of a few numbers is handed to every thread that there is, at ten times its cost; tests of threads ask for theirs
os.environ.setdefault("OMP_NUM_THREADS", "1")
# the loops themselves, from the first call on: what is tested does not depend on what ran before
os.environ.setdefault("PPLSEQ_LOOPS", "always")

# a shell that starts the tests in the background lets them ignore these, and with them the processes that they start
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

import pytest  # noqa: E402

# thousands of tests and the code of loops are kept to the end: to look for garbage among them takes a sixth of compiling
gc.set_threshold(100_000, 20, 20)

# what tests write need not outlive a power cut, and disks take longer for it than most tests
os.fsync = lambda descriptor: None


def pytest_sessionstart(session):
    """Where several processes run the tests, each has its share of the loops compiled before it begins."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        from support.compiled_loops import compile_a_share

        compile_a_share(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems():
    """Hypothesis would read all files for numbers to try: seconds of every process, and other examples after every change."""
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "is_local_module_file"):
        providers.is_local_module_file = lambda path: False


def pytest_collection_finish(session):
    gc.freeze()


@pytest.fixture(scope="session")
def one_generator():
    """The seed of the only generator there is; torch is imported in fixtures, as what hands out the tests needs none of it."""
    import torch

    if not torch.cuda.is_available():
        # torch's own keeps a trace of the stack for each kind of device that is not there: more than many a test takes
        torch.manual_seed = torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def fresh_state(one_generator):
    """Every test starts from the same seed and an empty parameter store; torch.empty is filled with NaN."""
    import pyro
    import torch

    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    pyro.clear_param_store()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real corpora (PPLSEQ_DATA, else ../shared/data beside the repository)."""
    folder = Path(os.environ.get("PPLSEQ_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real corpora not found at {folder}; set PPLSEQ_DATA to their folder")
    return folder


@pytest.fixture(scope="module")
def here():
    """A cluster of two workers inside this process."""
    distributed = pytest.importorskip("distributed")
    from pplseq.runs.cluster import connected

    with distributed.Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        with connected(client) as found:
            yield found


@pytest.fixture(scope="module")
def browser():
    """A chromium without a window, of a module marked ``browser``."""
    from support.browser import Browser, missing

    if told := missing():
        pytest.skip(told)
    opened = Browser()
    yield opened
    opened.close()
