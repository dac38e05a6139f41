"""A simulated cluster computes what the job would: the same rewards and the same updates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spotlight.actors.coordinator.tenant.request_plans import evaluation_settings, rollout_settings
from spotlight.assets import read_prompts
from spotlight.jobs import JobSpec
from spotlight.types import Request, SamplingSettings
from spotlight_simulation import fingerprints
from spotlight_simulation.fingerprints import Row
from spotlight_simulation.numerics import Batch
from spotlight_simulation.one_process import OneProcess
from spotlight_simulation.real_numerics import CannotCompute, RealNumerics, _each
from tests.small_run import Brightness, small_job

PROMPTS = read_prompts("builtin:ocr-tiny/train")[:3]
ADVANTAGES = [1.0, -0.5, 0.25, -1.0, 0.75, -0.5]
STOCHASTIC = {
    "sampler": {
        "kind": "cps",
        "steps": 3,
        "window": {"length": 1, "earliest": 0, "latest": 2},
    },
    "training": {"loss": "flow_grpo", "options": {}},
}


@pytest.fixture(autouse=True)
def brightness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is what everybody scores with."""
    monkeypatch.setattr("spotlight_simulation.one_process.build_scorer", lambda *_: Brightness())


def pairs(first_seed: int = 0) -> list[tuple[str, int]]:
    """Six, so that a micro-batch is short."""
    return [(prompt, first_seed + n) for n, prompt in enumerate(2 * PROMPTS)]


def rows(
    weights: str,
    settings: SamplingSettings,
    those: Sequence[tuple[str, int]],
    kind: Any = "rollout",
) -> list[Row]:
    requests = [
        Request(f"{kind}/0/0/{seed}", kind, 0, 0, prompt, seed, 0, settings)
        for prompt, seed in those
    ]
    return [
        Row(each, weights, settings.steps, fingerprints.sample(weights, each)) for each in requests
    ]


def rollout(numerics: RealNumerics, job: JobSpec, weights: str, iteration: int = 0) -> list[Row]:
    """An iteration's scored samples."""
    made = rows(weights, rollout_settings(job, iteration), pairs(10 * iteration))
    numerics.rewards(made)
    return made


def update(numerics: RealNumerics, job: JobSpec, weights: str, iteration: int = 0) -> str:
    """Train an iteration; returns the name of what came of it."""
    samples = list(zip(rollout(numerics, job, weights, iteration), ADVANTAGES, strict=True))
    return numerics.trained(Batch(iteration, weights, samples, "")).weights


def test_rewards_are_those_of_the_job_s_model_and_scorer() -> None:
    job = small_job()
    numerics, engine = RealNumerics(job), OneProcess(job)
    settings = rollout_settings(job, 0)
    made = rows(numerics.initial_weights(job), settings, pairs())
    order = random.Random(0).sample(range(6), 6)
    found = numerics.rewards([made[index] for index in order])
    parts = engine.scored(engine.trainer.rollout_state(), pairs(), settings)
    expected = [reward for part in parts for reward in part.scores]
    assert list(found) == [expected[index] for index in order]


@pytest.mark.parametrize("changes", [{}, STOCHASTIC], ids=["ode", "cps"])
def test_training_is_that_of_the_job_s_trainer(changes: dict[str, Any]) -> None:
    job = small_job(**changes)
    numerics, engine = RealNumerics(job), OneProcess(job)
    initial, settings = numerics.initial_weights(job), rollout_settings(job, 0)
    made = rollout(numerics, job, initial)
    found = numerics.trained(Batch(0, initial, list(zip(made, ADVANTAGES, strict=True)), ""))
    parts = list(engine.scored(engine.trainer.rollout_state(), pairs(), settings))
    prompts = [prompt for prompt, _ in pairs()]
    expected = engine.update(0, prompts, [part.batch for part in parts], ADVANTAGES)
    assert found.metrics == expected

    for weights, state, how, kind in (
        (found.weights, engine.trainer.rollout_state(), rollout_settings(job, 1), "rollout"),
        (
            fingerprints.evaluation_weights(found.weights),
            engine.trainer.evaluation_state(),
            evaluation_settings(job),
            "evaluation",
        ),
    ):
        again = numerics.rewards(rows(weights, how, pairs(), kind))
        scored = engine.scored(state, pairs(), how)
        assert list(again) == [reward for part in scored for reward in part.scores]


