"""`pplseq compare-streams`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pplseq.cli.options import GroupedCommand, given, options_for
from pplseq.cli.streams.options import shown_page
from pplseq.sources.settings import StreamOptions


@click.command("compare-streams", cls=GroupedCommand)
@click.argument("a")
@click.argument("b")
@click.option("--stream", default="-", show_default=True, help="Text to score, a line at a time; - is stdin.")
@click.option("--learn", is_flag=True, help="Let personal models go on learning as they read; nothing is kept of it.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the lines to a new file.  [default: stdout]"
)
@shown_page
@click.pass_context
def compare_streams(ctx: click.Context, a: str, b: str, **options: Any) -> None:
    """Which of two models expected each word of a stream: their log-likelihood ratio, A against B, in nats.

    A and B are sources as for `pplseq personalize`, or state folders that it wrote (--state): those bring their own sources
    and the options they were read with. Both have to have the same vocabulary.

    A line gives {"line", "words", "unknown", "log_likelihood_ratio"} and, for every word, "token_ratios", the
    log-probabilities "a" and "b" and, where a model is personal, the "log_odds" of its perturbation states; null is infinite.
    The last line is {"num_tokens", "a", "b", "mean_log_likelihood_ratio"}. --html shows the words coloured.
    """
    from pplseq.cli.streams.options import finish, prepare, say, stream_name
    from pplseq.sources.comparison import StreamPair, comparison_summary
    from pplseq.sources.pages import Shown

    prepare(options)
    pair = StreamPair((a, b), say=say, **given(ctx, StreamOptions))
    shown = Shown(pair.names, options["max_words"] if options["html"] else 0)
    failed = pair.follow(
        options["stream"],
        options["out"],
        learn=options["learn"],
        on_line=lambda found: shown.add(*found),
        summary=lambda: comparison_summary(shown.totals, pair.names) if shown.totals.num_tokens else None,
    )
    finish(ctx, shown, options, f"{pair.names[0]} against {pair.names[1]}, on {stream_name(options['stream'])}", failed)


compare_streams.params += options_for(StreamOptions)
