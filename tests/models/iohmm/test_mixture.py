"""A mixture of IOHMMs against Bayes' rule over its components, and clusters that are found again."""

import numpy as np
import pytest
import torch

from pplseq import IOHMM, load
from pplseq.models import MixtureIOHMM

close = torch.testing.assert_close
KINDS = {
    "numbers": dict(outputs="normal", num_outputs=1, num_inputs=2, mealy=True),
    "start": dict(outputs="gaussian", num_outputs=1, num_inputs=2, initial="inputs", covariance="tied"),
    "layers": dict(num_outputs=4, num_inputs=2, mealy=True, hidden=(3,)),
    "symbols": dict(num_outputs=4, num_symbols=2, initial="transition"),
    "counts": dict(outputs=["poisson", "categorical"], num_outputs=[1, 3], num_inputs=2),
}
OWN = torch.nn.Sequential(torch.nn.Linear(1, 6).double(), torch.nn.Unflatten(-1, (2, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_memberships_are_bayes_rule(kind, tmp_path):
    torch.manual_seed(0)
    model = MixtureIOHMM(3, 2, **KINDS[kind])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    inputs = torch.randint(0, 2, (4, 6)) if kind == "symbols" else torch.randn(4, 6, 2).double()
    x = torch.randint(0, 4, (4, 6)) if "outputs" not in KINDS[kind] else torch.randint(0, 3, (4, 6, model.num_outputs)).double()
    lengths = torch.tensor([6, 5, 1, 3])
    parts = [model.component(c) for c in range(3)]
    missing = torch.full_like(x, torch.nan if x.is_floating_point() else -1)
    weights = model.predict_proba(missing, lengths, inputs=inputs)  # of which nothing is seen but inputs
    joint = torch.stack([part.log_prob(x, lengths, inputs=inputs) for part in parts], -1) + weights.log()
    close(model.log_prob(x, lengths, inputs=inputs), joint.logsumexp(-1))
    close(model.predict_proba(x, lengths, inputs=inputs), joint.softmax(-1))
    assert torch.equal(model.predict(x, lengths, inputs=inputs), joint.argmax(-1))
    assert type(parts[0]) is IOHMM and parts[0].num_states == 2
    again = load(model.save(tmp_path / "model"))
    assert isinstance(again, MixtureIOHMM) and again.get_params() == model.get_params()
    close(again.predict_proba(x, lengths, inputs=inputs), joint.softmax(-1))


def test_clusters_of_other_slopes_are_found():
    rng, of = np.random.default_rng(0), np.arange(30) % 2
    inputs = [rng.normal(size=(size, 1)) for size in rng.integers(5, 15, 30)]
    x = [np.array([1.5, -1.0])[c] * u + rng.normal(0, 0.4, u.shape) for c, u in zip(of, inputs, strict=True)]
    model = MixtureIOHMM(2, 1, num_inputs={"emission": 1}, outputs="normal", mealy=True)
    model.fit(x, inputs=inputs, num_restarts=10, seed=0)
    found = model.predict(x, inputs=inputs).numpy()
    assert (found == of).all() or (found == 1 - of).all()
    assert model.num_free_parameters == 1 + 2 * 3
    assert (np.diff(model.history.log_likelihoods) > -1e-8).all()


def test_a_component_calls_its_states_as_the_mixture_does():
    x, states = torch.zeros(2, 3, dtype=torch.long), [["up"] * 3, ["down"] * 3]
    model = MixtureIOHMM(2, 1, num_inputs=0, num_outputs=2).fit(x, states=states, seed=0, max_iterations=2)
    assert [model.component(np.int64(c)).decode(x)[0, 0] for c in range(2)] == list(model.state_names) == ["down", "up"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixtureIOHMM(2, 2, num_outputs=3, graph="left_right"), "graph: what moves there are makes"),
        (lambda: MixtureIOHMM(2, 2, num_outputs=3, initial="stationary"), "initial: clusters that never meet"),
        (lambda: MixtureIOHMM(0, 2, num_outputs=3), "num_clusters"),
        (lambda: MixtureIOHMM(2, 2, num_inputs=0, num_outputs=3).component(2), "cluster must be in 0..1, got 2"),
        (lambda: MixtureIOHMM(2, 1, num_inputs=1, num_outputs=3, mealy=True, emission=OWN).component(0), "component: a net"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()
