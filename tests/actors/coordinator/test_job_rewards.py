"""A whole job with several rewards, with rewards that say nothing, and with a model that games its
reward; its workers are fake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_kit import World, job
from town_kit import Town, events, iterations, lines, trained_samples

from spotlight.policies.advantages import mixed_advantages
from spotlight.policies.exploration.planners import derived_seed
from spotlight.types import Request

pytestmark = pytest.mark.virtual_time

PICK = {
    "name": "pick",
    "kind": "http",
    "http": {"url": "http://nowhere"},
    "range": [0, 30],
    "weight": 0.5,
}
BOTH = [{}, PICK]
STRICT = {"name": "strict"}


@pytest.fixture
def reward(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Request], Any]], None]:
    """What the workers' scorers give."""
    return lambda function: monkeypatch.setattr(World, "reward", staticmethod(function))


def chance(wanted: Request, purpose: str = "") -> float:
    return derived_seed(wanted.prompt, wanted.seed, purpose) % 1000 / 1000


def pair(wanted: Request) -> tuple[float, float]:
    return chance(wanted), 20 + 5 * chance(wanted, "pick")


def validations(run: str) -> list[dict[str, Any]]:
    return [record for record in lines(run, "metrics.jsonl") if record["kind"] == "validation"]


async def test_a_job_with_two_rewards_trains_on_both_and_reports_each(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(pair)
    end = await town.run(job(rewards=BOTH, exploration={"mode": "bandit"}))
    assert end.outcome == "finished"
    for order, metrics in zip(
        trained_samples(town.world.trained), iterations(end.run_folder), strict=True
    ):
        made = [
            r
            for _, r in town.world.granted
            if r.kind == "rollout" and r.iteration == metrics["iteration"]
        ]
        made = sorted({r.id: r for r in made}.values(), key=lambda r: (r.group, r.seed))
        rewards = [pair(request) for request in made]
        advantages = mixed_advantages(rewards, [r.group for r in made], (1.0, 0.5))
        assert [advantage for _, advantage in order] == pytest.approx(advantages)
        means = [sum(column) / len(made) for column in zip(*rewards, strict=True)]
        assert metrics["rewards"] == pytest.approx({"ocr": means[0], "pick": means[1]}, abs=1e-5)
        assert metrics["reward_mean"] == pytest.approx((means[0] + means[1] / 2) / 1.5, abs=1e-5)
        if metrics["iteration"] > 0:
            assert metrics["previews"] > 0
            assert metrics["rank_correlation"] == 1.0, "previews and samples are on one scale"
    first, *_ = validations(end.run_folder)
    assert first["rewards"].keys() == {"ocr", "pick"}
    weighed = (first["rewards"]["ocr"] + first["rewards"]["pick"] / 2) / 1.5
    assert first["score"] == pytest.approx(weighed, abs=1e-5)
    assert "checks" not in first or first["checks"] is None


@pytest.mark.parametrize("bad", [(0.5,), (0.5, 31.0)], ids=repr)
async def test_what_a_worker_says_that_is_none_of_the_rewards_is_a_failure(
    town: Town, reward: Callable[[Callable[[Request], Any]], None], bad: tuple[float, ...]
) -> None:
    reward(lambda wanted: bad if wanted.kind == "rollout" else pair(wanted))
    end = await town.run(job(rewards=BOTH, exploration={"mode": "none"}))
    assert end.outcome == "failed"
    assert "every prompt group of the iteration failed" in end.reason
    assert events(end.run_folder, "scorer_failed")


# --- rewards that say nothing ---


async def test_an_iteration_whose_rewards_are_all_equal_warns(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(lambda wanted: 0.25 if wanted.iteration == 1 else chance(wanted))
    end = await town.run(job(exploration={"mode": "none"}, scoring={"flat_iterations": 2}))
    assert end.outcome == "finished"
    (flat,) = events(end.run_folder, "rewards_flat")
    assert (flat["iteration"], flat["reward"]) == (1, 0.25)
    assert (flat["in_a_row"], flat["stops_after"]) == (1, 2)


async def test_a_job_stops_after_as_many_in_a_row_as_it_says(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(lambda wanted: 0.0 if wanted.iteration >= 1 else chance(wanted))
    spec = job(iterations=6, exploration={"mode": "none"}, scoring={"flat_iterations": 3})
    end = await town.run(spec)
    assert end.outcome == "failed"
    assert "all 8 samples of iteration 3 have the same reward, 0, as in the 2 iterations" in (
        end.reason
    )
    assert "`scoring.flat_iterations`" in end.reason
    assert "\n" not in end.reason
    assert [e["in_a_row"] for e in events(end.run_folder, "rewards_flat")] == [1, 2, 3]


async def test_one_reward_that_varies_is_enough(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(lambda wanted: (0.0, 20 + chance(wanted)))
    spec = job(rewards=BOTH, exploration={"mode": "none"}, scoring={"flat_iterations": 1})
    assert (await town.run(spec)).outcome == "finished"


async def test_a_killed_coordinator_goes_on_counting(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(lambda wanted: 0.0)
    await town.submit(job(iterations=6, exploration={"mode": "none"}))
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == 2)
    await town.kill()
    await town.open()
    end = await town.ended()
    assert end.outcome == "failed"
    assert "of iteration 4 have the same reward" in end.reason


# --- a model that games its reward ---


def gamed(wanted: Request) -> tuple[float, ...]:
    """The score rises with the version; from the second on it is at the other reward's cost."""
    score = min(1.0, 0.2 + 0.2 * wanted.weights_version + 0.1 * chance(wanted))
    strict = (0.2 if wanted.weights_version >= 2 else 0.8) + 0.1 * chance(wanted, "strict")
    return (score, strict) if wanted.kind == "evaluation" else (score,)


async def test_a_job_warns_when_a_reward_falls_that_is_not_trained_on(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(gamed)
    validation = {"rewards": [STRICT], "every": 1}
    end = await town.run(job(validation=validation, exploration={"mode": "none"}))
    assert end.outcome == "finished"
    fallen = events(end.run_folder, "reward_fell")
    assert [fall["weights_version"] for fall in fallen] == [2, 3]
    assert {fall["reward"] for fall in fallen} == {"strict"}
    assert fallen[0]["mean"] < 0.4 < 0.7 < fallen[0]["best"]
    told = validations(end.run_folder)
    assert [v["rewards"].keys() for v in told] == [{"ocr", "strict"}] * 4
    assert [v["checks"] for v in told] == [v["rewards"]["strict"] for v in told]
    assert [v["score"] for v in told] == [v["rewards"]["ocr"] for v in told]


async def test_a_job_that_says_so_stops_then(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(gamed)
    validation = {"rewards": [STRICT], "every": 1, "on_hacking": "stop"}
    end = await town.run(job(iterations=9, validation=validation, exploration={"mode": "none"}))
    assert end.outcome == "failed"
    assert "`strict`, which is not trained on, fell from 0.8" in end.reason
    assert "(version 2), while the score rose" in end.reason
    assert len(events(end.run_folder, "reward_fell")) == 1


# --- what scorers are told ---


async def test_the_metadata_of_a_prompt_goes_along_with_all_its_requests(
    town: Town, tmp_path: Path
) -> None:
    for name, words in (("train", "ab"), ("validation", "c")):
        records = [{"prompt": f'"{word}"', "tag": word, "n": [1]} for word in words]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    prompts = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "validation")}
    end = await town.run(job(prompts=prompts))
    assert end.outcome == "finished"
    assert {request.kind for _, request in town.world.granted} == {
        "rollout",
        "preview",
        "random",
        "evaluation",
    }
    for _, request in town.world.granted:
        word = request.prompt.strip('"')
        assert json.loads(request.metadata) == {"tag": word, "n": [1]}


@pytest.mark.parametrize("exploration", [{}, {"reuse": True}], ids=["rollouts", "previews"])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_reward_weighs_otherwise_for_prompts_with_a_tag(
    town: Town,
    reward: Callable[[Callable[[Request], Any]], None],
    tmp_path: Path,
    exploration: dict[str, Any],
    is_killed: bool,
) -> None:
    """A kill of the coordinator does not change that."""
    reward(lambda wanted: (chance(wanted), 20 + 5 * (1 - chance(wanted))))
    for name, words in (("train", "abcdefgh"), ("validation", "x")):
        records = [{"prompt": f'"{w}"', "tag": "late" if w > "d" else "early"} for w in words]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    prompts = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "validation")}
    first = {"weight": 1.0, "weight_by_tag": {"late": 0.0}}
    second = {**PICK, "weight": 0.0, "weight_by_tag": {"late": 1.0}}
    await town.submit(job(prompts=prompts, rewards=[first, second], exploration=exploration))
    if is_killed:
        await town.wait(lambda now: now.phase == "train" and now.iteration == 2)
        await town.kill()
        await town.open()
    end = await town.ended()
    assert end.outcome == "finished"
    seen = set()
    for order in town.world.trained:
        for sample in order.samples:
            better = derived_seed(sample.prompt, sample.seed, "") % 1000 / 1000
            group = [each for each in order.samples if each.prompt == sample.prompt]
            mean = sum(derived_seed(e.prompt, e.seed, "") % 1000 / 1000 for e in group) / len(group)
            is_late = sample.prompt.strip('"') > "d"
            assert (sample.advantage > 0) == ((better > mean) != is_late)
            seen.add(is_late)
    assert seen == {True, False}


async def test_a_prompt_of_a_text_file_has_none(town: Town) -> None:
    await town.run(job())
    assert {request.metadata for _, request in town.world.granted} == {""}


async def test_only_the_groups_that_vary_most_are_trained_on(
    town: Town, reward: Callable[[Callable[[Request], Any]], None]
) -> None:
    reward(lambda wanted: chance(wanted) * (1.0 if wanted.group % 2 else 0.01))
    end = await town.run(job(training={"variance_share": 0.9}))
    assert end.outcome == "finished"
    for samples, metrics in zip(
        trained_samples(town.world.trained), iterations(end.run_folder), strict=True
    ):
        left_out = metrics["samples_left_out"]
        assert left_out >= metrics["samples"] / 2
        assert len(samples) == metrics["samples"] - left_out > 0
        assert max(abs(advantage) for _, advantage in samples) > 0.1
