"""`pplseq info`."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.argument("data")
@click.option("--states", type=click.IntRange(1), help="States Z of a vlhmm whose cost to estimate.")
@click.option("--num-blocks", default=128, show_default=True, type=click.IntRange(1), help="Blocks M; 1 for none.")
@click.option("--hidden", default=256, show_default=True, type=click.IntRange(1), help="Width h.")
@click.option(
    "--dropout", default=0.5, show_default=True, type=click.FloatRange(0, 1, max_open=True), help="State dropout."
)
@click.option("--tied/--untied", default=True, show_default=True, help="One embedding table, or four.")
@click.option("--batch-size", default=16, show_default=True, type=click.IntRange(1), help="Streams B.")
@click.option(
    "--segment-length", default=32, show_default=True, type=click.IntRange(1), help="Tokens T of a stream in a step."
)
@click.option("--min-count", type=click.IntRange(1), help="Words rarer than this become <unk>.")
@click.option("--max-vocabulary", type=click.IntRange(1), help="Keep this many words, the most frequent.")
@click.option("--lower/--no-lower", default=False, help="Lower-case the text.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads for the time estimate.")
@click.option("--device", default="auto", show_default=True, help="Where the time is estimated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(
    data: str,
    states: int | None,
    num_blocks: int,
    hidden: int,
    dropout: float,
    tied: bool,
    batch_size: int,
    segment_length: int,
    threads: int | None,
    device: str,
    as_json: bool,
    **reading: Any,
) -> None:
    """Sizes of DATA; with --states, what a vlhmm of that size takes in memory and time on this machine.

    Nothing of the model's size is allocated: the estimate comes from operation counts and a short timing of the kernel
    that dominates.
    """
    from pplseq.cli.train.config import RunConfig
    from pplseq.cli.train.run import build_corpus, choose_device
    from pplseq.data.text import describe_corpus
    from pplseq.models.vlhmm.fit import check_divisible
    from pplseq.runs.cost import estimate

    if states is not None:
        check_divisible(states, num_blocks)
    corpus = build_corpus(RunConfig(data=data, **reading))
    facts = describe_corpus(corpus)
    if states is not None:
        if threads:
            import torch

            torch.set_num_threads(threads)
        sizes = {
            "num_words": len(corpus.vocabulary),
            "num_states": states,
            "num_blocks": num_blocks,
            "hidden_size": hidden,
            "state_dropout": dropout,
            "tied": tied,
        }
        facts["estimate"] = estimate(
            corpus.train.num_tokens, batch_size * segment_length, choose_device(device), **sizes
        )
    click.echo(json.dumps(facts, ensure_ascii=False) if as_json else _table(facts))


def _table(facts: dict[str, Any]) -> str:
    lines = [f"{facts['name']}: {facts['num_words']:,} words in the vocabulary", ""]
    lines.append(
        f"{'split':<8}{'tokens':>12}{'lines':>10}{'unknown':>9}{'shortest':>10}{'median':>8}{'mean':>8}{'longest':>9}"
    )
    for name, row in facts["splits"].items():
        lines.append(
            f"{name:<8}{row['num_tokens']:>12,}{row['num_lines']:>10,}{row['unknown_rate']:>9.2%}{row['shortest_line']:>10}"
            f"{row['median_line']:>8.0f}{row['mean_line']:>8.1f}{row['longest_line']:>9}"
        )
    lines += ["", "most frequent: " + "  ".join(f"{word} {share:.1%}" for word, share in facts["most_frequent"])]
    if "estimate" in facts:
        e = facts["estimate"]
        lines += [
            "",
            f"vlhmm with {e['num_states']:,} states in {e['num_blocks']} blocks ({e['device']}), estimated:",
            f"  weights            {e['num_weights']:>14,}",
            f"  memory, training   {e['training_gigabytes']:>14.2f} GB",
            f"  memory, evaluation {e['evaluation_gigabytes']:>14.2f} GB",
            f"  a training step    {e['step_gigaflops']:>14,.1f} GFLOP, {e['step_seconds']:.3g} s",
            f"  an epoch           {e['steps_per_epoch']:>14,} steps, {_duration(e['epoch_seconds'])}",
            f"  exact evaluation   {_duration(e['evaluation_seconds']):>14} for 100,000 tokens",
        ]
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
