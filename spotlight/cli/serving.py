"""What both daemons do as they begin to serve: bind their ports, and say whose option names a place
that cannot be had.
"""

from __future__ import annotations

import random

from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import ActorSystem
from spotlight.errors import UserError
from spotlight.timings import Timings
from spotlight.transport.control import KeyPair, ZeroMQSettings, ZeroMQTransport
from spotlight.transport.listening import Listening
from spotlight.transport.tensors import DataPort


def control_transport(place: Listening, keys: KeyPair, timings: Timings) -> ZeroMQTransport:
    """The transport of a daemon's control messages, which is yet to be started."""
    return ZeroMQTransport(
        place.bind,
        keys=keys,
        dialect=own_dialect(),
        advertise=place.advertise,
        settings=ZeroMQSettings(timings.connections),
    )


def actor_system(transport: ZeroMQTransport, rng: random.Random, timings: Timings) -> ActorSystem:
    """The actors of a daemon, which obey the table of who may say what."""
    return ActorSystem(transport, rng=rng, rights=MAY_SAY, timings=timings.runtime)


async def bind(system: ActorSystem, option: str) -> None:
    """Start a system of actors. Raises `UserError` that names the option."""
    try:
        await system.start()
    except UserError as error:
        raise type(error)(f"{option}: {error}") from error


async def open_port(port: DataPort, data: Listening) -> None:
    """Start a data port. Raises `UserError` that names `--data-listen`."""
    try:
        await port.start()
    except OSError as error:
        raise UserError(
            f"--data-listen {data.host}:{data.port}: {error.strerror}; name an address of this"
            " machine and a port that is free"
        ) from error
