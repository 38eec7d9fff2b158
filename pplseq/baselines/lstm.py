"""The LSTM language model."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pplseq.baselines.neural import State, TiedNetwork
from pplseq.data.vocabulary import Vocabulary
from pplseq.kernels.precision import network_precision


class LSTM(TiedNetwork):
    """Layers of long short-term memory between one table of words, used for input and output.

        h_t = LSTM(E[w_{t-1}], h_{t-1}),   p(w_t | w_1..w_{t-1}) = softmax(E h_t + c),   h_0 = 0

    Args:
        vocabulary: with `<eos>`, the word before the first.
        hidden_size: D, of the word vectors and of every layer.
        num_layers: layers.
        dropout: of word vectors, between layers and of the last layer, in training.
        seed: of the first weights.

    Source: Zaremba, Sutskever, Vinyals (2014); sizes and dropout of Chiu and Rush (2020), appendix A.
    """

    name: ClassVar[str] = "lstm"
    num_layers: int

    def __init__(
        self, vocabulary: Vocabulary, hidden_size: int = 256, *, num_layers: int = 2, dropout: float = 0.3, seed: int = 0
    ) -> None:
        super().__init__(vocabulary, hidden_size, dropout, seed, num_layers=num_layers)

    def make_layers(self, dropout: float) -> None:
        dropout = dropout if self.num_layers > 1 else 0.0
        self.layers = nn.LSTM(self.hidden_size, self.hidden_size, self.num_layers, batch_first=True, dropout=dropout)

    def initial_state(self, batch_size: int) -> State:
        zeros = self.embedding.new_zeros(batch_size, self.num_layers, self.hidden_size)
        return zeros, zeros

    def forward(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        vectors = self.dropout(self.embedding[words])
        # torch has layers first, a state that is carried has rows first
        hidden, cell = (part.transpose(0, 1).contiguous() for part in state)
        with network_precision(vectors):
            if lengths is None:
                features, state = self.layers(vectors, (hidden, cell))
            else:
                packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
                packed, state = self.layers(packed, (hidden, cell))
                features, _ = pad_packed_sequence(packed, batch_first=True, total_length=words.shape[1])
        features, (hidden, cell) = features.to(vectors.dtype), (part.to(vectors.dtype) for part in state)
        return self.dropout(features), (hidden.transpose(0, 1), cell.transpose(0, 1))
