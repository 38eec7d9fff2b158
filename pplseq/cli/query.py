"""`pplseq query`."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

# question -> (function of pplseq.models.answers, options it takes, whether it is about whole sentences, ended by <eos>)
QUESTIONS = {
    "score": ("score", (), True),
    "filter": ("filter_states", ("top",), True),
    "smooth": ("smooth_states", ("top",), True),
    "decode": ("decode_states", ("num_paths",), True),
    "sample": ("sample_states", ("num_samples", "seed"), True),
    "next-word": ("next_word", ("top", "allow_unknown"), False),
    "infill": ("infill", ("top", "num_samples", "seed", "allow_unknown"), True),
    "continue": ("continue_text", ("length", "num_samples", "temperature", "seed", "allow_unknown"), False),
}


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("question", type=click.Choice(list(QUESTIONS)))
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--top",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="States or words listed (filter, smooth, next-word, infill).",
)
@click.option("--num-paths", default=1, show_default=True, type=click.IntRange(1), help="Best paths (decode).")
@click.option("--num-samples", type=click.IntRange(0), help="Draws (sample, continue: 1; infill: 0).")
@click.option(
    "--length", default=20, show_default=True, type=click.IntRange(1), help="Words to draw, at most (continue)."
)
@click.option("--temperature", default=1.0, show_default=True, help="Below 1: more probable words (continue).")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option("--allow-unknown/--no-unknown", default=True, help="Whether <unk> may be proposed.")
@click.option(
    "--eos/--no-eos", default=None, help="End every line with <eos>.  [default: yes, except for next-word and continue]"
)
@click.option(
    "--gap",
    default=None,
    help="The word that stands for a gap in any question.  [default: _ for infill, none otherwise]",
)
@click.option("--lower/--no-lower", default=False, help="Lower-case the input.")
@click.option("--text", "as_text", is_flag=True, help="Print for people instead of JSON.")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Of a run.")
@click.option("--device", default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
@click.pass_context
def query(
    ctx: click.Context,
    model: Path,
    question: str,
    file: BinaryIO,
    eos: bool | None,
    gap: str | None,
    lower: bool,
    as_text: bool,
    checkpoint: str,
    device: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Ask MODEL (a run's folder or a saved model's) a QUESTION about every line of FILE (default: stdin).

    \b
    filter     p(z_t | x_1..x_t): states given the words so far
    smooth     p(z_t | x_1..x_T): states given the whole line
    decode     the most probable state path (--num-paths for the k best)
    sample     state paths drawn from the posterior
    score      log p(x) and each word's share, in nats
    next-word  the most probable next words
    infill     the words at the gaps, written _
    continue   sentences that go on from the line

    A line is words separated by spaces, or JSON: {"words": ["a", null]} (null is a gap) or {"text": "a b"}, with an
    optional "id". Every line gives a JSON line; one that cannot be answered gives {"line": N, "error": ...}, and the
    exit code is 1 at the end. Positions count from 0.

    Input-output HMMs answer questions of their own (predict, forecast, effects, ...): `pplseq query RUN --help`. A run of
    `pplseq lds fit` answers score, next-word and continue; a tagger is asked with `pplseq tag run`.
    """
    import torch

    from pplseq.baselines.loading import load_text_model
    from pplseq.cli.train.run import choose_device
    from pplseq.models.answers import answer_lines

    if threads:
        torch.set_num_threads(threads)
    trained = load_text_model(model, checkpoint)
    vocabulary = trained.vocabulary
    trained.to(choose_device(device))
    function, accepted, whole = QUESTIONS[question]
    chosen = {name: options[name] for name in accepted if options[name] is not None}
    ask = partial(answering(trained, question, function), trained, vocabulary, **chosen)
    end = vocabulary.eos if (whole if eos is None else eos) and vocabulary.eos_id is not None else None
    gap = "_" if gap is None and question == "infill" else gap
    show: Callable[[dict[str, Any]], str] = for_people if as_text else partial(json.dumps, ensure_ascii=False)
    failed = False
    with torch.no_grad():
        for answer in answer_lines(file, ask, gap=gap, end=end, lower=lower):
            failed |= "error" in answer
            click.echo(show(answer))
            sys.stdout.flush()
    if failed:
        ctx.exit(1)


def answering(model: Any, question: str, function: str) -> Callable[..., dict[str, Any]]:
    """The function that answers a question about a kind of model; ValueError where it has no answer."""
    module = importlib.import_module(getattr(model, "questions", "pplseq.models.answers"))
    if not hasattr(module, function):
        known = ", ".join(name for name, (other, _, _) in QUESTIONS.items() if hasattr(module, other))
        raise ValueError(module.REFUSAL.format(question=question, known=known))
    return getattr(module, function)


def for_people(answer: dict[str, Any]) -> str:
    """An answer as lines of text."""
    if "error" in answer:
        return f"line {answer['line']}: error: {answer['error']}"
    words = ["_" if word is None else word for word in answer["words"]]
    lines = [" ".join(words)]
    if answer["unknown"]:
        lines.append(f"  unknown: {', '.join(words[t] for t in answer['unknown'])}")
    if "token_log_probs" in answer:
        lines.append(f"  log p = {answer['log_prob']:.3f} nats, perplexity {answer['perplexity']:,.1f}")
        lines += [f"  {log_prob:9.3f}  {word}" for word, log_prob in zip(words, answer["token_log_probs"], strict=True)]
    for word, states in zip(words, answer.get("states", []), strict=False):
        lines.append(f"  {word:<20}" + "  ".join(f"{entry['state']} ({entry['prob']:.1%})" for entry in states))
    for path in answer.get("paths", []):
        lines.append(
            f"  posterior probability {path['prob']:.2g}: "
            + " ".join(f"{w}/{z}" for w, z in zip(words, path["states"], strict=True))
        )
    if "next" in answer:
        lines.append("  next: " + _words(answer["next"]))
    for gap in answer.get("gaps", []):
        lines.append(f"  gap {gap['position'] + 1}: " + _words(gap["words"]))
    for row in answer.get("continuations", []):
        lines.append(f"  ... {' '.join(row['words'])}")
    for row in answer.get("samples", []):
        lines.append(f"  sample: {' '.join(map(str, row))}")
    return "\n".join(lines)


def _words(proposals: list[dict[str, Any]]) -> str:
    return "  ".join(f"{entry['word']} {entry['prob']:.1%}" for entry in proposals)
