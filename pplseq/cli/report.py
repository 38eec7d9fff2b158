"""`pplseq report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The page, FILE.html, or a folder for report.html.  [default: RUN/report.html]",
)
@click.option(
    "--sentence",
    "sentences",
    multiple=True,
    metavar="TEXT",
    help="Show the posterior of this sentence; may be repeated.  [default: two typical lines of the text]",
)
@click.option(
    "--data",
    help="Measure states on this corpus or text file.  [default: validation text of the run's corpus]",
)
@click.option(
    "--tokens",
    default=10_000,
    show_default=True,
    type=click.IntRange(2),
    help="Tokens of that text used, from its start, in whole lines.",
)
@click.option(
    "--png",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The picture.  [default: beside the page, if matplotlib is installed]",
)
@click.option("--no-png", is_flag=True, help="Do not draw the picture.")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Of a run.")
@click.option("--device", default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
def report(
    run: Path, out: Path | None, png: Path | None, no_png: bool, checkpoint: str, threads: int | None, **options: Any
) -> None:
    """One HTML page about RUN (a run's folder or a saved model's): perplexities, learning curve, states, blocks and
    the moves between them, posteriors of sentences. And a PNG with the main figures.

    The page holds everything it needs: no scripts, no other files. Learning curves come from the run's metrics.jsonl,
    everything else from the model and a text; without either, the page says what is missing.
    """
    from pplseq.report.sentence import split_sentence

    page = _page_path(run, out)
    if png is not None and no_png:
        raise click.UsageError("--png and --no-png exclude each other")
    for sentence in options["sentences"]:
        split_sentence(sentence)  # before anything is loaded
    import torch

    from pplseq.baselines.loading import load_text_model
    from pplseq.cli.train.run import choose_device
    from pplseq.report.page import render_page

    if threads:
        torch.set_num_threads(threads)
    model = load_text_model(run, checkpoint)
    if model.name == "text_lds":
        raise ValueError(
            "a text_lds has no discrete states to report on: use `pplseq lds pairs` and `pplseq lds evaluate`"
        )
    if not hasattr(model, "num_states"):
        raise ValueError(
            f"{model.name!r} has no states to report on: use `pplseq evaluate`, or metrics.jsonl in its folder"
        )
    model.to(choose_device(options["device"]))
    summary = _summarise(run, model, model.vocabulary, options)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render_page(summary), encoding="utf-8")
    click.echo(page)
    if no_png:
        return
    from pplseq.report.picture import draw_picture

    try:
        draw_picture(summary, png or page.with_suffix(".png"))
    except ImportError as error:
        if png is not None:
            raise
        click.echo(f"No picture: {error}", err=True)
    else:
        click.echo(png or page.with_suffix(".png"))


def _page_path(run: Path, out: Path | None) -> Path:
    if out is None:
        return run / "report.html"
    if out.suffix.lower() in (".html", ".htm") and not out.is_dir():
        return out
    if out.suffix and not out.is_dir():
        raise click.UsageError(f"--out must be FILE.html or a folder, got {str(out)!r}")
    return out / "report.html"


def _summarise(run: Path, model: Any, vocabulary: Any, options: dict[str, Any]) -> Any:
    """The report in numbers, with what can be read of the run: a moved corpus or absent metrics make a note."""
    from dataclasses import asdict

    import numpy as np

    from pplseq.cli.train.config import RunConfig
    from pplseq.cli.train.run import build_corpus, saved_config
    from pplseq.report.summary import summarise
    from pplseq.runs.metrics_log import read_metrics

    notes: list[str] = []
    config = saved_config(run) if (run / "config.toml").is_file() else None
    text, counts = None, None
    if options["data"] is not None:
        text, counts = _given_text(options["data"], config or RunConfig(), vocabulary)
    elif config is None:
        notes.append(
            "This is a saved model without its run: no course of training, and no text unless --data gives one."
        )
    else:
        try:
            corpus = build_corpus(config, vocabulary)
        except (OSError, ValueError, ImportError) as error:
            notes.append(f"The run's corpus could not be read, so --data may help: {error}")
        else:
            counts = np.bincount(corpus.train.tokens, minlength=len(vocabulary))
            text = next(part for part in (corpus.valid, corpus.test, corpus.train) if part is not None)
    if text is None:
        notes.append("States are measured on sentences that the model wrote itself; there is no perplexity of them.")
    try:
        records = read_metrics(run / "metrics.jsonl")
    except (OSError, UnicodeDecodeError) as error:
        records = []
        notes.append(f"metrics.jsonl could not be read: {error}")
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    sentences = options["sentences"]
    if config is not None and config.lower:
        sentences = [sentence.lower() for sentence in sentences]
    unknown = sorted({word for sentence in sentences for word in sentence.split() if word not in vocabulary})
    if unknown:
        click.echo(f"Note: unknown to the model: {', '.join(unknown)}", err=True)
    return summarise(
        model,
        vocabulary,
        text=text,
        records=records,
        settings={} if config is None else {**asdict(config), "states": config.num_states},
        word_counts=counts,
        sentences=sentences,
        num_tokens=options["tokens"],
        notes=notes,
    )


def _given_text(data: str, config: Any, vocabulary: Any) -> tuple[Any, Any]:
    """(text, word counts of its training part or None): a file whole, of a corpus the held-out part."""
    from dataclasses import replace

    import numpy as np

    from pplseq.cli.train.run import build_corpus
    from pplseq.data.text import read_text

    if data == "-" or Path(data).is_file():
        return read_text(data, vocabulary, lower=config.lower), None
    corpus = build_corpus(replace(config, data=data), vocabulary)
    text = next(part for part in (corpus.valid, corpus.test, corpus.train) if part is not None)
    return text, np.bincount(corpus.train.tokens, minlength=len(vocabulary))
