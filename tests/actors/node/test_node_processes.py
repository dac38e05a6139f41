"""A node with a real worker process: one that hangs is ended and started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from node_kit import FakeCoordinator

from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import ActorSystem
from spotlight.actors.runtime.launcher import LocalLauncher, LocalProcess
from spotlight.timings import NodeTimings, Timings
from spotlight.transport.control import KeyPair, ZeroMQTransport
from spotlight.transport.tensors import BundleStore


class NotingLauncher(LocalLauncher):
    """Remembers what it started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[LocalProcess] = []

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> LocalProcess:
        process = await super().start(argv, env, name, log_path, secret)
        self.started.append(process)
        return process


@pytest.mark.slow
async def test_a_worker_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    timings = Timings(node=NodeTimings(silent_s=2.0, ask_alone_s=0.3))
    coordinator, launcher = FakeCoordinator(), NotingLauncher()
    store = BundleStore(tmp_path / "store", token="token")
    transport = ZeroMQTransport(dialect=own_dialect())
    system = ActorSystem(transport, rng=random.Random(0), rights=MAY_SAY)
    await store.start()
    await system.start()
    try:
        await system.spawn(lambda: coordinator, "coordinator")
        settings = NodeSettings("n", "spot", 1, "127.0.0.1", system.address, tmp_path, os.getpid())
        await system.spawn(
            lambda: NodeScheduler(
                settings, store, launcher, lambda worker: KeyPair.new(), timings=timings
            ),
            "node",
        )

        async def joined(epochs: int) -> None:
            def seen() -> set[int]:
                return {w.epoch for report in coordinator.reports for w in report.workers}

            async with asyncio.timeout(60.0):
                while len(seen()) < epochs:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        await joined(1)
        os.kill(launcher.started[0].pid, signal.SIGSTOP)
        await joined(2)
        assert await launcher.started[0].wait() == -signal.SIGKILL
        assert len(launcher.started) == 2
    finally:
        await system.aclose()
        await store.aclose()
