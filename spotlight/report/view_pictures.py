"""The pictures that a view points to: those of validations, and the best and worst samples.

They are looked for in the run folder, again when something changed there. What of them is damaged
is left out, with a note.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from spotlight.errors import UnreadableFile
from spotlight.files import open_file
from spotlight.report.run_view import PicturesPart, Shown
from spotlight.store.thumbnails import (
    FOLDER,
    LISTING,
    SAMPLES,
    SAMPLES_LISTING,
    ShownSample,
    ShownSamples,
)

MOST_PROMPTS = 24
MOST_VERSIONS = 12
_MOST_SAMPLES = 8
_WHOLE = "validation"
_LARGEST_LISTING = 4 << 20
_LONGEST_PROMPT = 400
T = TypeVar("T")


class _Line(msgspec.Struct, frozen=True):
    """Of a listing of a validation."""

    prompt: str
    file: str
    reward: float | None = None
    seed: int | None = None


class ViewPictures:
    """See the module's docstring."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: object = None
        self._part = PicturesPart()
        self.notes: tuple[str, ...] = ()
        """What could not be read."""

    def part(self) -> PicturesPart:
        """Those that are there."""
        seen = tuple(self._stamps())
        if seen != self._seen:
            notes: list[str] = []
            self._seen, self._part = seen, self._read(notes)
            self.notes = tuple(notes)
        return self._part

    def _stamps(self) -> Iterator[tuple[str, int]]:
        """They change whenever a picture or a listing comes or goes."""
        for name in (_WHOLE, FOLDER):
            try:
                with os.scandir(self._folder / name) as entries:
                    for entry in entries:
                        yield f"{name}/{entry.name}", entry.stat().st_mtime_ns
            except OSError:
                continue

    def _read(self, notes: list[str]) -> PicturesPart:
        small = self._listings(FOLDER, notes)
        whole = self._listings(_WHOLE, notes)
        versions = _spread(sorted({*small, *whole}))
        rows: dict[tuple[str, str], list[Shown]] = {}
        for version in versions:
            full = {Path(line.file).stem: line for line in whole.get(version) or []}
            for line in small.get(version) or whole[version]:
                stem = Path(line.file).stem
                place = f"v{version:06d}"
                picture = f"{_WHOLE}/{place}/{full[stem].file}" if stem in full else ""
                thumb = f"{FOLDER}/{place}/{line.file}" if version in small else picture
                shown = _shown(line.prompt, line.reward, line.seed, version, thumb, picture)
                rows.setdefault((stem, line.prompt), []).append(shown)
        best, worst = self._samples(notes)
        wall = (tuple(row) for _, row in sorted(rows.items())[:MOST_PROMPTS])
        return PicturesPart(wall=tuple(wall), best=best, worst=worst)

    def _listings(self, name: str, notes: list[str]) -> dict[int, list[_Line]]:
        """What each version shows, by the listing in its folder."""
        found = {}
        for path in (self._folder / name).glob(f"v*/{LISTING}"):
            if not path.parent.name[1:].isdecimal():
                continue
            lines = _decoded(path, list[_Line], notes)
            if lines is not None:
                found[int(path.parent.name[1:])] = [
                    line for line in lines if _is_named(line.file, path, notes)
                ]
        return found

    def _samples(self, notes: list[str]) -> tuple[tuple[Shown, ...], tuple[Shown, ...]]:
        path = self._folder / SAMPLES / SAMPLES_LISTING
        said = _decoded(path, ShownSamples, notes) if path.exists() else None
        if said is None:
            return (), ()
        version = said.weights_version

        def shown(samples: Iterable[ShownSample]) -> tuple[Shown, ...]:
            named = [one for one in samples if _is_named(one.file, path, notes)]
            return tuple(
                _shown(one.prompt, one.reward, one.seed, version, f"{SAMPLES}/{one.file}", "")
                for one in named[:_MOST_SAMPLES]
            )

        return shown(said.best), shown(said.worst)


def _shown(
    prompt: str, reward: float | None, seed: int | None, version: int, thumb: str, full: str
) -> Shown:
    return Shown(
        weights_version=version,
        reward=None if reward is None else round(reward, 6),
        thumb=thumb,
        full=full,
        prompt=prompt if len(prompt) <= _LONGEST_PROMPT else f"{prompt[:_LONGEST_PROMPT]}…",
        seed=seed,
    )


def _spread(versions: Sequence[int]) -> list[int]:
    """At most `MOST_VERSIONS`, evenly, the first and the last among them."""
    if len(versions) <= MOST_VERSIONS:
        return list(versions)
    step = (len(versions) - 1) / (MOST_VERSIONS - 1)
    return [versions[round(step * place)] for place in range(MOST_VERSIONS)]


def _decoded(path: Path, kind: type[T], notes: list[str]) -> T | None:
    try:
        with open_file(path) as file:
            return msgspec.json.decode(file.read(_LARGEST_LISTING), type=kind)
    except UnreadableFile:
        return None  # it went meanwhile
    except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
        notes.append(f"{_place(path)}: {error}; its pictures are left out")
        return None


def _is_named(file: str, path: Path, notes: list[str]) -> bool:
    """Whether a listing names a file of its own folder."""
    if Path(file).name == file and file not in ("", ".", ".."):
        return True
    notes.append(f"{_place(path)}: `file` must be a name in the same folder: {file[:100]!r}")
    return False


def _place(path: Path) -> str:
    return "/".join(path.parts[-3:])
