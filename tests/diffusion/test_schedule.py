from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

from spotlight.diffusion.families.registry import FAMILIES
from spotlight.diffusion.schedule import flow_sigmas
from spotlight.errors import JobError

QWEN = {
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "shift_terminal": 0.02,
}


@pytest.mark.parametrize("steps", [1, 8, 50])
def test_a_fixed_shift_gives_diffusers_sigmas(steps: int) -> None:
    reference = FlowMatchEulerDiscreteScheduler(shift=3.0)
    reference.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps))
    assert torch.equal(
        flow_sigmas(FlowMatchEulerDiscreteScheduler(shift=3.0), steps, None), reference.sigmas
    )


@pytest.mark.parametrize("tokens", [1024, 6400])
def test_dynamic_shifting_is_that_of_diffusers_pipeline(tokens: int) -> None:
    mu = calculate_shift(tokens, 256, 8192, 0.5, 0.9)
    scheduler = FlowMatchEulerDiscreteScheduler(**QWEN)
    own = FAMILIES["QwenImagePipeline"].dynamic_shift(scheduler, tokens, steps=10)
    assert own == pytest.approx(mu)
    reference = FlowMatchEulerDiscreteScheduler(**QWEN)
    reference.set_timesteps(sigmas=np.linspace(1, 0.1, 10), mu=mu)
    torch.testing.assert_close(flow_sigmas(scheduler, 10, own), reference.sigmas)


@pytest.mark.parametrize("tokens", [256, 4096, 4300, 4301, 16384])
@pytest.mark.parametrize("steps", [1, 10, 50, 200])
def test_the_shift_that_depends_on_the_steps_is_that_of_diffusers_pipeline(
    tokens: int, steps: int
) -> None:
    own = FAMILIES["Flux2KleinPipeline"].dynamic_shift(None, tokens, steps)
    assert own == pytest.approx(compute_empirical_mu(tokens, steps))


def test_the_shift_of_a_job_replaces_dynamic_shifting() -> None:
    sigmas = flow_sigmas(FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), 4, 0.5, 2.0)
    even = torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0])
    torch.testing.assert_close(sigmas, 2 * even / (1 + even))


@pytest.mark.parametrize("shift", [None, 3.0])
def test_one_step_goes_from_noise_to_image_whatever_the_terminal_shift(
    shift: float | None,
) -> None:
    """diffusers stretches one sigma from its first to its last value, and divides 0 by 0."""
    config = QWEN | {"use_dynamic_shifting": shift is None}
    assert flow_sigmas(FlowMatchEulerDiscreteScheduler(**config), 1, 0.5, shift).tolist() == [1, 0]


def test_a_schedule_in_which_some_steps_lead_nowhere_is_refused() -> None:
    with pytest.raises(JobError, match=r"^sampler\.shift: 100000000\.0 makes some of 8 steps"):
        flow_sigmas(FlowMatchEulerDiscreteScheduler(), 8, None, 1e8)


def test_sigmas_fall_from_one_to_zero() -> None:
    sigmas = flow_sigmas(FlowMatchEulerDiscreteScheduler(shift=1.0), 8, None)
    assert sigmas.dtype == torch.float32
    assert sigmas[0] == 1
    assert sigmas[-1] == 0
    assert torch.all(sigmas.diff() < 0)


@pytest.mark.parametrize("shift", [None, 5.0])
def test_a_scheduler_that_spaces_sigmas_itself_is_followed(shift: float | None) -> None:
    for kind, name in (
        (FlowMatchEulerDiscreteScheduler, "shift"),
        (UniPCMultistepScheduler, "flow_shift"),
    ):
        flow = {} if name == "shift" else {"use_flow_sigmas": True}
        reference = kind(**flow, **{name: shift or 3.0})
        reference.set_timesteps(10)
        ours = flow_sigmas(kind(**flow, **{name: 3.0}), 10, 48, shift, own_spacing=True)
        assert torch.equal(ours, reference.sigmas)
