"""A job whose reward compares the images of a prompt, under faults: all that it promises holds."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from spotlight.jobs import RewardSpec
from spotlight_simulation.chaos import scenario, scratch_folder, silence, simulate
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.invariants import check

COMPARES = RewardSpec(kind="python", name="compares", python="own:compares", groupwise=True)


@pytest.mark.parametrize("seed", [0, 2, 4, 5, 6, 8])
def test_a_job_that_compares_images_survives_all_faults(seed: int) -> None:
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        made = scenario(seed, folder)
        explores = msgspec.structs.replace(
            made.job.exploration, mode="uniform", reuse=False, finish="newest", preview_steps=None
        )
        job = msgspec.structs.replace(made.job, rewards=(COMPARES,), exploration=explores)
        made = msgspec.structs.replace(made, job=job, exact_training=False)
        run = runner.run(simulate(seed, made, folder))
        check(run)
    assert run.history.violations == []
    assert run.outcomes[-1][0] == "finished"
