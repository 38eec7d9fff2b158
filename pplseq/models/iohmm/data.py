"""What an input-output HMM takes: outputs and inputs checked, ragged lists padded, past outputs joined to the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.ragged import pad_sequences
from pplseq.distributions.state import MISSING
from pplseq.infer.fit.em import Batch
from pplseq.models.base import Given
from pplseq.models.forms import of_objects, refuse_texts
from pplseq.models.iohmm.embeddings import Embeddings, not_symbols
from pplseq.models.iohmm.forms import in_pairs, part_name, parts_of
from pplseq.models.parts.responses import ResponseColumns

PARTS = ("initial", "transition", "emission")
Inputs = Tensor | Mapping[str, Tensor] | None


SIZES = "sizes"  # of steps, (B, T, D) numbers of trials and exposures, which go with the inputs
Source = tuple[str, int]  # ("vectors", U) or ("symbols", L)


class IOFormat(NamedTuple):
    """What an input-output HMM takes: checks of its data, and what its networks see of them.

    Outputs x are (B, T) integers for "categorical" and "states", ``MISSING`` (-1) where there is no target; else (B, T, D),
    NaN in the dimensions that have none. Inputs are (B, T, U) vectors, (B, T) symbols, or a mapping from "initial",
    "transition" and "emission" to such. Ragged data are lists of (T_i[, D]) and (T_i[, U]), or a mapping to such lists.

    Attributes:
        outputs: family of the outputs. num_outputs: V, or D. num_states: Z.
        sources: part -> what it sees, ("vectors", U), ("symbols", L) or None. feedback: parts that also see past outputs.
        reference: a tensor of the model's type and device. columns: of the outputs "columns".
        embeddings: of columns of vectors that hold numbers of symbols.
    """

    outputs: str
    num_outputs: int
    num_states: int
    sources: Mapping[str, Source | None]
    feedback: tuple[str, ...]
    reference: Tensor
    columns: ResponseColumns | None = None
    embeddings: Embeddings | None = None

    # ---------------------------------------------------------------- outputs
    @property
    def discrete(self) -> bool:
        """Whether outputs are integers."""
        return self.outputs in ("categorical", "states")

    def check(self, x: Tensor) -> None:
        """Raises unless x holds outputs of the model's family, or marks of missing ones."""
        if not isinstance(x, Tensor):
            raise TypeError(
                f"x must be a tensor, got {type(x).__name__}; lists go to fit, score, one_step and the like"
            )
        if self.discrete:
            if x.is_floating_point() or x.dtype == torch.bool or x.dim() != 2:
                raise TypeError(
                    f"x must be an integer tensor (B, T) for {self.outputs} outputs, got {x.dtype} of shape {tuple(x.shape)}; "
                    f"a missing target is {MISSING}"
                )
            low, high, expected = MISSING, self.num_outputs - 1, f"0..{self.num_outputs - 1}, or {MISSING} for none"
            bad = (x < low) | (x > high)
        else:
            if not x.is_floating_point() or x.dim() != 3 or x.shape[-1] != self.num_outputs:
                raise TypeError(
                    f"x must be a floating-point tensor (B, T, D) with D = {self.num_outputs} for {self.outputs} outputs, got "
                    f"{x.dtype} of shape {tuple(x.shape)}; a missing target is NaN"
                )
            if self.columns is not None:
                if 0 not in x.shape:
                    self.columns.check(x)
                bad, expected = torch.zeros_like(x, dtype=torch.bool), ""
            elif self.outputs == "bernoulli":
                bad, expected = ~((x == 0) | (x == 1) | x.isnan()), "0 and 1, or NaN for none"
            else:
                bad, expected = x.isinf(), "finite, or NaN for none"
        if 0 in x.shape:
            raise ValueError(f"x must hold at least one row and one step, got shape {tuple(x.shape)}")
        if bool(bad.any()):
            row, step = bad.nonzero()[0].tolist()[:2]
            raise ValueError(
                f"x: row {row}, step {step} is {checks.shown(x[row, step].tolist())}, which is outside its family: "
                f"{self.outputs} "
                f"outputs are {expected}"
            )

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs with something harmless where there is none, and (B, T) where there is one, in part at least."""
        if self.discrete:
            return x.clamp_min(0), x != MISSING
        seen = ~x.isnan().all(-1)
        return torch.where(seen.unsqueeze(-1), x, 0.0), seen

    def partly_missing(self, x: Tensor) -> bool:
        """Whether some vector lacks some of its dimensions only, and its emission does not know that by itself."""
        return not self.discrete and self.columns is None and bool(x.isnan().any(-1).logical_and(~x.isnan().all(-1)).any())

    def missing(self, num_sequences: int, num_steps: int) -> Tensor:
        """Outputs of which none is known."""
        if self.discrete:
            return torch.full((num_sequences, num_steps), MISSING, device=self.reference.device)
        return self.reference.new_full((num_sequences, num_steps, self.num_outputs), torch.nan)

    # ---------------------------------------------------------------- inputs
    def steps_ahead(self, num_steps: int | None) -> int:
        """Of a forecast without inputs.

        Raises:
            ValueError: where nothing says how many.
        """
        if num_steps is not None:
            return num_steps
        if any(source is not None and source[1] for source in self.sources.values()):
            raise ValueError("must be given, (B, K, U), or (K, U) for all rows: this model has inputs; got None")
        raise ValueError("this model has no inputs that tell how many steps; say num_steps: forecast(x, 12)")

    def check_inputs(self, inputs: Inputs, shape: Sequence[int] | None, lengths: Tensor | None) -> dict[str, Tensor]:
        """Inputs of each part that sees some, (B, T[, U]), finite also behind the ends of rows.

        Args:
            inputs: a tensor for all parts, or a mapping. shape: (B, T) of the outputs, or None for what the inputs say.

        Raises:
            ValueError, TypeError: where some are missing, NaN, out of range or of another shape; says where.
        """
        parts = {part: source for part, source in self.sources.items() if source is not None}
        if (sizes := sizes_of(inputs)) is not None:
            shape = tuple(sizes.shape[:2]) if shape is None else shape
            inputs = {part: value for part, value in cast(Mapping, inputs).items() if part != SIZES} or None
        if isinstance(inputs, Mapping):
            unknown = [part for part in inputs if part not in PARTS]
            if unknown:
                raise ValueError(f"inputs: unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
        elif inputs is None and all(source == ("vectors", 0) for source in parts.values()):
            shape = (1, 1) if shape is None else shape
            inputs = self.reference.new_zeros(*shape, 0)
        checked: dict[str, Tensor] = {}
        for part, source in parts.items():
            value = inputs.get(part) if isinstance(inputs, Mapping) else inputs
            if isinstance(inputs, Mapping) and value is None and source == ("vectors", 0) and shape is not None:
                value = self.reference.new_zeros(*shape, 0)
            same = next((other for other in checked if self.sources[other] == source), None)
            if same is not None and not isinstance(inputs, Mapping):
                checked[part] = checked[same]
                continue
            name = f"inputs[{part!r}]" if isinstance(inputs, Mapping) else "inputs"
            checked[part] = self._check_source(name, value, source, shape, lengths)
            shape = tuple(checked[part].shape[:2])
        return checked

    def _check_source(self, name: str, value, source, shape, lengths: Tensor | None) -> Tensor:
        kind, size = source
        what = f"(B, T, U) with U = {size}" if kind == "vectors" else "(B, T) of symbols"
        if value is None:
            raise ValueError(f"{name}: this model needs inputs {what}, got None")
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor {what}, got {type(value).__name__}")
        checks.dense(name, value)
        dims = 3 if kind == "vectors" else 2
        if value.dim() != dims or (kind == "vectors" and value.shape[-1] != size):
            raise ValueError(f"{name} must have shape {what}, got {tuple(value.shape)}")
        if shape is not None and tuple(value.shape[:2]) != tuple(shape):
            raise ValueError(
                f"{name} must have as many rows and steps as x, {tuple(shape)}, got {tuple(value.shape[:2])}; every output "
                "needs the input of its step"
            )
        if value.is_complex():
            raise TypeError(f"{name} must hold numbers, got {value.dtype}")
        if kind == "vectors":
            bad, expected = ~value.isfinite().all(-1), "finite numbers (a missing input must be filled in)"
        elif value.is_floating_point() or value.dtype == torch.bool:
            raise TypeError(f"{name} must hold integers (symbols), got {value.dtype}")
        else:
            bad, expected = (value < 0) | (value >= size), f"symbols 0..{size - 1}"
        padded = None
        if lengths is not None:
            padded = torch.arange(value.shape[1], device=value.device) >= lengths.unsqueeze(-1)
            bad = bad & ~padded
        if bool(bad.any()):
            row, step = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{name}: row {row}, step {step} is {checks.shown(value[row, step].tolist())}; expected {expected}"
            )
        if kind == "vectors" and self.embeddings:
            bad = not_symbols(value, self.embeddings) if padded is None else not_symbols(value, self.embeddings) & ~padded
            if bool(bad.any()):
                row, step = bad.nonzero()[0].tolist()
                known = ", ".join(f"0..{size - 1} in column {column}" for column, (size, _) in self.embeddings.items())
                raise ValueError(
                    f"{name}: row {row}, step {step} is {checks.shown(value[row, step].tolist())}; embedded columns hold "
                    "numbers of symbols, "
                    f"{known}"
                )
        if padded is not None:  # behind the end of a row anything may stand
            value = value.masked_fill(padded.unsqueeze(-1) if kind == "vectors" else padded, 0)
        return value.to(self.reference) if kind == "vectors" else value.long()

    # ---------------------------------------------------------------- feedback
    def network_inputs(
        self, x: Tensor, inputs: Inputs, lengths: Tensor | None = None, previous: Tensor | None = None
    ) -> dict[str, Tensor | None]:
        """What the networks of each part are called with: inputs, joined by the outputs before them where they are fed back.

        Args:
            x: (B, T[, D]) outputs; only those before each step are used, and only with feedback.
            inputs: as given to the model. lengths: (B,) or None.
            previous: (B[, D]) the outputs before the first step, or None where there are none.

        Returns:
            "initial" -> (B[, U]), of the first step; "transition", "emission" -> (B, T[, U]); None for parts without inputs;
            "sizes" -> (B, T, D) numbers of trials and exposures, None for none.
        """
        given = self.check_inputs(inputs, tuple(x.shape[:2]), lengths)
        result: dict[str, Tensor | None] = {SIZES: sizes_of(inputs)}
        before = None
        for part in PARTS:
            value = given.get(part)
            if value is not None and part in self.feedback:
                if before is None:
                    before = self.outputs_before(x, previous)
                value = self.join(part, value, before)
            result[part] = value if part != "initial" or value is None else value[:, 0]
        return result

    def outputs_before(self, x: Tensor, previous: Tensor | None = None) -> Tensor:
        """(B, T[, D]) the output before each step; missing before the first one unless given."""
        first = self.missing(len(x), 1) if previous is None else previous.unsqueeze(1)
        return torch.cat([first.to(x), x[:, :-1]], 1)

    def join(self, part: str, inputs: Tensor, before: Tensor) -> Tensor:
        """One part's inputs (..., [U]) with the outputs before them (..., [D]) joined.

        Symbols and words become one symbol u (V + 1) + before + 1. Otherwise a vector: the inputs (symbols one-hot), then
        before one-hot, or before and a 1 where all of it is known; zeros where it is missing.
        """
        kind, size = self.sources[part] or ("vectors", 0)
        if self.discrete and kind == "symbols":
            return inputs * (self.num_outputs + 1) + before + 1
        if kind == "symbols":
            inputs = torch.nn.functional.one_hot(inputs, size)
        if self.discrete:
            past = torch.nn.functional.one_hot(before + 1, self.num_outputs + 1)[..., 1:]
        else:
            known = ~before.isnan().any(-1, keepdim=True)
            past = torch.cat([before.nan_to_num(0.0), known.to(before)], -1)
        return torch.cat([inputs.to(self.reference), past.to(self.reference)], -1)

    def source(self, part: str) -> Source | None:
        """Kind and size of what a part's network sees: its inputs, or what :meth:`join` gives; None for nothing."""
        source = self.sources[part]
        if source is None or part not in self.feedback:
            return source
        kind, size = source
        if self.discrete:
            return ("symbols", size * (self.num_outputs + 1)) if kind == "symbols" else (kind, size + self.num_outputs)
        return "vectors", size + self.num_outputs + 1

    # ---------------------------------------------------------------- the public door
    def batch(self, x, lengths=None, *, states=None, inputs=None, rows: bool = False) -> Batch:
        """Data as checked tensors of the model's type and device, in a :class:`~pplseq.infer.fit.em.Batch`.

        Args:
            x: outputs: a tensor or array (B, T[, D]), a list of sequences, or one target a sequence, (B,) or (B, D), which
                then stands at its last step; None where none is known.
            inputs: a tensor, array, list of sequences, or a mapping from parts to such; (B, T) numbers will do for U = 1.
                Inputs (N,) or (N, U), frames and series too, are those of one sequence, and outputs (N[, D]) beside them, too;
                with lengths that sum to N they are several sequences, one behind the other.
            lengths: (B,), of tensors.
            states: observed states like x, negative where unknown, or None.
            rows: whether inputs are known to be rows: then (B, 1) is no question.

        Raises:
            ValueError, TypeError: for what is no such data; says where and what to do.
        """
        device, real = self.reference.device, self.reference.dtype
        if self.discrete:
            refuse_texts(x, "outputs", "x")
        refuse_texts(states, "states", "states")
        if not rows:
            free = all(source in (None, ("vectors", 0)) for source in self.sources.values())
            x, inputs, states, lengths = in_pairs(
                x, inputs, states, lengths, num_features=None if self.discrete else self.num_outputs,
                sizes={part: self._size_of(part) for part in parts_of(inputs)}, alone=free,
            )  # fmt: skip
        inputs, found = self._padded_inputs(inputs)
        known = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        final = x is not None and self._one_target_a_row(x)
        if x is not None and not final:
            vectors = not self.discrete and not _is_flat(x)
            x, own = _padded(x, "x", int(vectors), None if self.discrete else real)
            found |= {} if own is None else {"x": own}
        lengths = _common_lengths(found, lengths)
        if x is None or final:
            if known is None:
                raise ValueError(
                    "inputs: this model has inputs, (B, T, U) of every step, which also say how long rows are; got None"
                )
            x = self.missing(*known.shape[:2]) if x is None else self._final_targets(x, known.shape[:2], lengths)
        elif not self.discrete:
            x = x.unsqueeze(-1) if x.dim() == 2 and self.num_outputs == 1 else x
        elif not x.is_floating_point():  # (what is no integer is refused below)
            x = x.long()
        x, lengths = checks.dense("x", x).to(device), None if lengths is None else lengths.to(device)
        checks.lengths(lengths, x)
        if lengths is not None and bool((lengths == x.shape[1]).all()):
            lengths = None
        if self.columns is not None and lengths is not None:  # zeros may be outside a family
            x = x.masked_fill((torch.arange(x.shape[1], device=device) >= lengths.unsqueeze(-1)).unsqueeze(-1), torch.nan)
        self.check(x)
        checked = self.check_inputs(_on(inputs, device), tuple(x.shape[:2]), lengths)
        if states is not None:
            states = _padded(states, "states", 0, None, fill=-1)[0].to(device)
            checks.states(states, x, self.num_states)
        one = next(iter(checked.values()), None)
        return Batch(x, lengths, states, one if all(value is one for value in checked.values()) else checked)

    def _source_of(self, part: str) -> Source | None:
        """What a part sees, or ("") the first that sees inputs."""
        return next((s for p, s in self.sources.items() if s is not None and part in ("", p)), None)

    def _size_of(self, part: str) -> int | None:
        """U of a part's inputs, None for symbols and for parts without inputs."""
        source = self._source_of(part)
        return source[1] if source is not None and source[0] == "vectors" else None

    def _padded_inputs(self, inputs) -> tuple[Inputs, dict[str, Tensor]]:
        """Inputs as tensors, and the lengths of those that came as lists, by name."""
        found: dict[str, Tensor] = {}
        padded = {}
        for part, value in parts_of(inputs).items():
            name, source = part_name(part), self._source_of(part)
            if source is None:
                takes = ", ".join(p for p, s in self.sources.items() if s is not None)
                raise ValueError(
                    f"{name}: this model takes inputs of: {takes or 'no part'}"
                    + ("" if part in ("", *PARTS) else "; of a table of columns write pandas.DataFrame(inputs)")
                )
            vectors, real = source[0] == "vectors", self.reference.dtype
            flat = source == ("vectors", 1) and _is_flat(value)  # single numbers, where there is one input
            padded[part], own = _padded(value, name, int(vectors and not flat), real if vectors else None)
            padded[part] = padded[part].unsqueeze(-1) if flat else padded[part]
            found |= {} if own is None else {name: own}
        return (padded or None if isinstance(inputs, Mapping) else padded.get("")), found

    def _one_target_a_row(self, x) -> bool:
        if isinstance(x, (list, tuple)):
            return len(x) > 0 and np.ndim(x[0]) == 0
        return np.ndim(x) == 1 or (np.ndim(x) == 2 and not self.discrete and x.shape[1] == self.num_outputs != 1)

    def _final_targets(self, x, shape, lengths: Tensor | None) -> Tensor:
        """(B, T[, D]) targets at the last step of each row only."""
        target = checks.numbers("x", x)
        rows = target.to(self.reference.dtype) if target.dim() < 2 else target.to(self.reference.dtype).flatten(1)
        target = target.long() if self.discrete else rows.unsqueeze(-1) if rows.dim() == 1 else rows
        expected = (shape[0],) if self.discrete else (shape[0], self.num_outputs)
        if tuple(target.shape) != expected:
            raise ValueError(f"x: one target a sequence must have shape {expected}, got {tuple(target.shape)}")
        full = self.missing(*shape).to("cpu")
        last = torch.full((shape[0],), shape[1]) if lengths is None else lengths.cpu()
        if bool((last < 1).any()):
            raise ValueError(
                f"x: sequence {int((last < 1).nonzero()[0])} is empty, so that no step can bear its target; leave it out"
            )
        full[torch.arange(shape[0]), last - 1] = target
        return full


