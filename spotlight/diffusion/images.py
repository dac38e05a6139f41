"""From packed latents to pixels: through a VAE, or directly for models that work in pixel space."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from spotlight.diffusion.families.base import Family
from spotlight.diffusion.finite import rows_not_finite
from spotlight.diffusion.geometry import Geometry, Grid, pack, unpack
from spotlight.errors import NotFinite
from spotlight.pictures import read_picture


class SourceImage:
    """An image that is to be changed."""

    def __init__(self, file: bytes) -> None:
        """A PNG file, read as `read_picture` does. Raises `ValueError`."""
        self._image = PIL.Image.fromarray(read_picture(file, ["png"]))
        self.width, self.height = self._image.size

    def resized(self, width: int, height: int) -> PIL.Image.Image:
        """As diffusers' pipelines resize images."""
        return self._image.resize((width, height), PIL.Image.Resampling.LANCZOS)

    def pixels(self, width: int, height: int) -> Tensor:
        """The same as a video of one frame, [1, 3, 1, H, W] float32 in [-1, 1]."""
        pixels = torch.from_numpy(np.array(self.resized(width, height)).astype(np.float32) / 255)
        return (2 * pixels - 1).permute(2, 0, 1)[None, :, None]


class ImageCodec(Protocol):
    """Knows how latents stand for pixels."""

    geometry: Geometry

    def decode(self, latents: Tensor, grid: Grid) -> Tensor:
        """Frames [B, 3 or 1, F, H, W] in [-1, 1] of packed latents [B, grid.tokens, channels]."""
        ...


class PixelCodec:
    """Latents are the pixels themselves, in [-1, 1], cut into square patches."""

    def __init__(self, patch: int, colours: int) -> None:
        self.geometry = Geometry(patch, patch, colours * patch * patch)

    def encode(self, images: Tensor) -> Tensor:
        """Pack images [B, colours, H, W] into latents [B, tokens, channels]."""
        return pack(images.unsqueeze(2), self.geometry.patch)

    def decode(self, latents: Tensor, grid: Grid) -> Tensor:
        """Unpack latents into images [B, colours, 1, H, W]."""
        return unpack(latents, grid, self.geometry.patch)


class VaeCodec:
    """The autoencoder of a family."""

    def __init__(self, family: Family, vae: Any, geometry: Geometry) -> None:
        self.geometry = geometry
        self._family = family
        self._vae = vae

    @torch.no_grad()
    def decode(self, latents: Tensor, grid: Grid) -> Tensor:
        """See `ImageCodec`."""
        unpacked = unpack(latents, grid, self.geometry.patch).to(self._vae.dtype)
        return self._family.decode(self._vae, unpacked).float()


def to_uint8(samples: Iterable[Tensor]) -> np.ndarray:
    """Samples of frames [3 or 1, F, H, W] in [-1, 1] as uint8 [B, F, H, W, 3], or [B, H, W, 3]
    where each has one frame; grey becomes three equal channels. Each leaves its device before the
    next one is asked for. Raises `NotFinite`: NaN would be black.
    """
    pixels, broken = list[np.ndarray](), list[int]()
    for row, frames in enumerate(samples):
        if rows_not_finite(frames[None]):
            broken.append(row)
        scaled = (frames.detach().float() / 2 + 0.5).clamp(0, 1) * 255
        rgb = scaled.round().to(torch.uint8).expand(3, -1, -1, -1)
        # In order before they leave the device: on the CPU that would hold its thread.
        pixels.append(rgb.permute(1, 2, 3, 0).contiguous().cpu().numpy())
    if broken:
        raise NotFinite(
            f"{len(broken)} of {len(pixels)} decoded images are NaN or infinite; the latents, or"
            " the precision of the image decoder, cannot be used",
            tuple(broken),
        )
    stacked = np.stack(pixels)
    return stacked[:, 0] if stacked.shape[1] == 1 else stacked
