"""Ports that are told to a process before it listens on them."""

from __future__ import annotations

import socket
from pathlib import Path

from spotlight_simulation.ports import unused_port


def test_it_can_be_listened_on_at_once() -> None:
    port = unused_port()
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port


def test_the_system_gives_it_to_nobody_who_asks_for_any_port() -> None:
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(unused_port() < first_given for _ in range(20))


def test_one_that_is_taken_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", unused_port())) as taken:
        assert taken.getsockname()[1] not in {unused_port() for _ in range(20)}
