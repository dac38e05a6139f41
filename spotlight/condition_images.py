"""Images that prompts come with: what is to be changed, where a model edits images.

Everywhere but at the edges a prompt with an image is one text: that of the prompt, and behind it
the digest of the image's file. So whatever knows prompts by their text (embeddings, groups, what
was explored, what was trained on) tells two images apart. Imports nothing of torch or Pillow: files
are checked without them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight.errors import TransferFailed, UnreadableFile
from spotlight.files import read_bytes
from spotlight.png_files import LARGEST_FILE, png_size

DIGEST_DIGITS = 32
NAMED_FILE = "`image`: the file that it names"
"""How errors call the file of an image: they never repeat what stands in a list."""
_NAMED = re.compile(rf"(.*) <image ([0-9a-f]{{{DIGEST_DIGITS}}})>", re.DOTALL)


class Named(NamedTuple):
    """A prompt, and the image that it comes with."""

    text: str
    digest: str
    """The digest of the image's file; empty for none."""


class ImageFile(NamedTuple):
    """A PNG file that was checked."""

    data: bytes
    size: tuple[int, int]
    """(width, height) as a person sees it. [pixels]"""


def image_path(folder: Path, metadata: Mapping[str, object]) -> Path:
    """The file that `image` of a prompt's fields names, relative to the folder of its list. Raises
    `ValueError` saying what is wrong with the name.
    """
    name = metadata.get("image")
    if name is None or name == "":
        raise ValueError(
            "`image` is missing, but this checkpoint changes images; name a PNG, relative to the"
            " list"
        )
    if not isinstance(name, str):
        raise ValueError("`image` must be text; name a PNG, relative to the list")
    return folder / name


def read_image(path: Path) -> ImageFile:
    """The file of an image that is to be changed. Raises `ValueError` saying what is wrong with the
    file.
    """
    try:
        data = read_bytes(path, most=LARGEST_FILE)
        return ImageFile(data, png_size(data))
    except UnreadableFile as error:
        raise ValueError(f"{NAMED_FILE} {error.problem}") from error
    except ValueError as error:
        raise ValueError(f"{NAMED_FILE} {error}") from error


def digest_of(data: bytes) -> str:
    """The digest of an image's file: the first half of its SHA-256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]


def with_image(text: str, digest: str) -> str:
    """A prompt with its image, as one text."""
    return f"{text} <image {digest}>"


def named(prompt: str) -> Named:
    """The inverse of `with_image`, for prompts of models that change images; any other text is a
    prompt without an image.
    """
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
