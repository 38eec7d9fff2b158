"""Nothing is made on the CPU by itself: programs, training, checkpoints and queries of a model that is on another device."""

import pyro
import pytest
import torch
from support.elsewhere import DEVICE, Elsewhere, Questions, moved, other_device

from pplseq import checks
from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.infer.programs.markov import markov
from pplseq.kernels.triton import launch
from pplseq.models import HMM, IOHMM, VLHMM

QUERIES = {
    "log_prob": lambda c: c.log_prob(), "marginals": lambda c: c.marginals().probs, "viterbi": lambda c: c.viterbi()[0],
    "k_best": lambda c: c.k_best(2)[0], "sample": lambda c: c.sample(2), "entropy": lambda c: c.entropy(),
    "pair_marginals": lambda c: c.pair_marginals().probs, "filtered_states": lambda c: c.filtered_states().probs,
    "token_log_probs": lambda c: c.token_log_probs(), "next": lambda c: c.next().state_log_probs,
    "expected_counts": lambda c: c.expected_counts().occupancy, "filtered": lambda c: c.filtered().log_probs,
}  # fmt: skip


@pytest.fixture(autouse=True)
def device(monkeypatch):
    with other_device(monkeypatch):
        yield


def model():
    torch.manual_seed(0)
    return moved(VLHMM(8, num_words=8, blocks=torch.arange(8) % 2, hidden_size=4, reset_id=1))


def there(tensor):
    return Elsewhere.of(tensor)


def test_mixing_devices_is_noticed():
    with pytest.raises(RuntimeError, match="mixed devices"):
        there(torch.ones(3)) + torch.ones(3)
    assert (there(torch.ones(3)) + 1).device == DEVICE


def test_programs_without_observations():
    for handler in (BlockedEnum(), BlockedEnum(vectorize=False)):
        with handler:
            model().model(num_sequences=2, num_steps=5)
    transition = DenseTransition(*(there(torch.randn(s).log_softmax(-1)) for s in ((3,), (3, 3))))
    emission = CategoricalEmission(there(torch.randn(3, 4).log_softmax(-1)))
    lengths = there(torch.tensor([5, 2]))
    with BlockedEnum() as posterior, pyro.plate("rows", 2, dim=-1):
        z = None
        for t in markov(range(5)):
            with pyro.poutine.mask(mask=t < lengths):
                z = pyro.sample(f"z_{t}", transition(z))
                pyro.sample(f"x_{t}", emission(z))
    assert posterior.chains["z_0"].log_prob().device == DEVICE


def test_training_and_checkpoints():
    trained, x = model(), there(torch.randint(8, (3, 5)))
    loss = TraceBlockedEnum_ELBO().differentiable_loss(trained.model, no_guide, x)
    loss.backward()
    assert all(p.grad is not None and p.grad.device == DEVICE for p in trained.parameters() if p.requires_grad)
    stored = {name: value.to("cpu") for name, value in trained.state_dict().items()}
    assert all(value.device.type == "cpu" for value in stored.values())


@pytest.mark.parametrize("family", ["blocks", "blocks with gaps", "dense", "second order", "variable order"])
def test_queries(family):
    x = torch.randint(8, (3, 5))
    lengths = there(torch.tensor([5, 3, 1]))
    if not family.startswith("blocks"):
        size = 3 if family == "dense" else 9
        start, words = (there(torch.randn(s).log_softmax(-1)) for s in ((size,), (size, 8)))
        table = torch.randn(3, 3, 3).log_softmax(-1)
        if family == "dense":
            transition = DenseTransition(start, there(table[0]))
        elif family == "second order":
            transition = SecondOrderTransition(start, there(table))
        else:
            layout = SecondOrderTransition(torch.randn(9).log_softmax(-1), table)
            given = (table.flatten(0, 1), layout.successor, layout.symbol)
            transition = VariableOrderTransition(start, *map(there, given))
        valid = there(torch.arange(5)).unsqueeze(-1) < lengths
        chain = build_chain(transition, CategoricalEmission(words), there(x.T), valid=valid)
    else:
        if family == "blocks with gaps":
            x[0, 1] = x[1, 0] = -1
        chain = model().posterior(there(x), lengths)
    for query, ask in QUERIES.items():
        assert ask(chain).device == DEVICE, query


@pytest.mark.parametrize(
    "transition, options",
    [
        pytest.param("softmax", {"num_states": 9}, marks=pytest.mark.slow),
        pytest.param("hierarchical", {"num_states": 9}, marks=pytest.mark.slow),
        ("softmax", {"states_per_block": [3, 4, 1]}), ("hierarchical", {"states_per_block": [3, 4, 1]}),
        *((kind, {"num_topics": 2, "blocks": [0, 1, 1, 3, 2, 2]}) for kind in ("softmax", "hierarchical")),
    ],
    ids=str,
)  # fmt: skip
def test_steps_ask_the_device_nothing(transition, options):
    """A training step and a batch of an evaluation: with resets, state dropout, a carried belief, by a GPU's kernels."""
    pytest.importorskip("triton")
    options = {"num_states": 8, "blocks": [0, 1, 1, 0, 2, 2]} | options
    trained = VLHMM(num_words=6, hidden_size=4, transition=transition, reset_id=3, state_dropout=0.4, **options)
    trained, x = moved(trained).train(), there(torch.randint(6, (2, 3)))

    def step(start):
        chain = trained._direct_chain(x, None, start)
        chain.log_prob().sum().backward()
        return chain.filtered()

    def batch(start):
        chain = trained.posterior(x, start=start)
        chain.token_log_probs()
        return chain.filtered()

    with launch.interpreted(), checks.trusted(), checks.whole_text():
        for run in (step, batch):
            trained.train(run is step)
            belief = run(None)  # what is made once
            belief = run(belief)
            with Questions() as counted:
                run(belief)
            assert counted.asked == []


def test_questions_are_counted():
    value = there(torch.arange(4))
    with Questions() as counted:
        bool((value > 2).any()), value[value > 1], value.unique(), value.to("cpu"), int(value[0])
    assert len(counted.asked) == 5


@pytest.mark.parametrize("outputs", ["categorical", "gaussian"])
def test_input_output_models(outputs):
    torch.manual_seed(0)
    trained = moved(IOHMM(2, num_inputs=1, outputs=outputs, num_outputs=2, mealy=True))
    x = torch.randint(2, (3, 5)) if outputs == "categorical" else torch.randn(3, 5, 2, dtype=torch.float64)
    inputs, lengths = there(torch.randn(3, 5, 1, dtype=torch.float64)), there(torch.tensor([5, 2, 1]))
    trained.log_joint(there(x), lengths, inputs=inputs).backward()
    assert all(p.grad is None or p.grad.device == DEVICE for p in trained.parameters())
    chain = trained.posterior(there(x), lengths, inputs=inputs)
    assert chain.marginals().probs.device == DEVICE and chain.viterbi()[0].device == DEVICE


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_vectors_with_missing_coordinates(covariance):
    trained = moved(HMM(2, num_features=2, covariance=covariance))
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    x[0, 1, 0] = x[1, 2] = torch.nan
    trained.log_joint(there(x)).backward()
    assert all(p.grad is None or p.grad.device == DEVICE for p in trained.parameters())
    assert trained.posterior(there(x)).differentiable_entropy().device == DEVICE
