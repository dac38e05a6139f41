"""`Rollouts` over a simulated cluster: streams, versions, exploration, leaving in the middle."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from session_kit import PROMPT, simulate, work

from spotlight.errors import JobError, RequestRefused, SessionEnded, VersionGone
from spotlight.policies.exploration.settings import PLANNERS, PlannerName
from spotlight.rollouts.groups import RolloutRequest
from spotlight.rollouts.rollouts import Rollouts
from spotlight.rollouts.versions import AtLeast, Exactly
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster
from spotlight_simulation.simulated_session import session


@asynccontextmanager
async def opened(cluster: Cluster, **changes: Any) -> AsyncIterator[Rollouts]:
    """A session, in a process of its own."""
    system = cluster.system_of("program", rng=random.Random(1))
    await system.start()
    spec = work(**changes)
    async with session(cluster, system, "program", "tries", spec, tensors=False) as rollouts:
        yield rollouts
    await system.aclose()


async def publish(rollouts: Rollouts, version: int) -> None:
    await rollouts.publish("weights", version)  # type: ignore[arg-type]


def requests(count: int, **changes: Any) -> list[RolloutRequest]:
    return [RolloutRequest(f'the number "{n}"', range(4), **changes) for n in range(count)]


def test_a_loop_gets_every_group_with_the_weights_that_it_published(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            for version in range(3):
                await rollouts.publish("weights", version)  # type: ignore[arg-type]
                groups = [group async for group in rollouts.rollout(requests(5))]
                assert sorted(group.index for group in groups) == [0, 1, 2, 3, 4]
                for group in groups:
                    assert group.policy_version == version == rollouts.newest_version
                    assert group.request == requests(5)[group.index]
                    assert [sample.seed for sample in group.samples] == [0, 1, 2, 3]
                    assert {sample.policy_version for sample in group.samples} == {version}

    simulate(tmp_path, scene)


def test_work_begins_before_the_first_group_is_asked_for(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            stream = rollouts.rollout(requests(4))
            await asyncio.sleep(60.0)  # the loop trains on something else
            assert (await rollouts.capacity()).waiting == 0
            async with asyncio.timeout(0.5):
                assert len([group async for group in stream]) == 4

    simulate(tmp_path, scene)


def test_requests_wait_for_weights_that_are_not_published_yet(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            later = rollouts.rollout([*requests(2, version=AtLeast(1)), *requests(1)])
            first = await anext(later)
            assert (first.index, first.policy_version) == (2, 0)
            await asyncio.sleep(30.0)
            await rollouts.publish("weights", 1)  # type: ignore[arg-type]
            assert [group.policy_version async for group in later] == [1, 1]

    simulate(tmp_path, scene)


def test_exact_versions_are_kept_to_for_as_long_as_they_are_there(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            for version in range(2):
                await rollouts.publish("weights", version)  # type: ignore[arg-type]
            before = [g async for g in rollouts.rollout(requests(2, version=Exactly(0)))]
            assert [group.policy_version for group in before] == [0, 0]
            await rollouts.publish("weights", 2)  # type: ignore[arg-type]
            with pytest.raises(VersionGone, match="version 0 is no longer kept"):
                await anext(rollouts.rollout(requests(1, version=Exactly(0))))

    simulate(tmp_path, scene)


def test_what_is_in_work_keeps_its_weights_while_others_are_published(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            stream = rollouts.rollout(requests(20))
            first = await anext(stream)
            for version in range(1, 4):
                await rollouts.publish("weights", version)  # type: ignore[arg-type]
            rest = [group async for group in stream]
            assert {group.policy_version for group in [first, *rest]} == {0}
            assert len(rest) == 19

    simulate(tmp_path, scene)


def test_what_is_asked_for_while_weights_are_published_waits_for_them(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            cluster.network.faults.loss = 1.0  # the offer is lost, and said again
            publishing = asyncio.create_task(publish(rollouts, 0))
            await asyncio.sleep(1.0)
            cluster.network.faults.loss = 0.0
            stream = rollouts.rollout(requests(2))
            assert [group.policy_version async for group in stream] == [0, 0]
            await publishing

    simulate(tmp_path, scene)


def test_weights_that_go_as_others_are_published_are_gone(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            for version in range(2):
                await publish(rollouts, version)
            publishing = asyncio.create_task(publish(rollouts, 2))
            await asyncio.sleep(0)
            with pytest.raises(VersionGone):
                await anext(rollouts.rollout(requests(1, version=Exactly(0))))
            await publishing

    simulate(tmp_path, scene)


def test_who_leaves_a_stream_in_the_middle_drops_the_rest(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            async with rollouts.rollout(requests(200)) as stream:
                async for _ in stream:
                    break
            async with asyncio.timeout(30.0):
                assert len([group async for group in rollouts.rollout(requests(3))]) == 3
            assert (await rollouts.capacity()).waiting == 0

    simulate(tmp_path, scene)


def test_who_leaves_the_session_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            stream = rollouts.rollout(requests(200))
            await anext(stream)
        with pytest.raises(SessionEnded, match="while its groups were waited for"):
            async with asyncio.timeout(1.0):
                async for _ in stream:
                    pass
        await asyncio.sleep(1.0)
        assert list((tmp_path / "runs").glob("session-*")) == []

    simulate(tmp_path, scene)


def test_streams_go_on_when_the_coordinator_was_killed(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            stream = rollouts.rollout(requests(12))
            found = [await anext(stream)]
            cluster.kill_process(COORDINATOR)
            await cluster.buried()
            await cluster.start_coordinator()
            found += [group async for group in stream]
            assert sorted(group.index for group in found) == list(range(12))
            await rollouts.publish("weights", 1)  # type: ignore[arg-type]
            assert len([group async for group in rollouts.rollout(requests(2))]) == 2

    simulate(tmp_path, scene)


def test_a_coordinator_that_stays_away_ends_the_streams(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            stream = rollouts.rollout(requests(50))
            cluster.kill_process(COORDINATOR)
            with pytest.raises(SessionEnded, match="the coordinator is unreachable"):
                async with asyncio.timeout(600.0):
                    async for _ in stream:
                        pass
            with pytest.raises(SessionEnded):
                await rollouts.capacity()

    simulate(tmp_path, scene)


def test_exploration_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            exploration = rollouts.explore([PROMPT, 'the number "4"'], keep=3, candidates=1000)
            await asyncio.sleep(60.0)  # the loop trains
            chosen = await exploration.stop()
            assert [each.prompt for each in chosen] == [PROMPT, 'the number "4"']
            for each in chosen:
                assert 3 < each.previewed < 1000
                assert len(set(each.seeds)) == 3
                rewards = [reward for reward in each.preview_rewards if reward is not None]
                assert len(rewards) == 3 and max(rewards) - min(rewards) > 0.5, "they contrast"
            assert (await rollouts.usage()).previews >= sum(each.previewed for each in chosen)
            await asyncio.sleep(5.0)
            assert (await rollouts.capacity()).waiting == 0, "what was not done is dropped"
            (group,) = [
                group async for group in rollouts.rollout([RolloutRequest(PROMPT, chosen[0].seeds)])
            ]
            assert len(group.samples) == 3

    simulate(tmp_path, scene)


def test_exploration_ends_by_itself_when_all_candidates_are_scored(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            exploration = rollouts.explore([PROMPT], keep=2, candidates=10, steps=4)
            await exploration.wait()
            (chosen,) = await exploration.stop()
            assert chosen.previewed == 10

    simulate(tmp_path, scene)


def test_an_exploration_that_nobody_stops_ends_with_the_session(tmp_path: Path) -> None:
    async def explore_and_leave(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await publish(rollouts, 0)
            rollouts.explore([PROMPT], keep=2, candidates=1000)
            await asyncio.sleep(5.0)

    async def scene(cluster: Cluster) -> None:
        await explore_and_leave(cluster)
        gc.collect()  # asyncio complains of an error that nobody has seen: a violation

    simulate(tmp_path, scene)


def test_an_exploration_that_is_stopped_at_once_still_names_seeds(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            (chosen,) = await rollouts.explore([PROMPT], keep=4, candidates=8).stop()
            assert len(set(chosen.seeds)) == 4
            assert chosen.preview_rewards == (None,) * 4

    simulate(tmp_path, scene)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_loop_explores_with_every_planner_that_a_job_has(
    planner: PlannerName, tmp_path: Path
) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await publish(rollouts, 0)
            exploration = rollouts.explore(
                [PROMPT, 'the number "4"'], keep=3, candidates=8, planner=planner
            )
            await exploration.wait()
            chosen = await exploration.stop()
            assert [len(set(each.seeds)) for each in chosen] == [3, 3]
            assert all(None not in each.preview_rewards for each in chosen)
            assert sum(each.previewed for each in chosen) == 16
            assert await exploration.stop() == chosen, "it is chosen once"

    simulate(tmp_path, scene)


def test_what_is_learnt_of_prompts_is_known_to_the_next_exploration(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await publish(rollouts, 0)
            counts = []
            for seed in range(2):
                exploration = rollouts.explore(
                    [PROMPT], keep=2, candidates=8, seed=seed, planner="bandit"
                )
                await exploration.wait()
                await exploration.stop()
                counts.append(rollouts.knowledge.prompts[PROMPT].count)
            assert counts[0] == 7, "degrees of freedom of its previews"
            assert counts[1] > 7, "with what is left of those before"

    simulate(tmp_path, scene)


def test_exploring_no_prompts_chooses_nothing(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await publish(rollouts, 0)
            exploration = rollouts.explore([], keep=2, candidates=4, planner="bandit")
            await exploration.wait()
            assert await exploration.stop() == []

    simulate(tmp_path, scene)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"keep": 5}, "keep: must be from 1 to `candidates`"),
        ({"keep": 1, "planner": "bandit"}, "keep: must be at least 2 with `bandit`"),
        ({"planner": "none"}, "planner: must be one of `random`, `uniform`, `bandit`"),
    ],
)
def test_an_exploration_that_cannot_be_is_refused(
    wrong: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            with pytest.raises(JobError, match=problem):
                rollouts.explore([PROMPT], **{"keep": 2, "candidates": 4, **wrong})

    simulate(tmp_path, scene)


def test_exploration_needs_a_reward(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster, rewards=[]) as rollouts:
            with pytest.raises(JobError, match="rewards: exploration chooses seeds by them"):
                rollouts.explore([PROMPT], keep=2, candidates=4)

    simulate(tmp_path, scene)


def test_capacity_says_who_is_there_and_who_will_go(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            assert (await rollouts.capacity()).newest_version == -1
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            await asyncio.sleep(10.0)
            capacity = await rollouts.capacity()
            assert [(n.name, n.pool, n.workers, n.notice) for n in capacity.nodes] == [
                ("a", "reserved", 1, ""),
                ("b", "spot", 1, ""),
            ]
            assert (capacity.workers, capacity.ready_workers, capacity.newest_version) == (2, 2, 0)
            async for _ in rollouts.rollout(requests(8)):
                pass
            assert (await rollouts.capacity()).images_per_s > 0

    simulate(tmp_path, scene)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"prompt": ""}, "prompt: has 0 characters"),
        ({"seeds": ()}, "seeds: are 0; name from 1"),
        ({"seeds": (1, 1)}, "seeds: name one of them twice"),
        ({"seeds": (-1,)}, "seeds: must be in"),
        ({"seeds": (2**63,)}, "seeds: must be in"),
        ({"steps": 0}, "steps: is 0"),
    ],
)
def test_a_request_that_cannot_be_is_refused_where_it_is_made(
    wrong: dict[str, Any], problem: str
) -> None:
    with pytest.raises(JobError, match=problem):
        RolloutRequest(**{"prompt": PROMPT, "seeds": (1,), **wrong})


def test_what_the_coordinator_refuses_is_raised_by_the_stream(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with opened(cluster) as rollouts:
            await rollouts.publish("weights", 0)  # type: ignore[arg-type]
            many = [RolloutRequest(PROMPT, (n,)) for n in range(70_000)]
            with pytest.raises(RequestRefused, match="first take groups that are done"):
                async for _ in rollouts.rollout(many):
                    pass

    simulate(tmp_path, scene)
