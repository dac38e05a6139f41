"""Records of a run as numbers with names, as trackers of experiments show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from spotlight.record.run_metrics import ValidationMetrics
from spotlight.trackers.callback import IterationRecord

_STEPS = ("iteration", "weights_version", "kind", "time_s", "at")
"""What says where a number belongs, and is none to plot."""


def iteration_scalars(record: IterationRecord) -> dict[str, float]:
    """The numbers of an iteration, by `iteration/NAME`, and those of its loss, by `loss/NAME`."""
    return {
        **_numbers("iteration", msgspec.to_builtins(record.metrics)),
        **_numbers("loss", record.loss),
    }


def validation_scalars(metrics: ValidationMetrics) -> dict[str, float]:
    """The numbers of a validation, by `validation/NAME`."""
    return _numbers("validation", msgspec.to_builtins(metrics))


def _numbers(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Numbers alone, those of sections by `PREFIX/SECTION/NAME`."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and name not in _STEPS:
            found[f"{prefix}/{name}"] = float(value)
    return found
