"""A text LDS at tiny size, and its posterior as one dense Gaussian over all states of a sentence."""

import math

import torch

from pplseq.models.text_lds.program import TextLDS

NUM_WORDS, NUM_STATES = 7, 3


def make(num_words=NUM_WORDS, num_states=NUM_STATES, seed=0, **options):
    """A model with a clear dependence of words on the past, in a basis of the state that is not special."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    probs = torch.rand(num_words, generator=generator, dtype=torch.float64) + 0.2
    rotation = torch.linalg.qr(draw(num_states, num_states))[0]
    transition = 0.8 * rotation + 0.1 * draw(num_states, num_states) / num_states
    noise = draw(num_states, num_states)
    noise = noise @ noise.T / num_states + 0.3 * torch.eye(num_states).double()
    model = TextLDS(num_states, num_words=num_words, probs=probs / probs.sum(), dtype=torch.float64, **options)
    emission = draw(num_words, num_states)
    emission = 0.35 * emission / math.sqrt(num_words)
    root = draw(num_states, num_states)
    return model.set_parameters(transition, emission, noise, 0.5 * root @ root.T)


def rebased(model, basis):
    """The same model with the state z replaced by basis^-1 z."""

    def back(matrix):
        return torch.linalg.solve(basis, matrix)

    other = TextLDS(
        model.num_states, num_words=model.num_words, probs=model.probs, measure=model.measure, initial=model.initial,
        dtype=torch.float64,
    )  # fmt: skip
    return other.set_parameters(
        back(model.transition @ basis),
        model.emission @ basis,
        back(back(model.state_noise).T),
        back(back(model.reduction).T),
    )


def joint_precision(model, words, start=None):
    """(prior precision (T h, T h), evidence precision, evidence vector (T h,)) of the states of a sentence.

    The words' part is made with dense algebra on the complement of u; -1 is a missing word.
    """
    transition, noise = model.transition, model.state_noise
    start = model.start_covariance if start is None else start
    h, steps = len(noise), len(words)
    unit = model.probs.sqrt()
    complement = torch.linalg.svd(unit.detach().unsqueeze(0))[2][1:].T
    matrix = complement.T @ (model.emission - torch.outer(unit, unit @ model.emission))
    precision = torch.linalg.inv(torch.eye(len(matrix)).double() - matrix @ model.reduction @ matrix.T)
    prior = torch.zeros(steps * h, steps * h, dtype=torch.float64)
    seen, vector = torch.zeros_like(prior), torch.zeros(steps * h, dtype=torch.float64)
    for t, word in enumerate(words):
        now = slice(t * h, t * h + h)
        before = slice(t * h - h, t * h)
        block = torch.zeros_like(prior)
        inverse = torch.linalg.inv(start if t == 0 else noise)
        block[now, now] = inverse
        if t:
            block[now, before] = -inverse @ transition
            block[before, now] = -transition.T @ inverse
            block[before, before] = transition.T @ inverse @ transition
        prior = prior + block
        if word >= 0:
            whitened = complement.T @ (unit.reciprocal() * torch.eye(len(unit)).double()[word] - unit)
            block = torch.zeros_like(prior)
            block[now, now] = matrix.T @ precision @ matrix
            seen = seen + block
            part = torch.zeros_like(vector)
            part[now] = matrix.T @ precision @ whitened
            vector = vector + part
    return prior, seen, vector


def smoothed(model, words, start=None):
    """(means (T, h), covariances (T h, T h)) given the whole sentence."""
    prior, seen, vector = joint_precision(model, words, start)
    covariance = torch.linalg.inv(prior + seen)
    return (covariance @ vector).reshape(len(words), -1), covariance


def log_gain(model, words, start=None):
    """log p(words) - log N(words | 0, Pi), nats, differentiable: what `measure="iid"` reports."""
    prior, seen, vector = joint_precision(model, words, start)
    unit = model.probs.sqrt()
    complement = torch.linalg.svd(unit.detach().unsqueeze(0))[2][1:].T
    matrix = complement.T @ (model.emission - torch.outer(unit, unit @ model.emission))
    noise = torch.eye(len(matrix)).double() - matrix @ model.reduction @ matrix.T
    result = (torch.logdet(prior) - torch.logdet(prior + seen) + vector @ torch.linalg.solve(prior + seen, vector)) / 2
    for word in words:
        if word >= 0:
            whitened = complement.T @ (unit.reciprocal() * torch.eye(len(unit)).double()[word] - unit)
            squares = whitened @ torch.linalg.solve(noise, whitened) - whitened @ whitened
            result = result - (torch.logdet(noise) + squares) / 2
    return result


SENTENCES = [[0, 3, 4, 1, 1, 6, 2], [5], [2, 2, 6], [1, 6, 0, 0, 0, 3, 3, 3, 4, 5, 6], [4, 0]]
LENGTHS = torch.tensor([len(words) for words in SENTENCES])
X = torch.zeros(len(SENTENCES), int(LENGTHS.max()), dtype=torch.long)
for _row, _words in zip(X, SENTENCES, strict=True):
    _row[: len(_words)] = torch.tensor(_words)


def close(one, two, rtol=1e-9, atol=1e-9):
    one, two = (torch.as_tensor(value, dtype=torch.float64) for value in (one, two))
    torch.testing.assert_close(one, two, rtol=rtol, atol=atol)
