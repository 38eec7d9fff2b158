"""Programs in tensor code with sites marked ``infer={"enumerate": "parallel"}``, as users of Pyro write them."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.ops.indexing import Vindex

F64 = torch.float64
MARKED = {"enumerate": "parallel"}
B, T, D, K = 3, 5, 4, 3
LENGTHS = torch.tensor([5, 1, 3])


def notes():
    return (torch.rand(B, T, D, dtype=F64, generator=torch.Generator().manual_seed(3)) < 0.4).to(F64)


def table(name, *shape, event=1):
    """A random table of probabilities, learned."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    leaf = pyro.param(f"p_{name}", lambda: 2 * torch.randn(*shape, dtype=F64, generator=generator))
    return leaf.softmax(-1) if event else leaf.sigmoid()


def steps(lengths, history=1):
    for t in pyro.markov(range(int(lengths.max())), history=history):
        with poutine.mask(mask=(t < lengths).unsqueeze(-1)):
            yield t


def rows(batch_size=None):
    return pyro.plate("rows", B, batch_size, dim=-2)


def hmm(y, lengths=LENGTHS, batch_size=None, fixed=None):
    """fixed: (step, value) of a state that is no site."""
    trans, emit = table("trans", K, K), table("emit", K, D, event=0)
    tones = pyro.plate("tones", D, dim=-1)
    with rows(batch_size) as row:
        x = 0
        for t in steps(lengths[row]):
            if fixed is not None and t == fixed[0]:
                x = fixed[1]
            else:
                x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            with tones:
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x.squeeze(-1)]), obs=y[row, t])


def autoregressive(y, lengths=LENGTHS):
    """y[t] depends on y[t - 1]: another distribution for every row."""
    trans, emit = table("trans", K, K), table("emit", K, 2, D, event=0)
    tones_plate = pyro.plate("tones", D, dim=-1)
    with rows():
        x, before = 0, 0
        for t in steps(lengths):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            with tones_plate as tones:
                before = pyro.sample(f"y_{t}", dist.Bernoulli(emit[x, before, tones]), obs=y[:, t]).long()


def factorial(y, lengths=LENGTHS):
    one, two, emit = table("one", 2, 2), table("two", K, K), table("emit", 2, K, D, event=0)
    tones_plate = pyro.plate("tones", D, dim=-1)
    with rows():
        w, x = 0, 0
        for t in steps(lengths):
            w = pyro.sample(f"w_{t}", dist.Categorical(one[w]), infer=MARKED)
            x = pyro.sample(f"x_{t}", dist.Categorical(two[x]), infer=MARKED)
            with tones_plate as tones:
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[w, x, tones]), obs=y[:, t])


def coupled(y, lengths=LENGTHS):
    """Each of two chains looks at both states of the step before, and one at the other's new state."""
    one, two, emit = table("one", K, 2, K), table("two", K, 2, K, 2), table("emit", K, 2, D, event=0)
    w = x = torch.tensor(0)
    tones_plate = pyro.plate("tones", D, dim=-1)
    with rows():
        for t in steps(lengths):
            new = pyro.sample(f"w_{t}", dist.Categorical(Vindex(one)[w, x]), infer=MARKED)
            x = pyro.sample(f"x_{t}", dist.Categorical(Vindex(two)[w, x, new]), infer=MARKED)
            w = new
            with tones_plate as tones:
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[w, x, tones]), obs=y[:, t])


def second_order(y, lengths=LENGTHS):
    trans, emit = table("trans", K, K, K), table("emit", K, D, event=0)
    before = now = torch.tensor(0)
    tones = pyro.plate("tones", D, dim=-1)
    with rows():
        for t in steps(lengths, history=2):
            law = dist.Categorical(Vindex(trans)[before, now])
            before, now = now, pyro.sample(f"x_{t}", law, infer=MARKED)
            with tones:
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[now.squeeze(-1)]), obs=y[:, t])


def third_order(y, lengths=LENGTHS):
    trans, emit = table("trans", 2, 2, 2, 2), table("emit", 2, D, event=0)
    past = [torch.tensor(0)] * 3
    tones = pyro.plate("tones", D, dim=-1)
    with rows():
        for t in steps(lengths, history=3):
            past = [*past[1:], pyro.sample(f"x_{t}", dist.Categorical(Vindex(trans)[tuple(past)]), infer=MARKED)]
            with tones:
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[past[-1].squeeze(-1)]), obs=y[:, t])


def bernoulli_states(y, lengths=LENGTHS):
    """Two-valued states, logits, and emissions as events of a vector."""
    trans, emit = table("trans", 2, event=0), pyro.param("emit", lambda: torch.randn(2, D, dtype=F64))
    x = torch.zeros((), dtype=torch.long)
    with pyro.plate("rows", B, dim=-1):
        for t in pyro.markov(range(T)):
            with poutine.mask(mask=t < lengths):
                x = pyro.sample(f"x_{t}", dist.Bernoulli(trans[x]), infer=MARKED).long()
                pyro.sample(f"y_{t}", dist.Bernoulli(logits=emit[x]).to_event(1), obs=y[:, t])


