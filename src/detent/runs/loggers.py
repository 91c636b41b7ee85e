"""Optional loggers: TensorBoard and Weights & Biases, as consumers of the stream of records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detent.package import import_optional
from detent.runs.training import Record


def to_tensorboard(records: Iterator[Record], directory: Path) -> Iterator[Record]:
    """Pass the records on, writing each to TensorBoard event files."""
    library, writer = import_optional("tensorboardX", "tensorboard"), None
    try:
        for record in records:
            # Made here because the run has to make its directory first.
            writer = writer or library.SummaryWriter(str(directory / "tensorboard"))
            for key, value in record.items():
                if value is not None:
                    writer.add_scalar(key, value, int(record["time/total_timesteps"] or 0))
            yield record
    finally:
        if writer:
            writer.close()


def to_wandb(records: Iterator[Record], directory: Path, configuration: dict[str, Any]) -> Iterator[Record]:
    """Pass the records on, logging each to Weights & Biases (offline with WANDB_MODE=offline)."""
    library, run = import_optional("wandb", "wandb"), None
    try:
        for record in records:
            run = run or library.init(project="detent", name=directory.name, dir=str(directory), config=configuration)
            run.log(dict(record), step=int(record["time/total_timesteps"] or 0))
            yield record
    finally:
        if run:
            run.finish()
