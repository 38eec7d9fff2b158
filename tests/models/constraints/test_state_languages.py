"""Paths of states under a constraint, against every path of an IOHMM and an HMM."""

import itertools
import math

import pytest
import torch

from pplseq import HMM, IOHMM, Constraint

close = torch.testing.assert_close
LANGUAGES = [Constraint.matching("0* (1 | 2)+"), Constraint.containing("1 0"), ~Constraint.containing("1 0")]


def accepts(language, path):
    return language.accepts(" ".join(map(str, path)))


@pytest.mark.parametrize("kind", ["hmm", "iohmm", "inputs alone"])
def test_every_path(kind):
    torch.manual_seed(2)
    x = torch.randint(4, (2, 5))
    if kind == "hmm":
        model, known = HMM(3, num_words=4).double(), {}
    else:
        model, known = IOHMM(3, num_inputs=2, num_outputs=4).double(), {"inputs": torch.randn(2, 5, 2, dtype=torch.float64)}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    model.is_fitted = True
    given = None if kind == "inputs alone" else x
    chain = model.posterior(model._as_batch(given, **known).x, **known)
    paths, log_probs = chain.k_best(3**5)
    got = model.language_log_probs(given, LANGUAGES, **known)
    for number, language in enumerate(LANGUAGES):
        under = model.under(language)
        best, marginals = under.decode(given, **known), under.smooth(given, **known)
        close(under.constraint_log_prob(given, **known), got[:, number])
        for row in range(2):
            some = [n for n, path in enumerate(paths[:, row].tolist()) if accepts(language, path)]
            total = log_probs[some, row].logsumexp(0)
            close(got[row, number], total - log_probs[:, row].logsumexp(0))
            assert best[row].tolist() == paths[some[0], row].tolist()
            hot = torch.nn.functional.one_hot(paths[some, row], 3).double()
            close(marginals[row], (hot * (log_probs[some, row] - total).exp()[:, None, None]).sum(0))
        drawn = under.sample_states(given, 20, seed=0, **known)
        assert all(accepts(language, path) for path in drawn.flatten(0, 1).tolist())
    close(got[:, 1:].exp().sum(-1), torch.ones(2, dtype=torch.float64))  # a language and its complement
    assert len(paths) == len(set(itertools.product(range(3), repeat=5)))


def test_what_is_refused():
    model = HMM(2, num_words=3)
    model.is_fitted = True
    x = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="'7' of .* is not in the vocabulary"):
        model.under(Constraint.containing("7"))
    with pytest.raises(TypeError, match="constraint: expected a Constraint on numbers of states, got '0'"):
        model.under("0")
    with pytest.raises(ValueError, match="languages: expected at least one Constraint"):
        model.language_log_probs(x, [])
    long = Constraint.containing("0 1 0 1")
    with pytest.raises(ValueError, match="no path of states that explains its observations is accepted"):
        model.under(long).decode(x)
    assert model.language_log_probs(x, [long]).item() == -math.inf
