"""Questions from many threads are those of one, to the last bit, beside each other, beside fits and in forked processes."""

import copy
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyro
import pytest
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _DIM_ALLOCATOR, _PYRO_STACK
from support.model_cases import CASES
from support.questions import all_questions, answered, as_text

from pplseq import threads
from pplseq.kernels import precision
from pplseq.models import HMM, IOHMM, LDS, VLHMM
from pplseq.threads import evaluating

ALL = all_questions()
DEAR = ("summary",)  # asked once beside the others
WORDS, VECTORS = CASES["hmm"].data(), CASES["lds"].data()
INPUTS = CASES["iohmm, symbols"].part()


class Own(HMM):
    """A program of one's own, which has to be run."""

    def model(self, *args, **known):
        return super().model(*args, **known)


def state():
    """What is the process's, or the thread's, and no question's or fit's to change."""
    switches = [part.is_validation_enabled() for part in (pyro.distributions, pyro.infer, pyro.poutine)]
    return (
        torch.is_grad_enabled(), switches, len(_PYRO_STACK), list(_DIM_ALLOCATOR._stack), len(pyro.get_param_store()),
        torch._C._len_torch_function_stack(), torch.get_default_dtype(), threads.LOCK._is_owned(),
        torch.backends.mkldnn.matmul.fp32_precision,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def hurried():
    """Threads that take turns after every few operations; one thread of torch, of which a forked process has no more."""
    before, most, now = sys.getswitchinterval(), torch.get_num_threads(), state()
    sys.setswitchinterval(1e-5)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(most)
    sys.setswitchinterval(before)
    assert state() == now


def at_once(number, calls):
    """The answers of as many threads, each of which makes all calls, in orders of their own."""
    start = threading.Barrier(number)

    def ask(k):
        names, found = list(calls), {}
        random.Random(k).shuffle(names)
        start.wait()
        for name in names:
            if k == 0 or name not in DEAR:
                found[name] = as_text(calls[name]())
        return found

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(ask, range(number)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("number", [pytest.param(2, id="few"), pytest.param(20, id="many", marks=pytest.mark.slow)])
def test_questions_are_pure(name, number, monkeypatch):
    """They enter no handler of Pyro, change nothing of the model and of torch, and are the same beside others."""
    model, questions = ALL[name]()

    def enter(self):
        raise AssertionError(f"{type(self).__name__} was entered")

    monkeypatch.setattr(Messenger, "__enter__", enter)
    own, drawn = flags(model), torch.get_rng_state()
    alone = answered(questions)
    assert len(alone) > 6
    for found in at_once(number, {asked: questions[asked] for asked in alone}):
        assert [asked for asked in found if found[asked] != alone[asked]] == []
    assert flags(model) == own and torch.equal(torch.get_rng_state(), drawn)


def flags(model):
    if not isinstance(model, torch.nn.Module):
        return None
    parts = [(part.training, part._pyro_context.active if hasattr(part, "_pyro_context") else 0) for part in model.modules()]
    return parts, [(parameter.requires_grad, as_text(parameter)) for parameter in model.parameters()]


def small_fits():
    torch.manual_seed(0)
    hmm, prior, own, dropping = HMM(3, 6), HMM(2, 6, priors=True), Own(2, 6), CASES["vlhmm, dropout"].model()
    lds, iohmm = LDS(2, 2), IOHMM(2, num_symbols=3, num_outputs=6)
    nets = VLHMM(6, num_words=6, blocks=[0, 0, 1, 1, 2, 2], hidden_size=8)

    def fitted(model, x, **options):
        return as_text(dict(copy.deepcopy(model).fit(x, seed=1, **options).state_dict()))

    return {
        "em": lambda: fitted(hmm, WORDS, max_iterations=5),
        "restarts": lambda: fitted(hmm, WORDS, max_iterations=12, num_restarts=2),
        "lds": lambda: fitted(lds, VECTORS, max_iterations=3, initialization="random"),
        "iohmm": lambda: fitted(iohmm, WORDS, **INPUTS, max_iterations=3, num_restarts=2),
        "sgd": lambda: fitted(iohmm, WORDS, **INPUTS, method="sgd", num_steps=3),
        "lbfgs": lambda: fitted(hmm, WORDS, method="lbfgs", num_steps=2),
        "svi": lambda: fitted(prior, WORDS, method="svi", num_steps=3),
        "nuts": lambda: fitted(prior, WORDS, method="nuts", num_samples=4, warmup_steps=2, max_tree_depth=2),
        "dropout": lambda: fitted(dropping, WORDS, epochs=2),
        "float32": lambda: fitted(nets, WORDS, epochs=2),
        "own program, em": lambda: fitted(own, WORDS, max_iterations=3),
        "own program, sgd": lambda: fitted(own, WORDS, method="sgd", num_steps=3),
    }


def questions_beside():
    torch.manual_seed(1)
    hmm, own, lds, net = HMM(3, 6), Own(2, 6), LDS(2, 2), CASES["vlhmm"].make()
    for model in (hmm, own, lds, net):
        model.is_fitted = True
    return {
        "score": lambda: hmm.score(WORDS), "sample": lambda: hmm.sample(5, 4, seed=3),
        "sample_states": lambda: hmm.sample_states(WORDS, 2, seed=3), "lds": lambda: lds.smooth(VECTORS),
        "own score": lambda: own.score(WORDS), "own sample": lambda: own.sample(5, 4, seed=3),
        "single precision": lambda: net.smooth(WORDS),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [pytest.param(2, id="few"), pytest.param(10, id="many", marks=pytest.mark.slow)])
def test_fits_and_questions_beside_each_other(number):
    calls = small_fits() | questions_beside()
    alone = {name: as_text(call()) for name, call in calls.items()}
    for found in at_once(number, calls):
        assert [name for name in found if found[name] != alone[name]] == []


def test_unseeded_draws_are_those_of_torch_and_disturb_no_fit():
    fit = small_fits()["restarts"]
    alone, model = fit(), HMM(3, 6)
    model.is_fitted = True
    done = threading.Event()

    def draw():
        while not done.is_set():
            model.sample(3)

    other = threading.Thread(target=draw)
    other.start()
    try:
        assert fit() == alone
    finally:
        done.set()
        other.join()
    torch.manual_seed(5)
    first = model.sample(6).x
    torch.manual_seed(5)
    assert torch.equal(model.sample(6).x, first) and not torch.equal(model.sample(6).x, first)
    assert torch.equal(model.sample(6, seed=5).x, first)


# ------------------------------------------------------------------------------------------------ forks
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("number", [pytest.param(2, id="few"), pytest.param(200, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("beside", ["questions", "svi"])
def test_forked_beside_a_thread_that_asks(number, beside):
    """The child has neither locks nor handlers of the threads that it lacks."""
    questions = questions_beside()
    busy = list(questions.values()) if beside == "questions" else [small_fits()["svi"]]
    alone = [as_text(ask()) for ask in questions.values()]
    done = threading.Event()

    def work():
        while not done.is_set():
            for call in busy:
                call()

    others = [threading.Thread(target=work) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(number):
            time.sleep(0.002)
            assert in_child(lambda: [as_text(ask()) for ask in questions.values()] == alone)
    finally:
        done.set()
        for other in others:
            other.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("busy", ["compiles", "changes a network"])
def test_forked_beside_a_thread_that_holds_something(busy):
    """The child would wait for ever for the lock, or the turn, of a thread that it lacks."""
    if busy == "compiles":
        pytest.importorskip("pplseq.kernels.machine_code")
        from numba.core.compiler_lock import global_compiler_lock as held
    else:
        model, held = torch.nn.Linear(1, 1), None
    begun = threading.Event()

    def hold(seconds):
        with held or evaluating(model, alone=True):
            begun.set()
            time.sleep(seconds)
        return True

    other = threading.Thread(target=hold, args=(0.1,))
    other.start()
    begun.wait()
    assert in_child(lambda: hold(0), seconds=5)
    other.join()
    assert hold(0)


def in_child(check, seconds=30):
    """Whether something holds in a forked process, which has so long to say so."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


# ------------------------------------------------------------------------------------------------ Ctrl-C
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize("moments", [pytest.param(6, id="few"), pytest.param(100, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["em", "lbfgs", "svi", "nuts", "float32"])
def test_ctrl_c_leaves_everything_as_it_was(name, moments):
    fit, interrupt = small_fits()[name], random.Random(name)
    alone = fit()
    begin = time.perf_counter()
    fit()
    took, before = time.perf_counter() - begin, state()
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(moments):
            try:
                signal.setitimer(signal.ITIMER_REAL, interrupt.uniform(1e-6, took))
                fit()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert state() == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert fit() == alone


def test_ctrl_c_at_any_line_leaves_no_rounding_behind(monkeypatch):
    """In each line of what sets the precision of products, torch's own among them."""
    monkeypatch.setattr(precision, "has_bfloat16_tensors", lambda: True)
    layer, x, files = torch.nn.Linear(2, 2), torch.ones(1, 2), ("precision.py", "contextlib.py", "autocast_mode.py")

    @threads.undisturbed
    def work():
        with precision.matmul_precision("bfloat16"):
            with precision.network_precision(x):
                layer(x)
            with precision.exact_products():
                layer(x)

    def stands():
        torch.autocast_increment_nesting()
        return *state(), torch.is_autocast_enabled("cpu"), torch.autocast_decrement_nesting(), len(threads.precisions)

    work()
    before, moment, done = stands(), 0, False
    while not done:
        moment, left = moment + 1, moment + 1

        def interrupt(frame, event, _):
            nonlocal left
            if event == "line" and frame.f_code.co_filename.endswith(files):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            work()
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert stands() == before, moment
    assert moment > 100


def test_a_child_of_a_process_that_rounds_does_not():
    rounds = threading.Event(), threading.Event()

    def train():
        with precision.matmul_precision("bfloat16"):
            rounds[0].set()
            rounds[1].wait()

    thread, before = threading.Thread(target=train), torch.backends.mkldnn.matmul.fp32_precision
    thread.start()
    rounds[0].wait()
    try:
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert in_child(lambda: torch.backends.mkldnn.matmul.fp32_precision == before)
    finally:
        rounds[1].set()
        thread.join()


def test_an_error_in_a_program_leaves_nothing_behind():
    class Failing(Own):
        def model(self, x=None, *args, **known):
            super().model(x, *args, **known)
            torch.set_default_dtype(torch.float64)
            pyro.param("left", torch.ones(()))
            raise ZeroDivisionError

    model, before = Failing(2, 6), state()
    model.is_fitted = True
    for ask in (lambda: model.score(WORDS), lambda: model.sample(3)):
        with pytest.raises(ZeroDivisionError):
            ask()
        assert state() == before
