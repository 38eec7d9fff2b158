"""`pplseq train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pplseq.cli.groups import CONFIG, ByRecipe, readers_of, recipe_command
from pplseq.cli.options import given, options_for
from pplseq.files import json_line
from pplseq.recipes import Recipe
from pplseq.recipes.run_folder import read_record
from pplseq.recipes.runs import train as train_model
from pplseq.recipes.settings import read_toml
from pplseq.runs.processes import is_first
from pplseq.runs.progress import TrainingBar, Watch

TEXT = """Train MODEL on DATA in a new folder, --out RUN; or go on with one, --resume RUN.

The run's folder gets config.toml (its settings), metrics.jsonl and the checkpoints best/ and last/. Ctrl-C and SIGTERM save
before they stop, and --resume goes on to the same numbers. Prints a JSON line at the end; where --max-time passed before the
first step, the exit code is 1.
"""


class Train(ByRecipe):
    """MODEL may be left out where a run that is resumed, or a file of settings, says which it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the model first that a run or a file names."""
        if args and args[0].startswith("-"):
            for flag, model_of in (("--resume", lambda run: read_record(run).recipe.name), ("--config", _model_in)):
                value = _value_of(flag, args)
                if value is not None:
                    return super().parse_args(ctx, [model_of(value), *args])
        return super().parse_args(ctx, args)


def _value_of(flag: str, args: list[str]) -> str | None:
    for place, arg in enumerate(args):
        if arg == flag and place + 1 < len(args):
            return args[place + 1]
        if arg.startswith(flag + "="):
            return arg.partition("=")[2]
    return None


def _model_in(path: str) -> str:
    model = read_toml(Path(path)).get("model")
    if not isinstance(model, str):
        raise ValueError(f"{path}: model must be a string, got {model!r}; or give a MODEL on the command line")
    return model


def _command(recipe: Recipe, _: str | None) -> click.Command:
    params = [
        click.Argument(["data"], required=False, metavar="DATA"),
        click.Option(["--out"], type=click.Path(file_okay=False, path_type=Path), help="Folder of the new run."),
        click.Option(["--resume"], type=click.Path(path_type=Path), help="Continue a run's folder where it stopped."),
        CONFIG,
        *options_for(recipe.settings),
    ]
    text = f"{recipe.name}: {recipe.text}.\n\nDATA is {recipe.data}."
    return recipe_command(recipe.name, lambda ctx, **_: _train(ctx, recipe), params, text, readers_of)


def _train(ctx: click.Context, recipe: Recipe) -> None:
    out, resume, config, data = (ctx.params[name] for name in ("out", "resume", "config", "data"))
    settings = given(ctx, recipe.settings)
    if resume is not None and (out is not None or config is not None):
        raise click.UsageError(
            "--resume continues a run in its own folder with its own settings: leave out --out and --config"
        )
    folder = out if resume is None else resume
    if folder is None:
        raise click.UsageError("give the new run a folder with --out RUN, or continue one with --resume RUN")
    if data is None and config is not None:
        data = read_toml(config).get("data")
    if data is None and resume is None:
        raise click.UsageError(f"give DATA: {recipe.data}")
    watch = TrainingBar() if is_first() else Watch()  # which is there before torch is
    summary = train_model(recipe.name, data, folder=folder, resume=resume is not None, watch=watch, **settings)
    if is_first():
        click.echo(json_line(summary))
    if not summary["steps"] and summary["stop_reason"] == "max_time":
        ctx.exit(1)  # there is no model, and what comes next should not begin


train: Any = Train("train", make=_command, first="MODEL", help=TEXT)
