"""The hidden Markov model whose belief predicts as a recurrent network does."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pplseq.baselines.neural import State, TiedNetwork
from pplseq.data.vocabulary import Vocabulary


class HMMRNN(TiedNetwork):
    """The recurrence of an HMM's belief, and the output of a network: what predicts a word is no longer a mixture.

        p_{t-1} ~ b_{t-1} * e[w_{t-1}],   b_t = p_{t-1} A,   p(w_t | w_1..w_{t-1}) = softmax(E b_t + c),   b_0 = 1 / D

    A is a stochastic matrix. e, the chance of each word in each of the D states, is the softmax of E + c over the words.
    With the mixture e b_t in the place of the last softmax it is an HMM of D states; so no state of this one is ever
    drawn, and b_t is a vector of features.

    Args:
        vocabulary: with `<eos>`, the word before the first.
        hidden_size: D.
        dropout: of b_t where it predicts, in training.
        seed: of the first weights.

    Attributes:
        transition: (D, D) logits of A, [from, to]. embedding: (V, D) E. output_bias: (V,) c.

    Cost: D^2 + V D a token, as an LSTM's of one layer of that width.

    Source: Buys, Bisk, Choi (2018), Bridging HMMs and RNNs through architectural transformations. Of the architectures of
        that work it is the one whose cell is an HMM's and whose emission is a network's (`hmm-new-rnn-emit` of its public
        code, with tied tables), which we take to be the HMM+RNN of Chiu and Rush (2020), table 1: it says no more than
        that the latent variables were given up, and with 900 states this one has the 10 million weights told there.
    """

    name: ClassVar[str] = "hmm-rnn"

    def __init__(self, vocabulary: Vocabulary, hidden_size: int = 900, *, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__(vocabulary, hidden_size, dropout, seed)
        with torch.no_grad():  # a mean of D rows is short: rows of the length sqrt(D) let it tell words apart
            self.embedding.mul_(hidden_size**0.5)

    def make_layers(self, dropout: float) -> None:
        self.transition = nn.Parameter(torch.randn(self.hidden_size, self.hidden_size))

    def initial_state(self, batch_size: int) -> State:
        return (self.embedding.new_full((batch_size, self.hidden_size), 1 / self.hidden_size),)

    def forward(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        (belief,) = state
        scores = self.embedding + self.output_bias.unsqueeze(-1)
        emissions = scores[words] - scores.logsumexp(0)  # (B, T, D) nats
        transition = self.transition.softmax(-1)
        tiny = torch.finfo(belief.dtype).tiny
        beliefs = []
        for nats in emissions.unbind(1):
            belief = torch.softmax(belief.clamp_min(tiny).log() + nats, -1) @ transition
            beliefs.append(belief)
        features = torch.stack(beliefs, 1)
        if lengths is not None:
            belief = features[torch.arange(len(words), device=words.device), lengths - 1]
        return self.dropout(features), (belief,)
