"""Samples and commits are left with the job's keeper, and in the coordinator's store without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from member_commits_kit import *  # noqa: F403  (its fixtures)
from member_kit import Gate, Worker, assert_same_bits, wanted

from spotlight.actors.protocol.down import Keeper
from spotlight.actors.protocol.up import CommitSteps, Completed
from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors.shares import Share


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[BundleStore]:
    """The store of a keeper."""
    store = BundleStore(tmp_path / "kept", token="another")
    await store.start()
    yield store
    await store.aclose()


def keeper_of(store: BundleStore) -> Keeper:
    return Keeper("r", Share(store.share("samples", "commits")).writable_by("w0", 1))


async def test_samples_and_commits_are_left_with_the_keeper_and_pictures_with_the_coordinator(
    workers: tuple[Worker, Worker], gate: Gate, kept: BundleStore
) -> None:
    worker = workers[0]
    await worker.prepare(worker.store, keeper=keeper_of(kept))
    await gate.run(worker, wanted(1, image_key="pictures/0/1.png"), 2)
    gate.open()
    await worker.done()
    folders = {key.partition("/")[0] for key in await kept.keys("samples", "commits")}
    assert folders == {"commits", "samples"}
    left = await worker.store.keys("samples", "commits", "pictures")
    assert {key.partition("/")[0] for key in left} == {"pictures"}
    assert {commit.bundle.keeper for commit in worker.leader.all(CommitSteps)} == {"r"}
    assert worker.leader.last(Completed).bundle.keeper == "r"


async def test_what_the_keeper_does_not_take_is_left_in_the_coordinators_store(
    workers: tuple[Worker, Worker], kept: BundleStore
) -> None:
    worker = workers[0]
    await worker.prepare(worker.store, keeper=keeper_of(kept))
    kept.share()  # it works for another job
    worker.denoise(wanted(1))
    await worker.done()
    assert worker.leader.last(Completed).bundle.keeper == ""
    assert len(await worker.store.keys("samples")) == 1


async def test_a_sample_has_the_same_bits_wherever_it_is_left(
    workers: tuple[Worker, Worker], kept: BundleStore
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1, 2))
    here = await worker.done()
    await worker.prepare(worker.store, keeper=keeper_of(kept))
    worker.denoise(wanted(1, 2))
    assert_same_bits(await worker.done(), here)
