"""Linear dynamical systems, trained on tables.

Settings and names; what works stands in `tables`, which imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pplseq import checks
from pplseq.recipes.recipe import Question, Recipe, RunSettings, UseSettings, register
from pplseq.recipes.settings import setting


@dataclass(kw_only=True)
class SeriesSettings:
    """The table.

    Args:
        outputs: columns of the observations, a,b.
        inputs: columns of what drives the system, a,b (default: none).
        sequence_id: column that says which sequence a row is of (default: all rows are one).
        order_by: column of numbers or dates by which the rows of a sequence are sorted (default: as they stand).
        standardize: bring columns to mean 0 and deviation 1; answers are in the table's units.
        validation: held-out table, whose likelihood decides which iteration is best.
    """

    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    sequence_id: str | None = None
    order_by: str | None = None
    standardize: bool = setting(True, flag="--standardize/--raw")
    validation: str | None = None

    def __post_init__(self) -> None:
        if self.validation is not None:
            self.validation = str(Path(self.validation).resolve())


@dataclass(kw_only=True)
class LDSSettings(SeriesSettings, RunSettings):
    """The model.

    Args:
        num_states: dimensions h of the state.
        inputs_to: where inputs enter.
        offsets: where constants are added.
        state_noise: covariance of the state's noise.
        emission_noise: covariance of the observation's noise.
        initial: first state: learned, or where the states tend to.
        max_iterations: of EM, at most.
        tolerance: stop when an iteration gains less, in nats a step.
        early_stop: stop after this many iterations without a new best of the validation.
        batch_size: sequences at a time: memory only (default: all).
        device: where it is trained: cpu, cuda, cuda:1, ...; models this small are faster on the CPU.
    """

    num_states: int = setting(2, check=checks.count)
    inputs_to: Literal["both", "transition", "emission"] = "both"
    offsets: Literal["both", "transition", "emission", "none"] = "both"
    state_noise: Literal["full", "diagonal"] = "full"
    emission_noise: Literal["full", "diagonal"] = "full"
    initial: Literal["learned", "stationary"] = "learned"
    max_iterations: int = setting(100, free=True, check=checks.count)
    tolerance: float = setting(1e-4, check=checks.number)
    early_stop: int | None = setting(None, free=True, check=checks.count)
    batch_size: int | None = setting(None, check=checks.count)
    device: str = setting("cpu", free=True)


@dataclass(kw_only=True)
class LDSAsking(UseSettings):
    """The question.

    Args:
        steps: steps to look ahead (default: those of --future, which must hold as many, else 10).
        future: table of inputs that are to come, with the same sequences.
        csv: also write the answer as a table, a row a sequence and step.
        png: also draw the forecast of the first sequence, with intervals of 90 %.
    """

    steps: int | None = setting(None, check=checks.count)
    future: str | None = None
    csv: Path | None = None
    png: Path | None = None


QUESTIONS = {
    "filter": Question("means and deviations of the state, given the observations so far", ("csv",), takes="table"),
    "smooth": Question("the same given all observations", ("csv",), takes="table"),
    "predict": Question("every observation as expected from those before it", ("csv",), takes="table"),
    "reconstruct": Question("the observations without their noise; fills gaps", ("csv",), takes="table"),
    "forecast": Question("observations of the steps to come", ("steps", "future", "csv", "png"), takes="table"),
    "score": Question("log p(observations), nats", takes="table"),
}


@dataclass(frozen=True)
class LDSRecipe(Recipe):
    """A model of rows of numbers whose states are vectors."""

    asking = LDSAsking
    cpu_only = True

    questions = QUESTIONS
    scored_on = "a table with the columns of the training table"

    def training(self) -> Any:
        from pplseq.recipes.lds import tables

        return tables

    def viewing(self) -> Any:
        from pplseq.recipes.lds import view

        return view


register(
    LDSRecipe(
        "lds",
        "linear dynamical system of a table's rows, by EM",
        "a table (.csv, .tsv, .parquet, - for CSV on stdin) with columns named by --outputs and --inputs, an empty output "
        "being a missing one",
        LDSSettings,
    )
)
