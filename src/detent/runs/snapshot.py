"""The state of training at one moment, as stored in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Snapshot:
    """Everything that training needs to continue as if it had never stopped."""

    tensors: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]
    """`iteration` and `steps`."""
