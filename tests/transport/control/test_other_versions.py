"""Peers of another version are refused, and both sides say what to do."""

from __future__ import annotations

import asyncio
import sys

import msgpack
import pytest
import structlog
import zmq
from bad_input_kit import Count, Raw, Service
from transport_kit import WITHIN_S

from spotlight.actors.runtime import ActorRef
from spotlight.errors import PeerUnreachable
from spotlight.transport.control import PROTOCOL_VERSION

OLDER_NODE = """
import asyncio, random, sys
from spotlight.transport.control import codec
codec.PROTOCOL_VERSION += 1
from spotlight.actors.runtime import remote
from spotlight.transport.control import links, wire, zeromq
for module in (remote, links, wire, zeromq):
    module.PROTOCOL_VERSION = codec.PROTOCOL_VERSION
from spotlight.actors.runtime.envelopes import Done
from spotlight.actors.runtime import ActorSystem
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody

async def main():
    transport = zeromq.ZeroMQTransport(guests=Everybody())
    system = ActorSystem(transport, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
    await system.start()
    try:
        await system.ask(system.well_known(sys.argv[1], "counter"), Done(), timeout_s=10.0)
    except Exception as error:
        print(type(error).__name__, error)
    await system.aclose()

asyncio.run(main())
"""


async def test_a_node_of_another_version_and_its_peer_both_say_what_to_do(
    service: Service,
) -> None:
    with structlog.testing.capture_logs() as logs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OLDER_NODE, service.system.address, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), WITHIN_S * 2)
    advice = (
        f"speaks protocol version {PROTOCOL_VERSION + 1}, the receiver {PROTOCOL_VERSION}; "
        "install the same version of Spotlight on both machines"
    )
    there = output.decode()
    assert "PeerUnreachable" in there
    assert advice in there
    assert "peer_lost" in there  # its log
    assert service.rejected == {"unknown_version": 1}
    assert any(advice in str(line.get("detail")) for line in logs)


@pytest.mark.parametrize(
    "welcome",
    [
        {"type": "Welcome", "version": 99, "address": "tcp://x:1", "incarnation": 5},
        {"type": "Welcome", "version": 99, "whatever": [1, 2]},
    ],
)
async def test_a_welcome_of_another_version_fails_the_ask_with_the_versions(
    service: Service, raw: Raw, welcome: dict[str, object]
) -> None:
    server = raw(kind=zmq.ROUTER)
    address = server.bind()
    asking = asyncio.ensure_future(
        service.client.ask(ActorRef(address, "x", 0), Count(), timeout_s=WITHIN_S)
    )
    identity = await server.receive()
    await server.receive()
    server.socket.send_multipart([identity, msgpack.packb(welcome)])
    with pytest.raises(PeerUnreachable, match=r"version 99.*same version"):
        await asking


@pytest.mark.parametrize("hello", [{"type": "Hello", "version": 2, "name": {"x": 1}}])
async def test_a_greeting_that_only_a_later_version_understands_is_refused_by_its_version(
    service: Service, raw: Raw, hello: dict[str, object]
) -> None:
    peer = raw()
    peer.connect(service.transport.address)
    peer.socket.send(msgpack.packb(hello))
    refusal = msgpack.unpackb(await peer.receive())
    assert "same version" in refusal["reason"]
    assert service.rejected == {"unknown_version": 1}
