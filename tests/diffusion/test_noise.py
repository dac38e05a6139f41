from __future__ import annotations

import torch

from spotlight.diffusion.noise import initial_noise, step_noise

LARGEST = 2**64 - 1


def test_the_noise_of_a_seed_does_not_depend_on_the_seeds_beside_it() -> None:
    together = initial_noise([7, LARGEST, 3], (5, 4))
    assert torch.equal(together[1:2], initial_noise([LARGEST], (5, 4)))
    assert together.dtype == torch.float32


def test_every_step_of_a_seed_has_noise_of_its_own() -> None:
    draws = [initial_noise([7], (64,)), *(step_noise([7], step, (64,)) for step in range(3))]
    for i, left in enumerate(draws):
        assert torch.equal(left, left.clone())
        assert all(not torch.equal(left, right) for right in draws[i + 1 :])


def test_step_noise_comes_from_seed_and_step_alone() -> None:
    first = step_noise([11, 12], 4, (6, 2))
    step_noise([99], 1, (100,))
    assert torch.equal(first, step_noise([11, 12], 4, (6, 2)))


def test_seeds_that_agree_in_their_low_32_bits_differ() -> None:
    assert not torch.equal(initial_noise([5], (16,)), initial_noise([5 + 2**32], (16,)))


def test_noise_is_standard_normal() -> None:
    noise = initial_noise(range(64), (512,))
    assert abs(noise.mean().item()) < 0.02
    assert abs(noise.std().item() - 1) < 0.02
