"""A job that measures beside training what its choice of seeds is worth, with fake workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from statistics import pvariance
from typing import Any

import pytest
from job_kit import World, job
from town_kit import Town, events, iterations, trained_samples

from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed
from spotlight.types import Request

pytestmark = pytest.mark.virtual_time

ITERATIONS = 6
KEPT = 4


def spec(scoring: Mapping[str, Any] = {}, **changes: Any) -> JobSpec:
    exploration = {"candidates": 4, "budget": "fixed", "probes": 0, **changes}
    return job(iterations=ITERATIONS, exploration=exploration, scoring=dict(scoring))


def faithful(wanted: Request) -> float:
    """A seed is as good in a preview as in the rollout."""
    return derived_seed(wanted.prompt, wanted.seed) % 1000 / 1000


@pytest.fixture(autouse=True)
def rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))


def at_random(town: Town) -> list[Request]:
    return [request for _, request in town.world.granted if request.kind == "random"]


async def test_every_explored_iteration_measures_a_group_of_seeds_that_nobody_chose(
    town: Town,
) -> None:
    end = await town.run(spec())
    first, *others = iterations(end.run_folder)
    assert (first["random_groups"], first["contrast_at_random"]) == (0, None)
    asked = at_random(town)
    assert Counter(r.iteration for r in asked) == dict.fromkeys(range(1, ITERATIONS), KEPT)
    rollouts = [r for _, r in town.world.granted if r.kind == "rollout"]
    for one in others:
        here = [r for r in asked if r.iteration == one["iteration"]]
        (group,) = {r.group for r in here}
        kept = [r for r in rollouts if (r.iteration, r.group) == (one["iteration"], group)]
        assert {(r.prompt, r.weights_version, r.settings) for r in here} == {
            (r.prompt, r.weights_version, r.settings) for r in kept
        }
        assert (one["random_groups"], one["random_late"]) == (1, 0)
        assert one["contrast_at_random"] ** 2 == pytest.approx(
            pvariance(map(faithful, here)), rel=1e-3
        )
        assert one["contrast_beside_random"] ** 2 == pytest.approx(
            pvariance(map(faithful, kept)), rel=1e-3
        )


async def test_what_is_trained_is_the_same_without_the_measurement(town: Town) -> None:
    await town.run(spec(random_groups=0))
    assert at_random(town) == []
    reference = trained_samples(town.world.trained)
    town.world.trained.clear()
    await town.run(spec(random_groups=2))
    assert at_random(town)
    assert trained_samples(town.world.trained) == reference


async def test_random_seeds_are_neither_candidates_nor_samples(town: Town) -> None:
    await town.run(spec(random_groups=2))
    seeds = {r.seed for r in at_random(town)}
    others = {r.seed for _, r in town.world.granted if r.kind != "random"}
    assert seeds
    assert not seeds & others


async def test_only_the_first_group_goes_before_previews_while_there_is_idle_time(
    town: Town,
) -> None:
    await town.run(spec())
    waits = {r.iteration: r.in_idle_time for r in at_random(town)}
    assert waits == {1: False} | dict.fromkeys(range(2, ITERATIONS), True)
    order = [(r.kind, r.iteration) for _, r in town.world.granted]
    first, *others = range(1, ITERATIONS)
    assert order.index(("random", first)) < order.index(("preview", first + 1))
    for iteration in others[:-1]:
        last = len(order) - order[::-1].index(("preview", iteration + 1))
        assert order.index(("random", iteration)) >= last


async def test_exploration_that_takes_all_the_time_there_is_does_not_keep_it_from_being_measured(
    town: Town,
) -> None:
    town.world.denoise_s = 4.0
    end = await town.run(spec(budget="window", candidates=100))
    _, first, *others = iterations(end.run_folder)
    assert (first["random_groups"], first["random_late"]) == (1, 0)
    assert all(one["random_groups"] + one["random_late"] / KEPT == 1 for one in others)
    assert [one["previews"] for one in others[1:]] == [4 * KEPT] * 3, "as many as without it"


async def test_what_comes_too_late_is_dropped_and_counted(town: Town) -> None:
    town.world.train_s = 3.0
    end = await town.run(spec())
    late = [one["random_late"] for one in iterations(end.run_folder)]
    measured = [one["random_groups"] for one in iterations(end.run_folder)]
    assert measured[1] == 1, "the first one is due"
    assert sum(late) > 0
    assert all(n in (0, 1) for n in measured)
    assert end.outcome == "finished"


@pytest.mark.parametrize("phase", ["train", "rollout"])
@pytest.mark.slow
async def test_a_kill_changes_neither_what_is_trained_nor_what_is_measured(
    town: Town, phase: str
) -> None:
    calm = await town.run(spec())
    reference, recorded = list(town.world.trained), iterations(calm.run_folder)
    town.world.trained.clear()
    town.world.started.clear()
    await town.submit(spec())
    await town.wait(lambda now: now.phase == phase and now.iteration == 3)
    await town.kill()
    await town.open()
    end = await town.ended()
    assert trained_samples(town.world.trained) == trained_samples(reference)
    keys = ("random_groups", "contrast_at_random", "contrast_beside_random")
    assert [[it[key] for key in keys] for it in iterations(end.run_folder)] == [
        [it[key] for key in keys] for it in recorded
    ]


@pytest.mark.parametrize("on_failure", ["stop", "drop_group"])
async def test_a_random_seed_that_cannot_be_scored_costs_nothing(
    town: Town, on_failure: str
) -> None:
    town.world.fails = lambda worker, requests: requests[0].kind == "random"
    end = await town.run(spec({"on_failure": on_failure, "attempts": 1}))
    assert end.outcome == "finished"
    assert events(end.run_folder, "group_dropped") == []
    assert {one["random_groups"] for one in iterations(end.run_folder)} == {0}
    assert {one["contrast_at_random"] for one in iterations(end.run_folder)} == {None}


async def test_probes_tell_as_well(town: Town) -> None:
    end = await town.run(spec(probes=4, random_groups=0))
    _, *others = iterations(end.run_folder)
    assert {one["random_groups"] for one in others} == {1}
    assert all(one["contrast_at_random"] > 0 for one in others)


async def test_probes_of_the_bandit_do_not_tell_as_their_prompts_were_unlucky(town: Town) -> None:
    end = await town.run(spec(probes=4, random_groups=0, mode="bandit"))
    assert {one["probes"] for one in iterations(end.run_folder)[1:]} == {4}
    assert {one["random_groups"] for one in iterations(end.run_folder)} == {0}


async def test_where_previews_are_trained_on_the_first_ones_tell_and_none_is_made_for_it(
    town: Town,
) -> None:
    end = await town.run(spec(reuse=True))
    assert at_random(town) == []
    _, *others = iterations(end.run_folder)
    assert {one["random_groups"] for one in others} == {2}
    for one in others:
        assert one["contrast_beside_random"] == one["contrast"]
    kept, random = (
        math.fsum(one[name] ** 2 for one in others) for name in ("contrast", "contrast_at_random")
    )
    assert kept > 1.2 * random


async def test_without_exploration_nothing_is_measured(town: Town) -> None:
    end = await town.run(spec(mode="none"))
    assert at_random(town) == []
    assert {one["random_groups"] for one in iterations(end.run_folder)} == {0}


async def test_with_a_prompt_pool_any_of_its_prompts_is_compared_with_all_that_are_trained_on(
    town: Town,
) -> None:
    end = await town.run(spec(prompt_pool=2))
    _, *others = iterations(end.run_folder)
    assert {r.group for r in at_random(town)} - {0, 1}
    assert all(one["contrast_beside_random"] == pytest.approx(one["contrast"]) for one in others)
