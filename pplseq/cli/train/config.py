"""The settings of `pplseq train`: one table that gives the flags, the TOML keys, their types, defaults and help."""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click

from pplseq.checks import nearest


def _setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    flag: str = "",
    fixed: bool = True,
    duration: bool = False,
    models: tuple[str, ...] = (),
) -> Any:
    """A field of `RunConfig`.

    `fixed`: part of what a resumed run continues, so it cannot be given with --resume. `models`: those that read it; all if
    empty.
    """
    metadata = {"help": help, "choices": choices, "flag": flag, "fixed": fixed, "duration": duration, "models": models}
    return field(default=default, metadata=metadata)


@dataclass
class RunConfig:
    """A run, in full. A flag wins over the TOML file, the file wins over these defaults."""

    model: str = _setting("vlhmm", "Registered model: vlhmm, hmm; a network: rnn, lstm, ff.", flag="none")
    data: str = _setting(
        "", "Corpus: builtin:python, builtin:generated, hf:NAME[/CONFIG], a folder, or a text file.", flag="none"
    )

    min_count: int | None = _setting(
        None, "Words rarer than this in the training text become <unk> (default: 2 where needed)."
    )
    max_vocabulary: int | None = _setting(None, "Keep this many words, the most frequent.")
    lower: bool = _setting(False, "Lower-case the text.", flag="--lower/--no-lower")

    states: int | None = _setting(None, "States Z (default: 4096 for vlhmm, 64 for hmm).", models=("vlhmm", "hmm"))
    num_blocks: int = _setting(
        128, "Blocks M of words; each has Z / M states.", flag="--num-blocks,--blocks-count", models=("vlhmm",)
    )
    block_sizes: str = _setting(
        "even",
        "States of a block: the same for all, or more for blocks of frequent words (by the root of their counts).",
        choices=("even", "frequency"),
        models=("vlhmm",),
    )
    blocks: str = _setting(
        "brown", "brown, uniform, none, or a `paths` file written by `pplseq cluster`.", models=("vlhmm",)
    )
    eos_block: bool = _setting(
        True, "Give <eos> a block of its own.", flag="--eos-block/--no-eos-block", models=("vlhmm",)
    )
    exchange_passes: int = _setting(
        0, "Passes that improve the Brown clusters word by word (3 gain 3 % of information).", models=("vlhmm",)
    )
    hidden: int = _setting(
        256,
        "Width h of the state embeddings and residual layers; units of a network's layers.",
        models=("vlhmm", "rnn", "lstm", "ff"),
    )
    layers: int = _setting(2, "Layers of an lstm.", models=("lstm",))
    order: int = _setting(5, "n of the n-grams of ff: it sees n - 1 words.", models=("ff",))
    parameterization: str = _setting(
        "independent", "State tables.", choices=("independent", "factored", "scalar"), models=("vlhmm",)
    )
    tied: bool = _setting(
        True, "One embedding table for start, transition and emission.", flag="--tied/--untied", models=("vlhmm",)
    )
    dropout: float | None = _setting(
        None,
        "Share of each block's states (0.5 for vlhmm), or of a network's units (0.3), left out of a training step.",
        models=("vlhmm", "lstm", "ff"),
    )
    reset: bool = _setting(
        True,
        "After <eos> the state starts afresh, in training and evaluation.",
        flag="--reset/--no-reset",
        models=("vlhmm",),
    )
    init: str = _setting("normal", "Initialisation of the embeddings.", choices=("normal", "xavier"), models=("vlhmm",))
    init_scale: float = _setting(0.1, "Standard deviation of the normal initialisation.", models=("vlhmm",))
    temperature: float = _setting(
        1.0, "Divides the transition scores; sqrt(hidden) keeps bfloat16 honest.", models=("vlhmm",)
    )
    normalizer_dtype: str = _setting(
        "float32",
        "Products in the training normaliser (of a network: of its softmax); evaluation is exact.",
        choices=("float32", "bfloat16"),
        models=("vlhmm", "rnn", "lstm", "ff"),
    )
    method: str = _setting(
        "em", "How to fit `hmm`; vlhmm is always trained by gradient (sgd).", choices=("em", "sgd"), models=("hmm",)
    )

    concentration: float = _setting(
        1.01, "Dirichlet concentration of EM's tables; 1 is maximum likelihood.", models=("hmm",)
    )

    protocol: str = _setting(
        "carried", "Batches: streams with the belief carried over, or sentences.", choices=("carried", "sentence")
    )
    shuffle: str = _setting("line", "What is permuted each epoch.", choices=("line", "article", "none"))
    batch_size: int = _setting(16, "Streams B (carried).")
    segment_length: int = _setting(32, "Tokens T of each stream in a step (carried).")
    batch_tokens: int = _setting(512, "Tokens of a step (sentence).")

    lr: float | None = _setting(None, "AdamW's learning rate (default: 0.003; 0.001 for networks).")
    weight_decay: float = _setting(0.0, "AdamW's weight decay.")
    clip: float | None = _setting(5.0, "Largest gradient norm, or none.")
    epochs: int = _setting(50, "Passes over the training text, at most.", fixed=False)
    max_time: float | None = _setting(
        None, "Stop after this long: 90s, 10m, 2h, or seconds.", duration=True, fixed=False
    )
    validate_per_epoch: int = _setting(4, "Validations per epoch.")
    patience: int | None = _setting(
        4, "Validations without a new best before the learning rate is divided by 4, or none."
    )
    schedule: str = _setting(
        "plateau",
        "Learning rate: divided by 4 when validation stalls, or falling linearly to zero over --epochs.",
        choices=("plateau", "linear"),
    )
    early_stop: int | None = _setting(None, "Stop after this many validations without a new best.", fixed=False)
    log_interval: int = _setting(20, "Steps between two records in metrics.jsonl.")

    seed: int = _setting(0, "Seed of the initial weights, the order of batches and the dropout.")
    device: str = _setting("auto", "cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.", fixed=False)
    threads: int | None = _setting(None, "CPU threads (default: torch's own choice).", fixed=False)
    tensorboard: bool = _setting(
        False, "Also write TensorBoard events into the run folder.", flag="--tensorboard/--no-tensorboard", fixed=False
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            choices = setting.metadata["choices"]
            value = getattr(self, setting.name)
            if choices and value not in choices:
                raise ValueError(
                    f"{setting.name} must be one of {', '.join(choices)}, got {value!r}.{nearest(str(value), choices)}"
                )
        if not self.concentration >= 1.0:
            raise ValueError(
                f"concentration must be at least 1 (below it the most probable tables are degenerate), got {self.concentration}"
            )
        from pplseq.baselines import NETWORKS

        network = self.model in NETWORKS
        if self.dropout is None:
            self.dropout = 0.3 if network else 0.5
        if self.lr is None:
            self.lr = 0.001 if network else 0.003
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        for name in (
            "states",
            "num_blocks",
            "hidden",
            "layers",
            "order",
            "batch_size",
            "segment_length",
            "batch_tokens",
            "min_count",
            "threads",
            "init_scale",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")

        # The run's folder keeps the path, and --resume may be called from anywhere.
        for name in ("data", "blocks"):
            path = getattr(self, name)
            if path and Path(path).exists():
                setattr(self, name, str(Path(path).resolve()))

    @property
    def num_states(self) -> int:
        return self.states if self.states is not None else {"hmm": 64}.get(self.model, 4096)

    def save(self, path: Path) -> None:
        """Write the settings as TOML that `--config` reads back; those that are None are left out."""
        lines = ["# The settings of this run: pplseq train --config config.toml --out ANOTHER_FOLDER"]
        for setting in fields(self):
            value = getattr(self, setting.name)
            if value is None and setting.default is not None:
                value = "none"
            if value is not None:
                # JSON's strings, numbers and booleans are TOML's too.
                lines.append(f"{setting.name} = {json.dumps(value, ensure_ascii=False)}")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file.

    Raises:
        ValueError: for a file that is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a click command `--config FILE`: TOML whose keys are the command's own options; a flag wins over the file."""

    def load(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
        if path is None:
            return
        options = {p.name: p for p in ctx.command.params if isinstance(p, click.Option) and p.name != parameter.name}
        defaults = {}
        for key, value in read_toml(path).items():
            name = key.replace("-", "_")
            if name not in options:
                raise ValueError(f"{path}: unknown key {key!r}.{nearest(name, options)}")
            if isinstance(value, list) and not options[name].multiple:
                value = ",".join(map(str, value))
            defaults[name] = value
        ctx.default_map = {**(ctx.default_map or {}), **defaults}

    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=load,
        help="Settings as TOML, named as the flags are; a flag wins over the file.",
    )(command)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, checked against `RunConfig`.

    Raises:
        ValueError: for a file that is not TOML, an unknown key (naming the nearest), or a value of the wrong type.
    """
    table = read_toml(path)
    settings = {setting.name: setting for setting in fields(RunConfig)}
    known = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in settings:
            raise ValueError(f"{path}: unknown key {key!r}.{nearest(name, settings)}")
        known[name] = parse_value(settings[name], value, where=f"{path}: {key}")
    return known


def parse_value(setting: Any, value: Any, *, where: str) -> Any:
    """Check (and for text from the command line, convert) one value; `none` stands for None where None is allowed."""
    kind, optional = _kind(setting)
    if optional and isinstance(value, str) and value.lower() == "none":
        return None
    if setting.metadata["duration"]:
        return _seconds(value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"{where} must be {_KIND_NAMES[kind]}{' or none' if optional else ''}, got {value!r}")
    return value


def merge(file: dict[str, Any], flags: dict[str, Any]) -> RunConfig:
    """Flags over file over defaults."""
    return RunConfig(**{**file, **flags})


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command one option per setting; those not on the command line do not reach `given_flags`."""
    for setting in reversed(fields(RunConfig)):
        if setting.metadata["flag"] == "none":
            continue
        kind, optional = _kind(setting)
        default = "none" if setting.default is None and setting.metadata["duration"] else setting.default
        text = setting.metadata["help"] + ("" if setting.default is None else f"  [default: {default}]")
        option_kind: Any = _Flag(setting) if optional or setting.metadata["duration"] else kind
        if setting.metadata["choices"]:
            option_kind = click.Choice(setting.metadata["choices"])
        names = (
            setting.metadata["flag"].split(",") if setting.metadata["flag"] else ["--" + setting.name.replace("_", "-")]
        )
        attributes = {} if kind is bool else {"type": option_kind}
        command = click.option(*names, setting.name, default=None, help=text, **attributes)(command)
    return command


def refuse_foreign(model: str, names: Iterable[str]) -> None:
    """Raise click.UsageError for a flag that the model does not read: it would change nothing, unnoticed."""
    readers = {setting.name: setting.metadata["models"] for setting in fields(RunConfig)}
    known = {reader for some in readers.values() for reader in some}
    for name in names if model in known else ():
        if readers[name] and model not in readers[name]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is a setting of {', '.join(readers[name])}; {model} does not read it, leave it out"
            )


def given_flags(parameters: dict[str, Any], ctx: click.Context) -> dict[str, Any]:
    """The settings that stand on the command line."""
    source = click.core.ParameterSource.COMMANDLINE
    return {name: value for name, value in parameters.items() if ctx.get_parameter_source(name) is source}


class _Flag(click.ParamType):
    """A number (or duration) that may also be `none`."""

    def __init__(self, setting: Any) -> None:
        self.setting, (self.kind, _) = setting, _kind(setting)
        self.name = "duration" if setting.metadata["duration"] else {int: "integer", float: "float"}[self.kind]

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            if self.name != "duration" and isinstance(value, str) and value.lower() != "none":
                value = self.kind(value)
            return parse_value(self.setting, value, where="it")
        except (ValueError, TypeError):
            self.fail(
                f"{value!r} is not {_KIND_NAMES[self.kind]}"
                f"{' of seconds, 90s, 10m or 2h' if self.name == 'duration' else ' or none'}"
            )


_KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def _kind(setting: Any) -> tuple[type, bool]:
    """(type, whether None is allowed) of a field."""
    hint = typing.get_type_hints(RunConfig)[setting.name]
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None)), True
    return hint, False


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, str):
        units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        number, unit = (value[:-1], units[value[-1]]) if value[-1:] in units else (value, 1)
        try:
            value = float(number) * unit
        except ValueError:
            raise ValueError(f"{where} must be seconds, or like 90s, 10m, 2h; got {value!r}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise ValueError(f"{where} must be positive seconds, or like 90s, 10m, 2h; got {value!r}")
    return float(value)


DURATION = _Flag(RunConfig.__dataclass_fields__["max_time"])  # for options of other commands
