"""Where a VLHMM may start: at the bigrams of word classes of its text, counted once.

    p(b' | z) = C(b(z), b') / C(b(z)),   p(x | z) = C(x) / C(b(z)),   p(z_1) = C(eos, b(z_1)) / (C(eos) K)

with C counts of blocks and words: the class model of P. F. Brown and others (1992), Class-based n-gram models of natural
language, section 3. Training takes the states of a block apart from there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.text import Text
from pplseq.models.base import AT_TEST, said
from pplseq.models.vlhmm.growth import fit_block_scores, least_squares

STARTS = ("random", "counts")
SHARED = 0.5  # of an embedding's variance that the states of a block begin with in common
RIDGE = 0.1  # of the least squares: nearer to the counts at the start is farther behind after fifty steps
ADDED = 0.5  # to every count: what was not seen is not impossible


def start_from_counts(model: Any, text: Text) -> None:
    """Sets the parameters of a VLHMM, as drawn, to the class bigrams of a text, as nearly as its features can say them.

    Scalar tables take the counts as they are, beside the noise they were drawn with. Embeddings keep what sets the states of a
    block apart and get, in equal parts, what they have in common; the scores of blocks and the start are then fitted to the
    logarithms of the counts by least squares.

    Args:
        model: a :class:`~pplseq.models.vlhmm.program.VLHMM` with words and hierarchical transitions.
        text: what is counted, as encoded for the model.

    Raises:
        ValueError: one softmax over all states has no scores of blocks; the text has other words.

    Cost: Z h^2 flops once, and a pass over the text.
    """
    check_start("counts", model.config["transition"])
    model._check_words_known()
    if len(text.vocabulary) != model.num_words:
        raise ValueError(
            f"text: the model has {model.num_words} words, and the text {len(text.vocabulary)}; encode it with the vocabulary "
            "of the model"
        )
    with said(AT_TEST):
        layout = model.specs()[0].layout
    layout = layout.base if model.num_topics > 1 else layout  # topics share what is counted here
    words, bigrams, first = (torch.as_tensor(value) for value in _counts(model, text, layout.num_blocks))
    block = layout.block_of_kept
    parameters = dict(model.named_parameters())
    scalar = model.config["parameterization"] == "scalar"
    with torch.no_grad():
        if not scalar:
            _share_within_blocks(model, block)
        log_words, log_first = words.log(), (first / first.sum()).log() - layout.sizes.cpu().log()
        following = (bigrams / bigrams.sum(-1, keepdim=True)).log().to(block.device)[block]  # (Z, M)
        wanted = log_first.to(block.device)[block].unsqueeze(-1)  # (Z, 1)
        found = fit_block_scores(model, following, RIDGE)
        if scalar:
            model.word_table += log_words.unsqueeze(-1).to(model.word_table)
            model.start_table += wanted.squeeze(-1).to(model.start_table)
            found["block_table"] = found["block_table"] + model.block_table
        else:
            layer = model.emit_layer if model.config["shared_layer"] else model.start_layer
            weight, bias = least_squares(layer(model.embeddings("start", None, layout)), wanted, RIDGE)
            found |= {"start_score.weight": weight, "start_score.bias": bias, "word_score.bias": log_words}
        for name, value in found.items():
            parameters[name].copy_(value)


def check_start(start: str, transition: str) -> None:
    """Raise ValueError for a start that there is none, or that a model with this transition cannot have."""
    checks.choice("start", start, STARTS)
    if start == "counts" and transition != "hierarchical":
        raise ValueError(
            "start = counts sets p(block | state), which one softmax over states does not have; "
            "choose transition = hierarchical, or start = random"
        )


def _counts(model: Any, text: Text, num_blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, more than zero, of words (V,), of neighbouring blocks (M, M), and of blocks that begin a line (M,)."""
    block_of_word = model.block_of_word.cpu().numpy()
    of_token = block_of_word[text.tokens]
    first = of_token[text.line_starts[:-1]]
    cells = of_token[:-1] * num_blocks + of_token[1:]
    if text.vocabulary.eos_id is None:  # lines follow no other line
        inside = np.ones(len(cells), dtype=bool)
        inside[text.line_starts[1:-1] - 1] = False
        cells = cells[inside]
    words = np.bincount(text.tokens, minlength=len(block_of_word)) + ADDED
    bigrams = np.bincount(cells, minlength=num_blocks**2).reshape(num_blocks, num_blocks) + ADDED
    return words, bigrams, np.bincount(first, minlength=num_blocks) + ADDED


def _share_within_blocks(model: Any, block: Tensor) -> None:
    """Makes embeddings of the states of a block alike; factored ones have what they share already."""
    if model.config["parameterization"] == "factored":
        return
    for table in model.states.values():
        weight = table.weight
        common = torch.randn(int(block.max()) + 1, weight.shape[1]).to(weight) * weight.std(correction=0)
        weight.mul_((1 - SHARED) ** 0.5).add_(common[block], alpha=SHARED**0.5)
