"""How a process outside finds its coordinator: by a join token (`spotlight.join_token`).

It is what the user gave, else what the environment says, else what a coordinator that runs in the
same folder has left there for its operator.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from spotlight.actors.protocol.dialect import own_dialect
from spotlight.errors import ActorError, NotAdmitted, NotAllowed, OtherVersion, UserError
from spotlight.join_token import JoinToken
from spotlight.store.secret_files import read_secret_file
from spotlight.transport.addresses import host_of, require_known
from spotlight.transport.control import Guests, ZeroMQSettings, ZeroMQTransport

VARIABLE = "SPOTLIGHT_JOIN"
"""Environment variable with a join token, or `@FILE`."""
OPERATOR_TOKEN = "operator.token"
"""File in the folder of a coordinator's runs: its operator's token."""
_RUNS = Path("runs")
_FILE = "@"


def is_given(given: str, runs: Path = _RUNS) -> bool:
    """Whether there is a token at all, given, in the environment or in the folder of the runs."""
    return bool(given or os.environ.get(VARIABLE)) or os.path.lexists(runs / OPERATOR_TOKEN)


def resolve(option: str, given: str) -> JoinToken:
    """The token that was given as text or as `@FILE`; else that of the environment, else that of
    `runs/operator.token` below the working folder.

    Raises `UserError` that names where it came from and shows nothing of a secret.
    """
    nearby = _RUNS / OPERATOR_TOKEN
    if given:
        source, text = option, given
    elif found := os.environ.get(VARIABLE, ""):
        source, text = VARIABLE, found
    elif os.path.lexists(nearby):
        source, text = option, f"{_FILE}{nearby}"
    else:
        raise UserError(
            f"{option}: there is no join token; give one as {option} TOKEN or {option} @FILE, or in"
            f" {VARIABLE}. A coordinator leaves its operator's in {OPERATOR_TOKEN} of its --runs"
            f" folder, and there is no {nearby} here"
        )
    if text.startswith(_FILE):
        try:
            text = read_secret_file(Path(text.removeprefix(_FILE)))
        except UserError as error:
            raise UserError(f"{source}: {error}") from error
    join = JoinToken.parse(source, text)
    require_known(source, host_of(join.coordinator))
    return join


def transport_of(
    join: JoinToken, bind: str = "", settings: ZeroMQSettings | None = None
) -> ZeroMQTransport:
    """One that is known by the token, and lets nobody in but the coordinator that it names. Unless
    told what to bind, it can be reached by nobody."""
    return ZeroMQTransport(
        bind or "tcp://127.0.0.1:0",
        keys=join.keys,
        guests=Guests({join.key: "coordinator"}),
        dialect=own_dialect(),
        advertise=None if bind else _unshared_place(),
        settings=settings,
    )


def _unshared_place() -> str:
    """All who have a token have its key, so the rest of their addresses must differ, whatever
    machine they are on."""
    return "tcp://127.{}.{}.{}:0".format(*secrets.token_bytes(3))


def unreached(join: JoinToken, error: ActorError) -> UserError:
    """What a user can do about a coordinator that does not do what it was asked to."""
    if isinstance(error, NotAdmitted):
        return UserError(
            f"the coordinator at {join.place} does not know this join token ({join.id}): it is"
            " mistyped or was revoked, or the coordinator keeps another --runs folder; ask its"
            " operator for a new one (`spotlight token new`)"
        )
    if isinstance(error, NotAllowed):
        return UserError(
            f"this join token ({join.id}) does not allow that; ask the coordinator's operator for"
            " one of another role (`spotlight token new --role`)"
        )
    if isinstance(error, OtherVersion):
        return UserError(str(error))
    return UserError(
        f"no answer from {join.place} ({error}); is spotlight-coordinator running there?"
    )
