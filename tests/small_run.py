"""The run folder of a job that takes a second, and a reward that needs no recogniser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spotlight.jobs import JobSpec, job_from_data, job_to_yaml


class Brightness:
    """Rewards bright images: every image has another reward."""

    def score(self, images: np.ndarray, prompts: Sequence[str]) -> list[float]:
        return [float(image.mean()) / 255 for image in images]


def small_job(**changes: Any) -> JobSpec:
    """`changes` replace sections, or fields of sections where given as mappings."""
    job: dict[str, Any] = {
        "name": "small",
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "prompts": {
            "train": "builtin:ocr-tiny/train",
            "validation": "builtin:ocr-tiny/validation",
            "per_iteration": 1,
        },
        "sampler": {"height": 16, "width": 48, "steps": 2, "micro_batch": 4},
        "group_size": 2,
        "training": {"micro_batch": 4, "options": {"times": 1}, "updates_per_iteration": 2},
    }
    for section, value in changes.items():
        if isinstance(value, dict):
            job[section] = {**job.get(section, {}), **value}
        else:
            job[section] = value
    return job_from_data(job)


def write_run(folder: Path, **changes: Any) -> Path:
    """The folder of a run that was stopped before its first checkpoint."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(job_to_yaml(small_job(**changes)))
    return folder
