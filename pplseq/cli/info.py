"""`pplseq info`."""

from __future__ import annotations

from typing import Any

import click

from pplseq.cli.groups import CONFIG, ByRecipe, readers_of, recipe_command
from pplseq.cli.options import given, options_for
from pplseq.files import json_line, printable
from pplseq.recipes import Recipe
from pplseq.recipes.runs import info as find

TEXT = """MODEL DATA: sizes of DATA, and what training MODEL on it takes in memory and time on this machine. RUN: what it is.

Nothing of the model's size is allocated: estimates come from operation counts and a short timing of the kernel that dominates.
"""
JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object.")


def _command(recipe: Recipe, run: str | None) -> click.Command:
    params: list[click.Parameter] = [JSON]
    text = f"What {run}, a {recipe.name}, is."
    if run is None:
        params = [click.Argument(["data"], metavar="DATA"), JSON, CONFIG, *options_for(recipe.settings)]
        text = f"Sizes of DATA, and what `pplseq train {recipe.name} DATA` with the same options takes."
    return recipe_command(recipe.name, lambda ctx, **_: _info(ctx, recipe, run), params, text, readers_of)


def _info(ctx: click.Context, recipe: Recipe, run: str | None) -> None:
    if run is not None:
        found = find(run)
    else:
        found = find(recipe.name, ctx.params["data"], **given(ctx, recipe.settings))
    click.echo(json_line(found) if ctx.params["as_json"] else printable(recipe.readable(found)))


info: Any = ByRecipe("info", make=_command, first="MODEL|RUN", help=TEXT)
