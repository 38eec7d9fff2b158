"""Small programs that the messenger's tests run."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroParam
from torch.distributions import constraints

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, StepTransition
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.markov import markov

F64 = torch.float64


class Tables:
    """Free parameters of a small HMM, and its specs."""

    def __init__(self, num_states=3, num_words=4, batch=(), seed=5):
        generator = torch.Generator().manual_seed(seed)
        shapes = ((num_states,), (num_states, num_states), (num_states, num_words))
        # spread out, so that best paths visit several states
        self.leaves = [(2 * torch.randn(*batch, *s, generator=generator, dtype=F64)).requires_grad_() for s in shapes]
        self.weight = torch.randn(num_states, num_states, 2, generator=generator, dtype=F64).requires_grad_()

    def logs(self):
        return [leaf.log_softmax(-1) for leaf in self.leaves]

    def specs(self):
        start, table, emit = self.logs()
        return DenseTransition(start, table), CategoricalEmission(emit)

    def step_specs(self):
        start, _, emit = self.logs()

        def matrix(u):
            return (self.leaves[1] + (self.weight * u[..., None, None, :]).sum(-1)).log_softmax(-1)

        return StepTransition(start, matrix, start.shape[-1]), CategoricalEmission(emit)

    def gradients(self, loss):
        return torch.autograd.grad(loss, [*self.leaves, self.weight], allow_unused=True, retain_graph=True)


def program(x, specs, *, lengths=None, inputs=None, seen=None, states=None, start=None, loop=markov, num_steps=None):
    """An HMM over rows (B, T), in every option that a chain has."""
    transition, emission = specs
    z = start
    with pyro.plate("sequences", len(x), dim=-1):
        for t in loop(range(x.shape[1] if num_steps is None else num_steps)):
            with poutine.mask(mask=True if lengths is None else t < lengths):
                z = pyro.sample(
                    f"z_{t}",
                    transition(z, inputs=None if inputs is None else inputs[:, t]),
                    obs=None if states is None else states[:, t],
                )
                with poutine.mask(mask=True if seen is None else seen[:, t]):
                    pyro.sample(f"x_{t}", emission(z), obs=x[:, t])


class SmallHMM(PyroModule):
    """An HMM whose parameters are PyroParams, read in the program or only when the chain is computed (``lazy``)."""

    def __init__(self, num_states=3, num_words=4, lazy=False):
        super().__init__()
        self.lazy = lazy
        generator = torch.Generator().manual_seed(0)
        shapes = {"start": (num_states,), "table": (num_states, num_states), "emit": (num_states, num_words)}
        for name, shape in shapes.items():
            value = torch.randn(shape, generator=generator, dtype=F64).softmax(-1)
            setattr(self, name, PyroParam(value, constraint=constraints.simplex))

    def forward(self, x):
        if self.lazy:
            transition, emission = LazyTransition(self), CategoricalEmission(self.emit.log())
        else:
            transition, emission = (
                DenseTransition(self.start.log(), self.table.log()),
                CategoricalEmission(self.emit.log()),
            )
        program(x, (transition, emission))


class LazyTransition(DenseTransition):
    """Reads its module's parameters only when somebody asks for numbers."""

    def __init__(self, module):
        self.module = module
        self.num_states, self.batch_shape, self.device = 3, torch.Size(), torch.device("cpu")

    @property
    def initial(self):
        return self.module.start.log()

    @property
    def matrix(self):
        return self.module.table.log()


def traced_log_prob(model, *args, vectorize=True, **kwargs):
    """log p(x) of a program run under the messenger, plates, masks and scales included."""
    handler = BlockedEnum(vectorize=vectorize)
    return poutine.trace(handler(model)).get_trace(*args, **kwargs).log_prob_sum(), handler


def words(batch=3, steps=4, num_words=4, seed=0):
    return torch.randint(num_words, (batch, steps), generator=torch.Generator().manual_seed(seed))


def mixture(x, tables):
    """Each row comes from one of C HMMs."""
    transition, emission = tables
    with pyro.plate("sequences", len(x), dim=-1):
        c = pyro.sample("c", dist.Categorical(torch.tensor([0.3, 0.7], dtype=F64)), infer={"enumerate": "parallel"})
        z = None
        step_transition = DenseTransition(transition.initial[c], transition.matrix[c])
        step_emission = CategoricalEmission(emission.log_probs[c])
        for t in markov(range(x.shape[1])):
            z = pyro.sample(f"z_{t}", step_transition(z))
            pyro.sample(f"x_{t}", step_emission(z), obs=x[:, t])
