"""Names that are imported on first use, so that importing a room costs nothing (`pplseq --help` must not load torch)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str, names: dict[str, str], needs: Mapping[str, str] | None = None):
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose public names live in the given submodules.

    Args:
        needs: names that need another library, and which: where it is missing ``__all__`` lacks them, for ``import *``.
    """

    def __getattr__(name: str):
        if name in names:
            where = names[name]
            return getattr(importlib.import_module(where[1:] if where.startswith("@") else f"{package}.{where}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__():
        return sorted(names)

    missing = {name for name, library in (needs or {}).items() if find_spec(library) is None}
    return __getattr__, __dir__, sorted(names.keys() - missing)


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
