"""What the status counts is of the whole run, whenever a coordinator is killed. On virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_kit import job
from runtime_kit import Cluster
from town_kit import Town

from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.protocol.users import JobStatus
from spotlight.policies.run_tally import COUNTED
from spotlight.record.run_events import encode_event
from spotlight.store.object_store import open_store
from spotlight.timings import CoordinatorTimings
from tests.event_samples import sample_event

pytestmark = pytest.mark.virtual_time

SPEC = job(validation={"every": 1})
OF_THE_MOMENT = {"done", "wanted", "images_per_s", "reward_mean", "weight", "priority"}
"""The numbers of a status that count nothing."""
NO_NUMBERS = {"workers", "nodes", "troubles"}


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        town.mirror = MirrorPlace(
            open_store("--mirror", f"file://{tmp_path}/copies"), random.Random(0)
        )
        await town.open()
        await town.join("reserved", "reserved", apart=True)
        await town.join("spot", "spot")
        yield town
        town.mirror.close()


def counts(status: JobStatus) -> dict[str, float]:
    """Every number of a status that counts something, and the length of every list of things that
    happened."""
    assert status.mirror is not None
    found: dict[str, float] = {}
    told = {**msgspec.structs.asdict(status), **msgspec.structs.asdict(status.mirror)}
    for name, value in told.items():
        if name in OF_THE_MOMENT | NO_NUMBERS:
            continue
        if isinstance(value, tuple):
            found[name] = len(value)
        elif isinstance(value, int | float):
            found[name] = value
    return found


MOMENTS: dict[str, Callable[[JobStatus], bool]] = {
    "rollout": lambda now: now.iteration == 1 and now.phase == "rollout" and now.done > 0,
    "training": lambda now: now.iteration == 1 and now.phase == "train",
    "second rollout": lambda now: now.iteration == 2 and now.phase == "rollout",
    "second training": lambda now: now.iteration == 2 and now.phase == "train",
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_no_count_falls_when_a_coordinator_comes_back(town: Town, moment: str) -> None:
    town.world.train_s = 30.0
    town.world.denoise_s = 0.5
    await town.submit(SPEC)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 0)
    await town.nodes["spot"].abort()
    before = await town.wait(MOMENTS[moment])
    assert before.previews > 0 and before.preemptions == 1
    await town.kill()
    await town.open()
    after = await town.wait(lambda now: now.phase not in ("waiting", "preparing"))
    lost_s = {"elapsed_s": CoordinatorTimings().clock_s}
    fell = {
        name: (value, counts(after)[name])
        for name, value in counts(before).items()
        if counts(after)[name] < value - lost_s.get(name, 0.0)
    }
    assert not fell
    assert after.preemptions == 1, "and none is counted twice"
    assert after.reward_mean is not None


async def test_the_clock_of_a_run_is_kept_where_nothing_happens(town: Town) -> None:
    town.world.train_s = 400.0
    await town.submit(SPEC)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    await asyncio.sleep(300.0)
    before = await town.status()
    await town.kill()
    await town.open()
    after = await town.wait(lambda now: now.phase == "train")
    assert after.elapsed_s > before.elapsed_s - CoordinatorTimings().clock_s


def write_one_of_each(run: Path, before: dict[str, Any]) -> None:
    """Something of every kind that is counted happens, and the coordinator is killed."""
    with open(run / "events.jsonl", "a") as file:
        for kind in COUNTED:
            event = sample_event(kind)
            file.write(json.dumps(encode_event(event, before["elapsed_s"])) + "\n")


async def test_whatever_happened_before_a_kill_is_counted_after_it(town: Town) -> None:
    town.world.train_s = 30.0
    await town.submit(SPEC)
    before = await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    await town.kill()
    write_one_of_each(Path(before.run_folder), counts(before))
    await town.open()
    after = await town.wait(lambda now: now.phase == "train")
    await asyncio.sleep(1.0)
    grew = {name for name, value in counts(before).items() if counts(after)[name] > value}
    assert {"handed_on", "results_ignored", "given_up", "preemptions", "failures"} <= grew
