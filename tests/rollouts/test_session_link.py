"""Sessions on a simulated cluster: what a program asks for it gets, once, whatever happens."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from session_kit import PROMPT, order, program, simulate, work

from spotlight.actors.protocol.door import AccessRevoked, RevokeAccess
from spotlight.actors.protocol.sessions import BeginSession, GroupOrder, SessionRefused, TakeGroups
from spotlight.actors.protocol.users import (
    CancelJob,
    CancelRefused,
    GetStatus,
    JobStatus,
    PreemptNode,
)
from spotlight.actors.runtime import Actor
from spotlight.errors import JobError, NotAllowed, RequestRefused, SessionEnded
from spotlight.rollouts.groups import RolloutRequest
from spotlight_simulation.memory_cluster import COORDINATOR, DOOR, Cluster
from spotlight_simulation.memory_store import SimulatedStore


def test_groups_come_as_they_are_done_each_once(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(number) for number in range(1, 7)])
            groups = await loop.done(6)
            await asyncio.sleep(30.0)
        assert [group.number for group in groups] == [1, 2, 3, 4, 5, 6]
        assert len(loop.groups) == 6
        for group in groups:
            assert [sample.seed for sample in group.samples] == [0, 1, 2, 3]
            assert all(len(sample.rewards) == 1 for sample in group.samples)
            assert group.failed == ()

    simulate(tmp_path, scene)


def test_a_sample_is_a_function_of_weights_prompt_and_seed(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1)])
            await loop.done(1)
            await loop.publish(1)
            await loop.link.submit([order(2, version=1), order(3, version=0)])
            first, new, again = await loop.done(3)
            assert (first.version, new.version, again.version) == (0, 1, 0)
            assert loop.latents[1] == loop.latents[3]
            assert loop.latents[1] == loop.expected(order(1))
            assert loop.latents[2] == loop.expected(order(2, version=1))

    simulate(tmp_path, scene)


def test_what_was_taken_is_deleted(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1), order(2, pictures=True), order(3, seeds=2)])
            await loop.done(3)
            await asyncio.sleep(10.0)
            assert loop.left_in_store() == []

    simulate(tmp_path, scene)


def test_pictures_are_offered_where_they_are_wanted(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1, pictures=True), order(2)])
            with_pictures, without = await loop.done(2)
            assert {loop.pictures[sample.seed] for sample in with_pictures.samples} == {b"picture"}
            assert {sample.picture for sample in without.samples} == {None}

    simulate(tmp_path, scene)


def test_of_previews_there_are_rewards_alone(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1, kind="preview", steps=4)])
            (group,) = await loop.done(1)
            assert all(len(s.rewards) == 1 and s.bundle is None for s in group.samples)
            assert loop.left_in_store() == []

    simulate(tmp_path, scene)


def test_without_a_reward_nothing_is_scored(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster, rewards=[]) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1)])
            (group,) = await loop.done(1)
            assert {sample.rewards for sample in group.samples} == {()}

    simulate(tmp_path, scene)


def test_rollouts_go_before_previews(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n, kind="preview") for n in range(1, 9)])
            await loop.link.submit([order(n) for n in range(9, 13)])
            await loop.done(12)
            assert {group.number for group in loop.groups[:7]} >= {9, 10, 11, 12}

    simulate(tmp_path, scene)


def test_what_is_said_twice_counts_once(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.publish(0)
            await loop.link.submit([order(1)])
            await loop.link.submit([order(1)])
            await loop.done(1)
            await asyncio.sleep(20.0)
            assert len(loop.groups) == 1
            assert (await loop.link.fleet()).samples == 4

    simulate(tmp_path, scene)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (order(1, version=3), "version 3, which is not there; there are: 0"),
        (order(1, window_start=-1), "window_start"),
    ],
)
def test_groups_that_cannot_be_made_are_refused(
    tmp_path: Path, wrong: GroupOrder, reason: str
) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            if wrong.window_start is not None:
                with pytest.raises(JobError, match=reason):
                    RolloutRequest(PROMPT, (0,), window_start=wrong.window_start)
                return
            with pytest.raises(RequestRefused, match=reason):
                await loop.link.submit([wrong])
            await loop.link.submit([order(2)])  # the session goes on
            await loop.done(1)

    simulate(tmp_path, scene)


@pytest.mark.parametrize(
    ("wrong", "room"),
    [
        (order(1, window_start=6), "window_start 6 .* 2 noisy steps before the last of 8"),
        (order(1, steps=2), "window_start 0 .* before the last of 2"),
    ],
)
def test_noise_that_would_reach_the_last_step_is_refused(
    tmp_path: Path, wrong: GroupOrder, room: str
) -> None:
    async def scene(cluster: Cluster) -> None:
        noisy = {"height": 16, "width": 48, "kind": "flow_sde", "steps": 8}
        async with program(cluster, sampler=noisy) as loop:
            await loop.publish(0)
            with pytest.raises(RequestRefused, match=room):
                await loop.link.submit([wrong])
            await loop.link.submit([order(2, window_start=5), order(3, kind="preview", steps=2)])
            await loop.done(2)

    simulate(tmp_path, scene)


def test_other_weights_under_a_known_version_are_refused(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            with pytest.raises(
                RequestRefused, match="version 0 is already published with other weights"
            ):
                await loop.publish(0, weights="others")

    simulate(tmp_path, scene)


def test_who_drops_groups_gets_no_more_of_them(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 41)])
            await loop.done(4)
            await loop.link.withdraw(range(1, 41))
            seen = len(loop.groups)
            await loop.link.submit([order(41)])
            async with asyncio.timeout(30.0):
                await loop.done(seen + 1)
            assert loop.groups[-1].number == 41
            assert (await loop.link.fleet()).waiting == 0
            await asyncio.sleep(10.0)
            assert loop.left_in_store() == []

    simulate(tmp_path, scene)


def test_some_groups_can_be_dropped_while_others_go_on(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 21)])
            await loop.link.withdraw(range(1, 20, 2))
            groups = await loop.done(10)
            await asyncio.sleep(20.0)
            assert [group.number for group in groups] == list(range(2, 21, 2))
            assert len(loop.groups) == 10
            assert loop.left_in_store() == []

    simulate(tmp_path, scene)


def test_what_a_lost_worker_had_begun_is_gone_on_with(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 13)])
            await loop.done(2)
            await preempt(cluster, "b", 1.0)
            groups = await loop.done(12)
            assert [group.number for group in groups] == list(range(1, 13))
            assert all(loop.latents[n] == loop.expected(order(n)) for n in range(1, 13))
            resumed = [s for g in groups for s in g.samples if s.resumed_at]
            assert resumed and all(sample.attempts > 1 for sample in resumed)
            fleet = await loop.link.fleet()
            assert fleet.resumed == len(resumed)
            assert [node.name for node in fleet.nodes if not node.notice] == ["a"]

    simulate(tmp_path, scene)


@pytest.mark.parametrize("after", [0.5, 2.0, 4.0, 7.0])
def test_a_killed_coordinator_costs_no_group_and_doubles_none(tmp_path: Path, after: float) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 17)])
            await asyncio.sleep(after)
            cluster.kill_process(COORDINATOR)
            await cluster.buried()
            await asyncio.sleep(1.0)
            await cluster.start_coordinator()
            groups = await loop.done(16)
            await asyncio.sleep(20.0)
            assert len(loop.groups) == 16
            assert all(loop.latents[n] == loop.expected(order(n)) for n in range(1, 17))
            assert [group.failed for group in groups] == [()] * 16
            assert loop.left_in_store() == []
            await loop.publish(1)
            await loop.link.submit([order(17, version=1)])
            await loop.done(17)

    simulate(tmp_path, scene)


def test_a_session_whose_program_is_gone_ends(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster, "first") as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 100)])
            await loop.done(1)
            await loop.system.abort()
            await asyncio.sleep(70.0)
            status = await look(cluster)
            assert status.outcome == "cancelled"
            assert "out of reach for 60 s" in status.reason
            assert list((tmp_path / "runs").glob("session-*")) == []
        async with program(cluster, "second") as loop:
            await loop.publish(0)
            await loop.link.submit([order(1)])
            await loop.done(1)

    simulate(tmp_path, scene)


def test_one_session_follows_another_and_leaves_nothing(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        for name in ("first", "second"):
            async with program(cluster, name) as loop:
                await loop.publish(0)
                await loop.link.submit([order(n) for n in range(1, 30)])
                await loop.done(2)
            await asyncio.sleep(1.0)
            assert (await look(cluster)).outcome == "finished"
            assert list((tmp_path / "runs").glob("session-*")) == []

    simulate(tmp_path, scene)


def test_two_programs_are_served_at_once(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster, "first") as first, program(cluster, "second") as second:
            for loop in (first, second):
                await loop.publish(0)
                await loop.link.submit([order(1)])
            for loop in (first, second):
                (done,) = await loop.done(1)
                assert len(done.samples) == 4

    simulate(tmp_path, scene)


def test_a_session_that_was_cancelled_says_so(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 30)])
            await cluster.user().ask(cluster.coordinator_actor(), CancelJob(), timeout_s=5.0)
            with pytest.raises(SessionEnded, match="cancelled by the user"):
                await loop.done(30)
            assert [str(error) for error in loop.lost] == [
                "the session has ended: cancelled by the user"
            ]

    simulate(tmp_path, scene)


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        with pytest.raises(RequestRefused, match="/nowhere"):
            async with program(cluster, model={"checkpoint": "/nowhere"}):
                pass

    simulate(tmp_path, scene)


def test_a_program_gives_no_node_notice(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            message = PreemptNode("spot-1", 10.0, False)
            with pytest.raises(NotAllowed, match="the role `submitter`, which may not say Preempt"):
                await loop.system.ask(cluster.coordinator_actor(), message, timeout_s=5.0)

    cluster = simulate(tmp_path, scene)
    assert [each["message"] for each in cluster.history.all("not_allowed")] == ["PreemptNode"]


def test_another_program_neither_takes_over_a_session_nor_ends_it(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        other = cluster.system_of("program-other", rng=random.Random(2))
        await other.start()
        async with program(cluster) as loop:
            await loop.publish(0)
            ref = await other.spawn(Actor, "link")
            began = BeginSession("tries", ref, work(), goes_on=True)
            to = cluster.coordinator_actor()
            answer = await other.ask(to, began, timeout_s=5.0, sender=ref)
            assert answer == SessionRefused("the session is somebody else's")
            assert isinstance(await other.ask(to, CancelJob(), timeout_s=5.0), CancelRefused)
            await loop.link.submit([order(1)])
            assert len(await loop.done(1)) == 1
            assert isinstance(await loop.system.ask(to, CancelJob(), timeout_s=5.0), JobStatus)
            with pytest.raises(SessionEnded, match="cancelled by the user"):
                await loop.done(30)
        await other.aclose()

    simulate(tmp_path, scene)


def test_the_next_coordinator_knows_whose_a_session_is(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        other = cluster.system_of("program-other", rng=random.Random(2))
        await other.start()
        async with program(cluster) as loop:
            await loop.publish(0)
            cluster.kill_process(COORDINATOR)
            await cluster.start_coordinator()
            await loop.link.submit([order(1)])
            assert len(await loop.done(1)) == 1
            to = cluster.coordinator_actor()
            assert isinstance(await other.ask(to, CancelJob(), timeout_s=5.0), CancelRefused)
        await other.aclose()

    simulate(tmp_path, scene)


def test_a_revoked_node_is_out_and_others_do_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_back: list[str] = []
    revoke = SimulatedStore.revoke

    def spied(store: SimulatedStore, owner: str) -> None:
        taken_back.append(owner)
        revoke(store, owner)

    monkeypatch.setattr(SimulatedStore, "revoke", spied)

    async def scene(cluster: Cluster) -> None:
        user = cluster.user()
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(number) for number in range(1, 11)])
            await loop.done(1)
            taken_back.clear()
            door = user.well_known(cluster.coordinator_actor().address, DOOR)
            answer = await user.ask(door, RevokeAccess("b"), timeout_s=5.0)
            assert answer == AccessRevoked(())
            assert taken_back == ["b"]
            assert len(await loop.done(10)) == 10
        cluster.kill_process(COORDINATOR)
        await cluster.start_coordinator()
        await asyncio.sleep(60.0)
        status = await user.ask(cluster.coordinator_actor(), GetStatus(), timeout_s=5.0)
        assert isinstance(status, JobStatus)
        assert {worker.node for worker in status.workers} == {"a"}

    simulate(tmp_path, scene)


def test_a_stranger_cannot_speak_for_the_program(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            began = BeginSession("tries", loop.link.user, work(), goes_on=True)
            with pytest.raises(NotAllowed):
                await cluster.user().ask(cluster.coordinator_actor(), began, timeout_s=5.0)
            runner = loop.system.well_known("memory://coordinator", "coordinator/session-tries")
            with pytest.raises(NotAllowed):
                await cluster.user().ask(runner, TakeGroups(), timeout_s=5.0)

    simulate(tmp_path, scene)


def test_the_status_shows_the_session(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 5)])
            await loop.done(4)
            await asyncio.sleep(1.0)
            status = await look(cluster)
            assert (status.job, status.phase) == ("session-tries", "session")
            assert (status.done, status.wanted) == (16, 16)
            assert {worker.name for worker in status.workers} == {"a/0", "b/0"}

    simulate(tmp_path, scene)


def test_the_times_of_workers_add_up(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 9)])
            await loop.done(8)
            before, began = await loop.link.fleet(), asyncio.get_running_loop().time()
            await asyncio.sleep(50.0)
            after, seconds = await loop.link.fleet(), asyncio.get_running_loop().time() - began
            for old, new in zip(before.pools, after.pools, strict=True):
                spent = sum(new.seconds.values()) - sum(old.seconds.values())
                assert spent == pytest.approx(seconds, abs=0.5), "one worker of the pool"
            assert before.samples == 32

    simulate(tmp_path, scene)


async def look(cluster: Cluster) -> JobStatus:
    """What anybody is told."""
    answer = await cluster.user().ask(cluster.coordinator_actor(), GetStatus(), timeout_s=5.0)
    assert isinstance(answer, JobStatus)
    return answer


async def preempt(cluster: Cluster, node: str, notice_s: float) -> None:
    """Notice for a node."""
    message = PreemptNode(node, notice_s, cancel=False)
    await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=5.0)
