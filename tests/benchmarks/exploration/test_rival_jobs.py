"""The jobs of the rivals."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.exploration.rival_jobs import virtual_job, with_spot_gpus
from benchmarks.exploration.rivals import MIXED_TASKS, RIVALS, TASKS, example_of
from spotlight.jobs import JobSpec

PLAIN = ("rollouts", "reserved", "data-parallel", "published")


def gpus(job: JobSpec) -> tuple[int, int]:
    """Of the reserved and of the spot pool."""
    pools = (job.pools.reserved, job.pools.spot)
    reserved, spot = (pool.nodes * pool.workers for pool in pools)
    return reserved, spot


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("rival", PLAIN)
def test_plain_rivals_have_the_gpus_that_they_are_named_for(task: str, rival: str) -> None:
    job = virtual_job(task, rival, 1)
    whole = {"rollouts": (4, 8), "reserved": (4, 0)}
    assert gpus(job) == whole.get(rival, (12, 0))
    assert job.training.ranks == gpus(job)[0]
    assert job.exploration.mode == "none"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("rival", ["regenerate", "inline"])
def test_rivals_that_explore_have_the_same_machines(task: str, rival: str) -> None:
    job = virtual_job(task, rival, 1)
    assert gpus(job) == (4, 8)
    assert job.samples_per_iteration == 16


@pytest.mark.parametrize("rival", RIVALS)
def test_a_mixed_task_differs_in_its_prompts_and_how_many_two_rivals_have(rival: str) -> None:
    changes = {"name": "any"} | ({"iterations": 50} if rival == "reserved" else {})
    for task in MIXED_TASKS:
        mixed, alike = (virtual_job(one, rival, 1, changes) for one in (task, example_of(task)))
        assert mixed.prompts.train != alike.prompts.train
        has_fewer = (task, rival) in {("ocr-mixed", "reserved"), ("ocr-mixed", "pipelined")}
        assert mixed.prompts.per_iteration == alike.prompts.per_iteration * (1 + has_fewer)
        assert msgspec.structs.replace(mixed, prompts=alike.prompts) == alike


@pytest.mark.parametrize("task", TASKS)
def test_where_rollouts_take_long_spotlight_alone_has_other_settings(task: str) -> None:
    for rival in RIVALS:
        alike, even = (
            virtual_job(task, rival, 1, profile=profile)
            for profile in ("sol-rl-split", "even-split")
        )
        assert (alike == even) == (rival not in ("spotlight", "uniform"))
    ours = virtual_job(task, "spotlight", 1, profile="even-split").exploration
    assert (ours.mode, ours.budget, ours.candidates, ours.prompt_pool) == ("uniform", "fixed", 2, 1)


def test_the_published_recipe_is_that_of_the_authors() -> None:
    training = virtual_job("ocr", "published", 1).training
    assert (training.advantage_clip, training.kl) == (5.0, 1e-4)
    assert training.options["strength"] == 0.1
    assert training.rollout_decay == 0.999
    assert training.rollout_decay_after == 75
    assert training.rollout_decay_growth == 0.0075
    assert virtual_job("compositional", "published", 1).training.updates_per_iteration == 1


def test_all_but_the_reference_and_the_published_recipe_have_the_same_cheaper_samples() -> None:
    for task, steps in (("ocr", 4), ("compositional", 6)):
        of_rival = {rival: virtual_job(task, rival, 1).sampler for rival in RIVALS}
        others = {"published", "rollouts"} if task == "compositional" else {"published"}
        for rival, sampler in of_rival.items():
            expected = ("euler", 8) if rival in others else ("dpmpp_2m", steps)
            assert (sampler.solver, sampler.steps) == expected, (task, rival)


def test_a_larger_spot_pool_has_more_candidates_and_a_plain_job_has_none() -> None:
    assert with_spot_gpus("ocr", "reserved", 16) == {}
    assert with_spot_gpus("ocr", "rollouts", 4) == {"pools.spot.nodes": 2}
    assert with_spot_gpus("ocr", "regenerate", 16) == {
        "pools.spot.nodes": 8,
        "exploration.candidates": 20,
    }


def test_every_rival_has_a_title_of_its_own() -> None:
    assert len(set(RIVALS.values())) == len(RIVALS)
