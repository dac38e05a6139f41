"""The old policy's decay, against DiffusionNFT's recipes."""

from __future__ import annotations

import pytest

from spotlight.policies.old_policy import rollout_decay


def authors_decay(step: int, kind: int) -> float:
    """`return_decay` of NVlabs/DiffusionNFT, scripts/train_nft_sd3.py, as its constants say."""
    flat, rise, top = {1: (0, 0.001, 0.5), 2: (75, 0.0075, 0.999)}[kind]
    return 0.0 if step < flat else min((step - flat) * rise, top)


@pytest.mark.parametrize("step", [0, 1, 74, 75, 76, 100, 208, 209, 499, 501, 10_000])
def test_the_recipes_of_diffusion_nft(step: int) -> None:
    assert rollout_decay(step, most=0.5, growth=0.001) == authors_decay(step, 1)
    assert rollout_decay(step, most=0.999, after=75, growth=0.0075) == authors_decay(step, 2)


def test_without_growth_the_decay_is_there_at_once() -> None:
    assert [rollout_decay(step, most=0.3) for step in (0, 1, 100)] == [0.3] * 3
    assert [rollout_decay(step, most=0.3, after=2) for step in (0, 1, 2)] == [0.0, 0.0, 0.3]
