"""Chosen previews of fresh weights with all steps, with real numerics."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spotlight.actors.coordinator.tenant.request_plans import (
    exploration_settings,
    preview_settings,
    rollout_settings,
    unexplored,
)
from spotlight.assets import read_prompts
from spotlight.diffusion.samplers import SampleBatch
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.explored import ExplorationPlan
from spotlight.policies.exploration.planners import Candidate
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.policies.exploration.settings import planner_of
from spotlight_simulation.one_process import OneProcess, ScoredSamples
from tests.small_run import Brightness, small_job

ITERATIONS = 2
CANDIDATES = 3
PROMPTS = read_prompts("builtin:ocr-tiny/train")[:2]
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
    """Needs no recogniser."""
    monkeypatch.setattr("spotlight_simulation.one_process.build_scorer", lambda *_: Brightness())


def fresh(changes: dict[str, Any]) -> JobSpec:
    exploration = {"weights": "fresh", "budget": "fixed", "candidates": CANDIDATES}
    prompts = {"per_iteration": len(PROMPTS)}
    return small_job(exploration=exploration, prompts=prompts, group_size=4, **changes)


def denoised(engine: OneProcess, those: list[Candidate], settings: Any) -> list[ScoredSamples]:
    """Each by itself, though many were in one batch."""
    pairs = [(PROMPTS[each.group], each.seed) for each in those]
    return [
        ScoredSamples(row(part.batch, index), [rewards], [score])
        for part in engine.scored(engine.trainer.rollout_state(), pairs, settings)
        for index, (rewards, score) in enumerate(zip(part.rewards, part.scores, strict=True))
    ]


def row(batch: SampleBatch, index: int) -> SampleBatch:
    tensors = {name: value[index : index + 1] for name, value in tensors_of(batch).items()}
    return replace(batch, **tensors)


def tensors_of(batch: SampleBatch) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def chosen(
    job: JobSpec, engine: OneProcess, iteration: int
) -> tuple[list[Candidate], list[ScoredSamples]]:
    """The best candidates of an iteration, and their previews."""
    prompts = tuple(PROMPTS)
    plan = ExplorationPlan(iteration, prompts, ("",) * len(prompts), 0.0, Knowledge(), 1.0)
    planner = planner_of(exploration_settings(job), plan)
    candidates = planner.next_chunk(CANDIDATES * job.samples_per_iteration)
    previews = denoised(engine, candidates, preview_settings(job, iteration))
    for candidate, preview in zip(candidates, previews, strict=True):
        planner.record(candidate, preview.rewards[0])
    made = dict(zip(candidates, previews, strict=True))
    best = [
        Candidate(group, seed)
        for group, choice in enumerate(planner.choose())
        for seed in choice.seeds
    ]
    return best, [made[each] for each in best]


@pytest.mark.parametrize("changes", [{}, STOCHASTIC], ids=["ode", "with noise"])
@pytest.mark.slow
def test_chosen_previews_are_bit_for_bit_what_denoising_them_again_gives(
    changes: dict[str, Any],
) -> None:
    """Samples, rewards, and the weights that are trained on them."""
    job = fresh(changes)
    assert job.trains_on_previews
    directly, again = OneProcess(job), OneProcess(job)
    for iteration in range(ITERATIONS):
        best, previews = chosen(job, directly, iteration)
        unchosen = [seed for seeds in unexplored(job, iteration).seeds for seed in seeds]
        assert [each.seed for each in best] != unchosen
        samples = denoised(again, best, rollout_settings(job, iteration))
        for preview, sample in zip(previews, samples, strict=True):
            left, right = tensors_of(preview.batch), tensors_of(sample.batch)
            assert left.keys() == right.keys()
            assert all(torch.equal(left[name], right[name]) for name in left)
            assert preview.rewards == sample.rewards
        prompts, groups = [PROMPTS[each.group] for each in best], [each.group for each in best]
        directly.train(iteration, prompts, groups, previews)
        again.train(iteration, prompts, groups, samples)
        left, right = directly.trainer.rollout_state(), again.trainer.rollout_state()
        assert all(torch.equal(left[name], right[name]) for name in left)
