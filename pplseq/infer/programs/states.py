"""Posterior states at the program's own sites, and a check of the vectorised form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from pplseq import checks
from pplseq.distributions.drawing import seeded
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.factors.elimination import choose_states
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.threads import one_at_a_time

MODES = ("viterbi", "sample")


def _program(model) -> Callable:
    """The generative program itself (a SequenceModel's call runs it under a BlockedEnum of its own)."""
    return getattr(model, "model", model)


def infer_states(model: Callable, mode: str = "viterbi") -> Callable:
    """The model with its hidden states set to the best path, or to an exact posterior sample.

    Args:
        model: a program whose loop may be ``pyro.markov`` or ``pplseq.markov``.
        mode: "viterbi" or "sample".

    Returns:
        A function of the same arguments; trace it to read the states at their sites (padded steps: -1; for sites marked
        ``infer={"enumerate": "parallel"}`` the first value of their support, as tensor code goes on with it). Handlers that
        set other sites (``poutine.condition``, ``poutine.replay``) belong around the model, inside ``infer_states``.

    Raises:
        ValueError: for another mode.
    """
    checks.choice("mode", mode, MODES)
    program = _program(model)

    @one_at_a_time
    def with_states(*args, **kwargs):
        handler = BlockedEnum(vectorize=False)
        # other latent sites (parameters, subsampled rows) keep the values that the states were inferred from
        with torch.no_grad(), poutine.block(), poutine.trace() as first, handler:
            program(*args, **kwargs)
        states = first.trace
        nodes: dict[str, Any] = dict(states.nodes)
        for site in [name for name, node in nodes.items() if node["type"] != "sample" or node["is_observed"]]:
            states.remove_node(site)
        for name, sites in handler.state_names.items():
            if handler.enumeration is not None and any(site.name == name for site in handler.enumeration.sites):
                raise ValueError(
                    f"chain {name!r} depends on enumerated sites, which choose its states together with it; mark its states "
                    'infer={"enumerate": "parallel"} too, or give these sites values (poutine.condition)'
                )
            chain = handler.chains[name]
            path = chain.viterbi()[0] if mode == "viterbi" else chain.sample(1)[0]
            for site, value in zip(sites, path.movedim(-1, 0), strict=True):
                states.add_node(site, name=site, type="sample", is_observed=False, value=value, infer={})
        if handler.enumeration is not None and handler.enumeration.variables:
            with torch.no_grad():
                found = choose_states(handler.enumeration, sample=mode == "sample")
            for site, value in found.items():
                states.add_node(site, name=site, type="sample", is_observed=False, value=value, infer={})
        with poutine.replay(trace=states):
            return program(*args, **kwargs)

    return with_states


def _is_said(node) -> bool:
    """Whether a site says something about the density; a plate does not, and those of a loop have names of their own."""
    return node["type"] == "sample" and not site_is_subsample(node)


@one_at_a_time
def check_vectorizable(model: Callable, *args, rtol: float = 1e-4, **kwargs) -> None:
    """Runs the program step by step and vectorised, and compares the log-likelihoods of every chain and of all other sites.

    ``markov`` goes step by step by itself where it sees that a body carries more than the hidden state from step to step, or
    has sites of its own. This finds what it cannot see: what functions that a body calls keep to themselves.

    Raises:
        ValueError: if they differ; names the site.
    """
    program, results = _program(model), []
    for vectorize in (False, True):
        discrete, gaussian = BlockedEnum(vectorize=vectorize), KalmanCollapse(vectorize=vectorize)
        with seeded(0), torch.no_grad(), poutine.block(), poutine.trace() as tracer, discrete, gaussian:
            program(*args, **kwargs)
        trace = tracer.trace
        trace.compute_log_prob()
        chains = {f"{name}__chain": name for name in (*discrete.chains, *gaussian.chains)}
        nodes: dict[str, Any] = dict(trace.nodes)
        results.append({n: torch.as_tensor(s["log_prob"]) for n, s in nodes.items() if _is_said(s)})
    one_by_one, vectorised = results
    for name, expected in one_by_one.items():
        if name in vectorised and torch.allclose(vectorised[name], expected, rtol=rtol):
            continue
        what = f"chain {chains[name]!r}" if name in chains else f"site {name!r}"
        raise ValueError(
            f"{what} has another log-probability in the vectorised loop than in the loop run step by step, so its body "
            "carries more than the hidden state between steps; use pplseq.markov(..., vectorize=False), or compute what it "
            "carries before the loop and index it with t"
        )
