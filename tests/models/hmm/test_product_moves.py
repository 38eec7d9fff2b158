"""HMMs whose moves are products: declared, set, fitted, saved; the product of two HMMs; what is refused."""

import gc
import math
import weakref

import pytest
import torch

from pplseq import HMM, Constraint, MixtureHMM, SemiMarkovHMM, checks
from pplseq.models import Priors, ProductMoves

close = torch.testing.assert_close
TEXTS = [[0, 1, 2, 3], [4], [1, 1, -1, 2, 0, 3]]


def pair(sizes=(2, 3), **options):
    """A product, and the HMM of the matrix it multiplies out to."""
    torch.manual_seed(0)
    model = HMM(num_words=5, transition=ProductMoves(*sizes), **options)
    dense = HMM(model.num_states, num_words=5, **options)
    dense.set_parameters(initial=model.initial, transition=model.transition, emission=model.emission)
    return model, dense


def test_it_is_the_hmm_of_its_matrix(tmp_path):
    model, dense = pair()
    model.save(tmp_path / "model")
    loaded = HMM.load(tmp_path / "model")
    assert loaded._factors == ProductMoves(2, 3) and loaded.get_params()["transition"] == {"sizes": [2, 3]}
    for own in (model, loaded):
        assert own.score(TEXTS) == pytest.approx(dense.score(TEXTS), rel=1e-12)
    reader, other = model.online(), dense.online()
    for word in TEXTS[0]:
        assert reader.step(word).log_prob == pytest.approx(other.step(word).log_prob)
    close(model.forecast(TEXTS[:1], 3).word_log_probs, dense.forecast(TEXTS[:1], 3).word_log_probs)
    assert model.num_free_parameters == 5 + 6 * 2 + 6 * 1 + 6 * 4
    languages = [Constraint.matching("[0 1 2]+ [3 4 5]*")]
    close(model.language_log_probs(TEXTS, languages), dense.language_log_probs(TEXTS, languages))


def test_constraints():
    constraint = Constraint.containing("1") & Constraint.excluding("2")
    chain, other = (model.constrained(constraint, length=(2, 4), prefix=[0]) for model in pair())
    for ask in ("log_prob", "next"):
        close(getattr(chain, ask)(), getattr(other, ask)())
    close(chain.k_best(3).log_prob, other.k_best(3).log_prob)
    close(chain.marginals().states, other.marginals().states)
    drawn = chain.sample(20).words[:, 0].tolist()
    assert all(1 in row and 2 not in row for row in drawn)


def test_an_iteration_of_em_is_that_of_expected_moves():
    """The M-step divides what each coordinate is expected to do, given the others, by its sums."""
    model, dense = pair()
    chain = dense.posterior(TEXTS)
    pairs = chain.pair_marginals().probs.sum((0, 1)).view(2, 3, 2, 3)  # i, j, i', j'
    first, second = pairs.sum(2), pairs.sum(1).movedim(2, 0)  # [i, j, j'] and [j', i, i']
    model.fit(TEXTS, warm_start=True, max_iterations=1)
    close(model.estimates()["transition_1"].detach(), first / first.sum(-1, keepdim=True))
    close(model.estimates()["transition_2"].detach(), second / second.sum(-1, keepdim=True))


def test_zeros_stay_and_parameters_are_held():
    model, _ = pair()
    table = torch.tensor([[[0.5, 0.5, 0], [0, 0.5, 0.5], [0.2, 0.3, 0.5]]] * 2)
    model.set_parameters(transition_1=table).fit(TEXTS, warm_start=True, max_iterations=4)
    assert bool((model.estimates()["transition_1"][:, 0, 2] == 0).all())
    held = model.estimates()["transition_1"].detach().clone()
    model.fit(TEXTS, warm_start=True, max_iterations=2, fixed="transition_1")
    close(model.estimates()["transition_1"].detach(), held)
    assert model.num_free_parameters == 5 + 6 * 1 + 6 * 4


@pytest.mark.parametrize("options", [{"method": "em"}, {"method": "lbfgs", "num_steps": 3}, {"method": "svi", "num_steps": 3}])
def test_priors(options):
    model, _ = pair(priors={"transition": 1.5, "sticky": 2.0})
    flat = HMM(num_words=5, transition=ProductMoves(2, 3), priors=Priors(emission=1.0))
    assert flat.log_prior().item() == pytest.approx(math.log(120) + 6 * math.log(2) + 6 * math.log(24))
    model.fit(TEXTS, seed=0, **options)
    assert math.isfinite(model.score(TEXTS))
    if options["method"] == "em":
        assert model.history.log_posteriors == sorted(model.history.log_posteriors)


