"""What trackers must know of the file of a picture."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from spotlight.trackers.pictures import size_of


@pytest.mark.parametrize(
    "options",
    [
        {"format": "PNG"},
        {"format": "WEBP", "lossless": True},
        {"format": "WEBP", "quality": 80},
        {"format": "WEBP", "quality": 80, "exif": b"Exif\0\0extended"},
    ],
    ids=["png", "lossless", "lossy", "extended"],
)
def test_the_size_is_read_from_the_file_itself(options: dict[str, object]) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((250, 99), 50.0).convert("RGB").save(buffer, **options)  # type: ignore[arg-type]
    assert size_of(buffer.getvalue()) == (250, 99)


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP", b"GIF89a" * 9])
def test_what_is_no_picture_has_no_size(data: bytes) -> None:
    assert size_of(data) is None
