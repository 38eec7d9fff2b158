"""`pplseq query`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pplseq.cli.groups import CONFIG, ByRecipe, recipe_command
from pplseq.cli.options import Remarks, given, options_for
from pplseq.files import json_line, printable
from pplseq.recipes import Recipe
from pplseq.recipes.runs import asked
from pplseq.recipes.runs import query as answers

TEXT = """Ask RUN (a run's folder or a saved model's) a QUESTION about every line of FILE (default: stdin).

A line is text, or JSON: {"words": ["a", null]} (null is a gap) or {"text": "a b"}, with an optional "id". Every line gives a
JSON line; one that cannot be answered gives {"line": N, "error": ...}, and the exit code is 1 at the end. Positions count
from 0. A number that is infinite (the log-probability of what cannot be) or missing is null.
"""


class Questions(click.Group):
    """RUN QUESTION ...: the question decides which options there are."""

    def __init__(self, recipe: Recipe, run: Any) -> None:
        super().__init__("query", subcommand_metavar="QUESTION [ARGUMENTS]...", no_args_is_help=True, help=TEXT)
        self.recipe, self.run = recipe, run

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The questions."""
        return list(self.recipe.questions_of(Path(self.run)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a question."""
        self.recipe.question(args[0])  # says what there is
        return args[0], self.get_command(ctx, args[0]), args[1:]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A question."""
        recipe, name = self.recipe, cmd_name
        file = (
            [click.Argument(["file"], default="-", metavar="[FILE]")]
            if recipe.questions[name].takes != "nothing"
            else []
        )
        params = [
            *file,
            click.Option(["--text", "_as_text"], is_flag=True, help="Print for people instead of JSON."),
            CONFIG,
            *options_for(recipe.asking, asked(recipe, name)),
        ]

        def readers(setting: str) -> str:
            which = [other for other, question in recipe.questions.items() if setting in question.reads]
            return f"an option of {', '.join(which)}" if which else ""

        def ask(ctx: click.Context, **_: Any) -> None:
            _ask(ctx, recipe, self.run, name)

        return recipe_command(name, ask, params, recipe.questions[name].text, readers)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The questions of this model."""
        with formatter.section("Questions"):
            formatter.write_dl([(name, question.text) for name, question in self.recipe.questions_of(Path(self.run)).items()])


def _ask(ctx: click.Context, recipe: Recipe, run: str, question: str) -> None:
    failed = False
    for answer in answers(run, question, ctx.params.get("file", ()), watch=Remarks(), **given(ctx, recipe.asking)):
        failed |= "error" in answer
        if ctx.params["_as_text"]:
            click.echo(printable(recipe.readable(answer)))
        else:
            click.echo(json_line(answer))
        sys.stdout.flush()
    if failed:
        ctx.exit(1)


query: Any = ByRecipe("query", make=Questions, first="RUN", help=TEXT)
