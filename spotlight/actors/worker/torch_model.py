"""A diffusion model as a worker's actors see it (`engine.Model`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.worker import engine
from spotlight.actors.worker.commit_bundles import unpack_commits
from spotlight.actors.worker.engine import Origin
from spotlight.actors.worker.torch_trainer import assemble
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.samplers import Denoising, require_finite, resume, start
from spotlight.errors import JobError
from spotlight.training.slices import pack, slice_gradient
from spotlight.transport.tensors.bundles import unpack
from spotlight.types import Commit, Request, SamplingSettings


class TorchModel:
    """See `engine.Model`."""

    def __init__(self, model: DiffusionModel) -> None:
        self.model = model
        self.previewer: DiffusionModel | None = None
        """What makes previews instead, with the same text encoder and VAE."""

    @property
    def transformers(self) -> tuple[torch.nn.Module, ...]:
        """Of the model, and of what makes previews instead."""
        both = (self.model, self.previewer)
        return tuple(model.transformer for model in both if model is not None)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.device

    @property
    def shares_processor(self) -> bool:
        """See `engine.Model`."""
        return self.device.type == "cpu"

    def latent_shape(self, request: Request) -> tuple[int, int]:
        """(T, C) of one sample's latents."""
        settings = request.settings
        return self.model.latent_shape(settings.height, settings.width, settings.frames)

    def use(self, weights: engine.Weights) -> None:
        """See `engine.Model`."""
        self.model.load_trainable_state(cast(dict[str, Tensor], weights))

    def begin(self, requests: Sequence[Request], progress: engine.Progress | None) -> Denoising:
        """See `engine.Model`."""
        prompts, seeds = [r.prompt for r in requests], [r.seed for r in requests]
        settings = requests[0].settings
        model = self._denoising(settings)
        if progress is None:
            return start(model, prompts, seeds, settings)
        return resume(model, prompts, seeds, settings, cast(Progress, progress))

    def _denoising(self, settings: SamplingSettings) -> DiffusionModel:
        if not settings.preview_model:
            return self.model
        if self.previewer is None:
            raise JobError("exploration.preview_checkpoint", "is not loaded in this worker")
        return self.previewer

    def decode(self, requests: Sequence[Request], progress: engine.Progress) -> np.ndarray:
        """See `engine.Model`; uint8 [B, H, W, 3], or [B, F, H, W, 3] of videos."""
        end, settings = cast(Progress, progress), requests[0].settings
        require_finite(end, [r.prompt for r in requests], [r.seed for r in requests])
        return self.model.decode(end.latents, settings.height, settings.width, settings.frames)

    def slice_gradient(
        self,
        order: SliceOrder,
        bundles: Mapping[str, bytes],
        use: Callable[[engine.WeightsRole], None],
        wanted: Callable[[], bool],
    ) -> bytes | None:
        """See `engine.Model`."""
        tensors = {key: unpack(data) for key, data in bundles.items()}
        own = range(len(order.samples))
        found = slice_gradient(
            self.model,
            order.training,
            order.sampler,
            order.seed,
            order.reuse,
            order.share,
            order.slice,
            assemble(order.samples, own, tensors, order.window_start),
            use,
            wanted,
        )
        return None if found is None else pack(found)

    def unpack(
        self,
        origin: Origin,
        requests: Sequence[Request],
        commits: Sequence[Commit],
        bundles: Mapping[str, bytes],
    ) -> Progress:
        """See `engine.Model`."""
        return unpack_commits(origin, requests, commits, bundles, self.latent_shape(requests[0]))


def synchronize() -> None:
    """A step that is only queued is not taken."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
