"""`pplseq tag`: tag files, score taggers and compare systems; `pplseq train tagger` trains one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pplseq import checks
from pplseq.cli.options import GroupedCommand, given, options_for
from pplseq.files import check_writable, json_line, printable, write_text
from pplseq.recipes.settings import options_of
from pplseq.recipes.taggers.settings import TaggedReading, TaggerEvaluation, TagQuestions, TolerantReading
from pplseq.recipes.taggers.systems import COMPARED, SYSTEMS

FORMATS = ("conllu", "columns", "word_tag", "words")


THREADS = click.option("--threads", type=click.IntRange(1), help="CPU threads.")
MODEL = click.argument("model", type=click.Path(path_type=Path))


@click.group(epilog="\b\nSystems:\n" + "\n".join(f"  {name:<16} {s.text}" for name, s in SYSTEMS.items()))
def tag() -> None:
    """Taggers: tag files, score and compare.

    Files are CoNLL-U, columns as CoNLL-2000's, or word_TAG, a sentence a line; .gz and .xz as well. A file is read as the one
    that a model was trained on where it may be written so (--format says otherwise).

    A first run: `pplseq train tagger train.conllu --out runs/tagger`, then
    `echo "the dog barks" | pplseq tag run runs/tagger --probabilities`.
    """


@tag.command(cls=GroupedCommand)
@MODEL
@click.argument("text", default="-")
@click.option("--out", default="-", help="File to write.  [default: stdout]")
@click.option("--to", type=click.Choice(FORMATS[:3]), help="Format to write.  [default: that of the input]")
@click.option(
    "--splitter", type=click.Path(path_type=Path), help="TEXT is raw: this one, of `pplseq tag splitter`, finds its words."
)
@click.option("--json", "as_json", is_flag=True, help="A JSON line a sentence, as with any option marked JSON.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page of coloured sentences."
)
@click.option("--max-sentences", default=200, show_default=True, type=click.IntRange(1), help="Of the page.")
@click.option(
    "--cluster", metavar="ADDRESS", help="Tag on the workers of a Dask cluster: tcp://HOST:PORT, or local:N for N processes."
)
@THREADS
@click.pass_context
def run(ctx: click.Context, model: Path, text: str, out: str, to: str | None, as_json: bool, **options: Any) -> None:
    """Tag TEXT (default: stdin) with MODEL, a run of `pplseq train tagger` or a saved tagger.

    The output is the input with other tags: comments, multiword tokens, empty nodes and other columns stay. Lines of words
    without tags (--format words) are written as word_TAG. Probabilities go to MISC of CoNLL-U (TagProb=0.9731), to a
    further column, or behind the tag (dog_NN_0.9731). Raw text (--splitter) comes out as CoNLL-U.

    Words of stdin are answered as they come, line by line; other formats of stdin are named (--format). A model of several
    columns (`--system morphology`) writes CoNLL-U. Where a tag holds `_`, another sign is chosen and said.

    A sentence that cannot be read is left out and its lines are named on stderr (in JSON it gives {"line", "error"}); one that
    cannot be tagged has _ for tags, in word_TAG none. The exit code is then 1 (0 for what --on-error skip left out).
    """
    from pplseq.data.columns import TaggedSentence
    from pplseq.data.tagged import make_format, write_tagged
    from pplseq.recipes.taggers.answers import answer_each, answer_on, check_answerable
    from pplseq.recipes.taggers.stream import holds_words, tag_stream
    from pplseq.recipes.taggers.systems import load_tagger
    from pplseq.recipes.taggers.tagging import (
        other_scheme,
        other_tags,
        read,
        read_raw,
        run_page,
        separator_of,
        written_separator,
    )

    use_threads(options["threads"])
    saved = load_tagger(model)
    questions = TagQuestions(**given(ctx, TagQuestions))
    check_answerable(saved.tagger, questions)
    reading = TolerantReading(**given(ctx, TolerantReading))
    as_json = as_json or questions.beyond_tags
    several = "," in str(saved.column)
    if as_json and to is not None:
        raise click.UsageError("--to chooses a format of tagged files; this is written as JSON: leave it out")
    to = "conllu" if several and not as_json else to  # the format that has room for them
    plain = (text, out) == ("-", "-") and reading.format in (None, "words") and options["on_error"] is None
    plain = plain and (reading.column, reading.word_column) == (None, None)
    whole = [options[name] for name in ("splitter", "html", "cluster")] + [getattr(saved.tagger, "word_columns", None)]
    if plain and not any(whole) and holds_words(sys.stdin.buffer, saved):

        def write(lines: str) -> None:
            click.echo(lines, nl=False)
            sys.stdout.flush()

        separator = separator_of(reading, saved)
        if not as_json and to in (None, "word_tag"):
            separator = written_separator(saved, separator, say)
        shape = {"to": to, "as_json": as_json, "separator": separator, "columns": saved.columns_in(to)}
        failed = tag_stream(sys.stdin.buffer, saved, questions, write, say, **shape)
        ctx.exit(1 if failed else 0)
    if options["splitter"] is None:
        sentences = read(text, reading, say, saved, tags="optional", to_tag=True)
    else:
        sentences = read_raw(text, options["splitter"], saved, reading.on_error, say)
    failed = len(sentences.skipped) if options["on_error"] is None else 0
    for note in (other_tags(saved, sentences), other_scheme(saved, sentences)):
        if note is not None:
            say(note)
    words = [sentence.words for sentence in sentences]
    if options["cluster"] is None:
        answers = answer_each(saved.tagger, words, questions)
    else:
        answers = answer_on(options["cluster"], saved.tagger, words, questions, say=say)
    for number, found in enumerate(answers):
        if "error" in found:
            failed += 1
            say(f"{sentences.name}, line {sentences.line_of(number)}: no tags: {found['error']}")
    if as_json:
        placed = [(sentences.line_of(number), found) for number, found in enumerate(answers)]
        placed += [(bad.first_line, {"line": bad.line, "error": bad.message}) for bad in sentences.skipped]
        lines = "".join(json_line(found) + "\n" for _, found in sorted(placed, key=lambda place: place[0]))
        if out == "-":
            click.echo(lines, nl=False)
        else:
            write_text(Path(out), lines)
    else:
        nothing = {"tags": [None], "probabilities": [0.0]}
        told = [
            found if "tags" in found else {name: list(value) * len(found["words"]) for name, value in nothing.items()}
            for found in answers
        ]
        tagged = [TaggedSentence(s.words, tuple(found["tags"])) for s, found in zip(sentences, told, strict=True)]
        probabilities = [found["probabilities"] for found in told] if questions.probabilities else None
        columns = saved.columns_in(to) if to not in (None, sentences.format) else {}
        separator = given_separator = separator_of(reading, saved)
        source = sentences
        if (to or sentences.format) in ("word_tag", "words"):
            separator = written_separator(saved, separator, say)
            if separator != given_separator:  # a source is written with the separator it was read with
                to, source = "word_tag", sentences.written_as(make_format("word_tag", separator=separator))
        write_tagged(out, tagged, to, **columns, source=source, probabilities=probabilities, separator=separator)
    if options["html"] is not None:
        run_page(saved, sentences, options["html"], options["max_sentences"], questions.decoder)
    if failed:
        ctx.exit(1)


@tag.command(cls=GroupedCommand)
@click.argument("text")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the splitter.")
@THREADS
def splitter(text: str, out: Path, threads: int | None) -> None:
    """Learn to split raw text into sentences and words from TEXT, a treebank in CoNLL-U.

    Then `pplseq tag run MODEL book.txt --splitter OUT` tags raw text.
    """
    from pplseq.recipes.taggers.tagging import train_splitter

    use_threads(threads)
    found = train_splitter(text, out)
    say(f"learned from {', '.join(f'{number:,} {what}' for what, number in found.items())}; written to {out}")


@tag.command(cls=GroupedCommand)
@click.argument("gold")
@click.argument("found")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def score(gold: str, found: str, as_json: bool) -> None:
    """Score FOUND, raw text that was split and tagged, by GOLD; both in CoNLL-U, of the same text.

    F1 of tokens, sentences, words, UPOS, XPOS, universal features, all three (alltags) and lemmas, as the CoNLL 2018 shared
    task defines them.
    """
    from pplseq.recipes.taggers.tagging import raw_scores
    from pplseq.report.tag_tables import f1_table

    scores = raw_scores(gold, found)
    if as_json:
        click.echo(json_line({name: score.summary() for name, score in scores.items()}))
    else:
        click.echo(f1_table("metric", scores))


@tag.command("eval", cls=GroupedCommand)
@MODEL
@click.argument("text")
@click.option("--against", type=click.Path(path_type=Path), help="Another tagger: McNemar's test between the two.")
@click.option("--top", default=10, show_default=True, type=click.IntRange(0), help="Most frequent errors listed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page: sentences with errors, the confusion matrix."
)
@click.option("--max-sentences", default=100, show_default=True, type=click.IntRange(1), help="Of the page.")
@click.pass_context
def evaluate(
    ctx: click.Context,
    model: Path,
    text: str,
    against: Path | None,
    top: int,
    as_json: bool,
    html: Path | None,
    max_sentences: int,
    **_: Any,
) -> None:
    """Score MODEL on TEXT, which has the right tags.

    Accuracy of all, known, unknown and ambiguous words and whole sentences; precision, recall and F1 of every tag; the most
    frequent errors. Words without a tag (_) are left out. Clusters, as of `unsupervised`, are called by the tag they have most
    often in TEXT (many-to-one), and their V-measure is told.
    """
    from pplseq.recipes.taggers import tagging
    from pplseq.recipes.taggers.answers import check_decoder
    from pplseq.recipes.taggers.systems import load_tagger

    check_writable(html)
    settings = TaggerEvaluation(**given(ctx, TaggerEvaluation))
    use_threads(settings.threads)
    saved, decoder = load_tagger(model), settings.decoder
    check_decoder(saved.tagger, decoder)
    sentences = tagging.read(text, settings, say, saved, tags="optional")
    result = tagging.score(saved, sentences, decoder, settings.clusters)
    other = None if against is None else tagging.score(load_tagger(against), sentences, decoder)
    if as_json:
        click.echo(json_line(tagging.scores_json(str(model), text, result, against, other)))
    else:
        click.echo(printable(tagging.scores_text(model, result, top, against, other)))
    if html is not None:
        title = f"{model.name} on {Path(text).name}"
        tagging.errors_page(saved, sentences, result, html, title, max_sentences, decoder)


@tag.command(cls=GroupedCommand)
@click.argument("text")
@click.argument("test")
@click.option("--validation", help="Text to tune or stop by, for the systems that do.")
@click.option(
    "--systems", default=",".join(COMPARED), metavar="NAME,NAME,...", help="Which.  [default: all that are supervised]"
)
@click.option(
    "--word-columns", metavar="N,N,...", help="Columns that crf, memm and spans look at beside the words, which are 0."
)
@click.option("--per-tag", is_flag=True, help="Also print F1 of every tag.")
@click.option("--limit", type=click.IntRange(1), help="Train on the first N sentences only.")
@click.option(
    "--learning-curve", metavar="F,F,...", help="Also train every system on these fractions of TEXT, such as 0.1,0.3,1."
)
@click.option("--seed", default=0, show_default=True, help="Of the sentences drawn for the learning curve.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the learning curves (PNG).")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the numbers as JSON.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page: systems, tags, errors.")
@THREADS
@click.pass_context
def compare(ctx: click.Context, text: str, test: str, out: Path | None, threads: int | None, **options: Any) -> None:
    """Train systems on TEXT, score all on TEST, and print one table.

    p is McNemar's test against the best system. A system whose package is not installed is named with what to install; one
    that fails is named with its error, and the exit code is 1 at the end.
    """
    from pplseq.recipes.taggers import tagging
    from pplseq.recipes.taggers.systems import compare as compare_systems

    if options["plot"] is not None and options["learning_curve"] is None:
        raise click.UsageError("--plot draws the learning curves: give --learning-curve 0.1,0.3,1 too")
    check_writable(out, options["plot"], options["html"])
    use_threads(threads)
    reading = TaggedReading(**given(ctx, TaggedReading))
    systems, fractions = names_between(options["systems"]), numbers_between(options["learning_curve"])
    columns = columns_between(options["word_columns"])
    sentences = tagging.read(text, reading, say, word_columns=columns)[: options["limit"]]
    tests = tagging.read(test, reading, say, tags="optional", word_columns=columns)
    validation = None if options["validation"] is None else tagging.read(
        options["validation"], reading, say, word_columns=columns
    )
    chosen = {"fractions": fractions, "seed": options["seed"], "word_columns": columns, "say": say}
    found = compare_systems(systems, sentences, tests, validation, **chosen)
    click.echo(printable(tagging.comparison_text(found, options["per_tag"])))
    if out is not None:
        tagging.write_json(out, {"train": text, "test": test, **found.summary()})
    if options["html"] is not None:
        from pplseq.report.tag_comparison import render_comparison_page

        title = f"Taggers trained on {Path(text).name}, on {Path(test).name}"
        write_text(options["html"], render_comparison_page(found.results, title=title))
    if options["plot"] is not None:
        from pplseq.report.tagging_picture import draw_learning_curves

        draw_learning_curves(found.curves, options["plot"])
    if found.failed:
        ctx.exit(1)


def use_threads(threads: int | None) -> None:
    if threads:
        import torch

        torch.set_num_threads(threads)


def say(line: str) -> None:
    """A remark on stderr."""
    click.echo(printable(line), err=True)


def names_between(text: str) -> list[str]:
    """Names between commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("--systems: expected names between commas, got none")
    return names


def numbers_between(text: str | None) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in (text or "").split(",") if part]
    except ValueError:
        raise ValueError(
            f"--learning-curve: expected numbers between commas such as 0.1,0.3,1, got {checks.shown(text)}"
        ) from None


def columns_between(text: str | None) -> tuple[int, ...]:
    """Numbers of columns between commas."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"--word-columns: expected numbers of columns between commas such as 1,2, got {checks.shown(text)}")
    return tuple(map(int, parts))


run.params += [*options_for(TagQuestions), *options_for(TolerantReading)]
USED = [name for name in options_of(TaggerEvaluation) if name not in ("checkpoint", "device")]  # taggers have neither
evaluate.params += options_for(TaggerEvaluation, USED)
compare.params += options_for(TaggedReading)
