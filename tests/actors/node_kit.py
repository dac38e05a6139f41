"""Worker processes that are none, for the tests of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotlight.actors.runtime.launcher import WORKER_KEY


class FakeProcess:
    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 1
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        if not self._code.done():
            self._code.set_result(-9)


class FakeLauncher:
    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.keys: dict[str, str] = {}
        """What a worker tells its node to be known by it; of the latest of each name."""

    async def start(
        self, argv: Sequence[str], env: Mapping[str, str], name: str, log_path: Path
    ) -> FakeProcess:
        self.started.append(FakeProcess(name))
        self.keys[name] = env[WORKER_KEY]
        return self.started[-1]

    def latest(self, name: str) -> FakeProcess:
        return [process for process in self.started if process.name == name][-1]
