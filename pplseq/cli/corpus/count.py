"""`pplseq count`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from pplseq.files import json_line


def shard_option(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """`i/n` as two numbers."""
    if value is None:
        return None
    number, _, total = value.partition("/")
    if not (number.isascii() and number.isdigit() and total.isascii() and total.isdigit()):
        raise click.BadParameter(f"expected i/n, such as 1/4, got {value!r}")
    if not 1 <= int(number) <= int(total):
        raise click.BadParameter(f"expected i/n with i from 1 to n, got {value!r}")
    return int(number), int(total)


@click.command()
@click.argument("source")
@click.option("--max-lag", required=True, type=click.IntRange(1), help="Count pairs 1 to this many places apart.")
@click.option("--most-lags", default=1000, show_default=True, type=click.IntRange(1), help="Refuse a larger --max-lag.")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder for the counts."
)
@click.option(
    "--vocabulary",
    type=click.Path(exists=True, path_type=Path),
    help="A word a line, or a folder of counts: count these words, <unk> for others, <eos> if it is one of them.",
)
@click.option("--max-vocabulary", type=click.IntRange(1), help="Keep this many words, the most frequent.")
@click.option("--min-count", type=click.IntRange(1), help="Words rarer than this become <unk>.")
@click.option(
    "--eos/--no-eos", default=None, help="Whether <eos>, at the end of every line, is a word.  [default: eos]"
)
@click.option(
    "--unit",
    type=click.Choice(["line", "article"]),
    default="line",
    show_default=True,
    help="Count pairs within a line, or within an article (= Title = between blank lines).",
)
@click.option("--lower/--no-lower", default=None, help="Lower-case the text.")
@click.option("--digits", metavar="WORD", help="Put WORD, such as NUM, in the place of every run of digits.")
@click.option("--shard", metavar="I/N", callback=shard_option, help="Count one part of N only; join with count-merge.")
@click.option(
    "--cluster", metavar="ADDRESS", help="Count on the workers of a Dask cluster: tcp://HOST:PORT, or local:N for N processes."
)
@click.option("--part-bytes", type=click.IntRange(1), help="Bytes of a part, on a cluster.  [default: 64 MB]")
@click.option("--force", is_flag=True, help="Replace counts that are there already.")
def count(
    source: str,
    max_lag: int,
    most_lags: int,
    out: Path,
    vocabulary: Path | None,
    max_vocabulary: int | None,
    min_count: int | None,
    eos: bool | None,
    unit: str,
    lower: bool | None,
    digits: str | None,
    shard: tuple[int, int] | None,
    cluster: str | None,
    part_bytes: int | None,
    force: bool,
) -> None:
    """Count the words of SOURCE, and the pairs of words 1 to --max-lag places apart, in one pass.

    SOURCE is a text (.gz, .xz), its URL, a folder with a *train* file, x.jsonl#column or x.parquet#column, builtin:..., hf:...
    or - for standard input; on a cluster also a pattern of files with *. Prints a JSON line.
    """
    from pplseq.data.lag_files import COUNTS, is_counted, read_vocabulary, save_counts
    from pplseq.data.lag_streaming import count_lags
    from pplseq.data.vocabulary import WordForms

    if vocabulary is not None:
        given = {"--max-vocabulary": max_vocabulary, "--min-count": min_count, "--eos or --no-eos": eos}
        for option, value in given.items():
            if value is not None:
                raise click.UsageError(
                    f"--vocabulary and {option} exclude each other: the file says which words there are"
                )
    forms = WordForms(bool(lower), digits)
    words = None
    if vocabulary is not None:
        words, counted_forms = read_vocabulary(vocabulary)
        if counted_forms is not None:  # a folder of counts says how its words were written
            forms = WordForms(
                counted_forms.lower if lower is None else lower, counted_forms.digits if digits is None else digits
            )
    settings = {
        "max_lag": max_lag,
        "unit": unit,
        "lower": forms.lower,
        "digits": forms.digits,
        "vocabulary": None if words is None else words.fingerprint(),
        "max_vocabulary": max_vocabulary,
        "min_count": min_count or 1,
        "eos": eos is not False if words is None else words.eos_id is not None,
    }
    if cluster is not None and shard is not None:
        raise click.UsageError("--cluster and --shard exclude each other: a cluster counts all parts, and adds them up")
    if cluster is None and part_bytes is not None:
        raise click.UsageError("--part-bytes is of parts on a --cluster")
    if not force and is_counted(out, source, shard or (1, 1), settings):
        click.echo(f"{out}: counted already; --force counts again", err=True)
        click.echo(json_line(summary(out, COUNTS.read_header(out), skipped=True)))
        return
    began = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    how: dict[str, Any] = dict(
        vocabulary=words, min_count=min_count or 1, max_vocabulary=max_vocabulary, eos=eos is not False, unit=unit, forms=forms,
        most_lags=most_lags,
    )  # fmt: skip
    with CountingBar() as bar:
        if cluster is None:
            counts = count_lags(source, max_lag, shard=shard, progress=bar.show, folder=out.parent, **how)
            save_counts(counts, out, settings=settings)
        else:
            from pplseq.recipes.counting import PART_BYTES, count_on, forget_parts
            from pplseq.runs.cluster import connected

            kept = out.with_name(f"{out.name}.parts")
            with connected(cluster, say=lambda text: click.echo(text, err=True)) as there:
                size = part_bytes or PART_BYTES
                counts = count_on(there, source, max_lag, kept, part_bytes=size, done=bar.show_parts, **how)
            save_counts(counts, out, settings=settings)
            forget_parts(kept)
    seconds = time.monotonic() - began
    click.echo(json_line(summary(out, COUNTS.read_header(out), seconds=round(seconds, 3))))


def summary(out: Path, header: dict, **more: object) -> dict:
    """What a command prints about the counts it wrote."""
    names = ("num_words", "num_tokens", "max_lag", "num_pairs", "num_entries", "unit")
    shards = [f"{part['shard']}/{part['num_shards']}" for part in header["parts"] if part["num_shards"] > 1]
    return {"counts": str(out), **{name: header[name] for name in names}, "shards": shards, **more}


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
