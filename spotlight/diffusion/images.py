"""From packed latents to pixels: through Qwen-Image's VAE, or directly for models that work in
pixel space.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spotlight.diffusion.finite import rows_not_finite
from spotlight.errors import CheckpointError, NotFinite


class ImageCodec(Protocol):
    """Knows how latents stand for pixels."""

    pixels_per_token: int
    """Edge, in pixels, of the square that one latent token covers."""
    channels: int
    """Channels of a packed latent token."""

    def decode(self, latents: Tensor, rows: int, columns: int) -> Tensor:
        """Images [B, 3 or 1, H, W] in [-1, 1] of packed latents [B, rows * columns, channels]."""
        ...


class PixelCodec:
    """Latents are the pixels themselves, in [-1, 1], cut into square patches."""

    def __init__(self, patch: int, colours: int) -> None:
        self.pixels_per_token = patch
        self.channels = colours * patch * patch
        self._colours = colours

    def encode(self, images: Tensor) -> Tensor:
        """Pack images [B, colours, H, W] into latents [B, tokens, channels]."""
        patch = self.pixels_per_token
        batch, colours, height, width = images.shape
        cut = images.reshape(batch, colours, height // patch, patch, width // patch, patch)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, self.channels)

    def decode(self, latents: Tensor, rows: int, columns: int) -> Tensor:
        """Unpack latents into images [B, colours, H, W]."""
        return unpack(latents, rows, columns, self.pixels_per_token)


class VaeCodec:
    """Qwen-Image's autoencoder (AutoencoderKLQwenImage); a token packs 2 x 2 latent pixels."""

    def __init__(self, vae: Any) -> None:
        self._vae = vae
        self.pixels_per_token = 2 * 2 ** len(vae.temperal_downsample)
        self.channels = 4 * vae.config.z_dim

    @torch.no_grad()
    def decode(self, latents: Tensor, rows: int, columns: int) -> Tensor:
        """Decode one image at a time, so that memory and bits never depend on the batch."""
        unpacked = unpack(latents, rows, columns, 2).unsqueeze(2).to(self._vae.dtype)
        statistics = unpacked.new_tensor(
            [self._vae.config.latents_mean, self._vae.config.latents_std]
        )
        mean, std = statistics.view(2, 1, -1, 1, 1, 1)
        scaled = unpacked / (1.0 / std) + mean
        images = [self._vae.decode(one, return_dict=False)[0][:, :, 0] for one in scaled.split(1)]
        return torch.cat(images).float()


def unpack(latents: Tensor, rows: int, columns: int, patch: int) -> Tensor:
    """[B, rows * columns, C * patch^2] to [B, C, rows * patch, columns * patch]."""
    batch = latents.shape[0]
    cut = latents.reshape(batch, rows, columns, -1, patch, patch)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, rows * patch, columns * patch)


def token_grid(codec: ImageCodec, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of tokens of an image; raises `CheckpointError` when its size does not fit
    the patches.
    """
    edge = codec.pixels_per_token
    for field, size in (("height", height), ("width", width)):
        if size % edge:
            raise CheckpointError(
                f"sampler.{field}: {size} is not a multiple of {edge}, the pixels that one"
                f" token of this checkpoint"
                f" covers; use {max(edge, round(size / edge) * edge)}"
            )
    return height // edge, width // edge


def to_uint8(images: Tensor) -> np.ndarray:
    """Images [B, 3 or 1, H, W] in [-1, 1] as uint8 [B, H, W, 3]; grey becomes three equal
    channels. Raises `NotFinite`: NaN would be black.
    """
    rows = rows_not_finite(images)
    if rows:
        raise NotFinite(
            f"{len(rows)} of {len(images)} decoded images are NaN or infinite; the latents, or the"
            " precision of the image decoder, cannot be used",
            rows,
        )
    scaled = (images.detach().float() / 2 + 0.5).clamp(0, 1) * 255
    rgb = scaled.round().to(torch.uint8).expand(-1, 3, -1, -1)
    return np.ascontiguousarray(rgb.permute(0, 2, 3, 1).cpu().numpy())
