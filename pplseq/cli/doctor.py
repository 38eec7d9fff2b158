"""`pplseq doctor`."""

from __future__ import annotations

import click

from pplseq.recipes.doctor import examine

SIGNS = {True: "right", False: "WRONG", None: ""}


@click.command
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """What this installation is and has, and whether each family of models answers as it should.

    For reports of faults: versions, processor, threads, where machine code is kept, GPU, extras; then a small question to each
    family, whose answer can be told in another way. Takes seconds, and ends with exit code 1 where an answer is wrong.
    """
    wrong = False
    for finding in examine():
        wrong = wrong or finding.is_right is False
        click.echo(f"{finding.name:<20} {finding.told}  {SIGNS[finding.is_right]}".rstrip())
    if wrong:
        ctx.exit(1)
