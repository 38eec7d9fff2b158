"""Estimators for scikit-learn: a classifier of sequences; posteriors of states, and vectors of words, as features."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np

from pplseq import checks
from pplseq.data.text import Text
from pplseq.data.vocabulary import UNKNOWN, Vocabulary, split_words
from pplseq.infer.discrete.chain import Chain
from pplseq.models.forms import as_frame, is_table
from pplseq.models.text_lds.program import TextLDS

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError('estimators for scikit-learn need it: pip install "pplseq[sklearn]"') from None

Pool = Literal["mean", "last", "none"]
BLOCKS = 4  # of TextLDS, where sentences are long enough
POOLS = ("mean", "last", "none")


class _Features(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What a model says of each step of each sequence, one row a sequence or one a step.

    ``get_feature_names_out`` calls the columns stateposteriors0, ...; ``set_output(transform="pandas")`` makes a frame of them.
    """

    pool: Pool
    model_: Any

    def transform(self, X: Any) -> np.ndarray:
        """(N, D) features of N sequences; with ``pool="none"`` (sum of T_i, D), their steps one behind the other."""
        check_is_fitted(self, "model_")
        rows = self._rows(X)
        if empty := [i for i, row in enumerate(rows) if not len(row)]:
            raise ValueError(f"X: sequence {empty[0]} has no step to make features of; leave it out")
        if self.pool == "none":
            return np.concatenate(rows)
        return np.stack([row[-1] if self.pool == "last" else row.mean(0) for row in rows])

    @property
    def _n_features_out(self) -> int:  # asked by scikit-learn
        return self.model_.num_states

    def _rows(self, X: Any) -> list[np.ndarray]:
        raise NotImplementedError


