"""A worker's plan, one change after the other, and a leader that keeps the reports apart from the
rest.
"""

from __future__ import annotations

from typing import Any

from job_kit import Recorder, job
from msgspec.structs import replace

from spotlight.actors.protocol.down import GroupPlan, JobPlan, Membership, WeightsOffer, WorkerPlan
from spotlight.actors.protocol.up import WorkerReport
from spotlight.actors.runtime import handles
from spotlight.types import BundleOffer


class Planner:
    """Each of its plans differs from the one before in what its method says."""

    def __init__(self) -> None:
        self.plan = WorkerPlan(0)

    def next(self, **changes: Any) -> WorkerPlan:
        """With these fields."""
        self.plan = replace(self.plan, number=self.plan.number + 1, **changes)
        return self.plan

    def prepare(
        self,
        membership: Membership,
        job_id: str = "job",
        *,
        runner_is_new: bool = False,
        **spec: Any,
    ) -> WorkerPlan:
        """A job, or the same with another membership; a new runner has yet to say which weights
        are its own.
        """
        known = self.plan.job
        if known is None or known.job_id != job_id:
            known = JobPlan(job_id, membership, spec=job(**spec).work)
        weights = () if runner_is_new else known.weights
        return self.next(job=replace(known, membership=membership, weights=weights))

    def replace_trainers(self, term: int) -> WorkerPlan:
        """Trainer ranks of earlier terms are no longer needed."""
        assert self.plan.job is not None
        return self.next(job=replace(self.plan.job, trainers_term=term))

    def hold(
        self,
        version: int,
        rollout: BundleOffer,
        evaluation: BundleOffer | None = None,
        keep: tuple[int, ...] = (),
    ) -> WorkerPlan:
        """A weights version, and of the others those to be kept."""
        known = self.plan.job
        assert known is not None
        versions = keep or (version,)
        offers = {each.version: each for each in known.weights if each.version in versions}
        offers[version] = WeightsOffer(version, (rollout,), (evaluation,) if evaluation else ())
        weights = tuple(offers[number] for number in sorted(offers))
        return self.next(job=replace(known, weights=weights, versions=versions))

    def end(self) -> WorkerPlan:
        """No job."""
        return self.next(job=None)

    def drain(self, stop_in_s: float | None) -> WorkerPlan:
        """A notice, or none any more."""
        return self.next(stop_in_s=stop_in_s)

    def group(self, group: GroupPlan) -> WorkerPlan:
        """Another SP group."""
        return self.next(group=group)


class ReportedTo(Recorder):
    """Stands for a leader: its inbox holds all but the reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[WorkerReport] = []

    @handles(WorkerReport)
    async def on_report(self, message: WorkerReport) -> None:
        self.reports.append(message)

    @property
    def report(self) -> WorkerReport:
        """The latest."""
        return self.reports[-1]

    def failures(self, epoch: int | None = None) -> list[tuple[str, tuple[str, ...]]]:
        """Why groups failed, that of an epoch or all, and who was named."""
        failed = [it for it in self.reports if it.failure and epoch in (None, it.group)]
        return list(dict.fromkeys((it.failure, it.culprits) for it in failed))

    def formed(self) -> list[int]:
        """Epochs of the groups that have formed, in order."""
        return list(dict.fromkeys(it.group for it in self.reports if it.group and it.formed))


async def reported_to(system: Any, name: str = "leader") -> ReportedTo:
    """Spawn one; its reference is `.ref`."""
    actor = ReportedTo()
    await system.spawn(lambda: actor, name)
    return actor
