"""A member takes its seat: groups form over gloo, and one that does not form is reported in time,
with the members at fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from group_kit import (
    GroupCrew,
    Steps,
    Tensors,
    open_crew,
    quiet_process,
    tiny_models,
    trainable,
    until,
    wanted,
)
from runtime_kit import Cluster

from spotlight.actors.protocol.peers import CannotFollow, Follow, Introduce
from spotlight.actors.worker import torch_engine
from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CannotShard
from spotlight.timings import Timings, WorkerTimings


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_process():
        yield


@pytest.fixture(scope="module")
def models() -> list[DiffusionModel]:
    return tiny_models(4)


@pytest.fixture(scope="module")
def weights(models: list[DiffusionModel]) -> Tensors:
    return trainable(models[0])


@pytest.fixture
def timings() -> Timings:
    """Of the crew; a test that needs others names them."""
    return Timings()


@pytest.fixture
async def crew(
    tmp_path: Path,
    models: list[DiffusionModel],
    weights: Tensors,
    monkeypatch: pytest.MonkeyPatch,
    timings: Timings,
) -> AsyncIterator[GroupCrew]:
    async with Cluster() as cluster:
        crew = await open_crew(cluster, tmp_path / "store", models, weights, monkeypatch, timings)
        yield crew
        assert all(worker.is_there() for worker in crew.workers), "a member crashed"
        await crew.part()
        await crew.close()


impatient = pytest.mark.parametrize(
    "timings", [Timings(worker=WorkerTimings(repeat_s=0.1, introduction_limit_s=0.3))]
)


@pytest.mark.parametrize("size", [1, 4])
async def test_a_group_forms_and_every_member_says_so_once(crew: GroupCrew, size: int) -> None:
    workers = crew.workers[:size]
    epoch = await crew.form(*workers)
    await asyncio.sleep(0.05)
    for worker in workers:
        assert worker.leader.formed() == [epoch]
        assert worker.failures() == []


async def test_an_order_that_is_old_or_repeated_changes_nothing(crew: GroupCrew) -> None:
    first, second = crew.workers[:2]
    old, new = crew.order(first), crew.order(first, second)
    for worker in (first, second):
        worker.take(new)
    await until(lambda: first.formed(new.epoch) and second.formed(new.epoch))
    first.take(old)
    first.take(new)
    await crew.samples(first, crew.denoise(first, wanted(1)))
    assert first.leader.formed() == [new.epoch]


async def test_a_newer_order_ends_a_group_that_still_forms(crew: GroupCrew) -> None:
    first, second, third = crew.workers[:3]
    never = crew.order(first, second)
    first.take(never)
    await asyncio.sleep(0.05)
    await crew.form(first, third)
    assert first.failures() == []


async def test_others_may_introduce_themselves_before_the_order_comes(crew: GroupCrew) -> None:
    first, second = crew.workers[:2]
    order = crew.order(first, second)
    second.take(order)
    await asyncio.sleep(0.1)
    first.take(order)
    await until(lambda: first.formed(order.epoch) and second.formed(order.epoch))


@impatient
@pytest.mark.parametrize(("spared", "lost"), [(0, 4), (2, 1), (3, 1)])
async def test_words_that_are_lost_are_said_again(crew: GroupCrew, spared: int, lost: int) -> None:
    """Of two members, the first two introduce them, and others set entries."""
    crew.lose("Introduce", lost, after=spared)
    await crew.form(*crew.workers[:2])
    assert all(worker.failures() == [] for worker in crew.workers)


@impatient
async def test_a_member_that_is_never_heard_of_is_named_in_time(crew: GroupCrew) -> None:
    first, second, third = crew.workers[:3]
    order = crew.order(first, second, third)
    first.take(order)
    third.take(order)
    await until(lambda: bool(first.failures(order.epoch) and third.failures(order.epoch)), 5.0)
    for worker in (first, third):
        assert worker.failures(order.epoch) == [("nothing was heard of w1", ("w1",))]
    await crew.form(first, third)


@impatient
async def test_a_member_that_must_end_a_long_step_is_waited_for(
    crew: GroupCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = crew.workers[:2]
    steps = Steps(monkeypatch)
    steps.hold_after(1)
    crew.denoise(second, wanted(1))
    await steps.reached(1)
    epoch = crew.tell(first, second)
    await asyncio.sleep(0.8)  # more than within which all must be heard of
    assert not first.failures(epoch)
    steps.go_on()
    await until(lambda: first.formed(epoch) and second.formed(epoch))


@pytest.mark.parametrize("timings", [Timings(worker=WorkerTimings(leave_limit_s=0.2))])
async def test_a_step_that_takes_too_long_is_left_behind(
    crew: GroupCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = crew.workers[:3]
    steps = Steps(monkeypatch)
    await crew.form(first, second)
    steps.hold_after(1)
    lease = crew.denoise(first, wanted(1))
    await steps.reached(1)
    await crew.form(first, third)
    steps.go_on()
    await crew.samples(first, lease)
    assert steps.repeated() == []


async def test_a_member_of_another_job_is_named_by_all_and_the_rest_can_form(
    crew: GroupCrew,
) -> None:
    first, second, third = crew.workers[:3]
    await crew.prepare(second, "another")
    await crew.hold(second)
    epoch = crew.tell(first, second, third)
    await until(lambda: all(worker.failures(epoch) for worker in (first, second, third)))
    for worker in (first, second, third):
        assert worker.failures(epoch) == [("another model than w0 has w1", ("w1",))]
    await crew.form(first, third)


async def test_a_member_without_a_job_names_itself(crew: GroupCrew) -> None:
    first, second = crew.workers[:2]
    await second.end_job()
    epoch = crew.tell(first, second)
    await until(lambda: bool(second.failures(epoch)))
    assert second.failures(epoch) == [("no job is prepared on this member", ("w1",))]


async def test_a_member_whose_model_cannot_be_shared_out_names_itself(
    crew: GroupCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(transformer: object) -> None:
        raise CannotShard("an unknown family")

    monkeypatch.setattr(torch_engine, "SequenceParallel", refuse)
    first, second = crew.workers[:2]
    epoch = crew.tell(first, second)
    await until(lambda: bool(first.failures(epoch) and second.failures(epoch)))
    assert first.failures(epoch) == [("an unknown family", ("w0",))]


async def test_words_of_groups_to_come_are_kept_but_not_without_end(crew: GroupCrew) -> None:
    first, second = crew.workers[:2]
    for number in range(300):
        word = Introduce(1000 + number, 0, "model", "key", b"value")
        second.system.tell(first.member, word, sender=second.member)
        await asyncio.sleep(0)
    seat = first.actor._seat
    await until(lambda: seat._early[-1][0].epoch == 1299)
    assert len(seat._early) < 100
    await crew.form(first, second)


async def test_words_of_nobody_end_no_member(crew: GroupCrew) -> None:
    """Whoever can reach the port may leave out who it is."""
    first, second = crew.workers[:2]
    words = [
        Introduce(1, 0, "model", "", b""),
        Follow(1, 1, wanted(1), 0),
        CannotFollow(1, "w", "no"),
    ]
    for word in words:
        second.system.tell(first.member, word)
    await until(lambda: first.system.dead_letters.counts["not_allowed"] == len(words))
    await crew.form(first, second)