class Sight:
    """What the networks of each part see at a step: its inputs, joined by the output before it where that is fed back.

    Attributes:
        first: (B[, U]) what the start distribution sees, or None. sizes: (B, T, D) trials and exposures, or None.
        feeding: whether outputs are fed back as they are generated, so that steps come one after the other.
    """

    def __init__(self, form: IOFormat, given: Given, inputs: Inputs, previous: Tensor | None):
        self._format, self.feeding = form, given.generates and bool(form.feedback)
        values = form.missing(*given.shape) if given.x is None else given.x
        self._parts = form.network_inputs(values, inputs, given.lengths, previous)
        self.first, self.sizes = self._parts["initial"], self._parts[SIZES]
        if self.feeding:
            self._parts = self._parts | form.check_inputs(inputs, given.shape, given.lengths)
            self._previous = form.outputs_before(values, previous)[:, 0]

    def __call__(self, part: str, t, before: Tensor | None) -> Tensor | None:
        """(B[, U]); before: what the program has drawn last, which counts only where it generates."""
        value = self._parts[part]
        if value is None:
            return self.sizes[:, t] if part == "emission" and self.sizes is not None else None
        value = value[:, t]
        if self.feeding and part in self._format.feedback:
            value = self._format.join(part, value, self._previous if before is None else before)
        return value if part != "emission" or self.sizes is None else beside(value, self.sizes[:, t])


