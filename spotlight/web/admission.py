"""Who may look at the page: everybody on this machine, whoever has the link that was printed, or
whoever has a join token of the coordinator's for people.

A token is shown once, as a bearer token or by signing in. Browsers get a cookie for it, which is
good for as long as the token is and this process lives: it has no power over jobs, and no token can
be made from it. Only those who have the token could have it, since it is signed with a secret of
this process.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import msgspec

from spotlight.errors import UserError
from spotlight.http_rules import same_secret
from spotlight.join_token import JoinToken
from spotlight.policies.door.key_book import Token, end_of
from spotlight.store.secret_files import read_secret_file
from spotlight.web.refusing import Refused

_LARGEST_BOOK = 256 * 1024 * 1024
_AGAIN = "sign in again with another token"


class Admission(Protocol):
    """Knows tokens by their names."""

    def name_of(self, token: str) -> str:
        """The name of a token that lets its holder look. Raises `Refused` for others."""
        ...

    def key_of(self, name: str) -> str:
        """What only that token has; raises `Refused` if it lets nobody look any more."""
        ...


class LinkAdmission:
    """One token, which is part of the link that is printed when the server starts."""

    NAME = "link"

    def __init__(self, token: str) -> None:
        self._token = token

    def name_of(self, token: str) -> str:
        """See `Admission`."""
        if not same_secret(token, self._token):
            raise _unknown("it is that of the link which the command has printed")
        return self.NAME

    def key_of(self, name: str) -> str:
        """See `Admission`."""
        if name != self.NAME:
            raise _unknown("the server was started again; use the link that it has printed")
        return self._token


class _Book(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...]


class _File(msgspec.Struct, frozen=True):
    book: _Book


class DoorAdmission:
    """The coordinator's tokens for people, by what it has written down of them. What it revokes is
    on the disk before it says so.

    Args:
        file: of whom the coordinator knows, in the folder of its runs.
        clock: the wall clock, seconds.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: Mapping[str, Token] = {}

    def name_of(self, token: str) -> str:
        """See `Admission`."""
        try:
            join = JoinToken.parse("token", token)
        except UserError as error:
            raise Refused(HTTPStatus.UNAUTHORIZED, str(error)) from error
        if not hmac.compare_digest(self.key_of(join.id), join.keys.public):
            raise _unknown("ask whoever runs the coordinator for one: `spotlight token new`")
        return join.id

    def key_of(self, name: str) -> str:
        """See `Admission`."""
        token = self._known().get(name)
        if token is None:
            raise _unknown("ask whoever runs the coordinator for one: `spotlight token new`")
        if token.role == "node":
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"the join token `{token.id}` is for nodes and shows nothing; ask whoever runs the"
                " coordinator for one to look: `spotlight token new --role observer`",
            )
        if end := end_of(token, self._clock()):
            raise Refused(HTTPStatus.UNAUTHORIZED, f"the join token `{token.id}` {end}; {_AGAIN}")
        return token.key

    def _known(self) -> Mapping[str, Token]:
        try:
            status = os.stat(self._file)
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if stamp != self._stamp:
                text = read_secret_file(self._file, most=_LARGEST_BOOK)
                book = msgspec.json.decode(text, type=_File).book
                self._tokens = {token.id: token for token in book.tokens}
                self._stamp = stamp
        except (OSError, UserError, msgspec.MsgspecError) as error:
            self._stamp = None
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "whom the coordinator knows cannot be read; its log says why",
                {"Retry-After": "5"},
            ) from error
        return self._tokens


class Cookies:
    """Cookies for tokens that were shown; see the module's docstring."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._secret = secrets.token_bytes(32)

    def bake(self, name: str) -> str:
        """The cookie for whoever has shown the token of that name."""
        return f"{name}.{self._sign(name, self._admission.key_of(name))}"

    def name_in(self, cookie: str) -> str:
        """The name of the token that it is for. Raises `Refused` unless that is good still."""
        name, _, signed = cookie.partition(".")
        if not same_secret(signed, self._sign(name, self._admission.key_of(name))):
            raise Refused(HTTPStatus.UNAUTHORIZED, f"the server was started again; {_AGAIN}")
        return name

    def _sign(self, name: str, key: str) -> str:
        return hmac.new(self._secret, f"{name}.{key}".encode(), hashlib.sha256).hexdigest()


def new_link_token() -> str:
    """One that nobody can guess."""
    return secrets.token_urlsafe(24)


def _unknown(what_to_do: str) -> Refused:
    return Refused(HTTPStatus.UNAUTHORIZED, f"this token is not known here; {what_to_do}")
