"""Small pictures of images and videos."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from spotlight.diffusion.thumbnails import to_thumbnail


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1280, 1280, 3), (256, 256)),
        ((512, 1024, 3), (256, 128)),
        ((16, 48, 3), (48, 16)),
        ((5, 480, 832, 3), (256, 148)),
    ],
    ids=["large", "wide", "small", "video"],
)
def test_a_thumbnail_is_a_small_webp_of_the_same_shape(
    shape: tuple[int, ...], size: tuple[int, int]
) -> None:
    image = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    data = to_thumbnail(image)
    with Image.open(io.BytesIO(data)) as opened:
        assert (opened.format, opened.size) == ("WEBP", size)
    assert len(data) < 64 * 1024  # even of noise


def test_a_sprite_is_kept_to_the_bit() -> None:
    image = np.random.default_rng(0).integers(0, 255, (16, 48, 3), dtype=np.uint8)
    with Image.open(io.BytesIO(to_thumbnail(image))) as opened:
        assert np.array_equal(np.asarray(opened.convert("RGB")), image)
