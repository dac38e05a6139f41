"""A member: executes denoising on its accelerator, with exactly the weights that a request names.

Messages in: PrepareJob, HoldWeights (asks of its leader), Denoise, Revoke, EndJob. Messages out:
Denoised or DenoiseError.

The model stays loaded between jobs' iterations; weights versions are kept as tensors and copied in
when a request needs another one. Batches run one after the other in the accelerator's thread, while
the bundle of the last one is uploaded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import structlog
import torch
from torch import Tensor

from spotlight.actors.messages import (
    Acknowledged,
    Denoise,
    Denoised,
    DenoiseError,
    EndJob,
    HoldWeights,
    PrepareJob,
    RequestKind,
    Revoke,
    WeightsHeld,
    WorkerState,
)
from spotlight.actors.runtime import Actor, ActorRef, handles
from spotlight.actors.worker_state import WorkerContext
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.png import to_png
from spotlight.diffusion.samplers import SamplerSettings, start
from spotlight.errors import SpotlightError, WrongWeights
from spotlight.jobs import ModelSpec
from spotlight.transport.tensors import BundleOffer, StoreEndpoint, fetch, upload
from spotlight.transport.tensors.bundles import pack, unpack

log = structlog.get_logger(__name__)

_STATES: dict[RequestKind, WorkerState] = {
    "rollout": "rollout",
    "preview": "explore",
    "evaluation": "evaluate",
}
_Version = tuple[int, bool]


@dataclass
class _Job:
    id: str
    model: DiffusionModel
    sink: StoreEndpoint


class _Revoked(Exception):
    """The lease was revoked while the batch was in work."""


class Member(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._job: _Job | None = None
        self._warm: tuple[ModelSpec, DiffusionModel] | None = None
        self._weights: dict[_Version, dict[str, Tensor]] = {}
        self._loaded: _Version | None = None
        self._wanted: dict[int, Denoise] = {}
        """Batches whose results are wanted, by lease; read between steps by the accelerator's
        thread. Leases of different jobs may bear the same number.
        """

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> Acknowledged:
        """Load the model, unless it is warm already; a new job starts without weights."""
        spec = message.job.model
        if self._warm is None or self._warm[0] != spec:
            self._warm = None
            with self._context.busy("loading", "model"):
                model = await self._context.on_accelerator(lambda: load_model(spec))
            self._warm = (spec, model)
        if self._job is None or self._job.id != message.job_id:
            self._forget_job()
        self._job = _Job(message.job_id, self._warm[1], message.membership.sink)
        return Acknowledged()

    @handles(HoldWeights)
    async def on_hold_weights(self, message: HoldWeights) -> WeightsHeld:
        """Fetch a version and drop those that nobody needs any more."""
        for evaluation, offer in ((False, message.rollout), (True, message.evaluation)):
            key = (message.version, evaluation)
            if offer is not None and key not in self._weights:
                self._weights[key] = unpack(await fetch(offer))
        for key in [key for key in self._weights if key[0] not in message.keep]:
            del self._weights[key]
        return WeightsHeld(message.version)

    @handles(Denoise)
    async def on_denoise(self, message: Denoise) -> None:
        """Work on a batch; the answer is a message."""
        assert self.sender is not None
        self._wanted[message.lease] = message
        self.run_task(self._denoise(message, self.sender))

    @handles(Revoke)
    async def on_revoke(self, message: Revoke) -> None:
        """Nobody wants these any more: stop before the next step."""
        for lease in message.leases:
            self._wanted.pop(lease, None)

    @handles(EndJob)
    async def on_end_job(self, message: EndJob) -> None:
        """Forget the job's weights; the model stays warm."""
        if self._job is not None and self._job.id == message.job_id:
            self._forget_job()

    def _forget_job(self) -> None:
        self._job = None
        self._wanted.clear()
        self._weights.clear()
        self._loaded = None

    async def _denoise(self, message: Denoise, leader: ActorRef) -> None:
        job = self._job
        first = message.requests[0]
        started = asyncio.get_running_loop().time()
        try:
            if job is None:
                raise SpotlightError("no job is prepared on this member")
            detail = f"{len(message.requests)} images of iteration {first.iteration}"
            with self._context.busy(_STATES[first.kind], detail):
                tensors, images = await self._context.on_accelerator(
                    lambda: self._run(job, message)
                )
            bundle = await self._deliver(job, message, tensors, images)
            self._require_wanted(message)
        except _Revoked:
            return
        except (SpotlightError, ValueError, RuntimeError) as error:
            if not self._is_wanted(message):
                return
            log.warning("denoise_error", lease=message.lease, error=str(error))
            self.tell(leader, DenoiseError(message.lease, f"{type(error).__name__}: {error}"))
            return
        finally:
            if self._is_wanted(message):
                del self._wanted[message.lease]
        seconds = asyncio.get_running_loop().time() - started
        self.tell(leader, Denoised(message.lease, bundle, seconds))

    def _run(self, job: _Job, message: Denoise) -> tuple[dict[str, Tensor], dict[str, bytes]]:
        """In the accelerator's thread: denoise and decode; also PNGs for those requests that ask
        for one.
        """
        requests, first = message.requests, message.requests[0]
        self._require_wanted(message)
        self._use_weights(job.model, (first.weights_version, first.kind == "evaluation"))
        settings = SamplerSettings(**msgspec.structs.asdict(first.settings))
        prompts, seeds = [r.prompt for r in requests], [r.seed for r in requests]
        denoising = start(job.model, prompts, seeds, settings)
        while not denoising.done:
            self._require_wanted(message)
            denoising.step()
        batch = denoising.result()
        images = job.model.decode(batch.latents, settings.height, settings.width)
        tensors = {"images": torch.from_numpy(images)}
        if first.kind == "rollout":
            tensors["latents"] = batch.latents
            if batch.window_states is not None and batch.log_probs is not None:
                tensors["window_states"] = batch.window_states
                tensors["log_probs"] = batch.log_probs
        pictures = {
            request.image_key: to_png(image)
            for request, image in zip(requests, images, strict=True)
            if request.image_key
        }
        return tensors, pictures

    def _is_wanted(self, message: Denoise) -> bool:
        return self._wanted.get(message.lease) is message

    def _require_wanted(self, message: Denoise) -> None:
        if not self._is_wanted(message):
            raise _Revoked

    def _use_weights(self, model: DiffusionModel, version: _Version) -> None:
        if self._loaded == version:
            return
        state = self._weights.get(version)
        if state is None:
            held = sorted(number for number, _ in self._weights)
            raise WrongWeights(f"version {version[0]} is not held here; held: {held}")
        model.load_trainable_state(state)
        self._loaded = version

    async def _deliver(
        self, job: _Job, message: Denoise, tensors: dict[str, Tensor], images: dict[str, bytes]
    ) -> BundleOffer:
        for key, data in images.items():
            await upload(job.sink, key, data)
        key = f"samples/{self._context.name}/{self._context.epoch}-{message.lease}"
        return await upload(job.sink, key, pack(tensors))
