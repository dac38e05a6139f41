"""`spotlight plan` has a model tried before anything starts, in a process that has torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.users.case import Ended, spotlight
from spotlight_simulation.tiny_families import make_tiny_checkpoint

pytestmark = pytest.mark.timeout(180)
JOB = """\
name: tried
model: {checkpoint: sd3}
prompts: {train: train.txt, validation: validation.txt, per_iteration: 2}
sampler: {height: 32, width: 48}
exploration: {mode: none}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny_checkpoint("sd3", tmp_path / "sd3")
    (tmp_path / "train.txt").write_text('a "cat"\na "dog"\n')
    (tmp_path / "validation.txt").write_text('a "bird"\n')
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def plan(folder: Path) -> Ended:
    return spotlight(["plan", "job.yaml"], folder)


@pytest.mark.slow
def test_a_model_that_can_be_loaded_is_planned_without_a_word_of_the_trial(folder: Path) -> None:
    ended = plan(folder)
    ended.says(0, "sd3 from ", "most at one time")
    assert ended.text.splitlines()[0].split() == ["job", "tried"]


@pytest.mark.slow
def test_what_no_worker_could_load_ends_the_plan_with_one_line(folder: Path) -> None:
    file = folder / "sd3" / "transformer" / "diffusion_pytorch_model.safetensors"
    save_file({f"model.{name}": it for name, it in load_file(file).items()}, file)
    ended = plan(folder)
    ended.says(
        2, f"spotlight: model.checkpoint: {file} holds `model.", "without the prefix `model.`"
    )
    assert len(ended.text.splitlines()) == 1
