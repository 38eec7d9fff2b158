"""`pplseq evaluate`."""

from __future__ import annotations

from typing import Any

import click

from pplseq.cli.groups import CONFIG, ByRecipe, recipe_command
from pplseq.cli.options import Remarks, given, options_for
from pplseq.files import json_line, printable
from pplseq.recipes import Recipe
from pplseq.recipes.runs import evaluate as evaluate_run

TEXT = """How good the model of RUN (a run's folder or a saved model's) is on DATA.

Prints a JSON line for each figure (null where it is infinite), and a table on stderr. Perplexities are named: carried (the
filtered belief runs on from segment to segment) or sentence (every line from the start distribution).
"""


def _command(recipe: Recipe, run: Any) -> click.Command:
    params = [click.Argument(["data"], required=False, metavar="[DATA]"), CONFIG, *options_for(recipe.evaluation)]
    text = f"How good {run}, a {recipe.name}, is on DATA: {recipe.data}, or - for stdin."
    return recipe_command("evaluate", lambda ctx, **_: _evaluate(ctx, recipe, run), params, text)


def _evaluate(ctx: click.Context, recipe: Recipe, run: str) -> None:
    table = Table()

    def show(record: dict[str, Any]) -> None:
        click.echo(json_line(record))
        table.show(record)

    evaluate_run(run, ctx.params["data"], watch=Remarks(), each=show, **given(ctx, recipe.evaluation))


class Table:
    """The numbers of records as rows on stderr, under a line of their names."""

    names: tuple[str, ...] = ()

    def show(self, record: dict[str, Any]) -> None:
        """A row."""
        row = {name: value for name, value in record.items() if isinstance(value, (int, float)) or name == "protocol"}
        if tuple(row) != self.names:
            self.names = tuple(row)
            click.echo("  ".join(f"{name.replace('_', ' '):>12}" for name in row), err=True)
        click.echo(
            printable("  ".join(f"{_cell(value):>{max(12, len(name))}}" for name, value in row.items())), err=True
        )


def _cell(value: Any) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


evaluate: Any = ByRecipe("evaluate", make=_command, first="RUN", help=TEXT)
