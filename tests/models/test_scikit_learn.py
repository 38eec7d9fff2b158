"""States and words as features of scikit-learn's pipelines."""

import numpy as np
import pytest
import torch

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from pplseq import HMM, IOHMM, LDS, VLHMM  # noqa: E402
from pplseq.data.columns import TaggedSentence  # noqa: E402
from pplseq.data.vocabulary import Vocabulary  # noqa: E402
from pplseq.models import (  # noqa: E402
    HMMTagger,
    LatentTagger,
    SequenceClassifier,
    StatePosteriors,
    Tagger,
    TokenEmbeddings,
)
from pplseq.models.taggers.substates.products import ProductTagger  # noqa: E402


@pytest.fixture(scope="module")
def series():
    """Two kinds of series: those that stay, and those that jump; ragged, with a gap."""
    draw = np.random.default_rng(0)
    found, kinds = [], []
    for i in range(24):
        path = np.repeat(draw.integers(0, 2, 6), 4) if i % 2 else np.tile([0, 1], 12)
        row = 4.0 * path[: 20 + i % 5, None] + draw.normal(size=(20 + i % 5, 1))
        row[3] = np.nan
        found.append(row)
        kinds.append(i % 2)
    return found, np.array(kinds)


@pytest.mark.parametrize("given", ["all", "past"])
def test_rows_are_the_posteriors(series, given):
    x, _ = series
    features = StatePosteriors(HMM(2, num_features=1), fit_options={"seed": 1}, pool="none", given=given).fit(x)
    told = features.model_.smooth(x) if given == "all" else features.model_.filter(x)
    assert np.array_equal(features.transform(x), np.concatenate([row.numpy() for row in told.probs]))
    pooled, last = (features.set_params(pool=pool).transform(x) for pool in ("mean", "last"))
    assert np.allclose(pooled, [row.numpy().mean(0) for row in told.probs])
    assert np.array_equal(last, [row[-1].numpy() for row in told.probs])


def test_states_of_blocks_stand_at_their_own_places():
    sentences = ["a b", "b a a", "c"] * 4
    features = StatePosteriors(
        VLHMM(num_states=8, hidden_size=4), fit_options={"num_blocks": 2, "epochs": 1, "batch_size": 2, "seed": 0}, pool="none"
    ).fit(sentences)
    dense = features.transform(sentences[:3])
    told = features.model_.smooth(sentences[:3])
    assert dense.shape == (6, 8) and np.allclose(dense.sum(1), 1, atol=1e-5)
    for row, probs, ids in zip(dense, torch.cat(list(told.probs)), torch.cat(list(told.ids)), strict=True):
        assert np.allclose(row[ids.numpy()], probs.numpy())


def test_pipeline_grid_and_clone(series):
    x, y = series
    options = {"num_restarts": 2, "seed": 0, "max_iterations": 5}
    pipeline = make_pipeline(StatePosteriors(HMM(2, num_features=1), fit_options=options, pool="last"), LogisticRegression())
    search = GridSearchCV(pipeline, {"stateposteriors__model__num_states": [1, 2]}, cv=2, error_score="raise").fit(x, y)
    assert {entry["stateposteriors__model__num_states"] for entry in search.cv_results_["params"]} == {1, 2}
    best = search.best_estimator_[0]
    assert best.model_.is_fitted and not best.model.is_fitted
    again = clone(best)
    assert not hasattr(again, "model_") and again.model is not best.model
    assert again.get_params()["model__num_states"] == best.model.num_states
    with pytest.raises(NotFittedError):
        again.transform(x)


