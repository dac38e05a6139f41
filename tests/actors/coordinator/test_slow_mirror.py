"""Object storage that hangs: the job's loop and its end do not wait for it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import fsspec
import pytest

from spotlight.actors.coordinator.job.mirroring import Mirroring, MirrorPlace
from spotlight.actors.coordinator.tenant.tenant_log import TenantLog
from spotlight.jobs import job_from_data
from spotlight.policies.run_tally import RunTally
from spotlight.record.run_events import RunEvent
from spotlight.store.object_store import ObjectStore
from spotlight.store.run_folder import RunFolder


class Hanging(ObjectStore):
    """Object storage in memory that answers only when it is told to."""

    def __init__(self) -> None:
        super().__init__(fsspec.filesystem("memory"), "/hanging", "memory://hanging")
        self.asked, self.answers = threading.Event(), threading.Event()

    def below(self, name: str) -> ObjectStore:
        return self

    def read(self, name: str, *, most: int) -> bytes | None:
        self.asked.set()
        assert self.answers.wait(30)
        return super().read(name, most=most)


class Job:
    """All that a mirroring asks for."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.events: list[RunEvent] = []
        self.log = TenantLog("run-1", "small", "operator")

    def event(self, event: RunEvent) -> None:
        self.events.append(event)

    def run_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(coroutine))
        return self.tasks[-1]


class Scene:
    def __init__(self, folder: RunFolder) -> None:
        self.store = Hanging()
        self.place = MirrorPlace(self.store, random.Random(0))
        self.job = Job()
        self.mirroring = Mirroring(
            self.job, self.place, folder, "run-1", RunTally(), close_limit_s=0.05
        )

    async def hang(self) -> None:
        """Until a copy has begun."""
        self.mirroring.take(0)
        await asyncio.to_thread(self.store.asked.wait, 30)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    fsspec.filesystem("memory").store.clear()
    job = job_from_data(
        {
            "name": "small",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {"train": "builtin:train", "validation": "builtin:validation"},
            "sampler": {"height": 32, "width": 64},
        }
    )
    folder = RunFolder.create(tmp_path / "run", job)
    scene = Scene(folder)
    yield scene
    scene.store.answers.set()
    scene.place.close()
    await asyncio.gather(*scene.job.tasks, return_exceptions=True)
    folder.close()


async def test_commits_do_not_wait_and_only_the_newest_is_copied(scene: Scene) -> None:
    await scene.hang()
    for completed in (1, 2, 3):
        scene.mirroring.take(completed)
    status = scene.mirroring.status
    assert status is not None and (status.completed, status.committed) == (None, 3)
    scene.store.answers.set()
    await scene.job.tasks[0]
    assert [getattr(event, "iteration", None) for event in scene.job.events] == [0, 3]


async def test_the_end_of_a_job_waits_no_longer_than_it_may(scene: Scene) -> None:
    await scene.hang()
    await asyncio.wait_for(scene.mirroring.finish(), 30)
    assert scene.mirroring.status is not None
    assert "was not copied within 0.05 s" in scene.mirroring.status.problem


async def test_a_copy_that_waits_for_another_job_s_is_dropped_with_its_job(scene: Scene) -> None:
    busy = scene.place.thread.submit(scene.store.answers.wait, 30)
    scene.mirroring.take(1)
    await asyncio.sleep(0)
    scene.job.tasks[0].cancel()
    await asyncio.wait(scene.job.tasks)
    scene.store.answers.set()
    await asyncio.wrap_future(busy)
    assert not scene.store.asked.is_set()
    assert scene.job.events == []
