"""`pplseq warm-up`."""

from __future__ import annotations

import sys

import click

from pplseq.recipes import warm_up as compile_all


@click.command("warm-up")
def warm_up() -> None:
    """Compile all loops for this machine beforehand, a few minutes: no later command waits for them.

    The machine code is kept beside the package, or in your cache folder where that cannot be written to, or in NUMBA_CACHE_DIR.
    """
    found = compile_all(progress=sys.stderr.isatty())
    click.echo(f"{found} groups of loops are there" if found else "numba is not installed: there is nothing to compile")
