"""The autoencoder of images that Stable Diffusion 3 and FLUX have (AutoencoderKL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from spotlight.diffusion.families.base import CheckpointFolder, Size

if TYPE_CHECKING:
    from torch import Tensor


class _Vae(msgspec.Struct, frozen=True):
    """vae/config.json; defaults are those of diffusers."""

    latent_channels: Size = 4
    block_out_channels: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=8)] = (64,)


def inspect_kl(folder: CheckpointFolder) -> tuple[int, int, int]:
    """(channels of a latent pixel, pixels along its edge, `Facts.decoded`); raises
    `CheckpointError`.
    """
    vae, widths = folder.config("vae", _Vae), 6
    edge = 2 ** (len(vae.block_out_channels) - 1)
    return vae.latent_channels, edge, widths * vae.block_out_channels[0]


def decode_kl(vae: Any, latents: Tensor) -> Tensor:
    """Images [1, 3, 1, H, W] of latents [1, C, 1, h, w]."""
    scaled = latents[:, :, 0] / vae.config.scaling_factor + vae.config.shift_factor
    images: Tensor = vae.decode(scaled, return_dict=False)[0]
    return images.unsqueeze(2)
