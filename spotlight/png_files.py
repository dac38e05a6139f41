"""PNG files, checked without torch or Pillow, which a coordinator need not have."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

LARGEST_FILE = 32 * 1024 * 1024
"""A file may have so many bytes."""
LONGEST_EDGE = 4096
"""An edge may have so many pixels: a small file may unfold to far more."""
LONGEST_RATIO = 100
"""Times that an edge may be as long as the other: pipelines and their processors bring a longer
strip to a height of nothing, or refuse it."""
LARGEST_TEXT = 1024 * 1024
"""Pillow reads no text that unfolds to more bytes."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = b"\0\0\0\x0dIHDR"
"""The head of the first chunk, which has a length of its own."""
_TURNED = range(5, 9)
"""Orientations (EXIF) in which the width of what is seen is the height of the file."""
_ORIENTATION = 0x0112
_FORMS = {1: "B", 3: "H", 4: "I"}
"""How a number is written, by its type in EXIF."""
_XMP = re.compile(rb"tiff:Orientation(?:=\"|>)([0-9])")
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Numbers of a pixel, by the type of its colour."""


class _Header(NamedTuple):
    """The content of the first chunk."""

    width: int
    height: int
    depth: int
    colour: int
    compression: int
    filtering: int
    interlaced: int

    @property
    def nbytes(self) -> int:
        """Of all rows, unfolded, where they are not interlaced."""
        bits = self.width * self.depth * _CHANNELS.get(self.colour, 1)
        return self.height * (1 + (bits + 7) // 8)


def png_size(data: bytes) -> tuple[int, int]:
    """(width, height) of the picture in a PNG file as a person sees it, turned as its camera says;
    raises `ValueError` saying what is wrong with it, also where it is cut off or damaged.
    """
    chunks, texts, pixels = dict[bytes, bytes](), dict[bytes, bytes](), list[bytes]()
    for kind, content in _chunks(data):
        chunks[kind] = content
        texts |= _text(kind, content)
        pixels += [content] * (kind == b"IDAT")
    if not data.startswith(_HEADER, len(_SIGNATURE)) or b"IDAT" not in chunks:
        raise ValueError("is damaged: it has no size or no pixels; copy it again")
    header = _Header(*struct.unpack_from(">IIBBBBB", data, len(_SIGNATURE) + len(_HEADER)))
    width, height, depth, *_ = header
    if not all(1 <= edge <= LONGEST_EDGE for edge in (width, height)):
        raise ValueError(f"has an edge of 0 or more than {LONGEST_EDGE} pixels; resize it")
    if max(width, height) > LONGEST_RATIO * min(width, height):
        raise ValueError(
            f"has an edge more than {LONGEST_RATIO} times as long as the other; crop it"
        )
    if depth == 16 and b"tRNS" in chunks:
        raise ValueError(
            "has 16 bits per channel and a clear colour; give it an alpha channel, or 8 bits"
        )
    _check_pixels(pixels, header)
    return (height, width) if _orientation(chunks, texts) in _TURNED else (width, height)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each, to the last one; raises `ValueError`."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("is no PNG; convert it")
    at, kind = len(_SIGNATURE), b""
    while kind != b"IEND":
        if at + 12 > len(data):
            raise ValueError("is cut off; copy it again")
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            raise ValueError("is cut off; copy it again")
        if struct.unpack_from(">I", data, end)[0] != zlib.crc32(data[at + 4 : end]):
            raise ValueError("is damaged; copy it again")
        yield kind, data[at + 8 : end]
        at = end + 4


def _check_pixels(parts: Iterable[bytes], header: _Header) -> None:
    """Raise `ValueError` if pixels cannot be unfolded, or are too few; more stay folded."""
    unfolding, left = zlib.decompressobj(), header.nbytes
    try:
        for part in parts:
            if left > 0:
                left -= len(unfolding.decompress(part, left))
    except zlib.error as error:
        raise ValueError("is damaged: its pixels cannot be unfolded; save it again") from error
    if left > 0 and not header.interlaced:
        raise ValueError("is damaged: it has too few pixels; save it again")


def _text(kind: bytes, content: bytes) -> dict[bytes, bytes]:
    """The text of a chunk by its keyword, if it has one."""
    keyword, _, text = content.partition(b"\0")
    if kind == b"tEXt":
        return {keyword: text}
    if kind == b"zTXt":
        return {keyword: _unfolded(text[1:])}
    if kind == b"iTXt":
        is_folded, (*_, text) = text[:1] != b"\0", text[2:].split(b"\0", 2)
        return {keyword: _unfolded(text) if is_folded else text}
    return {}


def _unfolded(text: bytes) -> bytes:
    unfolding = zlib.decompressobj()
    try:
        found = unfolding.decompress(text, LARGEST_TEXT)
    except zlib.error as error:
        raise ValueError("is damaged: a text in it cannot be unfolded; save it again") from error
    if unfolding.unconsumed_tail:
        raise ValueError(f"has a text of more than {LARGEST_TEXT:,} bytes; save it without")
    return found


def _orientation(chunks: Mapping[bytes, bytes], texts: Mapping[bytes, bytes]) -> int:
    """How it is turned, 1 to 8, as EXIF says it, or as Pillow finds it elsewhere; 1 if nobody says
    so. Raises `ValueError`.
    """
    exif = chunks.get(b"eXIf")
    try:
        if exif is None and (profile := texts.get(b"Raw profile type exif")):
            exif = bytes.fromhex(profile.decode("latin-1").split("\n", 3)[3])
        found = _of_exif(exif.removeprefix(b"Exif\0\0")) if exif else None
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise ValueError("has EXIF data that cannot be read; save it without") from error
    if found is None and (of_xmp := _XMP.search(texts.get(b"XML:com.adobe.xmp", b""))):
        return int(of_xmp[1])
    return 1 if found is None else found


def _of_exif(exif: bytes) -> int | None:
    """The orientation in a directory of TIFF's, if it stands there."""
    order = {b"II*\0": "<", b"MM\0*": ">"}[exif[:4]]
    (at,) = struct.unpack_from(f"{order}I", exif, 4)
    (count,) = struct.unpack_from(f"{order}H", exif, at)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, form = struct.unpack_from(f"{order}HH", exif, entry)
        if tag == _ORIENTATION:
            return int(struct.unpack_from(f"{order}{_FORMS[form]}", exif, entry + 8)[0])
    return None
