"""Images to be changed, in models that edit."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image


def gradient_image(width: int, height: int, number: int) -> PIL.Image.Image:
    """One of many smooth images."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(number + each * rows / height + columns / width) for each in (1, 3, 5)]
    return PIL.Image.fromarray(((np.stack(waves, axis=-1) + 1) * 127.5).astype(np.uint8))


IMAGES = (gradient_image(640, 640, 1), gradient_image(640, 640, 2))


def png_of(image: PIL.Image.Image) -> bytes:
    """The image as the file of a PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
