"""Formulas over the columns of a data frame, as R writes them: outputs and inputs of a model of sequences, with their names."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from pplseq.checks import nearest


class FormulaData(NamedTuple):
    """Sequences of a frame.

    x: of each (T, D) outputs, NaN where missing. inputs: part -> of each (T, U). ids: of the sequences.
    """

    x: list[np.ndarray]
    inputs: dict[str, list[np.ndarray]]
    ids: list[Any]


class Formulas:
    """Formulas for the parts of an input-output HMM, read by the library formulaic.

    What terms mean, and what they were in the first frame that is read (the levels of a factor, the mean of ``center(speed)``),
    holds for every other frame. Every regression has a constant of its own beside the terms.

    Args:
        outputs: "power ~ speed + slope", several with "+" in front: "power + road ~ speed"; "power ~ 1" where outputs see no
            inputs. A column of words is one of classes.
        transition, initial: "~ z", for the parts that see inputs, or None.
        sequence_id: the column that says which sequence a row is of; None: all rows are one.

    Raises:
        ImportError: without formulaic. ValueError: for what is no such formula.

    Example::

        formulas = Formulas("power ~ speed + slope", transition="~ load")
        data = formulas.read(frame)
        model = IOHMM(2, outputs=["normal"], **formulas.options).fit(data.x, inputs=data.inputs, num_restarts=10)
        print(model.summary(data.x, inputs=data.inputs))

    Source: I. Visser and M. Speekenbrink (2010), depmixS4: an R package for hidden Markov models, section 3, has such formulas.
    """

    def __init__(
        self, outputs: str, *, transition: str | None = None, initial: str | None = None, sequence_id: str | None = None
    ):  # fmt: skip
        names, tilde, terms = outputs.partition("~")
        self.output_names = [name.strip() for name in names.split("+")]
        if not tilde or not all(self.output_names):
            raise ValueError(f"outputs must be a formula, such as 'power ~ speed + slope'; got {outputs!r}")
        given = {"initial": initial, "transition": transition, "emission": terms}
        self.terms = {part: text.strip().removeprefix("~").strip() for part, text in given.items() if text is not None}
        self.terms = {part: text for part, text in self.terms.items() if text != "1"}
        self.sequence_id = sequence_id
        self.specs: dict[str, Any] = {}
        self.levels: dict[str, list[str]] = {}
        self.input_names: dict[str, list[str]] = {}

    @property
    def options(self) -> dict[str, Any]:
        """Of the model, beside the number of its states and the families of its outputs; once a frame was read."""
        if not self.input_names and self.terms:
            raise ValueError("read a frame first: how many inputs there are depends on the levels of its factors")
        sizes = {part: len(names) for part, names in self.input_names.items()}
        given: dict[str, Any] = {"num_inputs": sizes or 0, "mealy": "emission" in sizes}
        given["input_names"] = self.input_names or None
        if "initial" in sizes:
            given["initial"] = "inputs"
        return given | {
            "num_outputs": [len(self.levels.get(name, [""])) for name in self.output_names], "output_names": self.output_names,
        }  # fmt: skip

    def read(self, frame: Any) -> FormulaData:
        """Outputs and inputs of a frame (of pandas), its sequences in the order in which they begin.

        Raises:
            ValueError: for columns that there are not, missing or infinite inputs, rows of no sequence, levels that the first
                frame lacked. What a frame that is refused would have said is forgotten.
        """
        columns = [str(column) for column in frame.columns]
        for name in [*self.output_names, *([] if self.sequence_id is None else [self.sequence_id])]:
            if name not in columns:
                raise ValueError(f"formulas: the frame has no column {name!r}.{nearest(name, columns)}")
        if not len(frame):
            raise ValueError("formulas: the frame has no rows")
        ids, rows = self._sequences(frame)
        learned = self.specs, self.levels, self.input_names
        before = [dict(part) for part in learned]
        try:
            x = np.stack([self._output(name, frame[name]) for name in self.output_names], -1)
            inputs = {part: self._matrix(part, frame) for part in self.terms}
        except Exception:
            for part, known in zip(learned, before, strict=True):  # a frame that is refused says nothing of the next one
                part.clear()
                part.update(known)
            raise
        return FormulaData([x[own] for own in rows], {part: [v[own] for own in rows] for part, v in inputs.items()}, ids)

    def _sequences(self, frame: Any) -> tuple[list[Any], list[np.ndarray]]:
        """Names of the sequences, and which rows each has."""
        if self.sequence_id is None:
            return [0], [np.arange(len(frame))]
        number, ids = frame[self.sequence_id].factorize()
        if (number < 0).any():
            row = int(np.flatnonzero(number < 0)[0])
            raise ValueError(f"formulas: row {row} has no {self.sequence_id!r}, so that it is of no sequence; leave it out")
        return ids.tolist(), np.split(np.argsort(number, kind="stable"), np.bincount(number).cumsum()[:-1])

    def _output(self, name: str, column: Any) -> np.ndarray:
        """(N,) numbers, of words the places of their classes."""
        gone = column.isna().to_numpy()
        if column.dtype.kind in "biuf" and name not in self.levels:
            return column.to_numpy(dtype=float, na_value=np.nan)
        if column.dtype.kind in "mMc":
            raise ValueError(f"formulas: output {name!r} is {column.dtype}, neither numbers nor words; make it one of these")
        words = [None if missing else str(cell) for cell, missing in zip(column, gone, strict=True)]
        levels = self.levels.setdefault(name, sorted({word for word in words if word is not None}))
        if len(levels) < 2:
            raise ValueError(f"formulas: output {name!r} holds one class only, {levels}; leave it out")
        if unknown := [word for word in words if word is not None and word not in levels]:
            raise ValueError(f"formulas: output {name!r} holds {unknown[0]!r}, which the first frame lacked; known: {levels}")
        return np.array([np.nan if word is None else levels.index(word) for word in words])

    def _matrix(self, part: str, frame: Any) -> np.ndarray:
        """(N, U) of the terms of a part, without the constant."""
        try:
            from formulaic import Formula
            from formulaic.errors import DataMismatchWarning, FormulaicError
        except ImportError as error:
            raise ImportError('formulas need formulaic: pip install "pplseq[formulas]"') from error
        text = self.terms[part]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DataMismatchWarning)  # a level that is new would be read as the first one
                formula = self.specs.get(part) or Formula(text)
                matrix = formula.get_model_matrix(frame, na_action="ignore", output="pandas")
        except (FormulaicError, DataMismatchWarning, SyntaxError, KeyError, TypeError) as error:
            raise ValueError(f"formulas: {part} {text!r}: {error}") from None
        if not hasattr(matrix, "columns"):
            raise ValueError(f"formulas: {part} {text!r} must be terms alone, without another '~' or '|'")
        names = list(matrix.columns)
        if "Intercept" not in names:
            raise ValueError(f"formulas: {part} {text!r}: regressions have a constant of their own; leave '0 +' or '- 1' out")
        place, kept = names.index("Intercept"), [name for name in names if name != "Intercept"]
        if not kept:
            raise ValueError(f"formulas: {part} {text!r} has no terms; leave it out, or write '1'")
        values = np.delete(matrix.to_numpy(dtype=float), place, 1)
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            why = f"{kept[column]} is missing or infinite; fill it in, or leave the row out"
            raise ValueError(f"formulas: {part}, row {row}: {why}")
        self.specs.setdefault(part, matrix.model_spec)
        self.input_names.setdefault(part, kept)
        return values
