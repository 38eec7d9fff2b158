"""What threads share: values made once, warnings' filters, and generators of others."""

import ast
import gc
import random
import sys
import threading
import warnings

import numpy as np
import pytest

from pplseq.threads import filtering, from_shared_generator, once, parsing


class Slow:
    """A value that waits for somebody else to have one of its own."""

    def __init__(self, wait=None, then=None):
        self.wait, self.then, self.times = wait, then, 0

    @once
    def value(self):
        """What is waited for."""
        self.times += 1
        if self.then is not None:
            self.then.set()
        if self.wait is not None:
            assert self.wait.wait(10)
        return object()


def test_a_value_is_computed_once():
    one = Slow()
    assert one.value is one.value and one.times == 1
    assert Slow.value.__doc__ == "What is waited for." and isinstance(Slow.value, once)
    del one.value
    assert one.value is not None and one.times == 2


def test_no_instance_waits_for_another():
    """As they would with ``functools.cached_property`` of Python 3.11."""
    begun, done = threading.Event(), threading.Event()
    slow = Slow(done, begun)
    other = threading.Thread(target=lambda: slow.value)
    other.start()
    assert begun.wait(10)
    assert Slow().value is not None
    done.set()
    other.join()


def test_threads_that_ask_at_once_get_one_value():
    barrier, found = threading.Barrier(2), []

    class Both:
        @once
        def value(self):
            barrier.wait(10)
            return object()

    both = Both()
    others = [threading.Thread(target=lambda: found.append(both.value)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert found[0] is found[1] is both.value


def test_filters_and_shared_generators_are_put_back():
    before, state = list(warnings.filters), random.getstate()
    with pytest.raises(RuntimeWarning), filtering("error", RuntimeWarning):
        warnings.warn("as an error", RuntimeWarning, stacklevel=1)
    with filtering("ignore"):
        warnings.warn("not heard", UserWarning, stacklevel=1)
    with pytest.raises(ZeroDivisionError), from_shared_generator(3):
        first = random.random()
        raise ZeroDivisionError
    with from_shared_generator(3):
        assert random.random() == first
    assert warnings.filters == before and random.getstate() == state


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected between instructions")
def test_a_tree_is_parsed_beside_others(tmp_path):
    """numpy parses the headers of its files, and so do threads beside; a collection of garbage lets them in."""
    left = 0

    def let_in(phase, info):
        nonlocal left
        if left > 0 and threading.current_thread() is threading.main_thread():
            left -= 1
            beside = threading.Thread(target=ast.parse, args=("1",))
            beside.start()
            beside.join()

    np.savez(tmp_path / "x.npz", words=np.arange(3), others=np.arange(2))
    threshold, gc.callbacks[:] = gc.get_threshold(), [*gc.callbacks, let_in]
    try:
        gc.set_threshold(1)
        left = 1000
        with pytest.raises(SystemError, match="depth"):
            for _ in range(3):
                ast.parse("{'shape': (3,), 'order': False}")
        left = 1000
        for _ in range(3):
            assert _arrays(tmp_path / "x.npz")["words"].tolist() == [0, 1, 2]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_in)
    with pytest.raises(SystemError, match="another"):
        parsing(_other)()


@parsing
def _arrays(path):
    with np.load(path) as file:
        return dict(file)


def _other():
    raise SystemError("another")
