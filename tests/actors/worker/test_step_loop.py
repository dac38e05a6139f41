"""The steps of one batch when its group breaks: nothing is taken twice, and a thread that was left
behind changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from spotlight.actors.worker.step_loop import StepLoop, Taken
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import TransportError

STEPS = 5


class FakeDenoising:
    """Counts."""

    def __init__(self) -> None:
        self.steps = STEPS
        self.steps_taken = 0

    @property
    def done(self) -> bool:
        return self.steps_taken >= STEPS

    def step(self) -> None:
        assert not self.done
        self.steps_taken += 1

    def progress(self) -> Any:
        return SimpleNamespace(step=self.steps_taken)


class FakeGroup:
    """Notes its steps; `before` and `after` each of them may wait or fail."""

    def __init__(self, members: int = 2) -> None:
        self.members = members
        self.inside = False
        self.taken: list[int] = []
        self.before: Callable[[int], None] = lambda step: None

    @contextmanager
    def lead(self, run: int) -> Any:
        yield

    def begin(self, denoising: FakeDenoising) -> None:
        pass

    def step(self, denoising: FakeDenoising) -> None:
        self.before(denoising.steps_taken)
        denoising.step()
        self.taken.append(denoising.steps_taken)


class FakeRun:
    number = 1

    def __init__(self, group: FakeGroup) -> None:
        self.group = group
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended_by: list[TransportError | None] = []

    def over(self, error: TransportError | None = None) -> None:
        self.ended_by.append(error)


class Work:
    """A step loop whose runs the test provides."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.runs: list[FakeRun] = []
        self.begun: list[FakeDenoising] = []
        self.began = lambda: None
        self.finished: list[int] = []

    async def run(self, *groups: FakeGroup) -> tuple[StepLoop[str], str | None]:
        left = list(groups)

        async def run() -> FakeRun | None:
            if not left:
                return None
            self.runs.append(FakeRun(left.pop(0)))
            return self.runs[-1]

        def begin() -> Any:
            made = FakeDenoising()
            self.begun.append(made)
            self.began()
            return made

        def finish(taken: Taken) -> str:
            self.finished.append(taken.progress.step)
            return "images"

        async def deliver(taken: Taken) -> None:
            pass

        async with self.context.accelerator_turn() as turn:
            loop: StepLoop[str] = StepLoop(
                self.context,
                turn,
                lead=run,
                prepare=lambda: None,
                begin=begin,
                finish=finish,
                commit_every=0,
                deliver=deliver,
                stop_at=lambda: None,
                goes_on=lambda: True,
                start=asyncio.ensure_future,
            )
            return loop, await loop.run(lambda: None)


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    context = WorkerContext("w", 1, "")
    yield Work(context)
    context.close()


def stuck_at(group: FakeGroup, step: int) -> tuple[threading.Event, threading.Event]:
    """It reaches a step and waits there until it is let go."""
    reached, free = threading.Event(), threading.Event()

    def before(taken: int) -> None:
        if taken == step:
            reached.set()
            free.wait(10.0)

    group.before = before
    return reached, free


async def until_set(event: threading.Event) -> None:
    async with asyncio.timeout(10.0):
        while not event.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_group_that_breaks_in_a_step_has_not_taken_it(work: Work) -> None:
    first, second = FakeGroup(4), FakeGroup(2)

    def fail(taken: int) -> None:
        if taken == 2:
            raise TransportError("a peer is gone")

    first.before = fail
    loop, images = await work.run(first, second)
    assert images == "images"
    assert (first.taken, second.taken) == ([1, 2], [3, 4, 5])
    assert [str(run.ended_by[0]) for run in work.runs] == ["a peer is gone", "None"]
    assert (loop.steps, loop.members) == (STEPS, 0)


async def test_steps_that_one_degree_took_are_known_as_such(work: Work) -> None:
    first, second = FakeGroup(4), FakeGroup(4)

    def fail(taken: int) -> None:
        if taken == 2:
            raise TransportError("a peer is gone")

    first.before = fail
    loop, _ = await work.run(first, second)
    assert (loop.steps, loop.members) == (STEPS, 4)
    assert loop.seconds > 0.0


async def test_a_step_that_a_thread_takes_after_it_was_left_behind_does_not_count(
    work: Work,
) -> None:
    first, second = FakeGroup(), FakeGroup()
    reached, free = stuck_at(first, 2)

    def let_go(taken: int) -> None:
        if taken == 3:
            free.set()
            while len(first.taken) < 3:
                threading.Event().wait(0.001)

    second.before = let_go
    running = asyncio.ensure_future(work.run(first, second))
    await until_set(reached)
    work.context.abandon_accelerator()
    work.runs[0].broken.set_result(None)
    _, images = await running
    assert images == "images"
    assert second.taken == [3, 4, 5]


async def test_a_batch_that_a_thread_begins_after_it_was_left_behind_does_not_count(
    work: Work,
) -> None:
    first, second = FakeGroup(), FakeGroup()
    begins, free = threading.Event(), threading.Event()

    def began() -> None:
        if len(work.begun) == 1:
            begins.set()
            free.wait(10.0)

    def let_go(taken: int) -> None:
        if taken == 3:
            free.set()
            while not first.taken:
                threading.Event().wait(0.001)

    work.began, second.before = began, let_go
    running = asyncio.ensure_future(work.run(first, second))
    await until_set(begins)
    work.context.abandon_accelerator()
    work.runs[0].broken.set_result(None)
    loop, images = await running
    assert images == "images"
    assert second.taken == [1, 2, 3, 4, 5]
    assert loop.steps == STEPS


async def test_a_group_that_breaks_after_the_last_step_is_not_needed_any_more(
    work: Work,
) -> None:
    first, second = FakeGroup(), FakeGroup()
    decodes, free = threading.Event(), threading.Event()
    plain = work.finished.append

    class Slow(list[int]):
        def append(self, steps: int) -> None:
            plain(steps)
            if not decodes.is_set():
                decodes.set()
                free.wait(10.0)

    work.finished = Slow()
    running = asyncio.ensure_future(work.run(first, second))
    await until_set(decodes)
    work.runs[0].broken.set_result(None)
    await asyncio.sleep(0.01)
    free.set()
    _, images = await running
    assert images == "images"
    assert (first.taken, second.taken) == ([1, 2, 3, 4, 5], [])


async def test_a_member_that_does_not_lead_any_more_stops_there(work: Work) -> None:
    first = FakeGroup()

    def fail(taken: int) -> None:
        if taken == 2:
            raise TransportError("a peer is gone")

    first.before = fail
    loop, images = await work.run(first)
    assert images is None
    rest = await loop.take_rest()
    assert rest is not None
    assert isinstance(rest, Taken)
    assert rest.progress.step == 2
