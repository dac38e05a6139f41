"""What a member has loaded for the job in its plan: the model, and weights versions.

Invariants:
- Whatever is loaded is loaded in one task, one thing after the other; no handler waits for it.
- A version is held only with the checksum that the plan names: one that was trained again is
  another.
- What cannot be had is tried again while the plan names it; a model that a user must do something
  about is not, until another runner has the job.
- Whatever else is wrong as a model is loaded ends the process: another one may have more luck, and
  its node counts how often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from spotlight.actors.protocol.down import JobPlan
from spotlight.actors.worker.held_weights import HeldWeights, Version, checksum_of
from spotlight.errors import HubUnreachable, UserError
from spotlight.jobs import WorkSpec
from spotlight.timings import WorkerTimings
from spotlight.types import BundleOffer

if TYPE_CHECKING:
    from spotlight.actors.worker.member import Member

log = structlog.get_logger(__name__)


class JobHoldings:
    """See the module's docstring.

    Args:
        holder: the member, whose tasks do the loading.
        weights: fetches and holds the versions.
    """

    def __init__(self, holder: Member, weights: HeldWeights, timings: WorkerTimings) -> None:
        self._holder = holder
        self._weights = weights
        self._timings = timings
        self._job: JobPlan | None = None
        self._spec: WorkSpec | None = None
        self._has_model = False
        self._loading: asyncio.Task[None] | None = None
        self.problem = ""
        """Why the model cannot be loaded; empty if it can, or was not tried yet."""

    @property
    def job_id(self) -> str:
        """Of the job in the plan; empty for none."""
        return self._job.job_id if self._job is not None else ""

    def versions(self, *, evaluation: bool) -> tuple[int, ...]:
        """Those that can be served."""
        if self._job is None or not self._has_model:
            return ()
        offers = _offers(self._job)
        found = {number for number, role in offers if role is evaluation}
        return tuple(sorted(n for n in found if self._is_held((n, evaluation), offers)))

    def follow(self, job: JobPlan | None) -> None:
        """Have what the latest plan says, soon; returns at once."""
        before, self._job = self._job, job
        if before is not None and (job is None or job.job_id != before.job_id):
            self._spec, self._has_model, self.problem = None, False, ""
            self._weights.forget_all()
            self._holder.end_job()
        if job is None:
            return
        if before is None or before.membership.runner != job.membership.runner:
            self.problem = ""
        self._spec = job.spec or self._spec
        assert self._spec is not None, "the first plan of a job carries its spec"
        if self._has_model:
            self._holder.begin_job(job, self._spec)
        self._keep(job)
        if self._loading is None or self._loading.done():
            self._loading = self._holder.run_task(self._load())

    async def _load(self) -> None:
        while (job := self._job) is not None and not self.problem:
            if not self._has_model:
                await self._have_model(job)
                continue
            offers = _offers(job)
            missing = [version for version in offers if not self._is_held(version, offers)]
            if not missing:
                return
            got = [await self._have_weights(job, version, offers[version]) for version in missing]
            if not any(got):
                await asyncio.sleep(self._timings.repeat_s)

    async def _have_model(self, job: JobPlan) -> None:
        spec, problem = self._spec, ""
        assert spec is not None, "there is a job"
        try:
            await self._holder.load_model(spec, job.membership.images)
        except Exception as error:  # whatever is wrong with a model, this worker takes nothing
            log.error("model_not_loaded", reason=str(error), exc_info=error)
            problem = f"the model cannot be loaded: {type(error).__name__}: {error}"
            if not isinstance(error, UserError) or isinstance(error, HubUnreachable):
                self._holder.give_up(problem)
        if self._job is None or self._job.job_id != job.job_id:
            return  # it was loaded for a job that is over
        self.problem, self._has_model = problem, not problem
        if self._has_model:
            self._holder.begin_job(self._job, spec)
        self._holder.report()

    async def _have_weights(
        self, job: JobPlan, version: Version, parts: Sequence[BundleOffer]
    ) -> bool:
        try:
            await self._weights.hold(version, parts)
        except Exception as error:  # not served until it can be had
            log.error("weights_not_held", version=version[0], reason=str(error))
            return False
        now = self._job
        if now is None or now.job_id != job.job_id:
            self._weights.forget_all()  # it was fetched for a job that is over
        else:
            self._keep(now)
            self._holder.report()
        return True

    def _keep(self, job: JobPlan) -> None:
        """Drop what the job does not need any more; nothing while its runner has yet to say."""
        if job.versions:
            self._weights.keep(job.versions)

    def _is_held(self, version: Version, offers: Mapping[Version, Sequence[BundleOffer]]) -> bool:
        return self._weights.has(version, checksum_of(offers[version]))


def _offers(job: JobPlan) -> dict[Version, tuple[BundleOffer, ...]]:
    """Everything that the plan says to get."""
    roles = [
        ((each.version, evaluation), parts)
        for each in job.weights
        for evaluation, parts in ((False, each.rollout), (True, each.evaluation))
    ]
    return {version: parts for version, parts in roles if parts}
