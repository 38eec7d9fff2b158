"""Options that `pplseq personalize` and `pplseq compare-streams` share, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

SOURCES = (
    click.option("--order", default=5, show_default=True, type=click.IntRange(1), help="Longest n-gram of ngram:TEXT."),
    click.option(
        "--min-count",
        default=2,
        show_default=True,
        type=click.IntRange(1),
        help="Rarer words of TEXT are unknown, where TEXT gives the vocabulary.",
    ),
    click.option("--max-vocabulary", type=click.IntRange(3), help="At most so many words, where TEXT gives them."),
    click.option(
        "--decay",
        default=1.0,
        show_default=True,
        type=click.FloatRange(0, 1, min_open=True),
        help="Of the cache's counts at every word.",
    ),
    click.option(
        "--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Of a run."
    ),
    click.option("--threads", type=click.IntRange(1), help="CPU threads."),
)
READING = (
    click.option("--lower/--no-lower", default=False, help="Lower-case all text."),
    click.option(
        "--eos/--no-eos", default=None, help="End every line with <eos>.  [default: where the vocabulary has it]"
    ),
    click.option(
        "--unknown",
        type=click.Choice(["unk", "skip", "error"]),
        help="A word outside the vocabulary: read it as <unk>, leave it out, or refuse its line.  [default: unk where the "
        "vocabulary has it, else error]",
    ),
    click.option(
        "--by-line", is_flag=True, help="Every line is a sequence of its own, begun from the start distribution."
    ),
)
PAGE = (
    click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of coloured words."),
    click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="Draw them (extra plot)."),
    click.option("--title", help="Of the page and the picture."),
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


sources, reading, shown_page = _options(SOURCES), _options(READING), _options(PAGE)


def prepare(options: Mapping[str, Any]) -> None:
    """Threads, and whether what is to be written can be, before the work that would be lost."""
    from pplseq.baselines.tagging_systems import check_writable

    check_writable(options["html"], options["png"], options.get("out"))
    if options["png"] is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ImportError('--png needs matplotlib: pip install "pplseq[plot]"') from None
    if options["threads"]:
        import torch

        torch.set_num_threads(options["threads"])


def kept_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that have to be the same when a stream goes on, JSON-able."""
    from pplseq.sources.opening import SourceSettings

    return {name: options[name] for name in (*SourceSettings._fields, "eos", "unknown", "by_line")}


def take_up(ctx: click.Context, options: dict[str, Any], folder: Path | None, *, learning: bool = False) -> None:
    """Put in the options with which the stream of a state folder was begun, where the user gave none.

    Raises:
        ValueError: where a stream that is still learned from is to be read in another way than it was begun.
    """
    from pplseq.sources.stream_state import START_ANEW, has_state, load_state

    if folder is None or not has_state(folder):
        return
    for name, value in load_state(folder)[0]["options"].items():
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            options[name] = value
        elif learning and options[name] != value:
            raise ValueError(
                f"--state {folder}: it was begun with {name} = {value!r}, not {options[name]!r}, and would go on to other "
                f"numbers; leave the option out, or {START_ANEW}"
            )


def open_all(specs: Sequence[str], options: Mapping[str, Any], vocabulary: Any = None) -> list[Any]:
    """Sources by their specs, over one vocabulary, or that of the first; every spec is looked at before any is made."""
    from pplseq.sources.opening import check_spec, open_source

    for place, spec in enumerate(specs):
        check_spec(spec, first=place == 0 and vocabulary is None)
    settings = source_settings(options)
    opened: list[Any] = []
    for spec in specs:
        found = open_source(spec, settings, opened[0].vocabulary if opened else vocabulary)
        same = sum(found.name in (other.name, other.name.rpartition(" #")[0]) for other in opened)
        opened.append(found._replace(name=f"{found.name} #{same + 1}") if same else found)
    return opened


def source_settings(options: Mapping[str, Any]) -> Any:
    """How texts and runs become sources, of the options."""
    from pplseq.sources.opening import SourceSettings

    return SourceSettings(**{name: options[name] for name in SourceSettings._fields})


def open_encoder(vocabulary: Any, options: Mapping[str, Any]) -> Any:
    """What turns lines into word ids."""
    from pplseq.cli.streams.words import Encoder

    return Encoder(vocabulary, eos=options["eos"], unknown=options["unknown"], lower=options["lower"])
