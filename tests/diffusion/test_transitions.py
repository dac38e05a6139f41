from __future__ import annotations

import math

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from spotlight.diffusion.schedule import flow_sigmas
from spotlight.diffusion.transitions import dpmpp_2m, euler, foresee, log_prob, transition

GENERATOR = torch.Generator().manual_seed(0)
X0 = torch.randn(3, 8, 4, generator=GENERATOR)
EPS = torch.randn(3, 8, 4, generator=GENERATOR)


SCHEDULE = torch.tensor([1.0, 0.7, 0.5, 0.0])
"""Step 1 leads from 0.7 to 0.5."""
SHIFTS = [number / 100 for number in range(50, 1001)]


def at(sigma: float) -> torch.Tensor:
    return (1 - sigma) * X0 + sigma * EPS


def schedule(shift: float, steps: int = 8) -> torch.Tensor:
    return flow_sigmas(FlowMatchEulerDiscreteScheduler(), steps, None, shift)


def plain_flow_sde(
    a: float, x: float, v: float, sigmas: list[float], step: int
) -> tuple[float, float]:
    """Flow-GRPO's step as its paper and code state it, in double precision: the denominator of the
    first step, where s = 1, uses the second sigma."""
    s, following = sigmas[step], sigmas[step + 1]
    dt = following - s
    spread = a * math.sqrt(s / (1 - (following if step == 0 else s)))
    mean = x * (1 + spread**2 / (2 * s) * dt) + v * (1 + spread**2 * (1 - s) / (2 * s)) * dt
    return mean, spread * math.sqrt(-dt)


def solution_error(solver: str, steps: int) -> float:
    """How far a solver ends from the image when images are normal with a spread of 0.5.

    The exact velocity is then x * (s - (1 - s) / 4) / ((1 - s)^2 / 4 + s^2), and x(0) = x(1) / 2.
    """
    sigmas = torch.linspace(1, 0, steps + 1)
    latents, foreseen = torch.ones(1, 1, 1), torch.ones(1, 1, 1)
    for step in range(steps):
        s = sigmas[step].item()
        velocity = latents * (s - (1 - s) / 4) / ((1 - s) ** 2 / 4 + s**2)
        clean = foresee(latents, velocity, s)
        if solver == "dpmpp_2m" and 2 <= step < steps - 1:
            latents = dpmpp_2m(latents, velocity, foreseen, sigmas, step)
        else:
            latents = euler(latents, velocity, s, sigmas[step + 1])
        foreseen = clean
    return abs(latents.item() - 0.5)


def test_the_second_order_solver_is_of_second_order() -> None:
    """Four times the steps make the error of Euler 4 times smaller, and its own some 12 times."""
    euler_gain = solution_error("euler", 64) / solution_error("euler", 256)
    gain = solution_error("dpmpp_2m", 64) / solution_error("dpmpp_2m", 256)
    assert 3 < euler_gain < 5
    assert gain > 9
    assert solution_error("dpmpp_2m", 16) < solution_error("euler", 64)


def test_the_second_order_solver_bears_a_schedule_that_stays_at_1() -> None:
    sigmas = torch.tensor([1 + 1e-7, 1.0, 0.9, 0.8, 0.0])
    ahead = dpmpp_2m(X0, EPS, X0, sigmas, 2)
    assert torch.equal(ahead, euler(X0, EPS, sigmas[2].item(), sigmas[3].item()))


@pytest.mark.parametrize("kind", ["ode", "flow_sde", "dance_sde", "cps"])
@pytest.mark.parametrize("step", range(3))
def test_noise_level_zero_is_an_euler_step(kind: str, step: int) -> None:
    velocity = EPS - X0
    sigma, next_sigma = SCHEDULE[step].item(), SCHEDULE[step + 1].item()
    mean, std = transition(kind, 0.0, at(sigma), velocity, SCHEDULE, step)
    torch.testing.assert_close(mean, euler(at(sigma), velocity, sigma, next_sigma))
    assert torch.all(std == 0)


