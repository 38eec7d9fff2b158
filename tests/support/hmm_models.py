"""Small hidden Markov models over words and vectors, and ragged data drawn from them."""


import numpy as np
import pytest
import torch

from pplseq.models import HMM

F64 = torch.float64
close = torch.testing.assert_close
Z, V, D = 3, 5, 2
LENGTHS = (7, 1, 4)
GOOD_SEED = 8  # of a start from which EM does not end in a poor local maximum
COVARIANCES = ("diag", "full", "tied", "spherical")


def words_model(num_states=Z, num_words=V, **options):
    return HMM(num_states, num_words, **options)


def vectors_model(covariance="diag", num_states=Z, **options):
    model = HMM(num_states, num_features=D, covariance=covariance, **options)
    root = torch.randn(num_states, D, D, dtype=F64)
    matrix = root @ root.mT / 4 + 0.3 * torch.eye(D, dtype=F64)
    spread = {
        "diag": matrix.diagonal(dim1=-2, dim2=-1),
        "spherical": matrix[:, 0, :1],
        "full": matrix,
        "tied": matrix[0],
    }
    return model.set_parameters(loc=3 * torch.randn(num_states, D), covariance=spread[covariance])


MODELS = {"words": words_model, **{c: lambda c=c, **options: vectors_model(c, **options) for c in COVARIANCES}}
every_model = pytest.mark.parametrize("kind", MODELS)


def ragged(model, lengths=LENGTHS, seed=1):
    x, *_ = model.sample(max(lengths), len(lengths), seed=seed)
    return [row[:length].numpy() for row, length in zip(x, lengths, strict=True)]


def padded(sequences, fill=0):
    x = np.full((len(sequences), max(map(len, sequences)), *sequences[0].shape[1:]), fill, sequences[0].dtype)
    for row, sequence in zip(x, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(x), torch.tensor([len(s) for s in sequences])
