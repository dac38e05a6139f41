"""The journal of a run: keyed records that survive a kill at any instruction.

One file (`journal_content`), to which every write is appended. It is on disk before `write`
returns, so what is acknowledged after that is never lost. All records are in memory as well. When
most of the file is of records that are gone, it is written anew under another name, which then
takes its place. After a failed write the journal takes no more: what the disk holds is known again
only to a process that opens it anew.

A journal of Spotlight 0.1.0 (`sqlite_journal`) is read once, and replaced when it is begun.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from spotlight import failpoints
from spotlight.errors import JournalError, JournalInUse, JournalUnwritable
from spotlight.store import sqlite_journal
from spotlight.store.journal_content import Content, Record, change, damaged, frame
from spotlight.store.record_formats import brought_up

NAME = "journal.records"
LEAST_WASTE = 4 << 20
"""A file is not written anew for fewer bytes of records that are gone."""


class Journal:
    """An open journal. Use it in the thread that opened it, and `close` it.

    It holds a lock on its file. Until it has begun, all is as it was found.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped = ""
        """What of a torn tail was dropped at opening, in words; empty if nothing."""
        self._content = Content(path)
        self._file: int | None = None
        """Descriptor of the file; None before there is one."""
        self._live_bytes = 0
        """Bytes of the file, if it had been written anew when it was opened or was written anew
        last."""
        self._has_begun = False
        self.was_taken_over = False
        """It was read from a journal of 0.1.0 just now."""
        self._refusal: JournalError | None = None
        """Why it takes no more; None while it does."""

    @classmethod
    def open(cls, path: Path, owner: str, *, least_term: int = 0) -> Journal:
        """The journal at `path`, begun (see `read` and `begin`)."""
        journal = cls.read(path, owner, least_term=least_term)
        try:
            journal.begin()
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def read(cls, path: Path, owner: str | None, *, least_term: int = 0) -> Journal:
        """The journal at `path`, or an empty one unless there must have been one. Nothing is
        changed on disk before it has begun.

        Args:
            owner: whose it must be; None for whoever it says.
            least_term: somebody has seen the journal in this term.

        Raises `JournalError` if it is another owner's, of another format, damaged, older than
        `least_term`, open elsewhere, or cannot be read or written.
        """
        journal = cls(path)
        try:
            with _explaining(path):
                if journal._lock_file():
                    journal._load(owner)
                elif path.name == NAME and (former := sqlite_journal.files_of(path.parent)):
                    journal._take_over(former[0], owner)
                elif least_term:
                    raise damaged(path, "is lost")
                else:
                    journal._content.owner = owner or ""
                journal._content.term += 1
                journal._refuse_older(least_term)
            return journal
        except BaseException:
            journal.close()
            raise

    @property
    def term(self) -> int:
        """How often the journal was opened, this time too: no process before had one as high."""
        return self._content.term

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._content.owner

    def begin(self, changes: Mapping[str, bytes] = {}) -> None:
        """Put the term on disk, with the first changes. Raises `JournalError`."""
        with _explaining(self.path):
            self._write(changes, ())

    def write(self, changes: Mapping[str, bytes | None], drop: Iterable[str] = ()) -> None:
        """In one step delete the keys that begin with a prefix in `drop`, then set the keys of
        `changes` (None deletes). On disk when this returns.

        Raises `JournalError` if the disk refuses: nothing of the write is there then, and every
        later one is refused.
        """
        self._require_writable()
        try:
            self._write(changes, tuple(drop))
        except OSError as error:
            self._refusal = _unwritable(self.path, error)
            raise self._refusal from error
        failpoints.reach("journal.after_commit")

    def items(self, prefix: str = "") -> list[tuple[str, bytes]]:
        """The records whose keys begin with `prefix`, in the order of their keys."""
        records = self._content.records
        return [(key, records[key].body) for key in sorted(records) if key.startswith(prefix)]

    def get(self, key: str) -> bytes | None:
        """The record of this key; None if there is none."""
        record = self._content.records.get(key)
        return None if record is None else record.body

    def version_of(self, key: str) -> str:
        """The version that wrote the record of this key."""
        return self._content.records[key].version

    def image(self, without: tuple[str, ...] = ()) -> bytes:
        """The journal as it is now but for the records that begin so, as the bytes of a file that
        `open` takes.

        Raises `JournalError` if it takes no more.
        """
        self._require_writable()
        return self._content.encoded(without)

    def close(self) -> None:
        """Release the file; a second call does nothing. A last, empty write tells a change of the
        one before it from a torn tail; there is no harm without it."""
        if self._file is not None:
            if self._has_begun and not self._refusal:
                with suppress(OSError):
                    os.write(self._file, frame(change(self.term, {}, ()), self._content.nbytes))
            os.close(self._file)
            self._file = None
        if self._refusal is None:
            self._refusal = JournalError(f"{self.path} is closed", "open it again to write")

    # --- opening ---

    def _lock_file(self) -> bool:
        """Open the file and lock it; False if there is none."""
        while True:
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            _lock(self.path, self._file)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), self.path.stat()):
                    return True
            os.close(self._file)  # another took its place meanwhile
            self._file = None

    def _load(self, owner: str | None) -> None:
        data = self.path.read_bytes()
        self._content = Content.of(self.path, data)
        self._live_bytes = self._content.live_bytes
        if owner not in (None, self.owner):
            raise JournalError(
                f"{self.path} belongs to the run {self.owner}, not to {owner}",
                "put back the one of this run, or give another --run-folder",
            )
        torn = len(data) - self._content.nbytes
        if torn:
            self.dropped = f"{torn} bytes at the end of {self.path}: a write that a crash broke off"

    def _take_over(self, database: Path, owner: str | None) -> None:
        former = sqlite_journal.read(database)
        self.was_taken_over = True
        self._content.owner = owner or former.owner
        self._content.term = former.term
        self._content.records = {
            key: Record(brought_up(key, 1, body), sqlite_journal.VERSION)
            for key, body in former.records.items()
        }

    def _refuse_older(self, least_term: int) -> None:
        """What was written last is lost: an older file was put in the place of the journal."""
        opened = self.term - 1
        if opened < least_term:
            raise damaged(
                self.path,
                f"is older than the files beside it (it was opened {opened} times, and they say"
                f" {least_term})",
            )

    # --- writing ---

    def _require_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def _write(self, changes: Mapping[str, bytes | None], drop: tuple[str, ...]) -> None:
        write = change(self.term, changes, drop)
        try:
            failpoints.reach("journal.before_commit")
            if self._file is None or self._content.nbytes > 2 * self._live_bytes + LEAST_WASTE:
                self._replace_file()
            failpoints.reach("journal.commit")
            self._append(frame(write, self._content.nbytes))
        except BaseException:
            problem = f"{self.path}: a write was interrupted"
            self._refusal = JournalError(problem, "continue with --resume")
            raise
        self._content.apply(write)

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        end = self._content.nbytes
        try:
            if self.dropped and not self._has_begun:
                os.truncate(self._file, end)
            _write_whole(self._file, data)
            os.fdatasync(self._file)
        except OSError:  # it may stand in the file, and come back
            with suppress(OSError):
                os.truncate(self._file, end)
            raise
        self._content.nbytes += len(data)
        self._has_begun = True

    def _replace_file(self) -> None:
        """Write the file anew, with nothing that is gone: the former or the new one is there whole,
        whenever the process ends."""
        data = self._content.encoded()
        part = self.path.with_name(self.path.name + ".part")
        part.unlink(missing_ok=True)  # left by a crash
        file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            _lock(self.path, file)
            _write_whole(file, data)
            os.fsync(file)
            os.replace(part, self.path)
            _sync_folder(self.path.parent)
        except BaseException:
            os.close(file)
            raise
        if self._file is not None:
            os.close(self._file)
        self._file, self._content.nbytes, self._live_bytes = file, len(data), len(data)
        if self.path.name == NAME:
            for former in sqlite_journal.files_of(self.path.parent):
                former.unlink()


def _lock(path: Path, file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        problem = f"{path} is in use by another coordinator"
        raise JournalInUse(problem, "cancel that job first") from error


def _write_whole(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> JournalUnwritable:
    where, reason = error.filename or path, error.strerror or str(error)
    return JournalUnwritable(
        f"{where}: {reason}", "free some space or repair the disk, then continue with --resume"
    )
