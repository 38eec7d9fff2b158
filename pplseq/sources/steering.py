"""A frozen language model, steered by a hidden Markov model over its own tokens so that its texts satisfy a constraint."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.drawing import seeded
from pplseq.infer.discrete.constrained.chain import ConstrainedChain
from pplseq.infer.discrete.constrained.results import TextSoFar
from pplseq.kernels.path_scan import sample_log

KEPT_STEPS = 2  # of texts that are remembered


class Particles(NamedTuple):
    """Texts with weights; see :meth:`ConstraintProcessor.sample`.

    tokens: (P, N) ids behind the prompt, with the end word, and -1 behind it. log_weights: (P,), of weights that sum to one.
    log_prob: log of an unbiased estimate of p(constraint), nats.
    """

    tokens: Tensor
    log_weights: Tensor
    log_prob: float

    @property
    def effective_size(self) -> float:
        """Of how many texts with even weights these are worth."""
        return float(1 / self.log_weights.exp().square().sum())


class ConstraintProcessor:
    """Weighs a language model's next tokens by how probable they leave the constraint, and closes those that rule it out:

        p(x | text) p_hmm(constraint | text, x)

    It is a ``LogitsProcessor`` of the `transformers` library, for sampling and for beams: ``model.generate(ids,
    logits_processor=LogitsProcessorList([ConstraintProcessor(chain, prompt_length=ids.shape[1])]), max_new_tokens=...)``. Every
    text that is generated satisfies the constraint, whatever the language model; how natural it is depends on how well the
    hidden Markov model knows which beginnings can be finished. :meth:`sample` draws without that bias.

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
        chain = self.chain
        prompts = len(chain.first)
        if not len(input_ids) or len(input_ids) % prompts:
            raise ValueError(f"input_ids: expected rows for each of {prompts} prompts, got {len(input_ids)} rows")
        per_prompt = len(input_ids) // prompts
        texts = [
            (row // per_prompt, *text) for row, text in enumerate(input_ids[:, self.prompt_length :].tolist())
        ]
        at = self._places(texts)
        may_stop = chain.stop_at(at) > -torch.inf
        guided = torch.log_softmax(scores, -1).to(chain.first) + self._lookahead(at, scores)
        stuck = torch.isneginf(guided).all(-1)
        if bool((stuck & ~may_stop & ~self._ended(texts, scores)).any()):
            row = int((stuck & ~may_stop).nonzero()[0])
            raise ValueError(
                f"input_ids: row {row} cannot satisfy the constraint any more within {chain.num_steps} tokens, of which "
                f"{at.step} are there; generate no more than that many (max_new_tokens)"
            )
        # what has ended is only padded
        return torch.where(stuck.unsqueeze(-1), scores, guided.to(scores))

    def _lookahead(self, at: TextSoFar, scores: Tensor) -> Tensor:
        """(B, V) log p_hmm(constraint | text, next token); -inf where none leads on, and for tokens that the HMM never has.

        Args:
            scores: (B, V) of the language model, which must have as many tokens.
        """
        chain, num_words = self.chain, len(self.chain.moves.classes)
        if scores.shape[-1] != num_words:
            raise ValueError(f"scores: the language model has {scores.shape[-1]} tokens, and the HMM {num_words} words")
        ahead = chain.words_ahead(at)
        if at.step == chain.num_steps:
            return ahead
        return torch.where(ahead > -torch.inf, ahead - chain.words.word_log_prob(at.states), -torch.inf)

    @torch.no_grad()
    def sample(
        self, language_model: Callable[[Tensor], Tensor], prompt: Any = (), num_particles: int = 100, *,
        resample_below: float = 0.5, seed: int | None = None,
    ) -> Particles:  # fmt: skip
        """Texts from the language model's own distribution given the constraint, with weights, by sequential Monte Carlo.

        Token by token, as ``generate`` takes them, texts come out by how probable the HMM thought the constraint, and not the
        language model. Here each text is a particle, which is weighed by what the two differ in, so that weighted averages tend
        to those of p(text | constraint), and the mean weight is an unbiased estimate of p(constraint), for any HMM that gives
        every token some probability. The better it knows the language model, the more even the weights are.

        Args:
            language_model: ids (P, T) -> logits (P, V) of the next token: ``lambda ids: network(ids).logits[:, -1]``.
            prompt: ids of the prompt, (T,) or (1, T), as the chain was given it.
            num_particles: P. resample_below: particles are drawn anew by their weights where fewer than this share of them
                count; 0 for never, which is importance sampling. seed: makes it repeatable; None draws from torch's generator.

        Raises:
            ValueError: a chain of several prompts, tokens of another number, a language model that leaves no text possible, or
                gives NaN. TypeError: for a prompt that is no numbers, or logits that are none.

        Cost: a call of the language model with all particles for each token, and the HMM's step.

        Source: A. Lew et al. (2023), Sequential Monte Carlo steering of large language models using probabilistic programs;
            A. Doucet and A. Johansen (2009), A tutorial on particle filtering and smoothing.
        """
        checks.count("num_particles", num_particles)
        checks.share("resample_below", resample_below, "[0, 1]")
        chain, device = self.chain, self.chain.first.device
        if len(chain.first) != 1:
            raise ValueError(f"chain: particles are of one prompt, and this chain is of {len(chain.first)}")
        ids = checks.numbers("prompt", prompt).reshape(1, -1).to(device)
        if ids.shape[1] != self.prompt_length:
            raise ValueError(f"prompt: expected {self.prompt_length} ids, as prompt_length says, got {ids.shape[1]}")
        num_words = len(chain.moves.classes)
        if ids.numel() and (ids.is_floating_point() or int(ids.min()) < 0 or int(ids.max()) >= num_words):
            raise ValueError(f"prompt: expected whole numbers in 0..{num_words - 1}, got {checks.shown(prompt)}")
        before = ids.long().expand(num_particles, -1)
        begin = chain.begin()
        states, automaton = begin.states.repeat(num_particles, 1), begin.automaton.repeat(num_particles)
        tokens = torch.full((num_particles, chain.num_steps), -1, device=device)
        hope = chain.log_prob().double().repeat(num_particles)  # of the constraint, as the HMM has it
        total, log_weight = hope[0].clone(), torch.zeros_like(hope)
        going = torch.ones_like(automaton, dtype=torch.bool)
        with seeded(seed):
            for step in range(chain.num_steps):
                rows = going.nonzero()[:, 0]
                if not len(rows):
                    break
                scores = checks.numbers("language_model", language_model(torch.cat([before[rows], tokens[rows, :step]], 1)))
                if scores.shape[:-1] != rows.shape:
                    raise ValueError(
                        f"language_model: expected logits of the next token alone, ({len(rows)}, {num_words}), got shape "
                        f"{tuple(scores.shape)}; of those of all tokens (P, T, V) give [:, -1]"
                    )
                at = TextSoFar(step, states[rows], automaton[rows])
                ahead = self._lookahead(at, scores)
                given = torch.log_softmax(scores.to(ahead), -1)
                if bool(given.isnan().any()):
                    raise ValueError(
                        f"language_model: its logits after {step} tokens hold NaN or infinity, or are -inf throughout"
                    )
                steered = (given + ahead).double()
                log_weight[rows] += steered.logsumexp(-1) - hope[rows]
                if bool(torch.isneginf(log_weight).all()):
                    raise ValueError(
                        f"language_model: after {step} tokens none that it gives a probability leads to the constraint; give "
                        "more particles, or a constraint that its texts can satisfy"
                    )
                rows, steered, ahead = (v[torch.isfinite(log_weight[rows])] for v in (rows, steered, ahead))
                going &= torch.isfinite(log_weight)
                token = sample_log(steered)
                tokens[rows, step], hope[rows] = token, ahead.gather(-1, token.unsqueeze(-1)).squeeze(-1).double()
                read = chain.read(TextSoFar(step, states[rows], automaton[rows]), token)
                states[rows], automaton[rows] = read.states, read.automaton
                going[rows] = going[rows] if chain.end is None else token != chain.end
                share = log_weight.softmax(0)
                if 1 / share.square().sum() < resample_below * num_particles:
                    total += log_weight.logsumexp(0) - math.log(num_particles)
                    places = (torch.arange(num_particles, device=device) + torch.rand((), device=device)) / num_particles
                    kept = torch.searchsorted(share.cumsum(0), places.double(), right=True).clamp_max(num_particles - 1)
                    states, automaton, tokens, hope, going = (v[kept] for v in (states, automaton, tokens, hope, going))
                    log_weight = torch.zeros_like(log_weight)
        total += log_weight.logsumexp(0) - math.log(num_particles)
        return Particles(tokens, log_weight.log_softmax(0), float(total))

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