def test_the_two_parts_of_an_iteration_are_trained_one_after_the_other() -> None:
    job = small_job(training={"updates_per_iteration": 2, "rollout_decay": 0.5})
    numerics, engine = RealNumerics(job), OneProcess(job)
    initial, settings = numerics.initial_weights(job), rollout_settings(job, 0)
    samples = list(zip(rollout(numerics, job, initial), ADVANTAGES, strict=True))
    found = numerics.trained(Batch(0, initial, samples, "", first=4))
    made = engine.scored(engine.trainer.rollout_state(), pairs(), settings)
    batches = [batch for part in made for batch in _each(part.batch)]
    prompts = [prompt for prompt, _ in pairs()]
    assert engine.update(0, prompts[:4], batches[:4], ADVANTAGES[:4], range(1)) == {}
    expected = engine.update(0, prompts[4:], batches[4:], ADVANTAGES[4:], range(1, 2))
    assert found.metrics == expected


def test_whoever_does_the_same_again_is_answered_without_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = small_job()
    numerics = RealNumerics(job)
    initial = numerics.initial_weights(job)
    first = update(numerics, job, initial)
    update(numerics, job, first, iteration=1)
    images = numerics.images
    monkeypatch.setattr(OneProcess, "update", lambda *_: pytest.fail("it is trained twice"))
    assert update(numerics, job, initial) == first
    assert numerics.images == images == 12


def test_a_sample_that_was_a_preview_before_can_be_trained_on() -> None:
    job = small_job()
    numerics = RealNumerics(job)
    initial, settings = numerics.initial_weights(job), rollout_settings(job, 0)
    numerics.rewards(rows(initial, settings, pairs(), kind="preview"))
    update(numerics, job, initial)
    assert numerics.images == 6


def test_other_samples_than_were_trained_on_before_are_refused() -> None:
    job = small_job()
    numerics = RealNumerics(job)
    initial = numerics.initial_weights(job)
    update(numerics, job, initial)
    others = list(zip(rollout(numerics, job, initial), ADVANTAGES[::-1], strict=True))
    with pytest.raises(CannotCompute, match="iteration 0"):
        numerics.trained(Batch(0, initial, others, ""))


def test_weights_that_are_long_outdated_are_refused() -> None:
    job = small_job()
    numerics = RealNumerics(job)
    initial = weights = numerics.initial_weights(job)
    for iteration in range(4):
        weights = update(numerics, job, weights, iteration)
    with pytest.raises(CannotCompute, match="preview/0/0/100 needs weights"):
        numerics.rewards(rows(initial, rollout_settings(job, 0), [(PROMPTS[0], 100)], "preview"))


def test_a_sample_that_its_request_does_not_give_is_refused() -> None:
    job = small_job()
    numerics = RealNumerics(job)
    [row] = rows(numerics.initial_weights(job), rollout_settings(job, 0), pairs()[:1])
    unfinished = Row(row.request, row.weights, 1, fingerprints.denoised(row.latents, 1))
    with pytest.raises(CannotCompute, match=row.request.id):
        numerics.rewards([unfinished])


@pytest.mark.parametrize("rewards", [[{}, {"name": "b"}], [{"noisy": True}]])
def test_a_preview_with_more_than_one_reward_is_refused(rewards: list[dict[str, Any]]) -> None:
    with pytest.raises(CannotCompute, match="several rewards, or a noisy one"):
        RealNumerics(small_job(rewards=rewards, exploration={"mode": "uniform", "reuse": True}))


def test_a_job_that_computes_something_else_is_refused() -> None:
    numerics = RealNumerics(small_job())
    numerics.initial_weights(small_job(name="other", exploration={"mode": "none"}, iterations=9))
    with pytest.raises(CannotCompute, match="`other`"):
        numerics.initial_weights(small_job(name="other", seed=1))


def test_nothing_is_drawn_from_torch_s_own_generator() -> None:
    job = small_job()
    numerics = RealNumerics(job)
    before = torch.random.get_rng_state()
    update(numerics, job, numerics.initial_weights(job))
    assert torch.equal(before, torch.random.get_rng_state())
