"""The cloud of a simulated cluster: it tells nodes that they will be taken, or not after all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from spotlight.policies.notices import Notice


class FakeCloud:
    """Notices of all nodes. `outlived_after_s` is how long after its deadline a node that is still
    there takes itself for one that stays.
    """

    def __init__(self, outlived_after_s: float) -> None:
        self._outlived_after_s = outlived_after_s
        self._queues: dict[str, asyncio.Queue[Notice]] = {}
        """The notices of the node processes that run, or ran last."""
        self._until: dict[str, float] = {}
        """When nodes that have notice take it for outlived."""

    def notices(self, node: str) -> AsyncIterator[Notice]:
        """Those of a node process that starts now."""
        queue = self._queues[node] = asyncio.Queue()
        self._until.pop(node, None)

        async def told() -> AsyncIterator[Notice]:
            while True:
                yield await queue.get()

        return told()

    def give_notice(self, node: str, lead_s: float) -> None:
        """A node will be taken; one that does not run hears nothing of it."""
        now = asyncio.get_running_loop().time()
        self._until[node] = now + lead_s + self._outlived_after_s
        self._tell(node, Notice("aws", "preempt", "event", lead_s))

    def withdraw_notice(self, node: str) -> None:
        """It is not taken."""
        self._until.pop(node, None)
        self._tell(node, Notice("aws", "cancel", "event"))

    def has_notice(self, node: str) -> bool:
        """Whether it has a notice that nobody has withdrawn, and that it has not outlived."""
        return self._until.get(node, 0.0) > asyncio.get_running_loop().time()

    def _tell(self, node: str, notice: Notice) -> None:
        if node in self._queues:
            self._queues[node].put_nowait(notice)
