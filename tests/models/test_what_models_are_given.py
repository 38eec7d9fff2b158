"""Arguments that say nothing, or are misspelt, or could be taken for another."""

import numpy as np
import pytest
import torch

import pplseq
from pplseq.baselines import LSTM
from pplseq.data.lag_counts import LagCounts
from pplseq.data.text import Corpus, Text
from pplseq.models import (
    ARHMM,
    HMM,
    IOHMM,
    LDS,
    PROPS,
    VLHMM,
    ConstrainedLDS,
    ProductMoves,
    SemiMarkovHMM,
    StreamingHMM,
    StructuralModel,
    TextLDS,
)
from pplseq.models.texts import as_texts

MISSPELT = [
    (HMM, (2,), "num_word", "num_words"),
    (VLHMM, (), "num_state", "num_states"),
    (LDS, (2, 3), "num_input", "num_inputs"),
    (IOHMM, (2,), "num_output", "num_outputs"),
    (TextLDS, (5, 2), "prob", "probs"),
    (PROPS, (5,), "num_source", "num_sources"),
    (StreamingHMM, (2,), "num_word", "num_words"),
    (pplseq.models.PROPSLearner, ((), 5), "exponant", "exponent"),
    (pplseq.models.AutomatonLearner, (), "num_state", "num_states"),
    (pplseq.HMMTagger, (), "ordr", "order"),
    (pplseq.LatentTagger, (), "form_cont", "form_count"),
    (pplseq.models.DictionaryTagger, (), "num_state", "num_states"),
    (pplseq.CRFTagger, (), "max_iteration", "max_iterations"),
    (LSTM, (None,), "num_layer", "num_layers"),
]

QUICK = {"max_iterations": 1, "pseudo_counts": 1.0, "start": "consistent"}


@pytest.mark.parametrize(("kind", "given", "wrong", "right"), MISSPELT, ids=[case[0].__name__ for case in MISSPELT])
def test_misspelt_arguments_of_constructors(kind, given, wrong, right):
    with pytest.raises(TypeError, match=f"no argument '{wrong}'. Did you mean '{right}'"):
        kind(*given, **{wrong: 1})


@pytest.mark.parametrize(
    ("model", "seen", "unseen"),
    [
        (LDS(1, 2), [[[1.0, 2.0], [np.nan, np.nan]]], [[[np.nan, np.nan]] * 3]),
        (HMM(2, num_features=2), [[[1.0, 2.0], [np.nan, np.nan]]], torch.full((2, 3, 2), torch.nan)),
        (HMM(2, 4), [[1, -1]], [[-1, -1], [-1]]),
        (VLHMM(4, num_words=4, hidden_size=4), [[1, -1]], [[-1]]),
    ],
    ids=["lds", "vectors", "words", "vlhmm"],
)
def test_nothing_is_no_score(model, seen, unseen):
    assert model.score(seen) != 0
    for per_token in (False, True):
        with pytest.raises(ValueError, match="every observation is missing"):
            model.score(unseen, per_token=per_token)


def corpus(valid=True):
    train, validation = Text.from_lines([["a", "b", "a"] * 4, ["b"] * 9] * 20), None
    if valid:
        validation = Text.from_lines([["b", "a", "b", "b"] * 3] * 3, train.vocabulary, name="held out")
    return Corpus("toy", train.vocabulary, train, validation)


def test_the_validation_text_of_a_corpus():
    assert as_texts(corpus().train, validation=corpus()).validation.name == "held out"
    with pytest.raises(ValueError, match="validation: the corpus 'toy' has no validation text"):
        as_texts(corpus().train, validation=corpus(valid=False))
    text = pytest.importorskip("scipy") and corpus().train
    model = TextLDS(1, num_words=len(text.vocabulary)).fit(text, validation=corpus(), **QUICK)
    other = TextLDS(1, num_words=len(text.vocabulary)).fit(text, validation=corpus().valid, **QUICK)
    assert model.history.best == other.history.best
    with pytest.raises(ValueError, match="validation: the corpus 'toy' has no validation text"):
        TextLDS(1, num_words=len(text.vocabulary)).fit(text, validation=corpus(valid=False))


