"""Small pictures of images and videos, for pages that show many of them.

They are made where an image is in memory anyway, by the worker that denoised it: a coordinator has
no library for pictures, and decodes nothing that another process sends it.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, features

MOST_PIXELS = 256
"""The longer side of a thumbnail."""
_QUALITY = 80
_SPRITE = 64
"""What is no larger than this is kept as it is, to the bit."""


def to_thumbnail(image: np.ndarray) -> bytes:
    """Encode one uint8 image [H, W, 3], or the first frame of a video [F, H, W, 3], as WebP; empty
    where this Pillow cannot."""
    if not features.check("webp"):
        return b""
    picture = Image.fromarray(image[0] if image.ndim == 4 else image)
    is_sprite = max(picture.size) <= _SPRITE
    picture.thumbnail((MOST_PIXELS, MOST_PIXELS))
    buffer = io.BytesIO()
    picture.save(buffer, format="WEBP", lossless=is_sprite, quality=_QUALITY)
    return buffer.getvalue()
