"""Random programs in tensor code with sites marked ``infer={"enumerate": "parallel"}``, and the sum over all that is hidden.

The truth runs the same program once more, without any enumeration: every hidden site is given all joint assignments at once,
along dimensions left of all plates.
"""

from __future__ import annotations

import itertools
import math
import random
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.ops.indexing import Vindex

import pplseq

F64 = torch.float64
MARKED = {"enumerate": "parallel"}
MOST = 260  # joint assignments of a row
EMISSIONS = (
    "bernoulli", "bernoulli of data", "bernoulli logits", "categorical", "categorical of data", "poisson", "normal",
    "normal of tones", "normal of data", "events", "code", "both steps", "factor", "one table", "tensor code", "weights",
    "late",
)  # fmt: skip


class Late(dist.transforms.Transform):
    """A shift looked up when it is asked for."""

    domain = codomain = dist.constraints.real
    bijective = True

    def __init__(self, table, state):
        super().__init__()
        self.table, self.state = table, state

    def _call(self, x):
        return x + self.table[self.state]

    def _inverse(self, y):
        return y - self.table[self.state]

    def log_abs_det_jacobian(self, x, y):
        return torch.zeros_like(x)


class Mixed(dist.TorchDistribution):
    """Two parts whose weights have another shape than it says, and may."""

    arg_constraints = {}
    support = dist.constraints.real

    def __init__(self, weights, scale):
        self.weights, self.scale = weights, scale
        super().__init__(scale.shape, validate_args=False)

    def expand(self, batch_shape, _instance=None):
        return Mixed(self.weights, self.scale.expand(batch_shape))

    def log_prob(self, value):
        parts = [dist.Normal(mean, 0.5 + self.scale.sigmoid()).log_prob(value) for mean in (-1.0, 1.0)]
        return (self.weights.log_softmax(-1) + torch.stack(parts, -1)).logsumexp(-1)


