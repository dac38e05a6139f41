"""The journal of a run: keyed records that survive a kill at any instruction.

One SQLite file. A write is one transaction and on disk before it returns, so whatever is
acknowledged after it is never lost. Every record has a checksum, and there is a tally of them all,
because neither a changed nor a missing record may pass for the truth. After a failed write the
journal takes no more: what the disk holds is known again only to a process that opens it anew.

The log (`-wal`) is never reused from its beginning but emptied, at opening and when it is long, so
that its end is the end of the last write, and a failed write can be cut off.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from spotlight import failpoints
from spotlight.errors import JournalError
from spotlight.store.wal import WalDamaged, torn_bytes

FORMAT = 2
"""Version of the tables below."""
LOG_BYTES = 4 << 20
"""A log longer than this is moved into the database before the next write."""

_TABLES = (
    "CREATE TABLE record (key BLOB PRIMARY KEY, body BLOB, crc INTEGER) WITHOUT ROWID",
    "CREATE TABLE state (owner TEXT, term INTEGER, records INTEGER, crcs INTEGER, crc INTEGER)",
)
_FULL_OR_BROKEN = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


class _State(NamedTuple):
    """The row of the table `state`, without its checksum."""

    owner: str
    term: int
    records: int
    crcs: int
    """Sum of the checksums of all records."""

    def crc(self) -> int:
        return zlib.crc32(ascii(tuple(self)).encode())


class _Change(NamedTuple):
    key: bytes
    body: bytes | None
    """None: the record goes."""
    crc: int


class Journal:
    """An open journal. Use it in the thread that opened it, and `close` it.

    Args:
        connection: verified.
        dropped: see the attribute.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, state: _State, dropped: str
    ) -> None:
        self.path = path
        self.dropped = dropped
        """What of a torn tail was dropped at opening, in words; empty if nothing."""
        self._connection = connection
        self._state = state
        self._refusal = ""

    @classmethod
    def open(cls, path: Path, owner: str, *, least_term: int = 0) -> Journal:
        """The journal at `path`; created if there is none, unless there must have been one.

        Args:
            least_term: somebody has seen the journal in this term.

        Raises `JournalError` if it is another owner's, of another format, damaged, older than
        `least_term`, open elsewhere, or cannot be read or written.
        """
        with _explaining(path):
            _refuse_lone_log(path)
            if not path.exists():
                if least_term:
                    raise JournalError(_damaged(path, "is lost"))
                _create(path, owner)
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            dropped = _check_log(path)
            connection = _connect(path)
            try:
                state = _verify(path, connection, owner)
                _refuse_older(path, state, least_term)
                journal = cls(path, connection, state, dropped)
                journal._empty_log()
                journal._write([], [], terms=1)
                return journal
            except BaseException:
                connection.close()
                raise

    @property
    def term(self) -> int:
        """How often the journal was opened, on disk: no process before had one as high."""
        return self._state.term

    def write(self, changes: Mapping[str, bytes | None], drop: Iterable[str] = ()) -> None:
        """In one transaction delete the keys that begin with a prefix in `drop`, then set the keys
        of `changes` (None deletes). On disk when this returns.

        Raises `JournalError` if the disk refuses: nothing of the transaction is there then, and
        every later write is refused.
        """
        if self._refusal:
            raise JournalError(self._refusal)
        rows = [_change(key.encode(), body) for key, body in changes.items()]
        prefixes = [prefix.encode() for prefix in drop]
        try:
            self._write(prefixes, rows)
        except (OSError, sqlite3.Error) as error:
            self._refusal = _unwritable(self.path, error)
            raise JournalError(self._refusal) from error
        failpoints.reach("journal.after_commit")

    def items(self, prefix: str = "") -> list[tuple[str, bytes]]:
        """The records whose keys begin with `prefix`, in the order of their keys.

        Raises `JournalError` if one of them is damaged.
        """
        with _explaining(self.path):
            return [
                (key.decode(), body)
                for key, body, _ in _records(self.path, self._connection, prefix.encode())
            ]

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._state.owner

    def image(self) -> bytes:
        """The journal as it is now, as the bytes of a file that `open` takes.

        Raises `JournalError` if it cannot be read, or takes no more.
        """
        if self._refusal:
            raise JournalError(self._refusal)
        with _explaining(self.path):
            return self._connection.serialize()

    def close(self) -> None:
        """Release the file; a second call does nothing."""
        self._refusal = self._refusal or f"{self.path} is closed; open it again to write"
        with _explaining(self.path):
            self._connection.close()

    def _write(self, drop: list[bytes], rows: list[_Change], terms: int = 0) -> None:
        failpoints.reach("journal.before_commit")
        log = _log_of(self.path)
        if _size(log) > LOG_BYTES:
            self._empty_log()
        before = _size(log)
        try:
            state = self._prepare(drop, rows, terms)
            failpoints.reach("journal.commit")
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._refusal = f"{self.path}: a write was interrupted; continue with --resume"
            with suppress(sqlite3.Error):
                self._connection.rollback()
            if isinstance(error, sqlite3.Error):  # then it may stand in the log and come back
                with suppress(OSError):
                    os.truncate(log, before)
            raise
        self._state = state

    def _prepare(self, drop: list[bytes], rows: list[_Change], terms: int) -> _State:
        """Begin the transaction; returns the state that holds when it is committed."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        owner, term, records, crcs = self._state
        gone = [_beginning_with(prefix) for prefix in drop]
        gone += [(row.key, row.key + b"\0") for row in rows]
        for span in gone:
            query = "SELECT count(*), sum(crc) FROM record WHERE key >= ? AND key < ?"
            found, their_crcs = execute(query, span).fetchone()
            if found:
                execute("DELETE FROM record WHERE key >= ? AND key < ?", span)
                records, crcs = records - found, crcs - their_crcs
        for row in rows:
            if row.body is not None:
                execute("INSERT INTO record VALUES (?, ?, ?)", (row.key, row.body, row.crc))
                records, crcs = records + 1, crcs + row.crc
        state = _State(owner, term + terms, records, crcs)
        execute(
            "UPDATE state SET owner = ?, term = ?, records = ?, crcs = ?, crc = ?",
            (*state, state.crc()),
        )
        return state

    def _empty_log(self) -> None:
        """Move the log into the database. Between transactions, so that an error ends none."""
        (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise OSError(None, "the log could not be moved into the database", str(self.path))


def packed(image: bytes, owner: str, without: Iterable[str]) -> bytes:
    """The image of the same journal without the records that begin so, and without the room that
    they took. Raises `JournalError`, or `OSError` where there is no room for temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="spotlight-") as folder:
        path = Path(folder) / "journal.sqlite"
        path.write_bytes(image)
        journal = Journal.open(path, owner)
        try:
            journal.write({}, drop=without)
            with _explaining(path):
                journal._connection.execute("VACUUM")
        finally:
            journal.close()
        return path.read_bytes()


