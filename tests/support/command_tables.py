"""Tables that commands read, and the lines of JSON that they print."""

import json
import math

import numpy as np


def write(path, rows, header="name,a,b,y,feeling"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def two_states(seed, sequences, steps):
    """A two-state system: the input moves the state, the state sets the output's slope on the input."""
    rng, rows = np.random.default_rng(seed), []
    for name in range(sequences):
        state = 0
        for _ in range(steps - name % 3):
            a, b = rng.normal(3, 2), rng.normal(-1, 5)
            state = int(rng.random() < 1 / (1 + math.exp(-(2 * (a - 3) + (2 if state else -2)))))
            y = [5 + 2 * a, -5 - a][state] + 0.1 * rng.normal()
            rows.append((f"s{name}", a, b, y, "hot" if state else "cold"))
    return rows
