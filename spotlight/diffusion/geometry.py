"""How the latents of an image or a video are cut into tokens.

Samplers and the trainer see packed latents [B, tokens, channels] of every family. A token covers a
square of pixels; the tokens go frame by frame, and row by row within a frame. Imports no torch:
sizes are checked without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotlight.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """The tokens of one sample."""

    frames: int
    """Latent frames; 1 for an image."""
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.frames * self.rows * self.columns


@dataclass(frozen=True)
class Geometry:
    """What a token of a checkpoint covers."""

    patch: int
    """Edge of a token, in latent pixels."""
    pixels_per_token: int
    """Edge of the square that a token covers, in pixels."""
    channels: int
    """Channels of a packed token."""
    frames_per_token: int | None = None
    """Frames that a latent frame covers, but for the first one, which covers one; None if the
    checkpoint draws images only."""
    tokens_together: int = 1
    """Tokens along an edge are a multiple of this."""
    longest_edge: int | None = None
    """Tokens along an edge, and latent frames, for which the transformer has positions; None for
    any number."""

    def grid(self, height: int, width: int, frames: int = 1) -> Grid:
        """The tokens of a sample of that size; raises `JobError` naming the field that does not
        fit.
        """
        return Grid(
            self._latent_frames(frames),
            self._along("height", height),
            self._along("width", width),
        )

    def _along(self, field: str, pixels: int) -> int:
        edge, most = self.pixels_per_token, self.longest_edge
        step = edge * self.tokens_together
        if pixels % step:
            below, above = pixels // step * step, (pixels // step + 1) * step
            choice = f"{below} or {above}" if below else f"{above}"
            raise JobError(
                f"sampler.{field}",
                f"{pixels} pixels cannot be cut into patches of {step} pixels; use {choice}",
            )
        if most is not None and pixels // edge > most:
            raise JobError(
                f"sampler.{field}",
                f"{pixels} pixels are more than the model has positions for; use at most"
                f" {most * edge}",
            )
        return pixels // edge

    def _latent_frames(self, frames: int) -> int:
        step, most = self.frames_per_token, self.longest_edge
        if step is None:
            if frames != 1:
                raise JobError(
                    "sampler.frames",
                    f"{frames} frames are wanted, but this checkpoint draws images; leave it out",
                )
            return 1
        if (frames - 1) % step:
            below = (frames - 1) // step * step + 1
            raise JobError(
                "sampler.frames",
                f"{frames} frames cannot be cut into one and groups of {step}; use {below} or"
                f" {below + step}",
            )
        latent_frames = 1 + (frames - 1) // step
        if most is not None and latent_frames > most:
            raise JobError(
                "sampler.frames",
                f"{frames} frames are more than the model has positions for; use at most"
                f" {1 + (most - 1) * step}",
            )
        return latent_frames


def pack(latents: Tensor, patch: int) -> Tensor:
    """Latents [B, C, F, H, W] as tokens [B, F * H / patch * W / patch, C * patch^2]."""
    batch, channels, frames, height, width = latents.shape
    rows, columns = height // patch, width // patch
    cut = latents.reshape(batch, channels, frames, rows, patch, columns, patch)
    return cut.permute(0, 2, 3, 5, 1, 4, 6).reshape(
        batch, frames * rows * columns, channels * patch * patch
    )


def unpack(latents: Tensor, grid: Grid, patch: int) -> Tensor:
    """The inverse of `pack`."""
    batch, rows, columns = latents.shape[0], grid.rows, grid.columns
    cut = latents.reshape(batch, grid.frames, rows, columns, -1, patch, patch)
    return cut.permute(0, 4, 1, 2, 5, 3, 6).reshape(
        batch, -1, grid.frames, rows * patch, columns * patch
    )
