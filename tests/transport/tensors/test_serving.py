"""What a store does while it sends: here, by UCX, whose work is in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from aiohttp.test_utils import make_mocked_request

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import ucx
from spotlight.transport.tensors.serving import UCX, send_by_ucx

TARGET = ucx.Target(bytes(8), 1)


class Sending:
    """In place of UCX: sends nothing, and fails when it may, once the receiver has gone."""

    def __init__(self) -> None:
        self.began, self.may_fail = threading.Event(), threading.Event()

    def __call__(
        self,
        target: ucx.Target,
        file: BinaryIO,
        first: int,
        nbytes: int,
        idle_s: float,
        gone: threading.Event,
    ) -> None:
        self.began.set()
        assert gone.wait(30.0) and self.may_fail.wait(30.0)
        raise TransferFailed("the receiver has gone, or stands still")


async def test_a_transfer_that_is_cancelled_twice_has_its_failure_counted_and_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, broken, unseen = Sending(), list[None](), list[dict[str, Any]]()
    monkeypatch.setattr(ucx, "send", sending)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    (tmp_path / "bundle").write_bytes(bytes(64))
    request = make_mocked_request("GET", "/bundle", headers={UCX: str(TARGET)})
    with (tmp_path / "bundle").open("rb") as file:
        task = asyncio.create_task(send_by_ucx(request, file, 30.0, lambda: broken.append(None)))
        await asyncio.to_thread(sending.began.wait, 30.0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        sending.may_fail.set()
        await asyncio.wait((task,))
    assert task.cancelled()
    await asyncio.sleep(0)
    assert broken == [None]
    assert unseen == []
