#!/usr/bin/env python
"""How far a reader has to walk: files of pplseq and Python calls that one step of a computation goes through.

    python scripts/bench/call_paths.py [vlhmm lds]

* vlhmm: one step of training (batch, loss, gradient, optimizer, belief carried over), 16 streams of 32 words, 512 states.
* lds: one iteration of EM over 4 sequences of 160 steps, 8 states, 4 coordinates.

A call is a Python function entered; calls of C functions do not count. A file counts if a function of it is entered.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import torch

import pplseq

PACKAGE = Path(pplseq.__file__).parent


class CallPath:
    """Counts Python calls between `start` and `stop`, of all code and by file of pplseq."""

    def __init__(self):
        self.all_calls, self.calls = 0, Counter()

    def start(self):
        self.all_calls, self.calls = 0, Counter()
        sys.setprofile(self._count)

    def stop(self):
        sys.setprofile(None)

    def _count(self, frame, event, _):
        if event == "call":
            self.all_calls += 1
            self.calls[frame.f_code.co_filename] += 1

    def summary(self):
        ours = {name: count for name, count in self.calls.most_common() if name.startswith(str(PACKAGE))}
        paths = {str(Path(name).relative_to(PACKAGE)): count for name, count in ours.items()}
        return {"files": len(paths), "calls": sum(paths.values()), "all_calls": self.all_calls, "by_file": paths}


def vlhmm_step():
    """The fourth step of a training: the first ones fill caches."""
    from pplseq.models import VLHMM
    from pplseq.runs.progress import Watch

    torch.manual_seed(0)
    x = torch.randint(1000, (32, 128))
    model = VLHMM(512, num_words=1000, blocks=torch.arange(1000) % 32, hidden_size=64, state_dropout=0.5, reset_id=0)
    path = CallPath()

    class Between(Watch):
        def step(self, progress, num_tokens):
            if progress.step == 3:
                path.start()
            elif progress.step == 4:
                path.stop()

    model.fit(x, protocol="carried", epochs=1, log_interval=10**6, seed=0, watch=Between())
    return path.summary()


def lds_iteration():
    """The third iteration of EM."""
    from pplseq.models import LDS

    torch.manual_seed(0)
    x = torch.randn(4, 160, 4).cumsum(1) / 10
    path, model, done = CallPath(), LDS(8, 4), []
    maximize = model.maximize

    def counted(*args, **kwargs):  # an iteration: from one M-step's end to the next one's
        result = maximize(*args, **kwargs)
        done.append(path.stop())
        if len(done) == 2:
            path.start()
        return result

    model.__dict__["maximize"] = counted
    model.fit(x, max_iterations=3, tolerance=0.0)
    return path.summary()


MEASURED = {"vlhmm": vlhmm_step, "lds": lds_iteration}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[[], *MEASURED])
    for name in parser.parse_args().what or MEASURED:
        print(json.dumps({"what": name, **MEASURED[name]()}, indent=1))


if __name__ == "__main__":
    main()
