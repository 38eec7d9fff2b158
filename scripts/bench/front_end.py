"""What the Python of the front ends costs per batch, apart from the chain itself.

Each front end runs on a chain so small (2 states, 2 sequences) that its time is Python; the chain's own time, measured on
the same chain, is taken off. Recorded: microseconds a step (slope over T). Vectorised and one-site: milliseconds, flat in T.

    python scripts/bench/front_end.py
"""

from __future__ import annotations

import pyro
import torch
from record import record, seconds

from pplseq.distributions import BlockHMM, CategoricalEmission, DenseTransition
from pplseq.infer import BlockedEnum, markov
from pplseq.infer.discrete.build import build_chain


def main() -> None:
    torch.set_num_threads(1)
    transition = DenseTransition(torch.zeros(2).log_softmax(-1), torch.zeros(2, 2).log_softmax(-1))
    emission = CategoricalEmission(torch.zeros(2, 3).log_softmax(-1))
    rows = []
    for num_steps in (8, 32, 128):
        x = torch.randint(0, 3, (2, num_steps))
        lengths = torch.tensor([num_steps, num_steps - 1])
        steps = torch.arange(num_steps).unsqueeze(-1)

        def loop(vectorize):
            z = None
            with BlockedEnum(vectorize=vectorize), pyro.plate("sequences", 2, dim=-1):
                for t in markov(range(num_steps)):
                    with pyro.poutine.mask(mask=t < lengths):
                        z = pyro.sample(f"z_{t}", transition(z))
                        pyro.sample(f"x_{t}", emission(z), obs=x[:, t])

        def one_site():
            with pyro.plate("sequences", 2, dim=-1):
                pyro.sample("x", BlockHMM(transition, emission, num_steps, lengths=lengths), obs=x)
            BlockHMM(transition, emission, num_steps, lengths=lengths).log_prob(x)

        def chain():
            build_chain(transition, emission, x.T, valid=steps < lengths).log_prob()

        with torch.no_grad():
            row = {"steps": num_steps, "chain_ms": 1e3 * seconds(chain, repeat=31)}
            row["recorded_ms"] = 1e3 * seconds(lambda: loop(False), repeat=31) - row["chain_ms"]
            row["vectorised_ms"] = 1e3 * seconds(lambda: loop(True), repeat=31) - row["chain_ms"]
            row["one_site_ms"] = 1e3 * seconds(one_site, repeat=31) - row["chain_ms"]
        rows.append(row)
        print(row)
    slope = 1e3 * (rows[-1]["recorded_ms"] - rows[0]["recorded_ms"]) / (rows[-1]["steps"] - rows[0]["steps"])
    print(f"recorded: {slope:.1f} us a step")
    record("front_end", rows, recorded_us_per_step=slope, threads=1)


if __name__ == "__main__":
    main()
