"""The thumbnails of a run folder: of validations, and of the best and worst samples of the latest
iteration. Workers make them; here they are moved out of the artifacts, so nothing is ever decoded.

    thumbnails/v000012/       of a validation: pictures, and prompts.json
    thumbnails/samples/       of an iteration: pictures, and samples.json

Of many validations some are kept, evenly over the versions, always the first and the latest.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

FOLDER = "thumbnails"
SAMPLES = f"{FOLDER}/samples"
LISTING = "prompts.json"
SAMPLES_LISTING = "samples.json"
MOST_VERSIONS = 24
MOST_PICTURES = 32
"""The most pictures of a version."""
MOST_SAMPLES = 6
"""The most pictures of the best samples, and of the worst."""
LARGEST = 256 * 1024
"""Bytes of a thumbnail; what is larger is none."""
_VERSION = re.compile(r"v([0-9]{6,})")


class ShownSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample whose thumbnail is kept."""

    prompt: str
    seed: int
    reward: float
    file: str


class ShownSamples(msgspec.Struct, frozen=True, kw_only=True):
    """The file `samples.json`."""

    weights_version: int
    """The version of the weights that made them."""
    best: tuple[ShownSample, ...] = ()
    """The best one first."""
    worst: tuple[ShownSample, ...] = ()
    """The worst one first."""


def keep_of_validation(
    run: Path,
    version: int,
    listing: Sequence[Mapping[str, Any]],
    left: Mapping[str, Path],
) -> None:
    """Move the thumbnails of a validation into place, of as many pictures as are kept.

    Args:
        listing: prompt, reward, seed and picture of each, in order.
        left: where a worker has left the thumbnail of a picture, by the picture's file.
    """
    found = {
        Path(each["file"]).stem: left[each["file"]]
        for each in listing[:MOST_PICTURES]
        if each["file"] in left and _is_thumbnail(left[each["file"]])
    }
    if not found:
        return
    folder = run / FOLDER / f"v{version:06d}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for stem, file in found.items():
        file.replace(folder / f"{stem}.webp")
    told = [
        {**each, "file": f"{stem}.webp"}
        for each in listing
        if (stem := Path(each["file"]).stem) in found
    ]
    _replace(folder / LISTING, msgspec.json.encode(told))
    for old in set(versions := validated_in(run)) - set(kept_versions(versions)):
        shutil.rmtree(run / FOLDER / f"v{old:06d}", ignore_errors=True)


def keep_of_samples(run: Path, shown: ShownSamples, left: Mapping[str, Path]) -> None:
    """The same for an iteration's samples, which take the place of those before. None is shown both
    among the best and among the worst.

    Args:
        left: where a worker has left the thumbnail of a sample, by its file.
    """

    there = {
        one.file
        for one in (*shown.best, *shown.worst)
        if one.file in left and _is_thumbnail(left[one.file])
    }
    most = min(MOST_SAMPLES, len(there) // 2)
    if not most:
        return

    def kept_of(samples: Iterable[ShownSample]) -> tuple[ShownSample, ...]:
        return tuple(islice((one for one in samples if one.file in there), most))

    shown = msgspec.structs.replace(shown, best=kept_of(shown.best), worst=kept_of(shown.worst))
    folder = run / SAMPLES
    folder.mkdir(parents=True, exist_ok=True)
    kept = {one.file for one in (*shown.best, *shown.worst)}
    for name in kept:
        left[name].replace(folder / name)
    _replace(folder / SAMPLES_LISTING, msgspec.json.encode(shown))
    for old in folder.iterdir():
        if old.name not in (*kept, SAMPLES_LISTING):
            old.unlink(missing_ok=True)


def validated_in(run: Path) -> list[int]:
    """The versions that have thumbnails, rising."""
    folder = run / FOLDER
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := _VERSION.fullmatch(name)))


def kept_versions(versions: Sequence[int], most: int = MOST_VERSIONS) -> list[int]:
    """Some of these rising versions, the first and the last among them: while there are too many,
    the one goes that leaves the smallest gap."""
    kept = list(versions)
    while len(kept) > most:
        gaps = {kept[place]: kept[place + 1] - kept[place - 1] for place in range(1, len(kept) - 1)}
        kept.remove(min(gaps, key=lambda one: (gaps[one], one)))
    return kept


def _is_thumbnail(path: Path) -> bool:
    """Whether a file is there that can be one, and no link on the way to it leads elsewhere."""
    try:
        return path.resolve() == path and path.is_file() and 0 < path.stat().st_size <= LARGEST
    except OSError:
        return False


def _replace(path: Path, data: bytes) -> None:
    """Losing it to a crash of the machine is no harm."""
    draft = path.with_name(f"{path.name}.part")
    draft.write_bytes(data)
    draft.replace(path)
