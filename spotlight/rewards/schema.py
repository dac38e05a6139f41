"""The messages between a scorer's server and its clients over HTTP, version 1.

A request is a POST with a JSON body; `image` is the file in base64, and so is `source`, which only
prompts have that come with an image:

    {"version": 1, "images": [{"id": "0-9f86d081884c7d65", "prompt": "a sign that says \\"OPEN\\"",
                               "metadata": {}, "format": "png", "image": "iVBORw0KGgo..."}]}

The answer has status 200 and one entry per image, in any order. A reward is a finite number; null
comes with a reason, and never counts as 0:

    {"version": 1, "rewards": [{"id": "0-9f86d081884c7d65", "reward": 0.75}]}
    {"version": 1, "rewards": [{"id": "0-9f86d081884c7d65", "reward": null, "reason": "..."}]}

Any other status means that nothing was scored, and its body says why:

    {"version": 1, "error": "..."}

A version changes with every change that an older reader would misread. A client ignores fields of
an answer that it does not know. A server refuses a request with such a field, as the score might
depend on it: an older one refuses `source`.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from PIL import Image

from spotlight.errors import ScoringError
from spotlight.pictures import read_picture
from spotlight.text import plain
from spotlight.types import Prompt

VERSION = 1
"""The version of the schema."""

T = TypeVar("T")

ImageFormat = Literal["png", "webp"]
"""Both without loss: what is scored is what was made."""


class ImageToScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One image of a request."""

    id: str
    """Names the image within its request; its answer bears it too."""
    prompt: str
    metadata: dict[str, Any] = {}
    """What the prompt's line in the job's prompts says besides the text."""
    format: ImageFormat
    image: bytes
    """The bytes of the image's file."""
    source: bytes | msgspec.UnsetType = msgspec.UNSET
    """The PNG file of the image that was to be changed; left out where a model draws from text."""


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request."""

    version: int
    images: tuple[ImageToScore, ...]


class ImageScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one image."""

    id: str
    reward: float | None
    """None when it could not be scored."""
    reason: str = ""
    """Why it could not."""


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer with status 200."""

    version: int
    rewards: tuple[ImageScore, ...]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer with any other status."""

    version: int
    error: str


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def image_to_score(row: int, image: np.ndarray, prompt: Prompt, form: ImageFormat) -> ImageToScore:
    """Image uint8 [H, W, 3] RGB at `row` of its batch. Its id holds the row and, so that it is the
    same in every log, the beginning of a hash of image and prompt.
    """
    data = encode_image(image, form)
    digest = hashlib.sha256(prompt.text.encode() + b"\0" + data).hexdigest()[:16]
    return ImageToScore(
        id=f"{row}-{digest}",
        prompt=prompt.text,
        metadata=dict(prompt.metadata),
        format=form,
        image=data,
        source=prompt.image or msgspec.UNSET,
    )


def prompt_of(image: ImageToScore) -> Prompt:
    """The prompt of an image that is to be scored, as scorers get it."""
    return Prompt(image.prompt, image.metadata, image.source or b"")


def encode_image(image: np.ndarray, form: ImageFormat) -> bytes:
    """The file of an image uint8 [H, W, 3] RGB; fast rather than small."""
    buffer = io.BytesIO()
    if form == "png":
        Image.fromarray(image).save(buffer, format="PNG", compress_level=1)
    else:
        Image.fromarray(image).save(buffer, format="WEBP", lossless=True, method=0)
    return buffer.getvalue()


def decode_image(data: bytes, form: ImageFormat) -> np.ndarray:
    """The image uint8 [H, W, 3] RGB in a file of this format and no other. Raises `ValueError` as
    `read_picture`.
    """
    return read_picture(data, [form])


def read_request(body: bytes) -> ScoreRequest:
    """The request in a body. Raises `ValueError` saying what is wrong with it."""
    version = _version(body)
    if version != VERSION:
        raise ValueError(
            f"this server speaks version {VERSION} of the reward schema, the request is of version"
            f" {version}; use the same version of Spotlight on both sides"
        )
    request = _decode(body, ScoreRequest)
    ids = [image.id for image in request.images]
    if not ids:
        raise ValueError("the request has no images")
    if len(set(ids)) != len(ids):
        raise ValueError("two images of the request have the same id")
    return request


def read_rewards(
    body: bytes, ids: Sequence[str], limits: tuple[float, float] | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """By id the rewards in a server's answer, and why the others have none.

    Raises `ScoringError` when the answer as a whole cannot be believed: it is of another version or
    shape, or not exactly about these images.
    """
    try:
        version = _version(body)
        if version != VERSION:
            raise ScoringError(
                f"the reward server speaks version {version} of the reward schema, and this is"
                f" version {VERSION}; use the same version of Spotlight on both sides"
            )
        answered = _decode(body, ScoreAnswer).rewards
    except ValueError as error:
        raise ScoringError(f"the answer cannot be read: {plain(error)}") from error
    if sorted(score.id for score in answered) != sorted(ids):
        raise ScoringError(
            f"the answer has {len(answered)} rewards for {len(ids)} images, or others than those"
            " that were asked for; there must be one for each id"
        )
    rewards: dict[str, float] = {}
    problems: dict[str, str] = {}
    for score in answered:
        problem = _problem(score.reward, score.reason, limits)
        if score.reward is None or problem:
            problems[score.id] = problem
        else:
            rewards[score.id] = score.reward
    return rewards, problems


def _problem(reward: float | None, reason: str, limits: tuple[float, float] | None) -> str:
    """Why this is no reward; empty if it is one."""
    if reward is None:
        return plain(reason) or "the server gave no reward, and no reason"
    if not math.isfinite(reward):
        return f"the reward is {reward}, not a finite number"
    if limits is not None and not limits[0] <= reward <= limits[1]:
        return f"the reward {reward} is not in its range, {limits[0]} to {limits[1]}"
    return ""


def _version(body: bytes) -> int:
    """Read before anything else, since another version may look different."""
    return _decode(body, _Versioned).version


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
