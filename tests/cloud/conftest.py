"""No test of this folder reaches a real metadata service: connecting anywhere but to this machine
fails."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cloud.fake_metadata import FakeMetadata


@pytest.fixture(autouse=True)
def only_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        local = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1")
        assert local, f"a test tried to connect to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
async def fake() -> AsyncIterator[FakeMetadata]:
    """A metadata service that speaks all four dialects and announces nothing yet."""
    async with FakeMetadata() as server:
        yield server