def one_hot_states(y, lengths=LENGTHS):
    trans, means = table("trans", K, K), pyro.param("means", lambda: torch.randn(K, D, dtype=F64))
    x = torch.eye(K, dtype=F64)[0]
    with pyro.plate("rows", B, dim=-1):
        for t in pyro.markov(range(T)):
            with poutine.mask(mask=t < lengths):
                x = pyro.sample(f"x_{t}", dist.OneHotCategorical(x @ trans), infer=MARKED)
                pyro.sample(f"y_{t}", dist.Normal(x @ means, 0.5).to_event(1), obs=y[:, t])


def counts_and_words(y, lengths=LENGTHS):
    """A binomial state; a Poisson, a categorical and a factor at every step, some of them unobserved."""
    rates, emit = pyro.param("rates", lambda: torch.rand(K, dtype=F64) + 0.5), table("emit", K, 4)
    x = torch.zeros((), dtype=F64)
    with pyro.plate("rows", B, dim=-1):
        for t in pyro.markov(range(T)):
            with poutine.mask(mask=t < lengths):
                x = pyro.sample(f"x_{t}", dist.Binomial(2, probs=(1 + x) / 5), infer=MARKED)
                state = x.long()
                pyro.sample(f"n_{t}", dist.Poisson(rates[state]), obs=y[:, t].sum(-1))
                with poutine.mask(mask=torch.tensor([True, t != 2, False])):
                    pyro.sample(f"c_{t}", dist.Categorical(emit[state]), obs=(2 * y[:, t, 0] + y[:, t, 1]).long())
                pyro.factor(f"f_{t}", 0.3 * rates[state].log())


def switched(y, lengths=LENGTHS):
    """One global kind and one kind a row, which all steps look at."""
    kinds, trans, emit = table("kinds", 2), table("trans", 2, 2, K, K), table("emit", K, D, event=0)
    kind = pyro.sample("kind", dist.Categorical(kinds), infer=MARKED)
    tones = pyro.plate("tones", D, dim=-1)
    with rows():
        own = pyro.sample("own", dist.Categorical(kinds.flip(-1)), infer=MARKED)
        x = torch.tensor(0)
        for t in steps(lengths):
            x = pyro.sample(f"x_{t}", dist.Categorical(Vindex(trans)[kind, own, x]), infer=MARKED)
            with tones:
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x.squeeze(-1)]), obs=y[:, t])


def tree(y, lengths=LENGTHS):
    """A root, a child in every row and leaves in an inner plate."""
    root, child = table("root", K), table("child", K, K)
    emit = table("emit", K, K, event=1)
    z = pyro.sample("root", dist.Categorical(root), infer=MARKED)
    with rows():
        c = pyro.sample("child", dist.Categorical(child[z]), infer=MARKED)
        with pyro.plate("tones", D, dim=-1):
            leaf = pyro.sample("leaf", dist.Categorical(emit[c]), infer=MARKED)
            pyro.sample("y", dist.Normal(leaf.to(F64), 0.7), obs=y[:, 0])


def loop(y, lengths=LENGTHS):
    """The last state is tied to the first."""
    trans, emit = table("trans", K, K), table("emit", K, D, event=0)
    with rows():
        first = x = pyro.sample("x_0", dist.Categorical(trans[0]), infer=MARKED)
        for t in pyro.markov(range(1, T)):
            x = pyro.sample(f"x_{t}", dist.Categorical(trans[x]), infer=MARKED)
            with pyro.plate(f"tones_{t}", D, dim=-1):
                pyro.sample(f"y_{t}", dist.Bernoulli(emit[x.squeeze(-1)]), obs=y[:, t])
            if t == T - 1:
                pyro.factor("tie", (first == x).to(F64))


def discrete_hmm(y, lengths=LENGTHS):
    trans, emit = table("trans", K, K), table("emit", K, D, event=0)
    start = torch.eye(K, dtype=F64)[0].log()
    with pyro.plate("rows", B, dim=-1):
        seen = (torch.arange(T) < lengths.unsqueeze(-1)).unsqueeze(-1)
        law = dist.Bernoulli(emit.expand(B, T, K, D)).to_event(1).mask(seen)
        pyro.sample("y", dist.DiscreteHMM(start, trans.log(), law), obs=y)


PROGRAMS = {
    program.__name__: program
    for program in (
        hmm, autoregressive, factorial, coupled, second_order, third_order, bernoulli_states, one_hot_states,
        counts_and_words, switched, tree, loop, discrete_hmm,
    )
}  # fmt: skip
