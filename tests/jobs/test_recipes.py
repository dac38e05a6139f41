"""The recipes for published checkpoints: what their headers say is what the plan says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spotlight.jobs import load_job
from spotlight.preflight.checkpoint_facts import inspect_checkpoint
from spotlight.preflight.gpus import gpu_nbytes, require_fit
from spotlight_simulation.outlines import OUTLINES, write_outline

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_fits_its_gpu_as_its_header_says(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (hub,) = re.findall(r"^  checkpoint: hf:(\S+)$", text, flags=re.MULTILINE)
    (name,) = (name for name, outline in OUTLINES.items() if outline.name == hub)
    write_outline(name, tmp_path)
    job = load_job(path, [f"model.checkpoint={tmp_path}"])
    ((file, gpu),) = re.findall(r"`spotlight plan (\S+) --gpu (\S+)`", text)
    assert ROOT / file == path
    plan = require_fit(job, inspect_checkpoint(job.model), gpu_nbytes(gpu))
    said = re.findall(r"(\S+) GB for a worker that trains, (\S+) GB for one", text)
    assert said == [(f"{plan.trainer.most / 1e9:.1f}", f"{plan.denoiser.most / 1e9:.1f}")]
    assert "Not run on a GPU yet" in text
    assert job.name == path.stem
