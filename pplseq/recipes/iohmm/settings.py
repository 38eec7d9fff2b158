"""What the training of an input-output HMM, and questions to it, can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pplseq import checks
from pplseq.folder import FolderKind, unsealed
from pplseq.recipes.recipe import Question, RunSettings, UseSettings
from pplseq.recipes.settings import setting

BEST = "best"  # the folder of a run that holds its model
SIZE = "size_"  # begins the name of the folder of a number of states that is being fitted
AUTOMATON = "automaton.json"  # beside it, of a run from strings
RUN = FolderKind(
    "pplseq-iohmm", 2, header="iohmm.json", what="run of `pplseq train iohmm`", again="train again",
    schema={
        "kind": str, "summary": {"score?": float, "stop_reason?": str}, "tried?": [{"states": int}],
        "columns?": {
            "sequence_id?": str, "inputs": [str], "outputs": [str], "symbols": [str], "family": (str, list),
            "input_levels?": [str], "output_levels?": [str], "mean?": [float], "scale?": [float],
            "input_symbols?": {...: [str]}, "output_symbols?": {...: [str]}, "order_by?": str, "embed?": int,
        },
        "symbols?": [str], "report?": str, "automata?": [{"automaton": dict, "restarts?": int, "chosen": bool}],
    },
)  # fmt: skip
TABLES = (".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz")
STRING_SETTINGS = {
    "num_states", "num_restarts", "validation", "max_iterations", "repair", "merging", "seed", "picture", "device", "threads",
    "max_time", "deterministic",
}  # fmt: skip


def check_automaton(folder: Path) -> None:
    """Raises FolderError where the automaton that a run from strings leaves for people and other programs is damaged."""
    unsealed(folder / AUTOMATON, "remove it, and call the training of this run again: it is written anew")


@dataclass(kw_only=True)
class TableSettings:
    """The table.

    Args:
        outputs: columns of the outputs, a,b.
        inputs: columns of the inputs, a,b (default: none).
        sequence_id: column that says which sequence a row is of (default: all rows are one).
        order_by: column of numbers or dates by which the rows of a sequence are sorted (default: as they stand).
        symbols: columns that hold names or classes instead of numbers, a,b.
        embed: dimensions of learned vectors that stand for the symbols of a column of inputs, where it holds more symbols than
            these and one (default: a number 0 or 1 for each symbol).
        standardize: bring real inputs to mean 0 and deviation 1.
    """

    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    sequence_id: str | None = None
    order_by: str | None = None
    symbols: tuple[str, ...] = ()
    embed: int | None = setting(None, check=checks.count)
    standardize: bool = setting(True, flag="--standardize/--raw")


@dataclass(kw_only=True)
class StringSettings:
    """Labelled strings.

    Args:
        repair: mend automata by single moves.
        merging: merge states first; EM only where that leaves something open.
        picture: draw the automaton.
    """

    repair: bool = True
    merging: bool = True
    picture: bool = True


@dataclass(kw_only=True)
class IOHMMSettings(TableSettings, StringSettings, RunSettings):
    """The model.

    Args:
        num_states: number of states, or several, 2,3,4 or 2-8 (default: 2; strings: 2-8).
        family: of the outputs, gaussian, bernoulli or categorical; or of generalised linear models normal, poisson,
            negative_binomial, binomial, gamma, exponential, bernoulli, categorical, student_t, von_mises, Laplace and the like,
            also with zeros of their own, zero_inflated_poisson or hurdle_gamma, one a column, a,b (default: categorical for
            symbols, else gaussian, beside symbols normal).
        links: of generalised linear models, one for all columns or one a column, a,b (default: the usual ones).
        trials: of binomial outputs.
        num_restarts: random starts of each size (default: 20; strings: 1000).
        select: what chooses among restarts and sizes (default: validation where there is some, else likelihood; sizes by bic).
        validation: held-out data of the same kind, to choose iterations, restarts and sizes by.
        early_stop: a restart stops after so many scores of held-out data in a row without a new best.
        mealy: outputs see the inputs of their step.
        hidden: sizes of hidden layers of the networks, 16,16 (default: none).
        graph: ergodic, left_right, or a file of 0s and 1s: row = from, column = to.
        initial: first state: one distribution, one that sees inputs, or a transition from a state before.
        feedback: join the past output to the inputs.
        covariance: of gaussian outputs.
        covariance_floor: smallest variance of gaussian outputs (default: 0.0001 of that of each output).
        method: EM, generalised EM, or stochastic gradients.
        max_iterations: of EM, or steps of sgd (default: 100; strings: 300).
        batch_size: sequences of a mini-batch of sgd.
        lr: of sgd.
        device: where it is trained: cpu, cuda, cuda:1, ...; models this small are faster on the CPU.
    """

    num_states: str | None = None
    family: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    trials: int | None = setting(None, check=checks.count)
    num_restarts: int | None = setting(None, check=checks.count)
    select: Literal["likelihood", "bic", "validation", "smallest_consistent"] | None = None
    validation: str | None = None
    early_stop: int | None = setting(None, check=checks.count)
    mealy: bool = setting(False, flag="--mealy/--moore")
    hidden: tuple[int, ...] = setting((), check=checks.count)
    graph: str | None = None
    initial: Literal["constant", "inputs", "transition"] = "constant"
    feedback: bool = False
    covariance: Literal["diag", "full", "tied", "spherical"] = "diag"
    covariance_floor: float | None = setting(None, check=checks.positive)
    method: Literal["em", "gem", "sgd"] = "em"
    max_iterations: int | None = setting(None, check=checks.count)
    batch_size: int | None = setting(None, check=checks.count)
    lr: float | None = setting(None, check=checks.positive)
    device: str = setting("cpu", free=True)

    def __post_init__(self) -> None:
        for name in ("validation", "graph"):  # the run's folder keeps paths, and --resume may be called from anywhere
            if (value := getattr(self, name)) is not None and Path(value).is_file():
                setattr(self, name, str(Path(value).resolve()))


@dataclass(kw_only=True)
class IOHMMAsking(UseSettings):
    """The question.

    Args:
        future: table of inputs that are to come, with the same sequences.
        steps: steps to look ahead (default: those of --future, which must hold as many, else 10).
        num_samples: draws.
        feature: the input that varies.
        values: its values, LOW:HIGH:NUMBER (default: mean -2 to +2 standard deviations, 25 of them).
        png: draw the curves, or the automaton.
        dot: write the automaton as DOT.
        seed: of the draws.
    """

    future: str | None = None
    steps: int | None = setting(None, check=checks.count)
    num_samples: int = setting(1, check=checks.count)
    feature: str | None = None
    values: str | None = None
    png: Path | None = None
    dot: Path | None = None
    seed: int = setting(0, check=checks.seed)


QUESTIONS = {
    "filter": Question("p(z_t | outputs and inputs up to t)", takes="table"),
    "smooth": Question("p(z_t | all outputs and inputs)", takes="table"),
    "decode": Question("the most probable state path", takes="table"),
    "sample": Question("state paths drawn from the posterior", ("num_samples", "seed"), takes="table"),
    "score": Question("log p(outputs | inputs), nats", takes="table"),
    "predict": Question("expected outputs given past outputs too (closed loop)", ("seed",), takes="table"),
    "produce": Question("expected outputs given inputs alone (open loop)", ("seed",), takes="table"),
    "forecast": Question("expected outputs of the steps to come", ("future", "steps", "seed"), takes="table"),
    "classify": Question(
        "the output at the last step, from the inputs alone; for strings, the automaton's answer as well", takes="table"
    ),
    "effects": Question(
        "transition probabilities as one input varies (no data)", ("feature", "values", "png"), takes="nothing"
    ),
    "automaton": Question("the automaton learned from strings (no data)", ("png", "dot"), takes="nothing"),
}
OF_STRINGS = ("classify", "produce", "filter", "effects", "automaton")  # what strings, without outputs on their way, answer
