"""Files of images, read as a person sees them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

LARGEST_IMAGE = 4096 * 4096
"""Pixels; a small file may unfold to far more."""

_BIT_DEPTH = 24
"""Where a PNG file says how many bits a channel has: behind its signature and two sizes."""


def read_picture(data: bytes, formats: Sequence[str]) -> np.ndarray:
    """The image uint8 [H, W, 3] RGB in a file of one of these formats.

    Of 16 bits per channel the upper 8 count, what is clear (transparent) shows white, a palette is
    looked up, and a photo is turned as its camera says.

    Raises `ValueError` when it is damaged, larger than `LARGEST_IMAGE`, or has 16 bits per channel
    and a clear colour in place of an alpha channel.
    """
    known = [form.upper() for form in formats]
    try:
        with Image.open(io.BytesIO(data), formats=known) as file:
            if file.width * file.height > LARGEST_IMAGE:
                raise ValueError(
                    f"has {file.width} x {file.height} pixels, more than {LARGEST_IMAGE:,}"
                )
            is_deep = file.format == "PNG" and data[_BIT_DEPTH] == 16
            if is_deep and "transparency" in file.info:
                raise ValueError(
                    "has 16 bits per channel and a clear colour; give it an alpha channel, or 8"
                    " bits"
                )
            return np.asarray(_opaque(_eight_bits(ImageOps.exif_transpose(file))))
    except UnidentifiedImageError as error:
        raise ValueError(f"is not a {' or '.join(formats)} file") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"is a damaged {' or '.join(formats)} file ({error})") from error


def _eight_bits(file: Image.Image) -> Image.Image:
    if not file.mode.startswith("I"):
        return file  # of 16 bits of a colour, Pillow itself has taken the upper 8
    return Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))


def _opaque(image: Image.Image) -> Image.Image:
    """It in RGB, on white."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
