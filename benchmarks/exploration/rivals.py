"""The names of the tasks and of the rivals that `benchmarks.exploration` compares.

All train the same model with DiffusionNFT on the same GPUs of the test-bed: four reserved ones that
train and eight spot ones, except where a rival's title says otherwise. `settings` has what differs
in their jobs.
"""

from __future__ import annotations

MIXED_TASKS = ("ocr-mixed", "compositional-mixed")
"""Those of the tasks whose prompts range from solved to hopeless, as GenEval's do."""
TASKS = ("ocr", "compositional", *MIXED_TASKS)
"""Each has the model and the reward of the example that it begins with."""
STRICT, LONG = "compositional-strict", "ocr-20-steps"
LONG_STEPS = 20
LADDER_TASKS = (STRICT, LONG)
"""Tasks of the ladder of rivals alone, of which there are few runs: the mixed compositional prompts
with a reward that is 0 or 1, and the OCR task with samples that take 20 steps."""

RESERVED_GPUS, SPOT_GPUS = 4, 8
ALL_GPUS = RESERVED_GPUS + SPOT_GPUS

OURS = "spotlight"
REFERENCE = "rollouts"
"""Its scores are the levels that all are timed at, and its time is the limit of all."""

RIVALS = {
    REFERENCE: "reserved and spot rollouts",
    OURS: "Spotlight",
    "reserved": "reserved only",
    "data-parallel": "all twelve train",
    "published": "all twelve, published DiffusionNFT",
    "pipelined": "spot rollouts, one step behind",
    "uniform": "Spotlight, uniform previews",
    "regenerate": "Spotlight, chosen seeds made again",
    "inline": "exploration that is waited for",
}
"""The title of each rival in plots by its name, in the order of their importance, in which their
runs are made."""

EXPLORING = (OURS, "uniform", "regenerate", "inline")
"""They train on few samples that were chosen, the others on many that were not."""
WHOLE = (REFERENCE, "reserved")
"""Rivals whose runs are never ended early: one of them sets the target."""


def example_of(task: str) -> str:
    """The example whose model the task has."""
    return task.partition("-")[0]
