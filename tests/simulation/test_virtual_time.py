"""The virtual-time loop."""

from __future__ import annotations

import asyncio

import pytest

from spotlight_simulation import virtual_time
from spotlight_simulation.virtual_time import DeadlockError


@pytest.mark.virtual_time
async def test_sleeping_takes_virtual_time_only() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(3 * 24 * 3600.0)
    assert loop.time() == pytest.approx(3 * 24 * 3600.0)


@pytest.mark.virtual_time
async def test_timers_fire_in_the_order_of_their_times() -> None:
    fired: list[float] = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append(seconds)

    await asyncio.gather(*(wait(seconds) for seconds in (3.0, 0.1, 2.0, 0.5)))
    assert fired == [0.1, 0.5, 2.0, 3.0]


@pytest.mark.virtual_time
async def test_time_stands_still_while_something_is_ready() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    for _ in range(100):
        await asyncio.sleep(0)
    assert loop.time() == before


@pytest.mark.virtual_time
async def test_a_timeout_expires_at_its_virtual_time() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7.5):
            await loop.create_future()
    assert loop.time() == pytest.approx(7.5)


@pytest.mark.virtual_time
async def test_executor_work_runs_inline() -> None:
    assert await asyncio.to_thread(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 // 0)


def test_waiting_for_what_cannot_happen_is_a_deadlock_that_names_the_waiting() -> None:
    async def wait_for_ever() -> None:
        await asyncio.sleep(2.0)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"at 2 s.*wait_for_ever"):
        virtual_time.run(wait_for_ever())


def test_two_runs_of_the_same_program_have_the_same_history() -> None:
    async def history() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[float, int]] = []

        async def tick(number: int) -> None:
            for _ in range(20):
                await asyncio.sleep(0.1 * number)
                seen.append((loop.time(), number))

        await asyncio.gather(*(tick(number) for number in (1, 2, 3)))
        return seen

    assert virtual_time.run(history()) == virtual_time.run(history())
