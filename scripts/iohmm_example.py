# %%
"""An input-output HMM on numbers, from data to forecasts, on a system whose parameters are known.

    python scripts/iohmm_example.py                          # a few seconds on one core
    python scripts/iohmm_example.py --picture effects.png    # needs the extra `plot`

Cells are marked `# %%`, for editors that run them one by one. A heat pump is in one of three modes: idle, heating, defrosting.
Each minute the outdoor temperature and the demand for heat (the inputs) move it from mode to mode, and in each mode the power
it draws (the output) depends on both in another way. Inputs and power are measured; the modes are not.
"""

from __future__ import annotations

import argparse
import itertools
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from pplseq.models import IOHMM

parser = argparse.ArgumentParser(description="An input-output HMM on numbers, from data to forecasts.")
parser.add_argument("--sequences", type=int, default=30)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--num-restarts", type=int, default=20)
parser.add_argument("--picture", help="file for transition probabilities as the demand varies")
options = parser.parse_args()
torch.manual_seed(0)

# %% The system: p(z_t = i | z_{t-1} = j, u_t) = softmax_i(W[j, i]' (u_t, 1)),  x_t = S[z_t]' (u_t, 1) + noise.
MODES = ("idle", "heating", "defrosting")
W = torch.tensor(  # [from, to, (temperature, demand, 1)]
    [
        [[0.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, -3.0]],
        [[0.0, -3.0, -1.0], [0.0, 0.0, 2.0], [-2.0, 0.0, -1.0]],
        [[1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ]
).double()
S = torch.tensor([[0.0, 0.1, 0.2], [-0.6, 1.0, 2.5], [0.3, -0.4, -1.5]]).double()  # [mode, (temperature, demand, 1)]
NOISE = 0.15

truth = IOHMM(3, num_inputs=2, outputs="gaussian", num_outputs=1, mealy=True)
truth.set_parameters(
    **{"transition_network.weight": W.transpose(1, 2), "emission_network.weight": S.unsqueeze(-1)},
    **{"initial_network.logits": torch.zeros(3).double()},
)
truth.noise.set(torch.full((3, 1, 1), NOISE**2).double())

# %% Data: sequences of different lengths, a tenth of the outputs lost.
lengths = [options.steps - n % 5 for n in range(options.sequences)]
inputs = [torch.randn(length, 2).double() for length in lengths]
outputs, modes, _ = truth.sample(inputs=inputs, seed=1)
complete = [x.clone() for x in outputs]
for x in outputs:
    x[torch.rand(len(x)) < 0.1] = torch.nan

# %% Fit: all restarts as one batch, the likeliest kept. The states come in any order; put them into that of the truth.
model = IOHMM(3, num_inputs=2, outputs="gaussian", num_outputs=1, mealy=True)
model.fit(outputs, inputs=inputs, num_restarts=options.num_restarts, seed=0)
print(model.history.restarts.summary())
slopes = model.emission_network.weight.detach().squeeze(-1)
order = list(min(itertools.permutations(range(3)), key=lambda p: float((slopes[list(p)] - S).square().sum())))
place = torch.tensor(order).argsort()  # state of the model -> mode

# %% Recovery: slopes and levels, noise, and the moves (as probabilities: softmax weights are only defined up to a shift).
print(f"{'mode':12}{'temperature':>24}{'demand':>24}{'level':>24}")
for mode, name in enumerate(MODES):
    cells = [f"{float(t):10.3f} (true {float(s):5.2f})" for t, s in zip(slopes[order[mode]], S[mode], strict=True)]
    print(f"{name:12}" + "".join(f"{cell:>24}" for cell in cells))
assert (slopes[order] - S).abs().max() < 0.1, "slopes are not recovered"
deviations = model.noise.covariances().detach().flatten().sqrt()
print("noise", [round(float(d), 3) for d in deviations], "true", NOISE)
assert (deviations - NOISE).abs().max() < 0.05, "the noise is not recovered"

demand = torch.linspace(-2, 2, 9).double()
found, true = (m.effect_curves(1, demand) for m in (model, truth))
found = found[:, order][:, :, order]
print(f"largest error of a transition probability, demand from -2 to 2: {float((found - true).abs().max()):.3f}")
assert (found - true).abs().mean() < 0.05, "moves are not recovered"

# %% States: filtered (what is known at the time), smoothed (what is known in the end), the best path.
known = torch.cat(modes)
answers = {
    "filter": torch.cat(model.filter(outputs, inputs=inputs).probs).argmax(-1),
    "smooth": torch.cat(model.smooth(outputs, inputs=inputs).probs).argmax(-1),
    "decode": torch.cat(model.decode(outputs, inputs=inputs)),
}
for name, states in answers.items():
    accuracy = float((place[states] == known).double().mean())
    print(f"{name}: {accuracy:.1%} of the modes are right")
    assert accuracy > 0.9

# %% Outputs: production knows the inputs only (open loop), prediction also all past outputs (closed loop).
x = torch.cat(complete)
for name, expected in (
    ("production", model.open_loop(inputs)),
    ("prediction", model.one_step(outputs, inputs=inputs)),
):
    error = float((torch.cat(expected.outputs) - x).square().mean().sqrt())
    print(f"{name}: root mean squared error {error:.3f}; deviation of the outputs {float(x.std()):.3f}")
    assert error < x.std()

# %% Forecast: what the plan for the next five minutes will draw.
plan = torch.tensor([[0.0, 2.0]] * 5).double()  # a mild evening, and everybody comes home
ahead = model.forecast([outputs[0]], inputs=[inputs[0]], future_inputs=plan)
for minute, (mean, variance) in enumerate(zip(ahead.means[0], ahead.covariances[0], strict=True), 1):
    print(f"in {minute} minutes: {float(mean):.2f} +- {float(variance.sqrt()):.2f}")
best = truth.forecast([outputs[0]], inputs=[inputs[0]], future_inputs=plan)  # by who knows the system
assert (ahead.means[0] - best.means[0]).abs().max() < 0.2, "the forecast is off"

# %% Effect curves: panels and lines in the order of MODES.
if options.picture:
    from pplseq.report.effects import plot_effects

    values = torch.linspace(-3, 3, 61).double()
    curves = model.effect_curves(1, values)[:, order][:, :, order]
    print("wrote", plot_effects(curves.numpy(), values.numpy(), "demand", options.picture))
