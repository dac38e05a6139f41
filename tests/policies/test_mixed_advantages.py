"""Several rewards: each is normalised by itself before the weighted sum."""

from __future__ import annotations

import math
import random
from typing import Literal

import pytest
import torch

from spotlight.policies.advantages import all_equal, group_advantages, mixed_advantages

Std = Literal["global", "group"]

GROUPS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
_RNG = random.Random(0)
OCR = [_RNG.choice([0.0, 0.25, 0.5, 0.75, 1.0]) for _ in GROUPS]
PICK = [_RNG.gauss(20, 1.5) for _ in GROUPS]
BOTH = list(zip(OCR, PICK, strict=True))


def gdpo(rewards: torch.Tensor, weights: torch.Tensor, per_group: int) -> torch.Tensor:
    """GDPO's equations in plain torch, for groups of one size that follow each other: rewards
    [samples, rewards] -> advantages [samples]."""
    grouped = rewards.view(-1, per_group, rewards.shape[1])
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    normalised = centred / (grouped.std(dim=1, keepdim=True, correction=0) + 1e-4)
    summed = (normalised.view(rewards.shape) * weights).sum(dim=1)
    return (summed - summed.mean()) / (summed.std(correction=0) + 1e-4)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.3), (2.0, -0.5)])
def test_they_are_those_of_gdpo(weights: tuple[float, float]) -> None:
    ours = mixed_advantages(BOTH, GROUPS, weights, std="group", clip=100.0)
    both, w = (torch.tensor(each, dtype=torch.float64) for each in (BOTH, weights))
    torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), gdpo(both, w, 4))


@pytest.mark.parametrize("std", ["global", "group"])
@pytest.mark.parametrize("weight", [1.0, 0.1, 7.0])
def test_a_single_reward_has_the_same_bits_as_ever_whatever_its_weight(
    std: Std, weight: float
) -> None:
    single = mixed_advantages([(r,) for r in OCR], GROUPS, (weight,), std=std, clip=1.0)
    assert single == group_advantages(OCR, GROUPS, std=std, clip=1.0)


@pytest.mark.parametrize("std", ["global", "group"])
def test_no_reward_drowns_the_others_by_its_unit(std: Std) -> None:
    million = [(ocr, 1e6 * pick) for ocr, pick in BOTH]
    before = mixed_advantages(BOTH, GROUPS, (1, 1), std=std)
    after = mixed_advantages(million, GROUPS, (1, 1), std=std)
    assert after == pytest.approx(before, abs=1e-3)


def test_a_reward_of_weight_0_is_only_measured() -> None:
    alone = mixed_advantages(BOTH, GROUPS, (1, 0), std="group", clip=100.0)
    ocr = group_advantages(OCR, GROUPS, std="group", clip=100.0)
    ratios = [a / b for a, b in zip(alone, ocr, strict=True) if abs(b) > 1e-9]
    assert max(ratios) == pytest.approx(min(ratios))


def test_a_reward_that_is_flat_in_a_group_says_nothing_there() -> None:
    flat = [
        (0.5 if group == 1 else ocr, pick) for (ocr, pick), group in zip(BOTH, GROUPS, strict=True)
    ]
    advantages = mixed_advantages(flat, GROUPS, (1, 1), std="group", clip=100.0)
    picks = group_advantages(PICK, GROUPS, std="group", clip=100.0)
    ratios = [a / b for a, b, g in zip(advantages, picks, GROUPS, strict=True) if g == 1]
    assert max(ratios) == pytest.approx(min(ratios))


def test_they_add_up_to_zero_in_every_group_and_are_clamped() -> None:
    free = mixed_advantages(BOTH, GROUPS, (1, 0.5), clip=100.0)
    for group in range(3):
        inside = [a for a, g in zip(free, GROUPS, strict=True) if g == group]
        assert math.fsum(inside) == pytest.approx(0, abs=1e-9)
    clamped = mixed_advantages(BOTH, GROUPS, (1, 0.5), clip=0.5)
    assert clamped == [min(max(a, -0.5), 0.5) for a in free]


def test_rewards_that_never_vary_have_no_advantages() -> None:
    assert mixed_advantages([(0.3, 20.0)] * 12, GROUPS, (1, 1)) == [0.0] * 12


def test_no_samples_have_no_advantages() -> None:
    assert mixed_advantages([], [], (1.0,)) == mixed_advantages([], [], (1, 1)) == []


@pytest.mark.parametrize(
    ("rewards", "weights"),
    [
        ([(0.5, 0.5)] * 12, (1.0,)),
        ([(0.5,)] * 12, (1.0, 1.0)),
        ([(0.5, 0.5)] * 11 + [(0.5,)], (1.0, 1.0)),
        ([(0.5, 0.5)] * 11, (1.0, 1.0)),
        ([(0.5, float("nan"))] * 12, (1.0, 1.0)),
    ],
)
def test_wrong_input_is_refused(
    rewards: list[tuple[float, ...]], weights: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError):
        mixed_advantages(rewards, GROUPS, weights)


def test_all_are_equal_only_if_every_reward_is() -> None:
    assert all_equal([(0.5, 20.0)] * 3)
    assert not all_equal([(0.5, 20.0), (0.5, 20.0), (0.5, 20.1)])
