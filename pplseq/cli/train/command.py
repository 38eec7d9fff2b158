"""`pplseq train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pplseq.cli.train.config import RunConfig, flags, given_flags, merge, read_config, refuse_foreign


@click.command()
@click.argument("model", required=False)
@click.argument("data", required=False)
@click.option("--out", "out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the new run.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings as TOML, named as the flags are.",
)
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Continue a run's folder where it stopped, to the same numbers."
)
@flags
@click.pass_context
def train(
    ctx: click.Context, out: Path | None, config_file: Path | None, resume: Path | None, **parameters: Any
) -> None:
    """Train MODEL (vlhmm, hmm, or a network: rnn, lstm, ff) on DATA.

    DATA is builtin:python, builtin:generated, hf:NAME, a folder, or a text file. Input-output HMMs, on tables or labelled
    strings, have options of their own: `pplseq train iohmm --help`.

    A flag wins over the TOML file, the file wins over the defaults. The run's folder gets config.toml, metrics.jsonl,
    clusters.paths, and the checkpoints best/ and last/. Ctrl-C and SIGTERM save before they stop.
    """
    given = given_flags(parameters, ctx)
    if resume is not None:
        config = _resumed(resume, given, out, config_file)
    else:
        if out is None:
            raise click.UsageError("give the new run a folder with --out RUN, or continue one with --resume RUN")
        config = merge(read_config(config_file) if config_file else {}, given)
        refuse_foreign(config.model, given)
        if not config.data:
            raise click.UsageError(
                "give a MODEL and DATA, for example: pplseq train vlhmm builtin:python --out runs/first"
            )

    from pplseq.cli.train.training import run_training

    run_training(config, resume or out, resume=resume is not None)


def _resumed(run: Path, given: dict[str, Any], out: Path | None, config_file: Path | None) -> RunConfig:
    from pplseq.cli.train.run import saved_config

    if out is not None or config_file is not None:
        raise click.UsageError(
            "--resume continues a run in its own folder with its own settings: leave out --out and --config"
        )
    free = {name for name, setting in RunConfig.__dataclass_fields__.items() if not setting.metadata["fixed"]}
    if fixed := sorted(given.keys() - free):
        raise click.UsageError(
            f"--resume continues a run with its own settings, so {', '.join(fixed)} cannot change; "
            f"only these can: {', '.join(sorted(free))}"
        )
    settings = {name: getattr(saved_config(run), name) for name in RunConfig.__dataclass_fields__}
    return RunConfig(**{**settings, **given})
