"""Options that `pplseq personalize` and `pplseq compare-streams` share, and what follows from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pplseq.files import check_writable, printable

if TYPE_CHECKING:
    from pplseq.report.personal import StreamTotals
    from pplseq.sources.pages import Shown

THREADS = click.option("--threads", type=click.IntRange(1), help="CPU threads.")
PAGE = (
    click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of coloured words."),
    click.option("--title", help="Of the page."),
    click.option(
        "--max-words", default=1000, show_default=True, type=click.IntRange(1), help="Last words of the stream shown."
    ),
)


def _options(options: Sequence[Callable]) -> Callable[[Callable], Callable]:
    def add(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return add


shown_page = _options((THREADS, *PAGE))


def prepare(options: Mapping[str, Any]) -> None:
    """Threads, and whether what is to be written can be, before the work that would be lost."""
    check_writable(options["html"], options.get("out"))
    if options["threads"]:
        import torch

        torch.set_num_threads(options["threads"])


def finish(
    ctx: click.Context, shown: Shown, options: Mapping[str, Any], title: str, failed: int, begun: bool = False,
    whole: StreamTotals | None = None,
) -> None:  # fmt: skip
    """Totals on stderr, and the page; exit code 1 where lines could not be read.

    Args:
        shown: what was read. title: where the user gave none. begun: whether the stream had words before. whole: totals of
            all of it, those before the state was saved included.
    """
    from pplseq.report.markup import number

    totals = shown.totals if whole is None else whole
    names = list(totals.nats) if whole is not None else shown.names
    called = dict(zip(names, shown.names, strict=False))
    if shown.totals.num_tokens == 0 and not begun and not failed:
        raise ValueError(f"--stream {stream_name(options['stream'])}: it has no words; give a text, a line at a time")
    parts = [f"{called[name]}: perplexity {number(totals.perplexity(name))}" for name in names if totals.num_tokens]
    if totals.num_unknown:
        parts = [
            f"{part} ({number(totals.known_perplexity(name))} without unknown words)"
            for name, part in zip(names, parts, strict=True)
        ]
        parts.insert(0, f"{totals.num_unknown / totals.num_tokens:.1%} unknown")
    told = [f"{totals.num_tokens:,} tokens", *parts] if parts else []
    click.echo(printable("; ".join([*([] if shown.totals.num_tokens else ["no further words"]), *told])), err=True)
    sys.stdout.flush()
    shown.write(shown.names[:2], options["html"], options["title"] or title, f"pplseq {ctx.info_name}")
    if failed:
        ctx.exit(1)


def stream_name(stream: str) -> str:
    """What a stream is called."""
    return "<stdin>" if stream == "-" else stream


def say(line: str) -> None:
    """A remark on stderr."""
    click.echo(printable(line), err=True)
