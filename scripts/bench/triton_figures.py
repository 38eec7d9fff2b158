"""What Triton's compiler makes of every kernel for GPUs that need not be here: a JSON line each.

    python scripts/bench/triton_figures.py --capability 80 90
"""

import argparse
import json
import sys

from pplseq.kernels.triton.figures import compiled_figures, specimens

KINDS = (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"), ("float64", "ieee"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--too-large", action="store_true", help="one tile that no GPU has room for, to see that it is noticed")
    options, fit = parser.parse_args(), True
    for capability in options.capability:
        for dtype, precision in KINDS[2:3] if options.too_large else KINDS:
            for name, function, types, constants in specimens(dtype, precision):
                if options.too_large:
                    constants = constants | dict(BR=256, BC=256, num_stages=3)
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
