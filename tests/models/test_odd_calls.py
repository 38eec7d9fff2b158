"""Whatever stands in the place of an argument, a call answers, or refuses with a ValueError or TypeError that says why.

The slow form takes other calls by the seed PPLSEQ_FUZZ_SEED, and as many as PPLSEQ_CALLS says.
"""

import os

import numpy as np
import pytest
import torch
from support.odd_calls import OddCalls

from pplseq import HMM, LDS, VLHMM

SEED = int(os.environ.get("PPLSEQ_FUZZ_SEED", "0"))


def test_odd_arguments_are_refused_in_words():
    calls = OddCalls(SEED)
    assert not [wrong for _ in range(200) if (wrong := calls.call()) is not None]


@pytest.mark.slow
def test_many_odd_arguments_are_refused_in_words():
    calls = OddCalls(SEED + 1)
    wrong = [told for _ in range(int(os.environ.get("PPLSEQ_CALLS", "6000"))) if (told := calls.call()) is not None]
    assert not wrong, "\n".join(wrong[:30])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: HMM(2, 3).score(np.zeros((1, 2), int), lengths=[None]), "lengths"),
        (lambda: HMM(2, 3).score(torch.tensor(1)), "x"),
        (lambda: HMM(2, 3).score(torch.ones(2, 3).long().to_sparse()), "x .*sparse"),
        (lambda: LDS(2, 2).score(torch.zeros(2, 3, 2, device="meta").double()), "x .*meta"),
        (lambda: HMM(2, 3).fit([[0, 1, 2]], seed=2**70), "seed must be below"),
        (lambda: HMM(2, 3).sample(3, seed=1.5), "seed must be a whole number"),
        (lambda: HMM(10**200, 3), "num_states must be below"),
        (lambda: LDS(2, 2, dtype=torch.zeros(3)), r"dtype must be (str|one of)"),
        (lambda: VLHMM(6, num_words=6, feature_dropout=torch.zeros(2)), "feature_dropout must be float"),
        (lambda: HMM(2, 3).score([[0, 1]], per_token=np.zeros(2)), "per_token must be True or False"),
        (lambda: HMM(2, 3).fit([[0, 1]], on_record=3, folder=None, max_time=5.0), "on_record|max_time"),
    ],
)
def test_what_is_refused(call, what):
    with pytest.raises((ValueError, TypeError), match=what):
        call()
