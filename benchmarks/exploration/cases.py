"""The runs on the test-bed that there should be, and in which order they are made.

Pure. A unit is what one process makes: the runs of rivals that train alike, whatever their
hardware and its speed, share the numerics, so that only the first of them computes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.exploration.rival_jobs import virtual_job, with_spot_gpus
from benchmarks.exploration.rivals import (
    ALL_GPUS,
    LONG,
    LONG_STEPS,
    OURS,
    REFERENCE,
    RIVALS,
    SPOT_GPUS,
    WHOLE,
)
from benchmarks.exploration.trials import TOGETHER, TRIALS
from spotlight.errors import JobError
from spotlight.jobs import JobSpec, job_to_yaml
from spotlight.jobs.sections import PoolsSpec
from spotlight_simulation.profile import load_profile

PROFILES = {
    path.stem: path for path in sorted((Path(__file__).parents[1] / "profiles").glob("*.yaml"))
}
SOL_RL_SPLIT = "sol-rl-split"
SIMULATED = (SOL_RL_SPLIT, "even-split")
"""Profiles that clusters are simulated with; the ladder of rivals has all of them."""

OTHER_POOLS = (4, 16)
_IN_OTHER_POOLS = (REFERENCE, OURS)
REORDERED = (REFERENCE, OURS)

TUNING_SEED = 0
FIRST_SEED = 11
"""The first of the seeds that are measured: settings were tried on the ones before."""
TUNED = (OURS, "data-parallel", "pipelined", "uniform", "regenerate", "inline")
"""The rivals that are tuned besides the reference. Runs on reserved workers only have what wins for
others that do not choose among their samples."""


def training_share(profile: str, task: str = "") -> str:
    """How much of rollouts and training on all twelve GPUs is training, in percent, without
    exploration and at all flow times. No ratio means anything without it. Samples of most tasks
    count as having the steps of the profile."""
    times = load_profile(PROFILES[profile])
    rollout_s = times.rollout_s * times.gpus / ALL_GPUS
    rollout_s *= LONG_STEPS / times.steps if task == LONG else 1
    return f"{100 * times.train_s / (times.train_s + rollout_s):.0f} %"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    task: str
    rival: str
    seed: int
    profile: str = SOL_RL_SPLIT
    spot_gpus: int = SPOT_GPUS
    is_reordered: bool = False
    """The samples of every iteration are trained on in another order, and all else is the same."""
    trial: str = ""
    """The name of settings to try, one of `TRIALS` or `TOGETHER`."""
    previews: int = 0
    """How many there are for each sample, as many for every prompt, whether training waits for them
    or not; 0: as the rival has them."""
    cheap_steps: int = 0
    """Previews have so few steps, and the seeds that they choose are denoised in full with the same
    weights while training goes on; 0: previews are the samples."""

    @property
    def name(self) -> str:
        """Of the file that the run is kept in, below the folder of all."""
        parts = [f"{self.task}-{self.rival}-{self.seed}"]
        parts += [f"spot-{self.spot_gpus}"] * (self.spot_gpus != SPOT_GPUS)
        parts += ["other-order"] * self.is_reordered
        parts += [self.trial] * bool(self.trial)
        parts += [f"previews-{self.previews}"] * bool(self.previews)
        parts += [f"of-{self.cheap_steps}-steps"] * bool(self.cheap_steps)
        return f"{self.profile}/{'-'.join(parts)}"

    @property
    def reference(self) -> Case:
        """The run whose way and time this one is measured against, perhaps itself."""
        return msgspec.structs.replace(
            self, rival=REFERENCE, is_reordered=False, trial="", previews=0, cheap_steps=0
        )

    @property
    def as_it_is(self) -> Case:
        """The same without the settings to try."""
        return msgspec.structs.replace(self, trial="")

    @property
    def is_whole(self) -> bool:
        """It makes all iterations of its job."""
        return self.rival in WHOLE and not self.trial

    def job(self) -> JobSpec:
        """Raises `JobError`, as long as the job needs what is not there yet."""
        changes = with_spot_gpus(self.task, self.rival, self.spot_gpus)
        if self.previews:
            changes |= {
                "exploration.mode": "uniform",
                "exploration.budget": "fixed",
                "exploration.candidates": self.previews,
            }
        if self.cheap_steps:
            changes |= {
                "exploration.reuse": False,
                "exploration.finish": "previous",
                "exploration.preview_steps": self.cheap_steps,
            }
        if self.trial:
            changes |= (TRIALS | TOGETHER)[self.trial](self._job(changes))
        return self._job(changes)

    def _job(self, changes: dict[str, Any]) -> JobSpec:
        return virtual_job(self.task, self.rival, self.seed, changes, profile=self.profile)


Unit = tuple[Case, ...]
"""Runs that share their numerics, in the order in which they are made."""


def main_cases(
    profile: str,
    tasks: Iterable[str],
    seeds: Iterable[int],
    rivals: Sequence[str] = tuple(RIVALS),
) -> Iterator[Case]:
    """Every rival, or some; whole comparisons are complete seed by seed."""
    for seed in seeds:
        for rival in rivals:
            for task in tasks:
                yield Case(task=task, rival=rival, seed=seed, profile=profile)


def trial_cases(tasks: Sequence[str]) -> Iterator[Case]:
    """The same trials for every rival that is tuned, on the seed that is not measured; first each
    as it is.
    """
    for trial in ("", *TRIALS):
        for rival in (REFERENCE, *TUNED):
            for task in tasks:
                yield Case(task=task, rival=rival, seed=TUNING_SEED, trial=trial)


def noise_cases(tasks: Sequence[str], seeds: Iterable[int]) -> Iterator[Case]:
    """Runs that differ in the order of samples alone."""
    for seed in seeds:
        for is_reordered in (False, True):
            for rival in REORDERED:
                for task in tasks:
                    yield Case(task=task, rival=rival, seed=seed, is_reordered=is_reordered)


def pool_cases(tasks: Sequence[str], seeds: Iterable[int]) -> Iterator[Case]:
    """Smaller and larger spot pools."""
    for seed in seeds:
        for gpus in OTHER_POOLS:
            for rival in _IN_OTHER_POOLS:
                for task in tasks:
                    yield Case(task=task, rival=rival, seed=seed, spot_gpus=gpus)


def units(cases: Iterable[Case]) -> list[Unit]:
    """The same, those that train alike together at the place of the first of them."""
    found: dict[object, list[Case]] = {}
    for case in cases:
        found.setdefault(_trains_as(case), []).append(case)
    return [tuple(unit) for unit in found.values()]


def _trains_as(case: Case) -> object:
    """Equal for runs that train on the same samples, however long things take."""
    try:
        job = case.job()
    except JobError:
        return case  # whoever makes it says why it cannot be
    if job.exploration.mode != "none":
        return case  # which previews there are, and who makes them, is a matter of time
    training = msgspec.structs.replace(job.training, ranks=1)
    alike = msgspec.structs.replace(job, name="any", pools=PoolsSpec(), training=training)
    return job_to_yaml(alike), case.is_reordered
