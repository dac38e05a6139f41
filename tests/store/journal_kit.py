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


def copied(path: Path, folder: Path) -> Path:
    """The file as a kill would leave it now."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(path, folder / path.name))
