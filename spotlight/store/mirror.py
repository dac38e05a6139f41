"""A run's copy in object storage: all that another machine needs to go on with it.

    NAME/manifest.json    which files the run has, with their sizes and checksums
    NAME/files/SHA-256    what they hold, under the name of its checksum

The manifest is replaced last, at once, and files that no manifest names are removed after it. So
whoever reads the manifest finds a whole run, and what was copied once is not copied again. Samples
and commits of workers are not copied: they are made again, bit for bit. Neither are the states of
workers of the last hour, which only pictures are drawn from: the ledger and the roll-ups have them
as sums, and these are copied.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from spotlight.errors import MirrorError
from spotlight.store import ledger_file, record_files, rollup_files, rollups
from spotlight.store.journal import NAME as JOURNAL
from spotlight.store.object_store import ObjectStore
from spotlight.store.run_folder import RunFolder, checkpoint_path

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 16 << 20
FORMAT = 1
_LINES = (record_files.METRICS, record_files.NEWEST)
_SMALL = ("config.yaml", "step-times.json")
_FOLDERS = ("validation", "thumbnails", "export", "exports")
PLACES = re.compile(
    r"config(-\d{3,6})?\.yaml|step-times\.json|(metrics|events)\.jsonl|journal\.(records|sqlite)"
    rf"|{record_files.OLDER.pattern}|{re.escape(ledger_file.NAME)}"
    rf"|{rollups.FOLDER}/({'|'.join(rollups.LEVELS)})(-older)?\.rollup"
    r"|(checkpoints|validation|thumbnails|export|exports)(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}){1,8}"
)
"""The paths that are copied; none of them leads out of the run folder."""
_CHUNK = 8 << 20


class MirroredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the run folder."""

    path: str
    """The path inside the run folder."""
    nbytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is copied of a run."""

    format: int
    run: str
    """Id of the job; the same for as long as the run folder lives."""
    writer: str
    """The coordinator's mirror that wrote it."""
    completed: int
    """Iterations in the checkpoint that a resume begins from."""
    files: tuple[MirroredFile, ...]


@dataclass(frozen=True)
class Uploaded:
    """What a copy took."""

    files: int
    """Files that were not there yet."""
    nbytes: int
    """Bytes of these files."""


