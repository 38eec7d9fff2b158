"""Fixtures of the pages: a tiny model and a text for it."""

import numpy as np
import pytest
import torch
from support.report_models import WORDS, tiny_model

from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary(WORDS)


@pytest.fixture(scope="session")
def text(vocabulary):
    draw = np.random.default_rng(0)
    lines = [[WORDS[i] for i in draw.integers(1, len(WORDS), draw.integers(1, 12))] for _ in range(30)]
    return Text.from_lines([[], *lines], vocabulary, name="<i>held-out</i> text")


@pytest.fixture(scope="session")
def model():
    return tiny_model()


@pytest.fixture(scope="session")
def hmm():
    from pplseq.models import HMM

    torch.manual_seed(4)
    return HMM(5, num_words=len(WORDS)).eval()
