"""`pplseq report`."""

from __future__ import annotations

from typing import Any

import click

from pplseq.cli.groups import CONFIG, ByRecipe, recipe_command
from pplseq.cli.options import Remarks, given, options_for
from pplseq.files import printable
from pplseq.recipes import Recipe
from pplseq.recipes.runs import report as write_report

TEXT = """One HTML page about RUN (a run's folder or a saved model's).

The page holds everything it needs: no scripts, no other files. Learning curves come from the run's metrics.jsonl, everything
else from the model and its data; without either, the page says what is missing.
"""


def _command(recipe: Recipe, run: Any) -> click.Command:
    params: list[click.Parameter] = [CONFIG, *options_for(recipe.reporting)]
    return recipe_command("report", lambda ctx, **_: _report(ctx, recipe, run), params, TEXT)


def _report(ctx: click.Context, recipe: Recipe, run: str) -> None:
    for path in write_report(run, watch=Remarks(), **given(ctx, recipe.reporting)):
        click.echo(printable(str(path)))


report: Any = ByRecipe("report", make=_command, first="RUN", help=TEXT)
