"""The settings that are tried for every rival, on the seed that is not measured.

All rivals have the same trials, each a change of one thing. Which of them won, and what the rivals
have of it, stands in `rivals`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.exploration.settings import MOST_ITERATIONS
from spotlight.jobs import JobSpec


def _other_sampler(job: JobSpec) -> dict[str, Any]:
    if job.sampler.steps == 8:
        return {"sampler.solver": "dpmpp_2m", "sampler.steps": 4}
    return {"sampler.solver": "euler", "sampler.steps": 8}


TRIALS: dict[str, Callable[[JobSpec], dict[str, Any]]] = {
    "no-warm-up": lambda job: {"training.warmup_updates": 0},
    "shorter-memory": lambda job: {"training.adam_betas": [0.9, 0.99]},
    "all-flow-times": lambda job: {"training.options.noisiest": 1.0},
    "half-the-samples": lambda job: {
        "prompts.per_iteration": job.prompts.per_iteration // 2,
        "iterations": MOST_ITERATIONS,  # which end sooner
    },
    "twice-the-samples": lambda job: {"prompts.per_iteration": job.prompts.per_iteration * 2},
    "other-sampler": _other_sampler,
    "higher-rate": lambda job: {"training.learning_rate": 1.5 * job.training.learning_rate},
    "lower-rate": lambda job: {"training.learning_rate": job.training.learning_rate / 1.5},
    "slower-old-policy": lambda job: {"training.rollout_decay": 0.5},
}
"""What each trial changes of a rival's job, by its name."""

TOGETHER: dict[str, Callable[[JobSpec], dict[str, Any]]] = {
    "other-sampler-and-lower-rate": lambda job: _other_sampler(job) | TRIALS["lower-rate"](job),
}
"""Two trials that made the same rival faster, on measured seeds."""
