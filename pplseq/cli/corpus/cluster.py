"""`pplseq cluster`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pplseq.cli.options import GroupedCommand
from pplseq.files import json_line, new_file


@click.command(cls=GroupedCommand)
@click.argument("data")
@click.option("--num-clusters", default=128, show_default=True, type=click.IntRange(1), help="Clusters of words.")
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The paths file: bits<TAB>word<TAB>count.",
)
@click.option("--eos-block/--no-eos-block", default=True, show_default=True, help="Give <eos> a cluster of its own.")
@click.option("--uniform", is_flag=True, help="Clusters of equal size at random, instead of Brown clusters.")
@click.option(
    "--exchange-passes",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Passes that improve the clusters word by word.",
)
@click.option("--min-count", type=click.IntRange(1), help="Words rarer than this become <unk>.")
@click.option("--max-vocabulary", type=click.IntRange(1), help="Keep this many words, the most frequent.")
@click.option("--lower/--no-lower", default=False, help="Lower-case the text.")
@click.option(
    "--units",
    type=click.Choice(["words", "characters", "bytes"]),
    help="What of the text is a word; characters or bytes of a text without spaces.  [default: words]",
)
@click.option("--seed", default=0, show_default=True, help="Of --uniform, and of the split of a single file.")
def cluster(
    data: str,
    num_clusters: int,
    out: Path,
    eos_block: bool,
    uniform: bool,
    exchange_passes: int,
    seed: int,
    **reading: Any,
) -> None:
    """Cluster the words of DATA's training text by their neighbours; use the result with `train --blocks FILE`.

    DATA may also be a folder of counts (`pplseq count`), of a text that is larger than a machine.
    Prints a JSON line with the average mutual information of adjacent clusters, in bits.
    """
    from pplseq.data.clustering import average_mutual_information, clusters_from_counts, write_paths
    from pplseq.data.lag_files import COUNTS, load_counts
    from pplseq.data.text import load_corpus
    from pplseq.models.vlhmm.fit import make_clusters

    show = sys.stderr.isatty()
    if COUNTS.is_at(data):
        others = {f"--{name.replace('_', '-')}": value for name, value in (reading | {"uniform": uniform}).items()}
        if refused := [name for name, value in others.items() if value]:
            raise click.UsageError(f"{refused[0]}: {data} holds counts, whose words are settled; count again with it")
        counts = load_counts(data)
        vocabulary = counts.vocabulary
        own = [vocabulary.eos_id] if eos_block and vocabulary.eos_id is not None else []
        clusters = clusters_from_counts(counts, num_clusters, own_block=own, exchange_passes=exchange_passes, progress=show)
        information = clusters.mutual_information
    else:
        corpus = load_corpus(data, seed=seed, **reading)
        vocabulary, blocks = corpus.vocabulary, "uniform" if uniform else "brown"
        clusters = make_clusters(
            corpus.train, blocks, num_clusters, eos_block=eos_block, exchange_passes=exchange_passes, seed=seed, progress=show
        )
        information = average_mutual_information(corpus.train.tokens, clusters.block_of_word)
    with new_file(out) as new:
        write_paths(new, clusters, vocabulary)
    click.echo(
        json_line(
            {
                "paths": str(out),
                "num_clusters": clusters.num_blocks,
                "num_words": len(vocabulary),
                "mutual_information_bits": information,
            }
        )
    )