class Snapshot:
    """The state of a run at one moment. A context that closes its files.

    Args:
        folder: of the run.
        completed: iterations in the committed checkpoint.
        forget: records of the journal that begin so mean nothing elsewhere.

    Raises `RunFolderError` when the disk refuses.
    """

    def __init__(self, folder: RunFolder, completed: int, forget: tuple[str, ...]) -> None:
        self.folder = folder.path
        self.completed = completed
        self._journal = folder.journal.image(forget)
        with ExitStack() as files:
            checkpoints = (checkpoint_path(it) for it in folder.checkpoints() if it <= completed)
            events = (path.name for path in record_files.older_files(folder.path))
            self._large = {
                # Open, since a later commit may delete a checkpoint while it is copied.
                path: files.enter_context(folder.open_file(path))
                for path in (*checkpoints, *events)
            }
            # As they are now: a journal that knows less than they say is taken for an old one. The
            # ledger comes first, since lines of roll-ups that it does not know of do not count.
            names = (*_LINES, *_there(folder.path, (ledger_file.NAME, *_rollups())))
            self._lines = {
                name: (files.enter_context(file), os.fstat(file.fileno()).st_size)
                for name, file in ((name, folder.open_file(name)) for name in names)
            }
            self._files = files.pop_all()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files that it holds open."""
        self._files.close()

    def large(self) -> dict[str, BinaryIO]:
        """Checkpoints and events of earlier on, which do not change, by their paths in the run
        folder."""
        return self._large

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """The small files, by their paths."""
        configs = (each.name for each in self.folder.glob("config-*.yaml"))
        for name in (*_SMALL, *sorted(filter(PLACES.fullmatch, configs))):
            if (self.folder / name).exists():
                yield name, (self.folder / name).read_bytes()
        for name, (file, nbytes) in self._lines.items():
            file.seek(0)
            yield name, file.read(nbytes)
        yield JOURNAL, self._journal

    def further(self) -> Iterator[tuple[str, Path]]:
        """Pictures and exported weights."""
        for folder in _FOLDERS:
            for path in sorted((self.folder / folder).rglob("*")):
                name = path.relative_to(self.folder).as_posix()
                if PLACES.fullmatch(name) and path.is_file() and not path.is_symlink():
                    yield name, path


def _rollups() -> Iterator[str]:
    """Their files. A newer one comes first, since it may become the older one meanwhile."""
    for level in rollups.LEVELS:
        for path in rollup_files.paths_of(Path(rollups.FOLDER), level):
            yield path.as_posix()


def _there(folder: Path, names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if (folder / name).exists())


class Mirror:
    """Copies one run, again and again. Use it in one thread at a time.

    Args:
        store: the run's own folder in object storage.
        run: id of the job.
        writer: tells this mirror from any other.
    """

    def __init__(self, store: ObjectStore, run: str, writer: str) -> None:
        self._store = store
        self._run = run
        self._writer = writer
        self._last_writer = ""
        """Who wrote the manifest that this mirror found or wrote last; empty if there was none."""
        self._there: dict[str, int] | None = None
        """Sizes by checksum; None as long as nobody has looked."""
        self._checksums: dict[tuple[int, int, int, int], str] = {}
        """The checksums of large files, by what tells whether they have changed."""

    def upload(self, snapshot: Snapshot) -> Uploaded:
        """Copy what is missing, then replace the manifest, then remove what it does not name.

        Raises `MirrorError` when that fails on the way, and `RunFolderError` or `OSError` when the
        run folder cannot be read: then the manifest that was there still holds.
        """
        self._require_ours(snapshot.completed)
        if self._there is None:
            self._there = self._store.sizes("files")
        before = dict(self._there)
        files = [self._copy_file(path, file) for path, file in snapshot.large().items()]
        for path, place in snapshot.further():
            with open(place, "rb") as file:
                files.append(self._copy_file(path, file))
        files += [self._copy(path, data) for path, data in snapshot.contents()]
        manifest = Manifest(FORMAT, self._run, self._writer, snapshot.completed, tuple(files))
        self._store.write(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
        self._last_writer = self._writer
        named = {file.sha256 for file in files}
        for checksum in self._there.keys() - named:
            self._store.delete(f"files/{checksum}")
            del self._there[checksum]
        new = [nbytes for checksum, nbytes in self._there.items() if checksum not in before]
        return Uploaded(len(new), sum(new))

    def _require_ours(self, completed: int) -> None:
        """No other run, and nobody who has gone on with this one since, may lose his copy."""
        manifest = read_manifest(self._store)
        if manifest is None:
            return
        where = self._store.url
        if manifest.run != self._run:
            raise MirrorError(
                f"{where} holds another run ({manifest.run}); give another run folder or --mirror"
            )
        self._last_writer = self._last_writer or manifest.writer
        if manifest.writer not in (self._writer, self._last_writer):
            raise MirrorError(f"{where}: another coordinator has gone on with this run; cancel one")
        if manifest.completed > completed:
            raise MirrorError(
                f"{where} holds this run after {manifest.completed} iterations, and here it has"
                f" {completed}; go on from there with `spotlight restore`, or give another --mirror"
            )

    def _copy(self, path: str, data: bytes) -> MirroredFile:
        checksum = hashlib.sha256(data).hexdigest()
        if self._lacks(checksum, len(data)):
            self._store.write(f"files/{checksum}", data)
            self._note(checksum, len(data))
        return MirroredFile(path, len(data), checksum)

    def _copy_file(self, path: str, file: BinaryIO) -> MirroredFile:
        status = os.fstat(file.fileno())
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        checksum = self._checksums.get(version) or sha256_of(file)
        self._checksums[version] = checksum
        if self._lacks(checksum, status.st_size):
            self._store.upload(f"files/{checksum}", file)
            after = os.fstat(file.fileno())
            if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
                self._store.delete(f"files/{checksum}")
                raise MirrorError(f"{path} was changed while it was copied")
            self._note(checksum, status.st_size)
        return MirroredFile(path, status.st_size, checksum)

    def _lacks(self, checksum: str, nbytes: int) -> bool:
        return self._there is None or self._there.get(checksum) != nbytes

    def _note(self, checksum: str, nbytes: int) -> None:
        assert self._there is not None
        self._there[checksum] = nbytes


def read_manifest(store: ObjectStore) -> Manifest | None:
    """The manifest of a run's folder; None if there is none. Raises `MirrorError`."""
    data = store.read(MANIFEST, most=LARGEST_MANIFEST)
    if data is None:
        return None
    where = f"{store.url}/{MANIFEST}"
    try:
        told: Any = msgspec.json.decode(data)
        if isinstance(told, dict) and told.get("format") != FORMAT:
            raise MirrorError(f"{where} has another format; use the Spotlight that wrote it")
        return msgspec.convert(told, Manifest)
    except msgspec.MsgspecError as error:
        raise MirrorError(f"{where} is damaged: {error}") from error


def sha256_of(file: BinaryIO) -> str:
    """Of all that is in an open file."""
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
