"""The LSTM language model with dropped weights."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pplseq import checks
from pplseq.baselines.neural import State, TiedNetwork
from pplseq.data.vocabulary import Vocabulary


class AWDLSTM(TiedNetwork):
    """An LSTM whose recurrent weights, words and units are left out of training, each by a mask that a whole segment shares.

    The averaged descent (NT-ASGD) and the penalties on activations of the source are left out: it learns by AdamW, as the
    other networks here do.

    Args:
        vocabulary: with `<eos>`, the word before the first.
        hidden_size: D, of the word vectors and of the last layer.
        num_layers: layers. width: units of the layers before the last.
        dropout: of word vectors and of the last layer, in training. hidden_dropout: of the layers before the last.
        weight_dropout: of the weights from a layer to itself. embedding_dropout: of whole words.
        seed: of the first weights.

    Source: Merity, Keskar, Socher (2018), Regularizing and optimizing LSTM language models, sections 2 and 4; the shares are
        those of its authors for Penn Treebank.
    """

    name: ClassVar[str] = "awd-lstm"
    num_layers: int
    width: int
    shares: dict[str, float]

    def __init__(
        self, vocabulary: Vocabulary, hidden_size: int = 400, *, num_layers: int = 3, width: int = 1150, dropout: float = 0.4,
        hidden_dropout: float = 0.25, weight_dropout: float = 0.5, embedding_dropout: float = 0.1, seed: int = 0,
    ) -> None:  # fmt: skip
        given = {
            "hidden_dropout": hidden_dropout,
            "weight_dropout": weight_dropout,
            "embedding_dropout": embedding_dropout,
        }
        self.__dict__["shares"] = {name: checks.share(name, value, "[0, 1)") for name, value in given.items()}
        super().__init__(vocabulary, hidden_size, dropout, seed, num_layers=num_layers, width=width)

    @property
    def config(self) -> dict[str, Any]:
        return super().config | self.shares

    def make_layers(self, dropout: float) -> None:
        widths = [self.hidden_size, *[self.width] * (self.num_layers - 1), self.hidden_size]
        self.layers = nn.ModuleList(nn.LSTM(into, out, batch_first=True) for into, out in pairwise(widths))

    def initial_state(self, batch_size: int) -> State:
        zeros = self.embedding.new_zeros(batch_size, self.width * (self.num_layers - 1) + self.hidden_size)
        return zeros, zeros  # the units of all layers side by side

    def forward(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        table = self.embedding * self._mask(self.shares["embedding_dropout"], len(self.embedding), 1)
        features = self._thinned(functional.embedding(words, table), self.dropout.p)
        sizes = [layer.hidden_size for layer in self.layers]
        hidden, cells = (part.split(sizes, 1) for part in state)
        ends = []
        for layer, *before in zip(self.layers, hidden, cells, strict=True):
            features, end = self._through(layer, features, [part.unsqueeze(0).contiguous() for part in before], lengths)
            features = self._thinned(
                features, self.dropout.p if layer is self.layers[-1] else self.shares["hidden_dropout"]
            )
            ends.append([part.squeeze(0) for part in end])
        return features, tuple(torch.cat(part, 1) for part in zip(*ends, strict=True))

    def _through(self, layer: nn.Module, x: Tensor, state: list[Tensor], lengths: Tensor | None):
        """What a layer makes of (B, T, ...) with some of its recurrent weights, and its state at each row's end."""
        name = "weight_hh_l0"
        weight = getattr(layer, name)
        dropped = {name: weight * self._mask(self.shares["weight_dropout"], *weight.shape)}
        if lengths is None:
            return functional_call(layer, dropped, (x, tuple(state)))
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, end = functional_call(layer, dropped, (packed, tuple(state)))
        return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0], end

    def _thinned(self, features: Tensor, share: float) -> Tensor:
        """Features (B, T, D) without some units, the same ones at all steps of a row."""
        return features * self._mask(share, len(features), 1, features.shape[-1])

    def _mask(self, share: float, *shape: int) -> Tensor:
        return functional.dropout(self.embedding.new_ones(shape), share, self.training)
