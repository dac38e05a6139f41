"""Crashes, children and endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from runtime_kit import (
    Accountant,
    Bump,
    Cluster,
    Explode,
    Hold,
    Name,
    ReadTally,
    Watcher,
    WhoAsks,
    tally,
)

from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, handles
from spotlight.errors import ActorDied
from spotlight.timings import RuntimeTimings

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def system() -> AsyncIterator[ActorSystem]:
    async with Cluster(timings=RuntimeTimings(stop_grace_s=1.0)) as cluster:
        yield await cluster.system("here")


def tasks_besides_this() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


# --- crashes --------------------------------------------------------------------------


async def test_a_handler_that_raises_on_a_tell_crashes_the_actor(system: ActorSystem) -> None:
    ref = await system.spawn(Accountant, "accountant")
    system.tell(ref, Explode("boom"))
    assert await system.wait_stopped(ref) == "crashed"
    with pytest.raises(ActorDied):
        await tally(system, ref)


async def test_an_actor_that_is_started_again_is_a_new_incarnation(system: ActorSystem) -> None:
    ref = await system.spawn(Accountant, "accountant")
    system.tell(ref, Explode("boom"))
    await system.wait_stopped(ref)
    again = await system.spawn(Accountant, "accountant")
    with pytest.raises(ActorDied):
        await tally(system, ref)
    system.tell(ref, Bump(1))
    assert system.dead_letters.counts["dead_incarnation"] == 1
    assert await tally(system, again) == ()


async def test_a_crash_of_a_linked_child_is_its_parents(system: ActorSystem) -> None:
    class Parent(Actor):
        async def started(self) -> None:
            self.child = await self.spawn(Accountant, "child", linked=True)

    parent = await system.spawn(Parent, "parent")
    system.tell(system.well_known(system.address, "parent/child"), Explode("boom"))
    assert await system.wait_stopped(parent) == "crashed"


async def test_a_crash_of_a_linked_root_stops_the_system_and_says_why(system: ActorSystem) -> None:
    bystander = await system.spawn(Accountant, "bystander")
    ref = await system.spawn(Accountant, "accountant", linked=True)
    system.tell(ref, Explode("boom"))
    with pytest.raises(ActorDied, match="boom"):
        await system.wait_closed()
    assert await system.wait_stopped(bystander) == "stopped"
    assert tasks_besides_this() == set()


async def test_by_default_a_crash_concerns_nobody_but_the_watchers(system: ActorSystem) -> None:
    class Parent(Actor):
        async def started(self) -> None:
            self.child = await self.spawn(Accountant, "child")

        @handles(WhoAsks)
        async def on_who(self, message: WhoAsks) -> Name:
            return Name("still here")

    parent = await system.spawn(Parent, "parent")
    system.tell(system.well_known(system.address, "parent/child"), Explode("boom"))
    await asyncio.sleep(1.0)
    assert await system.ask(parent, WhoAsks(), timeout_s=1.0) == Name("still here")


async def test_an_error_in_the_start_is_raised_by_spawn(system: ActorSystem) -> None:
    class Broken(Actor):
        async def started(self) -> None:
            raise ValueError("no such disk")

    with pytest.raises(ValueError, match="no such disk"):
        await system.spawn(Broken, "broken", linked=True)
    await system.spawn(Accountant, "broken")  # the name is free again
    assert system.failure is None


# --- children and tasks ---------------------------------------------------------------


async def test_children_end_before_their_parent(system: ActorSystem) -> None:
    ended: list[str] = []

    class Node(Actor):
        def __init__(self, depth: int) -> None:
            self.depth = depth

        async def started(self) -> None:
            for name in ("left", "right") if self.depth else ():
                await self.spawn(lambda: Node(self.depth - 1), name)

        async def stopping(self, reason: str) -> None:
            await asyncio.sleep(0.01)
            ended.append(self.ref.name)

    root = await system.spawn(lambda: Node(2), "root")
    await system.stop(root)
    assert len(ended) == 7
    for position, name in enumerate(ended):
        assert not any(later.startswith(f"{name}/") for later in ended[position:])
    assert tasks_besides_this() == set()


async def test_a_crashing_parent_takes_its_children_along(system: ActorSystem) -> None:
    class Parent(Accountant):
        async def started(self) -> None:
            self.child = await self.spawn(Accountant, "child")

    parent = await system.spawn(Parent, "parent")
    child = system.well_known(system.address, "parent/child")
    await tally(system, child)
    system.tell(parent, Explode("boom"))
    await system.wait_stopped(parent)
    with pytest.raises(ActorDied):
        await tally(system, child)


async def test_a_crashing_task_crashes_its_actor(system: ActorSystem) -> None:
    class Worker(Accountant):
        async def started(self) -> None:
            self.run_task(self.work())

        async def work(self) -> None:
            await asyncio.sleep(5.0)
            raise OSError("disk is gone")

    ref = await system.spawn(Worker, "worker")
    with pytest.raises(ActorDied):  # the handler that runs is cut short
        await system.ask(ref, Hold(), timeout_s=60.0)
    assert await system.wait_stopped(ref) == "crashed"


async def test_tasks_of_an_actor_are_cancelled_when_it_ends(system: ActorSystem) -> None:
    ended = asyncio.Event()

    class Worker(Actor):
        async def started(self) -> None:
            self.run_task(self.work())
            await asyncio.sleep(0)

        async def work(self) -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                ended.set()

    ref = await system.spawn(Worker, "worker")
    await asyncio.sleep(0)
    await system.stop(ref)
    assert ended.is_set()
    assert tasks_besides_this() == set()


# --- endings --------------------------------------------------------------------------


async def test_a_task_that_the_stopping_hook_starts_ends_with_the_actor(
    system: ActorSystem,
) -> None:
    class Late(Actor):
        async def stopping(self, reason: str) -> None:
            self.run_task(asyncio.sleep(1e6))

    await system.stop(await system.spawn(Late, "late"))
    assert tasks_besides_this() == set()


async def test_stopping_answers_queued_asks_with_actor_died(system: ActorSystem) -> None:
    actor = Accountant()
    ref = await system.spawn(lambda: actor, "accountant")
    system.tell(ref, Hold())
    await actor.holding.wait()
    asking = [asyncio.ensure_future(tally(system, ref)) for _ in range(3)]
    await asyncio.sleep(0)
    await system.stop(ref)
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(result) for result in results] == [ActorDied] * 3


async def test_stopping_lets_the_running_handler_finish_within_the_grace(
    system: ActorSystem,
) -> None:
    actor = Accountant()
    ref = await system.spawn(lambda: actor, "accountant")
    asking = asyncio.ensure_future(system.ask(ref, Hold(), timeout_s=60.0))
    await actor.holding.wait()
    stopping = asyncio.ensure_future(system.stop(ref))
    await asyncio.sleep(0.5)
    actor.gate.set()
    await asking
    await stopping
    assert asyncio.get_running_loop().time() < 1.0


async def test_stopping_lets_the_running_call_finish_within_the_grace(system: ActorSystem) -> None:
    actor = Accountant()
    ref = await system.spawn(lambda: actor, "accountant")
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.sleep(0.5)
        ended.set()

    actor.call_in_turn(work)
    await began.wait()
    await system.stop(ref)
    assert ended.is_set()


async def test_stopping_cancels_a_handler_that_takes_longer_than_the_grace(
    system: ActorSystem,
) -> None:
    actor = Accountant()
    ref = await system.spawn(lambda: actor, "accountant")
    asking = asyncio.ensure_future(system.ask(ref, Hold(), timeout_s=60.0))
    await actor.holding.wait()
    await system.stop(ref)
    with pytest.raises(ActorDied):
        await asking
    assert actor.stopped_because == "stopped"


async def test_the_stopping_hook_runs_after_a_crash_too(system: ActorSystem) -> None:
    actor = Accountant()
    ref = await system.spawn(lambda: actor, "accountant")
    system.tell(ref, Explode("boom"))
    await system.wait_stopped(ref)
    assert actor.stopped_because == "crashed"


async def test_a_stopping_hook_that_hangs_or_raises_does_not_keep_the_actor(
    system: ActorSystem,
) -> None:
    class Hanging(Actor):
        async def stopping(self, reason: str) -> None:
            await asyncio.sleep(1e6)

    class Raising(Actor):
        async def stopping(self, reason: str) -> None:
            raise OSError("disk is gone")

    for factory in (Hanging, Raising):
        ref = await system.spawn(factory, "actor")
        await system.stop(ref)
        assert await system.wait_stopped(ref) == "stopped"
    assert asyncio.get_running_loop().time() < 5.0


async def test_a_stopping_hook_can_still_ask_others(system: ActorSystem) -> None:
    other = await system.spawn(Accountant, "other")
    answers: list[object] = []

    class Polite(Actor):
        async def stopping(self, reason: str) -> None:
            answers.append(await self.ask(other, WhoAsks(), timeout_s=1.0))

    await system.stop(await system.spawn(Polite, "polite"))
    assert answers == [Name("polite")]


async def test_a_task_that_ignores_its_cancellation_does_not_keep_the_actor(
    system: ActorSystem,
) -> None:
    release = asyncio.Event()

    class Stubborn(Actor):
        async def started(self) -> None:
            self.run_task(self.work())
            await asyncio.sleep(0)

        async def work(self) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

    ref = await system.spawn(Stubborn, "stubborn")
    await asyncio.sleep(0)
    await system.stop(ref)
    assert await system.wait_stopped(ref) == "stopped"
    release.set()


async def test_an_actor_can_stop_itself(system: ActorSystem) -> None:
    class Mortal(Actor):
        @handles(ReadTally)
        async def on_read(self, message: ReadTally) -> Name:
            self.stop()
            return Name("last words")

        @handles(WhoAsks)
        async def on_who(self, message: WhoAsks) -> Name:
            await self.system.stop(self.ref)
            return Name("last words")

    for message in (ReadTally(), WhoAsks()):
        ref = await system.spawn(Mortal, "mortal")
        assert await system.ask(ref, message, timeout_s=5.0) == Name("last words")
        assert await system.wait_stopped(ref) == "stopped"


async def test_messages_queued_at_the_end_are_dead_letters(system: ActorSystem) -> None:
    actor = Accountant()
    ref = await system.spawn(lambda: actor, "accountant")
    system.tell(ref, Hold())
    await actor.holding.wait()
    system.tell(ref, Bump(1))
    await system.stop(ref)
    assert system.dead_letters.counts == {"actor_ended": 1}


async def test_closing_the_system_leaves_no_task(system: ActorSystem) -> None:
    for number in range(5):
        ref = await system.spawn(Accountant, f"accountant-{number}")
        system.tell(ref, Hold())
    asking = asyncio.ensure_future(system.ask(ref, ReadTally(), timeout_s=60.0))
    await asyncio.sleep(0)
    await system.aclose()
    with pytest.raises(ActorDied):
        await asking
    await system.aclose()
    assert tasks_besides_this() == set()


async def test_a_closing_system_starts_nothing(system: ActorSystem) -> None:
    await system.aclose()
    with pytest.raises(ActorDied, match="stopping"):
        await system.spawn(Accountant, "late")


async def test_cancelling_a_spawn_stops_what_it_started(system: ActorSystem) -> None:
    class Slow(Actor):
        async def started(self) -> None:
            await asyncio.sleep(30.0)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await system.spawn(Slow, "slow")
    await asyncio.sleep(0.1)
    assert "slow" not in system.cells


async def test_a_start_that_never_ends_is_a_crash() -> None:
    class Stuck(Actor):
        async def started(self) -> None:
            await asyncio.sleep(1e6)

    async with Cluster(timings=RuntimeTimings(start_limit_s=10.0)) as cluster:
        system = await cluster.system("here")
        with pytest.raises(TimeoutError):
            await system.spawn(Stuck, "stuck")


async def test_a_name_is_taken_once_and_has_no_slash(system: ActorSystem) -> None:
    await system.spawn(Accountant, "accountant")
    with pytest.raises(ValueError, match="accountant already"):
        await system.spawn(Accountant, "accountant")
    for name in ("", "a/b"):
        with pytest.raises(ValueError, match="slash"):
            await system.spawn(Accountant, name)


async def test_an_actor_of_another_process_cannot_be_stopped(system: ActorSystem) -> None:
    with pytest.raises(ValueError, match="another process"):
        await system.stop(ActorRef("memory://there", "accountant", 7))


async def test_an_aborted_system_runs_no_hook_and_leaves_no_task() -> None:
    actor = Accountant()
    async with Cluster() as cluster:
        system = await cluster.system("here")
        ref = await system.spawn(lambda: actor, "accountant")
        system.tell(ref, Hold())
        await actor.holding.wait()
        await system.abort()
        assert actor.stopped_because is None
        assert tasks_besides_this() == set()


async def test_an_actor_that_is_stopping_as_its_system_is_aborted_lets_go_of_all_it_has() -> None:
    class Holder(Actor):
        has_let_go = False

        async def stopping(self, reason: str) -> None:
            await asyncio.sleep(3600.0)

        def aborted(self) -> None:
            self.has_let_go = True

    holder = Holder()
    async with Cluster() as cluster:
        system = await cluster.system("here")
        ref = await system.spawn(lambda: holder, "holder")
        stopping = asyncio.ensure_future(system.stop(ref))
        await asyncio.sleep(0.01)
        await system.abort()
        await stopping
    assert holder.has_let_go


async def test_watchers_hear_of_the_end_after_the_stopping_hook(system: ActorSystem) -> None:
    order: list[str] = []

    class Slow(Actor):
        async def stopping(self, reason: str) -> None:
            await asyncio.sleep(0.5)
            order.append("hook")

    watched = await system.spawn(Slow, "slow")
    watcher = Watcher(watched)
    await system.spawn(lambda: watcher, "watcher")
    stopping = asyncio.ensure_future(system.stop(watched))
    await watcher.first_down.wait()
    order.append("down")
    await stopping
    assert order == ["hook", "down"]
