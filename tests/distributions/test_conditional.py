"""Emissions given inputs: recorded, vectorised, Pyro's own enumeration and all paths say the same, gradients included."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from support.grids import grid
from support.oracles.discrete import enumerate_paths, forward_loop, generic_log_prob

from pplseq.distributions.conditional import BernoulliEmission, ConditionalEmission, CoordinateEmission
from pplseq.distributions.dense import CategoricalEmission, DenseTransition, GaussianEmission, StepTransition
from pplseq.distributions.state import Belief
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.infer.programs.markov import markov

close = torch.testing.assert_close
F64 = torch.float64
LENGTHS = torch.tensor([4, 1, 3])
SEEN = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]]).bool()


class Weights:
    """A small input-output HMM: inputs (B, T, 2) for transitions and others, (B, T, 3) or symbols, for emissions."""

    def __init__(self, family, num_states=3, symbols=False, shared=False, batch=3, steps=4):
        random = torch.Generator().manual_seed(3)
        self.family, self.num_states, self.symbols, self.shared = family, num_states, symbols, shared
        self.num_out = 4 if family == "categorical" else 2

        def normal(*shape):
            return torch.randn(*shape, generator=random, dtype=F64)

        self.initial = normal(num_states).requires_grad_()
        self.moves = normal(num_states, num_states, 2).requires_grad_()
        self.outputs = (2 * normal(num_states, self.num_out, 3)).requires_grad_()
        self.u = normal(batch, steps, 2)
        self.v = torch.randint(3, (batch, steps), generator=random) if symbols else normal(batch, steps, 3)
        if family == "categorical":
            self.y = torch.randint(4, (batch, steps), generator=random)
        elif family == "bernoulli":
            self.y = torch.randint(2, (batch, steps, 2), generator=random).to(F64)
        else:
            self.y = normal(batch, steps, 2)

    @property
    def leaves(self):
        return [self.initial, self.moves, self.outputs]

    def matrix(self, u):
        return (self.moves * u[..., None, None, :]).sum(-1).log_softmax(-1)

    def output(self, v):
        if self.symbols:
            values = self.outputs.movedim(-1, 0)[v]
        else:
            values = (self.outputs * v[..., None, None, :]).sum(-1)
        if self.family == "categorical":
            return CategoricalEmission(values.log_softmax(-1))
        if self.family == "bernoulli":
            return BernoulliEmission(values)
        return GaussianEmission(values, torch.ones_like(values))

    def specs(self):
        start = self.initial.log_softmax(-1)
        transition = StepTransition(start, self.matrix, self.num_states)
        if self.shared:
            transition = DenseTransition(start, self.moves[..., 0].log_softmax(-1))
        words = dict(num_words=4) if self.family == "categorical" else dict(event_shape=(2,))
        emission = ConditionalEmission(self.output, self.num_states, input_dims=int(not self.symbols), **words)
        return transition, emission

    def program(self, lengths=None, seen=None, start=None, loop=markov, obs=True):
        transition, emission = self.specs()
        z = start
        with pyro.plate("sequences", len(self.y), dim=-1):
            for t in loop(range(self.y.shape[1])):
                with poutine.mask(mask=True if lengths is None else t < lengths):
                    z = pyro.sample(f"z_{t}", transition(z, inputs=None if self.shared else self.u[:, t]))
                    with poutine.mask(mask=True if seen is None else seen[:, t]):
                        pyro.sample(f"y_{t}", emission(z, inputs=self.v[:, t]), obs=self.y[:, t] if obs else None)

    def chain(self, **options):
        inputs = None if self.shared else self.u.movedim(1, 0)
        return build_chain(
            *self.specs(), self.y.movedim(1, 0), inputs=inputs, emission_inputs=self.v.movedim(1, 0), **options
        )

    def factors(self, row, length=None, seen=None):
        """Of one row, step by step: initial (Z,), matrices (T-1, Z, Z), emit (T, Z)."""
        steps = range(self.y.shape[1] if length is None else length)
        emit = [self.output(self.v[row : row + 1, t]).log_likelihood(self.y[row : row + 1, t])[0] for t in steps]
        if seen is not None:
            emit = [e if seen[row, t] else torch.zeros_like(e) for t, e in enumerate(emit)]
        if self.shared:
            matrices = [self.moves[..., 0].log_softmax(-1)] * (len(emit) - 1)
        else:
            matrices = [self.matrix(self.u[row, t]) for t in steps][1:]
        matrices = torch.stack(matrices) if matrices else emit[0].new_zeros(0)
        return self.initial.log_softmax(-1), matrices, torch.stack(emit)


def traced(weights, vectorize=True, **options):
    handler = BlockedEnum(vectorize=vectorize)
    return poutine.trace(handler(weights.program)).get_trace(**options).log_prob_sum(), handler


def equal_with_gradients(weights, values):
    first, *others = (
        (value, torch.autograd.grad(value, weights.leaves, allow_unused=True, retain_graph=True)) for value in values
    )
    for value, gradients in others:
        close(value, first[0])
        for one, other in zip(gradients, first[1], strict=True):
            close(torch.zeros(1) if one is None else one, torch.zeros(1) if other is None else other)


FAMILIES = {
    "categorical": dict(family="categorical"),
    "bernoulli": dict(family="bernoulli"),
    "gaussian": dict(family="gaussian"),
    "symbols": dict(family="categorical", symbols=True),
    "shared matrix": dict(family="gaussian", shared=True),
    "one state": dict(family="bernoulli", num_states=1),
    "one step": dict(family="categorical", steps=1),
}
SITUATIONS = {
    "plain": dict(),
    "ragged": dict(lengths=LENGTHS),
    "missing": dict(seen=SEEN),
    "missing and ragged": dict(lengths=LENGTHS, seen=SEEN),
}


@grid({"family": FAMILIES, "situation": SITUATIONS}, times=2)
def test_all_forms_agree(family, situation):
    weights, options = Weights(**FAMILIES[family]), dict(SITUATIONS[situation])
    if weights.y.shape[1] == 1:
        options = {name: value.clamp(max=1) if name == "lengths" else value[:, :1] for name, value in options.items()}
    values = [traced(weights, vectorize, **options)[0] for vectorize in (True, False)]
    values.append(traced(weights, loop=pyro.markov, **options)[0])
    values.append(generic_log_prob(weights.program, **options))
    lengths = options.get("lengths", torch.tensor([weights.y.shape[1]] * 3)).tolist()
    rows = [weights.factors(row, length, options.get("seen")) for row, length in enumerate(lengths)]
    values.append(sum(torch.logsumexp(enumerate_paths(*row)[1], 0) for row in rows))
    values.append(sum(forward_loop(*row) for row in rows))
    equal_with_gradients(weights, values)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_posterior_is_that_of_all_paths(family):
    weights = Weights(**FAMILIES[family])
    chain = weights.chain()
    paths, best = chain.viterbi()
    for row in range(3):
        every, score = enumerate_paths(*weights.factors(row))
        close(best[row], score.max().detach())
        assert torch.equal(paths[row], every[score.argmax()])
        one_hot = torch.nn.functional.one_hot(every, weights.num_states).to(F64)
        close(chain.marginals().probs[row], torch.einsum("p,ptz->tz", score.softmax(0).detach(), one_hot))


def test_a_start_belief():
    weights = Weights("gaussian")
    belief = Belief(None, torch.tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25]], dtype=F64).log())
    values = [traced(weights, vectorize, start=belief)[0] for vectorize in (True, False)]
    values.append(generic_log_prob(weights.program, start=belief))
    values.append(weights.chain(start=belief).log_prob().sum())
    equal_with_gradients(weights, values)


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_forward(family):
    weights = Weights(**FAMILIES[family])
    trace = poutine.trace(weights.program).get_trace(obs=False)
    drawn = torch.stack([trace.nodes[f"y_{t}"]["value"] for t in range(weights.y.shape[1])], 1)
    assert drawn.shape == weights.y.shape
    # an observation that nobody gave is missing
    close(traced(weights, obs=False)[0], torch.zeros((), dtype=F64))


def test_missing_words_and_the_next_word():
    weights = Weights("categorical")
    chain = weights.chain(seen=SEEN.T)
    got = chain.missing_words()
    for (row, step), words in zip(got.places.tolist(), got.log_probs, strict=True):
        scores = []
        for word in range(4):
            filled = Weights("categorical")
            filled.y[row, step] = word
            scores.append(
                filled.chain(
                    seen=(SEEN.T.clone().index_put((torch.tensor(step), torch.tensor(row)), torch.tensor(True)))
                ).log_prob()[row]
            )
        close(words, torch.stack(scores).log_softmax(0).detach())
    assert ((chain.sample_words(5) == weights.y) | ~SEEN).all()
    u, v = weights.u[:, 0], weights.v[:, 1]
    words = chain.next(u, v).word_log_probs
    states = (chain.filtered().log_probs.exp().unsqueeze(-1) * weights.matrix(u).exp()).sum(-2)
    close(words.exp(), (states.unsqueeze(-1) * weights.output(v).log_probs.exp()).sum(-2).detach())
    with pytest.raises(ValueError, match="emission_inputs: this emission depends on inputs"):
        chain.next(u)


def test_inputs_where_none_are_taken_and_none_where_they_are():
    weights = Weights("categorical")
    _, emission = weights.specs()
    with pytest.raises(ValueError, match="ConditionalEmission takes inputs=v"):
        emission(torch.tensor([0]))
    plain = CategoricalEmission(torch.full((3, 4), 0.25, dtype=F64).log())
    with pytest.raises(ValueError, match="CategoricalEmission takes no inputs"):
        plain(torch.tensor([0]), inputs=torch.zeros(1))
    with pytest.raises(ValueError, match="emission_inputs: this CategoricalEmission depends on none"):
        build_chain(weights.specs()[0], plain, weights.y.T, inputs=weights.u.movedim(1, 0), emission_inputs=weights.v)
    with pytest.raises(ValueError, match="must give an emission of 3 states"):
        ConditionalEmission(lambda v: plain, 3).at(torch.zeros(2, 3))


def test_certain_bits():
    emission = BernoulliEmission.from_probs(torch.tensor([[0.0, 1.0], [0.25, 0.5]], dtype=F64))
    got = emission.log_likelihood(torch.tensor([[0, 1], [1, 1]]))
    close(got.exp(), torch.tensor([[1.0, 0.375], [0.0, 0.125]], dtype=F64))
    assert torch.equal(emission.distribution(torch.tensor([0])).sample(), torch.tensor([[0.0, 1.0]], dtype=F64))
    given = emission.distribution(torch.tensor([0, 1])).expand([2, 2])
    close(
        given.log_prob(torch.tensor([[0.0, 1.0], [0.0, 0.0]])).exp(),
        torch.tensor([[1.0, 0.375], [1.0, 0.375]], dtype=F64),
    )
    with pytest.raises(ValueError, match="obs must end in dimension D = 2"):
        emission.log_likelihood(torch.zeros(3))


@pytest.mark.parametrize("kind", ["bits", "diag", "full"])
def test_missing_coordinates_are_summed_or_integrated_out(kind):
    random = torch.Generator().manual_seed(0)
    loc = torch.randn(2, 3, generator=random, dtype=F64).requires_grad_()
    root = torch.randn(2, 3, 3, generator=random, dtype=F64)
    covariance = root @ root.mT + torch.eye(3)
    base = {
        "bits": BernoulliEmission(loc),
        "diag": GaussianEmission(loc, scale=covariance.diagonal(dim1=-2, dim2=-1).sqrt()),
        "full": GaussianEmission(loc, scale_tril=torch.linalg.cholesky(covariance)),
    }[kind]
    obs = torch.tensor(
        [[1.0, 0.0, 1.0], [0.0, torch.nan, 1.0], [torch.nan, torch.nan, 1.0], [torch.nan] * 3], dtype=F64
    )
    got = CoordinateEmission(base).log_likelihood(obs)
    for row, value in enumerate(obs):
        seen = ~value.isnan()
        part = {
            "bits": lambda: BernoulliEmission(loc[:, seen]),
            "diag": lambda: GaussianEmission(loc[:, seen], scale=base.scale[:, seen]),
            "full": lambda: GaussianEmission(
                loc[:, seen], scale_tril=torch.linalg.cholesky(covariance[:, seen][..., seen])
            ),
        }[kind]
        expected = part().log_likelihood(value[seen]) if bool(seen.any()) else torch.zeros(2, dtype=F64)
        close(got[row], expected)
    (gradient,) = torch.autograd.grad(got.sum(), [loc])
    assert torch.isfinite(gradient).all()
    given = CoordinateEmission(base).distribution(torch.tensor([1, 0, 1, 1]))
    close(given.log_prob(obs), got[torch.arange(4), torch.tensor([1, 0, 1, 1])])
    assert given.sample().shape == (4, 3) and given.expand([2, 4]).log_prob(obs).shape == (2, 4)


def test_parameters_that_an_outer_enumeration_batches():
    weights, shares = Weights("categorical"), torch.tensor([0.3, 0.7], dtype=F64)
    tables = torch.randn(2, 3, 4, 3, generator=torch.Generator().manual_seed(1), dtype=F64).requires_grad_()

    def mixture():
        transition, _ = weights.specs()
        with pyro.plate("sequences", 3, dim=-1):
            c = pyro.sample("c", dist.Categorical(shares), infer={"enumerate": "parallel"})
            own, z = tables[c], None

            def output(v):
                return CategoricalEmission((own * v[..., None, None, :]).sum(-1).log_softmax(-1))

            emission = ConditionalEmission(output, 3, num_words=4, batch_shape=c.shape)
            for t in markov(range(4)):
                z = pyro.sample(f"z_{t}", transition(z, inputs=weights.u[:, t]))
                pyro.sample(f"y_{t}", emission(z, inputs=weights.v[:, t]), obs=weights.y[:, t])

    got = -TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(BlockedEnum()(mixture), no_guide)
    parts = []
    for component in range(2):
        one = Weights("categorical")
        one.outputs = tables[component]
        parts.append(one.chain().log_prob() + shares[component].log())
    expected = torch.logsumexp(torch.stack(parts), 0).sum()
    close(got, expected)
    first, second = (torch.autograd.grad(value, [tables], retain_graph=True)[0] for value in (got, expected))
    close(first, second)


def test_in_two_plates():
    weights = Weights("gaussian", batch=6)
    flat = weights.chain()
    transition, emission = weights.specs()
    u, v, y = (value.unflatten(0, (2, 3)) for value in (weights.u, weights.v, weights.y))

    def nested():
        z = None
        with pyro.plate("documents", 2, dim=-2), pyro.plate("sequences", 3, dim=-1):
            for t in markov(range(4)):
                z = pyro.sample(f"z_{t}", transition(z, inputs=u[:, :, t]))
                pyro.sample(f"y_{t}", emission(z, inputs=v[:, :, t]), obs=y[:, :, t])

    handler = BlockedEnum()
    trace = poutine.trace(handler(nested)).get_trace()
    close(trace.log_prob_sum(), flat.log_prob().sum())
    close(handler.chains["z_0"].marginals().probs.flatten(0, 1), flat.marginals().probs)
    close(generic_log_prob(nested, max_plate_nesting=2), flat.log_prob().sum())