def _change(key: bytes, body: bytes | None) -> _Change:
    return _Change(key, body, 0 if body is None else _crc(key, body))


def _crc(key: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(b"%d %b" % (len(key), key)))


def _beginning_with(prefix: bytes) -> tuple[bytes, bytes]:
    """First key with the prefix, and first one behind them; no UTF-8 has the byte 255."""
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _size(path: Path) -> int:
    """0 also if there is no such file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _refuse_lone_log(path: Path) -> None:
    """SQLite would delete a log without a database."""
    if not _size(path) and _size(_log_of(path)):
        raise JournalError(_damaged(path, f"is lost, though its log {_log_of(path).name} is there"))


def _refuse_older(path: Path, state: _State, least_term: int) -> None:
    """What was written last is lost: an older file was put in the place of the journal, or its log
    was deleted, without which SQLite takes the database as it was before the log."""
    if state.term < least_term:
        raise JournalError(
            _damaged(
                path,
                f"is older than the files beside it (it was opened {state.term} times, and they"
                f" say {least_term}), or its log {_log_of(path).name} is lost",
            )
        )


def _check_log(path: Path) -> str:
    """What SQLite will drop of the log; refuses a log of which it would drop too much."""
    log = _log_of(path)
    try:
        torn = torn_bytes(log.read_bytes()) if log.exists() else 0
    except WalDamaged as error:
        raise JournalError(_damaged(log, f"cannot be used: {error}")) from error
    return f"{torn} bytes at the end of {log}: a write that a crash broke off" if torn else ""


def _connect(path: Path) -> sqlite3.Connection:
    """One that waits for nobody, keeps its lock, and syncs every commit."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path, owner: str) -> None:
    """Under another name first: a journal is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    for left_by_a_crash in path.parent.glob(part.name + "*"):
        left_by_a_crash.unlink()
    state = _State(owner, term=0, records=0, crcs=0)
    with closing(_connect(part)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            connection.execute(table)
        connection.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?)", (*state, state.crc()))
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _verify(path: Path, connection: sqlite3.Connection, owner: str) -> _State:
    """The state of a journal that is whole and the owner's."""

    def rows(query: str) -> list[tuple[Any, ...]]:
        return connection.execute(query).fetchall()

    if rows("PRAGMA journal_mode") != [("wal",)]:
        raise JournalError(_damaged(path, "is no journal, or its header is damaged"))
    ((version,),) = rows("PRAGMA user_version")
    if version != FORMAT:
        raise JournalError(
            f"{path} has format {version} and this Spotlight reads format {FORMAT}; resume with "
            f"the version that wrote it, {_OR_ANEW}"
        )
    problems = rows("PRAGMA quick_check(1)")
    if problems != [("ok",)]:
        raise JournalError(_damaged(path, f"is damaged ({problems[0][0].splitlines()[-1]})"))
    states = rows("SELECT * FROM state")
    if [sql for (sql,) in rows("SELECT sql FROM sqlite_schema ORDER BY rowid")] != list(_TABLES):
        raise JournalError(_damaged(path, "is damaged (its tables are not a journal's)"))
    if len(states) != 1 or _State(*states[0][:-1]).crc() != states[0][-1]:
        raise JournalError(_damaged(path, "is damaged (its state has a wrong checksum)"))
    state = _State(*states[0][:-1])
    crcs = [crc for _, _, crc in _records(path, connection, b"")]
    if (len(crcs), sum(crcs)) != (state.records, state.crcs):
        raise JournalError(
            _damaged(path, f"is damaged ({len(crcs)} records do not add up to {state.records})")
        )
    if state.owner != owner:
        raise JournalError(
            f"{path} belongs to the job {state.owner}, not to {owner}; give another --run-folder"
        )
    return state


