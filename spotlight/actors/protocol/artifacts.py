"""Where workers leave things: in the store of a run, and of a node that keeps samples for it, each
below its node's own folders alone; in the store of their own node the trainers."""

from __future__ import annotations

import re

from spotlight.actors.protocol.trainer import STATE
from spotlight.types import Result

LEFT_BY_TRAINERS = ("weights", STATE)
"""The folders of the store of a node that trains in which trainers leave things."""


KEPT = ("samples", "commits")
"""The folders that a node keeps for a job, below which every node has one of its own."""


def bundle_key(worker: str, epoch: int, lease: int, step: int | None) -> str:
    """Where a worker process leaves a sample that it made under a lease, or a commit of a step."""
    stem = f"{worker}/{epoch}-{lease}"
    return f"samples/{stem}" if step is None else f"commits/{stem}-{step}"


def lease_of(key: str) -> int:
    """The lease under which a sample or commit was made; -1 if it has no such key."""
    _, _, rest = key.rpartition("/")[2].partition("-")
    lease = rest.partition("-")[0]
    return int(lease) if re.fullmatch("[0-9]{1,18}", lease) else -1


def own_folders(node: str) -> tuple[str, ...]:
    """Those in which a node that denoises may leave bundles; `*` stands for any one name."""
    return tuple(f"{kind}/{node}" for kind in ("commits", "samples", "pictures/*", "validation/*"))


def image_key_of(image_key: str, worker: str) -> str:
    """Where a worker leaves the image that a request wants at `image_key`."""
    folder, _, name = image_key.rpartition("/")
    return f"{folder}/{worker}/{name}"


def thumbnail_key_of(key: str) -> str:
    """Where the thumbnail of a picture is left: beside it."""
    return f"{key.removesuffix('.png')}.webp"


def picture_key(result: Result) -> str:
    """Where the image of a result is; empty if none was wanted. It was left by the worker that left
    the result's bundle, which is `samples/WORKER/...`.
    """
    if not result.request.image_key:
        return ""
    return image_key_of(result.request.image_key, _worker(result))


def sample_thumbnail_key(result: Result) -> str:
    """Where the thumbnail of a sample is, if there is one; empty if none was wanted."""
    if not result.request.thumbnail_key:
        return ""
    return image_key_of(result.request.thumbnail_key, _worker(result))


def _worker(result: Result) -> str:
    return result.bundle.key.partition("/")[2].rpartition("/")[0]
