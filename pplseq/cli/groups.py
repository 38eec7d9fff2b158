"""Commands whose options depend on the recipe: that of a MODEL that is named, or the one that a RUN says it was made by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pplseq.cli.options import GroupedCommand
from pplseq.recipes import Recipe
from pplseq.recipes.recipe import RECIPES, recipe_named
from pplseq.recipes.runs import recipe_of
from pplseq.recipes.settings import options_of


class ByRecipe(click.Group):
    """`pplseq COMMAND FIRST ...`: FIRST decides which options there are.

    Args:
        make: the command for a recipe and the run, None where a model is named.
        first: MODEL, RUN or both, as in "MODEL|RUN".
    """

    def __init__(
        self, *args: Any, make: Callable[[Recipe, str | None], click.Command], first: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, subcommand_metavar=f"{first} [ARGUMENTS]...", no_args_is_help=True, **kwargs)
        self.make, self.first = make, first

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, with a better message for options before FIRST."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            raise click.UsageError(f"{self.first} comes first: {ctx.command_path} {self.first} ...", ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that FIRST stands for."""
        first = args[0]
        is_run = "RUN" in self.first and len(args) == 1 and Path(first).is_dir()  # a run may be called as a model is
        if "MODEL" in self.first and not is_run and (first in RECIPES or "RUN" not in self.first):
            return first, self.make(recipe_named(first), None), args[1:]
        if "MODEL" in self.first and not Path(first).exists():
            recipe_named(first)  # says what there is
        return first, self.make(recipe_of(first), first), args[1:]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The models, where one is named first."""
        return list(RECIPES) if "MODEL" in self.first else []

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What can stand first."""
        if "MODEL" in self.first:
            with formatter.section("Models"):
                formatter.write_dl([(recipe.name, recipe.text) for recipe in RECIPES.values()])
        with formatter.section("More"):
            formatter.write_text(f"pplseq {ctx.info_name} {self.first} --help")


def recipe_command(
    name: str, function: Callable[..., Any], params: list[click.Parameter], text: str, owners: Any = None
) -> click.Command:
    """A command whose help has the options of settings under their headings; the function is called with the context."""
    return GroupedCommand(name, callback=click.pass_context(function), params=params, help=text, owners=owners)


OF_TABLES = ("outputs", "inputs", "sequence_id", "order_by")


def readers_of(setting: str) -> str:
    """Which trainings read a setting: "a setting of vlhmm, hmm"; "" where none does."""
    readers = [recipe.name for recipe in RECIPES.values() if setting in options_of(recipe.settings)]
    tables = ", which learn from tables (iohmm without --inputs is the HMM of numbers)" if setting in OF_TABLES else ""
    return f"a setting of {', '.join(readers)}{tables}" if readers else ""


CONFIG = click.Option(
    ["--config"],
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings as TOML, named as the flags are; a flag wins over the file.",
)
