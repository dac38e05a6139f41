"""The trainer ranks as the job runner sees them: orders are repeated until they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from job_kit import STORE, Recorder, job, recorder, settle
from runtime_kit import Cluster

from spotlight.actors.coordinator.roster import Rank
from spotlight.actors.coordinator.trainer_team import TrainerTeam
from spotlight.actors.protocol import (
    DropTrainer,
    GetTrainer,
    NodeReport,
    Publish,
    SaveCheckpoint,
    StartTrainer,
    Train,
    TrainerAt,
    TrainerListens,
    WorkerRefs,
)
from spotlight.actors.runtime import Actor, Message

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
        self.team = TrainerTeam(runner, job(), "job-1", "/run", 7, answer_limit_s=5.0)
        self.systems = [await self.cluster.system(f"rank-{rank}") for rank in range(2)]
        for rank, system in enumerate(self.systems):

            def answer(message: Message, rank: int = rank) -> Message | None:
                known = message == GetTrainer("job-1")
                return TrainerAt(self.trained[rank], 7) if known else None

            self.ranks.append(await recorder(system, "trainer", answer=answer))
        self.workers = [
            WorkerRefs(f"reserved/{rank}", 10 + rank, *[trainer.ref] * 3)
            for rank, trainer in enumerate(self.ranks)
        ]
        self.team.ranks = tuple(Rank(worker, "reserved", STORE) for worker in self.workers)


@pytest.fixture
async def school() -> AsyncIterator[School]:
    async with Cluster() as cluster:
        school = School(cluster)
        await school.open()
        yield school


async def test_the_other_ranks_are_built_at_the_rendezvous_of_the_first(school: School) -> None:
    school.team.build(3)
    await settle()
    assert school.ranks[1].inbox == [], "nobody knows yet where to come"
    school.team.start_others(TrainerListens("host:1234", 7))
    school.team.start_others(TrainerListens("host:1234", 7))
    await settle()
    for rank, trainer in enumerate(school.ranks):
        (start,) = trainer.all(StartTrainer)
        assert (start.rank, start.world, start.rendezvous) == (rank, 2, "host:1234" * rank)
        assert (start.run_folder, start.completed, start.term) == ("/run", 3, 7)


async def test_a_rendezvous_of_another_term_calls_nobody(school: School) -> None:
    school.team.build(3)
    school.team.start_others(TrainerListens("host:1234", 6))
    await settle()
    assert school.ranks[1].inbox == []


async def test_ranks_are_built_when_all_say_so(school: School) -> None:
    school.team.build(3)
    assert not school.team.answered("start", 3, 0)
    school.team.start_others(TrainerListens("host:1234", 7))
    assert school.team.answered("start", 3, 1)


async def test_a_single_rank_needs_no_rendezvous(school: School) -> None:
    school.team.ranks = school.team.ranks[:1]
    school.team.build(0)
    await settle()
    (start,) = school.ranks[0].inbox
    assert isinstance(start, StartTrainer)
    assert start.rendezvous == ""
    assert school.team.answered("start", 0, 0)


async def test_what_ranks_have_trained_is_asked_of_each(school: School) -> None:
    school.trained = [4, 5]
    assert await school.team.standing() == [4, 5]


async def test_a_rank_that_does_not_answer_has_trained_nothing(school: School) -> None:
    await school.systems[1].abort()
    assert await school.team.standing() == [3, -1]


async def test_a_rank_is_asked_again_only_when_it_has_answered(school: School) -> None:
    heard: list[TrainerAt] = []
    rank = school.team.ranks[0]
    school.team.inquire(rank, heard.append)
    school.team.inquire(rank, heard.append)
    await settle()
    await settle()
    assert heard == [TrainerAt(3, 7)]
    school.team.inquire(rank, heard.append)
    await settle()
    await settle()
    assert len(heard) == 2


async def test_an_order_is_done_when_the_last_rank_says_so(school: School) -> None:
    school.team.train(3, 0, ())
    assert not school.team.answered("train", 3, 1)
    assert school.team.answered("train", 3, 0)


async def test_training_waits_until_the_checkpoint_before_it_is_written(school: School) -> None:
    school.team.save(3, export=False)
    school.team.train(3, 0, ())
    school.team.remind()
    await settle()
    assert not any(rank.all(Train) for rank in school.ranks)
    assert school.team.answered("save", 3, 0)
    await settle()
    assert all(len(rank.all(Train)) == 1 for rank in school.ranks)


async def test_an_answer_that_comes_twice_is_none(school: School) -> None:
    school.team.train(3, 0, ())
    assert not school.team.answered("train", 3, 0)
    assert not school.team.answered("train", 3, 0)
    assert school.team.answered("train", 3, 1)
    assert not school.team.answered("train", 3, 1)


async def test_the_answer_to_an_earlier_order_is_none(school: School) -> None:
    school.team.save(2, export=False)
    school.team.save(3, export=False)
    assert not school.team.answered("save", 2, 0)
    assert school.team.answered("save", 3, 0)


async def test_only_ranks_that_have_not_answered_are_reminded(school: School) -> None:
    school.team.train(3, 5, ())
    school.team.publish(3, evaluation=True)
    school.team.save(3, export=True)
    school.team.answered("train", 3, 0)
    school.team.answered("save", 3, 0)
    await settle()
    school.team.remind()
    await settle()
    first, second = school.ranks
    assert [len(first.all(kind)) for kind in (Train, Publish, SaveCheckpoint)] == [1, 2, 1]
    assert second.all(Train) == [Train(3, 5, ())] * 2
    assert second.all(Publish) == second.all(SaveCheckpoint) == []


async def test_weights_are_published_into_the_store_of_the_first_ranks_node(school: School) -> None:
    school.team.publish(3, evaluation=True)
    await settle()
    assert school.ranks[0].inbox == [Publish(3, True, STORE)]


async def test_only_the_very_actor_that_was_appointed_is_a_rank(school: School) -> None:
    first, second = (trainer.ref for trainer in school.ranks)
    assert school.team.is_rank(first, 0)
    assert school.team.is_rank(second, 1)
    assert not school.team.is_rank(second, 0)
    assert not school.team.is_rank(first, -2)
    assert not school.team.is_rank(first, 2)
    assert not school.team.is_rank(None, 0)
    assert school.team.names == {"reserved/0", "reserved/1"}


async def test_workers_that_are_not_ranks_any_more_are_told_to_free_what_they_hold(
    school: School,
) -> None:
    school.team.ranks = school.team.ranks[:1]
    node = NodeReport(1, "reserved", "reserved", school.ranks[0].ref, tuple(school.workers), STORE)
    school.team.dismiss_others(node)
    await settle()
    assert school.ranks[1].inbox == [], "ranks that were found may be of an earlier term"
    school.team.build(0)
    school.team.dismiss_others(node)
    await settle()
    assert school.ranks[0].all(DropTrainer) == []
    assert school.ranks[1].inbox == [DropTrainer("job-1", 7)]
