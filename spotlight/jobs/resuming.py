"""What must be the same in a job whenever its run is gone on with.

What a run has made depends on these fields: the weights and the optimizer's state on the shapes of
the model, saved steps on the sampler, saved samples on the rewards, the order of the prompts on
the seed. All others may be said anew in the `config.yaml` of a run folder before it is resumed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from spotlight.jobs.spec import JobSpec

FIXED = (
    "name",
    "seed",
    "threads",
    "iterations",
    "group_size",
    "model",
    "prompts",
    "sampler",
    "rewards",
    "exploration",
    "validation",
    "training.loss",
    "training.updates_per_iteration",
)
"""Paths of fields and of whole sections."""


class Changed(NamedTuple):
    """A field that must not differ, and does."""

    path: str
    born: Any
    """What it was when the run began."""
    now: Any


def changed_field(born: JobSpec, now: JobSpec) -> Changed | None:
    """The first field that must be as it was at the run's birth, and is not; None if all are."""
    before, after = msgspec.to_builtins(born), msgspec.to_builtins(now)
    for path in FIXED:
        found = _difference(path, _at(before, path), _at(after, path))
        if found is not None:
            return found
    return None


def _at(data: Any, path: str) -> Any:
    for name in path.split("."):
        data = data[name]
    return data


def _difference(path: str, born: Any, now: Any) -> Changed | None:
    if isinstance(born, dict) and isinstance(now, dict):
        inside = (_difference(f"{path}.{key}", born.get(key), now[key]) for key in now)
        return next((found for found in inside if found is not None), None)
    return None if born == now else Changed(path, born, now)
