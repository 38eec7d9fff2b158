"""Type checks by pyright: no error anywhere in pplseq/.

python scripts/typecheck.py        (what `make lint` runs)
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("arviz", "transformers")  # where they are not installed, nothing is known of them


def errors() -> list[dict]:
    """What pyright finds, with paths from the project's root."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    try:
        report = json.loads(found.stdout)
    except ValueError:
        raise SystemExit(f"pyright did not run:\n{found.stdout}{found.stderr}") from None
    every = [error for error in report["generalDiagnostics"] if error["severity"] == "error"]
    for error in every:
        error["file"] = str(Path(error["file"]).relative_to(ROOT))
    missing = tuple(f'Import "{name}' for name in EXTRAS if find_spec(name) is None)
    every = [error for error in every if not missing or not error["message"].startswith(missing)]
    if find_spec("triton") is None:  # which there is for some machines only
        every = [error for error in every if not error["file"].startswith("pplseq/kernels/triton/")]
    return every


def main() -> None:
    found = errors()
    for error in found:
        print(f"{error['file']}:{error['range']['start']['line'] + 1}: {error['message'].splitlines()[0]}")
    if found:
        raise SystemExit(f"{len(found)} errors")
    print("no errors")


if __name__ == "__main__":
    main()
