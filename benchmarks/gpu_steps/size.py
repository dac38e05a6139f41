"""Step 2: a transformer of Qwen-Image's size, with random weights: seconds, share of the limit of
matrix multiplication, and peak memory of denoising and of LoRA training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_steps.site import Site
from benchmarks.report import Figure
from spotlight.diffusion.checkpoints import add_adapters
from spotlight.diffusion.families.base import ModelInput
from spotlight.diffusion.families.qwen_image import QwenImage
from spotlight.diffusion.geometry import Grid
from spotlight.jobs import LoraSpec

TEXT_TOKENS = 256
PIXELS_PER_TOKEN = 16
RANK = 64
LARGE: dict[str, Any] = {}
"""The defaults of diffusers are those of Qwen-Image: 60 blocks of 24 heads of 128."""
SMALL: dict[str, Any] = {
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "joint_attention_dim": 32,
    "axes_dims_rope": (4, 6, 6),
}


def random_transformer(site: Site, **config: Any) -> Any:
    """Of these sizes, made on the device itself."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(site.dtype)
    try:
        with site.device:
            transformer: Any = QwenImageTransformer2DModel(**config)
    finally:
        torch.set_default_dtype(before)
    return transformer.eval().requires_grad_(False)


class Passes:
    """Forward passes of a transformer on random latents."""

    def __init__(self, site: Site, transformer: Any, pixels: int, batch: int) -> None:
        edge = pixels // PIXELS_PER_TOKEN
        config = transformer.config
        self._transformer = transformer
        self._grid = Grid(1, edge, edge)
        generator = torch.Generator(site.device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=site.device)

        self._latents = normal(batch, self._grid.tokens, config.in_channels)
        self._sigmas = torch.full((batch,), 0.5, device=site.device)
        self._embeds = normal(batch, TEXT_TOKENS, config.joint_attention_dim)
        self._mask = torch.ones(batch, TEXT_TOKENS, dtype=torch.bool, device=site.device)
        self._mask[:, TEXT_TOKENS // 4 :] = False

    def velocity(self, *, masked: bool = True) -> Tensor:
        """One pass."""
        conditioning = {"embeds": self._embeds} | ({"mask": self._mask} if masked else {})
        given = ModelInput(self._latents, self._sigmas, self._sigmas, conditioning, self._grid)
        return QwenImage().velocity(self._transformer, given)

    @torch.no_grad()
    def denoise(self) -> Tensor:
        """One pass without gradients."""
        return self.velocity()

    @torch.no_grad()
    def denoise_unmasked(self) -> Tensor:
        """The same without a mask, so that the fastest kernel can be taken."""
        return self.velocity(masked=False)


def measure(site: Site) -> dict[str, Figure]:
    """See the module's docstring."""
    transformer = random_transformer(site, **(SMALL if site.quick else LARGE))
    limit = _flops_per_s(site)
    figures: dict[str, Figure] = {"matmul_tflops": limit / 1e12}
    sizes = ((64, 1),) if site.quick else tuple((p, b) for p in (512, 1280) for b in (1, 4, 8))
    for pixels, batch in sizes:
        name = f"[{pixels},{batch}]"
        passes = Passes(site, transformer, pixels, batch)
        with FlopCounterMode(display=False) as counter:
            passes.denoise()
        taken = site.seconds(passes.denoise)
        figures[f"step_s{name}"] = taken
        figures[f"share_of_matmul{name}"] = counter.get_total_flops() / taken / limit
        figures[f"unmasked_step_s{name}"] = site.seconds(passes.denoise_unmasked)
        figures[f"step_peak_gb{name}"] = site.peak_gb(passes.denoise)
    figures |= _training(site, transformer, (64,) if site.quick else (512, 1280))
    if site.is_gpu:
        transformer.disable_gradient_checkpointing()
        transformer.compile_repeated_blocks()
        passes = Passes(site, transformer, sizes[0][0], 1)
        figures[f"compiled_step_s[{sizes[0][0]},1]"] = site.seconds(passes.denoise)
    return figures


def _flops_per_s(site: Site) -> float:
    """Of a large matrix multiplication."""
    edge = 256 if site.quick else 8192
    one = torch.randn(edge, edge, device=site.device, dtype=site.dtype)
    return 2 * edge**3 / site.seconds(lambda: one @ one, repeats=20)


def _training(site: Site, transformer: Any, sizes: tuple[int, ...]) -> dict[str, Figure]:
    """A step of LoRA training of one sample, with and without activation checkpointing."""
    add_adapters(transformer, LoraSpec(rank=4 if site.quick else RANK), QwenImage.lora_targets)
    trained = [each for each in transformer.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    figures: dict[str, Figure] = {}
    for pixels in sizes:
        passes = Passes(site, transformer, pixels, 1)

        def step(passes: Passes = passes) -> None:
            with torch.autocast(site.device.type, torch.bfloat16, enabled=site.is_gpu):
                torch.autograd.backward(passes.velocity().square().mean())
            optimizer.step()
            optimizer.zero_grad()

        for kept in (True, False):
            if kept:
                transformer.disable_gradient_checkpointing()
            else:
                transformer.enable_gradient_checkpointing()
            name = f"[{pixels},{'all' if kept else 'checkpointed'}]"
            figures |= _unless_out_of_memory(site, name, step)
    return figures


def _unless_out_of_memory(site: Site, name: str, step: Callable[[], None]) -> dict[str, Figure]:
    try:
        peak = site.peak_gb(step)
        return {f"training_step_s{name}": site.seconds(step), f"training_peak_gb{name}": peak}
    except torch.OutOfMemoryError:
        return {f"training_step_s{name}": "out of memory"}
