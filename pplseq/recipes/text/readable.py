"""Answers, scores and sizes of models of words, for people."""

from __future__ import annotations

from functools import partial
from typing import Any

from pplseq.data.vocabulary import join_tokens


def readable(answer: dict[str, Any]) -> str:
    """What a question or `info` found, as lines of text; "" for anything else."""
    if "error" in answer:
        return f"line {answer['line']}: error: {answer['error']}"
    return _sizes(answer) if "splits" in answer else _answer(answer) if "words" in answer else ""


def _answer(answer: dict[str, Any]) -> str:
    words = ["_" if word is None else word for word in answer["words"]]
    join = partial(join_tokens, units=answer.get("units", "words"))
    lines = [join(words)]
    if answer["unknown"]:
        lines.append(f"  unknown: {', '.join(words[t] for t in answer['unknown'])}")
    if "token_log_probs" in answer:
        each = "" if answer["perplexity"] is None else f", perplexity {answer['perplexity']:,.1f}"
        lines.append(f"  log p = {answer['log_prob']:.3f} nats{each}")
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
        lines.append(f"  ... {join(row['words'])}")
    for row in answer.get("samples", []):
        lines.append(f"  sample: {' '.join(map(str, row))}")
    return "\n".join(lines)


def _words(proposals: list[dict[str, Any]]) -> str:
    return "  ".join(f"{entry['word']} {entry['prob']:.1%}" for entry in proposals)


def _sizes(facts: dict[str, Any]) -> str:
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
        there, needed = e["memory_gigabytes"], e["training_gigabytes"]
        fits = "" if there is None or needed <= there else f": does not fit in the {there:,.1f} GB of this machine"
        lines += [
            "",
            f"vlhmm with {e['num_states']:,} states in {e['num_blocks']} blocks ({e['device']}), estimated:",
            f"  weights            {e['num_weights']:>14,}",
            f"  memory, training   {needed:>14.2f} GB{fits}",
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
