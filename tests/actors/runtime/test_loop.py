"""What a process's loop holds."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from spotlight.actors.runtime.loop import CHOICE_VARIABLE, open_first_stream, run


@pytest.mark.parametrize("choice", ["asyncio", "uvloop"])
def test_a_loop_that_has_had_its_first_stream_holds_nothing_more_after_the_next(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(choice)
    monkeypatch.setenv(CHOICE_VARIABLE, choice)

    async def growth() -> int:
        await open_first_stream()
        before = len(os.listdir("/proc/self/fd"))
        here, there = socket.socketpair()
        with there:
            _, writer = await asyncio.open_unix_connection(sock=here)
            writer.close()
            await writer.wait_closed()
        return len(os.listdir("/proc/self/fd")) - before

    assert run(growth()) == 0
