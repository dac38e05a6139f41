"""A member: denoises on its accelerator with exactly the weights that a request names, and scores
what was denoised.

Messages: those of every `BatchMember`.

The model stays loaded between jobs' iterations; weights versions are kept as tensors and copied in
when a request needs another one. Batches run one after the other on the accelerator, while the last
one is scored and its bundle is uploaded; its pixels stay here. A batch goes on from the commits
that come with it, and commits while it runs, and before it is given back. Steps are taken with
those who are in the member's SP group at the time.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import structlog
from torch import Tensor

from spotlight.actors.protocol import (
    Completed,
    Follow,
    Grant,
    JobPlan,
    ReturnLease,
)
from spotlight.actors.runtime import ActorRef
from spotlight.actors.worker.batch_member import (
    NO_STEPS,
    STATES,
    Batch,
    BatchMember,
    StepsTaken,
    Unwanted,
)
from spotlight.actors.worker.commit_bundles import (
    Origin,
    fetch_bundles,
    pack_commit,
    settings_of,
    unpack_commits,
)
from spotlight.actors.worker.group_connector import GroupConnector
from spotlight.actors.worker.job_holdings import Version
from spotlight.actors.worker.scoring import Scoring
from spotlight.actors.worker.step_loop import StepLoop, Taken, take
from spotlight.actors.worker.worker_state import Turn, WorkerContext
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.lockstep import GroupSteps, StepGroup
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.png import to_png
from spotlight.diffusion.samplers import Denoising, Progress, resume, start
from spotlight.errors import (
    CommitRefused,
    NotFinite,
    SpotlightError,
    TransferFailed,
    WrongWeights,
)
from spotlight.jobs import JobSpec, ModelSpec, RewardSpec
from spotlight.transport.tensors import fetch, upload
from spotlight.transport.tensors.bundles import map_copy, touch, unpack
from spotlight.types import BundleOffer, Request, StoreEndpoint

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Weights:
    checksum: int
    """Of their bundle: a version that is trained again may differ."""
    state: dict[str, Tensor]


@dataclass
class _Job:
    id: str
    model: DiffusionModel
    reward: RewardSpec
    sink: StoreEndpoint
    """Of the coordinator that is there now."""
    fingerprint: str
    """The same in all members that have this job and this model."""


@dataclass(frozen=True)
class _Finished:
    """A batch after its last step."""

    taken: Taken
    images: np.ndarray
    """uint8 [B, H, W, 3]."""


@dataclass(eq=False)
class _Batch(Batch):
    job: _Job | None = None
    """That it came for."""


class Member(BatchMember[_Batch, StepGroup, _Weights]):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, host: str = "127.0.0.1") -> None:
        self._connector = GroupConnector(context, host, self._loaded_model)
        super().__init__(context, self._connector)
        self._scoring = Scoring(context)
        self._loading = threading.Lock()
        """A thread that was left behind may still copy weights."""
        self._job: _Job | None = None
        self._warm: tuple[ModelSpec, DiffusionModel] | None = None
        self._loaded: weakref.ref[_Weights] | None = None
        """The version that is in the model, even when it is not held any more."""

    # --- the job ---

    async def _load_model(self, spec: JobSpec) -> None:
        """Unless it is warm already."""
        self._context.use_threads(spec.threads)
        if self._warm is not None and self._warm[0] == spec.model:
            return
        self._warm = None
        self._connector.forget()
        gc.collect()  # the old model holds on to itself by its hooks
        with self._context.busy("loading", "model"):
            model = await self._context.on_accelerator(lambda: load_model(spec.model))
        self._warm = (spec.model, model)

    def _begin_job(self, plan: JobPlan, spec: JobSpec) -> None:
        """A new job starts without weights; the same one goes on and delivers to the new sink."""
        sink = plan.membership.sink
        if self._job is not None and self._job.id == plan.job_id:
            self._job.sink = sink
            return
        assert self._warm is not None, "the model is loaded"
        fingerprint = f"{plan.job_id}/{zlib.crc32(msgspec.json.encode(spec.model)):08x}"
        self._job = _Job(plan.job_id, self._warm[1], spec.reward, sink, fingerprint)
        self.run_task(self._scoring.prepare(spec.reward))

    def _end_job(self) -> None:
        """The model stays warm."""
        self._job = None
        self._forget_batches()
        self._loaded = None

    async def _fetch_weights(self, offer: BundleOffer) -> _Weights:
        mapped = await asyncio.to_thread(map_copy, offer)  # never behind what is packed
        if mapped is not None:
            self.run_task(asyncio.to_thread(touch, mapped))
            return _Weights(offer.checksum, mapped)
        data = await fetch(offer)
        return _Weights(offer.checksum, await self._context.on_packer(lambda: unpack(data)))

    def _follower(self, message: Follow) -> Callable[[StepGroup], asyncio.Future[int]]:
        first = message.requests[0]
        weights = self._held((first.weights_version, first.kind == "evaluation"))
        if self._job is None or weights.checksum != message.checksum:
            raise WrongWeights(f"version {first.weights_version} is not the same here")
        model = self._job.model
        prompts = [request.prompt for request in message.requests]
        seeds = [request.seed for request in message.requests]

        def take_steps(company: StepGroup) -> asyncio.Future[int]:
            assert isinstance(company, GroupSteps), "nobody follows in a group of one"
            return self._context.in_turn(
                lambda: company.follow(
                    message.stretch,
                    model,
                    prompts,
                    seeds,
                    settings_of(first),
                    prepare=lambda: self._load(model, weights),
                )
            )

        return take_steps

    def _loaded_model(self) -> tuple[DiffusionModel, str] | None:
        return None if self._job is None else (self._job.model, self._job.fingerprint)

    # --- batches ---

    def _make_batch(self, message: Grant, leader: ActorRef) -> _Batch:
        return _Batch(message, leader, job=self._job)

    def _must_stop_at(self, batch: _Batch) -> float | None:
        return asyncio.get_running_loop().time() if batch.recalled else self._stop_at

    async def _carry_out(self, batch: _Batch) -> Completed | ReturnLease:
        job, message = batch.job, batch.message
        if job is None:
            raise SpotlightError("no job is prepared on this member")
        first = message.requests[0]
        weights = self._held((first.weights_version, first.kind == "evaluation"))
        origin = Origin(job.id, weights.checksum)
        progress = await self._progress(job, origin, message)
        if progress is not None and progress.step == batch.steps:
            finished = await self._decoded(job, batch, progress)
            return await self._finish(job, origin, batch, finished, NO_STEPS)
        rest: Taken | None = None
        async with self._context.accelerator_turn() as turn:
            self._require_wanted(batch)
            with self._context.busy(STATES[first.kind], _detail(message)):
                steps = self._step_loop(job, origin, batch, weights, progress, turn)
                done = await steps.run(lambda: self._require_wanted(batch))
                if done is None:
                    rest = await steps.take_rest()
        if done is not None:
            taken = StepsTaken(steps.steps, steps.seconds, steps.members)
            return await self._finish(job, origin, batch, done, taken)
        await steps.delivered()
        if rest is not None:
            await self._deliver_commit(job, origin, batch, rest)
        return self._returned(batch)

    async def _decoded(self, job: _Job, batch: _Batch, progress: Progress) -> _Finished:
        """What others have denoised."""
        message = batch.message
        async with self._context.accelerator_turn():
            self._require_wanted(batch)
            batch.begun = True
            with self._context.busy(STATES[message.requests[0].kind], _detail(message)):
                images = await self._context.in_turn(
                    lambda: _decode(job.model, message.requests, progress)
                )
        return _Finished(Taken(progress, 0.0), images)

    def _step_loop(
        self,
        job: _Job,
        origin: Origin,
        batch: _Batch,
        weights: _Weights,
        progress: Progress | None,
        turn: Turn,
    ) -> StepLoop[_Finished]:
        message = batch.message
        return StepLoop(
            self._context,
            turn,
            stretch=lambda: self._seat.lead(message.requests, weights.checksum),
            prepare=lambda: self._load(job.model, weights),
            begin=lambda: self._begin(job.model, batch, progress),
            finish=lambda denoising: _finished(job.model, message.requests, denoising),
            commit_every=message.commit_every,
            deliver=lambda taken: self._deliver_commit(job, origin, batch, taken),
            stop_at=lambda: self._must_stop_at(batch),
            # Read between steps by the accelerator's thread, so nothing but plain attributes.
            goes_on=lambda: (
                self._is_wanted(batch)
                and not batch.recalled
                and self._stop_at is None
                and not self._seat.changing
            ),
            start=self.run_task,
        )

    async def _progress(self, job: _Job, origin: Origin, message: Grant) -> Progress | None:
        """Where the batch goes on; None from its first step."""
        commits = [commit for commit in message.commits if commit is not None]
        if not commits:
            return None
        if len(commits) != len(message.requests):
            raise CommitRefused("requests with and without a commit cannot be in one batch")
        bundles = await fetch_bundles(commits)
        settings = message.requests[0].settings
        shape = job.model.latent_shape(settings.height, settings.width)
        return await self._context.on_packer(
            lambda: unpack_commits(origin, message.requests, commits, bundles, shape)
        )

    def _load(self, model: DiffusionModel, weights: _Weights) -> None:
        """In the accelerator's thread."""
        with self._loading:
            self._context.require_accelerator()  # or another thread denoises with its weights
            if self._loaded is None or self._loaded() is not weights:
                self._loaded = None  # should it fail half-way
                model.load_trainable_state(weights.state)
                self._loaded = weakref.ref(weights)

    def _begin(self, model: DiffusionModel, batch: _Batch, progress: Progress | None) -> Denoising:
        """In the accelerator's thread."""
        batch.begun = True
        requests = batch.message.requests
        prompts, seeds = [r.prompt for r in requests], [r.seed for r in requests]
        settings = settings_of(requests[0])
        if progress is None:
            return start(model, prompts, seeds, settings)
        return resume(model, prompts, seeds, settings, progress)

    def _held(self, version: Version) -> _Weights:
        weights = self._holdings.weights.get(version)
        if weights is None:
            held = sorted({number for number, _ in self._holdings.weights})
            raise WrongWeights(f"version {version[0]} is not held here; held: {held}")
        return weights

    # --- delivery ---

    async def _finish(
        self, job: _Job, origin: Origin, batch: _Batch, finished: _Finished, taken: StepsTaken
    ) -> Completed | ReturnLease:
        """Score what is denoised, and deliver it meanwhile."""
        prompts = [request.prompt for request in batch.message.requests]
        return await self._complete(
            batch,
            taken,
            deliver=lambda: self._deliver(job, origin, batch, finished, is_new=taken.steps > 0),
            score=lambda: self._scoring.score(job.reward, finished.images, prompts),
        )

    async def _deliver(
        self, job: _Job, origin: Origin, batch: _Batch, finished: _Finished, *, is_new: bool
    ) -> BundleOffer:
        """The pictures that are asked for, and the last commit, unless it was told already."""
        for request, image in zip(batch.message.requests, finished.images, strict=True):
            if request.image_key:
                picture = await self._context.on_packer(functools.partial(to_png, image))
                await self._upload(job, batch, request.image_key, picture)
        bundle, cost_s = await self._upload_progress(job, origin, batch, finished.taken)
        if is_new:
            self._tell_commit(batch, batch.steps, bundle, cost_s)
        return bundle

    async def _deliver_commit(self, job: _Job, origin: Origin, batch: _Batch, taken: Taken) -> None:
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
        self, job: _Job, origin: Origin, batch: _Batch, taken: Taken
    ) -> tuple[BundleOffer, float]:
        """The bundle, and for how long making it kept the accelerator from denoising."""
        progress, loop = taken.progress, asyncio.get_running_loop()
        began = loop.time()
        data = await self._context.on_packer(
            lambda: pack_commit(origin, batch.message.requests, progress)
        )
        bundle = await self._upload(job, batch, self._key(batch, progress.step), data)
        # Without an accelerator delivery and denoising share the processor.
        shared_s = loop.time() - began if job.model.device.type == "cpu" else 0.0
        return bundle, taken.cost_s + shared_s

    async def _upload(self, job: _Job, batch: _Batch, key: str, data: bytes) -> BundleOffer:
        return await self._until_uploaded(batch, key, lambda: upload(job.sink, key, data))


def _detail(message: Grant) -> str:
    return f"{len(message.requests)} images of iteration {message.requests[0].iteration}"


def _finished(
    model: DiffusionModel, requests: tuple[Request, ...], denoising: Denoising
) -> _Finished:
    """In the accelerator's thread."""
    denoising.result()  # raises `NotFinite`, before anything is decoded
    taken = take(denoising)
    return _Finished(taken, _decode(model, requests, taken.progress))


def _decode(model: DiffusionModel, requests: tuple[Request, ...], progress: Progress) -> np.ndarray:
    """In the accelerator's thread."""
    settings = requests[0].settings
    return model.decode(progress.latents, settings.height, settings.width)
