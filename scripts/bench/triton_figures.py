"""What Triton's compiler makes of every kernel for GPUs that need not be here: a JSON line each.

Registers, spills, shared memory and instructions.

    python scripts/bench/triton_figures.py --capability 80 90
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

KINDS = (("float32", "tf32x3"), ("float32", "tf32"), ("bfloat16", "ieee"), ("float64", "ieee"))
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}  # that a program may have, by compute capability
REGISTERS, SHARED_OF_SM, WARPS_OF_SM = 65536, {80: 164 * 1024, 90: 228 * 1024}, 64  # of a multiprocessor


class Figures(NamedTuple):
    """Of a compiled kernel: registers of a thread, bytes spilled to memory, bytes of shared memory, warps, tensor products."""

    registers: int
    spilled: int
    shared: int
    warps: int
    tensor_products: int

    def fits(self, capability: int) -> bool:
        """Whether it can be launched, and keeps its numbers in registers."""
        return self.spilled == 0 and self.shared <= SHARED_BYTES[capability]

    def occupancy(self, capability: int) -> float:
        """Share of a multiprocessor's warps that can be resident."""
        by_registers = REGISTERS // (max(self.registers, 1) * 32 * self.warps)
        by_shared = SHARED_OF_SM[capability] // (self.shared + 1024)
        return min(by_registers, by_shared, WARPS_OF_SM // self.warps) * self.warps / WARPS_OF_SM


def compiled_figures(function: Any, capability: int, types: dict[str, str], **options: Any) -> Figures:
    """Compiles a kernel for a GPU of this compute capability.

    Args:
        types: of the arguments that are not constants, as Triton writes them ("*fp32", "i32").
        options: values of the constants, num_warps, num_stages.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    settings: dict[str, Any] = {"enable_fp_fusion": True}
    settings |= {name: options.pop(name) for name in ("num_warps", "num_stages") if name in options}
    names = list(function.arg_names)
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {(k,): [["tt.divisibility", 16]] for k, name in enumerate(names) if types.get(name, "").startswith("*")}
    constants = {(names.index(name),): value for name, value in options.items()}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=settings)
    ptx = made.asm["ptx"]
    said = _assembled(ptx, capability)
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", said))
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", said))
    products = len(re.findall(r"wgmma\.mma_async|mma\.sync", ptx))
    return Figures(registers, spilled, made.metadata.shared, made.metadata.num_warps, products)


def _assembled(ptx: str, capability: int) -> str:
    """What the assembler says of a program."""
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"\.target (\w+)", ptx)
    assert target is not None, "every program names its target"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kernel.ptx"
        place.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", "--gpu-name", target[1], str(place), "-o", str(place) + ".o"]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"the assembler refuses the kernel: {run.stderr[:500]}")
    return run.stderr


class Specimen(NamedTuple):
    """A kernel with the arguments that it is compiled for."""

    name: str
    function: Any
    types: dict[str, str]
    options: dict[str, Any]


POINTERS = {"bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64"}
INTEGERS = ("NUMBER", "ORDER", "FIRST", "WHICH", "GROUP", "FIRST_PAIR", "ENTERED", "COUNT", "PATH", "PATHS")


def specimens(dtype: str = "float32", precision: str = "tf32x3", *, width: int = 256, features: int = 256) -> list[Specimen]:
    """All kernels at the sizes of a large model.

    Args:
        dtype: of features; messages are float32 beside bfloat16. precision: of float32 products, "tf32x3" or "tf32".
        width: K. features: D; of float64 at most what the kernels take.
    """
    import torch

    from pplseq.kernels.triton import chain, moves, pairs, paths, shared
    from pplseq.kernels.triton.chain import tile_of

    size = {"bfloat16": 2, "float32": 4, "float64": 8}[dtype]
    tl = chain.tl
    given, real = POINTERS[dtype], POINTERS["float64" if dtype == "float64" else "float32"]
    REAL = tl.float64 if dtype == "float64" else tl.float32
    messages = torch.float64 if dtype == "float64" else torch.float32
    common: dict[str, Any] = dict(PRECISION=precision, REAL=REAL)

    def types(function: Any, pointers: str, narrow: tuple[str, ...] = (), /, **others: str) -> dict[str, str]:
        names = [name for name in function.arg_names if name in others or name in pointers.split()]
        known = {name: "*i64" if name in INTEGERS else given if name in narrow else real for name in names} | others
        return known | {name: "i32" for name in function.arg_names if name.startswith("num_") or name == "width"}

    found = []

    def add(name: str, function: Any, of: dict[str, str], **options: Any) -> None:
        found.append(Specimen(name, function, of, options))

    of = types(pairs.pair_matrices, "OUT INTO ENTERED COUNT LOG", ("OUT", "INTO"), LEFT="*i64", FILLED="*i8")
    add("pair matrices", pairs.pair_matrices, of, HAS_FILLED=True, **common, **pairs.matrix_tile(width, size))
    pointers = "LOG OTHER WHICH GROUP FIRST_PAIR ORDER FIRST LEFT RIGHT SHIFT LEAVING SCALE GRAD"
    of = types(pairs.feature_gradients, pointers, ("OTHER",))
    for side in (True, False):
        name = f"pair gradient of {'out' if side else 'into'}"
        rough = {"PRECISION": "ieee" if precision == "tf32x3" else precision}
        add(name, pairs.feature_gradients, of, OF_OUT=side, **common | rough, **pairs.gradient_tile(features, size))
    if dtype == "bfloat16":
        return found  # messages are never that rough
    flags = dict(FLAGS="*i32", ONLY="*i32")
    of = types(chain.filter_rows, "INIT TABLE NUMBER GATE EMIT BEGIN MESSAGES STEPS", **flags, least="fp32")
    add("filter", chain.filter_rows, of, HAS_GATE=True, HAS_BEGIN=True, HAS_ONLY=False, REAL=REAL, **tile_of(width, messages))
    of = types(chain.look_back_rows, "TABLE NUMBER GATE EMIT AHEAD", **flags)
    add("look back", chain.look_back_rows, of, HAS_GATE=True, HAS_ONLY=False, REAL=REAL, **tile_of(width, messages, 8192))
    of = types(chain.count_pairs, "TABLE ORDER FIRST LEFT RIGHT SHIFT SCALE COUNTS")
    add("pair counts", chain.count_pairs, of, REAL=REAL, BI=64, BJ=64, num_warps=4)
    more = dict(FLAGS="*i32", POINTERS="*i32", LOG_PROB="*fp64", least="fp32")
    of = types(paths.best_rows, "INIT TABLE NUMBER EMIT BEGIN SCORES PATH", **more)
    add("best path", paths.best_rows, of, HAS_BEGIN=True, REAL=REAL, **tile_of(width, messages))
    of = types(paths.draw_rows, "TABLE NUMBER FILTERED BEGIN PATHS", FLAGS="*i32", UNIFORM="*fp64")
    add("posterior sample", paths.draw_rows, of, HAS_BEGIN=True, BK=width, num_warps=4)
    of = types(shared.multiply_rows, "START MATRIX WEIGHT MESSAGES TOTALS", FLAGS="*i32")
    add("dense scan", shared.multiply_rows, of, REAL=REAL, **shared.TILE)
    for back in (False, True):
        of = types(moves.move_states, "MESSAGE TABLE MOVED", reach="fp32")
        name = f"move of a product{' back' if back else ''}"
        add(name, moves.move_states, of, BACK=back, **common, **moves.move_tile(width, 64, size))
    of = types(moves.add_moves, "LEFT RIGHT TABLE WEIGHT SCALE COUNTS")
    add("moves of a product", moves.add_moves, of, REAL=REAL, **moves.COUNT_TILE)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--too-large", action="store_true", help="one tile that no GPU has room for, to see that it is noticed")
    options, fit = parser.parse_args(), True
    for capability in options.capability:
        for dtype, precision in KINDS[2:3] if options.too_large else KINDS:
            for name, function, types, constants in specimens(dtype, precision):
                if options.too_large:
                    constants = constants | dict(BI=256, BD=256, num_stages=3)
                figures = compiled_figures(function, capability, types, **constants)
                fit &= figures.fits(capability)
                found = {"kernel": name, "capability": capability, "dtype": dtype, "precision": precision, **figures._asdict()}
                found |= {"occupancy": figures.occupancy(capability), "fits": figures.fits(capability)}
                print(json.dumps(found), flush=True)
                if options.too_large:
                    return 0 if fit else 1
    return 0 if fit else 1


if __name__ == "__main__":
    sys.exit(main())
