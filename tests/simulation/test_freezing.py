"""Stopping and ending single processes of a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from spotlight_simulation.freezing import FreezableLoop, context_of, current_process


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=FreezableLoop) as runner:
        return runner.run(main)


class Process:
    """Ticks every second."""

    def __init__(self, name: str) -> None:
        self.ticks: list[float] = []
        self.cancelled = False
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._tick(), context=context_of(name))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(1.0)
                self.ticks.append(loop.time())
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def test_a_stopped_process_does_nothing_and_goes_on_where_it_was() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FreezableLoop)
        stopped, other = Process("stopped"), Process("other")
        await asyncio.sleep(2.5)
        loop.freeze("stopped")
        await asyncio.sleep(3.0)
        assert stopped.ticks == [1.0, 2.0]
        assert loop.thaw("stopped") == 1
        await asyncio.sleep(2.0)
        assert stopped.ticks == [1.0, 2.0, 5.5, 6.5]
        assert other.ticks == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        for process in (stopped, other):
            process.task.cancel()
            await asyncio.wait((process.task,))

    run(main())


def test_thawing_says_that_nothing_was_due_when_nothing_was() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FreezableLoop)
        process = Process("stopped")
        await asyncio.sleep(0.1)
        loop.freeze("stopped")
        await asyncio.sleep(0.1)
        assert loop.thaw("stopped") == 0
        process.task.cancel()
        await asyncio.wait((process.task,))

    run(main())


def test_a_process_that_is_ended_takes_no_further_step() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FreezableLoop)
        process, other = Process("ended"), Process("other")
        await asyncio.sleep(0.999)
        asyncio.get_running_loop().call_at(1.0, loop.condemn, "ended")
        await asyncio.sleep(3.0)
        assert process.cancelled
        assert process.ticks in ([], [1.0])
        assert len(other.ticks) == 3
        other.task.cancel()
        await asyncio.wait((other.task,))

    run(main())


def test_a_task_that_is_ready_when_its_process_is_ended_only_sees_its_cancellation() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FreezableLoop)
        steps: list[str] = []

        async def work() -> None:
            steps.append(current_process())

        task = loop.create_task(work(), context=context_of("ended"))
        loop.condemn("ended")
        await asyncio.wait((task,))
        assert task.cancelled()
        assert steps == []

    run(main())