@pytest.mark.parametrize("options", [{"num_states": 3}, {"transition": ProductMoves(2, 2)}])
def test_stepwise_em_in_single_precision(options):
    model = HMM(num_words=5, dtype="float32", **options)
    model.fit(TEXTS * 3, batch_size=3, step_size=0.7, max_iterations=3, seed=0)
    assert math.isfinite(model.score(TEXTS))


def test_rows_that_find_no_room(monkeypatch):
    """Said before anything of their size is made."""
    monkeypatch.setattr(checks, "machine_memory", lambda: 10**7)
    model, _ = pair()
    model.is_fitted = True
    with pytest.raises(ValueError, match="GB of memory.*batch_size"):
        model.smooth(torch.zeros(2**7, 2**10, dtype=torch.long))


def test_what_was_asked_once_is_forgotten():
    """With its tables, gigabytes of many states, and without waiting for the collector of garbage."""
    model = HMM(num_words=3, transition=ProductMoves(2, 3)).set_parameters(emission=torch.full((6, 3), 1 / 3))
    model.is_fitted = True
    for ask in ("log_prob", "marginals", "entropy", "viterbi", "filtered"):
        chain = model.posterior([[0, 1, 2]])
        getattr(chain, ask)()
        gone = weakref.ref(chain)
        gc.disable()
        try:
            del chain
            assert gone() is None, ask
        finally:
            gc.enable()


def test_the_product_of_two_is_exact_where_each_knows_a_part_of_each_word():
    torch.manual_seed(0)
    parts = [torch.rand(states, words, dtype=torch.float64) for states, words in ((2, 3), (3, 2))]
    parts = [part / part.sum(-1, keepdim=True) for part in parts]
    first = HMM(2, num_words=6).set_parameters(emission=(parts[0][:, :, None].expand(-1, -1, 2) / 2).flatten(1))
    second = HMM(3, num_words=6).set_parameters(emission=(parts[1][:, None].expand(-1, 3, -1) / 3).flatten(1))
    texts = [[0, 5, 3], [2]]
    both = first.product(second)
    assert both.score(texts) == pytest.approx(first.score(texts) + second.score(texts) + 4 * math.log(6), rel=1e-12)
    close(both.transition, torch.kron(first.transition, second.transition))
    three = second.product(both)
    assert three._factors == ProductMoves(3, 2, 3)
    close(three.transition, torch.kron(second.transition, both.transition))
    close(both.product(second).transition, torch.kron(both.transition, second.transition))
    fitted = both.fit(texts, warm_start=True, max_iterations=3).history.log_likelihoods
    assert fitted == sorted(fitted)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: ProductMoves(4), ValueError, "two sizes or more"),
        (lambda: ProductMoves(4, 2.5), TypeError, "sizes"),
        (lambda: HMM(7, num_words=5, transition=ProductMoves(2, 3)), ValueError, r"ProductMoves\(2, 3\) has 6 states, got 7"),
        (lambda: HMM(num_words=5), TypeError, "num_states"),
        (lambda: HMM(6, num_words=5, transition=torch.eye(6)), TypeError, "set_parameters"),
        (lambda: HMM(num_words=5, transition=ProductMoves(2, 3), graph="left_right"), ValueError, "graph"),
        (lambda: HMM(num_words=5, transition=ProductMoves(2**15, 2**15)), ValueError, "GB of memory"),
        (lambda: HMM(num_words=5, transition=ProductMoves(2, 3), priors={"transition": [[1.0] * 6] * 6}), ValueError, "priors"),
        (lambda: MixtureHMM(2, 6, 5, transition=ProductMoves(2, 3)), ValueError, "transition"),
        (lambda: SemiMarkovHMM(2, 5, max_duration=3, transition=ProductMoves(2, 3)), ValueError, "transition"),
        (lambda: pair()[0].set_parameters(transition=torch.eye(6)), ValueError, r"transition_1 \(2, 3, 3\)"),
        (lambda: pair()[0].set_parameters(transition_1=torch.ones(2, 3, 3)), ValueError, "sum to 1"),
        (lambda: pair()[1].set_parameters(transition_1=torch.ones(2, 3, 3)), TypeError, "transition_1"),
        (lambda: pair()[0].product(HMM(2, num_words=4)), ValueError, "an HMM of 5 words, got one of 4"),
        (lambda: pair()[0].product(HMM(2, num_features=1)), ValueError, "vectors"),
        (lambda: pair()[0].product(MixtureHMM(2, 2, 5)), TypeError, "two HMMs, got MixtureHMM"),
        (lambda: HMM(1, num_words=2).set_parameters(emission=[[1.0, 0]]).product(
            HMM(1, num_words=2).set_parameters(emission=[[0, 1.0]])), ValueError, "no word in common"),
    ],
)  # fmt: skip
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make()
