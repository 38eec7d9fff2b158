"""Formulas over the columns of a data frame, as R writes them: outputs and inputs of a model of sequences, with their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np

from pplseq import checks
from pplseq.checks import nearest
from pplseq.models.forms import Sequences, as_frame, is_frame, is_table
from pplseq.threads import filtering


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

    Terms may call functions, as in R: they are Python that runs when a frame is read, also those of a model that was loaded.
    Give no frame to models of folders that you would not run as a program.

    Raises:
        ImportError: without formulaic. ValueError: for what is no such formula.

    Example::

        formulas = Formulas("power ~ speed + slope", transition="~ load")
        formulas.read(frame)
        model = IOHMM(2, outputs=["normal"], **formulas.options).fit(frame, num_restarts=10)
        print(model.summary(frame))
        model.forecast(frame, future_inputs=frame_of_steps_to_come).means

    The model has them as ``model.formulas``, and saves them with itself.

    Source: I. Visser and M. Speekenbrink (2010), depmixS4: an R package for hidden Markov models, section 3, has such formulas.
    """

    def __init__(
        self, outputs: str, *, transition: str | None = None, initial: str | None = None, sequence_id: str | None = None
    ):  # fmt: skip
        for name, text in (("outputs", outputs), ("transition", transition), ("initial", initial)):
            if not isinstance(text, str) and (text is not None or name == "outputs"):
                example = "'power ~ speed + slope'" if name == "outputs" else "'~ load'"
                raise TypeError(f"{name} must be a formula in a string, such as {example}; got {type(text).__name__}")
        names, tilde, terms = outputs.partition("~")
        self.output_names = [name.strip() for name in names.split("+")]
        if not tilde or not all(self.output_names):
            raise ValueError(f"outputs must be a formula, such as 'power ~ speed + slope'; got {checks.shown(outputs)}")
        given = {"initial": initial, "transition": transition, "emission": terms}
        self.terms = {part: text.strip().removeprefix("~").strip() for part, text in given.items() if text is not None}
        self.terms = {part: text for part, text in self.terms.items() if text != "1"}
        self.sequence_id = sequence_id
        self.specs: dict[str, Any] = {}
        self.levels: dict[str, list[str]] = {}
        self.input_names: dict[str, list[str]] = {}
        self._states: dict[str, Any] = {}  # of specs that were saved

    # ---------------------------------------------------------------- saved with a model
    @classmethod
    def of(cls, formulas: Any) -> Formulas | None:
        """Formulas, also from what :meth:`as_config` made of them; None of None."""
        if formulas is None or isinstance(formulas, cls):
            return formulas
        if not isinstance(formulas, Mapping) or "states" not in formulas:
            raise TypeError(
                "formulas must be Formulas('power ~ speed + slope') that have read a frame; give their options: "
                f"IOHMM(2, **formulas.options); got {checks.shown(formulas)}"
            )
        known = {name: formulas[name] for name in ("outputs", "transition", "initial", "sequence_id")}
        built = cls(**known)
        built.levels = {name: list(levels) for name, levels in formulas["levels"].items()}
        built.input_names = {part: list(names) for part, names in formulas["input_names"].items()}
        built._states = dict(formulas["states"])
        return built

    def as_config(self) -> dict[str, Any]:
        """What :meth:`of` reads, JSON-able: the formulas, and what their terms were in the first frame."""
        states = {part: _state_of(part, spec) for part, spec in self.specs.items()}
        terms = {part: "~ " + self.terms[part] for part in ("transition", "initial") if part in self.terms}
        return {
            "outputs": " + ".join(self.output_names) + " ~ " + self.terms.get("emission", "1"),
            "transition": terms.get("transition"), "initial": terms.get("initial"), "sequence_id": self.sequence_id,
            "levels": dict(self.levels), "input_names": dict(self.input_names), "states": {**self._states, **states},
        }  # fmt: skip

    def copy(self) -> Self:
        """Formulas with the same terms, whose first frame was the same."""
        return Formulas.of(self.as_config())  # pyright: ignore[reportReturnType]

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
            "num_outputs": [max(len(self.levels.get(name, ())), 1) for name in self.output_names],
            "output_names": self.output_names, "formulas": self,
        }  # fmt: skip

    # ---------------------------------------------------------------- frames
    def read(self, frame: Any, *, outputs: bool = True) -> FormulaData:
        """Outputs and inputs of a frame, its sequences in the order in which they begin.

        Args:
            frame: of pandas or polars, or of a library that hands tables over by Arrow's protocol.
            outputs: whether it has them; without, as of steps to come, x holds no columns.

        Raises:
            ValueError: for columns that there are not, or twice, missing or infinite inputs, rows of no sequence, levels that
                the first frame lacked. What a frame that is refused would have said is forgotten.
            TypeError: for what is no frame.
        """
        frame = _of_pandas(frame)
        columns, names = [str(column) for column in frame.columns], self.output_names if outputs else []
        for name in [*names, *([] if self.sequence_id is None else [self.sequence_id])]:
            if name not in columns:
                raise ValueError(f"formulas: the frame has no column {name!r}.{nearest(name, columns)}")
        if not len(frame):
            raise ValueError("formulas: the frame has no rows")
        ids, rows = self._sequences(frame)
        learned = self.specs, self.levels, self.input_names
        before = [dict(part) for part in learned]
        try:
            values = [self._output(name, frame[name]) for name in names]
            x = np.stack(values, -1) if names else np.zeros((len(frame), 0))
            inputs = {part: self._matrix(part, frame) for part in self.terms}
        except Exception:
            for part, known in zip(learned, before, strict=True):  # a frame that is refused says nothing of the next one
                part.clear()
                part.update(known)
            raise
        return FormulaData([x[own] for own in rows], {part: [v[own] for own in rows] for part, v in inputs.items()}, ids)

    def data_of(self, x: Any, inputs: Any, lengths: Any = None) -> tuple[Any, Any, Any]:
        """x, inputs and lengths, where x without inputs, or inputs without x, are a frame: what the formulas read there."""
        if not (is_table(x) and inputs is None or x is None and is_table(inputs)):
            if inputs is None and self.terms:
                read = ", ".join([*self.output_names, *self.terms.values()])
                raise TypeError(
                    f"x: this model reads data frames by its formulas ({read}), got {type(x).__name__}; give a frame, or "
                    "arrays of outputs and, as inputs=, of the terms"
                )
            return x, inputs, lengths
        data = self.read(inputs if x is None else x, outputs=x is not None)
        if lengths is not None and self.sequence_id is not None:
            raise ValueError(f"lengths: column {self.sequence_id!r} says which rows are a sequence; leave lengths out")
        found, parts = data.x, data.inputs
        if lengths is not None:  # one behind the other
            found, parts = data.x[0], {part: rows[0] for part, rows in data.inputs.items()}
        return (None if x is None else found), parts or None, lengths

    def named(self, frame: Any) -> Any:
        """The sequences of a frame by their names, in place of the frame, where a column says which there are."""
        if self.sequence_id is None:
            return frame
        ids, rows = self._sequences(_of_pandas(frame))
        return frame if len(ids) == 1 else Sequences(rows, ids, None, self.sequence_id)

    def ahead(self, frame: Any, past: Any = None) -> dict[str, np.ndarray]:
        """Inputs of steps to come: part -> (B, K, U), for the sequences of a past frame in its order; (K, U) of one sequence.

        Raises:
            ValueError: for a sequence of the past that the frame lacks, one that the past lacks, or other numbers of steps.
        """
        data = self.read(frame, outputs=False)
        if self.sequence_id is None:
            return {part: rows[0] for part, rows in data.inputs.items()}
        order = list(data.ids)
        if past is not None:
            order = self._sequences(_of_pandas(past))[0]
            for one, others, where in ((order, data.ids, "future_inputs: the frame"), (data.ids, order, "x: the frame")):
                if missing := [name for name in one if name not in others]:
                    raise ValueError(f"{where} has no rows of sequence {missing[0]!r}")
        sizes = [len(data.x[data.ids.index(name)]) for name in order]
        if len(set(sizes)) > 1:
            odd = next(n for n, size in enumerate(sizes) if size != sizes[0])
            raise ValueError(
                f"future_inputs: every sequence must go on for as many steps; {order[0]!r} has {sizes[0]}, {order[odd]!r} "
                f"{sizes[odd]}"
            )
        places = [data.ids.index(name) for name in order]
        return {part: np.stack([rows[place] for place in places]) for part, rows in data.inputs.items()}

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
        """(N,) numbers, of words the places of their classes. The first frame says which of both an output is."""
        known, kind = self.levels.get(name), column.dtype.kind  # no levels: numbers
        if kind in "mMc":
            raise ValueError(f"formulas: output {name!r} is {column.dtype}, neither numbers nor words; make it one of these")
        if kind in "biuf" and not known:
            self.levels[name] = []
            return column.to_numpy(dtype=float, na_value=np.nan)
        cells = [None if missing else cell for cell, missing in zip(column, column.isna(), strict=True)]
        held = [cell for cell in cells if cell is not None]
        if known is None and not held:
            raise ValueError(f"formulas: output {name!r} is missing everywhere in the first frame; leave it out")
        word = next((cell for cell in held if not isinstance(cell, (Real, np.bool_))), None)
        if word is None and (known == [] or known is None and not hasattr(column.dtype, "categories")):
            self.levels[name] = []  # numbers among objects
            return np.array([np.nan if cell is None else cell for cell in cells], dtype=float)
        if known == []:
            raise ValueError(
                f"formulas: output {name!r} held numbers in the first frame, got {checks.shown(word)}; make numbers of it"
            )
        words = [None if cell is None else str(cell) for cell in cells]
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
            raise ImportError('formulas need formulaic: pip install "pplseq[tables]"') from error
        text = self.terms[part]
        try:
            with filtering("error", DataMismatchWarning):  # a level that is new would be read as the first one
                formula: Any = self._spec(part) or Formula(text)  # pyright: ignore[reportAbstractUsage]
                matrix = formula.get_model_matrix(frame, na_action="ignore", output="pandas")
        except (FormulaicError, DataMismatchWarning, SyntaxError, KeyError, TypeError) as error:
            raise ValueError(f"formulas: {part} {checks.shown(text)}: {_reason(error, frame)}") from None
        if not hasattr(matrix, "columns"):
            raise ValueError(f"formulas: {part} {checks.shown(text)} must be terms alone, without another '~' or '|'")
        names = list(matrix.columns)
        if "Intercept" not in names:
            raise ValueError(
                f"formulas: {part} {checks.shown(text)}: regressions have a constant of their own; leave '0 +' or '- 1' out"
            )
        place, kept = names.index("Intercept"), [name for name in names if name != "Intercept"]
        if not kept:
            raise ValueError(f"formulas: {part} {checks.shown(text)} has no terms; leave it out, or write '1'")
        if of_complex := [name for name, kind in matrix.dtypes.items() if kind.kind == "c"]:
            raise ValueError(f"formulas: {part}: {of_complex[0]} holds complex numbers; make real ones of them")
        values = np.delete(matrix.to_numpy(dtype=float), place, 1)
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            why = f"{kept[column]} is missing or infinite; fill it in, or leave the row out"
            raise ValueError(f"formulas: {part}, row {row}: {why}")
        if part not in self.specs:
            _state_of(part, matrix.model_spec)  # raises where it cannot be kept
            self.specs[part] = matrix.model_spec
        self.input_names.setdefault(part, kept)
        return values

    def _spec(self, part: str) -> Any:
        """Terms of a part as the first frame made them; None before one was read."""
        if part in self.specs or part not in self._states:
            return self.specs.get(part)
        from formulaic import Formula, ModelSpec
        from formulaic.parser.types import Factor

        state = self._states[part]
        return ModelSpec(
            formula=Formula(self.terms[part]), na_action="ignore", output="pandas",  # pyright: ignore[reportAbstractUsage, reportArgumentType]
            transform_state={name: _restored(value) for name, value in state["transform_state"].items()},
            encoder_state={
                name: (Factor.Kind(kind), _restored(value)) for name, (kind, value) in state["encoder_state"].items()
            },
        )  # fmt: skip


