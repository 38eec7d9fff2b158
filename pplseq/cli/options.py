"""From the fields of settings to the options of a command, grouped as the classes are that bring them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from typing import Any

import click

from pplseq import checks
from pplseq.files import printable
from pplseq.recipes.settings import Option, fill, options_of, read_toml
from pplseq.runs.progress import Watch


class Value(click.ParamType):
    """A value of an option, read as settings read it."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = "duration" if option.duration else {int: "integer", float: "float"}.get(option.kind, "text")

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        """The choices, where there are some."""
        return f"[{'|'.join(self.option.choices)}]" if self.option.choices else None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or click's error with the message of the settings."""
        try:
            return self.option.read_text(value) if isinstance(value, str) and not self.option.repeat else value
        except (ValueError, TypeError) as error:
            self.fail(str(error), param, ctx)


class GroupedOption(click.Option):
    """An option that knows the heading over it. One of several values between commas is refused where it is given one by one,
    as only the last of them would count; a whole list takes the place of another."""

    group, many = "", False

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """As click, but the parser looks whether an option of several values was there before."""
        super().add_to_parser(parser, ctx)
        if not self.many:
            return
        for name in self.opts:
            option = parser._long_opt.get(name) or parser._short_opt.get(name)
            if option is not None:
                option.process = self._once(option.process, name, ctx)

    def _once(self, process: Callable[[str, Any], None], name: str, ctx: click.Context) -> Callable[[Any, Any], None]:
        def once(value: Any, state: Any) -> None:
            if self.name in state.opts and "," not in f"{state.opts[self.name]}{value}":
                both = f"{state.opts[self.name]},{value}"
                raise click.UsageError(f"{name} was given twice; write all its values at once, with commas: {name} {both}", ctx)
            process(value, state)

        return once


class GroupedCommand(click.Command):
    """A command whose help stands under headings, that says whose option a foreign one is, and whose errors name its flags.

    Args:
        owners: from the name of an option that this command lacks to those who have it.
    """

    def __init__(self, *args: Any, owners: Callable[[str], str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.owners = owners

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, with a better message for an option of another command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            owners = "" if self.owners is None else self.owners(error.option_name.lstrip("-").replace("-", "_"))
            if not owners:
                raise
            message = f"{error.option_name} is {owners}; {ctx.info_name} does not read it, leave it out"
            raise click.UsageError(message, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """As click; what the library says of an argument of Python is said of the flag that stands for it."""
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError, FileNotFoundError) as error:
            of_file = str(error).startswith(str(ctx.params.get("config")))  # where settings are named as they are in Python
            said = str(error) if of_file else in_flags(str(error), self.params)
            if type(error) not in (ValueError, TypeError, FileNotFoundError) or said == str(error):
                raise
            raise type(error)(said).with_traceback(error.__traceback__) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "group", "") or "Options", []).append(record)
        general = sections.pop("Options", [])
        for title, rows in [*sections.items(), ("Options", general)]:
            with formatter.section(title):
                formatter.write_dl(rows)


ARGUMENT = re.compile(r"(?<![\w.'\"(/-])(\w+)(?:=| = )('[^']*'|\"[^\"]*\"|[\w.+-]*\w|\.\.\.)")
SUBJECT = re.compile(r"(?:^(?=\w+(?:: | must ))|(?=\w+ cannot change)|(?<![\w.'\"(/-])(?=[a-z]+_))(\w+)(?![\w('\"/]|\.\w)")
TWICE = re.compile(r"(--[\w-]+(?: \w+)?)(?: \(\1\)|, \1\b)")  # where the library says both
LIST = re.compile(r"(?<=[,:] )[a-z]\w*(?:, [a-z]\w*)+(?![\w=('\"/.])")


def in_flags(message: str, params: Iterable[click.Parameter]) -> str:
    """A message with the flags of a command in place of arguments: ``transition='softmax'`` is ``--transition softmax``.

    What it shows of Python, ``f(x, seed=0)``, stays.
    """
    known = {param.name: param for param in params if isinstance(param, click.Option)}

    def flagged(found: re.Match[str]) -> str:
        option, value = known.get(found[1]), found[2].strip("'\"") if found.re is ARGUMENT else None
        if option is None or re.search(r"\w\([^()]*$", found.string[: found.start()]):
            return found[0]
        if not option.is_flag or value is None:
            return option.opts[0] if value is None else f"{option.opts[0]} {value}"
        switch = option.opts if value == "True" else option.secondary_opts
        return switch[0] if switch and "= " not in found[0] else f"{option.opts[0]} = {value}"

    def all_flagged(found: re.Match[str]) -> str:
        options = [known.get(name) for name in found[0].split(", ")]
        return found[0] if None in options else ", ".join(option.opts[0] for option in options if option is not None)

    return TWICE.sub(r"\1", SUBJECT.sub(flagged, LIST.sub(all_flagged, ARGUMENT.sub(flagged, message))))


def options_for(settings: type, names: Iterable[str] | None = None) -> list[click.Option]:
    """Click options of the fields of settings (only these `names`); what is not given does not reach the command's function."""
    return [_option(option) for name, option in options_of(settings).items() if names is None or name in names]


def _option(option: Option) -> click.Option:
    flag = "--" + option.name.replace("_", "-")
    required = option.default is MISSING
    default = "" if required or option.default in (None, "", ()) else f"  [default: {_shown(option.default)}]"
    more: dict[str, Any] = {"type": Value(option), "multiple": option.repeat, "required": required}
    if option.kind is bool:
        flag, more = f"{flag}/--no-{option.name.replace('_', '-')}", {"is_flag": True}
    made = GroupedOption(
        [option.name, *(option.flag or flag).split(",")], default=None, help=option.help + default, **more
    )
    made.group, made.many = option.group, option.many and not option.repeat
    return made


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def given(ctx: click.Context, settings: type) -> dict[str, Any]:
    """What the command line says of settings; a file named by --config says the rest."""
    source = click.core.ParameterSource.COMMANDLINE
    options = [name for name in options_of(settings) if ctx.get_parameter_source(name) is source]
    return {**from_file(ctx.params.get("config"), settings), **{name: ctx.params[name] for name in options}}


def from_file(path: Any, settings: type) -> dict[str, Any]:
    """The settings of a TOML file, checked; `model` and `data` are for the command."""
    if path is None:
        return {}
    table = read_toml(path)
    for name in ("model", "data"):
        if not isinstance(value := table.pop(name, ""), str):
            raise ValueError(f"{path}: {name} must be a string, got {checks.shown(value)}")
    fill(settings, table, where=f"{path}: ")
    return table


class Remarks(Watch):
    """Says remarks on stderr, and nothing else."""

    def say(self, line: str) -> None:
        """A line."""
        click.echo(printable(line), err=True)
