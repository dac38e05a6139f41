"""Runs that are copied to object storage while their jobs go on."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from job_kit import job
from runtime_kit import Cluster
from town_kit import Town, events, trained_samples

from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.protocol.users import CancelJob
from spotlight.policies.mirror_schedule import PAUSES_S
from spotlight.store.mirror import Manifest, read_manifest
from spotlight.store.object_store import ObjectStore
from spotlight.store.restore import restore
from spotlight.timings import Timings

pytestmark = pytest.mark.virtual_time
LIMIT_S = Timings().coordinator.trackers_close_s


class Storage(ObjectStore):
    """Object storage in memory that can be told to fail."""

    def __init__(self, url: str = "memory://runs") -> None:
        files = fsspec.filesystem("memory")
        super().__init__(files, "/runs", url)
        self.broken = False
        self.manifests: list[int] = []
        """Iterations in each manifest that was written."""

    def below(self, name: str) -> ObjectStore:
        inner = Storage.__new__(Storage)
        inner.__dict__ = self.__dict__ | {"_root": f"{self._root}/{name}", "_outer": self}
        return inner

    def read(self, name: str, *, most: int) -> bytes | None:
        if self._outer.broken:
            raise RuntimeError("the store is out of order")  # which nobody foresaw
        return super().read(name, most=most)

    def write(self, name: str, data: bytes) -> None:
        super().write(name, data)
        if name == "manifest.json":
            manifest = read_manifest(self)
            assert manifest is not None
            self._outer.manifests.append(manifest.completed)

    _outer: Any


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    fsspec.filesystem("memory").store.clear()
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        yield town
        if town.mirror is not None:
            town.mirror.close()


async def begin(town: Town, storage: Storage | None) -> None:
    if storage is not None:
        town.mirror = MirrorPlace(storage, random.Random(0))
    await town.open()
    await town.join("reserved", "reserved")
    await town.join("spot", "spot")


def manifest(storage: Storage, run: str) -> Manifest:
    found = read_manifest(storage.below(Path(run).name))
    assert found is not None
    return found


async def test_every_commit_is_copied_and_the_end_too(town: Town, tmp_path: Path) -> None:
    storage, spec = Storage(), job()
    await begin(town, storage)
    end = await town.run(spec)
    assert end.outcome == "finished"
    assert storage.manifests[0] == 0, "a run that has only begun can be begun elsewhere"
    assert storage.manifests == sorted(storage.manifests)
    assert set(storage.manifests) == set(range(spec.iterations + 1))
    assert end.mirror is not None
    assert (end.mirror.completed, end.mirror.failures, end.mirror.problem) == (
        spec.iterations,
        0,
        "",
    )
    told = events(end.run_folder, "run_mirrored")
    assert [event["iteration"] for event in told] == storage.manifests
    restore(storage.below(Path(end.run_folder).name), tmp_path / "back")
    assert events(str(tmp_path / "back"), "run_finished")[0]["outcome"] == "finished"


async def test_storage_that_fails_disturbs_nothing_and_is_told(town: Town) -> None:
    storage, spec = Storage(), job()
    storage.broken = True
    await begin(town, storage)
    end = await town.run(spec)
    assert end.outcome == "finished"
    failed = events(end.run_folder, "mirror_failed")
    assert [event["failures"] for event in failed] == list(range(1, len(failed) + 1))
    assert failed[0]["retry_s"] == PAUSES_S[0] and failed[1]["retry_s"] == PAUSES_S[1]
    assert failed[0]["reason"] == "the store is out of order"
    assert end.mirror is not None
    assert end.mirror.completed is None
    assert (end.mirror.committed, end.mirror.problem) == (spec.iterations, failed[0]["reason"])
    (finished,) = events(end.run_folder, "run_finished")
    waited_s = failed[-1]["time_s"] - finished["time_s"]
    assert 0.5 * LIMIT_S <= waited_s <= LIMIT_S, "the last state is tried as long as it may be"

    storage.broken = False
    undisturbed = await town.run(spec)
    assert not events(undisturbed.run_folder, "mirror_failed")
    trained = trained_samples(town.world.trained)
    assert trained[: spec.iterations] == trained[spec.iterations :]


async def test_storage_that_recovers_gets_the_newest_state(town: Town) -> None:
    storage = Storage()
    storage.broken = True
    await begin(town, storage)
    await town.submit(job())
    await town.wait(lambda now: now.mirror is not None and now.mirror.committed >= 1)
    storage.broken = False
    end = await town.ended()
    assert end.mirror is not None and end.mirror.failures > 0
    assert (end.mirror.completed, end.mirror.problem) == (job().iterations, "")
    assert manifest(storage, end.run_folder).completed == job().iterations


async def test_a_run_that_is_cancelled_is_copied_as_it_ended(town: Town, tmp_path: Path) -> None:
    storage = Storage()
    await begin(town, storage)
    await town.submit(job())
    await town.wait(lambda now: now.iteration >= 1)
    await town.ask(CancelJob())
    end = await town.ended()
    assert end.outcome == "cancelled"
    restore(storage.below(Path(end.run_folder).name), tmp_path / "back")
    assert events(str(tmp_path / "back"), "run_finished")[0]["outcome"] == "cancelled"


async def test_a_coordinator_that_comes_back_goes_on_copying(town: Town) -> None:
    storage = Storage()
    await begin(town, storage)
    await town.submit(job())
    await town.wait(lambda now: now.mirror is not None and now.mirror.completed == 1)
    await town.kill()
    await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    assert not events(end.run_folder, "mirror_failed")
    assert manifest(storage, end.run_folder).completed == job().iterations


async def test_a_run_that_is_not_to_be_copied_says_nothing_of_it(town: Town) -> None:
    await begin(town, None)
    end = await town.run(job())
    assert end.mirror is None
    assert not events(end.run_folder, "run_mirrored")
