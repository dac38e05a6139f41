"""The trainer ranks as the job runner sees them: orders are repeated until they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from job_kit import STORE, Recorder, job, recorder, settle
from runtime_kit import Cluster

from spotlight.actors.messages import (
    GetTrainer,
    PortReserved,
    Publish,
    ReservePort,
    SaveCheckpoint,
    StartTrainer,
    Train,
    TrainerAt,
    WorkerRefs,
)
from spotlight.actors.runtime import Actor, Message
from spotlight.actors.trainer_team import TrainerTeam
from spotlight.errors import ActorError

pytestmark = pytest.mark.virtual_time


class Runner(Actor):
    """Whoever has a team."""


class School:
    """A team of two ranks in processes of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.trained = [3, 3]
        self.ranks: list[Recorder] = []

    async def open(self) -> None:
        runner = Runner()
        system = await self.cluster.system("coordinator")
        await system.spawn(lambda: runner, "runner")
        self.team = TrainerTeam(runner, job(), "job-1")
        self.systems = [await self.cluster.system(f"rank-{rank}") for rank in range(2)]
        for rank, system in enumerate(self.systems):

            def answer(message: Message, rank: int = rank) -> Message | None:
                match message:
                    case ReservePort():
                        return PortReserved("host:1234")
                    case GetTrainer(job_id="job-1"):
                        return TrainerAt(self.trained[rank])
                return None

            self.ranks.append(await recorder(system, "trainer", answer=answer))
        self.team.ranks = tuple(
            WorkerRefs(f"reserved/{rank}", 10 + rank, *[trainer.ref] * 4)
            for rank, trainer in enumerate(self.ranks)
        )


@pytest.fixture
async def school() -> AsyncIterator[School]:
    async with Cluster() as cluster:
        school = School(cluster)
        await school.open()
        yield school


async def test_every_rank_is_built_at_the_rendezvous_of_the_first(school: School) -> None:
    await school.team.build("/checkpoint", 3, 7)
    await settle()
    for rank, trainer in enumerate(school.ranks):
        (start,) = trainer.all(StartTrainer)
        assert (start.rank, start.world, start.rendezvous) == (rank, 2, "host:1234")
        assert (start.checkpoint, start.completed, start.term) == ("/checkpoint", 3, 7)


async def test_a_single_rank_needs_no_rendezvous(school: School) -> None:
    school.team.ranks = school.team.ranks[:1]
    await school.team.build("", 0, 1)
    await settle()
    (start,) = school.ranks[0].inbox
    assert isinstance(start, StartTrainer)
    assert start.rendezvous == ""


async def test_a_first_rank_that_does_not_answer_is_an_error(school: School) -> None:
    await school.systems[0].abort()
    with pytest.raises(ActorError):
        await school.team.build("", 0, 1)


async def test_what_ranks_have_trained_is_asked_of_each(school: School) -> None:
    school.trained = [4, 5]
    assert await school.team.standing() == [4, 5]


async def test_a_rank_that_does_not_answer_has_trained_nothing(school: School) -> None:
    await school.systems[1].abort()
    assert await school.team.standing() == [3, -1]


async def test_an_order_is_done_when_the_last_rank_says_so(school: School) -> None:
    school.team.train(3, 0, ())
    assert not school.team.answered("train", 3, 1)
    assert school.team.answered("train", 3, 0)


async def test_an_answer_that_comes_twice_is_none(school: School) -> None:
    school.team.train(3, 0, ())
    assert not school.team.answered("train", 3, 0)
    assert not school.team.answered("train", 3, 0)
    assert school.team.answered("train", 3, 1)
    assert not school.team.answered("train", 3, 1)


async def test_the_answer_to_an_earlier_order_is_none(school: School) -> None:
    school.team.save(2, "/two", "")
    school.team.save(3, "/three", "")
    assert not school.team.answered("save", 2, 0)
    assert school.team.answered("save", 3, 0)


async def test_only_ranks_that_have_not_answered_are_reminded(school: School) -> None:
    school.team.train(3, 5, ())
    school.team.publish(3, evaluation=True, store=STORE)
    school.team.save(3, "/three", "/export")
    school.team.answered("train", 3, 0)
    school.team.answered("save", 3, 0)
    await settle()
    school.team.remind()
    await settle()
    first, second = school.ranks
    assert [len(first.all(kind)) for kind in (Train, Publish, SaveCheckpoint)] == [1, 2, 1]
    assert second.all(Train) == [Train(3, 5, ())] * 2
    assert second.all(Publish) == second.all(SaveCheckpoint) == []


async def test_a_worker_is_a_rank_only_as_the_very_process(school: School) -> None:
    rank = school.team.ranks[0]
    reborn = WorkerRefs(rank.worker, 99, *[rank.leader] * 4)
    assert school.team.includes(rank)
    assert not school.team.includes(reborn)
    assert school.team.names == {"reserved/0", "reserved/1"}
