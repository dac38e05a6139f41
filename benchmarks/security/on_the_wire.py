"""Whoever sees all that machines send to each other. What it saw of the calm run is in
`site.capture`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import msgspec

from benchmarks.security.attack import NotPossible, attack, require
from benchmarks.security.clients import host_and_port, stays_open
from benchmarks.security.network import COORDINATOR, RESERVED, SPOT
from benchmarks.security.site import Site
from benchmarks.security.sniffer import Capture
from spotlight.actors.protocol.roles import MAY_SAY

PLANTED = "planted-for-the-sniffer-0123456789"
_IN_CLEAR = (b"HTTP/1.1", b"Authorization: ", b"safetensors")


def clear_text(site: Site, capture: Capture) -> list[str]:
    """What a sniffer sees that is nobody else's business, by what it is: secrets and tokens, the
    job's fields and prompts, messages of any type, and headers of what is fetched and left."""
    needles = {name: secret.encode() for name, secret in site.secrets.items()}
    needles |= {word: word.encode() for word in site.words_of_the_job}
    for each in MAY_SAY:
        tag = msgspec.msgpack.encode({"type": each.__name__})[1:]  # without the size of the map
        needles[f"a message {each.__name__}"] = tag
    needles |= {text.decode(): text for text in _IN_CLEAR}
    return capture.seen(needles)


@attack("a sniffer reads what machines say to each other")
async def sniffing(site: Site) -> None:
    capture = _captured(site)
    require(
        bool(capture.seen({"planted": PLANTED.encode()})),
        "the sniffer does not work: it misses a planted text",
    )
    ends = {(flow.source, flow.destination) for flow in capture.streams()}
    hosts = {machine: site.network.host(machine) for machine in (COORDINATOR, RESERVED, SPOT)}
    for machine in (RESERVED, SPOT):
        pair = (hosts[machine], hosts[COORDINATOR])
        require(pair in ends, f"the sniffer does not work: it saw nothing from {machine}")
    seen = clear_text(site, capture)
    require(not seen, seen)


@attack("what a node, a worker and a user sent is sent once more, byte by byte")
async def replay(site: Site) -> None:
    """All connections to the control port that were sniffed, up to twenty."""
    control = host_and_port(site.address)
    streams = [
        data
        for flow, data in _captured(site).streams().items()
        if (flow.destination, flow.destination_port) == control and len(data) > 300
    ]
    require(bool(streams), "nothing was sniffed")
    before = await site.nodes_there()

    def attempt() -> int:
        still = 0
        for data in streams[:20]:
            with socket.create_connection(control, 10) as connection:
                with suppress(OSError):
                    connection.sendall(data)
                still += stays_open(connection, 6.0)
        return still

    still = await asyncio.to_thread(attempt)
    require(still == 0, f"{still} of {len(streams[:20])} connections stay")
    after = await site.nodes_there()
    require(after >= before, after)


def _captured(site: Site) -> Capture:
    if site.capture is None:
        raise NotPossible("there is no sniffer")
    return site.capture