def _records(
    path: Path, connection: sqlite3.Connection, prefix: bytes
) -> Iterator[tuple[bytes, bytes, int]]:
    """In the order of their keys, each with its checksum, which was verified."""
    for key, body, crc in connection.execute(
        "SELECT key, body, crc FROM record WHERE key >= ? AND key < ? ORDER BY key",
        _beginning_with(prefix),
    ):
        if not isinstance(key, bytes) or not isinstance(body, bytes) or _crc(key, body) != crc:
            raise JournalError(_damaged(path, f"is damaged (the record {key!r})"))
        yield key, body, crc


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalError(_unwritable(path, error)) from error
    except sqlite3.ProgrammingError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote the damage
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            text = f"{path} is in use by another coordinator; cancel that job first"
        elif code in _FULL_OR_BROKEN:
            text = _unwritable(path, error)
        else:
            text = _damaged(path, f"is damaged ({error})")
        raise JournalError(text) from error


_OR_ANEW = "or start the job again in another run folder"


def _damaged(path: Path, problem: str) -> str:
    return f"{path} {problem}; put it back from a copy, {_OR_ANEW}"


def _unwritable(path: Path, error: Exception) -> str:
    where, reason = path, str(error)
    if isinstance(error, OSError):
        where, reason = error.filename or path, error.strerror or reason
    return f"{where}: {reason}; free some space or repair the disk, then continue with --resume"
