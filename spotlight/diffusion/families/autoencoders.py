"""The autoencoders that several families have: of images (AutoencoderKL), and of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from spotlight.diffusion.checkpoint_files import wrong
from spotlight.diffusion.families.base import CheckpointFolder, Size

if TYPE_CHECKING:
    from torch import Tensor


_KL_WIDTHS = 6
"""See `Facts.decoded`: in the width of an image decoder at full size."""


class _Vae(msgspec.Struct, frozen=True):
    """vae/config.json; defaults are those of diffusers."""

    latent_channels: Size = 4
    block_out_channels: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=8)] = (64,)


def inspect_kl(folder: CheckpointFolder) -> tuple[int, int, int]:
    """(channels of a latent pixel, pixels along its edge, `Facts.decoded`); raises
    `CheckpointError`.
    """
    vae = folder.config("vae", _Vae)
    edge = 2 ** (len(vae.block_out_channels) - 1)
    return vae.latent_channels, edge, _KL_WIDTHS * vae.block_out_channels[0]


def decode_kl(vae: Any, latents: Tensor) -> Tensor:
    """Images [1, 3, 1, H, W] of latents [1, C, 1, h, w]."""
    scaled = latents[:, :, 0] / vae.config.scaling_factor + vae.config.shift_factor
    images: Tensor = vae.decode(scaled, return_dict=False)[0]
    return images.unsqueeze(2)


class _BandsVae(msgspec.Struct, frozen=True):
    """The same of AutoencoderKLFlux2."""

    latent_channels: Size = 32
    block_out_channels: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=8)] = (
        128,
        256,
        512,
        512,
    )
    decoder_block_out_channels: tuple[int, ...] | None = None
    patch_size: tuple[int, int] = (2, 2)


def inspect_bands(folder: CheckpointFolder) -> tuple[int, int, int]:
    """The same as `inspect_kl` says, of AutoencoderKLFlux2."""
    vae, path = folder.config("vae", _BandsVae), folder.config_path("vae")
    if vae.patch_size != (2, 2):
        raise wrong(path, f"has patch_size {list(vae.patch_size)}; that of known models is [2, 2]")
    edge = 2 ** (len(vae.block_out_channels) - 1)
    decoder = vae.decoder_block_out_channels or vae.block_out_channels
    return vae.latent_channels, edge, _KL_WIDTHS * decoder[0]


def decode_bands(vae: Any, latents: Tensor) -> Tensor:
    """Images [1, 3, 1, H, W] of latents [1, 4 C, 1, h / 2, w / 2], whose channels are the bands of
    squares of 2 x 2, each brought to mean 0 and spread 1.
    """
    norm, shape = vae.bn, (1, -1, 1, 1)
    spread = (norm.running_var.view(shape) + vae.config.batch_norm_eps).sqrt()
    bands = latents[:, :, 0] * spread + norm.running_mean.view(shape)
    squares = bands.unflatten(1, (-1, 2, 2)).permute(0, 1, 4, 2, 5, 3)
    images: Tensor = vae.decode(squares.flatten(4, 5).flatten(2, 3), return_dict=False)[0]
    return images.unsqueeze(2)


class FramesVae(msgspec.Struct, frozen=True):
    """vae/config.json of an autoencoder of frames; defaults are those of diffusers."""

    z_dim: Size = 16
    base_dim: Size = 96


class _QwenVae(FramesVae, frozen=True):
    """The same of AutoencoderKLQwenImage."""

    temperal_downsample: Annotated[tuple[bool, ...], msgspec.Meta(max_length=8)] = (
        False,
        True,
        True,
    )


def inspect_qwen(folder: CheckpointFolder) -> tuple[int, int, int]:
    """The same as `inspect_kl` says, of AutoencoderKLQwenImage."""
    vae, widths = folder.config("vae", _QwenVae), 18
    return vae.z_dim, 2 ** len(vae.temperal_downsample), widths * vae.base_dim


def decode_frames(vae: Any, latents: Tensor) -> Tensor:
    """Frames [1, 3, F, H, W] of latents [1, C, f, h, w] that were brought to mean 0 and spread 1,
    channel by channel.
    """
    statistics = latents.new_tensor([vae.config.latents_mean, vae.config.latents_std])
    mean, std = statistics.view(2, 1, -1, 1, 1, 1)
    frames: Tensor = vae.decode(latents / (1.0 / std) + mean, return_dict=False)[0]
    return frames


def encode_qwen(vae: Any, pixels: Tensor) -> Tensor:
    """Latents [1, C, 1, h, w] of an image [1, 3, 1, H, W] in [-1, 1]: the most likely ones, brought
    to mean 0 and spread 1, in the VAE's dtype.
    """
    latents: Tensor = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist.mode()
    statistics = latents.new_tensor([vae.config.latents_mean, vae.config.latents_std])
    mean, std = statistics.view(2, 1, -1, 1, 1, 1)
    scaled: Tensor = (latents - mean) / std
    return scaled


def decode_qwen(vae: Any, latents: Tensor) -> Tensor:
    """The image of AutoencoderKLQwenImage, which is its first frame."""
    return decode_frames(vae, latents)[:, :, :1]
