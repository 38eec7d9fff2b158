"""Random programs whose guides enumerate some states and sample others, and the bound as a plain sum over everything hidden."""

from __future__ import annotations

import itertools
import math
import random

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.ops.indexing import Vindex
from pyro.poutine.messenger import Messenger

import pplseq

F64 = torch.float64
MARKED = {"enumerate": "parallel"}
MOST, MOST_DRAWS = 250, 9  # joint assignments of a row, and of what a guide samples


class Guided:
    """One chain or two, the second under the first, of a random program. leaves: what it is differentiated by.

    roles: of each hidden site (chain, step): summed out in the "model", "enumerate" or "sample" in the guide, "seen".
    """

    def __init__(self, seed: int):
        rng, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.leaves: list[torch.Tensor] = []
        self.sizes = [rng.randint(1, 3) for _ in range(rng.choice([1, 1, 2]))]
        joint = math.prod(self.sizes)
        self.steps = rng.choice([t for t in range(1, 5) if joint**t <= MOST])
        self.rows, self.tones = rng.randint(1, 3), rng.randint(1, 2)
        self.subset = sorted(rng.sample(range(self.rows), rng.randint(1, self.rows)))
        self.loop = rng.choice(["pyro", "pyro", "pplseq", "range"])
        self.scale, self.normal = rng.choice([1.0, 1.0, 2.5]), rng.random() < 0.4
        self.lengths = torch.full((self.rows, 1), self.steps)
        if rng.random() < 0.5:
            self.lengths = torch.randint(0, self.steps + 1, (self.rows, 1), generator=self.generator)
        roles = rng.choice([("model", "enumerate"), ("model", "sample"), ("model", "enumerate", "sample"), ("enumerate",)])
        roles = [*roles, *roles, "seen"] if rng.random() < 0.3 else roles
        self.roles, draws = {}, 1
        for site in itertools.product(range(len(self.sizes)), range(self.steps)):
            role = rng.choice(roles)
            if role == "sample":
                draws *= self.sizes[site[0]]
                role = role if draws <= MOST_DRAWS else "model"
            self.roles[site] = role
        # what a guide draws depends on no row, so that all rows may be given the same draws
        by_row = "sample" not in self.roles.values() and rng.random() < 0.5
        self.seen = {site: torch.randint(self.sizes[site[0]], (self.rows, 1), generator=self.generator) for site in self.roles}
        self.starts = [self.draw(size) for size in self.sizes]
        self.tables = [self.draw(*self.sizes[:chain], size, size) for chain, size in enumerate(self.sizes)]
        self.emission = self.draw(self.sizes[-1], self.tones)
        self.guides, self.given = {}, {}
        for (chain, t), role in self.roles.items():
            if role in ("enumerate", "sample"):
                self.given[chain, t] = self.roles.get((chain, t - 1)) == role and rng.random() < 0.5
                lead = (self.sizes[chain],) if self.given[chain, t] else (self.rows, 1) if by_row else ()
                self.guides[chain, t] = self.draw(*lead, self.sizes[chain])
        self.by_row = by_row
        grid = (self.rows, self.steps, self.tones)
        self.bits = torch.randint(2, grid, generator=self.generator).double()
        self.numbers = torch.randn(grid, generator=self.generator, dtype=F64)

    def draw(self, *shape):
        self.leaves.append(torch.randn(shape, generator=self.generator, dtype=F64).requires_grad_())
        return self.leaves[-1]

    def __repr__(self):
        shown = ("sizes", "steps", "rows", "tones", "subset", "loop", "scale", "normal", "roles", "given", "by_row")
        return f"Guided({ {name: getattr(self, name) for name in shown} }, lengths {self.lengths.flatten().tolist()})"

    # ------------------------------------------------------------------------------------------------ the program
    def _plate(self):
        return pyro.plate("rows", self.rows, subsample=torch.tensor(self.subset), dim=-2)

    def _law(self, t: int, value):
        return dist.Normal(value, 0.8) if self.normal else dist.Bernoulli(logits=value)

    def model(self):
        markov = {"pyro": pyro.markov, "pplseq": pplseq.markov}.get(self.loop)
        steps = range(self.steps) if markov is None else markov(range(self.steps))
        data = self.numbers if self.normal else self.bits
        tones_plate = pyro.plate("tones", self.tones, dim=-1)
        with poutine.scale(scale=self.scale), self._plate() as rows:
            before = [None] * len(self.sizes)
            for t in steps:
                with poutine.mask(mask=t < self.lengths[rows]):
                    new = []
                    for chain, table in enumerate(self.tables):
                        logits = self.starts[chain]
                        if before[chain] is not None:
                            logits = Vindex(table)[(*new, before[chain])]
                        seen = self.seen[chain, t][rows] if self.roles[chain, t] == "seen" else None
                        new.append(pyro.sample(f"x{chain}_{t}", dist.Categorical(logits=logits), obs=seen, infer=MARKED))
                    with tones_plate:
                        value = self.emission[new[-1].squeeze(-1) if new[-1].dim() else new[-1]]
                        pyro.sample(f"y_{t}", self._law(t, value), obs=data[rows, t])
                before = new

    def guide(self):
        with poutine.scale(scale=self.scale), self._plate() as rows:
            values = {}
            for (chain, t), logits in self.guides.items():
                if self.given[chain, t]:
                    logits = Vindex(logits)[values[chain, t - 1]]
                elif self.by_row:
                    logits = logits[rows]
                marked = MARKED if self.roles[chain, t] == "enumerate" else None
                with poutine.mask(mask=t < self.lengths[rows]):
                    values[chain, t] = pyro.sample(f"x{chain}_{t}", dist.Categorical(logits=logits), infer=marked)

    def draws(self):
        """All that the guide may sample: (name -> value, its probability)."""
        sites = [site for site, role in self.roles.items() if role == "sample"]
        for values in itertools.product(*(range(self.sizes[chain]) for chain, _ in sites)):
            chosen = dict(zip(sites, values, strict=True))
            chance = sum((self._guide_score(site, chosen, 0) for site in sites), torch.zeros((), dtype=F64))
            yield {f"x{chain}_{t}": value for (chain, t), value in chosen.items()}, chance.detach().exp()

    # ------------------------------------------------------------------------------------------------ the truth
    def _guide_score(self, site, values, row):
        chain, t = site
        logits = self.guides[site]
        if self.given[site]:
            logits = logits[values[chain, t - 1]]
        elif self.by_row:
            logits = logits[row, 0]
        return logits.log_softmax(-1)[..., values[site]] if logits.dim() == 1 else _pick(logits, values[site])

    def _row(self, row: int):
        """E_q[log sum p - log q] of a row."""
        length = int(self.lengths[row])
        sites = [site for site in self.roles if site[1] < length]
        free = [site for site in sites if self.roles[site] != "seen"]
        free.sort(key=lambda site: self.roles[site] == "model")  # those of the guide are in front
        number = math.prod(self.sizes[chain] for chain, _ in free)
        every = torch.tensor([*itertools.product(*(range(self.sizes[chain]) for chain, _ in free))], dtype=torch.long)
        values = dict(zip(free, every.reshape(number, len(free)).unbind(1), strict=True))
        values |= {site: self.seen[site][row].expand(number) for site in sites if site not in values}
        score, guide = torch.zeros(number, dtype=F64), torch.zeros(number, dtype=F64)
        for chain, t in sites:
            above = [values[other, t] for other in range(chain)]
            logits = self.starts[chain] if t == 0 else self.tables[chain][(*above, values[chain, t - 1])]
            score = score + _pick(logits.expand(number, -1), values[chain, t])
            if (chain, t) in self.guides:
                law = self.guides[chain, t]
                law = law[values[chain, t - 1]] if self.given[chain, t] else law[row] if self.by_row else law
                guide = guide + _pick(law.expand(number, -1), values[chain, t])
        for t in range(length):
            law = self._law(t, self.emission[values[len(self.sizes) - 1, t]])
            score = score + law.log_prob((self.numbers if self.normal else self.bits)[row, t]).sum(-1)
        outer = math.prod(self.sizes[chain] for chain, t in free if (chain, t) in self.guides)
        score, guide = score.reshape(outer, -1).logsumexp(-1), guide.reshape(outer, -1)[:, 0]
        return (guide.exp() * (score - guide)).sum()

    def truth(self):
        """The expected loss."""
        return -self.scale * self.rows / len(self.subset) * sum(self._row(row) for row in self.subset)


def _pick(logits, value):
    return logits.log_softmax(-1).gather(-1, value.unsqueeze(-1)).squeeze(-1)


class Drawn(Messenger):
    """What a guide samples, chosen by hand."""

    def __init__(self, values: dict[str, int]):
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg):
        if msg["name"] in self.values:
            msg["value"] = torch.full(msg["fn"].batch_shape, self.values[msg["name"]])
            msg["done"] = True
