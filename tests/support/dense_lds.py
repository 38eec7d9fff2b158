"""A linear dynamical system as one big Gaussian, in numpy: the truth that tests of the LDS compare with."""

from typing import NamedTuple

import numpy as np


def values(model):
    """The parameters as numpy arrays; absent offsets and inputs are None."""
    names = ("transition", "emission", "transition_offset", "emission_offset", "transition_inputs", "emission_inputs")
    found = {name: getattr(model, name) for name in (*names, "state_noise", "emission_noise")}
    mean, covariance = model._initial_belief
    found |= {"initial_mean": mean, "initial_covariance": covariance}
    return {name: None if value is None else value.detach().double().numpy().copy() for name, value in found.items()}


class Dense(NamedTuple):
    """Of one sequence: log p(x), and the posterior N(mean, covariance) of all its states, (T, h) and (T, h, T, h)."""

    log_prob: float
    mean: np.ndarray
    covariance: np.ndarray


def joint(parameters, steps, inputs=None, transitions=None, emissions=None):
    """Means and covariances of (z_1..z_T) and (x_1..x_T): z (T h), C_z, emission matrix (T n, T h), x shift (T n), C_x|z."""
    p = parameters
    h, n = p["transition"].shape[0], p["emission"].shape[0]
    moves = np.broadcast_to(p["transition"], (steps, h, h)) if transitions is None else transitions
    looks = np.broadcast_to(p["emission"], (steps, n, h)) if emissions is None else emissions

    def shift(kind, size):
        total = np.zeros((steps, size))
        if p[f"{kind}_offset"] is not None:
            total = total + p[f"{kind}_offset"]
        if p[f"{kind}_inputs"] is not None:
            total = total + inputs @ p[f"{kind}_inputs"].T
        return total

    # z = L (first, moves' noise): block lower triangular products of the moves
    pushes = shift("transition", h)
    pushes[0] = p["initial_mean"]
    noises = [p["initial_covariance"]] + [p["state_noise"]] * (steps - 1)
    lower = np.zeros((steps, h, steps, h))
    for s in range(steps):
        lower[s, :, s] = np.eye(h)
        for t in range(s + 1, steps):
            lower[t, :, s] = moves[t] @ lower[t - 1, :, s]
    lower = lower.reshape(steps * h, steps * h)
    blocks = np.zeros((steps, h, steps, h))
    look = np.zeros((steps, n, steps, h))
    noise = np.zeros((steps, n, steps, n))
    for t in range(steps):
        blocks[t, :, t], look[t, :, t], noise[t, :, t] = noises[t], looks[t], p["emission_noise"]
    covariance = lower @ blocks.reshape(steps * h, -1) @ lower.T
    return (
        lower @ pushes.ravel(), covariance, look.reshape(steps * n, -1), shift("emission", n).ravel(),
        noise.reshape(steps * n, -1),
    )  # fmt: skip


def dense(parameters, x, inputs=None, transitions=None, emissions=None) -> Dense:
    """The truth about one sequence (T, n), NaN where missing."""
    steps, h = len(x), parameters["transition"].shape[0]
    mean, prior, look, shift, noise = joint(parameters, steps, inputs, transitions, emissions)
    seen = ~np.isnan(x.ravel())
    look, residual = look[seen], x.ravel()[seen] - (look @ mean + shift)[seen]
    total = look @ prior @ look.T + noise[np.ix_(seen, seen)]
    gain = np.linalg.solve(total, look @ prior).T
    log_prob = -0.5 * (
        residual @ np.linalg.solve(total, residual) + np.linalg.slogdet(total)[1] + len(residual) * np.log(2 * np.pi)
    )
    posterior = (prior - gain @ look @ prior).reshape(steps, h, steps, h)
    return Dense(log_prob, (mean + gain @ residual).reshape(steps, h), posterior)


def textbook_em(parameters, sequences, inputs=None, diagonal=()):
    """One EM step, step by step over time, from absolute moments; missing coordinates through their conditional law."""
    p = parameters
    h, n = p["transition"].shape[0], p["emission"].shape[0]

    def regressors(kind, state, u):
        parts = [state]
        if p[f"{kind}_offset"] is not None:
            parts.append(np.ones(1))
        if p[f"{kind}_inputs"] is not None:
            parts.append(u)
        return np.concatenate(parts)

    sums = {kind: [0.0, 0.0, 0.0, 0] for kind in ("transition", "emission")}
    first, firsts = [], []
    R, C = p["emission_noise"], p["emission"]
    for index, x in enumerate(sequences):
        u = np.zeros((len(x), 0)) if inputs is None else inputs[index]
        truth = dense(p, x, u if inputs is not None else None)
        first.append(truth.mean[0])
        firsts.append(truth.covariance[0, :, 0])
        for t in range(len(x)):
            m, V = truth.mean[t], truth.covariance[t, :, t]
            if t:
                f = regressors("transition", truth.mean[t - 1], u[t])
                ff = np.outer(f, f)
                ff[:h, :h] += truth.covariance[t - 1, :, t - 1]
                zf = np.outer(m, f)
                zf[:, :h] += truth.covariance[t, :, t - 1]
                for k, part in enumerate((ff, zf, V + np.outer(m, m), 1)):
                    sums["transition"][k] = sums["transition"][k] + part
            o = ~np.isnan(x[t])
            if not o.any():
                continue
            e = regressors("emission", m, u[t])
            rest = regressors("emission", 0 * m, u[t])
            W = np.concatenate([C] + [
                v.reshape(n, -1) for v in (p["emission_offset"], p["emission_inputs"]) if v is not None
            ], 1)  # fmt: skip
            # x_t = a + F z + noise: identity on what is seen, regression of the missing on it
            L = R[:, o] @ np.linalg.inv(R[np.ix_(o, o)])
            lift = np.eye(n)
            lift[:, o] -= L
            F, a = lift @ C, L @ x[t][o] + lift @ W @ rest
            y = a + F @ m
            ee = np.outer(e, e)
            ee[:h, :h] += V
            ye = np.outer(y, e)
            ye[:, :h] += F @ V
            yy = np.outer(y, y) + F @ V @ F.T + R - L @ R[o]
            for k, part in enumerate((ee, ye, yy, 1)):
                sums["emission"][k] = sums["emission"][k] + part
    new = {}
    for kind, noise in (("transition", "state_noise"), ("emission", "emission_noise")):
        moment, cross, scatter, count = sums[kind]
        W = cross @ np.linalg.inv(moment)
        S = (scatter - W @ cross.T) / count
        new[noise] = np.diag(np.diag(S)) if noise in diagonal else S
        new[kind], column = W[:, :h], h
        for rest in ("offset", "inputs"):
            old = p[f"{kind}_{rest}"]
            new[f"{kind}_{rest}"] = None
            if old is not None:
                width = 1 if rest == "offset" else old.shape[1]
                new[f"{kind}_{rest}"] = W[:, column : column + width].reshape(old.shape)
                column += width
    new["initial_mean"] = np.mean(first, 0)
    about = np.array(first) - new["initial_mean"]
    new["initial_covariance"] = np.mean(firsts, 0) + about.T @ about / len(about)
    return new
