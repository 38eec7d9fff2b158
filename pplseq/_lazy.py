"""Names that are imported on first use, so that importing a room costs nothing (`pplseq --help` must not load torch)."""

from __future__ import annotations

import importlib


def lazy_names(package: str, names: dict[str, str]):
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose public names live in the given submodules."""

    def __getattr__(name: str):
        if name in names:
            where = names[name]
            return getattr(importlib.import_module(where[1:] if where.startswith("@") else f"{package}.{where}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__():
        return sorted(names)

    return __getattr__, __dir__, sorted(names)
