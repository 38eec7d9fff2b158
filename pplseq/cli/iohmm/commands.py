"""`pplseq train iohmm`, and `query` and `evaluate` of such a run: input-output HMMs on tables and on labelled strings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pplseq.cli.options import config_option

RECORD = "iohmm.json"  # by which a run's folder is known
STRING_OPTIONS = {"out", "states", "restarts", "validation", "max_iterations", "repair", "seed", "threads", "picture"}


def command_of(name: str, args: list[str]) -> tuple[click.Command, list[str]] | None:
    """The command of this file that stands behind `train iohmm`, or behind `query` or `evaluate` of its runs."""
    if name == "train" and args[:1] == ["iohmm"]:
        return train, args[1:]
    if name in ("query", "evaluate") and any((Path(arg) / RECORD).is_file() for arg in args):
        return {"query": query, "evaluate": evaluate}[name], args
    if name == "query" and any(arg in OWN_QUESTIONS for arg in args) and not any(Path(arg).is_dir() for arg in args):
        return query, args  # which says that there is no such run
    return None


THREADS = click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="CPU threads.")


@click.command("train iohmm")
@click.argument("data")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the new run.")
@config_option
@click.option("--outputs", help="Table: columns of the outputs, a,b.")
@click.option("--inputs", help="Table: columns of the inputs, a,b; none without.")
@click.option("--sequence-id", help="Table: column that says which sequence a row is of.  [default: all rows are one]")
@click.option("--symbols", help="Table: columns that hold names or classes instead of numbers, a,b.")
@click.option(
    "--family",
    type=click.Choice(["gaussian", "bernoulli", "categorical"]),
    help="Of the outputs.  [default: categorical for --symbols, else gaussian]",
)
@click.option("--states", help="Number of states, or several, 2,3,4 or 2-8.  [default: 2; strings: 2-8]")
@click.option("--restarts", type=click.IntRange(1), help="Random starts of each size.  [default: 20; strings: 1000]")
@click.option(
    "--select",
    type=click.Choice(["likelihood", "bic", "validation", "smallest_consistent"]),
    help="What chooses among restarts and sizes.  [default: validation with --validation, else likelihood, sizes by bic]",
)
@click.option("--validation", help="Held-out data of the same kind, to choose by.")
@click.option("--mealy/--moore", default=False, show_default=True, help="Outputs see the inputs of their step.")
@click.option("--hidden", help="Sizes of hidden layers of the networks, 16,16.  [default: none]")
@click.option("--graph", help="ergodic, left_right, or a file of 0s and 1s: row = from, column = to.")
@click.option(
    "--initial",
    type=click.Choice(["constant", "inputs", "transition"]),
    default="constant",
    show_default=True,
    help="First state: one distribution, one that sees inputs, or a transition from a state before.",
)
@click.option("--feedback/--no-feedback", default=False, show_default=True, help="Join the past output to the inputs.")
@click.option(
    "--covariance",
    type=click.Choice(["diag", "full", "tied", "spherical"]),
    default="diag",
    show_default=True,
    help="Of gaussian outputs.",
)
@click.option(
    "--covariance-floor",
    type=click.FloatRange(0, min_open=True),
    help="Smallest variance of gaussian outputs.  [default: 0.001, or 0.0001 of an output's variance where that is less]",
)
@click.option("--method", type=click.Choice(["em", "gem", "sgd"]), default="em", show_default=True)
@click.option("--max-iterations", type=click.IntRange(1), help="Of EM, or steps of sgd.  [default: 100; strings: 300]")
@click.option("--batch-size", type=click.IntRange(1), help="Sequences of a mini-batch of sgd.")
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), help="Of sgd.")
@click.option(
    "--standardize/--raw", default=True, show_default=True, help="Bring real inputs to mean 0 and deviation 1."
)
@click.option("--repair/--no-repair", default=True, show_default=True, help="Strings: mend automata by single moves.")
@click.option("--picture/--no-picture", default=True, show_default=True, help="Strings: draw the automaton.")
@click.option("--seed", default=0, show_default=True, help="Of the random starts.")
@THREADS
@click.pass_context
def train(ctx: click.Context, data: str, out: Path, **settings: Any) -> None:
    """Fit an input-output HMM to DATA, many random starts as one batch.

    DATA is a table (.csv, .tsv, .parquet, - for CSV on stdin) with columns named by --inputs and --outputs, an empty output
    being a missing one; or a file of labelled strings (`+ 0101`, or `0101<TAB>1`), from which the smallest consistent automaton
    is learned.

    The run's folder gets iohmm.json (columns, settings, what became of every restart), model/, and for strings
    automaton.json, automaton.dot and a picture. Prints a JSON line. Ctrl-C keeps the best of the sizes that were finished.
    """
    from pplseq.cli.iohmm import runs as iohmm_runs

    strings = settings["outputs"] is None and not iohmm_runs.is_table(data)
    given = {
        name for name in settings if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }  # on the command line, or in the file
    if strings and (foreign := sorted(given - STRING_OPTIONS)):
        flags = ", ".join("--" + name.replace("_", "-") for name in foreign)
        raise click.UsageError(
            f"{data} is read as labelled strings, which {flags} does not apply to; a table needs --outputs, and ends in .csv, "
            ".tsv or .parquet"
        )
    if not strings and settings["outputs"] is None:
        raise click.UsageError(f"{data} is a table: name the columns of its outputs with --outputs (and --inputs)")
    if strings:
        from pplseq.cli.iohmm.strings import train_strings as run
    else:
        run = iohmm_runs.train_table
    click.echo(json.dumps(run(data, out, settings, lambda line: click.echo(line, err=True))))


QUESTIONS = (
    "filter", "smooth", "decode", "sample", "score", "predict", "produce", "forecast", "classify", "effects", "automaton",
)  # fmt: skip


OWN_QUESTIONS = ("predict", "produce", "forecast", "classify", "effects", "automaton")  # that no model of text has
OPTIONS_OF = {
    "data": [question for question in QUESTIONS if question not in ("effects", "automaton")],
    "future": ["forecast"], "num_samples": ["sample"], "feature": ["effects"], "values": ["effects"],
    "png": ["effects", "automaton"], "dot": ["automaton"],
}  # fmt: skip


@click.command("query")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("question", type=click.Choice(QUESTIONS))
@click.argument("data", required=False)
@click.option("--future", help="Table of inputs that are to come, with the same sequences (forecast).")
@click.option("--num-samples", default=1, show_default=True, type=click.IntRange(1), help="Draws (sample).")
@click.option("--feature", help="The input that varies (effects).")
@click.option(
    "--values", help="Its values, LOW:HIGH:NUMBER (effects).  [default: mean -2 to +2 standard deviations, 25 of them]"
)
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="Draw the curves or the automaton.")
@click.option("--dot", type=click.Path(dir_okay=False, path_type=Path), help="Write the automaton as DOT.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@THREADS
@click.pass_context
def query(ctx: click.Context, run: Path, question: str, data: str | None, **options: Any) -> None:
    """Ask the input-output HMM of RUN a QUESTION about every sequence of DATA (default: stdin).

    \b
    filter     p(z_t | outputs and inputs up to t)
    smooth     p(z_t | all outputs and inputs)
    decode     the most probable state path
    sample     state paths drawn from the posterior
    score      log p(outputs | inputs), nats
    predict    expected outputs given past outputs too (closed loop)
    produce    expected outputs given inputs alone (open loop)
    forecast   expected outputs for the inputs of --future
    classify   the output at the last step, from the inputs alone; for strings, the automaton's answer as well
    effects    transition probabilities as one input varies (no DATA)
    automaton  the automaton that was learned from strings (no DATA)

    DATA is a table like the training data (outputs may be empty cells; produce and classify need no column of them), or
    strings, one a line. Every sequence gives a JSON line; "deviations" are the standard deviations of "outputs".
    """
    from pplseq.cli.iohmm import questions as iohmm_questions

    for name, questions in OPTIONS_OF.items():
        given = ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if given and (data is not None or name != "data") and question not in questions:
            shown = "DATA" if name == "data" else "--" + name.replace("_", "-")
            raise click.UsageError(f"{shown} does not go with {question}; it is for {', '.join(questions)}")
    for answer in iohmm_questions.answers(run, question, data or "-", **options):
        click.echo(json.dumps(answer, ensure_ascii=False))
        sys.stdout.flush()


@click.command("evaluate")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("data")
@THREADS
def evaluate(run: Path, data: str, threads: int) -> None:
    """Log-likelihood and errors of RUN's model on DATA, a table or labelled strings as in training.

    Prints a JSON line: nats per target; for classes the accuracy and the balanced accuracy, for numbers the root mean squared
    error, of predictions (closed loop) and of production (open loop); for strings also of the automaton.
    """
    from pplseq.cli.iohmm import questions as iohmm_questions

    click.echo(json.dumps(iohmm_questions.evaluate(run, data, threads)))
