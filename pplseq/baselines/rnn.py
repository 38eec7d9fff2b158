"""The simple recurrent network language model, from random weights or from a linear filter."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pplseq import checks
from pplseq.baselines.neural import NeuralLanguageModel, State, check_weights
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary


class RNN(NeuralLanguageModel):
    """Elman's network over words.

        h_t = sigmoid(A h_{t-1} + B[:, w_{t-1}]),   p(w_t | w_1..w_{t-1}) = softmax(C h_t + c),   h_0 = 1/2

    There is no bias within the sigmoid: every step adds exactly one column of B, which can hold it.

    Args:
        vocabulary: with `<eos>`, the word before the first.
        hidden_size: D.
        init_scale: standard deviation of the entries of A, B and C; c starts at 0 (see `set_unigram`).
        seed: of the draws.

    Attributes:
        transition: (D, D) A. embedding: (V, D) B transposed. output: (V, D) C. output_bias: (V,) c.

    Source: Mikolov, Statistical Language Models Based on Neural Networks (2012), section 3.2; Belanger and Kakade (2015),
        equations 18 and 19.
    """

    name: ClassVar[str] = "rnn"

    def __init__(self, vocabulary: Vocabulary, hidden_size: int, *, init_scale: float = 0.1, seed: int = 0) -> None:
        super().__init__(vocabulary)
        self.hidden_size, num_words = checks.count("hidden_size", hidden_size), len(vocabulary)
        check_weights(hidden_size * (hidden_size + 2 * num_words))
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(init_scale * torch.randn(shape, generator=generator))

        self.transition = drawn(hidden_size, hidden_size)
        self.embedding = drawn(num_words, hidden_size)
        self.output = drawn(num_words, hidden_size)
        self.output_bias = nn.Parameter(torch.zeros(num_words))

    @property
    def config(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size}

    def initial_state(self, batch_size: int) -> State:
        return (self.transition.new_full((batch_size, self.hidden_size), 0.5),)

    def forward(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        features = []
        for drive in functional.embedding(words.T, self.embedding, sparse=self.sparse_gradients):
            h = torch.sigmoid(torch.addmm(drive, h, self.transition.T))
            features.append(h)
        features = torch.stack(features, 1)
        if lengths is not None:
            h = features[torch.arange(len(words), device=words.device), lengths - 1]
        return features, (h,)

    @property
    def softmax_weights(self) -> tuple[Tensor, Tensor]:
        return self.output, self.output_bias

    def set_unigram(self, text: Text) -> RNN:
        """Choose c so that, at h = 1/2, the network gives the word frequencies of a text (one added to each count)."""
        log_probs = np.log(_unigram(text))
        with torch.no_grad():
            self.output_bias.copy_(torch.from_numpy(log_probs)).sub_(self.output.sum(1) / 2)
        return self

    @classmethod
    def from_linear(
        cls,
        A: np.ndarray,
        B: np.ndarray,
        C: np.ndarray,
        text: Text,
        *,
        probs: np.ndarray | None = None,
        scale: float = 0.5,
        sample_tokens: int = 100_000,
    ) -> RNN:
        """A network that starts as a linear filter, run where the sigmoid is nearly straight.

            x_t = A x_{t-1} + B[:, w_{t-1}],   p(w_t = i) ~ mu_i + (C x_t)_i,   x_0 = 0

        is first written in coordinates in which E[x x'] = I over `text`. With sigmoid(a) = 1/2 + a/4 + O(a^3), units
        h = 1/2 + scale x / 4 follow the filter for

            A' = 4 A,   B' = scale B - 2 A 1 1',   C', c: see below.

        The softmax has log-probabilities where the filter has probabilities, and these may be negative. C' and c are the
        least-squares fit, over the states of a sample of `text`, of

            log r_i,   r_i = 0.1 + 0.9 max(1 + (C x)_i / mu_i, 0),

        the filter's ratio to the frequency of word i, mixed with one; log f_i is added to c, with f the word frequencies
        of `text`, one added to each count. Last, C' and what goes with it in c are multiplied by the g in [0, 2] that
        makes the sample likeliest.

        Args:
            A: (D, D); B: (D, V), C: (V, D), such as the predictor form of a Kalman filter over centred one-hot words.
            text: training text.
            probs: (V,) mu of the filter, pseudo-counts included; None: f.
            scale: standard deviation of what goes into each sigmoid.
            sample_tokens: tokens from the start of `text` over which moments and g are taken.

        Raises:
            ValueError: shapes that do not fit, values that are not finite, or a filter that is not stable.

        Source: Belanger and Kakade (2015), section 6; offsets and scales are ours.
        """
        A, B, C = (np.asarray(part, dtype=np.float64) for part in (A, B, C))
        hidden_size, num_words = A.shape[0], len(text.vocabulary)
        unigram = _unigram(text)
        mu = unigram if probs is None else np.asarray(probs, dtype=np.float64)
        for name, part, shape in (
            ("probs", mu, (num_words,)),
            ("A", A, (hidden_size, hidden_size)),
            ("B", B, (hidden_size, num_words)),
            ("C", C, (num_words, hidden_size)),
        ):
            if part.shape != shape:
                raise ValueError(f"{name}: expected shape {shape} (D = {hidden_size}, V = {num_words}), got {part.shape}")
            checks.finite(name, part, "use the parameters of a converged filter")
        if not mu.min() > 0:
            raise ValueError(f"probs: expected positive probabilities, got {mu.min():.4g}; train with pseudo-counts")
        checks.positive("scale", scale)
        if (radius := np.abs(np.linalg.eigvals(A)).max()) >= 1:
            raise ValueError(
                f"A: expected a stable filter, got spectral radius {radius:.4f}; give A - A K C or A - K C A"
            )

        model = cls(text.vocabulary, hidden_size)
        states = _filter(A, B, text.tokens[:sample_tokens], model.eos_id)
        values, vectors = np.linalg.eigh(states.T @ states / len(states))
        roots = np.sqrt(np.maximum(values, 1e-12 * values.max()))
        whiten, unwhiten = (vectors / roots) @ vectors.T, (vectors * roots) @ vectors.T
        A, B, C = whiten @ A @ unwhiten, whiten @ B, C @ unwhiten

        with torch.no_grad():
            model.transition.copy_(torch.from_numpy(4 * A))
            model.embedding.copy_(torch.from_numpy((scale * B - 2 * A.sum(1, keepdims=True)).T))
            slopes, offsets = _log_ratio_fit(states @ whiten, C / mu[:, None])
            slopes *= 4 / scale
            offsets -= slopes.sum(1) / 2
            model.output.copy_(torch.from_numpy(slopes))
            model.output_bias.copy_(torch.from_numpy(offsets))
            logs = torch.from_numpy(np.log(unigram)).to(model.output_bias)
            gain = _best_gain(model, logs, text, min(sample_tokens, 10_000))
            model.output.mul_(gain)
            model.output_bias.mul_(gain).add_(logs)
        return model


def _unigram(text: Text) -> np.ndarray:
    counts = np.bincount(text.tokens, minlength=len(text.vocabulary)) + 1.0
    return counts / counts.sum()


def _filter(A: np.ndarray, B: np.ndarray, tokens: np.ndarray, first: int, num_streams: int = 64) -> np.ndarray:
    """(N', D) states of the linear filter, run over the tokens as parallel streams."""
    num_streams = min(num_streams, len(tokens))
    streams = tokens[: len(tokens) // num_streams * num_streams].reshape(num_streams, -1)
    inputs = np.concatenate([np.full((num_streams, 1), first), streams[:, :-1]], 1).T
    x, states = np.zeros((num_streams, len(A))), []
    for words in inputs:
        x = x @ A.T + B.T[words]
        states.append(x)
    return np.concatenate(states)


def _log_ratio_fit(states: np.ndarray, ratios: np.ndarray, num_states: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Slopes (V, D) and offsets (V,) of the least-squares fit of log r to evenly spaced (N, D) states."""
    x = states[:: max(1, len(states) // num_states)]
    design = np.concatenate([x, np.ones((len(x), 1))], 1)
    # Least squares by the normal equations, whose right-hand side adds up over pieces of the sample.
    right = np.zeros((design.shape[1], len(ratios)))
    for rows, part in zip(np.array_split(x, -(-len(x) // 512)), np.array_split(design, -(-len(x) // 512)), strict=True):
        right += part.T @ np.log(0.1 + 0.9 * np.maximum(1 + rows @ ratios.T, 0))
    square = design.T @ design
    solution = np.linalg.solve(square + 1e-9 * np.trace(square) / len(square) * np.eye(len(square)), right)
    return solution[:-1].T.copy(), solution[-1]


def _best_gain(model: RNN, logs: Tensor, text: Text, num_tokens: int) -> float:
    """g in [0, 2] under which softmax(logs + g (C h + c)) makes a sample of the text likeliest; it is concave in g."""
    tokens = torch.from_numpy(text.tokens[:num_tokens].astype(np.int64))
    before = torch.cat([tokens.new_full((1,), model.eos_id), tokens[:-1]])
    features, _ = model(before[None], model.initial_state(1))

    def slope(gain: float) -> float:
        """Derivative of the nats by g: expected minus seen change of the logits."""
        total = 0.0
        for part, seen in zip(features[0].split(1024), tokens.split(1024), strict=True):
            change = model.logits(part)
            expected = (torch.softmax(logs + gain * change, 1) * change).sum(1)
            total += float((expected - change.gather(1, seen[:, None])[:, 0]).double().sum())
        return total

    low, high = 0.0, 2.0
    if slope(high) <= 0:
        return high
    for _ in range(11):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return (low + high) / 2