@pytest.mark.parametrize("max_lag", [3, 5])
def test_blocks_fit_the_lags_that_were_counted(max_lag):
    pytest.importorskip("scipy")
    rng = np.random.default_rng(0)
    lines = [["abcd"[k] for k in rng.integers(0, 4, size=30)] for _ in range(40)]
    counts = LagCounts.from_text(Text.from_lines(lines), max_lag)
    model = TextLDS(1, num_words=counts.num_words).fit(counts, **QUICK)
    told = TextLDS(1, num_words=counts.num_words).fit(counts, blocks=(max_lag + 1) // 2, **QUICK)
    assert torch.equal(model.transition, told.transition)
    with pytest.raises(ValueError, match="blocks: 4 blocks need lags 1..7"):
        TextLDS(1, num_words=counts.num_words).fit(counts, blocks=4, **QUICK)


def test_arrays_that_are_read_only_or_backward():
    x = np.arange(6.0).reshape(1, 6, 1)
    fixed = x.copy()
    fixed.flags.writeable = False  # as those of a frame are
    model = HMM(1, num_features=1).set_parameters(loc=[[2.0]])
    assert model.score(fixed) == model.score(x)
    assert model.score(x[:, ::-1]) == model.score(x[:, ::-1].copy())
    assert model.score([x[0, ::-1], fixed[0]]) == model.score([x[0, ::-1].copy(), x[0]])


def test_arrays_of_another_byte_order():
    """As files of other machines hold them, alone, in lists, beside tensors, and as what is told of them."""
    x, other = np.array([0.5, 2.0, -1.0]), np.array([[1.0], [4.0]])
    swapped, more = (value.astype(value.dtype.newbyteorder()) for value in (x, other))
    model = HMM(2, num_features=1).set_parameters(loc=np.array([[0.0], [2.0]]).astype(">f8"), initial=[0.5, 0.5])
    model.set_parameters(transition=[[0.9, 0.1], [0.2, 0.8]], covariance=[[1.0], [1.0]])
    assert torch.equal(model.loc.detach(), torch.tensor([[0.0], [2.0]]).double())
    states = np.array([1, -1, 0])
    known = dict(states=states.astype(states.dtype.newbyteorder()))
    assert model.score(swapped) == model.score(x) and model.score(swapped, **known) == model.score(x, states=states)
    assert model.score([swapped[:, None], torch.as_tensor(other)]) == model.score([x[:, None], other])
    padded = np.stack([x[:2, None], other])
    lengths = np.array([2, 1]).astype(">i4")
    assert model.score(padded.astype(">f4"), lengths) == model.score(padded, [2, 1])
    driven = IOHMM(2, num_inputs=1, outputs="poisson")
    driven.fit([3.0, 1.0, 0.0, 2.0, 5.0], inputs=np.arange(5.0), max_iterations=1, seed=0)
    assert driven.score([more], inputs=[more]) == driven.score([other], inputs=[other])


def test_scores_are_numbers_without_a_warning():
    model = HMM(2, num_features=1, priors=True).set_parameters(loc=[[0.0], [4.0]])
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch warns once a process, and another test may have had that
    try:
        assert model.requires_grad_().score([[0.0, 4.0, 3.0]]) < 0
        model.fit([[0.0, 4.0, 3.0, 0.5]] * 2, max_iterations=1)
    finally:
        torch.set_warn_always(before)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: HMM(2, 3).fit([[0, 1]], max_iteration=3), "no option 'max_iteration'.*Did you mean 'max_iterations'"),
        (lambda: HMM(2, 3).fit([[0, 1]], statse=[[0, 1]]), "no option 'statse'.*Did you mean 'states'"),
        (lambda: HMM(2, 3).fit([[0, 1]], num_restart=3), "no option 'num_restart'.*Did you mean 'num_restarts'"),
        (lambda: HMM(2, 3).set_parameters(trans=1), "HMM has no parameter 'trans'. Did you mean 'transition'"),
        (lambda: HMM(2, num_features=1).set_parameters(trans=1), "HMM has no parameter 'trans'. Did you mean 'transition'"),
        (lambda: HMM(2, num_features=1).set_parameters(emission=1), "emission: this HMM has emissions of numbers"),
        (lambda: HMM(2, 3).set_parameters(loc=1), "HMM has no parameter 'loc'. There are: initial, transition, emission"),
        (lambda: HMM(2, emission="poisson").set_parameters(rte=1), "HMM has no parameter 'rte'. Did you mean 'rate'"),
        (lambda: HMM(2, emission="poisson").set_parameters(loc=1), "HMM has no parameter 'loc'. There are: initial, .*, rate"),
        (lambda: HMM(2, num_features=1, emission="mixture").set_parameters(wieghts=1), "HMM has no .* Did you mean 'weights'"),
        (lambda: SemiMarkovHMM(2, emission="gamma", max_duration=2).set_parameters(x=1), "There are: .*, concentration, rate"),
        (lambda: StructuralModel().set_parameters(slope=1.0), "has no parameter 'slope'. There are: level, noise, width"),
        (lambda: HMM(num_words=3, transition=ProductMoves(2, 2)).set_parameters(transition_3=1), "Did you mean 'transition_2'"),
        (lambda: SemiMarkovHMM(2, 3, max_duration=2).set_parameters(emision=1), "SemiMarkovHMM has no parameter 'emision'"),
        (lambda: SemiMarkovHMM(2, 3, max_duration=2).set_parameters(lasts=1), "initial, transition, duration, emission"),
        (lambda: ARHMM(2, 1).set_parameters(lag=1), "ARHMM has no parameter 'lag'. Did you mean 'lags'"),
        (lambda: ConstrainedLDS(1, 1, {}).set_parameters(emision=1), "ConstrainedLDS has no parameter 'emision'. Did you mean"),
        (lambda: IOHMM(2, num_symbols=2, num_outputs=3).set_parameters(logits=1), "IOHMM has no parameter 'logits'"),
        (lambda: LDS(2, 1).set_parameters(emision=1), "LDS has no parameter 'emision'. Did you mean 'emission'"),
        (lambda: StreamingHMM(2, 3).set_parameters(trans=1), "StreamingHMM has no parameter 'trans'. Did you mean"),
    ],
)
def test_misspelt_names_get_a_suggestion(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "call, message",
    [(lambda: IOHMM(2, num_symbols=2, num_outputs=3).set_parameters(**{"initial_network.logits": [np.nan, 0.0]}), "no NaN")],
)
def test_values_that_emissions_and_networks_do_not_have(call, message):
    with pytest.raises(ValueError, match=message):
        call()
