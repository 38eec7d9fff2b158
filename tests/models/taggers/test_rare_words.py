"""Log-linear models of the forms of words, and P(word | substate) with them."""

import numpy as np
import pytest
import torch

from pplseq.models.taggers import rare_words
from pplseq.models.taggers.rare_words import FormModel
from pplseq.models.taggers.substates.substate_words import SubstateWords
from pplseq.models.taggers.weights import SparseRows, sparse_product

WORDS = ["walked", "talked", "jumped", "nation", "station", "1990", "of"]
COUNTS = torch.tensor([[0, 2.0, 0], [0, 1, 0], [1, 3, 0], [1, 0, 0], [2, 0, 0], [0, 0, 1], [0, 0, 40]]).double()


def forms(**options) -> FormModel:
    return FormModel.fit(WORDS, COUNTS, **{"min_feature_count": 1, **options})


def test_endings_and_digits_tell():
    probs = forms(l2=0.05).log_probs(["climbed", "ration", "2003"]).exp()
    assert probs.argmax(-1).tolist() == [1, 0, 2]
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, dtype=torch.float64))
    assert forms().log_probs([]).shape == (0, 3)


def test_the_optimum():
    """There the expected counts of each feature are the observed ones less 2 l2 weight."""
    model = forms(l2=0.5, count_power=1.0, max_iterations=500)
    rare = WORDS[:-1]
    encoded = model.encode(rare)
    dense = encoded.times(torch.eye(encoded.num_columns))
    residual = COUNTS[:-1].float() - COUNTS[:-1].sum(-1, keepdim=True).float() * model.log_probs(rare).exp().float()
    torch.testing.assert_close(dense.T @ residual, 2 * 0.5 * model.weight, atol=2e-3, rtol=0)
    torch.testing.assert_close(residual.sum(0), torch.zeros(3), atol=2e-3, rtol=0)


@pytest.mark.parametrize(("num_rows", "num_classes", "cells"), [(7, 3, 1), (7, 3, 6), (7, 1, 100), (1, 3, 4)])
def test_loss_some_words_at_a_time(monkeypatch, num_rows, num_classes, cells):
    """Its value and gradients are those of autograd over all words at once; a word may have no feature and no class."""
    monkeypatch.setattr(rare_words, "CELLS", cells)
    rng = np.random.default_rng(0)
    table = np.sort(rng.integers(-1, 5, (num_rows, 3)), axis=1)
    table[num_rows // 2] = -1
    rows = SparseRows.from_table(table, 5)
    target = torch.from_numpy(rng.integers(0, 3, (num_rows, num_classes)) * rng.random((num_rows, num_classes)))
    weight, bias = (torch.from_numpy(rng.normal(size=size)).requires_grad_() for size in ((5, num_classes), num_classes))
    expected = -(target * (sparse_product(rows, weight) + bias).log_softmax(-1)).sum()
    expected.backward()
    value, residual = rare_words.loss_and_residual(rows, target, weight.detach(), bias.detach())
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(rows.transposed.times(residual), weight.grad)
    torch.testing.assert_close(residual.sum(0), bias.grad)


def test_frequent_words_are_left_out():
    assert float(forms().log_probs(["of"])[0, 2]) < float(forms(max_count=100).log_probs(["of"])[0, 2]) - 0.5
    alone = FormModel.fit(["of"], COUNTS[-1:])  # nothing is rare: all words are taken
    assert int(alone.log_probs(["of"]).argmax()) == 2


def test_kept():
    model = forms()
    again = FormModel.from_state(*model.state())
    torch.testing.assert_close(again.log_probs(WORDS + ["new"]), model.log_probs(WORDS + ["new"]))


def test_bad_counts():
    with pytest.raises(ValueError, match="a row for each"):
        FormModel.fit(WORDS[:2], COUNTS)


# ------------------------------------------------------------------------------------------------ P(word | substate)
TAG = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3])
WORD = torch.tensor([2, 3, 4, 0, 1, 2, 5, 6, -1])
SIZES = torch.tensor([2, 3, 1, 1])


def substate_words(form_count=0.5, substate_count=2.0) -> SubstateWords:
    rng = np.random.default_rng(0)
    filled = (np.arange(3) < SIZES.numpy()[:, None])[TAG.numpy()]
    share = rng.dirichlet(np.ones(3), len(TAG)) * filled
    totals = np.array([COUNTS[w, t] if w >= 0 else 9.0 for w, t in zip(WORD, TAG, strict=True)])
    counts = torch.from_numpy(share / share.sum(-1, keepdims=True) * totals[:, None])
    return SubstateWords(
        WORDS,
        torch.stack([WORD, TAG], -1),
        counts,
        SIZES,
        forms(),
        form_count=form_count,
        substate_count=substate_count,
    )


@pytest.mark.parametrize("form_count", [0.0, 0.5, 3.0])
def test_the_event_space_has_probability_one(form_count):
    """All training words, and a stand-in for each that was seen once."""
    words = substate_words(form_count)
    once = ["talked", "nation", "1990"]
    known = words.log_probs(WORDS).exp().sum(0)
    new = form_count * words.by_form(once).sum(0) / words.log_norm.exp()
    torch.testing.assert_close((known + new)[:-1], torch.ones(6, dtype=torch.float64))
    assert bool(torch.isneginf(words.log_probs(WORDS + ["new"])[:, -1]).all())


def test_known_words():
    words = substate_words(0.0)
    table = words.log_probs(WORDS).exp()
    assert words.tag_of_state.tolist() == [0, 0, 1, 1, 1, 2, 3]
    # without the form, no other tag is possible; "jumped" has two
    assert (table[:, :-1] > 0).tolist()[0] == [False, False, True, True, True, False]
    assert (table[2, :-1] > 0).tolist() == [True, True, True, True, True, False]
    # p(word | tag) stays the ratio of counts: sums over substates by their own frequency
    visits = words.log_norm.exp()
    torch.testing.assert_close((table * visits)[2, :2].sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close((table * visits)[0, 2:5].sum(), torch.tensor(2.0, dtype=torch.float64))


def test_forms_open_other_tags():
    """A rare word may have a tag that it was not seen with."""
    closed, open_ = substate_words(0.0).log_probs(["walked"])[0], substate_words(0.5).log_probs(["walked"])[0]
    assert bool(torch.isneginf(closed[0])) and bool(torch.isfinite(open_[:-1]).all())


def test_new_words_in_lower_case_are_known():
    words = substate_words()
    known = (words.log_probs(["walked"]) + words.log_norm).exp()  # counts
    expected = 0.5 * words.by_form(["Walked"]) + words.case_count * known / known.sum()
    torch.testing.assert_close((words.log_probs(["Walked"]) + words.log_norm).exp(), expected)
    words.case_count = 0.0
    torch.testing.assert_close((words.log_probs(["Walked"]) + words.log_norm).exp(), 0.5 * words.by_form(["Walked"]))
    assert words.log_probs([]).shape == (0, 7)
