"""Files of one checkpoint in the hub's cache of this machine: what others may take of it, and what
is added when it comes from another machine.

The cache keeps each file once, under its checksum as the hub says it, and a commit's folder has
links to them. So a file that comes from elsewhere is checked against the hub's word, whoever sends
it, and takes its place when it is whole. A cache without links says no checksums, and gives
nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from spotlight.errors import CheckpointError
from spotlight.jobs.hub_names import GIT_DIGITS, HubFile, HubName

INDEX = "model_index.json"
_PARTS = ("transformer*", "scheduler", "vae", "text_encoder*", "tokenizer*", "processor")
SMALL = (INDEX, *(f"{part}/*.{end}" for part in _PARTS for end in ("json", "txt", "model")))
WEIGHTS = tuple(f"{part}/*.safetensors" for part in _PARTS)
NOT = ("*.fp16.*", "*.fp16-*", "*.bf16.*", "*.bf16-*")
"""Copies of the weights in another precision."""


def is_wanted(path: str) -> bool:
    """Whether a file of a repository is one that a checkpoint in diffusers layout needs."""
    is_left_out = any(fnmatch(path, pattern) for pattern in NOT)
    return not is_left_out and any(fnmatch(path, pattern) for pattern in (*SMALL, *WEIGHTS))


def shareable(folder: Path) -> dict[HubFile, Path] | None:
    """The files of a whole checkpoint in the cache, and where each is; None if the cache does not
    say their checksums.
    """
    found = {}
    blobs = _blobs(folder).resolve()
    with suppress(OSError):  # somebody clears the cache
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_dir() or not is_wanted(name):
                continue
            blob = path.resolve(strict=True)
            file = HubFile(name, blob.stat().st_size, blob.name)
            if blob.parent != blobs or not _is_valid(file):
                return None
            found[file] = blob
        return found
    return None


def _is_valid(file: HubFile) -> bool:
    try:
        msgspec.convert(msgspec.to_builtins(file), HubFile)
    except msgspec.ValidationError:
        return False
    return True


class CheckpointFolder:
    """The folder of a commit in the cache, to which files are added. Everything raises
    `CheckpointError` for what may not be added, and where the disk has no room for it.

    Args:
        cache: that of the hub.
    """

    def __init__(self, cache: Path, name: HubName) -> None:
        repository = f"models--{name.repository.replace('/', '--')}"
        self.path = cache / repository / "snapshots" / name.revision

    def missing(self, files: Sequence[HubFile]) -> list[HubFile]:
        """Those of the files that have yet to come, weights last: without them nothing passes for
        a whole checkpoint. What is in the cache for another commit is linked here, too."""
        strange = next((file.path for file in files if not is_wanted(file.path)), "")
        if strange:
            raise CheckpointError(f"{strange} is no file of a checkpoint")
        with _explaining(self.path):
            for file in files:
                blob = _blobs(self.path) / file.blob
                if not _has(self.path / file.path, file) and _has(blob, file):
                    self._link(file)
            left = [file for file in files if not _has(self.path / file.path, file)]
            _blobs(self.path).mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(_blobs(self.path)).free
        needed = sum(file.nbytes for file in left)
        if needed > free:
            raise CheckpointError(
                f"{needed} bytes are missing in {self.path}, and the disk has room for {free}; free"
                " some, or let HF_HOME name another place"
            )
        return sorted(left, key=lambda file: file.path.endswith(".safetensors"))

    def arriving(self, file: HubFile) -> ArrivingFile:
        """A file that comes from elsewhere."""
        return ArrivingFile(self, file)

    def _link(self, file: HubFile) -> None:
        link = self.path / file.path
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(_blobs(self.path) / file.blob, link.parent)
        with tempfile.TemporaryDirectory(dir=_blobs(self.path)) as scratch:
            new = Path(scratch) / "link"
            new.symlink_to(target)
            new.replace(link)


class ArrivingFile:
    """Written as it comes, beside the others until it is whole. What is not kept when it
    is closed is gone. Raises as its folder.
    """

    def __init__(self, folder: CheckpointFolder, file: HubFile) -> None:
        self.nbytes = 0
        """Written so far."""
        self._folder = folder
        self._file = file
        is_git = len(file.blob) == GIT_DIGITS
        self._hash = hashlib.sha1() if is_git else hashlib.sha256()
        if is_git:
            self._hash.update(b"blob %d\0" % file.nbytes)
        with _explaining(folder.path):
            descriptor, path = tempfile.mkstemp(".incomplete", dir=_blobs(folder.path))
        self._path, self._out = Path(path), os.fdopen(descriptor, "wb", buffering=0)

    def close(self) -> None:
        """Drop what was not kept."""
        self._out.close()
        self._path.unlink(missing_ok=True)

    def write(self, part: memoryview) -> None:
        """Append."""
        with _explaining(self._folder.path):
            self._hash.update(part)
            self.nbytes += len(part)
            while part:
                part = part[self._out.write(part) :]

    def keep(self) -> None:
        """Have it be the file of the checkpoint. Raises `CheckpointError` if it has other bytes
        than the hub's."""
        if self.nbytes != self._file.nbytes or self._hash.hexdigest() != self._file.blob:
            raise CheckpointError(
                f"{self._file.path} came with {self.nbytes} bytes and the checksum"
                f" {self._hash.hexdigest()}, but the hub has {self._file.nbytes} bytes with the"
                f" checksum {self._file.blob}"
            )
        with _explaining(self._folder.path):
            self._path.chmod(0o644)  # a cache may be shared by users
            self._path.replace(_blobs(self._folder.path) / self._file.blob)
            self._folder._link(self._file)


def _blobs(folder: Path) -> Path:
    """Where the repository of a commit's folder has its files."""
    return folder.parents[1] / "blobs"


def _has(path: Path, file: HubFile) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.stat().st_size == file.nbytes
    return False


@contextmanager
def _explaining(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror}") from error
