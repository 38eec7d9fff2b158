"""`pplseq personalize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pplseq.cli.options import GroupedCommand, given, options_for
from pplseq.cli.streams.options import shown_page
from pplseq.recipes.settings import options_of
from pplseq.sources.settings import StreamOptions, StreamSettings


@click.command(cls=GroupedCommand)
@click.argument("source")
@click.option("--stream", default="-", show_default=True, help="Text to learn from, a line at a time; - is stdin.")
@click.option(
    "--source",
    "further",
    multiple=True,
    metavar="SOURCE",
    help="A further source, with a state of its own: as SOURCE, or cache, online-ngram, uniform; may be repeated.  [default: "
    "online-ngram and cache]",
)
@click.option("--alone", is_flag=True, help="No further source at all.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder in which the model is kept; the same command goes on from there.",
)
@click.option(
    "--save-every", default=100, show_default=True, type=click.IntRange(1), help="Lines between two saves of the state."
)
@click.option("--rewind", is_flag=True, help="Read the stream from its start, though the state has read some of it.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the lines to a file, which is whole after any interruption.  [default: stdout]",
)
@click.option(
    "--no-learn",
    is_flag=True,
    help="Leave the parameters as they are; what sources remember and the place in the stream move on, and are saved.",
)
@click.option(
    "--averaging",
    is_flag=True,
    help="Keep parameters averaged over the stream's later part too: --no-learn and compare-streams use them.",
)
@shown_page
@click.pass_context
def personalize(ctx: click.Context, source: str, **options: Any) -> None:
    """Adapt SOURCE to a stream of text as it comes: one line in, one line of JSON out (PROPS).

    SOURCE and every --source predict the next word from one hidden state each and stay as they are; the perturbation states
    and the moves between all states are learned, word by word, after each word was predicted. SOURCE by itself has what the
    stream's own words tell beside it (online-ngram, cache), unless it is to be --alone.

    \b
    SOURCE is  FOLDER         a run of `pplseq train` (vlhmm, hmm, lstm, ...) or a saved model
               ngram:TEXT     Kneser-Ney n-grams of a text file or corpus (builtin:python)
               unigram:TEXT   its words without context
               hf:NAME        a Hugging Face language model (extra `huggingface`)
               words:TEXT     no source at all, only its vocabulary: a streaming hidden Markov model

    A line gives {"line", "words", "unknown", "log_prob"} and, for every word, in nats: "token_log_probs", "perturbation" (the
    probability, given the words so far, that it is personal), "log_odds" of that, "source_anomaly" and
    "perturbation_anomaly" (-log p(word) given that it is general, or personal) and the log-probabilities of all "sources".
    null is infinite, or a word left out. A line that cannot be read gives {"line", "error"}, and the exit code is 1 at the
    end.

    Ctrl-C and SIGTERM save the state behind the last line. Given a file, a stream that was interrupted in any way goes on to
    the same numbers, and with --out to the same file; given stdin, with the next line that comes.
    """
    from pplseq.cli.streams.options import finish, prepare, say, stream_name
    from pplseq.sources.pages import Shown
    from pplseq.sources.stream import PersonalStream, ReadLine

    settings = given(ctx, StreamSettings)
    if options["averaging"]:
        settings["averaging"] = "recent"
    if {"exponent", "step_size"} <= settings.keys():
        raise click.UsageError("--exponent lets the weight of a word fall and --step-size keeps it: give one of them")
    learn = not options["no_learn"]
    if not learn and options["state"] is None:
        raise click.UsageError("--no-learn scores with a state that was learned: give --state FOLDER")
    prepare(options)
    with PersonalStream.open(
        [source, *options["further"]],
        options["state"],
        alone=options["alone"],
        learn=learn,
        save_every=options["save_every"],
        say=say,
        **given(ctx, StreamOptions),
        **settings,
    ) as found:
        names = found.names
        shown = Shown(names, options["max_words"] if options["html"] else 0)

        def show(read: ReadLine) -> None:
            sources = [[token.source_log_probs[k] for token in read.tokens] for k in range(len(names) - 1)]
            log_probs = [[token.log_prob for token in read.tokens], *sources]
            shown.add(read.line, log_probs, [token.log_odds for token in read.tokens])  # pyright: ignore[reportArgumentType]

        failed = found.follow(
            options["stream"], options["out"], rewind=options["rewind"], learn=learn, on_line=show, say=say
        )
    title = f"{stream_name(options['stream'])}, read by {names[0]}"
    name = "-" if options["stream"] == "-" else str(Path(options["stream"]).resolve())
    finish(ctx, shown, options, title, failed, found.resumed, found.totals.get(name))


LEARNED = [name for name in options_of(StreamSettings) if name != "averaging"]  # which is a mere flag here
personalize.params += [*options_for(StreamSettings, LEARNED), *options_for(StreamOptions)]
