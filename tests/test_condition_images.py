"""Images that prompts come with."""

from __future__ import annotations

import struct
import zlib

import pytest

from spotlight.condition_images import digest_of, named, pack, png_size, unpack, with_image
from spotlight.errors import TransferFailed
from spotlight_simulation.pixels import gradient_image, png_of

FILE = png_of(gradient_image(48, 32, 1))


def test_a_prompt_and_its_image_are_one_text_and_can_be_told_apart_again() -> None:
    prompt = with_image("make it <image> red\nand round", digest_of(FILE))
    assert named(prompt) == ("make it <image> red\nand round", digest_of(FILE))


@pytest.mark.parametrize("text", ["a cat", "a cat <image 12>", "a cat <image of it>"])
def test_any_other_text_is_a_prompt_without_an_image(text: str) -> None:
    assert named(text) == (text, "")


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


def header(edge: int = 4, depth: int = 8) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", edge, edge, depth, 0, 0, 0, 0))


PIXELS, END = chunk(b"IDAT", b"any"), chunk(b"IEND")


@pytest.mark.parametrize(
    ("chunks", "problem"),
    [
        ((header(), END), "it has no size or no pixels"),
        ((PIXELS, header(), END), "it has no size or no pixels"),
        ((chunk(b"IHDR", b"12345678"), PIXELS, END), "it has no size or no pixels"),
        ((header(4097), PIXELS, END), "more than 4096 pixels"),
        ((header(0), PIXELS, END), "an edge of 0"),
        ((header(depth=16), chunk(b"tRNS", b"12"), PIXELS, END), "16 bits per channel and a clear"),
    ],
    ids=["no pixels", "late header", "short header", "huge", "empty", "clear colour"],
)
def test_a_png_that_no_worker_could_read_is_refused(
    chunks: tuple[bytes, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        png_size(FILE[:8] + b"".join(chunks))


def test_images_that_were_sent_are_those_of_their_digests() -> None:
    images = {digest_of(FILE): FILE}
    assert unpack(pack(images)) == images
    with pytest.raises(TransferFailed, match="is not the file of this digest"):
        unpack(pack({digest_of(FILE): FILE + b"!"}))
    with pytest.raises(TransferFailed, match="malformed"):
        unpack(b"!")
