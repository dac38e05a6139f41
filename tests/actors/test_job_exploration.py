"""A whole job that watches whether its previews predict rewards, with fake workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from job_kit import World, job
from runtime_kit import Cluster
from town_kit import Town, events, iterations, trained_samples

from spotlight.actors.messages import Request
from spotlight.jobs import JobSpec
from spotlight.policies.exploration import derived_seed

pytestmark = pytest.mark.virtual_time

ITERATIONS = 16
SAMPLES = 8
PROBES = 6


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("reserved", "reserved")
        await town.join("spot", "spot")
        yield town


def spec(**changes: Any) -> JobSpec:
    exploration = {"candidates": 4, "budget": "fixed", "probes": PROBES, **changes}
    return job(iterations=ITERATIONS, exploration=exploration)


def faithful(wanted: Request) -> float:
    """A seed is as good in a preview as in the rollout."""
    return derived_seed(wanted.prompt, wanted.seed) % 1000 / 1000


def contrary(wanted: Request) -> float:
    """What is good in a preview is bad in the rollout."""
    return faithful(wanted) if wanted.kind == "preview" else 1 - faithful(wanted)


def count(town: Town, kind: str) -> list[int]:
    by_iteration = Counter(r.iteration for _, r in town.world.granted if r.kind == kind)
    return [by_iteration[iteration] for iteration in range(1, ITERATIONS)]


async def test_some_previewed_seeds_are_regenerated_whether_or_not_they_are_trained_on(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))
    end = await town.run(spec())
    rollouts = count(town, "rollout")
    assert all(SAMPLES <= made <= SAMPLES + PROBES for made in rollouts)
    assert sum(rollouts) > (SAMPLES + PROBES // 2) * (ITERATIONS - 1), "one in four is chosen"
    assert {len(samples) for samples in trained_samples(town.world.trained)} == {SAMPLES}
    assert [it["probes"] for it in iterations(end.run_folder)] == [0, *[PROBES] * (ITERATIONS - 1)]


async def test_while_previews_predict_rewards_everything_is_explored(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(faithful))
    end = await town.run(spec())
    assert set(count(town, "preview")) == {SAMPLES * 4}
    assert events(end.run_folder, "exploration_reduced") == []
    last = iterations(end.run_folder)[-1]
    assert (last["probe_tau"], last["probe_correlation"]) == (1.0, 1.0)


async def test_when_previews_mislead_exploration_stops_and_says_so(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "reward", staticmethod(contrary))
    end = await town.run(spec())
    previews = count(town, "preview")
    assert previews[:2] == [SAMPLES * 4] * 2
    assert 0 in previews
    assert SAMPLES * 2 in previews, "it is tried again"
    stopped = [e for e in events(end.run_folder, "exploration_reduced") if e["share"] == 0]
    assert stopped
    assert stopped[0]["tau"] == -1.0
    shares = [it["exploration_share"] for it in iterations(end.run_folder)]
    assert shares[stopped[0]["iteration"] - 1] == 0


async def test_previews_that_are_trusted_are_not_probed(town: Town) -> None:
    end = await town.run(spec(probes=0))
    assert count(town, "rollout") == [SAMPLES] * (ITERATIONS - 1)
    assert events(end.run_folder, "exploration_reduced") == []


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
    assert [[it[key] for key in keys] for it in iterations(end.run_folder)] == [
        [it[key] for key in keys] for it in recorded
    ]
