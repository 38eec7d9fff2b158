"""Names that are imported on first use, so that importing a room costs nothing (`pplseq --help` must not load torch)."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from pplseq.threads import parsing


def lazy_names(package: str, file: str):
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose public names are imported in its stub, ``__init__.pyi``,
    which editors and type checkers read.

    Args:
        file: ``__file__`` of the package.
    """
    names = {}
    for node in parsing(ast.parse)(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names |= {alias.name: module for alias in node.names if alias.asname}

    def __getattr__(name: str):
        if name in names:
            return getattr(importlib.import_module(names[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__():
        return sorted(names)

    return __getattr__, __dir__, sorted(names)


class Registry(MutableMapping[str, Any]):
    """Classes by the names under which they are saved and asked for, each imported when it is asked for.

    Args:
        what: what the classes are, for messages ("model").
        package: where the modules of `places` are.
        places: name -> "module:Class", the module as seen from the package.
    """

    def __init__(self, what: str, package: str = "", places: Mapping[str, str] | None = None):
        self.what, self._found = what, {}
        for name, place in (places or {}).items():
            self.register(name, f"{package}.{place}" if package else place)

    def register(self, name: str, place: Any) -> Any:
        """Adds a class, or "module:Class" where it is; the place itself is returned."""
        self._found[name] = place
        return place

    def __getitem__(self, name: str) -> Any:
        place = self._found[name]
        if isinstance(place, str):
            module, _, attribute = place.partition(":")
            found = importlib.import_module(module)
            if not hasattr(found, attribute):
                raise ImportError(f"{module} has no {attribute}")
            place = getattr(found, attribute)
        return place

    def __setitem__(self, name: str, place: Any) -> None:
        self.register(name, place)

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __contains__(self, name: object) -> bool:  # Mapping's own would import the class
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def named(self, name: str) -> Any:
        """The class of a name.

        Raises:
            ValueError: for an unknown one; lists the known ones.
        """
        if name not in self:
            raise ValueError(f"unknown {self.what} {name!r}; known: {', '.join(self)}")
        return self[name]
