"""Images that prompts come with: what is to be changed, where a model edits images.

Everywhere but at the edges a prompt with an image is one text: that of the prompt, and behind it
the digest of the image's file. So whatever knows prompts by their text (embeddings, groups, what
was explored, what was trained on) tells two images apart. Imports nothing of torch or Pillow: files
are checked without them.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from spotlight.errors import TransferFailed

DIGEST_DIGITS = 32
LARGEST_FILE = 32 * 1024 * 1024
"""A file may have so many bytes."""
LONGEST_EDGE = 4096
"""An edge may have so many pixels: a small file may unfold to far more."""
_NAMED = re.compile(rf"(.*) <image ([0-9a-f]{{{DIGEST_DIGITS}}})>", re.DOTALL)
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = b"\0\0\0\x0dIHDR"
"""The head of the first chunk, which has a length of its own."""


class Named(NamedTuple):
    """A prompt, and the image that it comes with."""

    text: str
    digest: str
    """The digest of the image's file; empty for none."""


def digest_of(data: bytes) -> str:
    """The digest of an image's file: the first half of its SHA-256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]


def with_image(text: str, digest: str) -> str:
    """A prompt with its image, as one text."""
    return f"{text} <image {digest}>"


def named(prompt: str) -> Named:
    """The inverse of `with_image`; any other text is a prompt without an image."""
    found = _NAMED.fullmatch(prompt)
    return Named(*found.groups()) if found else Named(prompt, "")


def pack(images: Mapping[str, bytes]) -> bytes:
    """Files of images by their digests, to be sent."""
    return msgspec.msgpack.encode(images)


def unpack(data: bytes) -> dict[str, bytes]:
    """The inverse of `pack`; raises `TransferFailed` for anything else, also where a file is not
    the one of its digest.
    """
    try:
        images = msgspec.msgpack.decode(data, type=dict[str, bytes])
    except msgspec.DecodeError as error:
        raise TransferFailed("the images of prompts are malformed") from error
    for digest, file in images.items():
        if digest_of(file) != digest:
            raise TransferFailed(f"the image {digest} is not the file of this digest")
    return images


def png_size(data: bytes) -> tuple[int, int]:
    """(width, height) of a PNG file; raises `ValueError` saying what is wrong with it, also where
    it is cut off or damaged.
    """
    if not data.startswith(_SIGNATURE):
        raise ValueError("is no PNG; convert it")
    at, kind, kinds = len(_SIGNATURE), b"", set[bytes]()
    while kind != b"IEND":
        if at + 12 > len(data):
            raise ValueError("is cut off; copy it again")
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            raise ValueError("is cut off; copy it again")
        if struct.unpack_from(">I", data, end)[0] != zlib.crc32(data[at + 4 : end]):
            raise ValueError("is damaged; copy it again")
        kinds.add(kind)
        at = end + 4
    if not data.startswith(_HEADER, len(_SIGNATURE)) or b"IDAT" not in kinds:
        raise ValueError("is damaged: it has no size or no pixels; copy it again")
    width, height, depth = struct.unpack_from(">IIB", data, len(_SIGNATURE) + len(_HEADER))
    if not all(1 <= edge <= LONGEST_EDGE for edge in (width, height)):
        raise ValueError(f"has an edge of 0 or more than {LONGEST_EDGE} pixels; resize it")
    if depth == 16 and b"tRNS" in kinds:
        raise ValueError(
            "has 16 bits per channel and a clear colour; give it an alpha channel, or 8 bits"
        )
    return width, height
