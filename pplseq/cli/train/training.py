"""What `pplseq train` does once its settings are known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import pyro
import torch

from pplseq.baselines import NETWORKS
from pplseq.checks import nearest
from pplseq.cli.train import run
from pplseq.cli.train.config import RunConfig
from pplseq.cli.train.progress import TensorBoard
from pplseq.data.text import Corpus
from pplseq.folder import whole_folder
from pplseq.models.texts import check_same_text, validation
from pplseq.runs.checkpoint import only_one_run
from pplseq.runs.progress import TrainingBar
from pplseq.runs.settings import History, TrainSettings
from pplseq.runs.training import model_device, train

TRAINED = ("vlhmm", "hmm", *NETWORKS)  # models of words that are trained on text


def run_training(config: RunConfig, folder: Path, resume: bool) -> None:
    """Train as `config` says in `folder`, with a bar on stderr and a summary on stdout."""
    if config.model.replace("-", "_") == "text_lds":
        raise ValueError(
            "a text_lds is fitted to counts, not to batches of text: `pplseq count SOURCE --max-lag 7 --out COUNTS`, then "
            "`pplseq lds fit COUNTS --out RUN`"
        )
    if config.model not in TRAINED:
        raise ValueError(f"unknown model {config.model!r}.{nearest(config.model, TRAINED)}")
    _prepare_folder(config, folder, resume)
    device = run.choose_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    corpus = run.build_corpus(config)
    run.check_sizes(config, len(corpus.vocabulary))
    with only_one_run(folder):
        _prepare_folder(config, folder, resume)  # again: another process may have been faster
        _train_in(config, folder, resume, corpus, device)


def _train_in(config: RunConfig, folder: Path, resume: bool, corpus: Corpus, device: torch.device) -> None:
    check_same_text(folder, corpus.train, resume, corpus.name)
    config.save(folder / "config.toml")
    clusters = run.build_clusters(config, corpus, folder)
    pyro.clear_param_store()
    pyro.set_rng_seed(config.seed)
    model = run.build_model(config, corpus.vocabulary, clusters).to(device)
    network = config.model in NETWORKS
    if not network:  # which has its vocabulary with it
        model.vocabulary, model.clusters = corpus.vocabulary, clusters
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    click.echo(
        f"{config.model}: {config.hidden if network else config.num_states:,} {'units' if network else 'states'}, "
        f"{len(corpus.vocabulary):,} words, {num_weights:,} weights, "
        f"{device}; {corpus.name}: {corpus.train.num_tokens:,} training tokens",
        err=True,
    )
    history = _fit(config, model, corpus, folder, resume)
    best = history.progress.best
    summary = {
        "run": str(folder),
        "stop_reason": history.stop_reason,
        "steps": history.progress.step,
        "seconds": round(history.progress.seconds, 1),
    }
    if math.isfinite(best):
        summary |= {
            "protocol": run.protocol_of(config),
            "best_step": history.progress.best_step,
            "nats_per_token": best,
            "perplexity": math.exp(best),
        }
    click.echo(json.dumps(summary))


def _fit(config: RunConfig, model: Any, corpus: Corpus, folder: Path, resume: bool) -> History:
    by_em = config.model == "hmm" and config.method == "em"
    if by_em:
        batches = run.build_em_batches(corpus.train, model_device(model))
    else:
        batches = run.build_batches(config, corpus.train)
    settings = TrainSettings(
        **{name: getattr(config, name) for name in TrainSettings.__dataclass_fields__ if hasattr(config, name)}
    )
    num_steps = config.epochs * (1 if by_em else len(batches))
    bar = TrainingBar(num_steps if config.max_time is None else None)
    watchers = [bar, *([TensorBoard(folder / "tensorboard")] if config.tensorboard else [])]

    def on_record(record: dict[str, Any]) -> None:
        for watcher in watchers:
            watcher.record(record)

    try:
        evaluate = validation(model, corpus.valid, run.protocol_of(config))
        common = dict(
            evaluate=evaluate, settings=settings, folder=folder, resume=resume, on_record=on_record
        )
        if by_em:
            from pplseq.runs.em_training import train_em

            return train_em(model, batches, **common)
        if config.model in NETWORKS:
            from pplseq.baselines.neural import MaximumLikelihood

            model.precision = "bfloat16" if config.normalizer_dtype == "bfloat16" else "full"
            common["elbo"] = MaximumLikelihood
        return train(model, batches, on_step=bar.step, **common)
    except (KeyboardInterrupt, SystemExit):
        if (folder / "last").exists():
            click.echo(f"\nstopped and saved; continue with: pplseq train --resume {folder}", err=True)
        else:
            click.echo("\nstopped before the first step; nothing was saved", err=True)
        raise
    finally:
        for watcher in watchers:
            watcher.close()


def _prepare_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """Refuse a folder that would lose a run, and drop clusters that other settings left behind."""
    begun = whole_folder(folder / "last").exists()
    if resume:
        if not begun:
            raise FileNotFoundError(
                f"{folder} holds no run to resume: it has no last/ checkpoint; start one with --out {folder}"
            )
        return
    if begun:
        raise ValueError(f"{folder} already holds a run; continue it with --resume {folder}, or choose another folder")
    if (
        folder.is_dir()
        and any(path.name != ".lock" for path in folder.iterdir())
        and not (folder / "data.json").exists()
    ):
        raise ValueError(
            f"{folder} is not empty and holds no run; give --out a new folder, so that nothing is overwritten"
        )
    if (folder / "config.toml").exists() and run.saved_config(folder) != config:
        (folder / "clusters.paths").unlink(missing_ok=True)
