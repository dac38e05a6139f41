"""What may be said anew in a job whenever its run is gone on with, and what may not.

What a run has made depends on the fields that are fixed: the weights and the optimizer's state on
the shapes of the model, saved steps on the sampler, saved samples on the rewards, the order of the
prompts on the seed. All others may be changed when a run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from spotlight.errors import JobError
from spotlight.jobs.changes import changed
from spotlight.jobs.loading import job_from_data, job_paths
from spotlight.jobs.spec import JobSpec

FIXED = (
    "name",
    "seed",
    "threads",
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
FREE = ("validation.target",)
"""Paths of fields of these that may be changed all the same: nothing was made from them."""
KEPT_ZERO = ("training.kl", "training.rollout_decay")
"""Paths of fields whose number may change, but not to 0 or from 0: with 0 the state of training
lacks the weights that the others need."""


class Changed(NamedTuple):
    """A field that differs."""

    path: str
    born: Any
    """What it was when the run began, or its segment."""
    now: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.born} -> {self.now}"


def changed_field(born: JobSpec, now: JobSpec) -> Changed | None:
    """The first field that must be as it was at the run's birth, and is not; None if all are."""
    return next((each for each in differences(born, now) if _is_fixed(each)), None)


def differences(born: JobSpec, now: JobSpec) -> list[Changed]:
    """The fields in which two jobs differ, in the order of a job."""
    return [*_differences("", msgspec.to_builtins(born), msgspec.to_builtins(now))]


def job_with(job: JobSpec, changes: Sequence[str]) -> JobSpec:
    """The job of a run with changes, each `path=value`. Raises `JobError` for one that cannot be
    made, or that a run may not have."""
    if not changes:
        return job
    data = msgspec.json.decode(msgspec.json.encode(job))  # as a file has it: lists, not tuples
    now = job_from_data(changed(data, changes, job_paths()))
    refused = changed_field(job, now)
    if refused is not None:
        raise JobError(
            f"--set {refused.path}",
            f"was {refused.born} when the run began, on which what is there depends, and cannot"
            f" become {refused.now}; leave it out, or begin a new run (`model.start` begins one"
            " with the weights of this run)",
        )
    return now


def _is_fixed(change: Changed) -> bool:
    if change.path in KEPT_ZERO:
        return not change.born or not change.now
    if change.path in FREE:
        return False
    return any(f"{change.path}.".startswith((f"{path}.", f"{path}[")) for path in FIXED)


def _differences(path: str, born: Any, now: Any) -> Iterator[Changed]:
    if isinstance(born, dict) and isinstance(now, dict):
        for key in now:
            below = f"{path}.{key}" if path else key
            yield from _differences(below, born.get(key), now[key])
    elif born != now:
        yield Changed(path, born, now)
