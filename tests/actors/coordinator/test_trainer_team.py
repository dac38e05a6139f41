"""The trainer ranks as the job runner sees them: orders are repeated until they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from job_kit import STORE, Recorder, job, offer, recorder, settle
from msgspec import structs
from runtime_kit import Cluster

from spotlight.actors.coordinator.job.trainer_team import TrainerTeam
from spotlight.actors.coordinator.tenant.rank import Rank
from spotlight.actors.protocol import (
    GetTrainer,
    Publish,
    SaveState,
    StartTrainer,
    Train,
    TrainerReport,
    WorkerRefs,
)
from spotlight.actors.runtime import Actor, Message
from spotlight.types import StoreEndpoint

pytestmark = pytest.mark.virtual_time

LISTENS = TrainerReport(7, 0, listens_at="host:1234")
"""Rank 0, as it is built."""
STATE = ((offer("state/1"),),)


def first_saves() -> dict[int, tuple[StoreEndpoint, ...]]:
    """The first rank leaves its state in its node's store."""
    return {0: (STORE,)}


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
        self.team = TrainerTeam(runner, job(), "job-1", 7, answer_limit_s=5.0)
        self.systems = [await self.cluster.system(f"rank-{rank}") for rank in range(2)]
        for rank, system in enumerate(self.systems):

            def answer(message: Message, rank: int = rank) -> Message | None:
                known = message == GetTrainer("job-1")
                return TrainerReport(7, rank, self.trained[rank]) if known else None

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
    school.team.build(3, STATE)
    await settle()
    assert school.ranks[1].inbox == [], "nobody knows yet where to come"
    school.team.start_others(LISTENS)
    school.team.start_others(LISTENS)
    await settle()
    for rank, trainer in enumerate(school.ranks):
        (start,) = trainer.all(StartTrainer)
        assert (start.rank, start.world, start.rendezvous) == (rank, 2, "host:1234" * rank)
        assert (start.state, start.completed, start.term) == (STATE, 3, 7)


async def test_a_rendezvous_of_another_term_calls_nobody(school: School) -> None:
    school.team.build(3, STATE)
    school.team.start_others(structs.replace(LISTENS, term=6))
    await settle()
    assert school.ranks[1].inbox == []


async def test_only_the_first_rank_says_where_to_come(school: School) -> None:
    school.team.build(3, STATE)
    school.team.start_others(structs.replace(LISTENS, rank=1))
    await settle()
    assert school.ranks[1].inbox == []


async def test_ranks_are_built_when_all_say_so(school: School) -> None:
    school.team.build(3, STATE)
    assert not school.team.answered("start", 7, 0)
    school.team.start_others(LISTENS)
    assert school.team.answered("start", 7, 1)


async def test_ranks_of_an_earlier_term_that_are_built_are_no_answer(school: School) -> None:
    school.team.ranks = school.team.ranks[:1]
    school.team.build(3, STATE)
    assert not school.team.answered("start", 6, 0)
    assert school.team.answered("start", 7, 0)


async def test_a_single_rank_needs_no_rendezvous(school: School) -> None:
    school.team.ranks = school.team.ranks[:1]
    school.team.build(0, ())
    await settle()
    (start,) = school.ranks[0].inbox
    assert isinstance(start, StartTrainer)
    assert start.rendezvous == ""
    assert school.team.answered("start", 7, 0)


async def test_what_ranks_have_trained_is_asked_of_each(school: School) -> None:
    school.trained = [4, 5]
    assert await school.team.standing() == [4, 5]


async def test_a_rank_that_does_not_answer_has_trained_nothing(school: School) -> None:
    await school.systems[1].abort()
    assert await school.team.standing() == [3, -1]


async def test_a_rank_is_asked_again_only_when_it_has_answered(school: School) -> None:
    heard: list[TrainerReport] = []
    rank = school.team.ranks[0]
    school.team.inquire(rank, heard.append)
    school.team.inquire(rank, heard.append)
    await settle()
    await settle()
    assert heard == [TrainerReport(7, 0, 3)]
    school.team.inquire(rank, heard.append)
    await settle()
    await settle()
    assert len(heard) == 2


async def test_an_order_is_done_when_the_last_rank_says_so(school: School) -> None:
    school.team.train(3, 0, ())
    assert not school.team.answered("train", (3, "whole"), 1)
    assert school.team.answered("train", (3, "whole"), 0)


async def test_who_is_to_train_is_told_what_to_take_of_its_weights_before(school: School) -> None:
    publish, save = Publish(3, True, STORE), SaveState(3, (STORE,))
    school.team.publish(3, evaluation=True)
    school.team.save(3, first_saves)
    school.team.train(3, 0, ())
    await settle()
    first, second = (rank.all(Train) for rank in school.ranks)
    assert first == [Train(3, 0, (), publish=publish, save=save)]
    assert second == [Train(3, 0, (), publish=publish)]


async def test_what_is_taken_already_is_not_asked_for_again(school: School) -> None:
    school.team.publish(3, evaluation=True)
    school.team.save(3, first_saves)
    school.team.answered("publish", 3, 0)
    school.team.answered("save", 3, 0)
    school.team.train(3, 0, ())
    await settle()
    first, second = (rank.all(Train) for rank in school.ranks)
    assert first == [Train(3, 0, ())]
    assert second == [Train(3, 0, (), publish=Publish(3, True, STORE))]


async def test_training_waits_for_a_checkpoint(school: School) -> None:
    school.team.save(3, first_saves, is_checkpoint=True)
    school.team.train(3, 0, ())
    school.team.remind()
    await settle()
    assert not any(rank.all(Train) for rank in school.ranks)
    school.team.answered("save", 3, 0)
    school.team.state_is_kept()
    await settle()
    assert [rank.all(Train) for rank in school.ranks] == [[Train(3, 0, ())]] * 2


