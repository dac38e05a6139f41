"""The jobs that `benchmarks.exploration` compares, by the names of the rivals.

All train the same model with DiffusionNFT on the same GPUs of the test-bed: four reserved ones that
train and eight spot ones, except where a rival's title says otherwise. How many samples an
iteration has is what did best in trials on seed 0, before `_TUNED` was: without exploration 48 of
16, 32 and 48 samples on the OCR task, and 32 of 32 and 48 on the compositional one; with
exploration 16. Twice the learning rate of the examples unlearns on both. What the trials of
`trials` find better for a rival belongs here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spotlight.jobs import JobSpec, job_from_data

EXAMPLES = Path(__file__).parents[2] / "examples"

MIXED_TASKS = ("ocr-mixed", "compositional-mixed")
"""Those of the tasks whose prompts range from solved to hopeless, as GenEval's do."""
TASKS = ("ocr", "compositional", *MIXED_TASKS)
"""Each has the model and the reward of the example that it begins with."""

SPOT_GPUS = 8
_GPUS_OF_NODE = 2

OURS = "spotlight"
REFERENCE = "rollouts"
"""Its scores are the levels that all are timed at, and its time is the limit of all."""
WHOLE = (REFERENCE, "reserved")
"""Rivals whose runs are never ended early: one of them sets the target."""


@dataclass(frozen=True)
class Rival:
    """One of those that are compared; `changes` of the example's job are by the path of a field."""

    title: str
    """In plots and tables."""
    changes: Mapping[str, Any]
    explores: bool = True
    """It trains on few samples that were chosen, not on many that were not."""


_MOST_ITERATIONS = 400
"""More than any rival makes in the time that it is given."""
_UNEXPLORED: dict[str, Any] = {"exploration.mode": "none", "iterations": _MOST_ITERATIONS}
_ON_ALL_TWELVE: dict[str, Any] = {
    "training.ranks": 12,
    "pools.reserved.nodes": 3,
    "pools.spot.nodes": 0,
}
_PREVIEWS_ARE_SAMPLES: dict[str, Any] = {"exploration.reuse": True}
_PLANNED: dict[str, Any] = {"exploration.mode": "bandit"}
_EXPLORED: dict[str, Any] = {
    "iterations": _MOST_ITERATIONS,
    "prompts.per_iteration": 4,
    "group_size": 4,
    "validation.every": 4,
}

RIVALS: dict[str, Rival] = {
    REFERENCE: Rival("reserved and spot rollouts", _UNEXPLORED, explores=False),
    OURS: Rival("Spotlight", _EXPLORED | _PREVIEWS_ARE_SAMPLES | _PLANNED),
    "reserved": Rival("reserved only", _UNEXPLORED | {"pools.spot.nodes": 0}, explores=False),
    "data-parallel": Rival("all twelve train", _UNEXPLORED | _ON_ALL_TWELVE, explores=False),
    "published": Rival(
        "all twelve, published DiffusionNFT", _UNEXPLORED | _ON_ALL_TWELVE, explores=False
    ),
    "pipelined": Rival(
        "spot rollouts, one step behind",
        _UNEXPLORED
        | _PREVIEWS_ARE_SAMPLES
        | {
            "exploration.mode": "uniform",
            "exploration.candidates": 1,
            "exploration.budget": "fixed",
            "exploration.probes": 0,
        },
        explores=False,
    ),
    "uniform": Rival(
        "Spotlight, uniform previews",
        _EXPLORED | _PREVIEWS_ARE_SAMPLES | {"exploration.mode": "uniform"},
    ),
    "regenerate": Rival("Spotlight, chosen seeds made again", _EXPLORED | _PLANNED),
    # Its previews are waited for, so there are fewer; and a bandit with a fixed budget would wait
    # for them again and again.
    "inline": Rival(
        "exploration that is waited for",
        _EXPLORED
        | {
            "exploration.candidates": 4,
            "exploration.mode": "uniform",
            "exploration.weights": "fresh",
            "exploration.budget": "fixed",
        },
    ),
}
"""In the order of their importance, in which their runs are made."""

