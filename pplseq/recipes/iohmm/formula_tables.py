"""Questions to an IOHMM that was saved from Python with formulas: they say how its tables are read."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pplseq.data.sources import existing_path
from pplseq.folder import FolderError
from pplseq.models import IOHMM
from pplseq.models.iohmm.formulas import Formulas
from pplseq.recipes.iohmm.tables import Columns

# names of columns, sums and products of them: other terms are Python, which a folder from elsewhere must not run
PLAIN = re.compile(r"[\w\s+:*-]*")


class FormulaTable(NamedTuple):
    """What formulas read of a table: ids of its sequences, their outputs, and of each the inputs by part."""

    ids: tuple[str, ...]
    outputs: list[np.ndarray]
    inputs: list[dict[str, torch.Tensor]]
    errors: Mapping[str, str] = {}  # noqa: RUF012  # a frame is read as a whole, or refused
    times: None = None  # formulas name no column that says them

    @property
    def all_ids(self) -> tuple[str, ...]:
        return self.ids

    @property
    def lengths(self) -> list[int]:
        return [len(rows) for rows in self.outputs]


class FormulaColumns(Columns):
    """How formulas read tables: each output of its own family, a class by its place."""

    formulas: Formulas

    @classmethod
    def of(cls, formulas: Formulas) -> FormulaColumns:
        classes = {name: list(levels) for name, levels in formulas.levels.items() if levels}
        names, terms = list(formulas.output_names), list(formulas.terms.values())
        families = ["categorical" if name in classes else "normal" for name in names]
        found = cls(formulas.sequence_id, terms, names, list(classes), families, output_symbols=classes or None)
        found.formulas = formulas
        return found

    def read(self, data: str, *, leave_out: bool = False, outputs: bool = True) -> FormulaTable:  # pyright: ignore
        return read_formulas(self.formulas, data, outputs=outputs)

    def data(self, table: FormulaTable) -> tuple[list[torch.Tensor], Any]:  # pyright: ignore
        return [torch.as_tensor(rows) for rows in table.outputs], table.inputs if self.inputs else None


def saved_model(folder: Path) -> IOHMM:
    """A model that says by plain formulas how a table is read.

    Raises:
        ValueError: for one that does not, or whose formulas are more than names of columns.
    """
    try:
        model = IOHMM.load(folder)
    except (FileNotFoundError, FolderError) as error:
        raise type(error)(f"{folder}: neither a run of `pplseq train iohmm` nor a saved model ({error})") from None
    ask = f"ask it in Python, pplseq.load({str(folder)!r}), or train by `pplseq train iohmm`, whose runs know their columns"
    if model.formulas is None:
        raise ValueError(f"{folder}: a saved model without formulas does not say which columns it reads; {ask}")
    if unfit := [text for text in model.formulas.terms.values() if not PLAIN.fullmatch(text)]:
        raise ValueError(
            f"{folder}: the terms {unfit[0]!r} are Python code, which this command does not run; it reads names of columns, "
            f"+, : and *; {ask}"
        )
    return model


def read_formulas(formulas: Formulas, data: str, *, outputs: bool = True) -> FormulaTable:
    """A table (.csv, .tsv, .parquet, - for CSV on stdin) as formulas read it.

    Raises:
        ValueError: as of ``formulas.read``, with the table's name. ImportError: without pandas.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError('formulas read tables by pandas: pip install "pplseq[tables]"') from error
    if data == "-":
        frame = pandas.read_csv(sys.stdin.buffer)
    elif ".parquet" in Path(data).suffixes:
        frame = pandas.read_parquet(existing_path(data))
    else:
        sep = "\t" if ".tsv" in Path(data).suffixes else ","
        frame = pandas.read_csv(existing_path(data), sep=sep)
        if len(frame.columns) == 1 and ";" in str(frame.columns[0]):
            frame = pandas.read_csv(data, sep=";", decimal=",")
    try:
        found = formulas.read(frame, outputs=outputs)
    except ValueError as error:
        raise ValueError(f"{data}: {error}") from None
    inputs = [{part: torch.as_tensor(rows[n]) for part, rows in found.inputs.items()} for n in range(len(found.x))]
    return FormulaTable(tuple(map(str, found.ids)), found.x, inputs)
