"""How the images of a job are denoised, as its requests say."""

from __future__ import annotations

from job_kit import job

from spotlight.actors.coordinator.request_plans import evaluation_settings, rollout_settings

SAMPLER = {"height": 16, "width": 48, "steps": 4, "guidance": 3.0}


def test_validation_images_have_the_guidance_of_rollouts_unless_the_job_says_otherwise() -> None:
    plain = job(sampler=SAMPLER)
    assert evaluation_settings(plain).guidance == rollout_settings(plain, 0).guidance == 3.0
    other = job(sampler=SAMPLER, validation={"guidance": 1.0})
    assert evaluation_settings(other).guidance == 1.0
    assert rollout_settings(other, 0).guidance == 3.0
