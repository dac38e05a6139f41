"""PNG files are checked without Pillow, and as Pillow reads them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import pytest
from PIL import Image, PngImagePlugin

from spotlight.pictures import read_picture
from spotlight.png_files import LARGEST_TEXT, png_size
from spotlight_simulation.pixels import gradient_image, png_of

FILE = png_of(gradient_image(48, 32, 1))


def test_the_size_of_a_png_is_read_from_its_header() -> None:
    assert png_size(FILE) == (48, 32)


def test_no_part_of_a_png_is_one() -> None:
    for length in range(0, len(FILE), 7):
        with pytest.raises(ValueError, match=r"cut off|no PNG"):
            png_size(FILE[:length])


def test_a_png_with_another_byte_is_none() -> None:
    for place in range(8, len(FILE), 5):
        damaged = bytearray(FILE)
        damaged[place] ^= 1
        with pytest.raises(ValueError, match=r"cut off|damaged"):
            png_size(bytes(damaged))


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def header(edge: int = 4, depth: int = 8, height: int | None = None) -> bytes:
    rest = (depth, 0, 0, 0, 0)
    return chunk(b"IHDR", struct.pack(">IIBBBBB", edge, edge if height is None else height, *rest))


def pixels(rows: int, edge: int = 4) -> bytes:
    """Black, of a picture with 8 bits of grey."""
    return chunk(b"IDAT", zlib.compress(bytes(rows * (1 + edge))))


PIXELS, END = pixels(4), chunk(b"IEND")


@pytest.mark.parametrize(
    ("chunks", "problem"),
    [
        ((header(), END), "it has no size or no pixels"),
        ((PIXELS, header(), END), "it has no size or no pixels"),
        ((chunk(b"IHDR", b"12345678"), PIXELS, END), "it has no size or no pixels"),
        ((header(4097), PIXELS, END), "more than 4096 pixels"),
        ((header(0), PIXELS, END), "an edge of 0"),
        ((header(1001, height=10), PIXELS, END), "more than 100 times as long as the other"),
        ((header(10, height=1001), PIXELS, END), "more than 100 times as long as the other"),
        ((header(depth=16), chunk(b"tRNS", b"12"), PIXELS, END), "16 bits per channel and a clear"),
        ((header(), chunk(b"IDAT", b"any"), END), "its pixels cannot be unfolded"),
        ((header(), pixels(3), END), "it has too few pixels"),
        ((header(), chunk(b"IDAT"), END), "it has too few pixels"),
    ],
    ids=[
        "no pixels",
        "late header",
        "short header",
        "huge",
        "empty",
        "strip",
        "column",
        "clear colour",
        "noise for pixels",
        "a row too few",
        "no rows",
    ],
)
def test_a_png_that_no_worker_could_read_is_refused(
    chunks: tuple[bytes, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        png_size(FILE[:8] + b"".join(chunks))


def test_pixels_may_lie_in_several_chunks_and_be_more_than_are_needed() -> None:
    folded = zlib.compress(bytes(9 * 5))
    parts = chunk(b"IDAT", folded[:3]) + chunk(b"IDAT", folded[3:])
    assert png_size(FILE[:8] + header() + parts + END) == (4, 4)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_picture_of_any_kind_that_pillow_writes_has_enough_pixels(mode: str) -> None:
    file = io.BytesIO()
    gradient_image(45, 31, 1).convert("L").convert(mode).save(file, "PNG")
    assert png_size(file.getvalue()) == (45, 31)


def exif(orientation: int) -> bytes:
    note = Image.Exif()
    note[0x010F] = "a maker whose name is long enough to stand behind the directory"
    note[0x0112] = orientation
    return note.tobytes()


def saved(orientation: int, mode: str = "RGB") -> bytes:
    """By Pillow, with EXIF."""
    file = io.BytesIO()
    gradient_image(48, 32, 1).convert(mode).save(file, "PNG", exif=exif(orientation))
    return file.getvalue()


def noted(keyword: str, text: str, *, folded: bool, international: bool = False) -> bytes:
    """By Pillow, with a text."""
    file, info = io.BytesIO(), PngImagePlugin.PngInfo()
    add = info.add_itxt if international else info.add_text
    add(keyword, text, zip=folded)
    gradient_image(48, 32, 1).save(file, "PNG", pnginfo=info)
    return file.getvalue()


def profile(orientation: int) -> str:
    """As ImageMagick writes EXIF into a text."""
    data = exif(orientation)
    return f"\nexif\n{len(data):8}\n{data.hex()}\n"


def xmp(orientation: int) -> str:
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'


XMP = "XML:com.adobe.xmp"
WAYS: dict[str, Callable[[int], bytes]] = {
    "exif": saved,
    "exif, 16 bits of grey": lambda it: saved(it, "I;16"),
    "profile": lambda it: noted("Raw profile type exif", profile(it), folded=False),
    "folded profile": lambda it: noted("Raw profile type exif", profile(it), folded=True),
    "xmp": lambda it: noted(XMP, xmp(it), folded=False, international=True),
    "folded xmp": lambda it: noted(XMP, xmp(it), folded=True, international=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_size_is_that_of_the_picture_which_pillow_turns(way: str) -> None:
    sizes = set()
    for orientation in range(10):  # 0 and 9 mean nothing
        file = WAYS[way](orientation)
        height, width, _ = read_picture(file, ["png"]).shape
        assert png_size(file) == (width, height), orientation
        sizes.add((width, height))
    assert sizes == {(48, 32), (32, 48)}


def test_exif_counts_more_than_xmp() -> None:
    file, info = io.BytesIO(), PngImagePlugin.PngInfo()
    info.add_itxt(XMP, xmp(6))
    gradient_image(48, 32, 1).save(file, "PNG", pnginfo=info, exif=exif(3))
    assert png_size(file.getvalue()) == (48, 32)
    assert read_picture(file.getvalue(), ["png"]).shape == (32, 48, 3)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (b"eXIf", b"II*\0\xff\xff\xff\0", "EXIF data that cannot be read"),
        (b"eXIf", b"no directory", "EXIF data that cannot be read"),
        (b"tEXt", b"Raw profile type exif\0\nexif\n", "EXIF data that cannot be read"),
        (b"zTXt", b"Comment\0\0no zlib", "a text in it cannot be unfolded"),
        (b"zTXt", b"Comment\0\0" + zlib.compress(bytes(LARGEST_TEXT + 1)), "a text of more than"),
    ],
    ids=["cut", "no exif", "no profile", "no text", "huge text"],
)
def test_notes_that_a_worker_might_read_in_another_way_are_refused(
    name: bytes, content: bytes, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        png_size(FILE[:8] + header() + chunk(name, content) + PIXELS + END)
