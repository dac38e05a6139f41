"""The file `ledger.json` of a run folder, or of the folder of all runs, which accounts for the time
without a job.

It is replaced at once (write, fsync, rename), so that it is either the old or the new one after a
crash.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from spotlight.errors import RunFolderError, UnreadableFile
from spotlight.files import read_bytes
from spotlight.record.ledger import Ledger
from spotlight.store.run_folder import replace_file

NAME = "ledger.json"
FORMAT = 1
LARGEST = 256 << 20
"""Bytes that are read of it."""
_OR = "put it back from a copy, or remove it: then what was spent until now is not accounted for"


class _Head(msgspec.Struct, frozen=True):
    format: int


_HEAD = msgspec.json.Decoder(_Head)
_LEDGER = msgspec.json.Decoder(Ledger)


def read_ledger(folder: Path) -> Ledger:
    """An empty one where there is none yet. Raises `RunFolderError` naming a file that is damaged
    or of a later version."""
    path = folder / NAME
    try:
        data = read_bytes(path, most=LARGEST)
    except UnreadableFile as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return Ledger()
        raise RunFolderError(f"{path} {error.problem}; {_OR}") from error
    try:
        head = _HEAD.decode(data)
        if head.format > FORMAT:
            raise RunFolderError(
                f"{path} has format {head.format}, of a later Spotlight, and this one knows"
                f" {FORMAT}; use the Spotlight that wrote it"
            )
        return _LEDGER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} is damaged ({error}); {_OR}") from error


def write_ledger(folder: Path, ledger: Ledger) -> None:
    """Replace the file. Raises `RunFolderError`."""
    path = folder / NAME
    try:
        replace_file(path, msgspec.json.encode(ledger) + b"\n")
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or path}: {error.strerror or error}; free some space or give another"
            " --run-folder, then continue with --resume"
        ) from error


def set_ledger_aside(folder: Path) -> None:
    """Let another one begin; what is there stays, under another name. Raises `RunFolderError`."""
    path = folder / NAME
    try:
        os.replace(path, path.with_name(f"{NAME}.damaged"))
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror or error}") from error
