"""A tiny differentiable DiffusionModel, and batches for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from spotlight.actors.coordinator.tenant.request_plans import sampling_settings
from spotlight.diffusion.model import Conditioning
from spotlight.diffusion.samplers import sample
from spotlight.errors import CheckpointError
from spotlight.jobs import SamplerSpec, TrainingSpec, WindowSpec
from spotlight.training.batches import TrainingBatch

TOKENS, CHANNELS, HIDDEN, EMBEDDING = 4, 3, 16, 5
SAMPLER = SamplerSpec(height=8, width=8, steps=6, micro_batch=4)
NOISY = msgspec.structs.replace(
    SAMPLER, kind="flow_sde", window=WindowSpec(length=2, earliest=0, latest=3)
)
NFT = TrainingSpec(micro_batch=8, options={"times": 2}, learning_rate=1e-2, advantage_clip=5.0)
GRPO = msgspec.structs.replace(NFT, loss="flow_grpo", options={}, micro_batch=4)


def with_options(training: TrainingSpec, **options: Any) -> TrainingSpec:
    """The same with some options of its loss set otherwise."""
    return msgspec.structs.replace(training, options={**training.options, **options})


class FakeTransformer(nn.Module):
    """Every token is mapped by itself, given the time and the mean prompt embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(CHANNELS + 1 + EMBEDDING, HIDDEN)
        self.second = nn.Linear(HIDDEN, CHANNELS)

    def forward(self, latents: Tensor, sigmas: Tensor, prompts: Tensor) -> Tensor:
        context = torch.cat([sigmas[:, None], prompts], dim=1)[:, None]
        context = context.expand(-1, latents.shape[1], -1)
        return self.second(torch.tanh(self.first(torch.cat([latents, context], dim=2))))


class FakeModel:
    """Implements the DiffusionModel protocol and records the batch size of every forward pass."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.transformer = FakeTransformer().to(dtype)
        self.batch_sizes: list[int] = []
        self.guidance: set[float] = set()
        """The scales of all forward passes."""
        self.embeds_guidance = False

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, int]:
        return TOKENS, CHANNELS

    def encode_prompts(self, prompts: Sequence[str], tokens: int | None = None) -> Conditioning:
        rows = [np.random.default_rng(len(p)).standard_normal((2, EMBEDDING)) for p in prompts]
        embeds = torch.tensor(np.stack(rows), dtype=torch.float32)
        return Conditioning({"embeds": embeds})

    def velocity(
        self,
        latents: Tensor,
        sigmas: Tensor,
        conditioning: Conditioning,
        *,
        height: int,
        width: int,
        frames: int = 1,
        guidance: float = 1.0,
        next_sigmas: Tensor | None = None,
    ) -> Tensor:
        self.batch_sizes.append(len(latents))
        self.guidance.add(guidance)
        dtype = self.transformer.first.weight.dtype
        prompts = conditioning.tensors["embeds"].mean(dim=1)
        return self.transformer(latents.to(dtype), sigmas.to(dtype), prompts.to(dtype)).float()

    def checkpoint_activations(self, enabled: bool) -> None:
        """It has no blocks."""

    def decode(self, latents: Tensor, height: int, width: int, frames: int = 1) -> np.ndarray:
        raise NotImplementedError

    def sigmas(
        self, steps: int, height: int, width: int, shift: float | None, frames: int = 1
    ) -> Tensor:
        return torch.linspace(1, 0, steps + 1)

    def trainable_state(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.transformer.named_parameters()}

    @torch.no_grad()
    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        if state.keys() != self.trainable_state().keys():
            raise CheckpointError("weights: other names")
        for name, tensor in self.trainable_state().items():
            tensor.copy_(state[name])


def make_batch(
    model: FakeModel, sampler: SamplerSpec = SAMPLER, *, count: int = 8, start: int = 1
) -> TrainingBatch:
    """`count` samples of two prompts, with advantages from -2 to 2."""
    settings = sampling_settings(sampler, sampler.steps, start)
    prompts = ["one", "three"] * (count // 2) + ["one"] * (count % 2)
    samples = sample(model, prompts, range(count), settings)
    return TrainingBatch(
        prompts=prompts,
        latents=samples.latents,
        advantages=torch.linspace(-2, 2, count),
        window_states=samples.window_states,
        log_probs=samples.log_probs,
        window_start=samples.window_start,
    )


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two states are equal, to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
