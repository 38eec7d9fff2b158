"""One list of all models: how each is made, what data it takes, and what it offers. The contract tests go through it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pplseq.models import (
    ARHMM,
    HMM,
    IOHMM,
    LDS,
    PROPS,
    VLHMM,
    ConstrainedLDS,
    MixtureHMM,
    MixtureIOHMM,
    ProductMoves,
    SemiMarkovHMM,
    StreamingHMM,
    StructuralModel,
    SwitchingRegression,
    TextLDS,
)

ROWS, STEPS = 4, 6
LENGTHS = torch.tensor([6, 1, 4, 6])
BLOCKS = torch.tensor([0, 0, 1, 1, 2, 2])
PHASE = (torch.arange(ROWS).unsqueeze(-1) + torch.arange(STEPS)) % 3  # a pattern that can be learned


# ------------------------------------------------------------------------------------------------ data
def words() -> Tensor:
    return 2 * PHASE + torch.randint(2, PHASE.shape)


def vectors() -> Tensor:
    return PHASE.unsqueeze(-1) * torch.tensor([1.0, -2.0]).double() + 0.1 * torch.randn(*PHASE.shape, 2).double()


def numbers() -> Tensor:
    return vectors()[..., :1]


def bits() -> Tensor:
    return torch.stack([PHASE == 0, PHASE == 1], -1).double()


def shares() -> Tensor:
    numbers = torch.cat([vectors(), torch.zeros(*PHASE.shape, 1).double()], -1)
    return torch.softmax(numbers / 2, -1)


def counts() -> Tensor:
    first = 3 * PHASE + torch.randint(2, PHASE.shape)
    return torch.stack([first, 8 - first], -1).double()


NUMBERS = {"inputs": torch.stack([PHASE == 1, PHASE == 2], -1).double()}
SYMBOLS = {"inputs": PHASE}
# each source predicts one of the words of the pattern
SURE = torch.nn.functional.one_hot(torch.stack([2 * PHASE, PHASE], -1), 6) * 0.4 + 0.1
SOURCES = {"source_log_probs": SURE.double().log()}

# ------------------------------------------------------------------------------------------------ what models offer
ASKED = frozenset(
    {"score", "aic", "bic", "filter", "smooth", "decode", "sample", "sample_states", "token_log_probs", "entropy"}
)
AHEAD = frozenset({"predict_next", "forecast"})
FITTED = frozenset({"fit", "log_joint"})
ARGUMENTS = frozenset({"get_params", "set_params"})
EVERYTHING = ASKED | AHEAD | FITTED | ARGUMENTS


@dataclass(frozen=True)
class Case:
    """A model under test.

    known: what it takes beside x, (4, 6, ...) each. verbs: those that it offers; of the others it says that it has them not.
    own: verbs that it offers with another meaning, which tests of its own are about.
    draws: its program draws more than states and observations (parameters, dropout), so that two runs of it differ.
    fit: options of a short fit.
    """

    make: Callable[[], Any]
    x: Callable[[], Tensor] = words
    known: dict[str, Tensor] = field(default_factory=dict)
    verbs: frozenset[str] = EVERYTHING
    own: frozenset[str] = frozenset()
    draws: bool = False
    fit: dict[str, Any] = field(default_factory=lambda: {"method": "sgd", "num_steps": 5})

    def model(self):
        torch.manual_seed(1)
        return self.make().double()

    def data(self) -> Tensor:
        torch.manual_seed(2)
        return self.x()

    def part(self, rows=slice(None), steps=slice(None)) -> dict[str, Tensor]:
        """What is known of some rows and steps."""
        return {name: value[rows, steps] for name, value in self.known.items()}


LONG = {"fit": {"epochs": 5, "lr": 0.05}}
EM = {"method": "em", "max_iterations": 3}

DISCRETE = {
    "vlhmm": Case(lambda: VLHMM(6, num_words=6, blocks=BLOCKS, hidden_size=8, init_scale=0.5), **LONG),
    "vlhmm, uneven, factored": Case(
        lambda: VLHMM(
            6, num_words=6, blocks=BLOCKS, hidden_size=8, states_per_block=[1, 3, 2], parameterization="factored",
            init_scale=0.5
        ),
        **LONG,
    ),
    "vlhmm, scalar, untied": Case(lambda: VLHMM(6, num_words=6, blocks=BLOCKS, parameterization="scalar", init_scale=0.5),
    **LONG),
    "vlhmm, reset": Case(lambda: VLHMM(6, num_words=6, blocks=BLOCKS, hidden_size=8, reset_id=1, init_scale=0.5), **LONG),
    "vlhmm, hierarchical": Case(
        lambda: VLHMM(6, num_words=6, blocks=BLOCKS, hidden_size=8, reset_id=1, init_scale=0.5, transition="hierarchical"),
        **LONG
    ),
    "vlhmm, topics": Case(
        lambda: VLHMM(
            6, num_words=6, blocks=torch.tensor([0, 1, 0, 0, 2, 2]), hidden_size=8, reset_id=1, init_scale=0.5,
            transition="hierarchical",
            num_topics=2,
        ),
        **LONG,
    ),
    "vlhmm, dropout": Case(
        lambda: VLHMM(12, num_words=6, blocks=BLOCKS, hidden_size=8, state_dropout=0.5, init_scale=0.5), draws=True, **LONG
    ),
    "vlhmm, no blocks": Case(lambda: VLHMM(4, num_words=6, hidden_size=8, tied=False, init_scale=0.5), **LONG),
    "hmm": Case(lambda: HMM(3, 6), fit=EM),
    "mixture of hmms": Case(lambda: MixtureHMM(2, 2, 6), fit=EM),
    "hmm, product of moves": Case(lambda: HMM(num_words=6, transition=ProductMoves(3, 2)), fit=EM),
    "hmm, vectors": Case(lambda: HMM(3, num_features=2), vectors, fit=EM),
    "hmm, columns, left to right": Case(
        lambda: HMM(4, emission=["normal", "normal"], graph="left_right", ties=[0, 1, 2, 1]), vectors, fit=EM
    ),
    # of their densities over a simplex, and counts, tests of their own are about
    "hmm, shares": Case(
        lambda: HMM(3, num_features=3, emission="dirichlet"), shares, verbs=EVERYTHING - AHEAD, own=frozenset(AHEAD), fit=EM
    ),
    "hmm, counts of a total": Case(
        lambda: HMM(3, num_features=2, emission="multinomial", trials=8), counts, verbs=EVERYTHING - AHEAD,
        own=frozenset(AHEAD), fit=EM,
    ),
    "semi-markov hmm": Case(
        lambda: SemiMarkovHMM(2, 6, max_duration=3), verbs=EVERYTHING - {"decode", "sample", "sample_states"},
        own=frozenset({"decode", "sample", "sample_states", "token_log_probs", "entropy"}), fit=EM,
    ),
    "hmm, mixture": Case(lambda: HMM(2, num_features=2, emission="mixture"), vectors, fit=EM),
    "iohmm": Case(
        lambda: IOHMM(3, num_inputs=2, outputs="gaussian", num_outputs=2, mealy=True), vectors, NUMBERS, fit=EM
    ),
    "mixture of iohmms": Case(
        lambda: MixtureIOHMM(2, 1, num_inputs=2, outputs="gaussian", num_outputs=2, covariance="tied"), vectors, NUMBERS, fit=EM
    ),
    "iohmm, symbols": Case(
        lambda: IOHMM(3, num_symbols=3, num_outputs=6, initial="transition", graph="left_right"), words, SYMBOLS, fit=EM
    ),
    "iohmm, hidden layers": Case(
        lambda: IOHMM(
            3, num_inputs=2, outputs="categorical", num_outputs=6, mealy=True, initial="inputs", hidden=(4,)
        ),
        words, NUMBERS, fit=EM,
    ),
    "iohmm, bits": Case(
        lambda: IOHMM(3, num_symbols={"transition": 3}, outputs="bernoulli", num_outputs=2), bits, SYMBOLS, fit=EM
    ),
    "iohmm, states": Case(lambda: IOHMM(6, num_inputs=2, outputs="states"), words, NUMBERS, fit=EM),
    "autoregressive hmm": Case(
        lambda: ARHMM(2, 2, order=0, num_inputs=2), vectors, NUMBERS, EVERYTHING - AHEAD, frozenset(AHEAD), fit=EM
    ),
    "switching regression": Case(
        # one variance: with three, EM goes through the few numbers of a regime exactly
        lambda: SwitchingRegression(3, num_inputs=2, switching=("mean", "inputs")), numbers, NUMBERS, EVERYTHING - AHEAD,
        frozenset(AHEAD), fit=EM,
    ),
    "props": Case(
        lambda: PROPS(6, num_sources=2, num_perturbations=2), words, SOURCES, EVERYTHING - AHEAD
    ),
    "streaming_hmm": Case(lambda: StreamingHMM(3, 6)),
    "streaming_hmm, vectors": Case(lambda: StreamingHMM(3, num_features=2, covariance="full"), vectors),
}  # fmt: skip

# its next words are no ratios of densities, and it is fitted to counts
TEXT = {"verbs": EVERYTHING - AHEAD - {"fit"}, "own": AHEAD | {"fit"}}
LINEAR = {"fit": EM}
GAUSSIAN = {
    "lds": Case(lambda: LDS(3, 2), vectors, **LINEAR),
    "lds, diagonal, stationary": Case(
        lambda: LDS(2, 2, state_noise="diagonal", emission_noise="diagonal", initial="stationary", offsets="emission"),
        vectors, **LINEAR,
    ),
    "lds, inputs": Case(
        lambda: LDS(2, 2, num_inputs=2).set_parameters(transition_inputs=torch.randn(2, 2), emission_inputs=torch.eye(2)),
        vectors, NUMBERS, **LINEAR,
    ),
    "lds, one state": Case(lambda: LDS(1, 2, offsets="none"), vectors, **LINEAR),
    "constrained_lds": Case(
        lambda: ConstrainedLDS(2, 2, {"transition": [["a", 0.1], [0, "a"]], "state_noise": "scalar"}), vectors, **LINEAR
    ),
    "structural": Case(
        lambda: StructuralModel(trend="stochastic", seasonal=3, num_inputs=2).set_parameters(width=1.0), numbers, NUMBERS,
        EVERYTHING - {"fit"}, frozenset({"fit"}),
    ),
    "text_lds": Case(lambda: TextLDS(2, num_words=6), **TEXT),
    "text_lds, steady": Case(lambda: TextLDS(2, num_words=6, initial="steady"), **TEXT),
}  # fmt: skip
CASES = DISCRETE | GAUSSIAN
