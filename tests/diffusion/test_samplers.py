from __future__ import annotations

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler
from msgspec.structs import replace

from spotlight.diffusion.flow_model import FlowModel
from spotlight.diffusion.noise import initial_noise, step_noise
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.samplers import resume, sample, start
from spotlight.diffusion.transitions import log_prob, transition
from spotlight.errors import NotFinite
from spotlight.types import SamplingSettings

ODE = SamplingSettings(kind="ode", steps=6, height=16, width=48, micro_batch=4)
SDE = replace(ODE, kind="flow_sde", window=(1, 2))
CPS = replace(ODE, kind="cps", window=(0, 3), noise_level=0.8)
DANCE = replace(SDE, kind="dance_sde", noise_level=0.3)
SECOND_ORDER = replace(ODE, solver="dpmpp_2m")
NOISE_THEN_SECOND_ORDER = replace(SDE, solver="dpmpp_2m")
ALL = pytest.mark.parametrize(
    "settings",
    [ODE, SDE, CPS, DANCE, SECOND_ORDER, NOISE_THEN_SECOND_ORDER],
    ids=lambda settings: f"{settings.kind}-{settings.solver}",
)
PROMPTS = [f'the number "{number}"' for number in (1234, 5678, 9012, 3456, 7890, 1111)]
SEEDS = [3, 2**63 + 5, 17, 0, 42, 99]


def same_bits(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)


def test_the_ode_sampler_is_diffusers_own_loop(model: FlowModel) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=[1 - step / 6 for step in range(6)])
    latents = initial_noise(SEEDS[:4], model.latent_shape(16, 48))
    embeddings = model.encode_prompts(PROMPTS[:4])
    with torch.no_grad():
        for timestep, sigma in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
            velocity = model.velocity(latents, sigma.expand(4), embeddings, height=16, width=48)
            latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
    torch.testing.assert_close(
        sample(model, PROMPTS[:4], SEEDS[:4], ODE).latents, latents, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 12])
def test_the_second_order_sampler_is_diffusers_own_loop(
    model: FlowModel, steps: int, shift: float
) -> None:
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, lower_order_final=False
    )
    scheduler.set_timesteps(steps)
    # Its own sigmas begin just below 1; both solvers get those of the sampler.
    scheduler.sigmas = model.sigmas(steps, 16, 48, shift)
    scheduler.timesteps = 1000 * scheduler.sigmas[:-1]
    latents = initial_noise(SEEDS[:4], model.latent_shape(16, 48))
    embeddings = model.encode_prompts(PROMPTS[:4])
    with torch.no_grad():
        for timestep, sigma in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
            velocity = model.velocity(latents, sigma.expand(4), embeddings, height=16, width=48)
            latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
    settings = replace(SECOND_ORDER, steps=steps, shift=shift)
    ours = sample(model, PROMPTS[:4], SEEDS[:4], settings).latents
    torch.testing.assert_close(ours, latents, rtol=1e-5, atol=1e-5)
    euler = sample(model, PROMPTS[:4], SEEDS[:4], replace(settings, solver="euler")).latents
    assert torch.allclose(euler, ours, atol=1e-5) == (steps <= 3)


@ALL
def test_another_batch_order_gives_the_same_bits(
    model: FlowModel, settings: SamplingSettings
) -> None:
    forward = sample(model, PROMPTS, SEEDS, settings)
    backward = sample(model, PROMPTS[::-1], SEEDS[::-1], settings)
    assert torch.equal(forward.latents, backward.latents.flip(0))
    if settings.kind != "ode":
        assert same_bits(forward.window_states, backward.window_states.flip(0))
        assert same_bits(forward.log_probs, backward.log_probs.flip(0))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_small_micro_batch_gives_the_same_bits_in_any_company(
    model: FlowModel, size: int
) -> None:
    settings = replace(ODE, micro_batch=size)
    together = sample(model, PROMPTS, SEEDS, settings)
    for row in range(len(SEEDS)):
        alone = sample(model, PROMPTS[row : row + 1], SEEDS[row : row + 1], settings)
        assert torch.equal(together.latents[row : row + 1], alone.latents)


@ALL
def test_a_short_batch_gives_the_same_bits(model: FlowModel, settings: SamplingSettings) -> None:
    together = sample(model, PROMPTS[:4], SEEDS[:4], settings)
    alone = sample(model, PROMPTS[2:3], SEEDS[2:3], settings)
    assert torch.equal(together.latents[2:3], alone.latents)


@ALL
@pytest.mark.parametrize("broken_after", range(6))
def test_resuming_at_any_step_gives_the_same_bits(
    model: FlowModel, settings: SamplingSettings, broken_after: int
) -> None:
    whole = sample(model, PROMPTS[:3], SEEDS[:3], settings)
    first = start(model, PROMPTS[:3], SEEDS[:3], settings)
    for _ in range(broken_after):
        first.step()
    commit = Progress.from_tensors(first.progress().tensors())
    second = resume(model, PROMPTS[:3], SEEDS[:3], settings, commit)
    assert second.steps_taken == broken_after
    while not second.done:
        second.step()
    assert torch.equal(second.result().latents, whole.latents)
    assert same_bits(second.result().window_states, whole.window_states)
    assert same_bits(second.result().log_probs, whole.log_probs)


