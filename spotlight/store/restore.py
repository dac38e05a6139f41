"""Brings a run back from object storage, onto a machine that has nothing of it.

Everything is checked before the run folder appears under its name: it is there whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from spotlight.errors import MirrorError, RunFolderError
from spotlight.store import journal, sqlite_journal
from spotlight.store.mirror import (
    MANIFEST,
    PLACES,
    Manifest,
    MirroredFile,
    read_manifest,
    sha256_of,
)
from spotlight.store.object_store import ObjectStore
from spotlight.store.record_files import METRICS, NEWEST

_NEEDED = ("config.yaml", METRICS, NEWEST)
_JOURNALS = (journal.NAME, sqlite_journal.NAME)
"""One of them is needed, too: the later is of a run that 0.1.0 copied."""
_TRIES = 5
"""A coordinator may replace the manifest while its files are fetched, so often."""


class _Gone(Exception):
    """A file that the manifest names is not there."""


def restore(store: ObjectStore, folder: Path) -> Manifest:
    """Make `folder`, which is not there or empty, the run folder that `store` holds a copy of;
    returns what came.

    Raises `MirrorError` that names the file that is missing or damaged, and `RunFolderError` when
    the disk of this machine refuses.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise RunFolderError(f"{folder} is not empty; give another run folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
            whole = Path(place) / folder.name
            manifest = _fetch(store, whole)
            os.replace(whole, folder)
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or folder}: {error.strerror}; give a run folder that can be written"
        ) from error
    return manifest


def _fetch(store: ObjectStore, whole: Path) -> Manifest:
    before: Manifest | None = None
    for _ in range(_TRIES):
        manifest = read_manifest(store)
        if manifest is None:
            raise MirrorError(
                f"{store.url} holds no run: there is no {MANIFEST}; give the --mirror of the run"
                " followed by the name of its run folder"
            )
        _require_sound(store, manifest)
        shutil.rmtree(whole, ignore_errors=True)
        try:
            for file in manifest.files:
                _fetch_file(store, file, whole)
            return manifest
        except _Gone as error:
            if manifest == before:
                raise MirrorError(str(error)) from error
            before = manifest
    raise MirrorError(f"{store.url} changed {_TRIES} times while it was read; try again later")


def _fetch_file(store: ObjectStore, file: MirroredFile, whole: Path) -> None:
    target = whole / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f"files/{file.sha256}"
    if not store.download(name, target):
        raise _Gone(f"{file.path}: {store.url}/{name} is missing")
    with open(target, "rb") as arrived:
        nbytes = os.fstat(arrived.fileno()).st_size
        if (nbytes, sha256_of(arrived)) != (file.nbytes, file.sha256):
            raise MirrorError(
                f"{file.path} is damaged: {store.url}/{name} has {nbytes} bytes, not the"
                f" {file.nbytes} with the checksum that the manifest names"
            )
        os.fsync(arrived.fileno())


def _require_sound(store: ObjectStore, manifest: Manifest) -> None:
    where = f"{store.url}/{MANIFEST}"
    for file in manifest.files:
        if not PLACES.fullmatch(file.path):
            raise MirrorError(f"{where} names {file.path!r}, which is no file of a run")
        if not re.fullmatch("[0-9a-f]{64}", file.sha256) or file.nbytes < 0:
            raise MirrorError(f"{where} has no checksum and size of {file.path}")
    times = Counter(file.path for file in manifest.files)
    for path, count in times.items():
        if count > 1:
            raise MirrorError(f"{where} names {path} {count} times")
    kept = [path for path in _JOURNALS if path in times]
    for path in (*_NEEDED, *(kept or _JOURNALS[:1])):
        if path not in times:
            raise MirrorError(f"{where} does not name {path}, which a run needs")
