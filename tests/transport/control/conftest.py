"""A service that a good peer asks all the while, none of whose asks may fail, and raw peers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import zmq
from bad_input_kit import Service
from transport_kit import RAW_KEYS, RawPeer

from spotlight.timings import ConnectionTimings
from spotlight.transport.control import KeyPair
from spotlight.transport.control.zeromq_settings import ZeroMQSettings


@pytest.fixture
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    changes = dict(getattr(request, "param", {}))
    times = changes.pop("times", {})
    settings = ZeroMQSettings(
        times=ConnectionTimings(connect_timeout_s=1.0, handshake_timeout_s=0.7, **times), **changes
    )
    made = Service(settings)
    await made.start()
    await made.goes_on()
    yield made
    await made.goes_on()
    await made.stop()


@pytest.fixture
def raw() -> Iterator[Callable[..., RawPeer]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[RawPeer] = []

    def raw(keys: KeyPair = RAW_KEYS, kind: int = zmq.DEALER) -> RawPeer:
        made.append(RawPeer(context, keys, kind))
        return made[-1]

    yield raw
    for peer in made:
        peer.socket.close(0)
    context.term()
