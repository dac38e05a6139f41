"""A whole job that watches whether its previews predict rewards, with fake workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from job_kit import World, job
from town_kit import Town, events, iterations, trained_samples

from spotlight.actors.coordinator.tenant.job_journal import JobJournal, SavedProgress
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed
from spotlight.types import Request, RequestKind

pytestmark = pytest.mark.virtual_time

ITERATIONS = 16
SAMPLES = 8
PROBES = 6


def spec(scoring: Mapping[str, Any] = {}, **changes: Any) -> JobSpec:
    exploration = {"candidates": 4, "budget": "fixed", "probes": PROBES, **changes}
    return job(iterations=ITERATIONS, exploration=exploration, scoring=dict(scoring))


def faithful(wanted: Request) -> float:
    """A seed is as good in a preview as in the rollout."""
    return derived_seed(wanted.prompt, wanted.seed) % 1000 / 1000


def contrary(wanted: Request) -> float:
    """What is good in a preview is bad in the rollout."""
    return faithful(wanted) if wanted.kind == "preview" else 1 - faithful(wanted)


def broken(wanted: Request) -> float:
    """A preview says nothing about the rollout."""
    return derived_seed(wanted.kind, wanted.prompt, wanted.seed) % 1000 / 1000


def count(town: Town, kind: str) -> list[int]:
    by_iteration = Counter(r.iteration for _, r in town.world.granted if r.kind == kind)
    return [by_iteration[iteration] for iteration in range(1, ITERATIONS)]


@pytest.mark.parametrize("preview_steps", [None, 1])
@pytest.mark.slow
async def test_what_seeds_at_random_would_have_brought_is_told_whatever_the_steps_of_previews(
    town: Town, monkeypatch: pytest.MonkeyPatch, preview_steps: int | None
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))
    end = await town.run(spec(preview_steps=preview_steps))
    first, *others = iterations(end.run_folder)
    assert first["contrast_at_random"] is None
    assert min(it["contrast_at_random"] for it in others) > 0
    kept, at_random = (
        sum(it[name] ** 2 for it in others) for name in ("contrast", "contrast_at_random")
    )
    assert 1.2 < (kept / at_random) ** 0.5 < 2.0, "the best of four are kept"
    uniform = (3 / 4 / 12) ** 0.5  # of four from all between 0 and 1
    assert (at_random / len(others)) ** 0.5 == pytest.approx(uniform, rel=0.2)


async def test_when_previews_mislead_exploration_stops_and_says_so(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(contrary))
    end = await town.run(spec())
    previews = count(town, "preview")
    assert previews[:2] == [SAMPLES * 4] * 2
    assert SAMPLES * 4 in previews[previews.index(0) :], "it is tried again"
    stopped = [e for e in events(end.run_folder, "exploration_reduced") if e["share"] == 0]
    assert stopped
    assert stopped[0]["tau"] == -1.0
    shares = [it["exploration_share"] for it in iterations(end.run_folder)]
    assert shares[stopped[0]["iteration"] - 1] == 0


@pytest.mark.slow
async def test_when_kept_seeds_break_their_promise_exploration_stops_though_nothing_is_probed(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(broken))
    end = await town.run(spec(probes=0))
    previews = count(town, "preview")
    assert SAMPLES * 4 in previews[previews.index(0) :], "it is tried again"
    assert events(end.run_folder, "exploration_reduced")
    told = [it["realised_share"] for it in iterations(end.run_folder)]
    assert told[0] is None
    assert sum(share for share in told[1:7]) / 6 < 0.4


@pytest.mark.slow
async def test_without_probes_nothing_is_regenerated_but_what_is_trained_on(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))
    end = await town.run(spec(probes=0))
    assert count(town, "rollout") == [SAMPLES] * (ITERATIONS - 1)
    assert events(end.run_folder, "exploration_reduced") == []


@pytest.mark.slow
async def test_what_probes_have_shown_survives_a_kill(town: Town) -> None:
    calm = await town.run(spec())
    reference, recorded = list(town.world.trained), iterations(calm.run_folder)
    town.world.trained.clear()
    town.world.started.clear()
    await town.submit(spec())
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == 5)
    await town.kill()
    await town.open()
    end = await town.ended()
    assert trained_samples(town.world.trained) == trained_samples(reference)
    keys = ("probes", "probe_tau", "probe_correlation", "exploration_share", "previews")
    keys += ("realised_share", "contrast_at_random")
    assert [[it[key] for key in keys] for it in iterations(end.run_folder)] == [
        [it[key] for key in keys] for it in recorded
    ]


@pytest.mark.slow
async def test_broken_promises_are_remembered_after_a_kill(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(broken))
    calm = await town.run(spec(probes=0))
    town.world.started.clear()
    await town.submit(spec(probes=0))
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == 5)
    await town.kill()
    await town.open()
    end = await town.ended()
    shares = [[it["exploration_share"] for it in iterations(run.run_folder)] for run in (calm, end)]
    assert shares[0] == shares[1]
    assert 0.0 in shares[0]


@pytest.mark.slow
async def test_rewards_that_never_vary_are_gone_on_with(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(lambda wanted: 0.25))
    end = await town.run(spec({"flat_iterations": ITERATIONS + 1}, mode="bandit"))
    assert end.outcome == "finished"
    assert {it["zero_variance_groups"] for it in iterations(end.run_folder)} == {2}
    advantages = {a for samples in trained_samples(town.world.trained) for _, a in samples}
    assert advantages == {0.0}


# --- fresh weights, for comparison ---


def fresh(**changes: Any) -> JobSpec:
    exploration = {"candidates": 4, "budget": "fixed", "weights": "fresh", **changes}
    return job(iterations=3, exploration=exploration)


@pytest.mark.slow
async def test_fresh_weights_are_explored_with_before_each_rollout_by_all_workers(
    town: Town,
) -> None:
    end = await town.run(fresh())
    previews = [(name, r) for name, r in town.world.granted if r.kind == "preview"]
    assert {r.weights_version - r.iteration for _, r in previews} == {0}
    assert Counter(r.iteration for _, r in previews) == dict.fromkeys(range(3), SAMPLES * 4)
    assert {name for name, _ in previews} == {"reserved/0", "spot/0"}
    phases = [e["phase"] for e in events(end.run_folder, "phase")]
    assert phases[1:-1] == [*["publish", "explore", "rollout", "train"] * 3, "publish"]
    assert all(it["explore_s"] > 0 for it in iterations(end.run_folder))


@pytest.mark.slow
async def test_previews_that_are_the_samples_themselves_promise_their_contrast(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))
    end = await town.run(fresh(preview_steps=None))
    for iteration in iterations(end.run_folder):
        assert iteration["preview_group_std_mean"] == pytest.approx(iteration["group_std_mean"])
        assert iteration["realised_share"] == pytest.approx(1.0)


@pytest.mark.slow
async def test_previews_that_are_the_samples_are_trained_on_as_if_they_were_denoised_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))
    trained, kinds = [], []
    for denoises_again in (False, True):
        if denoises_again:
            monkeypatch.setattr(JobSpec, "trains_on_previews", False)
        await town.run(fresh(preview_steps=None))
        trained.append(trained_samples(town.world.trained))
        kinds.append({request.kind for _, request in town.world.granted})
        town.world.trained.clear()
        town.world.granted.clear()
    assert trained[0] == trained[1]
    assert kinds == [{"preview", "evaluation"}, {"preview", "rollout", "random", "evaluation"}]


@pytest.mark.parametrize("steps", [1, None])
@pytest.mark.slow
async def test_exploration_with_fresh_weights_is_done_again_after_a_kill(
    town: Town, steps: int | None
) -> None:
    spec = fresh(preview_steps=steps)
    await town.run(spec)
    reference = trained_samples(town.world.trained)
    for phase in ("explore", "rollout", "train") if steps else ("explore", "train"):
        town.world.trained.clear()
        town.world.started.clear()
        await town.submit(spec)
        await town.wait(lambda now, at=phase: now.phase == at and now.iteration == 1)
        await town.kill()
        await town.open()
        await town.ended()
        assert trained_samples(town.world.trained) == reference


# --- a pool of prompts ---


@pytest.mark.parametrize("mode", ["uniform", "bandit"])
@pytest.mark.slow
async def test_of_a_prompt_pool_those_are_trained_on_whose_rewards_contrast_most(
    town: Town, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def reward(wanted: Request) -> float:
        dull = derived_seed(wanted.prompt) % 2 == 0
        return 0.5 if dull else faithful(wanted)

    monkeypatch.setattr(World, "reward", staticmethod(reward))
    end = await town.run(spec(mode=mode, prompt_pool=2, probes=0))
    groups = [
        {r.group for _, r in town.world.granted if r.kind == "preview" and r.iteration == iteration}
        for iteration in range(1, ITERATIONS)
    ]
    if mode == "uniform":  # the bandit opens others only in place of dull ones
        assert groups == [{0, 1, 2, 3}] * (ITERATIONS - 1)
    assert all({0, 1} <= explored for explored in groups)
    assert {len(samples) for samples in trained_samples(town.world.trained)} == {SAMPLES}
    for iteration in range(1, ITERATIONS):
        explored, trained = (
            {r.prompt for _, r in town.world.granted if (r.kind, r.iteration) == (kind, iteration)}
            for kind in ("preview", "rollout")
        )
        lively = {prompt for prompt in explored if derived_seed(prompt) % 2}
        assert len(trained & lively) == min(2, len(lively))
    assert [it["samples"] for it in iterations(end.run_folder)] == [SAMPLES] * ITERATIONS


async def test_previews_are_kept_until_the_seeds_that_they_chose_are_on_record(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that is killed between the two would make them again."""
    on_record: set[int] = set()
    too_early: list[int] = []
    save, forget = JobJournal.save_progress, JobJournal.forget_requests

    def saving(journal: JobJournal, progress: SavedProgress) -> None:
        save(journal, progress)
        on_record.add(progress.explored.iteration)

    def forgetting(journal: JobJournal, kind: RequestKind, iteration: int) -> None:
        if kind == "preview" and iteration >= 0 and iteration not in on_record:
            too_early.append(iteration)
        forget(journal, kind, iteration)

    monkeypatch.setattr(JobJournal, "save_progress", saving)
    monkeypatch.setattr(JobJournal, "forget_requests", forgetting)
    assert (await town.run(job(exploration={"weights": "fresh"}))).outcome == "finished"
    assert (len(on_record), too_early) == (3, [])