async def test_training_waits_while_an_older_state_is_being_saved(school: School) -> None:
    school.team.save(2, first_saves)
    school.team.save(3, first_saves)
    school.team.train(3, 0, ())
    school.team.remind()
    await settle()
    assert not any(rank.all(Train) for rank in school.ranks)
    assert school.team.answered("save", 2, 0)
    await settle()
    assert school.ranks[0].all(SaveState) == [SaveState(2, (STORE,))] * 2, "it is not on record"
    school.team.state_is_kept()
    await settle()
    assert school.ranks[0].all(Train) == [Train(3, 0, (), save=SaveState(3, (STORE,)))]
    assert len(school.ranks[1].all(Train)) == 1


async def test_an_answer_that_comes_twice_is_none(school: School) -> None:
    school.team.train(3, 0, ())
    assert not school.team.answered("train", (3, "whole"), 0)
    assert not school.team.answered("train", (3, "whole"), 0)
    assert school.team.answered("train", (3, "whole"), 1)
    assert not school.team.answered("train", (3, "whole"), 1)


async def test_the_answer_to_an_earlier_order_is_none(school: School) -> None:
    school.team.publish(2, evaluation=False)
    school.team.publish(3, evaluation=False)
    for rank in range(2):
        assert not school.team.answered("publish", 2, rank)
    assert not school.team.answered("publish", 3, 0)
    assert school.team.answered("publish", 3, 1)


async def test_only_ranks_that_have_not_answered_are_reminded(school: School) -> None:
    school.team.train(3, 5, ())
    school.team.publish(3, evaluation=True)
    school.team.save(3, first_saves)
    school.team.answered("train", (3, "whole"), 0)
    school.team.answered("publish", 3, 1)
    school.team.answered("save", 3, 0)
    await settle()
    school.team.remind()
    await settle()
    first, second = school.ranks
    assert [len(first.all(kind)) for kind in (Train, Publish, SaveState)] == [1, 2, 1]
    assert second.all(Train) == [Train(3, 5, ())] * 2
    assert (len(second.all(Publish)), second.all(SaveState)) == (1, [])


async def test_every_rank_publishes_into_the_store_of_its_node(school: School) -> None:
    school.team.publish(3, evaluation=True)
    await settle()
    assert [rank.inbox for rank in school.ranks] == [[Publish(3, True, STORE)]] * 2


async def test_only_the_very_actor_that_was_appointed_is_a_rank(school: School) -> None:
    first, second = (trainer.ref for trainer in school.ranks)
    assert school.team.is_rank(first, 0)
    assert school.team.is_rank(second, 1)
    assert not school.team.is_rank(second, 0)
    assert not school.team.is_rank(first, -2)
    assert not school.team.is_rank(first, 2)
    assert not school.team.is_rank(None, 0)
    assert school.team.names == {"reserved/0", "reserved/1"}


async def test_orders_wait_in_their_order_while_nobody_trains(school: School) -> None:
    ranks, school.team.ranks = school.team.ranks, ()
    school.team.publish(3, evaluation=True)
    school.team.train(3, 0, ())
    school.team.remind()
    school.team.ranks = ranks[:1]
    school.team.build(3, STATE)
    await settle()
    assert [type(message) for message in school.ranks[0].inbox] == [StartTrainer]
    assert school.team.answered("start", 7, 0)
    await settle()
    publish = Publish(3, True, STORE)
    assert school.ranks[0].inbox[1:] == [publish, Train(3, 0, (), publish=publish)]


async def test_orders_wait_until_the_last_rank_is_built(school: School) -> None:
    school.team.build(3, STATE)
    school.team.start_others(LISTENS)
    school.team.train(3, 0, ())
    assert not school.team.answered("start", 7, 0)
    await settle()
    assert not any(rank.all(Train) for rank in school.ranks)
    assert school.team.answered("start", 7, 1)
    await settle()
    assert all(rank.all(Train) == [Train(3, 0, ())] for rank in school.ranks)


async def test_who_saves_what_is_settled_when_the_ranks_are_there(school: School) -> None:
    ranks, school.team.ranks = school.team.ranks, ()
    school.team.save(3, lambda: {0: (school.team.ranks[0].store,)})
    school.team.ranks = ranks
    school.team.build(3, STATE)
    school.team.start_others(LISTENS)
    for rank in range(2):
        school.team.answered("start", 7, rank)
    await settle()
    assert school.ranks[0].all(SaveState) == [SaveState(3, (STORE,))]
    assert school.ranks[1].all(SaveState) == []


async def test_training_that_waited_for_ranks_still_has_the_state_before_it_saved(
    school: School,
) -> None:
    ranks, school.team.ranks = school.team.ranks, ()
    school.team.save(3, first_saves)
    school.team.train(3, 0, ())
    school.team.ranks = ranks[:1]
    school.team.build(3, STATE)
    school.team.answered("start", 7, 0)
    await settle()
    (train,) = school.ranks[0].all(Train)
    assert train.save == SaveState(3, (STORE,))


async def test_an_answer_is_awaited_once_of_those_that_have_the_order(school: School) -> None:
    school.team.save(3, first_saves)
    assert school.team.awaits("save", 3, 0)
    assert not school.team.awaits("save", 3, 1), "it was told nothing"
    assert not school.team.awaits("save", 2, 0)
    school.team.answered("save", 3, 0)
    assert not school.team.awaits("save", 3, 0)
