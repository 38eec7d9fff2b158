"""One case for every recursion over Gaussian states: what it says, against one joint Gaussian and the textbook's Kalman filter.

A way is a class that inherits :class:`GaussianRecursion`; all tests of the case run for it.
"""

import functools

import pytest
import torch
from torch import Tensor

from support.oracles.gaussian import joint_posterior, kalman_loop
from support.tiny_gaussians import NUMBERS, SINGULAR, SITUATIONS, Case, tiny_case

EVERY = (*SITUATIONS, *NUMBERS)
PRECISE = ("precise", "exact", "exact missing")
ROUGH = {"precise": 1e-5}  # the textbook loses digits there


def answers(chain) -> dict[str, Tensor]:
    """All that a chain says of its states, zero behind a row's end."""
    predicted, filtered, smoothed = chain.predicted_states(), chain.filtered_states(), chain.smoothed_states()
    last, lag_one = chain.filtered(), chain.lag_one_covariances()
    return {
        "log_prob": chain.log_prob(), "tokens": chain.token_log_probs(),
        "predicted": predicted.means, "predicted spread": predicted.covariances.dense(),
        "filtered": filtered.means, "filtered spread": filtered.covariances.dense(),
        "smoothed": smoothed.means, "smoothed spread": smoothed.covariances.dense(),
        "lag one": lag_one.dense(), "lag one in sum": lag_one.total(),
        "last": last.mean, "last spread": last.covariance.expand(*last.mean.shape, last.mean.shape[-1]),
    }  # fmt: skip


def textbook(case: Case) -> dict[str, Tensor]:
    """The same, row by row. What is known of all numbers comes from one big Gaussian, which inverts no covariance of states."""
    (num_steps, num_rows, _), h, rows = case.observations.shape, case.mean.shape[-1], []
    for row in range(num_rows):
        length, sequence = int(case.lengths[row]), case.sequence(row)
        start = sequence.mean, sequence.covariance
        if not length:
            none = [case.mean.new_zeros(num_steps, *shape) for shape in ((), *3 * ((h,), (h, h)))]
            rows.append((case.mean.new_zeros(()), *none, case.mean.new_zeros(num_steps - 1, h, h), *start))
            continue
        truth = kalman_loop(sequence)
        log_prob, smoothed, lag_one = truth.log_prob, truth.smoothed, truth.lag_one
        if num_steps < 20:
            log_prob, mean, covariance = joint_posterior(sequence)
            blocks, steps = covariance.view(length, h, length, h), torch.arange(length)
            smoothed = mean.view(length, h), blocks[steps, :, steps]
            lag_one = blocks[steps[1:], :, steps[:-1]]
        steps = truth.token_log_probs, *truth.predicted, *truth.filtered, *smoothed
        padded = [torch.cat([part, part.new_zeros(num_steps - length, *part.shape[1:])]) for part in steps]
        lag_one = torch.cat([lag_one, lag_one.new_zeros(num_steps - length, h, h)])
        rows.append((log_prob, *padded, lag_one, truth.filtered[0][-1], truth.filtered[1][-1]))
    found = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    found.insert(9, found[8].sum((0, 1)))
    names = (
        "log_prob", "tokens", "predicted", "predicted spread", "filtered", "filtered spread", "smoothed", "smoothed spread",
        "lag one", "lag one in sum", "last", "last spread",
    )  # fmt: skip
    return dict(zip(names, found, strict=True))


def weighted(values: dict[str, Tensor]) -> Tensor:
    """A number in which every entry counts differently."""
    return sum(
        (value * torch.linspace(-1, 1.7 + k, value.numel(), dtype=value.dtype).view_as(value)).sum()
        for k, value in enumerate(values.values())
    )


def slopes(total: Tensor, case: Case, **options) -> list[Tensor]:
    if not total.requires_grad:
        return [torch.zeros_like(part) for part in case.parameters]
    found = torch.autograd.grad(total, case.parameters, allow_unused=True, **options)
    return [torch.zeros_like(part) if slope is None else slope for part, slope in zip(case.parameters, found, strict=True)]


@functools.cache
def wanted(situation: str) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
    """Answers, the gradient of log-probabilities, and that of all answers."""
    case = tiny_case(situation)
    values = textbook(case)
    gradient = slopes(weighted({"log_prob": values["log_prob"]}), case, retain_graph=True)
    return {name: value.detach() for name, value in values.items()}, gradient, slopes(weighted(values), case)


def close(found, expected, tolerance: float, name: str) -> None:
    assert found.shape == expected.shape, name
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * scale, msg=lambda text: f"{name}: {text}")


class GaussianRecursion:
    """Inherited by each way to run a Gaussian chain."""

    situations: tuple[str, ...] = EVERY  # that the way runs, and in which it is another one than those it inherits from
    tolerance = 1e-8

    def chain(self, case: Case, **options):
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc):
        if "situation" in metafunc.fixturenames:
            metafunc.parametrize("situation", self.situations)

    def test_answers_and_gradients(self, situation):
        case, (expected, of_log_prob, of_all) = tiny_case(situation), wanted(situation)
        tolerance = max(self.tolerance, ROUGH.get(situation, 0.0))
        chain = self.chain(case)
        with torch.no_grad():
            quiet = answers(chain)
        assert not any(value.requires_grad for value in quiet.values())
        found = answers(chain)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            for mine in (quiet, found):
                close(mine[name].detach(), value, tolerance, name)
        gradient = slopes(weighted({"log_prob": self.chain(case).log_prob()}), case)
        for k, (mine, value) in enumerate(zip(gradient, of_log_prob, strict=True)):
            close(mine, value, 10 * tolerance, f"gradient of log_prob, {k}")
        if len(case.observations) < 20 or situation not in SINGULAR:
            for k, (mine, value) in enumerate(zip(slopes(weighted(found), case), of_all, strict=True)):
                close(mine, value, 100 * tolerance, f"gradient of all, {k}")

    def test_single_precision(self, situation):
        if situation in PRECISE:
            return
        found = answers(self.chain(tiny_case(situation), gradients=False, dtype=torch.float32))
        for name, value in wanted(situation)[0].items():
            assert found[name].dtype == torch.float32, name
            close(found[name].double(), value, 2e-4, name)

    @pytest.mark.parametrize("rows", ["ragged missing", "own starts"])
    def test_second_derivatives(self, rows):
        case, found = tiny_case(rows, 6), []
        for log_prob in (self.chain(case).log_prob(), textbook(case)["log_prob"]):
            first = slopes(weighted({"log_prob": log_prob}), case, create_graph=True)
            found.append(slopes(weighted(dict(enumerate(first))), case))
        for k, (mine, value) in enumerate(zip(*found, strict=True)):
            close(mine, value, 1e-7, f"second derivative, {k}")

    def test_an_exact_observation_of_what_is_known_has_no_density(self):
        if "exact" in self.situations:
            case = tiny_case("exact", gradients=False)
            case.emission[1] = case.emission[0]
            with pytest.raises(ValueError, match="no density"):
                self.chain(case).log_prob()
