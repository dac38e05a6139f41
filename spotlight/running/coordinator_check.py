"""What `spotlight doctor` finds out about the coordinator of a join token: whether it is there, is
of this build of Spotlight, and knows the token.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

from spotlight.actors.protocol.dialect import own_dialect
from spotlight.errors import ActorError, NotAllowed, UserError
from spotlight.join_token import JoinToken
from spotlight.preflight.machine import Finding
from spotlight.running.client import CoordinatorClient, connect
from spotlight.running.join_option import is_given, resolve, unreached
from spotlight.transport.addresses import host_of

_DIAL_LIMIT_S = 5.0
_PORT = 7070
"""A coordinator listens on it unless told otherwise."""


async def coordinator_findings(given: str, folder: Path) -> list[Finding]:
    """What is well and what is not between this machine and its coordinator.

    Args:
        given: the join token as text or `@FILE`; empty for that of the environment or `folder`.
    """
    if not is_given(given, folder):
        said = "none here: this machine speaks with no coordinator"
        return [Finding("join token", "ok", said), _port(None)]
    try:
        join = resolve("--join", given)
    except UserError as error:
        return [_failed("join token", error), _port(None)]
    dialled = await _dial(join)
    found = [Finding("join token", "ok", f"`{join.id}`, of the coordinator at {join.place}")]
    found.append(dialled)
    if dialled.state == "ok":
        found.append(await _ask(join))
    return [*found, _port(join if dialled.state == "ok" else None)]


async def _dial(join: JoinToken) -> Finding:
    host, port = host_of(join.coordinator.rpartition("/")[0]), join.place.rpartition(":")[2]
    try:
        async with asyncio.timeout(_DIAL_LIMIT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except TimeoutError:
        advice = "open the port in the firewall between, or see whether that machine is up"
        return Finding("connection", "fail", f"{join.place} does not answer", advice)
    except OSError as error:
        advice = "start spotlight-coordinator there, with the same --runs folder"
        said = f"{join.place}: {error.strerror or error}"
        return Finding("connection", "fail", said, advice)
    writer.close()
    return Finding("connection", "ok", f"somebody listens at {join.place}")


async def _ask(join: JoinToken) -> Finding:
    began = time.perf_counter()
    try:
        async with connect(join) as client:
            said = await _what_it_says(client, join)
    except ActorError as error:
        return _failed("coordinator", unreached(join, error))
    except UserError as error:
        return _failed("coordinator", error)
    seconds = time.perf_counter() - began
    build = own_dialect()
    return Finding("coordinator", "ok", f"{said}, same build {build}, {1000 * seconds:.0f} ms")


async def _what_it_says(client: CoordinatorClient, join: JoinToken) -> str:
    try:
        await client.status()
    except NotAllowed:  # a node's token
        if end := await client.end_of(join):
            raise UserError(end) from None
        return "lets nodes in by this token"
    return "answers"


def _failed(what: str, error: UserError) -> Finding:
    """What an error says, and behind its semicolon what to do."""
    problem, _, advice = str(error).partition("; ")
    return Finding(what, "fail", problem, advice)


def _port(join: JoinToken | None) -> Finding:
    """Whether a coordinator could begin to listen here; `join`: somebody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _PORT))
        except OSError as error:
            if join is not None and join.place.endswith(f":{_PORT}"):
                return Finding("port", "ok", f"{_PORT} is the coordinator's")
            advice = "start a coordinator here with another --listen"
            return Finding("port", "warn", f"{_PORT}: {error.strerror}", advice)
    return Finding("port", "ok", f"{_PORT} is free for a coordinator")
