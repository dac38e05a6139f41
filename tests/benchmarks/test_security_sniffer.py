"""What a sniffer makes of frames: an eye that saw nothing would find nothing in clear."""

from __future__ import annotations

import socket
import struct

from benchmarks.security.sniffer import Capture, Flow, Segment, parsed

FLOW = Flow("10.0.0.1", 40_000, "10.0.0.2", 7070)


def frame(payload: bytes, *, sequence: int = 1, options: int = 0, padding: int = 0) -> bytes:
    """Ethernet, IPv4 and TCP, with so many words of options in each header."""
    tcp = struct.pack("!HHIIBBHHH", 40_000, 7070, sequence, 0, (5 + options) << 4, 0x18, 0, 0, 0)
    tcp += bytes(4 * options)
    size = 20 + 4 * options + len(tcp) + len(payload)
    addresses = socket.inet_aton(FLOW.source) + socket.inet_aton(FLOW.destination)
    ip = struct.pack("!BBHHHBBH", 0x45 + options, 0, size, 0, 0, 64, 6, 0) + addresses
    return bytes(12) + b"\x08\x00" + ip + bytes(4 * options) + tcp + payload + bytes(padding)


def test_a_segment_is_what_follows_the_headers_whatever_options_and_padding_they_have() -> None:
    for options in (0, 1, 3):
        found = parsed(frame(b"a prompt", sequence=7, options=options, padding=6))
        assert found == Segment(FLOW, 7, b"a prompt")


def test_what_is_no_tcp_is_nothing() -> None:
    udp = bytearray(frame(b"x"))
    udp[23] = 17
    ipv6 = frame(b"x").replace(b"\x08\x00", b"\x86\xdd", 1)
    for other in (b"", bytes(60), bytes(udp), ipv6, frame(b"x")[:40]):
        assert parsed(other) is None


def test_a_text_is_seen_across_segments_in_any_order_and_seen_twice() -> None:
    capture = Capture()
    parts = [(100, b"the num"), (107, b'ber "06'), (114, b'17"')]
    for sequence, part in (parts[2], parts[0], parts[1], parts[0]):
        capture.add(Segment(FLOW, sequence, part))
    assert capture.streams() == {FLOW: b'the number "0617"'}
    needles = {"the prompt": b'number "0617"', "another": b"0618"}
    assert capture.seen(needles) == ["the prompt"]


def test_texts_of_two_connections_do_not_make_one() -> None:
    capture = Capture()
    capture.add(Segment(FLOW, 1, b"sec"))
    capture.add(Segment(FLOW._replace(source_port=40_001), 4, b"ret"))
    assert capture.seen({"secret": b"secret"}) == []
