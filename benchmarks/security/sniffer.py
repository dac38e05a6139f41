"""What the attacker sees on the wire: all TCP streams between machines, put together again."""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

_EVERYTHING = 0x0003
_IPV4, _TCP = 0x0800, 6
_FORCED_BUFFER = 33
"""SO_RCVBUFFORCE of Linux."""
_STATISTICS = (263, 6)
"""SOL_PACKET and PACKET_STATISTICS."""
_MOST_BYTES = 400_000_000


class Flow(NamedTuple):
    """One direction of a connection, as often as its ports are used."""

    source: str
    source_port: int
    destination: str
    destination_port: int


class Segment(NamedTuple):
    """What one packet carries of a stream."""

    flow: Flow
    sequence: int
    payload: bytes


def parsed(frame: bytes) -> Segment | None:
    """The TCP segment in an Ethernet frame; None if there is none."""
    if len(frame) < 54 or int.from_bytes(frame[12:14], "big") != _IPV4 or frame[23] != _TCP:
        return None
    start = 14 + 4 * (frame[14] & 15)
    end = 14 + int.from_bytes(frame[16:18], "big")
    from_port, to_port, sequence, _, offset = struct.unpack_from("!HHIIB", frame, start)
    flow = Flow(socket.inet_ntoa(frame[26:30]), from_port, socket.inet_ntoa(frame[30:34]), to_port)
    payload = frame[start + 4 * (offset >> 4) : end]
    return Segment(flow, sequence, payload)


class Capture:
    """Streams by flow. A segment that was seen twice counts once."""

    def __init__(self) -> None:
        self.bytes = 0
        self._segments: defaultdict[Flow, dict[int, bytes]] = defaultdict(dict)

    def add(self, segment: Segment) -> None:
        """Take what it carries."""
        if segment.payload and self.bytes < _MOST_BYTES:
            known = self._segments[segment.flow]
            if len(known.get(segment.sequence, b"")) < len(segment.payload):
                known[segment.sequence] = segment.payload
                self.bytes += len(segment.payload)

    def streams(self) -> dict[Flow, bytes]:
        """Each in the order of its bytes; a number that wraps round is not put right."""
        return {
            flow: b"".join(part for _, part in sorted(parts.items()))
            for flow, parts in list(self._segments.items())
        }

    def seen(self, needles: Mapping[str, bytes]) -> list[str]:
        """Names of those of these that are in some stream."""
        streams = list(self.streams().values())
        return [name for name, text in needles.items() if any(text in each for each in streams)]


class Sniffer:
    """Listens on all interfaces of this machine, which the switch is in, until it is closed. Raises
    `PermissionError` where that is not allowed."""

    def __init__(self) -> None:
        self.capture = Capture()
        self.dropped = 0
        """Packets that came too fast; known once it is closed."""
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERYTHING))
        self._socket.setsockopt(socket.SOL_SOCKET, _FORCED_BUFFER, 256 * 1024 * 1024)
        self._socket.settimeout(0.2)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="sniffer")
        self._thread.start()

    def close(self) -> None:
        """Stop; what was seen stays. Idempotent."""
        self._ends.set()
        self._thread.join()
        if self._socket.fileno() >= 0:
            counts = self._socket.getsockopt(*_STATISTICS, 8)
            self.dropped = struct.unpack("II", counts)[1]
            self._socket.close()

    def _listen(self) -> None:
        buffer = bytearray(128 * 1024)
        while not self._ends.is_set():
            try:
                size = self._socket.recv_into(buffer)
            except TimeoutError:
                continue
            if (segment := parsed(bytes(memoryview(buffer)[:size]))) is not None:
                self.capture.add(segment)