class Marked:
    """A random program. leaves: what it is differentiated by."""

    def __init__(self, seed: int):
        rng = self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.leaves: list[torch.Tensor] = []
        self.num_chains = rng.choice([1, 1, 1, 2, 2])
        self.history = rng.choice([1, 1, 1, 2]) if self.num_chains == 1 else 1
        self.kind = rng.choice(["probs", "logits", "logits", "bernoulli", "one hot"])
        if self.kind in ("bernoulli", "one hot") and (self.num_chains > 1 or self.history > 1):
            self.kind = "probs"
        self.sizes = [2 if self.kind == "bernoulli" else rng.randint(1, 3) for _ in range(self.num_chains)]
        self.own_kind, self.global_kind = rng.random() < 0.15, rng.random() < 0.15
        joint = math.prod(self.sizes)
        fits = [t for t in range(1, 5) if joint**t * (2 if self.own_kind else 1) <= MOST]
        self.rows, self.steps, self.tones = rng.randint(1, 3), rng.choice(fits), rng.randint(1, 3)
        self.loop = rng.choice(["pyro", "pyro", "pplseq", "pplseq", "range"])
        self.coupled = rng.randint(0, 2)
        self.scale = rng.choice([1.0, 1.0, 2.5])
        self.closed = rng.random() < 0.25 and self.kind == "logits"
        self.per_step = rng.random() < 0.2
        self.start = rng.choice(["zero", "zero", "table", "belief"]) if self.history == 1 else "zero"
        # plain local variables, so that a loop may be run once for all of its steps
        self.flat = self.kind in ("probs", "logits") and self.history == 1 and rng.random() < 0.6
        self.start = "zero" if self.flat else self.start
        self.all_seen = self.flat and self.num_chains == 2 and rng.random() < 0.15
        self.latent = rng.random() < 0.2
        self.emits = rng.choices(EMISSIONS, k=rng.choice([1, 1, 2]))
        self.hides = rng.choice([None, None, "now", "before", "kind"])  # whose value masks the first emission
        self.expand, self.percent = rng.random() < 0.2, rng.random() < 0.2
        self.infer = {**MARKED, "expand": True} if self.expand else MARKED
        self.chances()
        self.lengths = self.missing = None
        if rng.random() < 0.5:
            self.lengths = torch.randint(0, self.steps + 1, (self.rows, 1), generator=self.generator)
        if rng.random() < 0.35:
            tones = rng.choice([1, self.tones])
            self.missing = torch.rand(self.rows, self.steps, tones, generator=self.generator) < 0.35
        self.seen_states = {}  # step -> (rows, 1) observed states of the first chain
        if self.all_seen:
            self.states = torch.randint(self.sizes[0], (self.rows, self.steps, 1), generator=self.generator)
            self.seen_states = dict(enumerate(self.states.unbind(1)))
        elif rng.random() < 0.25 and self.kind in ("probs", "logits") and not self.flat:
            for step in rng.sample(range(self.steps), rng.randint(1, self.steps)):
                self.seen_states[step] = torch.randint(self.sizes[0], (self.rows, 1), generator=self.generator)

    def draw(self, *shape):
        value = torch.randn(shape, generator=self.generator, dtype=F64).requires_grad_()
        self.leaves.append(value)
        return value

    def chances(self):
        """All tables, and the data."""
        lead = (self.steps,) if self.per_step else ()
        kinds = (2,) * (self.own_kind + self.global_kind)
        self.tables, self.starts, sizes = [], [], self.sizes
        for chain, size in enumerate(sizes):
            given = (size,) * self.history
            if chain and self.coupled:
                given = (sizes[0], size) if self.coupled == 1 else (sizes[0], size, sizes[0])
            table = self.draw(*lead, *kinds, *given, *(() if self.kind == "bernoulli" else (size,)))
            shut = torch.rand(table.shape, generator=self.generator) < (0.2 if self.closed else 0.0)
            shut[..., -1:] = False
            self.tables.append((table, shut))
            rows = (self.rows, 1) if self.start == "belief" else ()
            self.starts.append(self.draw(*rows, *(() if self.kind == "bernoulli" else (size,))))
        K, V = sizes[-1], 3
        self.parts = []
        for what in self.emits:
            shapes = {
                "bernoulli of data": (K, 2, self.tones), "categorical": (K, self.tones, V), "categorical of data": (K, 2, V),
                "both steps": (K, K, self.tones), "one table": (*sizes, self.tones), "poisson": (K,), "factor": (K,),
                "normal of data": (K, 2), "code": (K,), "tensor code": (K, self.tones), "weights": (K, 1, 2), "late": (K,),
            }  # fmt: skip
            self.parts.append((what, self.draw(*shapes.get(what, (K, self.tones))), self.draw(K, self.tones)))
        grid = (self.rows, self.steps, self.tones)
        self.bits = torch.randint(2, grid, generator=self.generator)
        self.words = torch.randint(V, grid, generator=self.generator)
        self.numbers = torch.randn(grid, generator=self.generator, dtype=F64)
        self.kinds = [self.draw(2) for _ in kinds]
        self.theta = self.draw() if self.latent else None

    def __repr__(self):
        shown = {k: v for k, v in vars(self).items() if not isinstance(v, (torch.Generator, random.Random, list))}
        return f"Marked({shown | {'sizes': self.sizes, 'emits': self.emits}})"

    # ------------------------------------------------------------------------------------------------ the program
    def law(self, table):
        if self.kind == "bernoulli":
            return dist.Bernoulli(logits=table)
        if self.kind == "one hot":
            return dist.OneHotCategorical(logits=table)
        return dist.Categorical(logits=table) if self.kind == "logits" else dist.Categorical(table.softmax(-1))

    def next_state(self, chain, t, before, new, kinds):
        """The distribution of a chain's state."""
        first = t == 0
        if first and self.start != "zero":
            return self.law(self.starts[chain])
        table = self.open_table(chain)
        table = table[t] if self.per_step else table
        past = before[chain]
        if chain and self.coupled:
            past = (before[0][-1], past[-1]) if self.coupled == 1 else (before[0][-1], past[-1], new[0])
        if self.kind == "one hot" and not first:
            return self.law((past[-1].unsqueeze(-1) * (Vindex(table)[tuple(kinds)] if kinds else table)).sum(-2))
        if self.kind == "one hot":
            past = (torch.tensor(0),)
        if self.kind == "bernoulli":
            past = tuple(x.long() for x in past)
        index = (*kinds, *past)
        return self.law(at(table, index))

    def model(self):
        theta = pyro.sample("theta", dist.Normal(torch.zeros((), dtype=F64), 1.0)) if self.latent else None
        markov = {"pyro": pyro.markov, "pplseq": pplseq.markov}.get(self.loop)
        steps = range(self.steps)
        if markov is not None:
            steps = markov(steps, history=self.history) if self.history > 1 else markov(steps)
        kinds = []
        with poutine.scale(scale=self.scale):
            if self.global_kind:
                kinds.append(pyro.sample("kind", dist.Categorical(logits=self.kinds[0]), infer=self.infer))
            tones_plate = pyro.plate("tones", self.tones, dim=-1)
            with pyro.plate("rows", self.rows, dim=-2) as rows:
                if self.own_kind:
                    kinds.append(pyro.sample("own", dist.Categorical(logits=self.kinds[-1]), infer=self.infer))
                if self.flat:
                    self.flat_body(steps, rows, tones_plate, kinds, theta)
                    return
                before = [(torch.tensor(0),) * self.history for _ in self.sizes]
                for t in steps:
                    with nullcontext() if self.lengths is None else poutine.mask(mask=t < self.lengths):
                        new = []
                        for chain in range(self.num_chains):
                            seen = self.seen_states.get(t) if chain == 0 and isinstance(t, int) else None
                            law = self.next_state(chain, t, before, new, kinds)
                            new.append(pyro.sample(f"x{chain}_{t}", law, obs=seen, infer=self.infer))
                        for number, part in enumerate(self.parts):
                            self.emit(number, part, t, rows, tones_plate, new, before, theta, kinds)
                    before = [(*past[1:], x) for past, x in zip(before, new, strict=True)]

    def flat_body(self, steps, rows, tones_plate, kinds, theta):
        w = x = torch.tensor(0)
        tables = [self.open_table(chain) for chain in range(self.num_chains)]
        for t in steps:
            with nullcontext() if self.lengths is None else poutine.mask(mask=t < self.lengths):
                now = [table[t] if self.per_step else table for table in tables]
                if self.num_chains == 1:
                    old, x = x, pyro.sample(f"x0_{t}", self.law(at(now[0], (*kinds, x))), infer=self.infer)
                    states = [x]
                else:
                    seen = self.states[rows, t] if self.all_seen else None
                    new = pyro.sample(f"x0_{t}", self.law(at(now[0], (*kinds, w))), obs=seen, infer=self.infer)
                    given = (x,) if not self.coupled else (w, x) if self.coupled == 1 else (w, x, new)
                    old, x = x, pyro.sample(f"x1_{t}", self.law(at(now[1], (*kinds, *given))), infer=self.infer)
                    w = new
                    states = [w, x]
                for number, part in enumerate(self.parts):
                    self.emit(number, part, t, rows, tones_plate, states, [(old,)], theta, kinds)
                del old  # which the next step does not read

    def open_table(self, chain):
        table, shut = self.tables[chain]
        return table.masked_fill(shut, -math.inf) if self.closed else table

    def emit(self, number, part, t, rows, tones_plate, new, before, theta, kinds):
        name = self.name(f"y{number}_", t)
        x, shift = new[-1], 0.0 if theta is None else 0.3 * theta
        if self.kind == "one hot":
            x = x.argmax(-1)
        elif self.kind == "bernoulli":
            x = x.long()
        past = before[-1][-1]
        past = past.argmax(-1) if self.kind == "one hot" and past.dim() else past.long()
        bits, words, numbers = self.bits[rows, t], self.words[rows, t], self.numbers[rows, t]
        missing = None if self.missing is None else poutine.mask(mask=~self.missing[rows, t])
        by_state = {"now": x, "before": past, "kind": kinds[-1] if kinds else x}.get(self.hides if number == 0 else None)
        with nullcontext() if by_state is None else poutine.mask(mask=by_state != 1):
            self.emission(name, part, (t, rows, tones_plate), (x, past, new), shift, (bits, words, numbers), missing)

    def emission(self, name, part, place, states, shift, data, missing):
        (bits, words, numbers), (t, rows, tones_plate), (x, past, new) = data, place, states
        what, table, scales = part
        flat = x.squeeze(-1) if x.dim() else x
        if what == "factor":
            with nullcontext() if self.missing is None or self.missing.shape[-1] > 1 else missing:
                return pyro.factor(name, 0.5 * table[x] + shift)
        if what == "events":  # one vector, of no inner plate
            seen = True if self.missing is None else ~self.missing[rows, t].any(-1, keepdim=True)
            with poutine.mask(mask=seen):
                law = dist.Normal(table[x] + shift, 0.5 + scales[x].sigmoid()).to_event(1)
                return pyro.sample(name, law, obs=numbers.unsqueeze(-2))
        with tones_plate as tones, nullcontext() if missing is None else missing:
            law, obs = {
                "bernoulli": lambda: (dist.Bernoulli(table[flat].sigmoid()), bits.double()),
                "bernoulli logits": lambda: (dist.Bernoulli(logits=table[flat] + shift), bits.double()),
                "bernoulli of data": lambda: (dist.Bernoulli(table.sigmoid()[x, 1 - bits, tones]), bits.double()),
                "both steps": lambda: (dist.Bernoulli(Vindex(table.sigmoid())[past, x, tones]), bits.double()),
                "one table": lambda: (dist.Bernoulli(Vindex(table.sigmoid())[(*self.indices(new), tones)]), bits.double()),
                "categorical": lambda: (dist.Categorical(table.softmax(-1)[flat]), words),
                "categorical of data": lambda: (dist.Categorical(logits=table[x, bits]), words),
                "poisson": lambda: (dist.Poisson(table.exp()[x]), words.double()),
                "normal": lambda: (dist.Normal(table[flat], 0.5 + scales[flat].sigmoid()), numbers),
                "normal of tones": lambda: (dist.Normal(table[flat] + shift, 0.7), numbers),
                "normal of data": lambda: (dist.Normal(table[x, bits], 0.9), numbers),
                "code": lambda: (dist.Normal(table.tanh()[x] * (x + 1) + shift, 0.7), numbers),
                # a sum over two parts in no plate of its own, whose weights the state chooses
                "weights": lambda: (Mixed(table.squeeze(-2)[x], scales[0, 0].expand(numbers.shape)), numbers),
                "late": lambda: (
                    dist.TransformedDistribution(dist.Normal(shift + 0 * numbers, 1.0), [Late(table, x)]), numbers,
                ),
                "tensor code": lambda: (dist.Laplace(table[flat] + shift, 0.5 + x.double()), numbers),
            }[what]()  # fmt: skip
            pyro.sample(name, law, obs=obs)

    def name(self, what, t):
        return what + "%d" % t if self.percent else f"{what}{t}"  # noqa: UP031

    def indices(self, new):
        return [x.argmax(-1) if self.kind == "one hot" else x.long() for x in new]

    def guide(self):
        if self.latent:
            pyro.sample("theta", dist.Delta(self.theta))

    # ------------------------------------------------------------------------------------------------ the truth
    def assignments(self):
        """Site -> its values in all joint assignments, (N, 1, 1[, K]) inside of rows, (2, 1, 1, 1) outside."""
        inside = {"own": 2} if self.own_kind else {}
        for t, (chain, size) in itertools.product(range(self.steps), enumerate(self.sizes)):
            if chain or t not in self.seen_states:
                inside[f"x{chain}_{t}"] = size
        every = torch.tensor(list(itertools.product(*map(range, inside.values()))), dtype=torch.long)
        every = every.reshape(math.prod(inside.values()), len(inside))
        values = {}
        for place, (name, size) in enumerate(inside.items()):
            value = every[:, place].reshape(-1, 1, 1)
            if self.kind == "one hot" and name != "own":
                value = torch.nn.functional.one_hot(value, size).double()
            values[name] = value.double() if self.kind == "bernoulli" and name != "own" else value
        if self.global_kind:
            values["kind"] = torch.arange(2).reshape(2, 1, 1, 1)
        return values

    def joint(self):
        """(C, N, rows) log p of every assignment of a row, given each kind of all rows; log p of kinds (C,) and of theta."""
        data = self.assignments()
        if self.latent:
            data["theta"] = self.theta
        with poutine.trace() as tracer, poutine.condition(data=data):
            self.model()
        total, kinds = torch.zeros(1, 1, self.rows, dtype=F64), torch.zeros(1, dtype=F64)
        for name, site in tracer.trace.nodes.items():
            if site["type"] != "sample" or name in ("rows", "tones", "theta"):
                continue
            score = site["fn"].log_prob(site["value"])
            if name == "kind":
                kinds = score.reshape(-1)
                continue
            hidden = name[0] in "xo"
            if not hidden and site["mask"] is not None:
                score = torch.where(torch.as_tensor(site["mask"]), score, 0.0)
            elif name in {f"x0_{t}" for t in self.seen_states} and site["mask"] is not None:
                score = torch.where(torch.as_tensor(site["mask"]), score, 0.0)
            tones = self.tones if any(f.name == "tones" for f in site["cond_indep_stack"]) else 1
            score = score.reshape((1,) * (4 - score.dim()) + score.shape).expand(-1, -1, self.rows, tones)
            total = total + score.sum(-1)
        return total, kinds

    def truth(self):
        """The loss."""
        total, kinds = self.joint()
        value = self.scale * _total(kinds + _total(total, 1).sum(-1), 0)
        return -(value + dist.Normal(0.0, 1.0).log_prob(self.theta) if self.latent else value)


def at(table, index):
    return table[index[0]] if len(index) == 1 else Vindex(table)[index]


def _total(scores, dim):
    possible = scores.detach().amax(dim, keepdim=True) > -math.inf
    found = torch.logsumexp(torch.where(possible, scores, 0.0), dim)
    return torch.where(possible.squeeze(dim), found, -math.inf)
