"""`pplseq evaluate`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", required=False)
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test"]),
    help="Split of the corpus.  [default: test; a single file is taken whole]",
)
@click.option(
    "--protocol",
    type=click.Choice(["carried", "sentence", "both"]),
    default="both",
    show_default=True,
    help="Carried streams, sentences each from the start, or both.",
)
@click.option("--streams", default="16", show_default=True, help="Streams of the carried protocol; several as 16,1.")
@click.option(
    "--segment-length",
    default=None,
    type=click.IntRange(1),
    help="Tokens of a stream taken at once: speed and memory only (default: by the model's size).",
)
@click.option(
    "--batch-tokens",
    default=None,
    type=click.IntRange(1),
    help="Tokens of sentences taken at once: speed and memory only (default: by the model's size).",
)
@click.option(
    "--per-token",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write word<TAB>log-probability (nats) of every token, a column a protocol.",
)
@click.option(
    "--vocabulary",
    "vocabulary_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The vocabulary DATA was made with: an error if it is not the model's.",
)
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Of a run.")
@click.option("--lower/--no-lower", default=None, help="Lower-case DATA.  [default: as the run was trained]")
@click.option("--device", default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
def evaluate(
    model: Path,
    data: str | None,
    split: str | None,
    protocol: str,
    streams: str,
    per_token: Path | None,
    vocabulary_file: Path | None,
    checkpoint: str,
    device: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Perplexity of MODEL (a run's folder or a saved model's) on DATA, every token counted once.

    DATA is a corpus as for `train` (its test split), a text file (taken whole unless --split is given), or - for stdin;
    for a run, the default is the corpus it was trained on. Prints a JSON line per protocol, and a table on stderr.

    Runs of `train iohmm` have options of their own (`pplseq evaluate RUN --help`); other commands: `pplseq lds evaluate`,
    `pplseq tag eval`.
    """
    stream_counts = _stream_counts(streams)
    import torch

    from pplseq.baselines.loading import load_text_model
    from pplseq.cli.train.run import choose_device
    from pplseq.runs.evaluation import score_text

    if threads:
        torch.set_num_threads(threads)
    trained = load_text_model(model, checkpoint)
    vocabulary = trained.vocabulary
    if trained.name == "text_lds":
        raise ValueError("a text_lds has densities of words, not probabilities: use `pplseq lds evaluate`")
    if vocabulary_file is not None:
        _check_same_vocabulary(vocabulary, vocabulary_file)
    text = _read(model, data, split, vocabulary, options["lower"])
    trained.to(choose_device(device))
    asked = [("carried", {"num_streams": n, "segment_length": options["segment_length"]}) for n in stream_counts]
    asked = {"carried": asked, "sentence": []}.get(protocol, asked)
    if protocol != "carried":
        asked.append(("sentence", {"batch_tokens": options["batch_tokens"]}))
    scores = []
    click.echo(
        f"{'protocol':<10}{'streams':>9}{'tokens':>11}{'unknown':>9}{'nats/token':>12}{'perplexity':>12}{'seconds':>9}",
        err=True,
    )
    for name, settings in asked:
        began = time.monotonic()
        score = score_text(trained, text, name, **settings)
        scores.append(score)
        seconds = time.monotonic() - began
        click.echo(
            json.dumps({"model": str(model), "text": text.name, **score.summary(), "seconds": round(seconds, 3)})
        )
        click.echo(
            f"{name:<10}{score.num_streams:>9,}{score.num_tokens:>11,}{score.num_unknown / score.num_tokens:>9.1%}"
            f"{score.nats_per_token:>12.4f}{score.perplexity:>12.2f}{seconds:>9.1f}",
            err=True,
        )
    if scores[0].num_unknown > 0.2 * scores[0].num_tokens:
        click.echo(
            "Warning: more than a fifth of the words are unknown to the model; is this text of its kind?", err=True
        )
    if per_token is not None:
        _write_tokens(per_token, text, scores)


def _stream_counts(streams: str) -> list[int]:
    try:
        counts = [int(part) for part in streams.split(",")]
        if min(counts) >= 1:
            return counts
    except ValueError:
        pass
    raise click.BadParameter(
        f"expected whole numbers of at least 1, like 16 or 16,1; got {streams!r}", param_hint="--streams"
    )


def _check_same_vocabulary(vocabulary: Any, path: Path) -> None:
    from pplseq.data.vocabulary import Vocabulary

    given = Vocabulary.load(path)
    if given.fingerprint() != vocabulary.fingerprint():
        pairs = zip(vocabulary.words, given.words, strict=False)
        first = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(vocabulary), len(given)))
        raise ValueError(
            f"vocabulary mismatch: {path} has {len(given)} words, the model {len(vocabulary)}, and they differ from "
            f"word {first} on; evaluate with data of the model's vocabulary, or leave out --vocabulary to encode DATA "
            "with the model's own"
        )


def _read(model: Path, data: str | None, split: str | None, vocabulary: Any, lower: bool | None) -> Any:
    """The text to score, encoded with the model's vocabulary."""
    from dataclasses import replace

    from pplseq.cli.train.config import RunConfig
    from pplseq.cli.train.run import build_corpus, saved_config
    from pplseq.data.text import read_text

    config = saved_config(model) if (model / "config.toml").exists() else RunConfig(data="")
    if lower is not None:
        config = replace(config, lower=lower)
    if data is None and not config.data:
        raise click.UsageError("give DATA: a saved model does not say what it was trained on")
    if data == "-" or (data is not None and split is None and Path(data).is_file()):
        return read_text(data, vocabulary, lower=config.lower)
    if data is not None:
        config = replace(config, data=data)
    corpus = build_corpus(config, vocabulary)
    text = getattr(corpus, split or "test")
    if text is None:
        there = [name for name in ("train", "valid", "test") if getattr(corpus, name) is not None]
        raise ValueError(f"{config.data} has no {split or 'test'} split; choose --split {' or '.join(there)}")
    return text


def _write_tokens(path: Path, text: Any, scores: list[Any]) -> None:
    words = text.vocabulary.decode(text.tokens)
    columns = [score.token_log_probs.tolist() for score in scores]
    with path.open("w", encoding="utf-8") as file:
        file.write("\t".join(["word", *(f"{score.protocol}_{score.num_streams}" for score in scores)]) + "\n")
        file.writelines(
            "\t".join([word, *(f"{value:.6f}" for value in row)]) + "\n"
            for word, *row in zip(words, *columns, strict=True)
        )
