"""Spotlight: reinforcement-learning post-training of Diffusion Transformers on reserved and spot
GPUs.

As a library it prints nothing, handles no signals and owns no event loop. What is named here is
imported when it is first used, and none of it loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotlight.errors import StopJob
    from spotlight.jobs import JobSpec
    from spotlight.running.run import RunSummary, run, run_blocking
    from spotlight.trackers import Callback

__version__ = "0.1.0"

_HOMES = {
    "Callback": "spotlight.trackers",
    "JobSpec": "spotlight.jobs",
    "RunSummary": "spotlight.running.run",
    "StopJob": "spotlight.errors",
    "run": "spotlight.running.run",
    "run_blocking": "spotlight.running.run",
}

__all__ = ["Callback", "JobSpec", "RunSummary", "StopJob", "run", "run_blocking"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `spotlight` has no attribute `{name}`")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
