"""The shorter way from a model to its chain against its program."""

import pytest
import torch

from pplseq.models import HMM
from pplseq.models.base import SequenceModel

close = torch.testing.assert_close


def words():
    return HMM(3, num_words=5), torch.randint(-1, 5, (4, 6))  # some are missing


def vectors():
    x = torch.randn(4, 6, 2, dtype=torch.float64)
    x[1, 2] = torch.nan
    return HMM(3, num_features=2, priors=True), x


@pytest.mark.parametrize("make", [words, vectors])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_same_chain_as_the_programs(make, ragged, known, monkeypatch):
    model, x = make()
    lengths = torch.tensor([6, 1, 4, 2]) if ragged else None
    given = {"states": torch.randint(-1, 3, (4, 6))} if known else {}
    start = model.posterior(x).filtered()
    for before in (None, start):
        short = model.posterior(x, lengths, before, **given)
        with monkeypatch.context() as patch:
            patch.setattr(HMM, "direct_chain", SequenceModel.direct_chain)
            long = model.posterior(x, lengths, before, **given)
        assert type(short) is type(long)
        close(short.log_prob(), long.log_prob())
        close(short.marginals().probs, long.marginals().probs)
        for one, other in zip(short.factors, long.factors, strict=True):
            assert (one is None) == (other is None)
            if isinstance(one, torch.Tensor):
                close(one, other)


def test_a_program_of_ones_own_is_run():
    class Doubled(HMM):
        def specs(self):
            transition, emission = super().specs()
            return transition, type(emission)((2 * emission.log_probs).log_softmax(-1))

    torch.manual_seed(0)
    own = Doubled(3, num_words=5)
    plain = HMM(3, num_words=5)
    plain.load_state_dict(own.state_dict())
    x = torch.randint(5, (2, 6))
    assert own.direct_chain(x) is None
    assert not torch.allclose(own.log_prob(x), plain.log_prob(x))


@pytest.mark.parametrize("make", [words, vectors])
def test_the_programs_likelihood_is_the_chains(make):
    """What gradients go through, which runs the program, against what questions go through, which does not."""
    model, x = make()
    close(model.log_joint(x, share=0.0).detach(), model.log_prob(x).sum())