def test_samples_of_different_batches_can_be_resumed_together(model: FlowModel) -> None:
    whole = sample(model, PROMPTS[:2], SEEDS[:2], SDE)
    parts = []
    for row in range(2):
        alone = start(model, PROMPTS[row : row + 1], SEEDS[row : row + 1], SDE)
        alone.step()
        alone.step()
        parts.append(alone.progress())
    together = resume(model, PROMPTS[:2], SEEDS[:2], SDE, Progress.join(parts))
    while not together.done:
        together.step()
    assert torch.equal(together.result().latents, whole.latents)


def test_samples_at_different_steps_cannot_be_joined(model: FlowModel) -> None:
    denoising = start(model, PROMPTS[:1], SEEDS[:1], ODE)
    before = denoising.progress()
    denoising.step()
    with pytest.raises(ValueError, match="at one step"):
        Progress.join([before, denoising.progress()])


@pytest.mark.parametrize("settings", [SDE, CPS], ids=lambda settings: settings.kind)
@pytest.mark.parametrize("size", [1, 4])
def test_replaying_the_window_gives_exactly_the_recorded_log_probabilities(
    model: FlowModel, settings: SamplingSettings, size: int
) -> None:
    settings = replace(settings, micro_batch=size)
    batch = sample(model, PROMPTS[:size], SEEDS[:size], settings)
    assert batch.window_states is not None
    assert batch.log_probs is not None
    sigmas = model.sigmas(6, 16, 48, None)
    embeddings = model.encode_prompts(PROMPTS[:size])
    for index in range(batch.log_probs.shape[1]):
        step = batch.window_start + index
        before, after = batch.window_states[:, index], batch.window_states[:, index + 1]
        velocity = model.velocity(
            before, sigmas[step].expand(size), embeddings, height=16, width=48
        )
        mean, std = transition(settings.kind, settings.noise_level, before, velocity, sigmas, step)
        ratio = torch.exp(log_prob(settings.kind, after, mean, std) - batch.log_probs[:, index])
        assert torch.equal(ratio, torch.ones(size))


@pytest.mark.parametrize("shift", [0.54, 1.18, 2.14])
def test_the_first_step_adds_noise_of_the_noise_level_whatever_the_shift(
    model: FlowModel, shift: float
) -> None:
    """Its standard deviation is the noise level; the noise is the seed's own."""
    assert model.sigmas(6, 16, 48, shift)[0] != 1
    first = replace(SDE, shift=shift, window=(0, 2))
    quiet, noisy = (
        start(model, PROMPTS[:1], SEEDS[:1], replace(first, noise_level=level))
        for level in (0.0, 0.7)
    )
    quiet.step()
    noisy.step()
    noise = step_noise(SEEDS[:1], 0, model.latent_shape(16, 48))
    # The mean moves a little, too, against the latents: by noise_level^2 / 2 of them.
    drift = -(0.7**2) / 2 * initial_noise(SEEDS[:1], model.latent_shape(16, 48))
    torch.testing.assert_close(
        noisy.latents - quiet.latents, drift + 0.7 * noise, rtol=1e-4, atol=1e-4
    )


def test_noise_is_added_inside_the_window_only(model: FlowModel) -> None:
    ode, sde = (start(model, PROMPTS[:1], SEEDS[:1], settings) for settings in (ODE, SDE))
    ode.step()
    sde.step()
    assert torch.equal(ode.progress().latents, sde.progress().latents)
    ode.step()
    sde.step()
    assert not torch.equal(ode.progress().latents, sde.progress().latents)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_are_not_finite_are_named_and_are_no_result(
    model: FlowModel, value: float
) -> None:
    whole = sample(model, PROMPTS[:3], SEEDS[:3], ODE)
    begin = start(model, PROMPTS[:3], SEEDS[:3], ODE).progress()
    begin.latents[1, 5, 2] = value
    broken = resume(model, PROMPTS[:3], SEEDS[:3], ODE, begin)
    while not broken.done:
        broken.step()
    with pytest.raises(
        NotFinite, match=r"1 of 3 samples .*\('the number \"5678\"', seed 9223"
    ) as odd:
        broken.result()
    assert odd.value.rows == (1,)
    assert torch.equal(broken.latents[[0, 2]], whole.latents[[0, 2]])


def test_a_log_probability_that_is_not_finite_is_no_result(model: FlowModel) -> None:
    denoising = start(model, PROMPTS[:2], SEEDS[:2], SDE)
    for _ in range(3):
        denoising.step()
    commit = denoising.progress()
    commit.log_probs[0, 1] = float("-inf")
    resumed = resume(model, PROMPTS[:2], SEEDS[:2], SDE, commit)
    while not resumed.done:
        resumed.step()
    with pytest.raises(NotFinite) as odd:
        resumed.result()
    assert odd.value.rows == (0,)


def test_an_unfinished_denoising_has_no_result(model: FlowModel) -> None:
    with pytest.raises(ValueError, match="0 of 6 steps"):
        start(model, PROMPTS[:1], SEEDS[:1], ODE).result()


def test_a_commit_of_another_size_is_refused(model: FlowModel) -> None:
    commit = start(model, PROMPTS[:1], SEEDS[:1], ODE).progress()
    with pytest.raises(ValueError, match="does not fit"):
        resume(model, PROMPTS[:2], SEEDS[:2], ODE, commit)
