"""Our sampler draws what the pipelines of diffusers draw, on the same latents in float32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.families import CASES
from spotlight_simulation.pipeline_comparison import Case, compare

pytestmark = pytest.mark.timeout(240)  # an image that is edited is read at a megapixel

TOLERANCE = 1e-4

ALL = [(name, case, scheduler) for name, cases in CASES.items() for case, scheduler in cases]


@pytest.mark.parametrize(("name", "case", "scheduler"), ALL)
def test_the_sampler_draws_what_the_pipeline_of_the_family_draws(
    checkpoint_of: Callable[[str], Path], name: str, case: Case, scheduler: dict[str, Any]
) -> None:
    difference = compare(checkpoint_of(name), case, scheduler)
    assert difference.latents <= TOLERANCE
    assert difference.pixels <= 0.51, "pixels are rounded to whole numbers"


def test_times_of_every_token_are_the_time_of_the_sample(
    checkpoint_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """As Wan 2.2 5B has them, whose latents are coarser besides."""
    folder = tmp_path / "wan"
    shutil.copytree(checkpoint_of("wan"), folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"expand_timesteps": True}))
    difference = compare(folder, Case(32, 48, frames=5, guidance=3.0))
    assert difference.latents <= TOLERANCE
