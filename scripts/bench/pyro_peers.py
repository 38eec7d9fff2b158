"""Forward and backward of a dense HMM against Pyro's TraceEnum_ELBO and DiscreteHMM, at the sizes they reach.

Z = 64, 256, 512 states, T = 32 steps, 16 sequences, one thread, float32. Values and gradients are compared first.
DiscreteHMM takes a transition before its first emission; its initial distribution is set so that both agree.

    python scripts/bench/pyro_peers.py [--sizes 64,256,512]
"""

from __future__ import annotations

import argparse
import time

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceEnum_ELBO, config_enumerate
from record import in_turn, record

from pplseq.distributions import CategoricalEmission, DenseTransition
from pplseq.infer import TraceBlockedEnum_ELBO, markov
from pplseq.infer.programs.blocked_enum import no_guide

T, B, V = 32, 16, 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="64,256,512")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for num_states in map(int, options.sizes.split(",")):
        torch.manual_seed(0)
        start = torch.randn(num_states, requires_grad=True)
        matrix = torch.randn(num_states, num_states, requires_grad=True)
        words = torch.randn(num_states, V, requires_grad=True)
        parameters = (start, matrix, words)
        x = torch.randint(0, V, (B, T))

        def ours(x):
            transition = DenseTransition(start.log_softmax(-1), matrix.log_softmax(-1))
            emission = CategoricalEmission(words.log_softmax(-1))
            z = None
            with pyro.plate("sequences", B, dim=-1):
                for t in markov(range(T)):
                    z = pyro.sample(f"z_{t}", transition(z))
                    pyro.sample(f"x_{t}", emission(z), obs=x[:, t])

        def generic(x):
            initial, rows_, emit = start.softmax(-1), matrix.softmax(-1), words.softmax(-1)
            z = None
            with pyro.plate("sequences", B, dim=-1):
                for t in pyro.markov(range(T)):
                    z = pyro.sample(f"z_{t}", dist.Categorical(initial if z is None else rows_[z]))
                    pyro.sample(f"x_{t}", dist.Categorical(emit[z]), obs=x[:, t])

        def backward(loss):
            for parameter in parameters:
                parameter.grad = None
            loss.backward()
            return float(loss.detach()), [parameter.grad.clone() for parameter in parameters]

        def run_ours():
            return backward(TraceBlockedEnum_ELBO().differentiable_loss(ours, no_guide, x))

        def run_generic():
            elbo = TraceEnum_ELBO(max_plate_nesting=1)
            return backward(elbo.differentiable_loss(config_enumerate(generic, "parallel"), no_guide, x))

        def run_discrete():
            # its first step is start @ A: emit the first word separately and start from the filtered state
            log_initial, log_rows, log_emit = start.log_softmax(-1), matrix.log_softmax(-1), words.log_softmax(-1)
            first = log_initial + log_emit.T[x[:, 0]]
            total = first.logsumexp(-1)
            rest = dist.DiscreteHMM(first - total.unsqueeze(-1), log_rows, dist.Categorical(logits=log_emit), duration=T - 1)
            return backward(-(total + rest.log_prob(x[:, 1:].float())).sum())

        runs = {"pplseq": run_ours, "TraceEnum_ELBO": run_generic, "DiscreteHMM": run_discrete}
        expected = run_ours()
        for name, run in list(runs.items())[1:]:
            loss, gradients = run()
            close = all(torch.allclose(a, b, rtol=2e-2, atol=2e-3) for a, b in zip(gradients, expected[1], strict=True))
            if abs(loss - expected[0]) > 1e-3 * abs(loss) or not close:
                raise SystemExit(f"{name} at Z = {num_states} does not agree with pplseq: no speed is reported")
        begin = time.perf_counter()
        times = in_turn(runs, repeat=3 if num_states > 100 else 5)
        row = {"states": num_states, **{f"{name}_ms": 1e3 * value for name, value in times.items()}}
        row |= {f"ratio_{name}": times[name] / times["pplseq"] for name in list(runs)[1:]}
        print(row, f"{time.perf_counter() - begin:.0f} s", flush=True)
        rows.append(row)
    record("pyro_peers", rows, steps=T, sequences=B, words=V, threads=1, dtype="float32")


if __name__ == "__main__":
    main()
