"""Makes runs on the virtual test-bed, and keeps them.

A run ends when its smoothed validation has reached the target, the highest of the `LEVELS` of the
reference's way, or when it has taken as long as the reference for its whole budget. The runs of the
reference, and those on reserved workers only, make all their iterations. A trial of settings ends
when it has taken as long as the same rival took to the target without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.exploration.cases import PROFILES, Case, Unit
from benchmarks.exploration.kept_runs import KeptRuns, Made, Run
from benchmarks.time_to_target import SMOOTHED, Curve, milestones, time_to
from benchmarks.virtual_testbed import run_on_testbed
from spotlight.errors import SpotlightError
from spotlight.jobs import JobSpec
from spotlight_simulation.profile import load_profile

if TYPE_CHECKING:
    from spotlight_simulation.real_numerics import RealNumerics


class NoReference(SpotlightError):
    """A run has nothing to be measured against: the reference is not there, or learned nothing."""


class Goal(msgspec.Struct, frozen=True):
    """When a run ends."""

    target: float | None = None
    """A score; None: never for its score."""
    limit_s: float | None = None
    """Virtual seconds; None: not before all iterations are made."""


class VirtualRuns:
    """Those of the test-bed, in a folder; `quick` ones only show that everything works."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self._kept = KeptRuns(folder / "testbed")
        self._quick = quick

    def read(self, case: Case) -> Run | None:
        """None if it was not made yet, or has nothing that it is measured against. Raises
        `JobError`.
        """
        try:
            return self._kept.read(case.name, self.made(case))
        except NoReference:
            return None

    def can_begin(self, unit: Unit) -> bool:
        """Whether the runs of other units that it needs are there."""
        ended_early = [case for case in unit if not case.is_whole]
        needed = {each for case in ended_early for each in (case.reference, case.as_it_is)}
        return self._quick or all(self.read(case) is not None for case in needed - set(unit))

    def make(self, unit: Unit, scratch: Path) -> None:
        """Those that are missing; `scratch` is a folder that is empty. Raises what the test-bed
        raises, `JobError` and `NoReference`.
        """
        from benchmarks.exploration.other_order import OtherOrder
        from spotlight_simulation.real_numerics import RealNumerics  # torch: not for --help

        numerics: RealNumerics | None = None
        for case in unit:
            if self.read(case) is not None:
                continue
            made, goal = self.made(case), self.goal(case)
            if numerics is None:
                numerics = (OtherOrder if case.is_reordered else RealNumerics)(made.job)
            (scratch / case.name).mkdir(parents=True)
            run = run_on_testbed(
                made.job,
                profile=load_profile(PROFILES[case.profile]),
                numerics=numerics,
                folder=scratch / case.name,
                target=goal.target,
                limit_s=goal.limit_s,
            )
            points = [(each.time_s, each.version, each.score) for each in run.validation]
            totals = msgspec.to_builtins(run.totals)
            kept = {"validation": points, "iterations": len(run.iterations), "totals": totals}
            self._kept.keep(case.name, made, kept)

    def made(self, case: Case) -> Made:
        """All that decides what comes of a run. Raises `JobError` and `NoReference`."""
        job = _shortened(case.job()) if self._quick else case.job()
        profile = msgspec.to_builtins(load_profile(PROFILES[case.profile]))
        # What slices need of the network is not among them: these jobs have one each.
        figures = {n: value for n, value in profile.items() if isinstance(value, int | float)}
        goal = msgspec.to_builtins(self.goal(case))
        facts = {"profile": figures, "goal": goal, "is_reordered": case.is_reordered}
        return Made(job, facts)

    def goal(self, case: Case) -> Goal:
        """When a run ends. Raises `NoReference`."""
        if case.is_whole or self._quick:
            return Goal()
        reference = self.read(case.reference)
        levels = milestones(curve_of(reference)) if reference else {}
        if reference is None or not levels:
            raise NoReference(f"{case.name}: {case.reference.name} is missing, or learned nothing")
        target, limit_s = max(levels.values()), reference["totals"]["virtual_s"]
        if case.trial:
            before = self.read(case.as_it_is)
            if before is None:
                raise NoReference(f"{case.name}: {case.as_it_is.name} is missing")
            limit_s = time_to(target, curve_of(before)) or limit_s
        return Goal(target, limit_s)


def curve_of(run: Run) -> Curve:
    """Validation over virtual time."""
    return [(time_s, score) for time_s, _, score in run["validation"]]


def _shortened(job: JobSpec) -> JobSpec:
    """As few validations as a curve can have, of few images, and little to train: a sample for each
    rank in both updates. Such a run says nothing about speed."""
    changes: dict[str, Any] = {"prompts": 4, "seeds": 1, "every": 1}
    validation = msgspec.structs.replace(job.validation, **changes)
    prompts = msgspec.structs.replace(job.prompts, per_iteration=job.training.ranks // 2)
    options = {**job.training.options, "times": 2}
    training = msgspec.structs.replace(job.training, options=options, warmup_updates=0)
    return msgspec.structs.replace(
        job,
        iterations=SMOOTHED,
        checkpoint_every=SMOOTHED,
        prompts=prompts,
        validation=validation,
        training=training,
    )