@pytest.mark.parametrize("noise_level", [0.3, 0.8, 1.0])
def test_cps_keeps_the_coefficients_of_the_flow(noise_level: float) -> None:
    mean, std = transition("cps", noise_level, at(0.7), EPS - X0, SCHEDULE, 1)
    image_part = 0.5 * X0
    torch.testing.assert_close(mean - image_part, math.sqrt(0.5**2 - std.item() ** 2) * EPS)
    assert std.item() == pytest.approx(0.5 * math.sin(noise_level * math.pi / 2))


def test_flow_sde_keeps_the_image_coefficient() -> None:
    mean, _ = transition("flow_sde", 0.7, at(0.7), EPS - X0, SCHEDULE, 1)
    without_image, _ = transition("flow_sde", 0.7, 0.7 * EPS, EPS, SCHEDULE, 1)
    torch.testing.assert_close(mean - without_image, 0.5 * X0)


def test_flow_sde_in_the_first_step_is_that_of_its_authors_whatever_the_shift() -> None:
    """float32 makes the first sigma 1 +- 1e-7 for one of these shifts in ten."""
    x, v = torch.full((1, 1, 1), 0.3), torch.full((1, 1, 1), -1.7)
    inexact = 0
    for shift in SHIFTS:
        sigmas = schedule(shift)
        inexact += int(sigmas[0] != 1)
        mean, std = transition("flow_sde", 0.7, x, v, sigmas, 0)
        exact = [1.0, *sigmas[1:].tolist()]
        expected = plain_flow_sde(0.7, 0.3, -1.7, exact, 0)
        assert (mean.item(), std.item()) == pytest.approx(expected, rel=1e-5), shift
    assert inexact > 50


@pytest.mark.parametrize("shift", [1.0, 1.18, 2.14, 3.0])
def test_flow_sde_in_later_steps_is_that_of_its_authors(shift: float) -> None:
    x, v = torch.full((1, 1, 1), 0.3), torch.full((1, 1, 1), -1.7)
    sigmas = schedule(shift)
    for step in range(1, 7):
        mean, std = transition("flow_sde", 0.7, x, v, sigmas, step)
        expected = plain_flow_sde(0.7, 0.3, -1.7, sigmas.tolist(), step)
        assert (mean.item(), std.item()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["flow_sde", "dance_sde", "cps"])
def test_steps_may_differ_between_samples(kind: str) -> None:
    steps = torch.tensor([2, 0, 1])
    mean, std = transition(kind, 0.7, X0, EPS, SCHEDULE, steps)
    for row, step in enumerate(steps.tolist()):
        one = transition(kind, 0.7, X0[row : row + 1], EPS[row : row + 1], SCHEDULE, step)
        assert torch.equal(mean[row], one[0][0])
        assert torch.equal(std[row], one[1][0])


@pytest.mark.parametrize("kind", ["flow_sde", "dance_sde"])
def test_the_log_probability_of_an_sde_is_the_mean_of_a_normal_density(kind: str) -> None:
    mean, std = transition(kind, 0.7, at(0.7), EPS - X0, SCHEDULE, 1)
    sample = mean + std * torch.randn(mean.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.distributions.Normal(mean, std).log_prob(sample).flatten(1).mean(1)
    torch.testing.assert_close(log_prob(kind, sample, mean, std), expected)


def test_the_log_probability_of_cps_has_no_variance_term() -> None:
    mean, std = transition("cps", 0.8, at(0.7), EPS - X0, SCHEDULE, 1)
    expected = -((X0 - mean) ** 2).flatten(1).mean(1)
    torch.testing.assert_close(log_prob("cps", X0, mean, std), expected)


def test_a_step_without_noise_has_log_probability_zero() -> None:
    mean, std = transition("flow_sde", 0.0, at(0.7), EPS - X0, SCHEDULE, 1)
    assert torch.equal(log_prob("flow_sde", mean, mean, std), torch.zeros(3))
