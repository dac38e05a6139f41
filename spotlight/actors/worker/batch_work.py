"""How a member carries out a batch: the steps that are left, the commits, and the scoring.

A denoised batch is committed once more, and scored while the commit is sent: another worker that
takes it over only scores it. Where its images are to be compared with others it is not scored, nor
decoded: whoever is granted all of them does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from operator import mul
from typing import Any

import msgspec
import structlog

from spotlight.actors.protocol.artifacts import bundle_key, image_key_of, thumbnail_key_of
from spotlight.actors.protocol.delivery import until_transferred
from spotlight.actors.protocol.down import Grant
from spotlight.actors.protocol.up import CommitSteps, Completed, ReturnLease
from spotlight.actors.runtime import Actor
from spotlight.actors.worker.batches import Batch, Batches, MemberJob, Unwanted, returned
from spotlight.actors.worker.engine import Denoising, Engine, Images, Origin, Progress
from spotlight.actors.worker.held_weights import HeldWeights
from spotlight.actors.worker.scoring import Scored, Scoring
from spotlight.actors.worker.shared_model import HeldVersion, SharedModel
from spotlight.actors.worker.sp_membership import SPMembership
from spotlight.actors.worker.step_loop import StepLoop, Taken
from spotlight.actors.worker.worker_state import Turn, WorkerContext
from spotlight.condition_images import named
from spotlight.errors import CommitRefused, NotFinite, SpotlightError, TransferFailed
from spotlight.types import (
    BundleOffer,
    Commit,
    Prompt,
    Request,
    RequestKind,
    WorkerState,
    are_scored_now,
)

log = structlog.get_logger(__name__)

STATES: dict[RequestKind, WorkerState] = {
    "rollout": "rollout",
    "preview": "explore",
    "random": "explore",
    "evaluation": "evaluate",
    "gradient": "train",
}


@dataclass(frozen=True)
class _Finished:
    """A batch after its last step."""

    taken: Taken
    images: Images
    """None if they are to be compared with others, which are elsewhere."""


@dataclass(frozen=True)
class _StepsTaken:
    """The denoising steps of a batch that were taken here; the fields are those of `Completed`."""

    steps: int = 0
    seconds: float = 0.0
    members: int = 0


class BatchWork:
    """See the module's docstring.

    Args:
        actor: the member, which tells on its behalf.
        seat: says with whom steps are taken.
    """

    def __init__(
        self,
        actor: Actor,
        context: WorkerContext,
        engine: Engine,
        seat: SPMembership,
        batches: Batches,
        weights: HeldWeights,
        shared: SharedModel,
    ) -> None:
        self._actor = actor
        self._context = context
        self._engine = engine
        self._seat = seat
        self._batches = batches
        self._weights = weights
        self._shared = shared
        self.scoring = Scoring(context, engine)

    async def carry_out(self, batch: Batch) -> Completed | ReturnLease:
        """Denoise and score it until it is done, or must be given back. Raises `Unwanted` when
        nobody wants it any more, and other errors of ours, `ValueError` or `RuntimeError` when it
        fails.
        """
        self._batches.require_wanted(batch)  # its job may have ended in the turn after the grant
        job, message = batch.job, batch.message
        if job is None:
            raise SpotlightError("no job is prepared on this member")
        log.debug("batch_accepted", worker=self._context.name, grant=message)
        version = self._weights.of(batch.version)
        origin = Origin(job.id, version.checksum)
        progress = await self._progress(job, origin, message)
        if progress is not None and progress.step == batch.steps:
            finished = await self._decoded(job, batch, progress)
            return await self._finish(job, origin, batch, finished, _StepsTaken())
        rest: Taken | None = None
        async with self._context.accelerator_turn() as turn:
            self._batches.require_wanted(batch)
            with self._context.busy(STATES[message.requests[0].kind], _detail(message)):
                steps = self._step_loop(job, origin, batch, version, progress, turn)
                try:
                    done = await steps.run(lambda: self._batches.require_wanted(batch))
                    if done is None:
                        rest = await steps.take_rest()
                finally:
                    log.debug("denoising_left", lease=message.lease)
        if done is not None:
            taken = _StepsTaken(steps.steps, steps.seconds, steps.members)
            return await self._finish(job, origin, batch, done, taken)
        await steps.delivered()
        if rest is not None:
            await self._deliver_commit(job, origin, batch, rest)
        return self._returned(batch)

    # --- steps ---

    async def _progress(self, job: MemberJob, origin: Origin, message: Grant) -> Progress | None:
        """Where the batch goes on; None from its first step."""
        commits = [commit for commit in message.commits if commit is not None]
        if not commits:
            return None
        if len(commits) != len(message.requests):
            raise CommitRefused("requests with and without a commit cannot be in one batch")
        bundles = await self._fetch_commits(commits)
        return await self._context.on_packer(
            lambda: job.model.unpack(origin, message.requests, commits, bundles)
        )

    async def _fetch_commits(self, commits: Sequence[Commit]) -> dict[str, bytes]:
        """The bundles of commits, by key. Raises `CommitRefused` of those that cannot be had."""
        offers = {commit.bundle.key: commit.bundle for commit in commits}
        bundles: dict[str, bytes] = {}
        refused: dict[str, TransferFailed] = {}

        async def fetch(key: str, offer: BundleOffer) -> None:
            try:
                bundles[key] = await self._engine.fetch(offer)
            except TransferFailed as error:
                refused[key] = error

        await asyncio.gather(*starmap(fetch, offers.items()))
        if refused:
            rows = tuple(row for row, one in enumerate(commits) if one.bundle.key in refused)
            first = next(iter(refused.values()))
            raise CommitRefused(str(first), rows) from first
        return bundles

    async def _decoded(self, job: MemberJob, batch: Batch, progress: Progress) -> _Finished:
        """What others have denoised."""
        message = batch.message
        async with self._context.accelerator_turn():
            self._batches.require_wanted(batch)
            batch.begun = True
            with self._context.busy(STATES[message.requests[0].kind], _detail(message)):
                images = await self._context.in_turn(
                    lambda: job.model.decode(message.requests, progress)
                )
        return _Finished(Taken(progress, 0.0), images)

    def _step_loop(
        self,
        job: MemberJob,
        origin: Origin,
        batch: Batch,
        version: HeldVersion,
        progress: Progress | None,
        turn: Turn,
    ) -> StepLoop[_Finished]:
        model, requests, batches = job.model, batch.message.requests, self._batches
        scored_now = are_scored_now(requests)

        def begin() -> Denoising:
            batch.begun = True
            log.debug("denoising_begun", worker=self._context.name, lease=batch.message.lease)
            return model.begin(requests, progress)

        return StepLoop(
            self._context,
            turn,
            lead=lambda: self._seat.lead(requests, version.checksum),
            prepare=lambda: self._shared.install(model, version),
            begin=begin,
            finish=lambda taken: _Finished(
                taken, model.decode(requests, taken.progress) if scored_now else None
            ),
            commit_every=batch.message.commit_every,
            deliver=lambda taken: self._deliver_commit(job, origin, batch, taken),
            stop_at=lambda: batches.must_stop_at(batch),
            # Read between steps by the accelerator's thread, so nothing but plain attributes.
            goes_on=lambda: (
                batches.wants(batch)
                and not batch.recalled
                and batches.stop_at is None
                and not self._seat.changing
            ),
            start=self._actor.run_task,
        )

    # --- delivery ---

    async def _finish(
        self,
        job: MemberJob,
        origin: Origin,
        batch: Batch,
        finished: _Finished,
        taken: _StepsTaken,
    ) -> Completed | ReturnLease:
        """Deliver and score what is denoised, at the same time. Whatever becomes of the rewards,
        the delivery is not given up for it: the next one needs only score.
        """
        if finished.images is None:
            left, _ = await self._upload_progress(job, origin, batch, finished.taken)
            return self._completed(batch, left, taken, Scored((), 0.0))
        bundle, scored = await asyncio.gather(
            self._deliver(job, origin, batch, finished, is_new=taken.steps > 0),
            self._score_in_time(job, batch, finished.images),
            return_exceptions=True,
        )
        if isinstance(bundle, BaseException):
            raise bundle
        if isinstance(scored, BaseException):
            raise scored
        if scored is None:
            return self._returned(batch)
        self._leave_extremes(job, batch.message.requests, finished.images, scored.rewards)
        return self._completed(batch, bundle, taken, scored)

    def _completed(
        self, batch: Batch, bundle: BundleOffer, taken: _StepsTaken, scored: Scored
    ) -> Completed:
        return Completed(
            self._context.name,
            self._context.epoch,
            batch.message.lease,
            tuple(request.id for request in batch.message.requests),
            bundle,
            scored.rewards,
            taken.steps,
            taken.seconds,
            taken.members,
            scored.seconds,
        )

    async def _score_in_time(self, job: MemberJob, batch: Batch, images: Images) -> Scored | None:
        """None if the time was up before. Raises `Unwanted` and `ScoringError`."""
        requests = batch.message.requests
        prompts = [
            prompt_of(request, self._engine.image_of(request.prompt)) for request in requests
        ]
        rewards = job.work.rewards_of(requests[0].kind)
        try:
            async with asyncio.timeout_at(self._batches.stop_at) as batch.scoring:
                self._batches.require_wanted(batch)
                with self._context.busy("score", f"{len(prompts)} images"):
                    return await self.scoring.score(rewards, images, prompts)
        except TimeoutError:
            self._batches.require_wanted(batch)
            return None
        finally:
            batch.scoring = None

    async def _deliver(
        self, job: MemberJob, origin: Origin, batch: Batch, finished: _Finished, *, is_new: bool
    ) -> BundleOffer:
        """The pictures that are asked for, and the last commit, unless it was told already."""
        for request, image in zip(batch.message.requests, finished.images, strict=True):
            if request.image_key:
                picture = await self._context.on_packer(partial(self._engine.encode_picture, image))
                key = image_key_of(request.image_key, self._context.name)
                await self._upload(job, batch, key, picture)
                await self._leave_thumbnail(job, thumbnail_key_of(key), image)
        bundle, cost_s = await self._upload_progress(job, origin, batch, finished.taken)
        if is_new:
            self._tell_commit(batch, batch.steps, bundle, cost_s)
        return bundle

    def _leave_extremes(
        self,
        job: MemberJob,
        requests: Sequence[Request],
        images: Images,
        rewards: Sequence[Sequence[float]],
    ) -> None:
        """Thumbnails of the best and the worst image of a batch, where these are wanted; nothing
        waits for them."""
        if not self._engine.makes_thumbnails or not requests[0].thumbnail_key:
            return
        weights = [reward.weight for reward in job.work.rewards]
        scores = [sum(map(mul, weights, row)) for row in rewards]
        places = range(len(scores))
        for place in {max(places, key=scores.__getitem__), min(places, key=scores.__getitem__)}:
            key = image_key_of(requests[place].thumbnail_key, self._context.name)
            self._actor.run_task(self._leave_thumbnail(job, key, images[place]))

    async def _leave_thumbnail(self, job: MemberJob, key: str, image: Any) -> None:
        """One that cannot be made or left is no reason to stop, nor worth another attempt."""
        if not self._engine.makes_thumbnails:
            return
        try:
            data = await self._context.on_packer(partial(self._engine.encode_thumbnail, image))
            if data:
                await self._engine.upload(job.sink, key, data)
        except Exception as error:  # whatever is wrong with a picture, the work goes on
            log.info("thumbnail_not_left", key=key, error=str(error))

    async def _deliver_commit(
        self, job: MemberJob, origin: Origin, batch: Batch, taken: Taken
    ) -> None:
        """A commit that cannot be delivered is no reason to stop: the next one may be."""
        try:
            bundle, cost_s = await self._upload_progress(job, origin, batch, taken)
        except (NotFinite, TransferFailed) as error:
            log.warning("commit_not_delivered", lease=batch.message.lease, error=str(error))
        except Unwanted:
            return
        else:
            self._tell_commit(batch, taken.progress.step, bundle, cost_s)

    async def _upload_progress(
        self, job: MemberJob, origin: Origin, batch: Batch, taken: Taken
    ) -> tuple[BundleOffer, float]:
        """The bundle, and for how long making it kept the accelerator from denoising."""
        progress, loop = taken.progress, asyncio.get_running_loop()
        began = loop.time()
        data = await self._context.on_packer(
            lambda: self._engine.pack(origin, batch.message.requests, progress)
        )
        bundle = await self._leave(job, batch, self._key(batch, progress.step), data)
        shared_s = loop.time() - began if job.model.shares_processor else 0.0
        return bundle, taken.cost_s + shared_s

    async def _leave(self, job: MemberJob, batch: Batch, key: str, data: bytes) -> BundleOffer:
        """Leave a sample or a commit with the job's keeper, or else in its sink, whichever these
        are by then. Raises `TransferFailed`, and `Unwanted`."""

        async def attempt() -> BundleOffer:
            keeper = job.keeper
            if keeper is not None:
                try:
                    bundle = await self._engine.upload(keeper.store, key, data)
                    return msgspec.structs.replace(bundle, keeper=keeper.node)
                except TransferFailed as error:
                    log.info("not_kept", key=key, keeper=keeper.node, reason=str(error))
            return await self._engine.upload(job.sink, key, data)

        return await self._until_left(batch, key, attempt)

    async def _upload(self, job: MemberJob, batch: Batch, key: str, data: bytes) -> BundleOffer:
        """Leave something in the job's sink, whichever that is by then. Raises `TransferFailed`,
        and `Unwanted`."""
        return await self._until_left(batch, key, lambda: self._engine.upload(job.sink, key, data))

    async def _until_left(
        self, batch: Batch, key: str, attempt: Callable[[], Awaitable[BundleOffer]]
    ) -> BundleOffer:
        """A coordinator may be away for a while."""
        return await until_transferred(
            attempt,
            key,
            require_wanted=lambda: self._batches.require_wanted(batch),
            timings=self._context.timings.delivery,
        )

    def _tell_commit(self, batch: Batch, step: int, bundle: BundleOffer, cost_s: float) -> None:
        """To the leader, unless nobody wants to know."""
        if self._batches.wants(batch):
            name, epoch, lease = self._context.name, self._context.epoch, batch.message.lease
            ids = tuple(request.id for request in batch.message.requests)
            log.debug("commit_told", worker=name, lease=lease, step=step)
            message = CommitSteps(name, epoch, lease, ids, step, bundle, cost_s)
            self._actor.tell(batch.leader, message)

    def _key(self, batch: Batch, step: int) -> str:
        """Of the bundle with the batch's progress after so many steps."""
        made_by = self._context.name, self._context.epoch, batch.message.lease
        return bundle_key(*made_by, None if step == batch.steps else step)

    def _returned(self, batch: Batch) -> ReturnLease:
        return returned(self._context.name, self._context.epoch, batch)


def prompt_of(request: Request, image: bytes) -> Prompt:
    """What scorers are told of it; only where it comes with an image does its text name one."""
    metadata = msgspec.json.decode(request.metadata) if request.metadata else {}
    text = named(request.prompt).text if image else request.prompt
    return Prompt(text, metadata, image)


def _detail(message: Grant) -> str:
    return f"{len(message.requests)} images of iteration {message.requests[0].iteration}"