class StatePosteriors(_Features):
    """p(z_t = k | the whole sequence), of a model with discrete states: :class:`HMM`, :class:`VLHMM`.

    Args:
        model: not fitted; each ``fit`` fits a copy. Its arguments are searched over as ``model__num_states``.
        fit_options: of the model's ``fit``: num_restarts, seed, method, ...
        pool: "mean" over the steps of a sequence, a row a sequence; "last" step; "none", a row a step.
        given: "all", the whole sequence, or "past", the steps up to each one (filtered).

    X is a list of sequences, as models take it. Cost: that of ``smooth``, and (N, Z) numbers of Z states.
    """

    def __init__(
        self,
        model: Any,
        *,
        fit_options: Mapping[str, Any] | None = None,
        pool: Pool = "mean",
        given: Literal["all", "past"] = "all",
    ) -> None:
        self.model, self.fit_options, self.pool, self.given = model, fit_options, pool, given

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fits a copy of the model to the sequences X; `y` is not looked at. The model itself stays as it is."""
        checks.choice("pool", self.pool, POOLS)
        _refuse_columns(X, "sequences")
        model: Any = clone(self.model)
        self.model_ = model.fit(_as_list(X), **(self.fit_options or {}))
        return self

    def _rows(self, X: Any) -> list[np.ndarray]:
        checks.choice("given", self.given, ("all", "past"))
        _refuse_columns(X, "sequences")
        sequences = _as_list(X)
        found = (self.model_.smooth if self.given == "all" else self.model_.filter)(sequences)
        ids = [None] * len(sequences) if found.ids is None else found.ids
        return [self._dense(probs.detach().cpu().numpy(), of) for probs, of in zip(found.probs, ids, strict=True)]

    def _dense(self, probs: np.ndarray, ids: Any) -> np.ndarray:
        """(T, Z) of (T, K) probabilities of the states that were open."""
        if ids is None:
            return probs
        dense = np.zeros((len(probs), self.model_.num_states), probs.dtype)
        np.add.at(dense, (np.arange(len(probs))[:, None], ids.cpu().numpy()), probs)
        return dense


class SequenceClassifier(ClassifierMixin, BaseEstimator):
    """Classes of whole sequences: a model for each, and Bayes' rule, p(class | x) ~ p(class) p(x | class).

    Args:
        model: not fitted; each class gets a copy. Its arguments are searched over as ``model__num_states``. Of words it has
            their number or a vocabulary (``model.vocabulary``), so that the classes' likelihoods are of the same words.
        fit_options: of the model's ``fit``: num_restarts, seed, method, ...
        class_priors: (C,) probabilities in the order of ``classes_``; None: shares of the sequences.

    Attributes:
        classes_: (C,) sorted. models_: the model of each. class_log_prior_: (C,).

    X is a list of sequences, as models take it, y a label each. A sequence that is impossible in every class has NaN. A model
    whose start is diffuse (``StructuralModel``) knows how a sequence moves, not where it lies: classes that differ in their
    level alone are one to it.
    """

    def __init__(
        self, model: Any, *, fit_options: Mapping[str, Any] | None = None, class_priors: Any = None
    ) -> None:
        self.model, self.fit_options, self.class_priors = model, fit_options, class_priors

    def fit(self, X: Any, y: Any) -> Self:
        """Fits a copy of the model to the sequences of each class."""
        _refuse_columns(X, "sequences")
        sequences, labels = _as_list(X), np.asarray(y)
        if labels.shape != (len(sequences),):
            raise ValueError(f"y: expected a label for each of {len(sequences)} sequences, got shape {labels.shape}")
        if "validation" in (self.fit_options or ()):
            raise ValueError("fit_options: validation would be the same data for every class; leave it out")
        if unknown := {"exposure", "trials", "inputs", "states"} & {*(self.fit_options or ())}:
            raise ValueError(f"fit_options: {', '.join(unknown)} goes with the sequences, and predict takes none; leave it out")
        if labels.dtype == object and any(label is None for label in labels):
            raise ValueError("y: a label is None; leave out the sequences whose class is not known")
        self.classes_, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: expected two or more classes, got {checks.shown(self.classes_.tolist())}")
        shares = counts / counts.sum() if self.class_priors is None else np.asarray(self.class_priors, dtype=float)
        if shares.shape != counts.shape or (shares <= 0).any() or abs(shares.sum() - 1) > 1e-6:
            raise ValueError(
                f"class_priors: expected {len(counts)} probabilities that sum to one, for the classes "
                f"{checks.shown(self.classes_.tolist())}, got {checks.shown(self.class_priors)}"
            )
        self.class_log_prior_, self.models_ = np.log(shares), []
        for place in range(len(self.classes_)):
            model: Any = clone(self.model)
            model._take_names(self.model)
            model.fit([row for row, own in zip(sequences, number, strict=True) if own == place], **(self.fit_options or {}))
            self.models_.append(model)
        words = {None if model.vocabulary is None else model.vocabulary.words for model in self.models_}
        if len(words) > 1:
            raise ValueError(
                "model: each class made a vocabulary of its own, and likelihoods of different words do not compare; give the "
                "model one before: model.vocabulary = Vocabulary.build(sentences)"
            )
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """(N, C) log p(class | sequence), nats."""
        check_is_fitted(self, "models_")
        _refuse_columns(X, "sequences")
        sequences = _as_list(X)
        joint = np.stack([self._log_likelihoods(model, sequences) for model in self.models_], 1) + self.class_log_prior_
        with np.errstate(invalid="ignore"):
            largest = joint.max(1, keepdims=True)
            return joint - largest - np.log(np.exp(joint - largest).sum(1, keepdims=True))

    @staticmethod
    def _log_likelihoods(model: Any, sequences: list[Any]) -> np.ndarray:
        chain = model._posterior(sequences, None)[1]
        with chain.unchecked() if isinstance(chain, Chain) else contextlib.nullcontext():
            return chain.log_prob().detach().double().cpu().numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, C) p(class | sequence)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """(N,) the most probable class."""
        found = self.predict_log_proba(X)
        return self.classes_[np.nan_to_num(found, nan=-np.inf).argmax(1)]


class TokenEmbeddings(_Features):
    """Vectors of words in their sentences, posterior means of a :class:`TextLDS`; X is a list of sentences.

    A sentence is a string, split at spaces, or a list of words. Means over sentences may differ by mere thousandths, which
    a penalty on weights, as of ``LogisticRegression``, would suppress: put a ``StandardScaler`` behind it,
    ``make_pipeline(TokenEmbeddings(), StandardScaler(), LogisticRegression())``.

    Args:
        num_states: dimensions of a vector.
        min_count: words seen less often in ``fit`` are unknown words, as are those that ``fit`` did not see.
        fit_options: of ``TextLDS.fit``: pseudo_counts (for some thousand words rather 10 than 1000), max_iterations, ...
        pool: "mean" over the words of a sentence, a row a sentence; "last" word; "none", a row a word.
        kind: "smoothed", given the whole sentence, or "filtered", the words so far.

    Source: Belanger and Kakade (2015), A Linear Dynamical System Model for Text.
    """

    def __init__(
        self,
        *,
        num_states: int = 20,
        min_count: int = 1,
        fit_options: Mapping[str, Any] | None = None,
        pool: Pool = "mean",
        kind: Literal["smoothed", "filtered"] = "smoothed",
    ) -> None:
        self.num_states, self.min_count, self.fit_options = num_states, min_count, fit_options
        self.pool, self.kind = pool, kind

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fits a model to the sentences X, whose words become its vocabulary; `y` is not looked at."""
        checks.choice("pool", self.pool, POOLS)
        lines = _words(X)
        vocabulary = Vocabulary.build(lines, min_count=self.min_count)
        if vocabulary.unknown_id is None:  # words that are new to it come later
            vocabulary = Vocabulary((*vocabulary.words, UNKNOWN))
        self.model_ = TextLDS(self.num_states, num_words=len(vocabulary))
        longest = max(map(len, lines)) + 1  # with its end: pairs of words as far apart as the longest sentence has them
        options = {"blocks": max(2, min(BLOCKS, longest // 2)), **(self.fit_options or {})}
        self.model_.fit(Text.from_lines(lines, vocabulary), **options)
        self.model_.vocabulary = vocabulary
        return self

    def _rows(self, X: Any) -> list[np.ndarray]:
        text = Text.from_lines(_words(X), self.model_.vocabulary)
        vectors = self.model_.embed_tokens(text, kind=self.kind)
        ends = text.line_starts[1:]
        return [vectors[start : end - 1] for start, end in zip(text.line_starts, ends, strict=False)]  # without <eos>


def _as_list(X: Any) -> list[Any]:
    return X if isinstance(X, list) else list(X)  # sequences_by knows which columns are missing words


def _refuse_columns(X: Any, what: str) -> None:
    """Raises TypeError for a frame or a dict of columns, which iterate over the names of their columns."""
    if not is_table(X) and not isinstance(X, Mapping) or not hasattr(X, "columns") and not isinstance(X, Mapping):
        return
    columns = list(X if isinstance(X, Mapping) else as_frame(X, "X").columns)
    one = f"X[{columns[-1]!r}]" if columns else "its column"
    todo = f"give one column, {one}" if what == "sentences" else "write [X] for one, or sequences_by(X, 'column') for several"
    raise TypeError(
        f"X: expected a list of {what}, got a {type(X).__name__} with columns {', '.join(map(repr, columns[:5]))}; {todo}"
    )


def _words(sentences: Any) -> list[list[str]]:
    _refuse_columns(sentences, "sentences")
    if isinstance(sentences, str):
        raise TypeError("X: expected a list of sentences, got one string; write [sentence]")
    lines = []
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            words: list[Any] = split_words(sentence)
        else:
            words = list(sentence) if isinstance(sentence, Iterable) else [None]
        if not all(isinstance(word, str) for word in words):
            raise TypeError(f"X: sentence {number} must be a string or a list of words, got {checks.shown(sentence)}")
        lines.append(words)
    return lines
