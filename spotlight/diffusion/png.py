"""Images, and videos, as PNG files, for people."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

_FRAME_MS = 1000 / 16
"""How long a frame of a video is shown: there are 16 a second, as Wan is trained."""


def to_png(image: np.ndarray) -> bytes:
    """Encode one uint8 image [H, W, 3], or a video [F, H, W, 3], which a browser plays."""
    buffer = io.BytesIO()
    first, *others = map(Image.fromarray, image if image.ndim == 4 else image[None])
    moving = {"save_all": True, "append_images": others, "duration": _FRAME_MS, "loop": 0}
    first.save(buffer, format="PNG", **(moving if others else {}))
    return buffer.getvalue()
