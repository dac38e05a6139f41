"""How long an iteration takes of Spotlight whose spot GPUs train, on a simulated cluster: the real
actors and their protocol of gradient slices, with rewards that are made up, since only time counts.

Some seconds of processor time each. They are kept like runs, and say how far the formulas of
`clocks` are from what the actors do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.exploration.cases import PROFILES
from benchmarks.exploration.kept_runs import KeptRuns, Made
from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.exploration.rivals import OURS
from benchmarks.exploration.settings import GPUS_OF_SPOT_NODE
from benchmarks.virtual_testbed import run_on_testbed
from spotlight_simulation.chaos import scratch_folder
from spotlight_simulation.numerics import Fingerprints
from spotlight_simulation.profile import load_profile

SLICES = 8
"""How many parts a rank's share of an update has; it has as many rows on the tasks."""
ITERATIONS = 10
PROTOCOL = 4
"""The version of the protocol's timing: it is to be raised when spot GPUs share their time out in
another way."""


class Split(msgspec.Struct, frozen=True):
    """What the time of an iteration depends on."""

    task: str
    profile: str
    spot: int
    """The number of spot GPUs."""
    previews: int
    """How many there are for each sample, as many for every prompt."""

    @property
    def name(self) -> str:
        """Of the file that it is kept in."""
        return f"{self.profile}/{self.task}-spot-{self.spot}-previews-{self.previews}"


def simulated_clocks(
    splits: Iterable[Split], folder: Path, *, ends_by: float
) -> Mapping[Split, float]:
    """Seconds of an iteration of those that are kept, or can be begun before `ends_by`, in seconds
    of `time.monotonic`. Raises `RunFailed`.
    """
    kept, found = KeptRuns(folder / "clocks"), {}
    for split in splits:
        made = _made(split)
        run = kept.read(split.name, made)
        if run is None and time.monotonic() < ends_by:
            run = {"iteration_s": _iteration_s(split, made)}
            kept.keep(split.name, made, run)
        if run is not None:
            found[split] = float(run["iteration_s"])
    return found


def _made(split: Split) -> Made:
    changes = {
        "iterations": ITERATIONS,
        "checkpoint_every": ITERATIONS,
        "pools.spot.nodes": split.spot // GPUS_OF_SPOT_NODE,
        "exploration.mode": "uniform",
        "exploration.budget": "fixed",
        "exploration.candidates": split.previews,
        "exploration.random_groups": 0,
        "sampler.micro_batch": 1,
        "training.slices": SLICES,
        "training.warmup_updates": 0,
        "validation.every": 1,
    }
    profile = load_profile(PROFILES[split.profile])  # whose factors are in its figures
    times = msgspec.to_builtins(profile)
    figures = {n: it for n, it in times.items() if n != "factors" and not isinstance(it, str)}
    return Made(
        virtual_job(split.task, OURS, 11, changes), {"profile": figures, "protocol": PROTOCOL}
    )


def _iteration_s(split: Split, made: Made) -> float:
    """The median, but for the first iteration."""
    with scratch_folder() as scratch:
        run = run_on_testbed(
            made.job,
            profile=load_profile(PROFILES[split.profile]),
            numerics=Fingerprints(),
            folder=scratch,
        )
    published = [point.time_s for point in run.validation]
    return round(median(after - before for before, after in pairwise(published[1:])), 2)
