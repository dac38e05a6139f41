"""Whom the coordinator lets in: the book of keys, on the disk and at the transport.

Every change is in force at once: keys that were let in are guests of the transport, and the
connections of those that are not any more have ended. It is `saved` before it is answered.

In the file, which nobody else may read, there are public keys alone: with it nobody can join.
"""

from __future__ import annotations

import asyncio
import secrets
import string
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from spotlight.actors.protocol.door import (
    AccessRevoked,
    Enroll,
    Enrolled,
    GuestList,
    KnownNode,
    KnownToken,
    NameUnknown,
    NotEnrolled,
)
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import RunFolderError
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.policies.door.key_book import KeyBook, Passport, Refusal, SavedBook, Token
from spotlight.store.secret_files import read_secret_file, write_secret_file
from spotlight.text import plain
from spotlight.timings import DoorTimings
from spotlight.transport.control import ControlTransport, Dialect
from spotlight.transport.control.keys import KeyPair, key_of, place_of
from spotlight.types import HIGHEST_PRIORITY, Pool, TokenRole

log = structlog.get_logger(__name__)

REFUSALS_LOG_S = 600.0
"""Seconds between two lines of the same refusal: who is refused tries again and again."""

OPERATOR = "operator"
"""Whose everything is that belongs to no submitter."""
VERSION = 1
_ID_LETTERS = string.ascii_lowercase + string.digits
_ID_LENGTH = 6
_LARGEST = 256 * 1024 * 1024
"""Bytes of a file."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    book: msgspec.Raw


class KeyRing:
    """See the module's docstring.

    Args:
        transport: of the coordinator's process, before it starts: nobody is refused meanwhile who
            may come in.
        path: where the book is kept; None for nowhere, as in a cluster whose keys are all handed
            to its processes. Raises `UnreadableFile` or `RunFolderError` if it cannot be used.
        clock: the wall clock, seconds.
        random_bytes: source of secrets.
    """

    def __init__(
        self,
        transport: ControlTransport,
        path: Path | None = None,
        *,
        timings: DoorTimings = DoorTimings(),
        clock: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.timings = timings
        self._transport = transport
        self._path = path
        self._clock = clock
        self._random_bytes = random_bytes
        saved = SavedBook() if path is None else _read(path)
        try:
            self._book = KeyBook(key_of(transport.address), timings, saved=saved, now=self._clock())
        except ValueError as error:
            raise _damaged(path, str(error)) from error
        self._refusals_log = LimitedLog(log, REFUSALS_LOG_S)
        self._changes = 0
        self._written = 0
        """How many of them are on the disk."""
        self._written_at = self._clock()
        self._writing = asyncio.Lock()
        self._follow("known from before")

    # --- questions ---

    def passport(self, address: str) -> Passport | None:
        """Who a process is, by the key in its address; None if it is not to be let in."""
        return self._book.passport(key_of(address), self._clock())

    def user(self, address: str) -> str:
        """To whom belongs what a process submits: the id of a submitter's token, or the operators;
        empty if it may submit nothing. Who runs in the coordinator's process is an operator."""
        if address == self._transport.address:
            return OPERATOR
        passport = self.passport(address)
        if passport is None or passport.role not in ("operator", "submitter"):
            return ""
        return OPERATOR if passport.role == "operator" else passport.token

    def highest_priority(self, address: str) -> int:
        """The highest priority that a process may give to a job; any from the coordinator's own."""
        if address == self._transport.address:
            return HIGHEST_PRIORITY
        return self._book.highest_priority(key_of(address), self._clock())

    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    def knows(self, join: JoinToken) -> bool:
        """Whether a user's token was made here and has not ended, and leads here."""
        passport = self._book.passport(join.keys.public, self._clock())
        return (
            passport is not None
            and passport.token == join.id
            and passport.role != "joiner"
            and join.coordinator == self._transport.address
        )

    def guest_list(self, own: Dialect, others: Mapping[str, Dialect]) -> GuestList:
        """For people. `others` is what those speak, by key, that were not understood."""
        now, book = self._clock(), self._book
        tokens = tuple(
            KnownToken(
                token.id,
                token.role,
                token.pool,
                max(0, token.uses - token.used),
                None if token.expires_at is None else token.expires_at - now,
                token.revoked_at is not None,
                token.priority,
                _build(others, token.key),
            )
            for token in book.tokens
        )
        nodes = tuple(
            KnownNode(
                node.name,
                node.pool,
                node.token,
                book.is_there(node.name),
                _build(others, node.key),
                node.revoked_at is not None,
            )
            for node in book.nodes
        )
        return GuestList(tokens, nodes, str(own))

    # --- those who need no token ---

    def admit_user(self, name: str, key: str, role: TokenRole) -> None:
        """Somebody for whom whoever started this process vouches."""
        self._book.add_token(Token(name, key, role, None, 1, None))
        self._follow("")

    def admit_node(self, name: str, key: str, pool: Pool) -> None:
        """A node that whoever started this process vouches for."""
        self._book.admit(name, key, pool, self._clock())
        self._follow("")

    # --- events ---

    def new_token(
        self,
        role: TokenRole,
        pool: Pool | None = None,
        uses: int = 1,
        ttl_s: float | None = None,
        priority: int = 0,
    ) -> JoinToken:
        """Make a token, which nobody keeps here; `ttl_s` None for one that does not expire. Raises
        `ValueError` if it has no pool and is for nodes, or has one and is not, and if it has a
        priority and is not for a submitter."""
        secret = self._random_bytes(SECRET_BYTES)
        known = {token.id for token in self._book.tokens} | {it.name for it in self._book.nodes}
        while (token_id := self._new_id()) in known:
            pass
        expires_at = None if ttl_s is None else self._clock() + ttl_s
        key = KeyPair.derived(secret).public
        self._book.add_token(Token(token_id, key, role, pool, uses, expires_at, priority=priority))
        self._follow("")
        log.info(
            "token_made",
            token=token_id,
            role=role,
            pool=pool,
            uses=uses,
            ttl_s=ttl_s,
            priority=priority,
        )
        place = place_of(self._transport.address).partition("://")[2]
        return JoinToken(place, key_of(self._transport.address), token_id, secret)

    def enroll(self, by: str, request: Enroll) -> Enrolled | NotEnrolled:
        """The process at the address `by` wants a node to be let in."""
        answer = self._book.enroll(
            key_of(by), request.node, request.key, request.pool, self._clock()
        )
        self._follow("another process has its name, or it was away for too long")
        if isinstance(answer, Refusal):
            node, reason = request.node, answer.reason
            about = node, reason  # whoever has a token may ask for ever
            self._refusals_log.info("node_not_enrolled", about=about, node=node, reason=reason)
            return NotEnrolled(
                answer.reason, answer.soon, answer.is_expected, token_ended=answer.token_ended
            )
        log.info("node_enrolled", node=request.node, pool=answer, key=request.key)
        return Enrolled(request.node, answer)

    def report(self, node: str, pool: Pool, address: str, workers: Iterable[str]) -> str:
        """A process says that it is that node, and that these are addresses of its workers; returns
        why it is not, or they cannot be; empty if all is well."""
        passport = self.passport(address)
        if passport is None or passport.role != "node":
            return "this process is not known as a node; join again with a token for nodes"
        if (passport.name, passport.pool) != (node, pool):
            return (
                f"the key of this process is that of the node `{passport.name}` of the pool"
                f" {passport.pool}, and not of `{node}` of the pool {pool}; start it as what it"
                " has enrolled as"
            )
        refusal = self._book.report(key_of(address), map(key_of, workers), self._clock())
        self._follow("")
        return "" if refusal is None else refusal.reason

    def gone(self, address: str) -> None:
        """No process is there any more."""
        self._book.gone(key_of(address), self._clock())

    def revoke(self, name: str) -> AccessRevoked | NameUnknown:
        """Let a node, or whoever has a token, in no more; connections have ended on return."""
        revocation = self._book.revoke(name, self._clock())
        self._follow("revoked by the operator")
        if revocation is None:
            return NameUnknown(
                tuple(node.name for node in self._book.nodes),
                tuple(token.id for token in self._book.tokens),
            )
        log.warning("access_revoked", name=name)
        return AccessRevoked(revocation.tokens, revocation.nodes)

    def sweep(self) -> None:
        """Time has passed."""
        self._book.sweep(self._clock())
        self._follow("its time is over")

    # --- the disk ---

    async def saved(self) -> None:
        """Return when all that was changed until now is on the disk; those who wait at the same
        time share a write. Raises `RunFolderError`."""
        wanted = self._changes
        async with self._writing:
            written, now = self._changes, self._clock()
            is_fresh = abs(now - self._written_at) < self.timings.note_s  # of when who was seen
            if self._path is None or (self._written >= wanted and is_fresh):
                return
            book = msgspec.Raw(msgspec.json.encode(self._book.saved(now)))
            text = msgspec.json.encode(_File(VERSION, book)).decode()
            try:
                await asyncio.to_thread(write_secret_file, self._path, text)
            except OSError as error:
                raise RunFolderError(
                    f"{self._path}: {error.strerror}; whom the coordinator knows cannot be written"
                    " down, and is forgotten when it ends: make room there"
                ) from error
            self._written, self._written_at = written, now

    # --- inside ---

    def _follow(self, reason: str) -> None:
        """Have the transport let in whom the book lets in."""
        changed, guests = self._book.take_changed(), self._transport.guests
        self._changes += bool(changed)
        now = self._clock()
        for key in changed:
            passport = self._book.passport(key, now)
            role = None if passport is None else passport.role
            known = guests.role(key)
            if known is not None and known != role:
                self._transport.dismiss(key, reason)
            if role is not None:
                guests.admit(key, role)

    def _new_id(self) -> str:
        number = int.from_bytes(self._random_bytes(8), "big")
        letters = []
        for _ in range(_ID_LENGTH):
            number, index = divmod(number, len(_ID_LETTERS))
            letters.append(_ID_LETTERS[index])
        return "".join(letters)


def _read(path: Path) -> SavedBook:
    if not path.exists() and not path.is_symlink():
        return SavedBook()
    text = read_secret_file(path, most=_LARGEST)
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if file.version != VERSION:
        raise RunFolderError(
            f"{path} is of another version of Spotlight (its format is {file.version}, and this one"
            f" reads {VERSION}); use that version, or move the file away: then everybody needs a"
            " new token"
        )
    try:
        return msgspec.json.decode(file.book, type=SavedBook)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _build(others: Mapping[str, Dialect], key: str) -> str:
    return str(others[key]) if key in others else ""


def _damaged(path: Path | None, problem: str) -> RunFolderError:
    return RunFolderError(
        f"{path} is damaged ({plain(problem)}); put it back from a copy, or move it away: then"
        " everybody needs a new token"
    )


def door_file(runs: Path) -> Path:
    """Where a coordinator keeps its book, in the folder of its runs."""
    return runs / ".door.json"
