"""The pictures of a validation for trackers, and what they must know of a picture's file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

LARGEST = 4 << 20
"""Bytes of a picture that is given to a tracker."""
_PNG = b"\x89PNG\r\n\x1a\n"


class ShownPicture(NamedTuple):
    """A picture of a validation."""

    name: str
    """The same for the same prompt and seed of every validation."""
    prompt: str
    reward: float
    file: Path
    """A thumbnail, or where there is none the picture itself. Of older validations it may be gone.
    """


class ValidationPictures(NamedTuple):
    """The pictures of a weights version; the same prompts and seeds each time."""

    weights_version: int
    iteration: int
    """Number of iterations that were trained before."""
    pictures: tuple[ShownPicture, ...]

    def there(self) -> list[ShownPicture]:
        """Those whose files are still there."""
        return [one for one in self.pictures if one.file.is_file()]


def caption(picture: ShownPicture) -> str:
    """What stands below a picture."""
    return f"{picture.reward:.3f}  {picture.prompt}"


def size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG or a WebP; None of what is neither."""
    if data.startswith(_PNG) and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack("<I", data[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(
                data[27:30], "little"
            )
    return None
