"""Growing: near-copies of states tell what the states told."""

import pytest
import torch
from support.vlhmm_models import LENGTHS, X, make, tables_by_hand

close = torch.testing.assert_close
OPTIONS = ("independent", "untied", "shared layer", "factored", "scalar", "temperature", "uneven", "uneven, scalar", "reset",
           "no blocks", "hierarchical, independent", "hierarchical, scalar", "hierarchical, uneven",
           "hierarchical, one state a block")  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_copies_without_noise_have_the_same_likelihood(option):
    model = make(option).eval()
    with torch.no_grad():
        for factor in (1, 3):
            large = model.split(factor, noise=0.0)
            assert large.num_states == factor * model.num_states and large.config["transition"] == model.config["transition"]
            close(large.posterior(X, LENGTHS).log_prob(), model.posterior(X, LENGTHS).log_prob())
        noisy = model.split(2, noise=0.01).posterior(X, LENGTHS).log_prob()
    close(noisy, model.posterior(X, LENGTHS).log_prob().detach(), rtol=0.05, atol=0.05)
    assert not torch.equal(noisy, model.posterior(X, LENGTHS).log_prob())


@pytest.mark.parametrize("option", ["scalar", "uneven, scalar", "independent", "temperature"])
def test_one_softmax_becomes_the_hierarchy(option):
    """Tables keep the chain exactly; of features the shares within blocks, and p(block | state) nearly."""
    model = make(option, hidden_size=6).eval()
    with torch.no_grad():
        grown = model.split(1, noise=0.0, transition="hierarchical")
        found, wanted = tables_by_hand(grown)[1].exp(), tables_by_hand(model)[1].exp()
        of_block = grown.specs()[0].layout.block_of_kept
        for block in of_block.unique():
            inside = of_block == block
            a, b = (matrix[:, inside] / matrix[:, inside].sum(-1, keepdim=True) for matrix in (found, wanted))
            close(a, b)
    if "scalar" in option:
        close(found, wanted)
    else:
        assert (found - wanted).abs().max() < 0.25


def test_a_grown_model_learns_on(tmp_path):
    model = make("hierarchical, independent").float()
    large = model.split(2, state_dropout=0.5).train()
    assert large.config["state_dropout"] == 0.5 and large.training
    loss = -large._direct_chain(X).log_prob().sum()
    loss.backward()
    assert all(p.grad is not None for p in large.parameters())
    again = type(model).load(large.eval().save(tmp_path / "large"))
    close(again.posterior(X).log_prob(), large.posterior(X).log_prob())


@pytest.mark.parametrize("options, message", [
    (dict(factor=0), "factor"), (dict(factor=2, noise=-1.0), "noise"), (dict(factor=1.5), "factor"),
    (dict(factor=2, transition="softmax"), "does not become one softmax"), (dict(factor=2, transition="sofmax"), "softmax"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make("hierarchical, independent").split(**options)