def _reason(error: Exception, frame: Any) -> str:
    """What formulaic says, in one line without colours; of a name that is no column, which columns there are."""
    said = re.sub(r"\x1b?\[[0-9;]*m|[\u29da\u29db]", "", str(error))
    said = " ".join(said.split())
    if unknown := re.search(r"`(\w+)` is not present in the dataset", said):
        return f"the frame has no column {unknown[1]!r}.{nearest(unknown[1], [str(column) for column in frame.columns])}"
    return said


def _of_pandas(frame: Any) -> Any:
    """A frame as one of pandas.

    Raises:
        TypeError: for what is no frame. ValueError: for columns of the same name.
    """
    frame = as_frame(frame, "frame")
    if not is_frame(frame) or not hasattr(frame, "columns"):
        raise TypeError(f"formulas: they read a frame, of pandas or polars; got {type(frame).__name__}")
    columns = list(frame.columns)
    if twice := [name for number, name in enumerate(columns) if name in columns[:number]]:
        raise ValueError(f"formulas: the frame has two columns {twice[0]!r}; rename one, or leave it out")
    if hasattr(frame, "isna"):  # formulaic takes for numbers what is text of a type of its own, as convert_dtypes makes it
        texts = [name for name, kind in frame.dtypes.items() if str(kind).startswith("string")]
        return frame.astype(dict.fromkeys(texts, object)) if texts else frame
    import pandas

    return pandas.DataFrame({name: frame[name].to_list() for name in columns})


