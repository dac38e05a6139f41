"""The jobs of the rivals on the test-bed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.exploration.rivals import EXPLORING, MIXED_TASKS, SPOT_GPUS, STRICT, example_of
from benchmarks.exploration.settings import GPUS_OF_SPOT_NODE, settings
from spotlight.jobs import JobSpec, job_from_data

_EXAMPLES = Path(__file__).parents[2] / "examples"


def virtual_job(
    task: str,
    rival: str,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    *,
    profile: str = "",
) -> JobSpec:
    """`changes` are by the path of the field. Raises `JobError`."""
    example = f"{example_of(task)}-tiny"
    data: dict[str, Any] = yaml.safe_load((_EXAMPLES / f"{example}.yaml").read_text())
    data |= {"name": f"{task}-{rival}-{seed}", "seed": seed}
    if task in (*MIXED_TASKS, STRICT):
        for part in ("train", "validation"):
            data["prompts"][part] = f"builtin:{example}/mixed-{part}"
    data["exploration"]["preview_steps"] = None  # as many as a rollout has
    own = settings(rival, task, profile) | dict(changes or {})
    return job_from_data(with_changes(data, {"checkpoint_every": own["iterations"]} | own))


def with_changes(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same data, changed; sections that it lacks are made."""
    for path, value in changes.items():
        *sections, field = path.split(".")
        section = data
        for name in sections:
            section = section.setdefault(name, {})
        section[field] = value
    return data


def with_spot_gpus(task: str, rival: str, gpus: int) -> dict[str, Any]:
    """What changes in a job when the spot pool has so many GPUs."""
    own = settings(rival, task, "")
    changes = {}
    if own["pools.spot.nodes"]:
        changes["pools.spot.nodes"] = gpus // GPUS_OF_SPOT_NODE
    if gpus > SPOT_GPUS and rival in EXPLORING:
        changes["exploration.candidates"] = own["exploration.candidates"] * gpus // SPOT_GPUS
    return changes