def sizes_of(inputs: Inputs) -> Tensor | None:
    """Numbers of trials and exposures that go with inputs."""
    return inputs.get(SIZES) if isinstance(inputs, Mapping) else None


def beside(value: Tensor | None, sizes: Tensor) -> Tensor:
    """What emissions see, (*B[, U]) or nothing, and sizes (*B, D) behind it, as :func:`apart` takes it apart."""
    if value is None:
        return sizes
    return torch.cat([(value if value.dim() == sizes.dim() else value.unsqueeze(-1)).to(sizes), sizes], -1)


def apart(value: Tensor, num_outputs: int, symbols: bool) -> tuple[Tensor, Tensor]:
    own = value[..., :-num_outputs]
    return own[..., 0].long() if symbols else own, value[..., -num_outputs:]


def _on(inputs: Inputs, device) -> Inputs:
    if isinstance(inputs, Mapping):
        return {part: checks.dense(f"inputs[{part!r}]", value).to(device) for part, value in inputs.items()}
    return None if inputs is None else checks.dense("inputs", inputs).to(device)


def _common_lengths(found: dict[str, Tensor], lengths) -> Tensor | None:
    """The lengths of sequences that came as lists, by name, or else those given."""
    if not found:
        return None if lengths is None else checks.numbers("lengths", lengths)
    if lengths is not None:
        raise ValueError("lengths: sequences in a list have their own lengths; leave lengths out")
    (name, first), *others = found.items()
    for other, own in others:
        if len(own) != len(first):
            raise ValueError(
                f"{other}: {len(own)} sequences, but {name} holds {len(first)}; inputs and outputs go in pairs"
            )
        if not torch.equal(own, first):
            row = int((own != first).nonzero()[0])
            raise ValueError(
                f"{other}: sequence {row} has {own[row]} steps, but that of {name} has {first[row]}; every output needs the "
                "input of its step"
            )
    return first


def _is_flat(x) -> bool:
    """Whether sequences are of scalars."""
    if isinstance(x, (list, tuple)):
        return len(x) > 0 and np.ndim(x[0]) == 1
    return np.ndim(x) == 2


def _padded(value, name: str, event_dims: int, dtype, fill: float = 0) -> tuple[Tensor, Tensor | None]:
    """A tensor, and lengths where the value was a list."""
    if isinstance(value, (list, tuple)):
        return pad_sequences(value, event_dims=event_dims, dtype=dtype, fill=fill, name=name)
    if not isinstance(value, (np.ndarray, Tensor)):
        raise checks.no_sequences(name, value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = of_objects(value, event_dims or None, name)
    value = torch.as_tensor(checks.for_torch(value))
    return (value if dtype is None else value.to(dtype)), None
