"""What a worker computes with: torch, on its accelerator (`engine.Engine`)."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import structlog
import torch
from safetensors.torch import save_file

from spotlight.actors.protocol.trainer import StartTrainer
from spotlight.actors.worker import engine
from spotlight.actors.worker.commit_bundles import pack_commit
from spotlight.actors.worker.engine import Origin, Weights
from spotlight.actors.worker.torch_collective import TorchMeeting
from spotlight.actors.worker.torch_faults import fault_of
from spotlight.actors.worker.torch_model import TorchModel, synchronize
from spotlight.actors.worker.torch_trainer import TorchListener, TorchTrainer
from spotlight.condition_images import named
from spotlight.condition_images import unpack as unpack_images
from spotlight.diffusion.checkpoint_names import find_checkpoint
from spotlight.diffusion.checkpoints import (
    default_device,
    load_model,
    untrained_state,
    with_other_transformer,
)
from spotlight.diffusion.embedding_cache import EmbeddingCache
from spotlight.diffusion.png import to_png
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.diffusion.thumbnails import to_thumbnail
from spotlight.errors import TransferFailed
from spotlight.jobs import ModelSpec, RewardSpec
from spotlight.permissions import Permissions
from spotlight.rewards.base import Scorer, build_scorer
from spotlight.timings import Timings
from spotlight.training.checkpoints import State, save_checkpoint
from spotlight.training.export import export_checkpoint
from spotlight.training.state_files import StateFile
from spotlight.transport.tensors import fetch, upload
from spotlight.transport.tensors.bundles import map_copy, touch, unpack
from spotlight.transport.tensors.files import deposit, fetched_file
from spotlight.types import BundleOffer, Request, StoreEndpoint

log = structlog.get_logger(__name__)


class TorchEngine:
    """See `engine.Engine`. `host` is this machine's address for collectives, `embeddings` the
    folder in which the workers of the node keep encoded prompts, if they do, and `permissions` what
    its operator lets jobs do."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        timings: Timings = Timings(),
        embeddings: Path | None = None,
        permissions: Permissions = Permissions(),
    ) -> None:
        self._host = host
        self._timings = timings
        self._permissions = permissions
        self._embeddings = EmbeddingCache(embeddings) if embeddings is not None else None
        self._images: dict[str, bytes] = {}
        """The files of images that prompts come with, by their digests; models read them here."""
        self._has_images: tuple[int, int] | None = None
        """The size and the checksum of the bundle that they are from."""
        self._parallel: tuple[SequenceParallel, ...] = ()
        """Each of them is of a transformer of the model, in the order of `transformers`."""
        self._touching: set[asyncio.Future[None]] = set()

    @property
    def device(self) -> str:
        """See `engine.Engine`."""
        return default_device().type

    @property
    def device_kind(self) -> str:
        """See `engine.Engine`."""
        if self.device == "cuda":
            kind = torch.cuda.get_device_name()
        else:
            kind = torch.backends.cpu.get_cpu_capability()
        return f"{self.device} {kind}, torch {torch.__version__}"  # its kernels make the bits, too

    def limit_threads(self, threads: int) -> None:
        """See `engine.Engine`."""
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    def fault_of(self, error: BaseException) -> engine.Fault:
        """See `engine.Engine`."""
        return fault_of(error)

    async def fetch_model(self, spec: ModelSpec) -> None:
        """See `engine.Engine`."""
        await asyncio.to_thread(find_checkpoint, spec.checkpoint)

    async def fetch_images(self, offer: BundleOffer) -> None:
        """See `engine.Engine`."""
        if self._has_images != (offer.nbytes, offer.checksum):
            data = await self.fetch(offer)
            found = await asyncio.to_thread(unpack_images, data)
            self._images.clear()
            self._images.update(found)
            self._has_images = (offer.nbytes, offer.checksum)

    def image_of(self, prompt: str) -> bytes:
        """See `engine.Engine`."""
        return self._images.get(named(prompt).digest, b"")

    def load(self, spec: ModelSpec) -> TorchModel:
        """See `engine.Engine`."""
        self._parallel = ()
        gc.collect()  # the old model holds on to itself by its hooks
        model = TorchModel(load_model(spec, cache=self._embeddings, images=self._images))
        log.info("model_loaded", checkpoint=spec.checkpoint, process=os.getpid())
        return model

    def load_previewer(self, model: engine.Model, spec: ModelSpec | None) -> None:
        """See `engine.Engine`."""
        loaded = cast(TorchModel, model)
        loaded.previewer, self._parallel = None, self._parallel[:1]
        gc.collect()  # the old one holds on to itself by its hooks
        if spec is not None:
            loaded.previewer = with_other_transformer(loaded.model, spec)
            log.info("previewer_loaded", checkpoint=spec.checkpoint, process=os.getpid())

    def restore(self, model: engine.Model, spec: ModelSpec) -> None:
        """See `engine.Engine`."""
        loaded = cast(TorchModel, model).model
        loaded.load_trainable_state(untrained_state(spec, loaded.device))

    def step(self, denoising: engine.Denoising) -> None:
        """See `engine.Engine`."""
        denoising.step()
        synchronize()

    def meet(
        self,
        model: engine.Model,
        epoch: int,
        workers: Sequence[str],
        rank: int,
        ring: int,
        send: Callable[[str, bytes], None],
    ) -> TorchMeeting:
        """See `engine.Engine`. Raises `CannotShard` if the model cannot be shared out."""
        loaded = cast(TorchModel, model)
        known = {parallel.transformer: parallel for parallel in self._parallel}
        self._parallel = tuple(
            known.get(transformer) or SequenceParallel(transformer)
            for transformer in loaded.transformers
        )
        return TorchMeeting(
            loaded,
            self._parallel,
            host=self._host,
            where=f"SP group {epoch}",
            rank=rank,
            world=len(workers),
            ring=ring,
            send=send,
            timings=self._timings.worker,
        )

    def build_scorer(self, reward: RewardSpec) -> Scorer:
        """See `engine.Engine`."""
        return build_scorer(reward, self._permissions)

    def pack(self, origin: Origin, requests: Sequence[Request], progress: engine.Progress) -> bytes:
        """See `engine.Engine`."""
        return pack_commit(origin, requests, cast(Progress, progress))

    def encode_picture(self, image: np.ndarray) -> bytes:
        """See `engine.Engine`."""
        return to_png(image)

    @property
    def makes_thumbnails(self) -> bool:
        """See `engine.Engine`."""
        return True

    def encode_thumbnail(self, image: np.ndarray) -> bytes:
        """See `engine.Engine`."""
        return to_thumbnail(image)

    async def save_weights(self, store: StoreEndpoint, key: str, weights: Weights) -> BundleOffer:
        """See `engine.Engine`."""
        return await deposit(store, key, partial(save_file, weights), self._timings.transfers)

    async def fetch_weights(self, parts: Sequence[BundleOffer]) -> Weights:
        """See `engine.Engine`; mapped from the node's store where that is on this machine."""
        found: dict[str, torch.Tensor] = {}
        for part in await asyncio.gather(*map(self._fetch_part, parts)):
            if twice := found.keys() & part.keys():
                raise TransferFailed(f"{min(twice)} is in several parts of a weights version")
            found |= part
        return found

    async def _fetch_part(self, offer: BundleOffer) -> dict[str, torch.Tensor]:
        mapped = await asyncio.to_thread(map_copy, offer)
        if mapped is not None:
            touching = asyncio.ensure_future(asyncio.to_thread(touch, mapped))
            self._touching.add(touching)  # or it may be collected before it is done
            touching.add_done_callback(self._touching.discard)
            return mapped
        data = await self.fetch(offer)
        return await asyncio.to_thread(unpack, data)

    async def fetch(self, offer: BundleOffer) -> bytes:
        """See `engine.Engine`."""
        return await fetch(offer, self._timings.transfers)

    async def upload(self, store: StoreEndpoint, key: str, data: bytes) -> BundleOffer:
        """See `engine.Engine`."""
        return await upload(store, key, data, self._timings.transfers)

    async def save_state(
        self, store: StoreEndpoint, key: str, state: engine.State, metadata: dict[str, str]
    ) -> BundleOffer:
        """See `engine.Engine`."""
        tensors, rows = cast(State, state)

        def write(path: Path) -> None:
            save_checkpoint(path, tensors, metadata, rows)

        return await deposit(store, key, write, self._timings.transfers)

    async def fetch_state(self, offer: BundleOffer) -> StateFile:
        """See `engine.Engine`. The file is mapped: its rows are read when they are needed."""
        async with fetched_file(offer, self._timings.transfers) as path:
            return await asyncio.to_thread(StateFile, path)

    async def export(
        self, model: ModelSpec, checkpoint: BundleOffer, store: StoreEndpoint
    ) -> tuple[BundleOffer, ...]:
        """See `engine.Engine`."""
        with tempfile.TemporaryDirectory(prefix="spotlight-export-") as scratch:
            folder = Path(scratch) / "export"
            async with fetched_file(checkpoint, self._timings.transfers) as path:
                await asyncio.to_thread(export_checkpoint, model, path, folder)
            return tuple(
                [
                    await deposit(
                        store,
                        f"export/{file.relative_to(folder)}",
                        partial(_copy, file),
                        self._timings.transfers,
                    )
                    for file in sorted(folder.rglob("*"))
                    if file.is_file()
                ]
            )

    def listen(self) -> TorchListener:
        """See `engine.Engine`."""
        return TorchListener(self._host, self._timings.worker.trainer_collective_limit_s)

    def build_trainer(
        self,
        order: StartTrainer,
        model: engine.Model,
        state: Sequence[engine.State],
        rendezvous: str,
        listener: engine.Listener | None,
        require_wanted: Callable[[], None],
    ) -> TorchTrainer:
        """See `engine.Engine`."""
        self._permissions.require_loss(order.job.training.loss)
        return TorchTrainer(
            order,
            cast(TorchModel, model).model,
            state,
            rendezvous,
            listener if isinstance(listener, TorchListener) else None,
            require_wanted,
            self._timings.worker,
        )


def _copy(file: Path, path: Path) -> None:
    shutil.copyfile(file, path)
