"""`pplseq count-merge`."""

from __future__ import annotations

from pathlib import Path

import click

from pplseq.cli.options import GroupedCommand
from pplseq.files import check_may_be_folder, json_line


@click.command("count-merge", cls=GroupedCommand)
@click.argument("parts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder for the sums.")
@click.option("--max-vocabulary", type=click.IntRange(1), help="Keep this many words; <unk> stands for the others.")
@click.option("--allow-missing", is_flag=True, help="Go on where shards are missing.")
@click.option("--force", is_flag=True, help="Replace counts that are there already.")
def count_merge(
    parts: tuple[Path, ...], out: Path, max_vocabulary: int | None, allow_missing: bool, force: bool
) -> None:
    """Add up the counts of PARTS, folders that `pplseq count` wrote: shards of one text, or different texts.

    One part with --max-vocabulary makes counts of fewer words, without the text. Prints a JSON line.
    """
    from pplseq.data.lag_counts import LagCounts, Part, check_disjoint, missing_shards
    from pplseq.data.lag_files import COUNTS, load_counts, save_counts
    from pplseq.recipes.counting import summary

    check_may_be_folder(out)
    # What is wrong with the set is told before the numbers are read.
    found = [Part(**part) for folder in parts for part in COUNTS.read_header(folder)["parts"]]
    check_disjoint(found)
    missing = missing_shards(found)
    if missing and not allow_missing:
        raise ValueError(
            f"{len(missing)} shard{'s are' if len(missing) > 1 else ' is'} missing: {', '.join(map(str, missing))}; count "
            "them with `pplseq count --shard`, or go on without them with --allow-missing"
        )
    if out.exists() and not force:
        raise click.UsageError(f"{out} exists; choose another folder, or replace it with --force")
    merged = load_counts(parts[0])
    for folder in parts[1:]:  # one after the other: two sets in memory at a time
        merged = LagCounts.merge(merged, load_counts(folder))
    if not missing:
        merged.check_learnable()
    if max_vocabulary is not None:
        merged = merged.cut(max_vocabulary)
    save_counts(merged, out)
    click.echo(json_line(summary(out, missing=[str(part) for part in missing])))
