"""Whether losses fall on tiny checkpoints of families."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.families import loss_figures
from benchmarks.family_losses import Fall, fall_of
from spotlight_simulation.tiny_families import make_tiny_checkpoint

FELL, ROSE, DIVERGED, NEVER = Fall(1.0, 0.9, 0.5), Fall(1.0, 0.9, 1.5), Fall(1.0), Fall()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flux")
    make_tiny_checkpoint("flux", folder)
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize("loss", ["diffusion_nft", "grpo_guard"])
def test_updates_with_one_batch_make_a_loss_smaller(checkpoint: Path, loss: str) -> None:
    fall = fall_of(checkpoint, loss, updates=6)
    assert fall.is_finite
    assert fall.after_all < fall.after_one < fall.before


@pytest.mark.parametrize(
    ("fall", "is_finite", "falls"),
    [
        (FELL, True, True),
        (ROSE, True, False),
        (DIVERGED, False, False),
        (NEVER, False, False),
    ],
    ids=["fell", "rose", "diverged", "never-finite"],
)
def test_a_loss_that_is_not_finite_does_not_fall(fall: Fall, is_finite: bool, falls: bool) -> None:
    assert (fall.is_finite, fall.falls) == (is_finite, falls)


def test_losses_that_do_not_fall_are_named() -> None:
    figures = loss_figures({"sd3 awm": FELL, "wan": ROSE, "flux": DIVERGED, "wan own": FELL})
    assert figures == {
        "losses_finite": 0.75,
        "losses_falling": 0.5,
        "losses_finite_not": ["flux"],
        "losses_falling_not": ["wan", "flux"],
    }
