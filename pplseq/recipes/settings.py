"""Settings as dataclasses: their fields are a command's options, the keys of a TOML file and what a run's folder keeps.

Nothing is said twice: a field's type and default are the option's, its help stands in the class's docstring under ``Args:``,
and the docstring's first line is the heading over the options that the class brings. Classes are combined by inheritance::

    @dataclass(kw_only=True)
    class Reading:
        \"\"\"Reading the text.

        Args:
            lower: lower-case the text.
            unit: what a pair may not cross.
        \"\"\"

        lower: bool = setting(False, flag="--lower/--no-lower")
        unit: Literal["line", "article"] = "line"

Types: bool, int, float, str, Path, any of them ``| None`` (written ``none``), ``tuple[..., ...]`` (commas between), `Literal`
of strings, and :data:`Duration`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pplseq import checks
from pplseq.checks import nearest, setting  # noqa: F401  (which fields are made with)
from pplseq.folder import FolderError, content_of, sound

Duration = Annotated[float, "duration"]  # seconds; as text also 90s, 10m, 2h, 1d
Bounds = Annotated[int, "bounds"]  # a whole number, or two as text, 12-20, which become a pair
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", Path: "a path"}
SEAL = "# sha256 "
S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class Option:
    """A field, read: `kind` is a key of KINDS, `many` a tuple of them, `group` the heading over it."""

    name: str
    kind: type
    optional: bool
    many: bool
    duration: bool
    choices: tuple[str, ...]
    default: Any
    help: str
    group: str
    flag: str = ""
    free: bool = False
    repeat: bool = False
    check: Callable[[str, Any], Any] | None = None
    bounds: bool = False

    def read(self, value: Any, where: str = "") -> Any:
        """A value from Python or TOML as the field takes it; ValueError or TypeError where it cannot be one.

        Args:
            value: text stands for None ("none"), for seconds, for a path and for what is between commas.
            where: how a message calls it; its name by default.
        """
        where = where or self.name
        if value is None or (self.optional and isinstance(value, str) and value.lower() == "none"):
            if not self.optional:
                raise TypeError(f"{where} must be {self._expected}, got {checks.shown(value)}")
            return None
        if self.many:
            parts = value if isinstance(value, (list, tuple)) else [part.strip() for part in str(value).split(",")]
            return tuple(self._one(self._converted(part, where), where) for part in parts if part or self.repeat)
        return self._one(value, where)

    def read_text(self, text: str) -> Any:
        """A value from the command line."""
        return self.read(text if self.many or self.duration or self.bounds else self._converted(text, self.name))

    def _converted(self, value: Any, where: str) -> Any:
        if self.kind not in (int, float) or not isinstance(value, str) or (self.optional and value.lower() == "none"):
            return value
        try:
            return self.kind(value)
        except ValueError:
            raise TypeError(f"{where} must be {self._expected}, got {checks.shown(value)}") from None

    def _one(self, value: Any, where: str) -> Any:
        value = self._typed(value, where)
        return value if self.check is None else self.check(where, value)

    def _typed(self, value: Any, where: str) -> Any:
        if self.duration:
            return seconds(value, where)
        if self.bounds:
            return bounds(value, where)
        if self.kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(checks.number(where, value))
        if self.kind is Path and isinstance(value, str):
            return Path(value)
        if self.kind is str and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)  # num_states=2, where "2-8" is taken as well
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise TypeError(f"{where} must be {self._expected}, got {checks.shown(value)}")
        if self.choices and value not in self.choices:
            raise ValueError(
                f"{where} must be one of {', '.join(self.choices)}, got "
                f"{checks.shown(value)}.{nearest(str(value), self.choices)}"
            )
        return value

    @property
    def _expected(self) -> str:
        return KINDS[self.kind] + (" or none" if self.optional else "")


@functools.cache
def options_of(settings: type) -> dict[str, Option]:
    """The options of a dataclass by name: its own first, then those of the classes it inherits."""
    hints = typing.get_type_hints(settings, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(settings)}
    homes: dict[str, type] = {}  # the class that brings a field: where a subclass has another default, the first one
    helps: dict[str, str] = {}
    classes = [cls for cls in settings.__mro__ if dataclasses.is_dataclass(cls)]
    for cls in classes:
        described = _described(cls)
        for name in inspect.get_annotations(cls):
            homes[name] = cls
            helps[name] = helps.get(name) or described.get(name, "")
    found = {}
    for cls in classes:
        group = inspect.cleandoc(cls.__doc__ or "").partition("\n")[0].rstrip(".")
        for name in inspect.get_annotations(cls):
            if homes.get(name) is cls and name in fields:
                kind = _kind(hints[name])
                found[name] = Option(
                    name=name,
                    default=fields[name].default,
                    help=helps[name],
                    group=group,
                    **kind,
                    **fields[name].metadata,
                )
    return found


def fill(settings: type[S], given: Mapping[str, Any], where: str = "") -> S:
    """A dataclass of these values, each read and checked.

    Raises:
        ValueError, TypeError: an unknown name (naming the nearest), or a value that is none of its kind.
    """
    options, values = options_of(settings), {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in options:
            raise ValueError(f"{where}unknown setting {checks.shown(key)}.{nearest(name, options)}")
        try:
            values[name] = options[name].read(value)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{where}{error}") from None
    for name, option in options.items():
        if option.default is dataclasses.MISSING and name not in values:
            raise ValueError(f"{where}{name}: it has no default, give it")
    return settings(**values)


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file, names with _ for -; ValueError for a file that is not TOML."""
    try:
        return _table(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def _table(content: bytes) -> dict[str, Any]:
    try:
        table = tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError("too many brackets within each other") from None
    return {key.replace("-", "_"): value for key, value in table.items()}


def seal_toml(text: str) -> str:
    """The lines of a TOML file under a comment with their SHA-256, for :func:`read_sealed_toml`."""
    return f"{SEAL}{hashlib.sha256(text.encode()).hexdigest()} (of the other lines; who changes them removes this one)\n{text}"


def read_sealed_toml(path: Path) -> dict[str, Any]:
    """As :func:`read_toml`, where a comment of :func:`seal_toml` stands in the file after its lines were compared with it.

    Raises:
        FolderError: they are not those that were written.
    """
    content = content_of(path)
    lines = content.splitlines(keepends=True)
    seals = [line for line in lines if line.startswith(SEAL.encode())]
    rest = hashlib.sha256(b"".join(line for line in lines if line not in seals)).hexdigest()
    if seals and [line.split()[2:3] for line in seals] != [[rest.encode()]]:
        raise FolderError(
            f"{path}: damaged: its checksum is not that of its content; put back a copy of it, or, where you changed it "
            f"yourself, remove the line that begins with {SEAL.strip()!r}"
        )
    with sound(f"{path} is not TOML", "put back a copy of it"):
        return _table(content)


def to_toml(settings: Any, **before: str) -> str:
    """Lines that :func:`read_toml` and :func:`fill` turn into the same settings; None where that is the default is left out.

    Args:
        before: what stands before the settings.
    """
    import tomli_w

    table: dict[str, Any] = dict(before)
    for name, option in options_of(type(settings)).items():
        value = getattr(settings, name)
        if value is None and option.default is not None:
            value = "none"
        if value is not None:
            table[name] = str(value) if isinstance(value, Path) else value
    return tomli_w.dumps(table)


def _kind(hint: Any) -> dict[str, Any]:
    """What a type says of an option."""
    found: dict[str, Any] = {"optional": False, "many": False, "duration": False, "choices": (), "bounds": False}
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        found["optional"] = True
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        found["many"], hint = True, typing.get_args(hint)[0]
    if typing.get_origin(hint) is Annotated:
        hint, what = typing.get_args(hint)
        found[what] = True
    if typing.get_origin(hint) is typing.Literal:
        found["choices"], hint = typing.get_args(hint), str
    return found | {"kind": hint}


def _described(cls: type) -> dict[str, str]:
    """name -> text of the section ``Args:`` of a class's own docstring."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")[2].split("\n"):
        if begun := re.match(r" {4}(\w+(?:, \w+)*): (.*)", line):
            names = begun[1].split(", ")
            found |= dict.fromkeys(names, begun[2][:1].upper() + begun[2][1:])
        elif line.startswith("     "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break
    return found


def seconds(value: Any, where: str) -> float:
    """A number of seconds, or text such as 90s, 10m, 2h; ValueError for anything else."""
    found = value
    if isinstance(value, str):
        try:
            found = float(value[:-1]) * UNITS[value[-1:]] if value[-1:] in UNITS else float(value)
        except ValueError:
            found = None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not found > 0:
        raise ValueError(f"{where} must be positive seconds, or like 90s, 10m, 2h; got {checks.shown(value)}")
    return float(found)


def bounds(value: Any, where: str) -> int | tuple[int, int]:
    """A whole number, or a smaller and a larger one from text such as 12-20, or a pair; ValueError for anything else."""
    parts = re.fullmatch(r"(\d+)(?:-(\d+))?", value.strip()) if isinstance(value, str) else None
    found: Any = [int(part) for part in parts.groups() if part] if parts else value
    found = [found] if isinstance(found, int) else found
    whole = isinstance(found, (list, tuple)) and all(isinstance(part, int) and not isinstance(part, bool) for part in found)
    if whole and len(found) == 2 and found[0] > found[1] >= 0:
        raise ValueError(
            f"{where} must go from a smaller number to a larger one, like {found[1]}-{found[0]}, got {checks.shown(value)}"
        )
    if not whole or not 1 <= len(found) <= 2 or not 0 <= found[0] <= found[-1]:
        raise ValueError(f"{where} must be a whole number, or two like 12-20, got {checks.shown(value)}")
    return found[0] if len(found) == 1 else (found[0], found[1])
