"""Worker processes that are none, and a coordinator, for the tests of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from job_kit import Recorder

from spotlight.actors.protocol.down import NodePlan, NodeRefused
from spotlight.actors.protocol.handed_keys import WorkerKeys
from spotlight.actors.protocol.up import NodeNotice, NodeReport
from spotlight.actors.protocol.users import Acknowledged
from spotlight.actors.runtime import Message
from spotlight.transport.control.keys import KeyPair


def memory_keys(worker: str) -> KeyPair:
    """In a `MemoryNetwork` the name of a process is its key."""
    return KeyPair(worker, "")


class FakeProcess:
    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 1
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    @property
    def has_ended(self) -> bool:
        return self._code.done()

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        if not self._code.done():
            self._code.set_result(-9)


class FakeLauncher:
    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.keys: dict[str, WorkerKeys] = {}
        """What the latest worker of each name was handed."""
        self.environments: dict[str, Mapping[str, str]] = {}
        """Those of the latest worker of each name."""

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> FakeProcess:
        self.started.append(FakeProcess(name))
        self.keys[name] = WorkerKeys.decode(secret)
        self.environments[name] = env
        return self.started[-1]

    def latest(self, name: str) -> FakeProcess:
        return [process for process in self.started if process.name == name][-1]


class FakeCoordinator(Recorder):
    """Takes every node, and tells it the plan until its report agrees."""

    def __init__(self) -> None:
        super().__init__()
        self.answer_after_s = 0.0
        self.refusal = ""
        """Why nodes are refused; empty if they are not."""
        self.plan: NodePlan | None = None

    async def on_message(self, message: Message) -> Message | None:
        self.inbox.append(message)
        if not isinstance(message, NodeReport):
            return None
        await asyncio.sleep(self.answer_after_s)
        if self.refusal:
            return NodeRefused(self.refusal)
        plan = self.current
        knows_job = plan.job is None or plan.job.job_id == message.job_id
        if message.coordinator == self.ref and message.plan == plan.number and knows_job:
            return Acknowledged()
        return plan

    @property
    def current(self) -> NodePlan:
        """The latest plan."""
        if self.plan is None:
            self.plan = NodePlan(1, self.ref)
        return self.plan

    def change(self, **fields: Any) -> NodePlan:
        """Another plan, which differs in these; nobody is told."""
        number = self.current.number + 1
        self.plan = msgspec.structs.replace(self.current, number=number, **fields)
        return self.plan

    @property
    def reports(self) -> list[NodeReport]:
        return self.all(NodeReport)

    @property
    def report(self) -> NodeReport:
        """The latest."""
        return self.reports[-1]

    def notices(self) -> list[NodeNotice | None]:
        """What was reported of that, each time that it changed."""
        return [notice for notice, _ in groupby(report.notice for report in self.reports)]

    def departures(self) -> list[bool]:
        """Whether it had left, each time that it changed."""
        return [left for left, _ in groupby(report.left for report in self.reports)]
