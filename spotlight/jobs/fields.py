"""What every section of a job is made of: its limits, and how a field is refused."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spotlight.files import path_problem

# Limits are far above what trains, and below what would fill the memory of a machine: a number with
# a few zeros too many is refused here, and not found out by an hour of waiting.
MOST_STEPS = 1000
"""Denoising steps: the schedules of flow-matching models are trained with so many."""
MOST_PIXELS = 4096 * 4096
"""Most pixels of an image."""
MOST_FRAMES = 4097
"""Most frames of a video: four minutes at 16 a second, which is far more than models make."""
MOST_IN_BATCH = 4096
"""Images in one forward pass."""
MOST_SAMPLES = 16_384
"""Most samples in an iteration: the order to train names each of them, in one frame of 16 MiB."""
MOST_PREVIEWS = 262_144
"""Most previews in an iteration: the coordinator holds a request for each."""
MOST_ITERATIONS = 1_000_000
MOST_REPEATS = 1000
"""Images of a prompt, draws of a sample, tries of a batch."""
MOST_TARGETS = 1000
"""Modules with adapters, when each layer is named for itself."""
MOST_REWARDS = 16
"""Each scores every image."""
LARGEST_REWARD = 1e9
"""The largest absolute value of a reward, and of its weight: what is larger comes from a broken
scorer."""
LONGEST_SCORING_S = 86_400.0
"""The longest scoring of one batch: a scorer that takes longer hangs."""
HIGHEST_BUDGET = 1e12
"""More money, or hours, than anybody has."""
GREATEST_RANK = 8192
"""The greatest rank of adapters, and their scale: the layers that they adapt are hardly larger."""
LONGEST_PROMPT = 10_000
"""Characters: far more than text encoders read."""
MOST_THREADS = 256
MOST_WORKERS_OF_NODE = 256
"""Far more than accelerators fit into a machine."""
MOST_WORKERS = 1024
"""Most workers on this machine: each is a process."""


Positive = Annotated[float, msgspec.Meta(gt=0)]
Weight = Annotated[float, msgspec.Meta(ge=0)]
"""How much one part of a loss counts."""
Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]
"""How much an average that follows something keeps of itself."""
Threads = Annotated[int, msgspec.Meta(ge=1, le=MOST_THREADS)]
GuidanceScale = Annotated[float, msgspec.Meta(ge=1, extra={"hint": "1 means no guidance"})]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One section of a job."""


def require(condition: bool, field: str, problem: str) -> None:
    """Raise a `ValueError` that `load_job` turns into a `JobError` with the full path."""
    if not condition:
        raise ValueError(f"{field}|{problem}")


def require_path(field: str, value: str) -> None:
    problem = path_problem(value)
    require(problem is None, field, str(problem))
