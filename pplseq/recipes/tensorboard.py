"""The numbers of metrics.jsonl for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class TensorBoard:
    """Every number of metrics.jsonl as a TensorBoard scalar."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                f'tensorboard needs the package of that name: pip install "pplseq[tensorboard]" ({error})'
            ) from error
        self.writer = SummaryWriter(str(folder))

    def record(self, record: dict[str, Any]) -> None:
        """A record, as it is written."""
        for name, value in record.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
                self.writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
