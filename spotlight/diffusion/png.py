"""Images as PNG files, for people."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def to_png(image: np.ndarray) -> bytes:
    """Encode one uint8 image [H, W, 3]."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()
