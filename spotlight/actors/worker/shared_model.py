"""The one model of a worker process: its member denoises with it, and its trainer rank trains it.

All work on it runs in the accelerator's thread, one piece after the other. Whoever is about to use
it has it hold the weights that he needs, whatever the last one left in it.

Invariants:
- A model is loaded once, whoever asks first; so is the one that makes its previews, which keeps
  the weights of its checkpoint.
- What is in a model is known, or known to be unknown: a version that a member denoises with is
  copied in again after the model was trained, and a trainer that begins without a state begins with
  the weights of the checkpoint.
- A thread that was left behind copies nothing into a model.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from spotlight.actors.worker.engine import Engine, Model, Weights
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.jobs import ModelSpec
from spotlight.types import BundleOffer


class HeldVersion:
    """A weights version as the engine fetched it."""

    def __init__(self, checksum: int, weights: Weights) -> None:
        self.checksum = checksum
        """See `held_weights.checksum_of`: a version that is trained again may differ."""
        self.weights = weights


class SharedModel:
    """See the module's docstring; its methods are called in the accelerator's thread, unless they
    say otherwise."""

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._loaded: tuple[ModelSpec, Model] | None = None
        self._previewer: ModelSpec | None = None
        """What makes previews beside it."""
        self._copying = threading.Lock()
        """A thread that was left behind may still copy weights."""
        self._inside: weakref.WeakKeyDictionary[Model, weakref.ref[HeldVersion] | None]
        self._inside = weakref.WeakKeyDictionary()
        """The version that is in a model, even when it is not held any more; None for any other
        weights. A model that is not named has those of its checkpoint. Work of a job that is over
        may still have another model than the one that is loaded."""

    async def fetch(self, spec: ModelSpec) -> None:
        """On the loop: have its files on this machine. Raises as `Engine.fetch_model`, and
        `TimeoutError`.
        """
        async with asyncio.timeout(self._context.timings.worker.download_limit_s):
            await self._engine.fetch_model(spec)

    async def fetch_images(self, images: BundleOffer | None) -> None:
        """On the loop: have the images that prompts come with, if they do. Raises as
        `Engine.fetch_images`, and `TimeoutError`.
        """
        if images is not None:
            async with asyncio.timeout(self._context.timings.worker.download_limit_s):
                await self._engine.fetch_images(images)

    def loaded(self, spec: ModelSpec) -> Model | None:
        """The model, if it is loaded; in any thread."""
        loaded = self._loaded
        return loaded[1] if loaded is not None and loaded[0] == spec else None

    def load(self, spec: ModelSpec) -> Model:
        """The model, loaded in place of the last one unless it is that. Raises as `Engine.load`."""
        model = self.loaded(spec)
        if model is None:
            self._loaded = self._previewer = None  # there is room for one
            model = self._engine.load(spec)
            self._loaded = (spec, model)
        return model

    def previews_by(self, previewer: ModelSpec | None) -> bool:
        """Whether this makes the previews of the loaded model; in any thread."""
        return self._previewer == previewer

    def load_previewer(self, model: Model, previewer: ModelSpec | None) -> None:
        """Have this make the previews of the loaded model. Raises as `Engine.load`."""
        if not self.previews_by(previewer):
            self._previewer = None
            self._engine.load_previewer(model, previewer)
            self._previewer = previewer

    def load_untrained(self, spec: ModelSpec) -> Model:
        """The model with the weights of its checkpoint. Raises as `Engine.load`."""
        model = self.load(spec)
        if model in self._inside:
            with self.training(model):
                self._engine.restore(model, spec)
            del self._inside[model]
        return model

    def install(self, model: Model, version: HeldVersion) -> None:
        """Have the model denoise with a version. Raises `TransportError` in a thread that was left
        behind.
        """
        with self._copying:
            self._context.require_accelerator()  # or another thread denoises with its weights
            inside = self._inside.get(model)
            if inside is None or inside() is not version:
                self._inside[model] = None  # should it fail half-way
                model.use(version.weights)
                self._inside[model] = weakref.ref(version)

    @contextmanager
    def training(self, model: Model) -> Iterator[None]:
        """Within, other weights are put into the model, or its weights are changed; what is in it
        afterwards is unknown.
        """
        with self._copying:
            self._inside[model] = None
        yield
