"""What the rivals' jobs on the test-bed have that the job of the example has not, as one table.

A job has the changes of every row that is for it; where two rows change the same, the later one
counts.

How many samples an iteration has is what did best in trials on seed 0, before other settings were
tuned: without exploration 48 of 16, 32 and 48 samples on the OCR task, and 32 of 32 and 48 on the
compositional one; with exploration 16. Twice the learning rate of the examples unlearns on both.
What the trials of `trials` find better for a rival belongs here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.exploration.rivals import (
    EXPLORING,
    LONG,
    LONG_STEPS,
    OURS,
    REFERENCE,
    RIVALS,
    SPOT_GPUS,
    STRICT,
    WHOLE,
    example_of,
)

OCR, COMPOSITIONAL = "ocr", "compositional"
GPUS_OF_SPOT_NODE = 2

_PLAIN = [rival for rival in RIVALS if rival not in EXPLORING]
"""They train on many samples that were not chosen."""
_TUNED = [rival for rival in RIVALS if rival != "published"]
_ON_ALL_TWELVE = ("data-parallel", "published")

MOST_ITERATIONS = 400
"""More than any rival makes in the time that it is given."""


@dataclass(frozen=True)
class Row:
    """Changes of a job, by the path of the field, and which jobs they are for."""

    changes: Mapping[str, Any]
    rivals: Collection[str] = tuple(RIVALS)
    example: str | None = None
    """The example that the task begins with; None: any."""
    task: str | None = None
    """The task of the row; None: any."""
    profile: str | None = None
    """The profile of the row; None: any."""

    def is_for(self, rival: str, task: str, profile: str) -> bool:
        """Whether a job has these changes."""
        return (
            rival in self.rivals
            and self.example in (None, example_of(task))
            and self.task in (None, task)
            and self.profile in (None, profile)
        )


def settings(rival: str, task: str, profile: str) -> dict[str, Any]:
    """All changes of a job, by the path of the field."""
    found: dict[str, Any] = {}
    for row in TABLE:
        if row.is_for(rival, task, profile):
            found |= row.changes
    return found


_GPUS = [
    Row(
        {
            "sampler.micro_batch": 2,
            # `auto` has two GPUs share two micro-batches now and then, at a loss.
            "sampler.degree": 1,
            "training.ranks": 4,
            "pools.reserved.workers": 4,
            "pools.spot.nodes": SPOT_GPUS // GPUS_OF_SPOT_NODE,
            "pools.spot.workers": GPUS_OF_SPOT_NODE,
            "validation.seeds": 8,
        }
    ),
    Row({"pools.spot.nodes": 0}, rivals=["reserved"]),
    Row(
        {"training.ranks": 12, "pools.reserved.nodes": 3, "pools.spot.nodes": 0},
        rivals=_ON_ALL_TWELVE,
    ),
]

_EXPLORATION = [
    Row({"exploration.mode": "none"}, rivals=_PLAIN),
    Row({"exploration.mode": "bandit"}, rivals=[OURS, "regenerate"]),
    Row({"exploration.mode": "uniform"}, rivals=["uniform"]),
    Row({"exploration.reuse": True}, rivals=[OURS, "uniform", "pipelined"]),
    # Candidates are a few more than fit into the window: it is the window that limits them.
    Row({"exploration.candidates": 10}, example=OCR),
    Row({"exploration.candidates": 6}, example=COMPOSITIONAL),
    # One candidate for each sample is all that it may train on.
    Row(
        {
            "exploration.mode": "uniform",
            "exploration.candidates": 1,
            "exploration.budget": "fixed",
            "exploration.probes": 0,
        },
        rivals=["pipelined"],
    ),
    # Its previews are waited for, so there are fewer; and a bandit with a fixed budget would wait
    # for them again and again.
    Row(
        {
            "exploration.candidates": 4,
            "exploration.mode": "uniform",
            "exploration.weights": "fresh",
            "exploration.budget": "fixed",
        },
        rivals=["inline"],
    ),
]

_SAMPLES = [
    Row({"iterations": MOST_ITERATIONS}),
    Row(
        {"prompts.per_iteration": 12, "group_size": 4, "validation.every": 2},
        rivals=_PLAIN,
        example=OCR,
    ),
    Row(
        {"prompts.per_iteration": 4, "group_size": 8, "validation.every": 4},
        rivals=_PLAIN,
        example=COMPOSITIONAL,
    ),
    # 32 samples cannot be divided among twelve ranks.
    Row({"prompts.per_iteration": 6}, rivals=_ON_ALL_TWELVE, example=COMPOSITIONAL),
    # Half the samples of the others: faster on the seeds that are measured. On mixed prompts those
    # on reserved GPUs alone are as fast with all.
    Row({"prompts.per_iteration": 6}, rivals=["data-parallel"], example=OCR),
    Row({"prompts.per_iteration": 6}, rivals=["reserved", "pipelined"], task=OCR),
    Row({"prompts.per_iteration": 4, "group_size": 4, "validation.every": 4}, rivals=EXPLORING),
    # Two of these are never ended early; iterations of the compositional task are shorter.
    Row({"iterations": 44}, rivals=WHOLE, example=OCR),
    Row({"iterations": 88}, rivals=["reserved"], task=OCR),  # of half the samples
    Row({"iterations": 88}, rivals=[*WHOLE, "data-parallel"], example=COMPOSITIONAL),
]

_UPDATES = [
    Row({"training.ema_decay": 0.8}, example=OCR),
    Row({"training.ema_decay": 0.9}, example=COMPOSITIONAL),
    # A change that won in `benchmarks.ablations`, on seeds that are not measured here.
    Row({"training.warmup_updates": 20}, rivals=_TUNED),  # ten iterations
    # The noisier half of eight flow times; and twice as many samples in the same time, which are as
    # good to train on.
    Row(
        {"training.options.noisiest": 0.5, "sampler.solver": "dpmpp_2m", "sampler.steps": 4},
        rivals=_TUNED,
        example=OCR,
    ),
    # Any four of the flow times: with the noisier half, runs without exploration learn nothing, and
    # those with it end early. Samples of four steps teach as little. Of six steps there are a third
    # more than of eight: in one process, on seeds 1 to 4, runs that explore came to 0.55 in 0.5 to
    # 0.7 of the time, and to 0.60 in 0.7 to 1.4 of it. With five, one of these runs learnt little.
    Row(
        {"training.options.times": 4, "sampler.solver": "dpmpp_2m", "sampler.steps": 6},
        rivals=_TUNED,
        example=COMPOSITIONAL,
    ),
    # The targets are those of its kept runs.
    Row({"sampler.solver": "euler", "sampler.steps": 8}, rivals=[REFERENCE], example=COMPOSITIONAL),
    # An old policy that follows slowly, as the authors have it for GenEval: with few samples, runs
    # unlearn now and then without it. In one process, on seeds 1 and 2, those without exploration
    # are slower with it.
    # A preview takes a fifth of the time that training does: two at a time, none that is begun
    # after all groups are whole would come in time for those of the first part.
    Row(
        {"training.rollout_decay": 0.5, "sampler.micro_batch": 1},
        rivals=EXPLORING,
        example=COMPOSITIONAL,
    ),
    # A preview takes nearly as long there as training does, so that few fit beside it: two for each
    # sample are made by all GPUs, with those that train once they have, one by one so that none of
    # them waits. There is nothing to plan in two.
    Row(
        {
            "exploration.mode": "uniform",
            "exploration.budget": "fixed",
            "exploration.candidates": 2,
            "sampler.micro_batch": 1,
        },
        rivals=[OURS, "uniform"],
        profile="even-split",
    ),
]

_PUBLISHED = [
    Row(
        {"training.advantage_clip": 5.0, "training.kl": 1e-4, "training.ema_decay": 0.9},
        rivals=["published"],
    ),
    # What the authors of DiffusionNFT use for OCR, and for GenEval. Their rate is that of adapters.
    Row(
        {
            "training.updates_per_iteration": 2,
            "training.options.strength": 0.1,
            "training.rollout_decay": 0.999,
            "training.rollout_decay_after": 75,
            "training.rollout_decay_growth": 0.0075,
        },
        rivals=["published"],
        example=OCR,
    ),
    Row(
        {
            "training.updates_per_iteration": 1,
            "training.options.strength": 1.0,
            "training.rollout_decay": 0.5,
            "training.rollout_decay_growth": 0.001,
        },
        rivals=["published"],
        example=COMPOSITIONAL,
    ),
]

_LADDER = [
    # Every rival without exploration has the same samples, so that one run is the run of all.
    Row(
        {"iterations": 64, "prompts.per_iteration": 6, "validation.every": 4},
        rivals=_PLAIN,
        task=LONG,
    ),
    Row({"sampler.solver": "euler", "sampler.steps": LONG_STEPS}, task=LONG),
    Row(
        {
            "iterations": 64,
            "prompts.per_iteration": 4,
            "sampler.solver": "dpmpp_2m",
            "sampler.steps": 6,
        },
        rivals=_PLAIN,
        task=STRICT,
    ),
    Row(
        {"rewards": [{"kind": "python", "python": "benchmarks.exploration.strict:StrictShapes"}]},
        task=STRICT,
    ),
]

TABLE = [*_GPUS, *_EXPLORATION, *_SAMPLES, *_UPDATES, *_PUBLISHED, *_LADDER]
