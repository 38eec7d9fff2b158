"""L-BFGS: it finds the minimum, turns back where there is no model, and says truthfully whether it converged."""

import math

import numpy as np
import pytest
import torch

from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.fittable import Fittable
from pplseq.infer.fit.gradients import maximize_by_lbfgs

F64 = torch.float64
DATA = [Batch(torch.zeros(2, 1)), Batch(torch.zeros(1, 1))]


class Valley(Fittable):
    """Rosenbrock's function as a loss, least at (1, 1); no model where the first coordinate is above ``cliff``."""

    def __init__(self, place, cliff=math.inf, beyond=None):
        super().__init__()
        self.place, self.unused = torch.nn.Parameter(torch.tensor(place, dtype=F64)), torch.nn.Parameter(torch.zeros(3))
        self.cliff, self.beyond, self.falls = cliff, beyond, 0

    def log_joint(self, x, lengths, share):
        u, v = self.place
        if u.item() > self.cliff:
            self.falls += 1
            if self.beyond is None:
                raise ValueError("no model")
            return u * self.beyond
        return -share * 3 * ((1 - u) ** 2 + 100 * (v - u**2) ** 2)


def test_it_finds_the_bottom_of_a_valley():
    model = Valley([-1.2, 1.0])
    history = maximize_by_lbfgs(model, DATA, tolerance=1e-12)
    assert history.converged and len(history.losses) < 60
    assert history.losses[0] == pytest.approx(24.2) and (np.diff(history.losses) <= 0).all()
    torch.testing.assert_close(model.place.detach(), torch.ones(2, dtype=F64), atol=1e-4, rtol=0)


@pytest.mark.parametrize("beyond", [None, math.nan, math.inf, -math.inf])
def test_it_turns_back_where_there_is_no_model(beyond):
    model = Valley([-1.2, 1.0], cliff=3.0, beyond=beyond)
    history = maximize_by_lbfgs(model, DATA, lr=30.0, tolerance=1e-12, num_steps=200)
    assert model.falls > 0 and history.converged and (np.diff(history.losses) <= 0).all()
    torch.testing.assert_close(model.place.detach(), torch.ones(2, dtype=F64), atol=1e-3, rtol=0)


def test_it_says_when_it_has_not_converged():
    history = maximize_by_lbfgs(Valley([-1.2, 1.0]), DATA, num_steps=5)
    assert not history.converged and history.reason == "num_steps = 5 done without convergence"
    assert len(history.losses) == 5 and history.losses[-1] < history.losses[0]


def test_it_has_converged_at_the_minimum():
    history = maximize_by_lbfgs(Valley([1.0, 1.0]), DATA)
    assert history.converged and history.losses == [0.0, 0.0]


def test_a_start_without_a_model_is_refused():
    with pytest.raises(ValueError, match="no model"):
        maximize_by_lbfgs(Valley([2.0, 1.0], cliff=1.0), DATA)
    with pytest.raises(ArithmeticError, match="the loss is nan where the fit starts"):
        maximize_by_lbfgs(Valley([2.0, 1.0], cliff=1.0, beyond=math.nan), DATA)


def test_steps_are_taken_in_units_of_the_parameters():
    """So what the parameters are measured in changes nothing."""

    class Bowl(Fittable):
        def __init__(self, units):
            super().__init__()
            self.units = torch.tensor(units, dtype=F64)
            self.place, self.still = torch.nn.Parameter(3 * self.units), torch.nn.Parameter(torch.tensor([7.0]))
            self.still.requires_grad_(False)

        def _parameter_units(self):
            return {"place": self.units, "still": torch.ones(1)}

        def log_joint(self, x, lengths, share):
            u, v = self.place / self.units
            return -share * 3 * ((1 - u) ** 2 + 10 * (v - u**2) ** 2)

    models = [Bowl(units) for units in ([1.0, 1.0], [2.0**-20, 2.0**20])]
    found = [maximize_by_lbfgs(model, DATA, tolerance=1e-10) for model in models]
    assert found[0].converged and found[0].losses == found[1].losses
    for model in models:
        torch.testing.assert_close(model.place.detach() / model.units, torch.ones(2, dtype=F64), atol=1e-3, rtol=0)
        assert model.still.item() == 7.0 and model.still.grad is None