# ---------------------------------------------------------------- states of terms, JSON-able
def _state_of(part: str, spec: Any) -> dict[str, Any]:
    """What the terms of a part were in the first frame. Contrasts follow from the terms and categories.

    Raises:
        ValueError: for categories that are neither words nor numbers, dates say.
    """
    try:
        return {
            "transform_state": {name: _plain(value) for name, value in spec.transform_state.items()},
            "encoder_state": {
                name: [kind.value, _plain({key: value for key, value in state.items() if key != "contrasts"})]
                for name, (kind, state) in spec.encoder_state.items()
            },
        }
    except TypeError as error:
        raise ValueError(f"formulas: {part}: {error}; make words or numbers of that column") from None


def _plain(value: Any) -> Any:
    """Numbers, words and containers of these as JSON holds them; keys of mappings that are no words, and arrays, are marked."""
    if isinstance(value, np.ndarray):
        return {"array": _plain(value.tolist())}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {"items": [[_plain(key), _plain(each)] for key, each in value.items()]}
    raise TypeError(f"a term has {type(value).__name__} {str(value)[:40]!r}, which a folder cannot hold")


def _restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "array" in value:
            return np.array(value["array"])
        return {_restored(key): _restored(each) for key, each in value["items"]}
    return [_restored(each) for each in value] if isinstance(value, (list, tuple)) else value