_EXAMPLE: dict[str, dict[str, Any]] = {
    # Candidates are a few more than fit into the window: it is the window that limits them.
    "ocr": {
        "exploration.candidates": 10,
        "training.ema_decay": 0.8,
    },
    "compositional": {
        "exploration.candidates": 6,
        "training.ema_decay": 0.9,
    },
}
_UNEXPLORED_SAMPLES: dict[str, dict[str, Any]] = {
    "ocr": {"prompts.per_iteration": 12, "group_size": 4, "validation.every": 2},
    "compositional": {"prompts.per_iteration": 4, "group_size": 8, "validation.every": 4},
}
_AS_MANY_ITERATIONS = (*WHOLE, "data-parallel")
_WHOLE_ITERATIONS = {"ocr": 44, "compositional": 88}
"""Of these rivals, two of which are never ended early; those of the compositional task are
shorter."""
_FOR_TWELVE_RANKS = {"compositional": {"prompts.per_iteration": 6}}
"""32 samples cannot be divided among them."""
_PUBLISHED: dict[str, dict[str, Any]] = {
    # What the authors of DiffusionNFT use for OCR, and for GenEval. Their rate is that of adapters.
    "ocr": {
        "training.updates_per_iteration": 2,
        "training.nft_strength": 0.1,
        "training.rollout_decay": 0.999,
        "training.rollout_decay_after": 75,
        "training.rollout_decay_growth": 0.0075,
    },
    "compositional": {
        "training.updates_per_iteration": 1,
        "training.nft_strength": 1.0,
        "training.rollout_decay": 0.5,
        "training.rollout_decay_growth": 0.001,
    },
}
_PUBLISHED_EVERYWHERE: dict[str, Any] = {
    "training.advantage_clip": 5.0,
    "training.kl": 1e-4,
    "training.ema_decay": 0.9,
}
_TUNED: dict[str, Any] = {"training.warmup_updates": 20}  # ten iterations
"""What all have in common that is not as published: a change that won in `benchmarks.ablations`, on
seeds that are not measured here."""
_TUNED_OF_EXAMPLE: dict[str, dict[str, Any]] = {
    # The noisier half of eight flow times; and twice as many samples in the same time, which are as
    # good to train on.
    "ocr": {
        "training.nft_noisiest": 0.5,
        "sampler.solver": "dpmpp_2m",
        "sampler.steps": 4,
    },
    # Any four of the flow times: with the noisier half, runs without exploration learn nothing, and
    # those with it end early. Samples of four steps teach as little. Those of six, in one process
    # on seeds 1 and 2, taught runs without exploration as much as those of eight Euler steps.
    "compositional": {
        "training.nft_times": 4,
        "sampler.solver": "dpmpp_2m",
        "sampler.steps": 6,
    },
}
_OF_REFERENCE: dict[str, dict[str, Any]] = {
    "compositional": {"sampler.solver": "euler", "sampler.steps": 8},
}
"""What the reference has instead: the targets are those of its kept runs."""

_EXPLORED_OF_EXAMPLE: dict[str, dict[str, Any]] = {
    # An old policy that follows slowly, as the authors have it for GenEval: with few samples, runs
    # unlearn now and then without it. In one process, on seeds 1 and 2, those without exploration
    # are slower with it.
    # A preview takes a fifth of the time that training does: two at a time, none that is begun
    # after all groups are whole would come in time for those of the first part. Of six steps there
    # are a third more than of eight: in one process, on seeds 1 to 4, runs came to 0.55 in 0.5 to
    # 0.7 of the time, and to 0.60 in 0.7 to 1.4 of it. With five, one of these runs learnt little.
    "compositional": {"training.rollout_decay": 0.5, "sampler.micro_batch": 1},
}
"""What those that explore have besides."""

_OURS_OF_PROFILE: dict[str, dict[str, Any]] = {
    # A preview takes nearly as long here as training does, so that few fit beside it: two for each
    # sample are made by all GPUs, with those that train once they have, one by one so that none of
    # them waits. There is nothing to plan in two.
    "even-split": {
        "exploration.mode": "uniform",
        "exploration.budget": "fixed",
        "exploration.candidates": 2,
        "sampler.micro_batch": 1,
    },
}
"""What Spotlight has for itself where rollouts take longer."""

