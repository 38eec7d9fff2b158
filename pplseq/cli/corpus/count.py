"""`pplseq count`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from pplseq.cli.options import GroupedCommand, Remarks, given, options_for
from pplseq.files import json_line
from pplseq.recipes.count_settings import CountSettings
from pplseq.recipes.settings import fill


@click.command(cls=GroupedCommand)
@click.argument("source")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder for the counts."
)
@click.pass_context
def count(ctx: click.Context, source: str, out: Path, **_: Any) -> None:
    """Count the words of SOURCE, and the pairs of words 1 to --max-lag places apart, in one pass.

    SOURCE is a text (.gz, .xz), its URL, a folder with a *train* file, x.jsonl#column or x.parquet#column, builtin:..., hf:...
    or - for standard input; on a cluster also a pattern of files with *. Prints a JSON line.
    """
    from pplseq.recipes import counting

    settings, began = fill(CountSettings, given(ctx, CountSettings)), time.monotonic()
    with CountingBar() as bar:
        counted = counting.count(source, out, settings, watch=Remarks(), progress=bar.show, done=bar.show_parts)
    if not counted:
        click.echo(f"{out}: counted already; --force counts again", err=True)
    took = {"seconds": round(time.monotonic() - began, 3)} if counted else {"skipped": True}
    click.echo(json_line(counting.summary(out, **took)))


count.params += options_for(CountSettings)


class CountingBar:
    """A bar over the bytes of the file, where stderr is a terminal; of standard input, the tokens so far."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self.bar = tqdm(unit=" tokens", unit_scale=True, dynamic_ncols=True, disable=not sys.stderr.isatty())

    def __enter__(self) -> CountingBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def show_parts(self, number: int, count: int) -> None:
        """After every part, on a cluster."""
        self.bar.total, self.bar.unit = count, " parts"
        self.bar.update(number - self.bar.n)

    def show(self, position: int, num_bytes: int | None, num_tokens: int) -> None:
        """After every piece of text."""
        if num_bytes is not None:
            self.bar.total, self.bar.unit = num_bytes, "B"
            self.bar.set_postfix_str(f"{num_tokens:,} tokens", refresh=False)
            self.bar.update(max(0, position - self.bar.n))
        else:
            self.bar.update(max(0, num_tokens - self.bar.n))
