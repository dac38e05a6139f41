"""A CLIP model that is served by its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from spotlight.rewards.serving.settings import ServingSettings

ROOT = Path(__file__).parents[3]


def test_a_model_is_named_with_the_fields_of_a_jobs_section(tmp_path: Path) -> None:
    options = {"checkpoint": str(tmp_path), "device": "cpu"}
    settings = ServingSettings(scorer="pickscore", options=options, port=0)
    argv = [sys.executable, "-m", "spotlight.rewards.serving"]
    done = subprocess.run(
        [*argv, msgspec.json.encode(settings).decode()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert f"clip.checkpoint: the weights of `{tmp_path}` cannot be loaded" in done.stderr
