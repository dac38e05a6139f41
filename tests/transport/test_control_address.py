"""Control addresses as users write them."""

from __future__ import annotations

import pytest

from spotlight.errors import UserError
from spotlight.transport.control_address import control_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.0.0.1:7070", "tcp://10.0.0.1:7070"),
        ("10.0.0.1:7070", "tcp://10.0.0.1:7070"),
        ("localhost:1", "tcp://localhost:1"),
        ("spot_light-0.svc.cluster.local:65535", "tcp://spot_light-0.svc.cluster.local:65535"),
        ("[::1]:7070", "tcp://[::1]:7070"),
        ("tcp://[fe80::1%eth0]:7070", "tcp://[fe80::1%eth0]:7070"),
    ],
)
def test_an_address_is_understood_with_and_without_its_protocol(text: str, address: str) -> None:
    assert control_address("--coordinator", text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "10.0.0.1",
        ":7070",
        "tcp://",
        "tcp://:7070",
        "tcp://10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:70700000",
        "10.0.0.1:port",
        "10.0.0.1:7070/",
        "10.0.0.1:7070\n",
        "10.0.0.1\n:7070",
        "10.0.0.1 :7070",
        "10.0.0.1:\u0667\u0660",
        "*:7070",
        "-host:7070",
        "host-:7070",
        "::1:7070",
        "[::1:7070",
        "http://10.0.0.1:7070",
        "tcp://tcp://10.0.0.1:7070",
        "tcp://10.0.0.1:7070;tcp://10.0.0.2:7070",
        f"{'x' * 300}:7070",
    ],
)
def test_what_is_no_address_is_refused_at_once_with_its_option(text: str) -> None:
    with pytest.raises(UserError, match=r"^--coordinator: `") as caught:
        control_address("--coordinator", text)
    assert "give HOST:PORT" in str(caught.value) and len(str(caught.value)) < 300
