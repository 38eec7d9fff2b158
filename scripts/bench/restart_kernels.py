"""Whether many parameter sets need kernels of their own: the E-step of restarts against a chain's, and EM over the prefix tree.

Three E-steps of EM from many starts at once, in processor time, one thread, after their results were compared:

* restarts: :mod:`pplseq.kernels.restart_scan`: tables over distinct inputs, rows packed, restarts as the last axis.
* chain: :mod:`pplseq.kernels.scan`, what a chain of dense matrices runs on, with restarts as
  a leading axis and its counts summed by table entry; the best of three sizes of batch.
* tree: an iteration of :mod:`pplseq.models.automata.em` beside one of the restarts' EM (E- and M-step), on labelled strings.

    python scripts/bench/restart_kernels.py
"""

from __future__ import annotations

import json

import numpy as np
from iohmm_restarts import GRAMMARS, STATES, cpu_seconds, problem, strings
from record import record

RESTARTS, ITERATIONS = 400, 10


def by_chain(ours, parameters, size: int):
    """What ``RestartProblem.expect`` gives, by the scans of a chain, so many restarts at a time."""
    import torch

    tables = ours.tables(parameters)
    parts = [
        _by_chain(ours.lattice, *(t[..., some] for t in tables)) for some in torch.arange(RESTARTS).split(size)
    ]
    return [torch.cat(values, -1) for values in zip(*parts, strict=True)]


def _by_chain(lattice, init, pair, emit):
    import torch

    from pplseq.kernels import scan

    def padded(index):
        full = torch.zeros(lattice.mask.shape, dtype=torch.long)
        full[lattice.mask] = torch.arange(lattice.num_packed) if index is None else index
        return full

    moves, seen = padded(lattice.pair_index)[1:], padded(lattice.emit_index)
    start = init.permute(2, 1, 0)[:, lattice.init_index]  # (R, B, Z)
    table = pair.permute(3, 2, 0, 1).contiguous()  # (R, L, Z, Z)
    emissions = emit.permute(2, 1, 0)[:, seen].movedim(0, 1).contiguous()  # (T, R, B, Z)
    valid = lattice.mask.unsqueeze(1).expand(emissions.shape[:-1])
    shared = table.shape[1] == 1
    matrices = scan.StepMatrices(table if shared else table[:, moves].movedim(0, 1).contiguous(), shared)
    forward = scan.forward_pass(start, matrices, emissions, valid)
    beta = scan.backward_pass(matrices, emissions, valid)
    states = scan.state_posterior(forward.filtered, beta, valid)
    pairs = scan.pair_posterior(matrices, emissions, forward, beta, valid, None)

    def by_entry(like, index, values):
        return torch.zeros_like(like).index_add_(1, index.flatten(), values)

    starts = by_entry(init.permute(2, 1, 0), lattice.init_index, states[0])
    visits = by_entry(emit.permute(2, 1, 0), seen, states.movedim(0, 1).flatten(1, 2))
    moved = pairs.view(table.shape) if shared else by_entry(table, moves, pairs.movedim(0, 1).flatten(1, 2))
    log_prob = lattice.unsort(forward.log_prob.T)
    return log_prob, starts.permute(2, 1, 0), moved.permute(2, 3, 1, 0), visits.permute(2, 1, 0)


def main() -> None:
    import torch

    from pplseq.models.automata.em import draw_tables, fit_tables
    from pplseq.models.automata.prefix_tree import PrefixTree
    from pplseq.models.iohmm.restarts.em import EMRun
    from pplseq.models.iohmm.restarts.history import RestartBlock
    from pplseq.models.iohmm.restarts.starts import draw_parameters

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rows = []
    for task, grammar in (*(("labels", grammar) for grammar in GRAMMARS), ("prefixes", 4), ("symbols", None)):
        torch.manual_seed(0)
        ours = problem(task, grammar)
        start = draw_parameters(ours, [RestartBlock(RESTARTS)])
        expected, times = ours.expect(start), {}
        for size in (RESTARTS, RESTARTS // 10, RESTARTS // 40):
            for got, value in zip(by_chain(ours, start, size), expected, strict=True):
                torch.testing.assert_close(got, value, rtol=1e-8, atol=1e-8)
            seconds = cpu_seconds(lambda size=size: by_chain(ours, start, size))
            times["chain"] = min(seconds, times.get("chain", seconds))
        times["restarts"] = cpu_seconds(lambda: ours.expect(start))
        if task == "labels":
            x, labels, _ = strings(grammar)
            tree = PrefixTree.grow([tuple(map(str, string)) for string in x], labels, ("0", "1"))
            tables = draw_tables([RestartBlock(RESTARTS)], STATES, 2, 2, np.random.default_rng(0))
            times["EM of the tree"] = cpu_seconds(lambda: fit_tables(tree, tables, ITERATIONS)) / ITERATIONS
            options = dict(max_iterations=ITERATIONS, tolerance=-np.inf)
            times["EM of restarts"] = cpu_seconds(lambda: EMRun(ours, start, **options).run()) / ITERATIONS
        times = {name: round(1e3 * seconds / RESTARTS, 5) for name, seconds in times.items()}
        rows.append({"task": task, "grammar": grammar, "steps": ours.num_steps, "milliseconds a restart": times})
        print(json.dumps(rows[-1]), flush=True)
    record("restart_kernels", rows, states=STATES, restarts=RESTARTS, threads=1)


if __name__ == "__main__":
    main()
