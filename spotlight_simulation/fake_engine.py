"""What a simulated worker computes with (`engine.Engine`): virtual time, and fingerprints in place
of tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from spotlight.actors.protocol.gradients import GRADIENTS
from spotlight.actors.protocol.trainer import StartTrainer
from spotlight.actors.worker import engine
from spotlight.actors.worker.engine import Origin
from spotlight.actors.worker.trainer_outputs import is_lent
from spotlight.errors import ScoringError
from spotlight.jobs import ModelSpec, RewardSpec
from spotlight.types import BundleOffer, Prompt, Request, StoreEndpoint
from spotlight_simulation import fingerprints
from spotlight_simulation.fake_collective import FakeMeeting
from spotlight_simulation.fake_denoising import FakeModel, State, encode_commit
from spotlight_simulation.fake_hardware import AcceleratorFailed, FakeHardware
from spotlight_simulation.fake_trainer import FakeListener, FakeTrainer
from spotlight_simulation.fingerprints import Row
from spotlight_simulation.virtual_threads import sleep

_PART = fingerprints.Weights


class FakeEngine:
    """See `engine.Engine`. `worker` is the name of the process that has it."""

    def __init__(self, hardware: FakeHardware, worker: str) -> None:
        self._hardware = hardware
        self._worker = worker

    @property
    def device(self) -> str:
        """See `engine.Engine`."""
        return "simulated"

    @property
    def device_kind(self) -> str:
        """See `engine.Engine`."""
        return "simulated"

    def limit_threads(self, threads: int) -> None:
        """See `engine.Engine`."""

    def fault_of(self, error: BaseException) -> engine.Fault:
        """See `engine.Engine`."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, AcceleratorFailed):
            cause = cause.__cause__ or cause.__context__
        return cause.fault if cause is not None else ""

    async def fetch_model(self, spec: ModelSpec) -> None:
        """See `engine.Engine`."""

    async def fetch_images(self, offer: BundleOffer) -> None:
        """See `engine.Engine`."""

    def image_of(self, prompt: str) -> bytes:
        """See `engine.Engine`."""
        return b""

    def load(self, spec: ModelSpec) -> FakeModel:
        """See `engine.Engine`."""
        sleep(self._hardware.times.load_s)
        return FakeModel(self._hardware, self._worker)

    def load_previewer(self, model: engine.Model, spec: ModelSpec | None) -> None:
        """See `engine.Engine`."""

    def restore(self, model: engine.Model, spec: ModelSpec) -> None:
        """See `engine.Engine`."""
        sleep(self._hardware.times.load_s)
        cast(FakeModel, model).weights = ""

    def step(self, denoising: engine.Denoising) -> None:
        """See `engine.Engine`."""
        denoising.step()

    def meet(
        self,
        model: engine.Model,
        epoch: int,
        workers: Sequence[str],
        rank: int,
        ring: int,
        send: Callable[[str, bytes], None],
    ) -> FakeMeeting:
        """See `engine.Engine`."""
        incarnations = tuple(self._hardware.incarnation(worker) for worker in workers)
        name = (epoch, incarnations)
        group = self._hardware.sp_groups.join(name, len(workers), rank, self._worker)
        return FakeMeeting(group, rank, send, self._hardware.timings.worker.meet_limit_s)

    def build_scorer(self, reward: RewardSpec) -> FakeScorer:
        """See `engine.Engine`."""
        return FakeScorer(self._hardware, self._worker)

    def pack(self, origin: Origin, requests: Sequence[Request], progress: engine.Progress) -> bytes:
        """See `engine.Engine`."""
        return encode_commit(origin, cast(State, progress).rows(requests))

    def encode_picture(self, image: Row) -> bytes:
        """See `engine.Engine`."""
        return b"picture"

    @property
    def makes_thumbnails(self) -> bool:
        """See `engine.Engine`."""
        return False

    def encode_thumbnail(self, image: Row) -> bytes:
        """See `engine.Engine`."""
        return b""

    async def save_weights(
        self, store: StoreEndpoint, key: str, weights: fingerprints.Weights
    ) -> BundleOffer:
        """See `engine.Engine`."""
        times, data = self._hardware.times, msgspec.msgpack.encode(weights)
        nbytes = times.lent_bytes if is_lent(key) else times.published_bytes
        seconds = nbytes / times.network.copy_bytes_per_s
        seconds += 0.0 if is_lent(key) else times.publish_s
        if seconds:
            await asyncio.sleep(seconds)
        return await self._hardware.stores.upload(store, key, data, nbytes)

    async def fetch_weights(self, parts: Sequence[BundleOffer]) -> str:
        """See `engine.Engine`; all parts must be of the same weights."""
        fetched = await asyncio.gather(*map(self.fetch, parts))
        found = {msgspec.msgpack.decode(data, type=_PART) for data in fetched}
        if len(found) > 1:
            self._hardware.history.violation(f"a version of different weights: {found}")
        return found.pop().weights

    async def fetch(self, offer: BundleOffer) -> bytes:
        """See `engine.Engine`."""
        return await self._hardware.stores.fetch(offer)

    async def upload(self, store: StoreEndpoint, key: str, data: bytes) -> BundleOffer:
        """See `engine.Engine`."""
        nbytes = self._hardware.times.gradient_bytes if key.startswith(f"{GRADIENTS}/") else 0
        return await self._hardware.stores.upload(store, key, data, nbytes)

    async def save_state(
        self,
        store: StoreEndpoint,
        key: str,
        state: fingerprints.Weights,
        metadata: dict[str, str],
    ) -> BundleOffer:
        """See `engine.Engine`."""
        return await self.upload(store, key, msgspec.msgpack.encode(state))

    async def fetch_state(self, offer: BundleOffer) -> fingerprints.Weights:
        """See `engine.Engine`."""
        return msgspec.msgpack.decode(await self.fetch(offer), type=fingerprints.Weights)

    async def export(
        self, model: ModelSpec, checkpoint: BundleOffer, store: StoreEndpoint
    ) -> tuple[BundleOffer, ...]:
        """See `engine.Engine`."""
        return (await self.upload(store, "export/weights", await self.fetch(checkpoint)),)

    def listen(self) -> FakeListener:
        """See `engine.Engine`."""
        return FakeListener(self._hardware.next_address())

    def build_trainer(
        self,
        order: StartTrainer,
        model: engine.Model,
        state: Sequence[fingerprints.Weights],
        rendezvous: str,
        listener: engine.Listener | None,
        require_wanted: Callable[[], None],
    ) -> FakeTrainer:
        """See `engine.Engine`."""
        return FakeTrainer(
            self._hardware, self._worker, order, cast(FakeModel, model), state, rendezvous
        )


class FakeScorer:
    """See `engine.Scorer`."""

    def __init__(self, hardware: FakeHardware, worker: str) -> None:
        self._hardware = hardware
        self._worker = worker

    def score(self, images: Sequence[Row], prompts: Sequence[Prompt]) -> Sequence[float]:
        """See `engine.Scorer`."""
        hardware, first = self._hardware, images[0].request
        sleep(hardware.times.score_s)
        if any(hardware.scorer_fails(row.request) for row in images):
            hardware.history.took_effect("scorer_error", worker=self._worker, request=first.id)
            raise ScoringError("the scorer is out of order")
        return hardware.numerics.rewards(images)
