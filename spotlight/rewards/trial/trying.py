"""Scores image files with the scorers of a job, and measures what that takes."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from spotlight.errors import JobError, ScoringError, UserError
from spotlight.files import MEBIBYTE, read_bytes
from spotlight.jobs import RewardSpec
from spotlight.permissions import Permissions
from spotlight.pictures import read_picture
from spotlight.rewards.base import build_scorer
from spotlight.rewards.trial.pairing import PromptImages
from spotlight.rewards.validity import score_with
from spotlight.text import error_text
from spotlight.tracebacks import foreign_traceback
from spotlight.types import Prompt

FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
"""Formats of image files, by the ends of their names."""
_LARGEST_FILE = 256 * MEBIBYTE
"""Bytes; the largest image has fewer in every format."""
_BATCH = 8
"""Most images in a call of a scorer that looks at one at a time."""


class Tried(msgspec.Struct, frozen=True):
    """What came of one scorer."""

    name: str
    rewards: tuple[float, ...] = ()
    """One for each image; none if it failed."""
    building_s: float = 0.0
    """How long it took to make the scorer. [seconds]"""
    scoring_s: float = 0.0
    """How long all images took. [seconds]"""
    host_mb: float = 0.0
    """The host memory that the process took more at its most. [MB]"""
    accelerator_mb: float = 0.0
    """The most memory of the accelerator that was in use. [MB]"""
    error: str = ""
    """Why it failed, with the field in front; empty if it did not."""
    traceback: str = ""
    """Where code of the user's own raised that."""


class Picture(msgspec.Struct, frozen=True):
    """An image and what it should show."""

    name: str
    image: np.ndarray
    """Pixels uint8 [H, W, 3] RGB."""
    prompt: Prompt


def image_names(folder: Path) -> list[str]:
    """The image files in a folder, in order. Raises `UserError`."""
    try:
        found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in FORMATS)
    except OSError as error:
        raise UserError(f"--images {folder}: cannot be read ({error.strerror})") from error
    if not found:
        raise UserError(f"--images {folder}: has no images ({', '.join(FORMATS)})")
    return found


def read_pictures(folder: Path, of: Iterable[PromptImages]) -> list[list[Picture]]:
    """The pictures of each prompt. Raises `UserError` for a file that is no image."""
    return [[_picture(folder, name, each.prompt) for name in each.names] for each in of]


def _picture(folder: Path, name: str, prompt: Prompt) -> Picture:
    path = folder / name
    try:
        data = read_bytes(path, most=_LARGEST_FILE)
        image = read_picture(data, [FORMATS[path.suffix.lower()]])
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return Picture(name, image, prompt)


def try_scorer(
    field: str, reward: RewardSpec, groups: Sequence[Sequence[Picture]], permissions: Permissions
) -> Tried:
    """Make the scorer that the job names in a field, and score the pictures of each prompt."""
    _forget_accelerator_peak()
    before, began = _host_mb(), time.perf_counter()
    built = began
    try:
        scorer = build_scorer(reward, permissions)
        built = time.perf_counter()
        rewards: list[float] = []
        for images, prompts in _batches(reward, groups):
            rewards += score_with(scorer, reward, images, prompts)
    except Exception as error:  # whatever a scorer raises is what its author wants to see
        said = _said(error).removeprefix(f"reward `{reward.name}`: ")
        line = f"{field} (`{reward.name}`): {said}"
        return Tried(reward.name, error=line, traceback=foreign_traceback(error))
    return Tried(
        reward.name,
        tuple(rewards),
        building_s=built - began,
        scoring_s=time.perf_counter() - built,
        host_mb=_host_mb() - before,
        accelerator_mb=_accelerator_mb(),
    )


def _batches(
    reward: RewardSpec, groups: Sequence[Sequence[Picture]]
) -> Iterator[tuple[np.ndarray, list[Prompt]]]:
    """The pictures in order: each group by itself where it is compared, else a few of one size."""
    if reward.groupwise:
        yield from map(_stacked, groups)
        return
    pictures = (picture for group in groups for picture in group)
    for _, alike in groupby(pictures, key=lambda picture: picture.image.shape):
        while batch := list(islice(alike, _BATCH)):
            yield _stacked(batch)


def _stacked(pictures: Sequence[Picture]) -> tuple[np.ndarray, list[Prompt]]:
    sizes = {picture.image.shape for picture in pictures}
    if len(sizes) > 1:
        named = ", ".join(f"{width} x {height}" for height, width, _ in sorted(sizes))
        raise ScoringError(
            f"images of one prompt are compared, but {pictures[0].name} and others differ in size:"
            f" {named}"
        )
    return np.stack([each.image for each in pictures]), [each.prompt for each in pictures]


def _said(error: Exception) -> str:
    if isinstance(error, JobError):
        return error.problem
    return str(error) if isinstance(error, UserError | ScoringError) else error_text(error)


def _host_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEBIBYTE


def _accelerator_mb() -> float:
    cuda = _cuda()
    return 0.0 if cuda is None else float(cuda.max_memory_allocated()) / MEBIBYTE


def _forget_accelerator_peak() -> None:
    """What an earlier scorer took is not this one's."""
    cuda = _cuda()
    if cuda is not None:
        cuda.reset_peak_memory_stats()


def _cuda() -> Any:
    """None where no scorer has loaded torch, or there is no accelerator."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None
