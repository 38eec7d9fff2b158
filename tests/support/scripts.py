"""Modules of scripts/, which are no package."""

import importlib.util
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load_script(path: str):
    """The module of scripts/<path>; sys.path, which scripts change, is afterwards what it was."""
    file = SCRIPTS / path
    spec = importlib.util.spec_from_file_location("_".join(file.with_suffix("").relative_to(SCRIPTS).parts), file)
    module, before = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module
