"""Texts drawn from a language model: what an HMM that is to steer it learns from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.baselines.neural import NeuralLanguageModel
from pplseq.data.vocabulary import EOS, Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.loading import load_text_model

AT_ONCE = 256  # texts that are drawn together


class LanguageModel(NamedTuple):
    """What texts are drawn from.

    Attributes:
        vocabulary: its tokens by their ids, with its end of text as ``eos``.
        draw: of (rows, longest) -> (rows, up to longest + 1) ids; behind a row's end anything.
    """

    vocabulary: Vocabulary
    draw: Callable[[int, int], Tensor]


def open_language_model(spec: str) -> LanguageModel:
    """The language model behind a name.

    Args:
        spec: a folder of a network of this library (a run, or a saved model), or ``hf:NAME``, a causal model of the
            `transformers` library (extra ``huggingface``) from a local folder or the hub.

    Raises:
        ValueError: a model of another kind, or one without an end of text. FileNotFoundError: no such folder.
        ImportError: naming the extra.
    """
    if spec.startswith("hf:"):
        return _of_transformers(spec.removeprefix("hf:"))
    if not spec or not Path(spec).is_dir():
        raise FileNotFoundError(
            f"samples:{spec}: there is no such folder; expected samples:RUN, of pplseq train lstm (awd-lstm, rnn, ff, "
            "hmm-rnn), or samples:hf:NAME, a Hugging Face language model"
        )
    model = load_text_model(spec)
    if not isinstance(model, NeuralLanguageModel):
        raise ValueError(f"samples:{spec}: expected a network (lstm, awd-lstm, rnn, ff, hmm-rnn), got a {model.name}")
    return LanguageModel(model.vocabulary, lambda rows, longest: draw_from_network(model, rows, longest))


@torch.no_grad()
def draw_from_network(model: NeuralLanguageModel, rows: int, longest: int) -> Tensor:
    """(rows, T) ids of lines of a network, T at most longest + 1, with their ``<eos>``, which then fills the row."""
    model.eval()
    words, state = torch.full((rows,), model.eos_id), model.initial_state(rows)
    ids, done = torch.zeros(rows, 0, dtype=torch.long), torch.zeros(rows, dtype=torch.bool)
    while ids.shape[1] <= longest and not bool(done.all()):
        features, state = model(words.unsqueeze(1), state)
        logits = torch.log_softmax(model.logits(features[:, 0]), -1)
        words = torch.distributions.Categorical(logits=logits, validate_args=False).sample().masked_fill(done, model.eos_id)
        ids = torch.cat([ids, words.unsqueeze(1)], 1)
        done |= words == model.eos_id
    return ids


def _of_transformers(name: str) -> LanguageModel:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ImportError('Hugging Face models need transformers: pip install "pplseq[huggingface]"') from error
    model = AutoModelForCausalLM.from_pretrained(name).eval()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, TypeError):  # weights without a tokenizer: tokens are their numbers
        tokenizer = None
    size, end = int(model.get_output_embeddings().weight.shape[0]), model.config.eos_token_id
    start: Any = model.config.bos_token_id
    end: Any = end[0] if isinstance(end, list) and end else end
    start = end if start is None else start
    if end is None:
        raise ValueError(f"samples:hf:{name}: its configuration names no end of text (eos_token_id)")
    words = spellings(tokenizer, size, end)
    positions = getattr(model.config, "max_position_embeddings", None)

    def draw(rows: int, longest: int) -> Tensor:
        if positions is not None and longest + 2 > positions:
            raise ValueError(f"sample_length: {name} has {positions} positions; give at most {positions - 2}, got {longest}")
        begin = torch.full((rows, 1), start, device=model.device)
        out = model.generate(
            begin, attention_mask=torch.ones_like(begin), do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
            max_new_tokens=longest + 1, eos_token_id=end, pad_token_id=end,
        )  # fmt: skip
        return out[:, 1:].cpu()

    return LanguageModel(Vocabulary(words), draw)


def spellings(tokenizer: Any, size: int, end: int) -> tuple[str, ...]:
    """A word without white space, of its own, for each of ``size`` tokens; numbers where there is no tokenizer, and
    ``<eos>`` for the end of text.

    Weights without a tokenizer's files get an empty one: one that knows less than half of the tokens is none.
    """
    known = 0 if tokenizer is None or 2 * len(tokenizer) < size else min(size, len(tokenizer))
    names = [] if tokenizer is None else tokenizer.convert_ids_to_tokens(list(range(known)))
    taken = {EOS}
    words = []
    for number in range(size):
        word = "".join(names[number].split()) if number < known and names[number] else str(number)
        if number == end:
            word = EOS
        elif not word or word in taken:
            word = f"{word}<{number}>"
        taken.add(word)
        words.append(word)
    return tuple(words)


def draw_texts(model: LanguageModel, number: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Texts of a language model, by ancestral sampling at temperature 1.

    Args:
        number: texts. longest: tokens at most, without the end; a longer text is cut, and has no end then.
        seed: of the draws; the state of torch's generator is left as it was.

    Returns:
        the ids of each, with its end where it came.
    """
    checks.count("number", number)
    checks.count("longest", longest)
    end = model.vocabulary.eos_id
    texts: list[list[int]] = []
    with seeded(seed):
        while len(texts) < number:
            for row in model.draw(min(AT_ONCE, number - len(texts)), longest).tolist():
                texts.append(row[: row.index(end) + 1] if end in row else row[:longest])
    return texts
