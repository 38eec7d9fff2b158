"""Networks of the user's that draw, or do something else in training: when they do, in each way to fit."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pplseq.models import IOHMM
from pplseq.models.iohmm.fit import restart_problem

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(6, 12, 2, generator=GENERATOR, dtype=torch.float64)
WORDS = torch.randint(0, 3, (6, 12), generator=GENERATOR)


class Halved(nn.Module):
    """Half of what comes, always or in training; counts how often it was in training."""

    def __init__(self, always):
        super().__init__()
        self.always, self.learned, self.asked = always, 0, 0

    def forward(self, x):
        self.learned, self.asked = self.learned + self.training, self.asked + 1
        return x / 2 if self.training or self.always else x


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), *middle, nn.Linear(6, 4)).double()


def model(own, **options):
    torch.manual_seed(1)
    return IOHMM(2, num_inputs=2, num_outputs=3, transition=own, **options)


def weights(one, num_restarts=1):
    parts = {"initial": one.network("initial"), "transition": one.network("transition"), "emission": one.network("emission")}
    return {
        part: {name: value.detach().unsqueeze(-1).expand(*value.shape, num_restarts) for name, value in own.named_parameters()}
        for part, own in parts.items()
    }


def test_a_gradient_is_that_of_the_network_in_training():
    """Both of its parts: the likelihood and the expected counts are of the same values."""
    found = []
    for always in (False, True):
        one = model(network(Halved(always))).eval()
        problem = restart_problem(one, one._as_batch(WORDS, inputs=INPUTS))
        found.append((*problem.gradient(weights(one)), problem.expect(weights(one)).log_prob.sum(0)))
        assert not any(part.training for part in one.modules())
    (one, gradient, at_test), (other, same, learned) = found
    assert_close(one, other)
    assert_close(gradient, same)
    assert_close(one, learned)
    assert abs(float(at_test - learned)) > 1e-3


@pytest.mark.parametrize("method", ["sgd", "em", "gem", "svi"])
@pytest.mark.parametrize("first", [False, True])
def test_dropout_learns_and_answers_draw_nothing(method, first):
    """A seed fixes all; dropout of the inputs, which all restarts share, too."""
    steps = {"num_steps": 6} if method in ("sgd", "svi") else {"max_iterations": 2}
    restarts = {} if method == "svi" else {"num_restarts": 3}
    scores, counts = [], []
    for own in (nn.Dropout(0.5), nn.Dropout(0.5), nn.Identity()):
        watch = Halved(False)
        watch.forward = lambda x, watch=watch: (setattr(watch, "learned", watch.learned + watch.training), x)[1]
        made = nn.Sequential(own, network(watch)) if first else network(own, watch)
        one = model(made, priors=True if method == "svi" else None).fit(
            WORDS, inputs=INPUTS, method=method, seed=3, **steps, **restarts
        )
        scores.append(one.score(WORDS, inputs=INPUTS))
        counts.append(watch.learned)
        assert scores[-1] == one.score(WORDS, inputs=INPUTS) == copy.deepcopy(one).score(WORDS, inputs=INPUTS)
        assert not any(part.training for part in one.modules())
    assert scores[0] == scores[1]
    assert (scores[0] != scores[2]) == (method in ("sgd", "svi")) == (counts[0] > 0)


def test_each_restart_leaves_out_its_own():
    one = model(network(nn.Dropout(0.5))).eval()
    problem = restart_problem(one, one._as_batch(WORDS, inputs=INPUTS))
    own = weights(one, 3)
    assert len(problem.gradient(own)[0].unique()) == 3 and float(problem.expect(own).log_prob.sum(0).std()) < 1e-9


def test_statistics_over_steps_are_refused():
    for method in ("em", "sgd"):
        with pytest.raises(ValueError, match="^transition: a network of your own .* BatchNorm1d .*use LayerNorm"):
            model(network(nn.BatchNorm1d(6))).fit(WORDS, inputs=INPUTS, method=method)
