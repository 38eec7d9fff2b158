"""What is said about the way of a question."""

import pytest
import torch

import pplseq
from pplseq import HMM, LDS
from pplseq.kernels import compiled
from pplseq.models import ProductMoves


def test_the_way_is_told():
    pytest.importorskip("numba")
    model, x = LDS(2, num_features=1), torch.randn(1, 9, 1, dtype=torch.float64)
    model.is_fitted = True
    with compiled.always():
        found = pplseq.explain(model, x)
    assert found == "LDS.score\ngaussian.system_loops.matrices_of: loop: loops are always used"
    with compiled.twins_only():
        assert pplseq.explain(model, x) == "LDS.score\nin torch: there is no loop for it"


def test_the_way_is_told_again_and_where_a_loop_does_not_do():
    pytest.importorskip("numba")
    model, x = LDS(2, num_features=1), torch.randn(1, 9, 1, dtype=torch.float64)
    model.is_fitted = True
    pairs = HMM(None, num_words=3, transition=ProductMoves(2, 2))
    pairs.is_fitted = True
    with compiled.always():
        first = pplseq.explain(model, x, "filter")
        assert pplseq.explain(model, x, "filter") == first  # what was remembered is found anew
        assert "gaussian.mean_loops.filter_rows: loop" in first
        assert "chain.loops.likelihood: twin in torch: it is for one matrix" in pplseq.explain(pairs, [[0, 1, 2]])


def test_what_is_no_question_is_named():
    with pytest.raises(ValueError, match="question: expected a method of HMM, such as 'score', got 'scroe'"):
        pplseq.explain(HMM(2, num_words=3), [[0, 1]], "scroe")