MADE = {
    "vlhmm with blocks": lambda: VLHMM(num_states=8, hidden_size=4, num_words=4, blocks=[0, 0, 1, 1]),
    "iohmm of columns": lambda: IOHMM(2, num_inputs=2, num_outputs=[1, 1], outputs=["normal", "poisson"], hidden=[3]),
    "hmm of columns": lambda: HMM(2, emission=["poisson", "normal"]),
    "lds": lambda: LDS(2, 2, num_inputs=1),
    "latent tagger": lambda: LatentTagger(num_substates=2, clusters={"a": "01"}),
    "product": lambda: ProductTagger(2, num_substates=2, clusters={"a": "01"}),
    "hmm tagger": HMMTagger.enhanced,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_clones_are_built_alike_and_not_fitted(make):
    model = make()
    again = clone(model)
    assert type(again) is type(model) and again.get_params() == model.get_params()
    if isinstance(model, Tagger):
        assert not again.tags
    else:
        model.is_fitted = True
        assert not clone(model).is_fitted
        model.vocabulary = Vocabulary(("a", "b"), unknown=None)
        assert clone(model).vocabulary is model.vocabulary


def test_grid_of_a_tagger():
    """By a score of its own, as taggers take sentences with their tags in one argument."""
    x = [TaggedSentence(("the", "dog", "barks"), ("D", "N", "V")), TaggedSentence(("the", "cat"), ("D", "N"))] * 4

    def right(tagger, x, y=None):
        return np.mean([found == sentence.tags for found, sentence in zip(tagger.tag([s.words for s in x]), x, strict=True)])

    found = GridSearchCV(HMMTagger(), {"order": [1, 2]}, cv=2, scoring=right, error_score="raise").fit(x)
    assert found.best_score_ == 1 and found.best_estimator_.tag([("the", "dog")]) == [("D", "N")]


def test_embeddings_tell_sentences_apart():
    draw = np.random.default_rng(1)
    topics = [["cat", "dog", "bird"], ["bond", "share", "price"]]
    lines = [" ".join(["the", *draw.choice(topics[i % 2], 5)]) for i in range(60)]
    y = np.arange(60) % 2
    options = {"pseudo_counts": 1.0, "max_iterations": 2}
    pipeline = make_pipeline(TokenEmbeddings(num_states=4, fit_options=options), StandardScaler(), LogisticRegression())
    pipeline.fit(lines[:40], y[:40])
    assert pipeline.score(lines[40:], y[40:]) == 1.0
    embeddings = clone(pipeline[0]).set_params(pool="none").fit(lines)
    vectors = embeddings.transform(["the cat zebra", ["dog"]])
    assert vectors.shape == (4, 4) and np.isfinite(vectors).all()
    own = embeddings.model_.embed_tokens([embeddings.model_.vocabulary.encode(["dog", "<eos>"])])
    assert np.allclose(vectors[3], own[0][0], atol=1e-5)


def test_what_is_refused(series):
    x, _ = series
    with pytest.raises(ValueError, match="pool must be"):
        StatePosteriors(HMM(2, num_features=1), pool="sum").fit(x)
    with pytest.raises(TypeError, match=r"write \[sentence\]"):
        TokenEmbeddings().fit("the cat")
    for x, place, got in (([1, 2, 3], 0, "1"), (["a", ["b", 2]], 1, r"\['b', 2\]"), (["a", None], 1, "None")):
        with pytest.raises(TypeError, match=f"X: sentence {place} must be a string or a list of words, got {got}"):
            TokenEmbeddings().fit(x)
    fitted = TokenEmbeddings(num_states=2, fit_options={"pseudo_counts": 1.0, "max_iterations": 1}).fit(["a b a", "b a c"] * 9)
    with pytest.raises(ValueError, match="sequence 1 has no step"):
        fitted.transform(["a", ""])


def test_frames_are_no_lists_of_sentences_or_sequences():
    pandas = pytest.importorskip("pandas")
    lines = ["a b a", "b a c"] * 9
    frame = pandas.DataFrame({"id": range(18), "text": lines})
    fitted = TokenEmbeddings(num_states=2, fit_options={"pseudo_counts": 1.0, "max_iterations": 1}).fit(frame["text"])
    for table, kind in ((frame, "DataFrame"), (frame.to_dict("list"), "dict")):
        for call in (TokenEmbeddings().fit, fitted.transform):
            message = rf"X: expected a list of sentences, got a {kind} with columns 'id', 'text'; give one column, X\['text'\]"
            with pytest.raises(TypeError, match=message):
                call(table)
    with pytest.raises(TypeError, match=r"X: expected a list of sequences, got a DataFrame .* write \[X\] for one, or sequ"):
        StatePosteriors(HMM(2, num_features=1)).fit(frame[["id"]])


def test_names_of_features(series):
    pandas = pytest.importorskip("pandas")
    x, _ = series
    features = StatePosteriors(HMM(2, num_features=1), fit_options={"seed": 1, "max_iterations": 2})
    frame = features.set_output(transform="pandas").fit(x).transform(x)
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(x)
    assert list(frame.columns) == features.get_feature_names_out().tolist() == ["stateposteriors0", "stateposteriors1"]
    lines = pandas.Series(["a b a", "b a c"] * 9, index=np.arange(18) + 3)
    embeddings = TokenEmbeddings(num_states=2, fit_options={"pseudo_counts": 1.0, "max_iterations": 1})
    frame = embeddings.set_output(transform="pandas").fit(lines).transform(lines)
    assert list(frame.columns) == ["tokenembeddings0", "tokenembeddings1"]
    assert embeddings.set_params(pool="none").transform(lines.tolist()).shape == (54, 2)


def test_a_classifier_is_bayes_rule_over_models_of_classes():
    rng = np.random.default_rng(0)
    rows = [rng.normal(3 * (n % 2), 1, (8, 1)) for n in range(12)]
    labels = np.array(["low", "high"])[np.arange(12) % 2]
    classifier = SequenceClassifier(HMM(1, num_features=1), fit_options={"seed": 0}, class_priors=[0.25, 0.75])
    found = classifier.fit(rows, labels)
    assert found is classifier and found.classes_.tolist() == ["high", "low"] and found.score(rows, labels) == 1
    joint = np.stack([[model.score([row]) for row in rows] for model in found.models_], 1) + np.log([0.25, 0.75])
    expected = np.exp(joint - np.logaddexp.reduce(joint, 1, keepdims=True))
    np.testing.assert_allclose(found.predict_proba(rows), expected, rtol=1e-9)
    np.testing.assert_allclose(found.predict_log_proba(rows), np.log(expected), rtol=1e-9, atol=1e-12)
    assert clone(classifier).get_params()["class_priors"] == [0.25, 0.75]
    grid = GridSearchCV(SequenceClassifier(HMM(1, num_features=1)), {"model__num_states": [1, 2]}, cv=2).fit(rows, labels)
    assert grid.best_score_ == 1


def test_words_of_classes():
    sentences, labels = ["a b a", "a a b", "c c", "c d c"] * 2, [0, 0, 1, 1] * 2
    model = HMM(1, num_words=5, priors=True)
    model.vocabulary = Vocabulary(("a", "b", "c", "d", "<unk>"))
    classifier = SequenceClassifier(model).fit(sentences, labels)
    assert classifier.predict(["b a", "d"]).tolist() == [0, 1]
    impossible = SequenceClassifier(HMM(1, num_words=3)).fit([[0, 0], [1, 1]], [0, 1])
    proba = impossible.predict_proba([[0], [2]])
    assert proba[0].tolist() == [1, 0] and np.isnan(proba[1]).all()
    with pytest.raises(ValueError, match="each class made a vocabulary of its own"):
        SequenceClassifier(VLHMM(num_states=2, hidden_size=2), fit_options=dict(epochs=1, batch_size=1)).fit(sentences, labels)


@pytest.mark.parametrize(
    "options, y, message",
    [
        ({}, [0, 0], "two or more classes"), ({}, [0], "a label for each of 2"),
        ({"class_priors": [1.0]}, [0, 1], "class_priors"),
        ({"fit_options": {"validation": [[0]]}}, [0, 1], "validation would be the same data for every class"),
    ],
)
def test_what_a_classifier_refuses(options, y, message):
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(HMM(1, num_words=2), **options).fit([[0], [1]], y)
    with pytest.raises(NotFittedError):
        SequenceClassifier(HMM(1, num_words=2)).predict([[0]])
