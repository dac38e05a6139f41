"""Image files that others send to a reward server, against OpenCV and files written by hand."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from spotlight.pictures import read_picture
from spotlight.rewards.schema import decode_image

cv2 = pytest.importorskip("cv2")

GREY, COLOUR = 0, 2


def png(pixels: np.ndarray) -> bytes:
    """As OpenCV writes it: uint8 or uint16, [H, W] or [H, W, 3 or 4] BGR(A)."""
    written, data = cv2.imencode(".png", pixels)
    assert written
    return bytes(data)


def noise(*shape: int, kind: type[np.unsignedinteger]) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    return rng.integers(0, np.iinfo(kind).max + 1, shape, dtype=kind)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_with_clear_colour(kind: int, depth: int, colour: bytes, row: bytes) -> bytes:
    """A PNG file of two pixels, by its specification."""
    header = struct.pack(">IIBBBBB", 2, 1, depth, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"tRNS", colour), (b"IDAT", zlib.compress(b"\0" + row)))
    body = b"".join(chunk(name, data) for name, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def test_of_16_bits_of_a_colour_the_upper_8_count() -> None:
    pixels = noise(5, 7, 3, kind=np.uint16)
    assert np.array_equal(decode_image(png(pixels), "png"), pixels[..., ::-1] >> 8)


def test_of_16_bits_of_grey_the_upper_8_count_in_every_channel() -> None:
    pixels = noise(5, 7, kind=np.uint16)
    decoded = decode_image(png(pixels), "png")
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, np.repeat(pixels[..., None] >> 8, 3, axis=2))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_clear_pixels_are_laid_over_white(kind: type[np.unsignedinteger]) -> None:
    pixels = noise(9, 9, 4, kind=kind)
    pixels[0, 0, 3], pixels[0, 1, 3] = 0, np.iinfo(kind).max
    of_8_bits = pixels.astype(np.float64) // (1 if kind is np.uint8 else 256)
    share = of_8_bits[..., 3:] / 255
    expected = of_8_bits[..., 2::-1] * share + 255 * (1 - share)
    decoded = decode_image(png(pixels), "png")
    assert decoded[0, 0].tolist() == [255, 255, 255]
    assert np.abs(decoded - expected).max() <= 1  # Pillow rounds in integers


def test_clear_pixels_of_webp_are_laid_over_white() -> None:
    file = io.BytesIO()
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save(file, "WEBP", lossless=True, exact=True)
    assert decode_image(file.getvalue(), "webp").min() == 255


@pytest.mark.parametrize(
    ("kind", "colour", "row"),
    [(GREY, (5,), bytes([5, 9])), (COLOUR, (1, 2, 3), bytes([1, 2, 3, 9, 9, 9]))],
)
def test_a_clear_colour_of_8_bits_shows_white(
    kind: int, colour: tuple[int, ...], row: bytes
) -> None:
    data = png_with_clear_colour(kind, 8, struct.pack(f">{len(colour)}H", *colour), row)
    assert decode_image(data, "png").tolist() == [[[255] * 3, [9] * 3]]


def test_a_clear_colour_of_a_palette_shows_white() -> None:
    image, file = Image.new("P", (2, 1)), io.BytesIO()
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.save(file, "PNG", transparency=0)
    assert decode_image(file.getvalue(), "png").tolist() == [[[255] * 3, [40, 50, 60]]]


@pytest.mark.parametrize(("kind", "channels"), [(GREY, 1), (COLOUR, 3)])
def test_a_clear_colour_of_16_bits_is_refused(kind: int, channels: int) -> None:
    colour, row = struct.pack(f">{channels}H", *[300] * channels), bytes(4 * channels)
    with pytest.raises(ValueError, match="16 bits per channel and a clear colour"):
        decode_image(png_with_clear_colour(kind, 16, colour, row), "png")


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_what_has_neither_is_as_it_was(mode: str) -> None:
    image, file = Image.fromarray(noise(4, 4, 3, kind=np.uint8)).convert(mode), io.BytesIO()
    image.save(file, "PNG")
    assert np.array_equal(decode_image(file.getvalue(), "png"), np.asarray(image.convert("RGB")))


def test_a_photo_is_turned_as_its_camera_says() -> None:
    pixels = noise(4, 6, 3, kind=np.uint8)
    file, note = io.BytesIO(), Image.Exif()
    note[0x0112] = 6  # the right side of what is seen is the top of the file
    Image.fromarray(pixels).save(file, "PNG", exif=note)
    assert np.array_equal(read_picture(file.getvalue(), ["png"]), np.rot90(pixels, -1))
