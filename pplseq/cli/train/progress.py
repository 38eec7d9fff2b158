"""TensorBoard events of a training run, if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class TensorBoard:
    """Every number of metrics.jsonl as a TensorBoard scalar."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise click.UsageError(
                f'--tensorboard needs the package tensorboard: pip install "pplseq[tensorboard]" ({error})'
            ) from error
        self.writer = SummaryWriter(str(folder))

    def record(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
                self.writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        self.writer.close()
