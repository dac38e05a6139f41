"""Where the SDE window of an iteration is, and what its requests say of how images are denoised."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from job_kit import job

from spotlight.actors.coordinator.tenant.request_plans import (
    evaluation_requests,
    evaluation_settings,
    exploration_settings,
    preview_id,
    preview_request,
    preview_settings,
    previewed,
    random_requests,
    rollout_requests,
    rollout_settings,
    window_start,
)
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.explorer import Preview
from spotlight.policies.exploration.planners import SeedChoice

SAMPLER = {"height": 16, "width": 48, "steps": 4, "guidance": 3.0}


def windowed(**window: object) -> JobSpec:
    return job(sampler={"kind": "flow_sde", "steps": 12, "window": window})


def mixgrpo_starts(iterations: int, *, window: int, last: int, every: int) -> list[int]:
    """Where the window of each iteration begins: Tencent-Hunyuan/MixGRPO,
    fastvideo/utils/grpo_states.py, `progressive` with overlap and roll-back, turning back as soon
    as the window would be cut short."""
    start, stayed, starts = 0, 0, []
    for _ in range(iterations):
        starts.append(start)
        stayed += 1
        if stayed == every:
            start, stayed = start + 1, 0
        if start + window > last:
            start, stayed = 0, 0
    return starts


@pytest.mark.parametrize("every", [1, 3, 25])
def test_a_sliding_window_goes_as_in_mixgrpo(every: int) -> None:
    spec = windowed(length=4, latest=11, placement="sliding", slide_every=every)
    found = [window_start(spec, iteration) for iteration in range(300)]
    assert found == mixgrpo_starts(300, window=4, last=11, every=every)


def test_the_authors_own_window_of_24_iterations_is_the_same() -> None:
    """What their code gives for a window of 4 of 11 steps that moves every 3 iterations."""
    authors = Path(__file__).parents[2] / "training" / "losses" / "authors.json"
    windows = json.loads(authors.read_text(encoding="utf-8"))["mixgrpo"]
    spec = windowed(length=4, latest=11, placement="sliding", slide_every=3)
    starts = [window_start(spec, iteration) for iteration in range(24)]
    assert windows == [list(range(start, start + 4)) for start in starts]


def test_a_sliding_window_stays_where_it_may_be() -> None:
    spec = windowed(length=2, earliest=3, latest=7, placement="sliding", slide_every=1)
    assert [window_start(spec, i) for i in range(8)] == [3, 4, 5, 3, 4, 5, 3, 4]


def test_a_random_window_starts_at_every_step_alike() -> None:
    spec = windowed(length=2, earliest=1, latest=5)
    found = Counter(window_start(spec, iteration) for iteration in range(3000))
    assert set(found) == {1, 2, 3}
    assert min(found.values()) > 800


def test_a_preview_with_all_steps_has_the_noise_of_the_sample_that_it_may_become() -> None:
    spec = windowed(length=2, earliest=1, latest=9)
    plans = [(preview_settings(spec, k), rollout_settings(spec, k)) for k in range(20)]
    assert all(preview == rollout for preview, rollout in plans)
    assert len({preview.window for preview, _ in plans}) > 1


def test_every_image_of_a_job_is_denoised_with_its_solver() -> None:
    spec = job(sampler={"solver": "dpmpp_2m", "steps": 8}, exploration={"preview_steps": 4})
    settings = (rollout_settings(spec, 0), preview_settings(spec, 0), evaluation_settings(spec))
    assert {each.solver for each in settings} == {"dpmpp_2m"}


def test_previews_of_fewer_steps_may_be_taken_by_another_solver_than_samples() -> None:
    spec = job(exploration={"preview_steps": 1, "preview_solver": "dpmpp_2m"})
    assert preview_settings(spec, 0).solver == "dpmpp_2m"
    assert rollout_settings(spec, 0).solver == evaluation_settings(spec).solver == "euler"


def test_previews_that_become_samples_are_taken_by_the_solver_of_samples() -> None:
    spec = job(exploration={"preview_steps": 1, "preview_solver": "dpmpp_2m"})
    assert preview_settings(spec, 0, are_samples=True) == rollout_settings(spec, 0)


def test_validation_images_have_the_guidance_of_rollouts_unless_the_job_says_otherwise() -> None:
    plain = job(sampler=SAMPLER)
    assert evaluation_settings(plain).guidance == rollout_settings(plain, 0).guidance == 3.0
    other = job(sampler=SAMPLER, validation={"guidance": 1.0})
    assert evaluation_settings(other).guidance == 1.0
    assert rollout_settings(other, 0).guidance == 3.0


PREVIEW = Preview(iteration=3, group=1, prompt="a", seed=7)


@pytest.mark.parametrize(("weights", "version"), [("previous", 2), ("fresh", 3)])
def test_a_preview_names_the_weights_and_settings_that_its_iteration_is_explored_with(
    weights: str, version: int
) -> None:
    spec = job(exploration={"budget": "fixed", "weights": weights})
    request = preview_request(spec, PREVIEW, are_samples=False)
    assert (request.kind, request.iteration, request.weights_version) == ("preview", 3, version)
    assert (request.group, request.prompt, request.seed) == (1, "a", 7)
    assert request.settings == preview_settings(spec, 3)
    assert request.id == preview_id(spec, PREVIEW)
    assert previewed(request) == PREVIEW


@pytest.mark.parametrize("are_samples", [True, False])
def test_previews_that_may_be_trained_on_leave_pictures_and_take_all_steps(
    are_samples: bool,
) -> None:
    spec = job(exploration={"preview_steps": 1})
    request = preview_request(spec, PREVIEW, are_samples=are_samples)
    assert bool(request.thumbnail_key) == are_samples
    assert request.settings.steps == (spec.sampler.steps if are_samples else 1)


def test_what_is_asked_of_exploration_is_what_the_job_says() -> None:
    spec = job(
        exploration={"mode": "bandit", "candidates": 6, "prompt_pool": 3, "probes": 2},
        rewards=[{"weight": 2.0}],
    )
    asked = exploration_settings(spec)
    assert (asked.planner, asked.budget, asked.probes) == ("bandit", "fixed", 2)
    assert (asked.keep, asked.trained, asked.candidates) == (4, 2, 24)
    assert (asked.weights, asked.limits) == ((2.0,), ((0.0, 1.0),))
    assert asked.previews_are_alike and not asked.divides


def test_a_job_that_asks_for_it_is_trained_in_two_parts() -> None:
    spec = job(
        exploration={"budget": "window", "reuse": True}, training={"updates_per_iteration": 2}
    )
    assert exploration_settings(spec).divides


COMPARES = {"kind": "python", "python": "own:compare", "groupwise": True}


def test_all_images_of_a_prompt_are_scored_together_where_a_reward_compares_them() -> None:
    spec = job(rewards=[COMPARES], group_size=3, validation={"seeds": 2})
    choices = [SeedChoice((5, 6, 7), ()), SeedChoice((8, 9, 10), ())]
    rollouts = rollout_requests(spec, 1, ["a", "b"], choices)
    assert [one.scored_with for one in rollouts] == [(5, 6, 7)] * 3 + [(8, 9, 10)] * 3
    for wanted, size in (
        (evaluation_requests(spec, 1, ["a", "b"]), 2),
        (random_requests(spec, 1, ["a", "b"], [1], is_due=True), 3),
    ):
        for request in wanted:
            assert request.seed in request.scored_with
            assert len(set(request.scored_with)) == size


def test_nothing_waits_for_others_where_no_reward_compares() -> None:
    rollouts = rollout_requests(job(), 1, ["a"], [SeedChoice((5, 6), ())])
    assert {one.scored_with for one in rollouts} == {()}


def test_previews_that_are_compared_come_in_heats_and_none_is_made_again() -> None:
    compares = {"rewards": [COMPARES], "validation": {"seeds": 2}}
    settings = exploration_settings(job(group_size=3, **compares))
    assert (settings.heat, settings.probes) == (3, 0)
    assert exploration_settings(job(group_size=3)).heat == 1


def test_previews_of_their_own_model_are_eulers_without_guidance_or_the_jobs_shift() -> None:
    spec = job(
        sampler=SAMPLER | {"steps": 8, "shift": 3.0, "solver": "dpmpp_2m"},
        exploration={"preview_checkpoint": "anyflow", "preview_steps": 2, "finish": "previous"},
    )
    preview = preview_settings(spec, 3)
    assert preview.preview_model
    assert (preview.steps, preview.guidance, preview.shift) == (2, 1.0, None)
    assert (preview.kind, preview.solver) == ("ode", "euler")
    assert preview_settings(spec, 3, are_samples=True) == rollout_settings(spec, 3)
    assert not rollout_settings(spec, 3).preview_model
