"""`pplseq compare-streams`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pplseq.cli.streams.options import reading, shown_page, sources


@click.command("compare-streams")
@click.argument("a")
@click.argument("b")
@click.option("--stream", default="-", show_default=True, help="Text to score, a line at a time; - is stdin.")
@click.option("--learn", is_flag=True, help="Let personal models go on learning as they read; nothing is kept of it.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the lines to a new file.  [default: stdout]"
)
@sources
@reading
@shown_page
@click.pass_context
def compare_streams(ctx: click.Context, a: str, b: str, stream: str, **options: Any) -> None:
    """Which of two models expected each word of a stream: their log-likelihood ratio, A against B, in nats.

    A and B are sources as for `pplseq personalize`, or state folders that it wrote (--state): those bring their own sources
    and the options they were read with. Both have to have the same vocabulary.

    A line gives {"line", "words", "unknown", "log_likelihood_ratio"} and, for every word, "token_ratios", the
    log-probabilities "a" and "b" and, where a model is personal, the "log_odds" of its perturbation states; null is infinite.
    The last line is {"num_tokens", "a", "b", "mean_log_likelihood_ratio"}. --html and --png show the words coloured.
    """
    from pplseq.cli.streams import runs as stream_runs
    from pplseq.cli.streams.options import open_encoder, prepare, take_up
    from pplseq.cli.streams.words import Shown, as_json
    from pplseq.sources.lines import LineReader, LineWriter
    from pplseq.sources.personal_model import open_pair

    for spec in (b, a):
        take_up(ctx, options, Path(spec) if Path(spec).is_dir() else None)
    prepare(options)
    models, names, vocabulary = open_pair((a, b), options)
    encoder = open_encoder(vocabulary, options)
    shown = Shown(names, options["max_words"] if options["html"] or options["png"] else 0)
    reader = LineReader(stream)
    try:
        writer = LineWriter(options["out"])
        try:
            failed = stream_runs.compare_lines(
                models, reader, encoder, shown, writer.write, learn=options["learn"], by_line=options["by_line"]
            )
            stream_runs.check_empty(shown.totals, failed, reader.name)
            if shown.totals.num_tokens:
                writer.write(as_json(stream_runs.comparison_summary(shown.totals, names)))
        finally:
            writer.close()
    finally:
        reader.close()
    click.echo(stream_runs.totals_text(shown.totals, names), err=True)
    sys.stdout.flush()
    title = options["title"] or f"{names[0]} against {names[1]}, on {reader.name}"
    stream_runs.write_page(shown, names, options["html"], options["png"], title, "pplseq compare-streams")
    if failed:
        ctx.exit(1)
