"""An open journal, what a journal holds, and its files as a kill would leave them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotlight.store.journal import Journal

OWNER = "job-1"


@contextmanager
def opened(path: Path, owner: str = OWNER) -> Iterator[Journal]:
    journal = Journal.open(path, owner)
    try:
        yield journal
    finally:
        journal.close()


def contents(path: Path) -> dict[str, bytes]:
    with opened(path) as journal:
        return dict(journal.items())


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def copied(path: Path, folder: Path) -> Path:
    """The files as a kill would leave them now."""
    folder.mkdir(exist_ok=True)
    for file in (path, log_of(path)):
        shutil.copy(file, folder / file.name)
    return folder / path.name
