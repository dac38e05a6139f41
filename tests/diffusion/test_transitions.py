from __future__ import annotations

import math

import pytest
import torch

from spotlight.diffusion.transitions import euler, log_prob, transition

GENERATOR = torch.Generator().manual_seed(0)
X0 = torch.randn(3, 8, 4, generator=GENERATOR)
EPS = torch.randn(3, 8, 4, generator=GENERATOR)


def at(sigma: float) -> torch.Tensor:
    return (1 - sigma) * X0 + sigma * EPS


@pytest.mark.parametrize("kind", ["ode", "flow_sde", "cps"])
@pytest.mark.parametrize(("sigma", "next_sigma"), [(1.0, 0.9), (0.6, 0.4), (0.3, 0.0)])
def test_noise_level_zero_is_an_euler_step(kind: str, sigma: float, next_sigma: float) -> None:
    velocity = EPS - X0
    mean, std = transition(kind, 0.0, at(sigma), velocity, sigma, next_sigma)
    torch.testing.assert_close(mean, euler(at(sigma), velocity, sigma, next_sigma))
    assert torch.all(std == 0)


@pytest.mark.parametrize("noise_level", [0.3, 0.8, 1.0])
def test_cps_keeps_the_coefficients_of_the_flow(noise_level: float) -> None:
    mean, std = transition("cps", noise_level, at(0.7), EPS - X0, 0.7, 0.5)
    image_part = 0.5 * X0
    torch.testing.assert_close(mean - image_part, math.sqrt(0.5**2 - std.item() ** 2) * EPS)
    assert std.item() == pytest.approx(0.5 * math.sin(noise_level * math.pi / 2))


def test_flow_sde_keeps_the_image_coefficient() -> None:
    mean, _ = transition("flow_sde", 0.7, at(0.7), EPS - X0, 0.7, 0.5)
    without_image, _ = transition("flow_sde", 0.7, 0.7 * EPS, EPS, 0.7, 0.5)
    torch.testing.assert_close(mean - without_image, 0.5 * X0)


def test_flow_sde_at_sigma_one_uses_the_second_sigma() -> None:
    _, std = transition("flow_sde", 0.7, EPS, EPS - X0, 1.0, 0.9)
    assert std.item() == pytest.approx(0.7 * math.sqrt(1 / (1 - 0.9)) * math.sqrt(0.1), rel=1e-5)


def test_sigmas_may_differ_between_samples() -> None:
    sigmas, following = torch.tensor([0.9, 0.6, 0.3]), torch.tensor([0.8, 0.4, 0.1])
    mean, std = transition("flow_sde", 0.7, X0, EPS, sigmas, following)
    for row in range(3):
        one = transition(
            "flow_sde", 0.7, X0[row : row + 1], EPS[row : row + 1], sigmas[row], following[row]
        )
        assert torch.equal(mean[row], one[0][0])
        assert torch.equal(std[row], one[1][0])


def test_the_log_probability_of_flow_sde_is_the_mean_of_a_normal_density() -> None:
    mean, std = transition("flow_sde", 0.7, at(0.7), EPS - X0, 0.7, 0.5)
    sample = mean + std * torch.randn(mean.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.distributions.Normal(mean, std).log_prob(sample).flatten(1).mean(1)
    torch.testing.assert_close(log_prob("flow_sde", sample, mean, std), expected)


def test_the_log_probability_of_cps_has_no_variance_term() -> None:
    mean, std = transition("cps", 0.8, at(0.7), EPS - X0, 0.7, 0.5)
    expected = -((X0 - mean) ** 2).flatten(1).mean(1)
    torch.testing.assert_close(log_prob("cps", X0, mean, std), expected)


def test_a_step_without_noise_has_log_probability_zero() -> None:
    mean, std = transition("flow_sde", 0.0, at(0.7), EPS - X0, 0.7, 0.5)
    assert torch.equal(log_prob("flow_sde", mean, mean, std), torch.zeros(3))
