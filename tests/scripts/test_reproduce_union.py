"""The union of several VLHMMs as one HMM, against its own dense forward recursion."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pplseq.models import VLHMM

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce" / "vlhmm_union.py"
WORDS, EOS = 5, 4
TEXT = [0, 2, 1, 4, 3, 3, 4, 4, 2, 0, 1, 1, 4, 0]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reproduce_union", SCRIPT)
    module, before = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.mark.parametrize("weights, stay", [((0.3, 0.7), 0.6), ((1.0, 0.0), 0.2), ((0.5, 0.5), 0.0), ((0.1, 0.9), 1.0)])
def test_it_is_an_hmm(script, weights, stay):
    torch.manual_seed(0)
    options = dict(hidden_size=4, reset_id=EOS, transition="hierarchical")
    models = [VLHMM(WORDS, states, torch.arange(WORDS) % 2, **options).double().eval() for states in (4, 6)]
    starts, matrices, tables = [], [], []
    with torch.no_grad():
        for model in models:
            transition, emission = model.specs()
            starts.append(transition.initial_log_prob().exp().numpy())
            matrices.append(transition.log_matrix().exp().numpy())
            tables.append(emission.log_likelihood(torch.arange(WORDS)).exp().numpy())  # (words, states)
        texts = [torch.tensor([TEXT[: n + 1]]) for n in range(len(TEXT))]
        alone = np.array([np.diff([0.0, *(float(model.log_prob(x)) for x in texts)]) for model in models])
    got = script.of_union(alone, np.array(TEXT) == EOS, np.array(weights), stay)

    table = np.concatenate(tables, 1)
    begin = np.concatenate([w * start for w, start in zip(weights, starts, strict=True)])
    within = np.zeros((10, 10))
    within[:4, :4], within[4:, 4:] = matrices
    of_model = np.repeat([0, 1], [4, 6])
    afresh = np.stack([(1 - stay) * begin + stay * np.concatenate(starts) * (of_model == k) for k in of_model])
    message, expected = begin, []
    for n, word in enumerate(TEXT):
        if n:
            message = message @ (afresh if TEXT[n - 1] == EOS else within)
        message = message * table[word]
        expected.append(np.log(message.sum()))
    np.testing.assert_allclose(got.cumsum(), expected, rtol=1e-9)


def test_weights_to_choose_among(script):
    some = [w.tolist() for w in script.simplex(2, 2)]
    assert sorted(some) == [[0, 2], [1, 1], [2, 0]]
    assert len(list(script.simplex(4, 3))) == 15
