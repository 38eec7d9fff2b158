"""A frozen language model, steered by a hidden Markov model over its own tokens so that its texts satisfy a constraint."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.infer.discrete.constrained.chain import ConstrainedChain
from pplseq.infer.discrete.constrained.results import TextSoFar

KEPT_STEPS = 2  # of texts that are remembered


class ConstraintProcessor:
    """Weighs a language model's next tokens by how probable they leave the constraint, and closes those that rule it out:

        p(x | text) p_hmm(constraint | text, x)

    It is a ``LogitsProcessor`` of the `transformers` library, for sampling and for beams: ``model.generate(ids,
    logits_processor=LogitsProcessorList([ConstraintProcessor(chain, prompt_length=ids.shape[1])]), max_new_tokens=...)``. Every
    text that is generated satisfies the constraint, whatever the language model; how natural it is depends on how well the
    hidden Markov model knows which beginnings can be finished.

    Args:
        chain: of a model whose words are the tokens, one row for each prompt, behind it: ``hmm.posterior(prompts).constrained(
            ...)`` or ``hmm.constrained(constraint, prefix=ids, length=(a, b), end=eos_token_id)``. Texts need an end word, or
            one length.
        prompt_length: tokens before the first that the constraint is about; all prompts have this length.

    Raises:
        ValueError: texts of several lengths without an end word; called: tokens of another number than the model's words, more
            tokens than the chain has steps, or a text that cannot satisfy the constraint any more.

    Cost: a step of all states to all others, and a sum over the words of each state, for each new token of all rows.

    Source: H. Zhang et al., Adaptable logical control for large language models (2024), equation 2.
    """

    def __init__(self, chain: ConstrainedChain, prompt_length: int = 0):
        if chain.end is None and int((chain.stop > -torch.inf).sum()) != 1:
            raise ValueError("chain: a language model must be told where a text ends: give an end word, or one length")
        self.chain, self.prompt_length = chain, prompt_length
        self._read: dict[tuple[int, ...], TextSoFar] = {}

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(B, V) log p(next token) and log p_hmm(constraint | it), up to a constant a row.

        Args:
            input_ids: (B, T) prompts with what was generated; rows of one prompt, or beams of it, stand together.
            scores: (B, V) logits of the language model.
        """
        chain, num_words = self.chain, len(self.chain.moves.classes)
        if scores.shape[-1] != num_words:
            raise ValueError(f"scores: the language model has {scores.shape[-1]} tokens, and the HMM {num_words} words")
        prompts = len(chain.first)
        if len(input_ids) % prompts:
            raise ValueError(f"input_ids: expected rows for each of {prompts} prompts, got {len(input_ids)} rows")
        per_prompt = len(input_ids) // prompts
        texts = [
            (row // per_prompt, *text) for row, text in enumerate(input_ids[:, self.prompt_length :].tolist())
        ]
        at = self._places(texts)
        guided = torch.log_softmax(scores, -1).to(chain.first)
        may_stop = chain.stop_at(at) > -torch.inf
        if at.step < chain.num_steps:
            ahead = chain.words_ahead(at)
            plain = chain.words.word_log_prob(at.states)
            guided = torch.where(ahead > -torch.inf, guided + ahead - plain, -torch.inf)
        else:
            guided = torch.full_like(guided, -torch.inf)
        stuck = torch.isneginf(guided).all(-1)
        if bool((stuck & ~may_stop & ~self._ended(texts, scores)).any()):
            row = int((stuck & ~may_stop).nonzero()[0])
            raise ValueError(
                f"input_ids: row {row} cannot satisfy the constraint any more within {chain.num_steps} tokens, of which "
                f"{at.step} are there; generate no more than that many (max_new_tokens)"
            )
        # what has ended is only padded
        return torch.where(stuck.unsqueeze(-1), scores, guided.to(scores))

    def _ended(self, texts: list[tuple[int, ...]], scores: Tensor) -> Tensor:
        """(B,) whether the end word is there already."""
        return torch.tensor([self.chain.end in text[1:] for text in texts], device=scores.device)

    def _places(self, texts: list[tuple[int, ...]]) -> TextSoFar:
        """Where each text is; those that go on from texts of the last call are read one word further."""
        for text in dict.fromkeys(texts):
            if text not in self._read:
                self._read[text] = self._place(text)
        step = len(texts[0]) - 1
        self._read = {text: at for text, at in self._read.items() if len(text) > step + 1 - KEPT_STEPS}
        places = [self._read[text] for text in texts]
        return TextSoFar(
            min(step, self.chain.num_steps), torch.cat([at.states for at in places]), torch.cat([at.automaton for at in places])
        )

    def _place(self, text: tuple[int, ...]) -> TextSoFar:
        prompt, words = text[0], text[1:]
        begin = self.chain.begin()
        at = self._read.get(text[:-1]) if words else None
        if at is None:
            at = TextSoFar(0, begin.states[prompt, None], begin.automaton[prompt, None])
        for word in words[at.step :]:
            if self.chain.end is not None and self.chain.end in words[: at.step]:  # padding behind the end
                at = at._replace(step=at.step + 1)
            else:
                at = self.chain.read(at, torch.tensor([word], device=at.states.device))
        return at
