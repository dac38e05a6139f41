"""A member: denoises on its accelerator with exactly the weights that a request names, scores what
was denoised, computes gradients of slices of updates, and takes its seat in an SP group.

Messages in: WorkerPlan, Grant, Revoke, Recall (its leader); Introduce, Follow, CannotFollow (other
members).
Messages out: WorkerReport, CommitSteps, and at the end of a batch Completed, ReturnLease or
LeaseFailed (its leader); Introduce, Follow, CannotFollow (other members).

The model stays loaded between jobs' iterations; weights versions are kept as tensors and copied in
when a request needs another one. Batches run one after the other on the accelerator, while the last
one is scored and its bundle is uploaded; its pixels stay here. A batch goes on from the commits
that come with it, and commits while it runs, and before it is given back.

When its node must leave, batches that have not begun are given back at once, and those in work when
the time is up. The member of rank 0 works on batches, the others follow it; one that loses rank 0
gives back what it denoises, and scores what is denoised.

When the process is to end because it can do nothing more, all batches are given back, as no request
is to blame, and nothing more is taken: the accelerator is lost, or the model cannot be loaded,
though another process might be able to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

import structlog

from spotlight.actors.protocol.down import Grant, JobPlan, Recall, Revoke, WorkerPlan
from spotlight.actors.protocol.peers import CannotFollow, Follow, Introduce
from spotlight.actors.protocol.up import Completed, LeaseFailed, ReturnLease, WorkerReport
from spotlight.actors.runtime import Actor, ActorRef, from_an_actor, from_this_process, handles
from spotlight.actors.worker.batch_work import STATES, BatchWork
from spotlight.actors.worker.batches import Batch, Batches, MemberJob, Unwanted, returned
from spotlight.actors.worker.engine import Engine, Model, same_model
from spotlight.actors.worker.group_connector import GroupConnector
from spotlight.actors.worker.held_weights import HeldWeights
from spotlight.actors.worker.job_holdings import JobHoldings
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.slice_work import SliceWork
from spotlight.actors.worker.sp_membership import SPMembership
from spotlight.actors.worker.step_group import GroupSteps, StepGroup
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import (
    CommitRefused,
    NotFinite,
    ScoringError,
    SpotlightError,
    TransferFailed,
    WrongWeights,
)
from spotlight.jobs import ModelSpec, WorkSpec
from spotlight.tracebacks import foreign_traceback
from spotlight.types import BundleOffer

log = structlog.get_logger(__name__)


class Member(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, engine: Engine, shared: SharedModel) -> None:
        self._context = context
        self._engine = engine
        self._shared = shared
        self._leader: ActorRef | None = None
        self._plan = WorkerPlan(0)
        """The latest plan."""
        self._job: MemberJob | None = None
        self._model: Model | None = None
        """The one that is loaded; it stays warm between jobs."""
        connector = GroupConnector(context, engine, self._loaded_model)
        self._seat: SPMembership = SPMembership(
            self, context.name, connector, context.timings.worker
        )
        self._batches = Batches()
        self._weights = HeldWeights(engine)
        self._holdings = JobHoldings(self, self._weights, context.timings.worker)
        self._work = BatchWork(
            self, context, engine, self._seat, self._batches, self._weights, shared
        )

        self._slices = SliceWork(context, engine, self._batches, self._weights, shared)

    async def started(self) -> None:
        """Be ready for the loss of the accelerator."""
        self.run_task(self._give_all_back_at_the_end())

    # --- the plan ---

    @handles(WorkerPlan, only=from_this_process)
    async def on_plan(self, message: WorkerPlan) -> None:
        """Do as it says, and report; what takes long is reported when it is done."""
        assert self.sender is not None
        self._leader, self._plan = self.sender, message
        self._set_time_left(message.stop_in_s)
        self._holdings.follow(message.job)
        self._slices.lent.follow(message.job)
        group = message.group
        if group is not None and self._seat.take(group) and not self._seat.leads:
            self._recall(self._batches)
        self.report()

    def _set_time_left(self, left_s: float | None) -> None:
        """Commit what runs, give back what has not begun, and stop in time; or go on as before."""
        log.debug("drain", worker=self._context.name, stop_in_s=left_s)
        now = asyncio.get_running_loop().time()
        self._batches.stop_at = stop_at = now + left_s if left_s is not None else None
        for batch in self._batches:
            batch.score_until(stop_at)
            if stop_at is not None and not batch.begun:
                self._end(batch, self._returned(batch))

    def report(self) -> None:
        """Tell the leader what there is."""
        if self._leader is None:
            return
        holdings, seat, ends = self._holdings, self._seat, self._context.ends_because
        report = WorkerReport(
            self._context.name,
            self._context.epoch,
            plan=self._plan.number,
            job_id=holdings.job_id,
            rollout=() if ends else holdings.versions(evaluation=False),
            evaluation=() if ends else holdings.versions(evaluation=True),
            cannot_serve=ends or holdings.problem,
            ends=bool(ends),
            group=seat.epoch,
            formed=seat.stands,
            failure=seat.failure,
            culprits=seat.culprits,
        )
        log.debug("held_reported", rollout=report.rollout, evaluation=report.evaluation)
        self.tell(self._leader, report)

    # --- the job ---

    async def load_model(self, spec: WorkSpec, images: BundleOffer | None) -> None:
        """Unless it is warm already, and the images that prompts come with."""
        self._context.use_threads(spec.threads)
        await self._shared.fetch_images(images)
        previewer = spec.preview_model
        self._model = self._shared.loaded(spec.model)
        if self._model is not None and self._shared.previews_by(previewer):
            return
        with self._context.busy("loading", "model"):
            await self._shared.fetch(spec.model)
            if previewer is not None:
                await self._shared.fetch(previewer)
            load = self._context.on_accelerator(lambda: self._load(spec.model, previewer))
            self._model = await asyncio.wait_for(load, self._context.timings.worker.load_limit_s)

    def _load(self, spec: ModelSpec, previewer: ModelSpec | None) -> Model:
        """In the accelerator's thread."""
        model = self._shared.load(spec)
        self._shared.load_previewer(model, previewer)
        return model

    def begin_job(self, plan: JobPlan, spec: WorkSpec) -> None:
        """A new job, or another plan of the same, which may name other stores."""
        sink, keeper = plan.membership.sink, plan.membership.keeper
        if self._job is not None and self._job.id == plan.job_id:
            self._job.sink, self._job.keeper = sink, keeper
            return
        assert self._model is not None, "the model is loaded"
        fingerprint = same_model(plan.job_id, spec)
        self._job = MemberJob(
            plan.job_id,
            self._model,
            spec,
            sink,
            keeper,
            fingerprint,
        )
        log.debug("job_begun", actor="member", job=plan.job_id)
        self.run_task(self._work.scoring.prepare(spec.measured_rewards or spec.rewards))

    def give_up(self, reason: str) -> None:
        """Another process had better try."""
        self._context.end_process(reason)

    def end_job(self) -> None:
        """The model stays warm."""
        if self._job is not None:
            log.debug("job_forgotten", actor="member", job=self._job.id)
        self._job = None
        self._batches.forget_all()
        self._slices.lent.forget_all()

    def _loaded_model(self) -> tuple[Model, str] | None:
        return None if self._job is None else (self._job.model, self._job.fingerprint)

    # --- the group ---

    @handles(Introduce, only=from_an_actor)
    async def on_introduce(self, message: Introduce) -> None:
        """Another member of the group that forms."""
        assert self.sender is not None
        self._seat.accept_introduction(message, self.sender)

    @handles(Follow, only=from_an_actor)
    async def on_follow(self, message: Follow) -> None:
        """Take part in the next steps of the group."""
        assert self.sender is not None
        if self._seat.should_follow(message, self.sender):
            self.run_task(self._follow(message, self.sender))

    @handles(CannotFollow, only=from_an_actor)
    async def on_cannot_follow(self, message: CannotFollow) -> None:
        """A member of the group cannot take part."""
        assert self.sender is not None
        self._seat.accept_refusal(message, self.sender)

    async def _follow(self, message: Follow, rank_0: ActorRef) -> None:
        try:
            if not await self._seat.formed(message.epoch):
                return
            take_steps = self._follower(message)
        except WrongWeights as error:
            self._seat.refuse(message, rank_0, str(error))
            return
        state = STATES[message.requests[0].kind]
        async with self._context.accelerator_turn():
            with self._context.busy(state, f"follows {rank_0.address}"):
                await self._seat.follow(message, rank_0, take_steps)

    def _follower(self, message: Follow) -> Callable[[StepGroup], asyncio.Future[int]]:
        """How to take part in the steps that rank 0 leads. Raises `WrongWeights`."""
        first = message.requests[0]
        version = self._weights.of((first.weights_version, first.kind == "evaluation"))
        if self._job is None or version.checksum != message.checksum:
            raise WrongWeights(f"version {first.weights_version} is not the same here")
        model = self._job.model

        def take_steps(group: StepGroup) -> asyncio.Future[int]:
            assert isinstance(group, GroupSteps), "nobody follows in a group of one"
            return self._context.in_turn(
                lambda: group.follow(
                    message.run,
                    model,
                    message.requests,
                    prepare=lambda: self._shared.install(model, version),
                )
            )

        return take_steps

    # --- batches ---

    @handles(Grant, only=from_this_process)
    async def on_grant(self, message: Grant) -> None:
        """Work on a batch; the answer is a message."""
        assert self.sender is not None
        if self._batches.is_revoked(message.lease):  # which may have come before it
            return
        batch = Batch(message, self.sender, self._job)
        takes_nothing = self._batches.stop_at is not None or bool(self._context.ends_because)
        if takes_nothing or not self._seat.leads:
            self.tell(self.sender, self._returned(batch))
            return
        self._batches.add(batch)
        self.run_task(self._carry_out(batch))

    @handles(Revoke, only=from_this_process)
    async def on_revoke(self, message: Revoke) -> None:
        """Nobody wants these any more."""
        for lease in message.leases:
            self._batches.revoke(lease)

    @handles(Recall, only=from_this_process)
    async def on_recall(self, message: Recall) -> None:
        """Commit and give back what others are free to go on with; what is denoised is done
        sooner here.
        """
        found = map(self._batches.get, message.leases)
        self._recall([batch for batch in found if batch is not None])

    def _recall(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            batch.recalled = True
            if not batch.begun:
                self._end(batch, self._returned(batch))

    async def _carry_out(self, batch: Batch) -> None:
        order = batch.message.slice
        try:
            if order is None:
                done = await self._work.carry_out(batch)
            else:
                done = await self._slices.carry_out(batch, order, self._plan.store)
            self._end(batch, done)
        except Unwanted:
            return
        except (SpotlightError, ValueError, RuntimeError) as error:
            if self._context.ends_because:
                return  # it is given back with all others
            failed = self._failed(batch, error)
            if self._end(batch, failed):
                log.warning(
                    "lease_failed",
                    lease=failed.lease,
                    what=failed.what,
                    error=str(error),
                    exc_info=error,
                )

    async def _give_all_back_at_the_end(self) -> None:
        """Once the process is to end: no request is to blame for that."""
        await self._context.ends.wait()
        for batch in self._batches:
            self._end(batch, self._returned(batch))
        self.report()

    def _failed(self, batch: Batch, error: Exception) -> LeaseFailed:
        requests = batch.message.requests
        rows = error.rows if isinstance(error, NotFinite | CommitRefused) else ()
        problem = f"{type(error).__name__}: {error}"
        if self._engine.fault_of(error) == "memory":
            problem = (
                f"out of memory with a batch of {len(requests)}; set a smaller"
                f" `sampler.micro_batch` ({problem})"
            )
        return LeaseFailed(
            self._context.name,
            self._context.epoch,
            batch.message.lease,
            problem,
            _part_of(error, of_slice=batch.message.slice is not None),
            tuple(requests[row].id for row in rows),
            foreign_traceback(error) if isinstance(error, ScoringError) else "",
        )

    def _returned(self, batch: Batch) -> ReturnLease:
        return returned(self._context.name, self._context.epoch, batch)

    def _end(self, batch: Batch, answer: Completed | ReturnLease | LeaseFailed) -> bool:
        """Tell the leader how the batch ended, unless nobody wants to know."""
        if not self._batches.end(batch):
            return False
        self.tell(batch.leader, answer)
        return True


def _part_of(error: Exception, *, of_slice: bool) -> Literal["denoising", "commits", "scoring"]:
    """Which part of the work an error is of. The weights and samples that a slice came with are no
    fault of who computes it."""
    if isinstance(error, CommitRefused) or (of_slice and isinstance(error, TransferFailed)):
        return "commits"
    return "scoring" if isinstance(error, ScoringError) else "denoising"
