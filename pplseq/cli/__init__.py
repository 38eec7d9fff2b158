"""The `pplseq` command: parse, call a function, print.

This file imports nothing heavier than click: `pplseq --help` reads the table below, and a command's module is imported
when that command is called.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from typing import Any

import click

from pplseq.checks import nearest
from pplseq.files import printable

# name -> (module that defines a click command of the same name, - as _, one line for --help)
COMMANDS = {
    "train": ("pplseq.cli.train", "Train a model on data, or go on with a run: train MODEL DATA --out RUN."),
    "evaluate": ("pplseq.cli.evaluate", "How good the model of a run is on data: evaluate RUN DATA."),
    "query": ("pplseq.cli.query", "Exact answers about every line of a text or rows of a table: query RUN QUESTION."),
    "report": ("pplseq.cli.report", "One HTML page about a run: curves, states, blocks, posteriors."),
    "info": ("pplseq.cli.info", "Sizes of data and what a training on it will cost, or what a run is."),
    "tag": ("pplseq.cli.tag.commands", "Taggers: train them, tag files, score and compare."),
    "warm-up": ("pplseq.cli.warm_up", "Compile all loops for this machine beforehand: for images and servers."),
    "doctor": ("pplseq.cli.doctor", "What this installation is and has, and whether every family of models answers rightly."),
    "cluster": ("pplseq.cli.corpus.cluster", "Brown clusters of a text's words, in the usual `paths` format."),
    "count": ("pplseq.cli.corpus.count", "Counts of words and of word pairs at several lags, in shards that add up."),
    "count-merge": ("pplseq.cli.corpus.count_merge", "Add up counts of shards or texts."),
    "personalize": (
        "pplseq.cli.streams.personalize",
        "Adapt models to a stream of text as it comes: one line in, one out.",
    ),
    "compare-streams": ("pplseq.cli.streams.compare", "Which of two models expected each word of a stream."),
}


OUT_OF_MEMORY = ("bad_alloc", "can't allocate memory", "not enough memory")  # how C++ and torch say it


class Failed(click.ClickException):
    """An error of the library: one line on stderr, and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(printable(message))
        self.exit_code = code  # type: ignore[misc]  # click's is of the class


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and turns the library's errors into one line on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name.replace("-", "_"))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"no command {name!r}.{nearest(name, COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError, ImportError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            failure, code = error, 2
        except KeyboardInterrupt:
            # What a shell expects of a command that Ctrl-C ended; click would say 1.
            click.echo("Interrupted", err=True)
            ctx.exit(130)
        except (RuntimeError, ArithmeticError, MemoryError, OSError) as error:
            # Some of click's exceptions are RuntimeErrors, with codes of their own; a broken pipe is for click too.
            if isinstance(error, (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)):
                raise
            failure, code = error, 1
        if ctx.params.get("debug"):
            raise failure
        said = str(failure) or type(failure).__name__
        if isinstance(failure, MemoryError) or any(sign in said for sign in OUT_OF_MEMORY):
            said = f"not enough memory ({said}); give the command more (ulimit -v), or ask for fewer states or a smaller batch"
        raise Failed(said, code)


def open_closed() -> None:
    """Give standard streams that a shell has closed (`<&-`) the null device: reading ends at once, writing goes nowhere.

    Otherwise they are None to Python, and the next file that is opened takes their place to what the system writes.
    """
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if descriptor > number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


def write_utf8() -> None:
    """Text goes out as it comes in, UTF-8: into files and pipes too, where a system, as Windows, has a code page of its own.

    A terminal, and who sets PYTHONIOENCODING, say what they read; what cannot be written there is an escape, no error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            asked = stream.isatty() or os.environ.get("PYTHONIOENCODING")
            stream.reconfigure(encoding=None if asked else "utf-8", errors="backslashreplace")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="pplseq", prog_name="pplseq")
def main(debug: bool) -> None:
    """Sequence models as Pyro programs, with exact inference at very large state spaces.

    A first run: `pplseq train vlhmm builtin:python --num-states 1024 --max-time 60s --out runs/first`, then
    `pplseq evaluate runs/first` and `echo "the value of the _ is" | pplseq query runs/first infill`.
    """
    open_closed()
    write_utf8()
    log = logging.getLogger("pplseq")  # remarks of the library: that a command waits for compiling
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
