"""`pplseq lds`: the linear dynamical system for text, from lag counts to embeddings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pplseq.cli.options import DURATION, config_option

RUN = click.argument("run", type=click.Path(path_type=Path))
CHECKPOINT = click.option(
    "--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Of the run."
)
SPLIT = click.option(
    "--split",
    type=click.Choice(["train", "valid", "test"]),
    help="Of a corpus.  [default: test; a file is taken whole]",
)


@click.group()
def lds() -> None:
    """The linear dynamical system for text: fit it to lag counts, embed tokens, look into it.

    A first run: `pplseq count builtin:python --max-lag 7 --out runs/counts`, then `pplseq lds fit runs/counts --states 50
    --out runs/lds` and `pplseq lds embed runs/lds text.txt --out embeddings.npz`.
    """


@lds.command()
@click.argument("counts", required=False, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the new run.")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue a run's folder where it stopped.")
@click.option("--states", default=200, show_default=True, type=click.IntRange(1), help="Dimensions h of the state.")
@click.option(
    "--pseudo-counts",
    default=1000.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Added to every word's count: more for larger texts, and for rare words to say less.",
)
@click.option(
    "--iterations", default=50, show_default=True, type=click.IntRange(0), help="Of EM on all words, in total."
)
@click.option(
    "--start",
    default="restricted",
    show_default=True,
    type=click.Choice(["restricted", "line_search", "paper", "consistent"]),
    help="From subspace identification to first parameters; restricted runs EM in the subspace, for almost nothing.",
)
@click.option(
    "--restricted-iterations",
    default=150,
    show_default=True,
    type=click.IntRange(1),
    help="Of that EM in the subspace.",
)
@click.option(
    "--blocks", default=4, show_default=True, type=click.IntRange(2), help="Block rows r of the Hankel matrix."
)
@click.option("--horizon", type=click.IntRange(1), help="Lags that EM uses.  [default: all that were counted]")
@click.option(
    "--state-noise/--no-state-noise",
    default=True,
    show_default=True,
    help="Update Q in EM (no: it stays, as in the paper).",
)
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    help="Counts of other text, same vocabulary: its likelihood decides which iteration is best.",
)
@click.option("--patience", type=click.IntRange(1), help="Stop after this many iterations without a new best.")
@click.option("--max-time", type=DURATION, help="Stop after this long: 90s, 10m, 2h, or seconds.")
@click.option("--seed", default=0, show_default=True, help="Of the randomized singular value decomposition.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="Of what has the vocabulary's size; float32 halves the memory.",
)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="That share sparse products.")
@config_option
@click.pass_context
def fit(ctx: click.Context, counts: Path | None, out: Path | None, resume: Path | None, **settings: Any) -> None:
    """Fit a model to COUNTS (a folder written by `pplseq count`).

    After every iteration of EM the run's folder gets a checkpoint last/, and best/ if it is the best so far; Ctrl-C and
    SIGTERM stop between two iterations. "gain": nats a token, as log-density, over words without context. Prints a JSON
    line at the end.
    """
    from pplseq.cli.lds.runs import resume_fit, start_fit

    if resume is not None:
        given = {name for name in settings if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
        fixed = given - {"iterations", "max_time", "patience", "threads"}
        if out is not None or counts is not None or fixed:
            names = [f"--{name.replace('_', '-')}" for name in sorted(fixed)] + ["--out"] * (out is not None)
            raise click.UsageError(
                f"--resume continues a run with its own counts and settings: leave out {', '.join(names) or 'COUNTS'}; "
                "only --iterations, --max-time, --patience and --threads can be given anew"
            )
        summary = resume_fit(resume, {name: settings[name] for name in given}, on_record=_show)
    else:
        if counts is None or out is None:
            raise click.UsageError("give COUNTS and a folder with --out RUN, or continue a run with --resume RUN")
        summary = start_fit(counts, out, settings, on_record=_show)
    click.echo(json.dumps(summary))


def _show(record: dict[str, Any]) -> None:
    line = f"iteration {record['step']:>4}  gain {record['gain_per_token']:9.5f} nats/token"
    if "held_out_gain_per_token" in record:
        line += f"  held out {record['held_out_gain_per_token']:9.5f}{' *' if record['best'] else ''}"
    click.echo(f"{line}  {record['seconds']:8.1f} s", err=True)


@lds.command()
@RUN
@click.argument("data", required=False)
@click.option("--out", default="-", help="File to write: .npz, .tsv or .jsonl.  [default: JSON lines on stdout]")
@click.option("--types", is_flag=True, help="Embed the vocabulary's words, each by itself, instead of a text.")
@click.option(
    "--kind",
    type=click.Choice(["smoothed", "filtered"]),
    default="smoothed",
    show_default=True,
    help="Given the whole line, or the words so far only.",
)
@click.option("--plain", is_flag=True, help="Posterior means as they are, neither whitened nor of unit length.")
@click.option("--eos/--no-eos", default=False, show_default=True, help="Also write the vectors of line ends.")
@SPLIT
@CHECKPOINT
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
def embed(
    run: Path,
    data: str | None,
    out: str,
    types: bool,
    kind: str,
    plain: bool,
    eos: bool,
    split: str | None,
    checkpoint: str,
    threads: int | None,
) -> None:
    """Embed every word of DATA (a text file, - for stdin, or a corpus) in its line.

    An .npz file holds embeddings (N, h), words (N,) and line_starts; a .tsv file a word and its numbers a line, and a blank
    line between lines of text; JSON lines {"words", "embeddings"}, one a line of text.
    """
    from pplseq.cli.lds import runs as lds_runs

    if types == (data is not None):
        raise click.UsageError("give DATA to embed, or --types for the vocabulary's words")
    write = lds_runs.writer(out)
    model, vocabulary = lds_runs.load(run, checkpoint, threads)
    if types:
        write(list(vocabulary), [0, len(vocabulary)], model.type_embeddings(kind=kind, normalize=not plain))
        return
    text = lds_runs.read(model, vocabulary, data, split)
    write(*lds_runs.embedded(model, text, kind=kind, normalize=not plain, eos=eos))


@lds.command()
@RUN
@click.option("--num-pairs", default=10, show_default=True, type=click.IntRange(1), help="Largest singular values.")
@click.option("--num-words", default=6, show_default=True, type=click.IntRange(1), help="Words of each vector.")
@click.option(
    "--ranking",
    type=click.Choice(["lift", "probability"]),
    default="lift",
    show_default=True,
    help="Rank words by p(word | vector) / p(word), or by the difference.",
)
@click.option("--most-frequent", type=click.IntRange(1), help="Only words among that many most frequent ones.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of a table.")
@CHECKPOINT
def pairs(run: Path, as_json: bool, checkpoint: str, **options: Any) -> None:
    """Singular vectors of the transition, as the words most likely there: what turns into what (the paper's table 1)."""
    from pplseq.cli.lds import runs as lds_runs
    from pplseq.models.text_lds.state_words import singular_pairs

    model, vocabulary = lds_runs.load(run, checkpoint)
    for pair in singular_pairs(model, **options):
        words = {name: vocabulary.decode(ids) for name, ids in pair._asdict().items() if name != "value"}
        if as_json:
            click.echo(json.dumps({"value": pair.value, **words}, ensure_ascii=False))
            continue
        for value, right, left in ((f"{pair.value:.4f}", "right", "left"), ("", "right_opposite", "left_opposite")):
            click.echo(f"{value:<8}{' '.join(words[right])}  ->  {' '.join(words[left])}")


@lds.command()
@RUN
@click.argument("data")
@click.option("--tune-on", metavar="TEXT", help="Text on which to tune the next-word mixture's weight first.")
@click.option("--save-weight", is_flag=True, help="Keep that weight in the run's checkpoint.")
@SPLIT
@CHECKPOINT
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
def evaluate(
    run: Path,
    data: str,
    tune_on: str | None,
    save_weight: bool,
    split: str | None,
    checkpoint: str,
    threads: int | None,
) -> None:
    """Likelihood and next-word perplexity of DATA (a text file, - for stdin, or a corpus), as a JSON line.

    "gain": nats a token over words without context. "steady_gain": the same by the paper's steady-state passes.
    """
    from pplseq.cli.lds import runs as lds_runs

    if save_weight and tune_on is None:
        raise click.UsageError("--save-weight keeps what --tune-on found: give --tune-on TEXT")
    model, vocabulary = lds_runs.load(run, checkpoint, threads)
    if tune_on is not None:
        from pplseq.models.text_lds.next_word import tune_mixture_weight

        tune_mixture_weight(model, lds_runs.read(model, vocabulary, tune_on, "valid"))
        if save_weight:
            lds_runs.save_again(run, checkpoint, model, vocabulary)
    text = lds_runs.read(model, vocabulary, data, split)
    click.echo(json.dumps({"model": str(run), "text": text.name, **lds_runs.evaluation(model, text)}))


@lds.command("export-rnn")
@RUN
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .npz file to write.")
@click.option(
    "--form",
    type=click.Choice(["predictor", "filtered"]),
    default="predictor",
    show_default=True,
    help="(A - AKC, AK, C) or (A - KCA, K, CA): both predict the same.",
)
@click.option(
    "--coordinates",
    type=click.Choice(["words", "whitened"]),
    default="words",
    show_default=True,
    help="Of inputs and outputs: word numbers and probabilities, or whitened vectors.",
)
@CHECKPOINT
def export_rnn(run: Path, out: Path, form: str, coordinates: str, checkpoint: str) -> None:
    """The steady filter as the weights of a recurrent network: recurrent, input, output, bias, and the words."""
    from pplseq.cli.lds import runs as lds_runs

    model, vocabulary = lds_runs.load(run, checkpoint)
    weights = model.rnn_weights(form, coordinates=coordinates)
    lds_runs.save_arrays(out, words=lds_runs.word_array(vocabulary), **weights)
    click.echo(json.dumps({"file": str(out), **{name: list(value.shape) for name, value in weights.items()}}))
    sys.stdout.flush()
