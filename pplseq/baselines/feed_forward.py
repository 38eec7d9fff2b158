"""The feed-forward n-gram language model."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.baselines.neural import State, TiedNetwork
from pplseq.data.vocabulary import Vocabulary


class FeedForward(TiedNetwork):
    """Two layers over the vectors of the n - 1 words before, and one table of words for input and output.

        g_t = ReLU(sum_k W_k E[w_{t-k}] + b),   f_t = ReLU(U g_t + a),   p(w_t | w_{t-n+1}..w_{t-1}) = softmax(E f_t + c)

    Before the first word of a text stands `<eos>`, n - 1 times.

    Args:
        vocabulary: with `<eos>`.
        hidden_size: D, of the word vectors and of both layers.
        order: n.
        dropout: of word vectors and of both layers, in training.
        seed: of the first weights.

    Source: Bengio et al. (2003); Chiu and Rush (2020), equation 6, with the second layer that its text and its number of
        parameters tell of.
    """

    name: ClassVar[str] = "ff"
    order: int

    def __init__(
        self, vocabulary: Vocabulary, hidden_size: int = 256, *, order: int = 5, dropout: float = 0.3, seed: int = 0
    ) -> None:
        super().__init__(vocabulary, hidden_size, dropout, seed, order=checks.count("order", order, least=2))

    def make_layers(self, dropout: float) -> None:
        self.window = nn.Conv1d(self.hidden_size, self.hidden_size, self.order - 1)
        self.hidden = nn.Linear(self.hidden_size, self.hidden_size)

    def initial_state(self, batch_size: int) -> State:
        ids = torch.full((batch_size, self.order - 2), self.eos_id, device=self.embedding.device)
        return (ids,)

    def forward(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        words = torch.cat([state[0], words], 1)
        vectors = self.dropout(self.embedding[words])
        features = self.dropout(torch.relu(self.window(vectors.transpose(1, 2)))).transpose(1, 2)
        features = self.dropout(torch.relu(self.hidden(features)))
        num_before = self.order - 2
        if lengths is None:
            return features, (words[:, words.shape[1] - num_before :],)
        places = lengths.unsqueeze(1) + torch.arange(num_before, device=words.device)
        return features, (words.gather(1, places),)
