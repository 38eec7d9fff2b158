"""A training step of a large VLHMM on a GPU: by kernels, by their twins in torch, and captured in a CUDA graph.

The three losses are compared before anything is timed. Times are of the device, between events. Without a GPU `--dry-run` goes
through the same lines, small, with the kernels interpreted.

    python scripts/bench/gpu_step.py --out runs/gpu/gpu_step.json
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from record import machine

from pplseq import checks
from pplseq.kernels.triton import launch
from pplseq.models import VLHMM


def make(transition: str, states: int, blocks: int, hidden: int, dtype: str, device: str) -> VLHMM:
    torch.manual_seed(0)
    words = torch.arange(10000 if device == "cuda" else 50) % blocks
    model = VLHMM(
        states, num_words=len(words), blocks=words, hidden_size=hidden, transition=transition, reset_id=0, shared_layer=True,
        normalizer_dtype=dtype,
    )  # fmt: skip
    return model.to(device).train()


def loss_of(model: VLHMM, x: torch.Tensor) -> torch.Tensor:
    with checks.trusted(), checks.whole_text():
        chain = model._direct_chain(x)
        assert chain is not None
        return -chain.log_prob().sum() / x.numel()


def milliseconds(step, device: str, repeat: int) -> float:
    """The least of several, after one."""
    step()
    found = []
    for _ in range(repeat):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end))
        else:
            began = time.process_time()
            step()
            found.append(1000 * (time.process_time() - began))
    return min(found)


def captured(step):
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, results = ("cpu" if options.dry_run else "cuda"), []
    sizes = [(8, 4)] if options.dry_run else [(4096, 128), (32768, 128)]
    rows, length, hidden, repeat = (2, 3, 4, 1) if options.dry_run else (64, 32, 256, 20)
    for transition in ("hierarchical", "softmax"):
        for states, blocks in sizes:
            for dtype in ("float32", "bfloat16"):
                if options.dry_run and dtype == "bfloat16":
                    continue  # the interpreter's products of bfloat16 numbers are wrong
                model = make(transition, states, blocks, hidden, dtype, device)
                x = torch.randint(model.num_words, (rows, length), device=device)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=device == "cuda")

                def step(model=model, x=x, optimizer=optimizer):
                    optimizer.zero_grad(set_to_none=True)
                    loss = loss_of(model, x)
                    loss.backward()
                    optimizer.step()
                    return loss

                with launch.interpreted() if options.dry_run else nullcontext():
                    by_kernels = float(loss_of(model, x).detach())
                with launch.twins_only():
                    by_twins = float(loss_of(model, x).detach())
                tolerance = 1e-4 if dtype == "float32" else 2e-2
                assert abs(by_kernels - by_twins) < tolerance * abs(by_twins), (transition, states, dtype, by_kernels, by_twins)
                found = {"transition": transition, "states": states, "dtype": dtype, "loss": by_kernels}
                found["loss_of_twins"] = by_twins
                with launch.interpreted() if options.dry_run else nullcontext():
                    found["kernels_ms"] = milliseconds(step, device, repeat)
                with launch.twins_only():
                    found["twins_ms"] = milliseconds(step, device, max(1, repeat // 4))
                if device == "cuda":
                    try:
                        found["graph_ms"] = milliseconds(captured(step), device, repeat)
                    except RuntimeError as error:
                        found["graph_refused"] = str(error).splitlines()[0]
                    found["peak_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
                results.append(found)
                print(json.dumps(found), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