_TESTBED: dict[str, Any] = {
    "sampler.micro_batch": 2,
    "sampler.degree": 1,  # `auto` has two GPUs share two micro-batches now and then, at a loss
    "training.ranks": 4,
    "pools.reserved.workers": 4,
    "pools.spot.nodes": SPOT_GPUS // _GPUS_OF_NODE,
    "pools.spot.workers": _GPUS_OF_NODE,
    "validation.seeds": 8,
}
_TWO_CORE: dict[str, Any] = {
    # Eight prompts of four samples, as a job without exploration has them at its best, and two
    # previews for each sample, by both workers: `examples/ocr-tiny-reuse.yaml` says more.
    "iterations": 60,
    "prompts.per_iteration": 8,
    "sampler.micro_batch": 4,
    "exploration.mode": "uniform",
    "exploration.budget": "fixed",
    "exploration.candidates": 2,
    # Checkpoints are scored afterwards, and by more images than there would be time for.
    "validation.prompts": 1,
    "validation.seeds": 1,
    "validation.every": 60,
    "checkpoint_every": 5,
    "keep_checkpoints": 60,
}
ALONE = "none"
"""Of the two on two cores, the one that does not explore."""
TWO_CORE: dict[str, dict[str, Any]] = {
    OURS: {},
    ALONE: {"exploration.mode": "none", "exploration.reuse": False},
}
"""What changes of Spotlight's job, on two cores: nothing; and it does not explore."""


def virtual_job(
    task: str,
    rival: str,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    *,
    profile: str = "",
) -> JobSpec:
    """On the test-bed; `changes` are by the path of the field. Raises `JobError`."""
    return _job(task, rival, seed, _own(task, rival, profile) | dict(changes or {}))


def with_spot_gpus(task: str, rival: str, gpus: int) -> dict[str, Any]:
    """What changes in a job when the spot pool has so many GPUs."""
    own = _own(task, rival)
    changes = {}
    if own["pools.spot.nodes"]:
        changes["pools.spot.nodes"] = gpus // _GPUS_OF_NODE
    if gpus > SPOT_GPUS and RIVALS[rival].explores:
        changes["exploration.candidates"] = own["exploration.candidates"] * gpus // SPOT_GPUS
    return changes


def two_core_job(task: str, rival: str, seed: int) -> JobSpec:
    """One of `TWO_CORE`, with one reserved and one spot worker."""
    tuned = _TUNED | _TUNED_OF_EXAMPLE[task] | _EXAMPLE[task]
    ours = tuned | dict(RIVALS[OURS].changes) | _TWO_CORE
    return _job(task, f"two-core-{rival}", seed, ours | TWO_CORE[rival])


def _own(task: str, rival: str, profile: str = "") -> dict[str, Any]:
    found, example = RIVALS[rival], _example_of(task)
    of_kind = _EXPLORED_OF_EXAMPLE if found.explores else _UNEXPLORED_SAMPLES
    tuned = _TUNED | _TUNED_OF_EXAMPLE[example]
    if rival == "published":
        tuned = _PUBLISHED[example] | _PUBLISHED_EVERYWHERE
    if rival == REFERENCE:
        tuned = tuned | _OF_REFERENCE.get(example, {})
    own = _TESTBED | _EXAMPLE[example] | tuned | of_kind.get(example, {}) | dict(found.changes)
    if rival in (OURS, "uniform"):
        own |= _OURS_OF_PROFILE.get(profile, {})
    if rival in _AS_MANY_ITERATIONS:
        own["iterations"] = _WHOLE_ITERATIONS[example]
    return own | (_FOR_TWELVE_RANKS.get(example, {}) if own["training.ranks"] == 12 else {})


def _example_of(task: str) -> str:
    return task.removesuffix("-mixed")


def _job(task: str, rival: str, seed: int, changes: Mapping[str, Any]) -> JobSpec:
    example = f"{_example_of(task)}-tiny"
    data: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    data |= {"name": f"{task}-{rival}-{seed}", "seed": seed}
    if task in MIXED_TASKS:
        for part in ("train", "validation"):
            data["prompts"][part] = f"builtin:{example}/mixed-{part}"
    data["exploration"]["preview_steps"] = None  # as many as a rollout has
    data["checkpoint_every"] = changes.get("iterations", data["iterations"])
    for path, value in changes.items():
        *sections, field = path.split(".")
        section = data
        for name in sections:
            section = section.setdefault(name, {})
        section[field] = value
    return job_from_data(data)
