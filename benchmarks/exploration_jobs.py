"""The jobs that `benchmarks.exploration` compares: what differs between methods and tasks.

Methods differ in how many samples they train on, too: each has what it did best with in trials on
seed 0, which is therefore not measured. Without exploration that were 48 of 16, 32 and 48 samples
on the OCR task, and 32 of 32 and 48 on the compositional one; twice the learning rate of the
examples unlearns on both. With exploration 16 samples learn about as much in an iteration as 48
without. All else is as in the examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spotlight.jobs import JobSpec, job_from_data

EXAMPLES = Path(__file__).parents[1] / "examples"

TASKS = ("ocr", "compositional")
METHODS = ("reserved", "rollouts", "inline", "uniform", "spotlight")
"""Reserved workers only; spot workers for rollouts only; exploration with fresh weights on the
critical path; as many previews for every prompt, in idle time; and what Spotlight does."""

PLAIN = ("reserved", "rollouts")

_PLAIN: dict[str, Any] = {
    "iterations": 44,
    "exploration.mode": "none",
    "validation.every": 2,
}
_EXPLORED: dict[str, Any] = {
    "iterations": 120,  # on the test-bed about as long as those of OCR without exploration
    "prompts.per_iteration": 4,
    "group_size": 4,
    "validation.every": 4,
}
_METHOD: dict[str, dict[str, Any]] = {
    "reserved": _PLAIN | {"pools.spot.nodes": 0},
    "rollouts": _PLAIN,
    # Its previews are waited for, so there are fewer; and a bandit with a fixed budget would wait
    # for them again and again.
    "inline": _EXPLORED
    | {
        "exploration.candidates": 4,
        "exploration.mode": "uniform",
        "exploration.weights": "fresh",
        "exploration.budget": "fixed",
    },
    "uniform": _EXPLORED | {"exploration.mode": "uniform"},
    "spotlight": _EXPLORED | {"exploration.mode": "bandit"},
}
_PLAIN_SAMPLES: dict[str, dict[str, Any]] = {
    "ocr": {"prompts.per_iteration": 12, "group_size": 4},
    "compositional": {"prompts.per_iteration": 4, "group_size": 8},
}
_COMMON: dict[str, Any] = {"validation.seeds": 8}
_TASK: dict[str, dict[str, Any]] = {
    # Candidates are a few more than fit into the window: it is the window that limits them.
    "ocr": {
        "exploration.preview_steps": 4,
        "exploration.candidates": 10,
        "training.ema_decay": 0.8,
    },
    # Half the steps say next to nothing here.
    "compositional": {
        "exploration.preview_steps": 8,
        "exploration.candidates": 6,
        "training.ema_decay": 0.9,
    },
}
_SPOTLIGHT: dict[str, dict[str, Any]] = {
    "ocr": {},
    "compositional": {"exploration.prompt_pool": 3},  # its prompts differ more
}
_TESTBED: dict[str, Any] = {
    "sampler.micro_batch": 2,
    "sampler.degree": 1,  # `auto` has two GPUs share two micro-batches now and then, at a loss
    "training.ranks": 4,
    "pools.reserved.workers": 4,
    "pools.spot.nodes": 4,
    "pools.spot.workers": 2,
}


def virtual_job(
    task: str, method: str, seed: int, changes: Mapping[str, Any] | None = None
) -> JobSpec:
    """On four reserved and eight spot GPUs; `changes` are by the path of the field."""
    return _job(task, method, seed, _TESTBED, changes or {})


def two_core_job(task: str, method: str, seed: int) -> JobSpec:
    """One reserved worker, and one spot worker unless the method has none."""
    # Validation takes time here: half the images, and seldom.
    changes: dict[str, Any] = {"validation.seeds": 4, "validation.every": 4}
    if method not in PLAIN:
        # What an iteration costs besides its samples weighs more here than on the test-bed.
        changes |= {
            "iterations": 60,
            "prompts.per_iteration": 8,
            "exploration.candidates": 4,
            "validation.every": 5,
        }
    return _job(task, method, seed, {}, changes)


def _job(
    task: str, method: str, seed: int, machines: Mapping[str, Any], changes: Mapping[str, Any]
) -> JobSpec:
    data: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{task}-tiny.yaml").read_text())
    own = {"name": f"{task}-{method}-{seed}", "seed": seed}
    samples = _PLAIN_SAMPLES[task] if method in PLAIN else {}
    more = _SPOTLIGHT[task] if method == "spotlight" else {}
    parts = (own, _COMMON, machines, _TASK[task], samples, _METHOD[method], more, changes)
    for path, value in (item for part in parts for item in part.items()):
        *sections, field = path.split(".")
        section = data
        for name in sections:
            section = section.setdefault(name, {})
        section[field] = value
    data["checkpoint_every"] = data["iterations"]
    return job_from_data(data)
