"""Models that make the previews of others: told from their files whether they can."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotlight.diffusion.activations import FLOAT32
from spotlight.errors import CheckpointError, JobError
from spotlight.jobs import JobSpec, job_from_data, work_from_data
from spotlight.preflight.checks import check, check_work, read_job_files
from spotlight.preflight.memory import memory_plan
from spotlight_simulation.tiny_families import make_tiny_checkpoint

MakeJob = Callable[..., JobSpec]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("previewers")
    for name in ("wan", "anyflow", "sd3"):
        make_tiny_checkpoint(name, folder / name)
    return folder


@pytest.fixture
def folder(originals: Path, tmp_path: Path) -> Path:
    """Copies of the checkpoints, to be changed."""
    shutil.copytree(originals, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture
def make_job(folder: Path) -> MakeJob:
    """A job that trains one checkpoint, with previews of another."""

    def make(trained: str = "wan", previews: str = "anyflow", **sampler: Any) -> JobSpec:
        for name, words in (("train", "cat"), ("validation", "dog")):
            lines = "".join(f'{words} "{number}"\n' for number in range(8))
            (folder / f"{name}.txt").write_text(lines)
        return job_from_data(
            {
                "name": "job",
                "model": {"checkpoint": str(folder / trained), "tuning": "lora"},
                "prompts": {
                    "train": str(folder / "train.txt"),
                    "validation": str(folder / "validation.txt"),
                },
                "sampler": {"height": 32, "width": 64, "frames": 5, **sampler},
                "exploration": {
                    "preview_steps": 2,
                    "preview_checkpoint": str(folder / previews) if previews else "",
                },
            }
        )

    return make


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def problem_of(job: JobSpec) -> str:
    with pytest.raises(JobError) as caught:
        check(job)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_anyflow_makes_the_previews_of_wan(make_job: MakeJob) -> None:
    previewer = check(make_job()).checkpoint.previewer
    assert previewer is not None
    assert previewer.family.name == "anyflow"
    assert check(make_job(previews="")).checkpoint.previewer is None


def test_a_folder_that_is_not_there_is_named(make_job: MakeJob, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=str(folder / "nowhere")):
        check(make_job(previews="nowhere"))


def test_a_model_that_needs_all_steps_is_refused_with_both_paths(
    make_job: MakeJob, folder: Path
) -> None:
    problem = problem_of(make_job(previews="wan"))
    wan = folder / "wan"
    assert problem.startswith(
        f"exploration.preview_checkpoint: `{wan}` cannot make previews for `{wan}`: it is of wan"
    )


def test_a_model_of_another_family_gets_no_previews_of_anyflow(make_job: MakeJob) -> None:
    assert "another text encoder or VAE than sd3" in problem_of(make_job("sd3", frames=1))


def test_another_width_of_text_is_refused(make_job: MakeJob, folder: Path) -> None:
    change(folder / "anyflow" / "transformer" / "config.json", text_dim=48)
    change(folder / "anyflow" / "text_encoder" / "config.json", d_model=48)
    assert "their text encoders differ in width" in problem_of(make_job())


def test_latents_of_another_size_are_refused(make_job: MakeJob, folder: Path) -> None:
    change(folder / "anyflow" / "vae" / "config.json", scale_factor_spatial=16)
    assert "their latents differ" in problem_of(make_job())


def test_a_size_beyond_the_previewers_positions_is_named(make_job: MakeJob, folder: Path) -> None:
    change(folder / "anyflow" / "transformer" / "config.json", rope_max_seq_len=3)
    assert problem_of(make_job()).startswith("sampler.width: 64 pixels are more than the model has")


def test_a_group_has_a_degree_that_divides_the_heads_of_both(
    make_job: MakeJob, folder: Path
) -> None:
    change(folder / "anyflow" / "transformer" / "config.json", num_attention_heads=3)
    assert check(make_job()).checkpoint.degrees(2, 16) == (1,)
    assert check(make_job(previews="")).checkpoint.degrees(2, 16) == (1, 2)


def test_both_transformers_are_in_the_plan_of_memory(make_job: MakeJob) -> None:
    parts = []
    for previews in ("anyflow", ""):
        job = make_job(previews=previews)
        checkpoint = read_job_files(job).checkpoint
        plan = memory_plan(job, checkpoint, nbytes=FLOAT32)
        parts += [
            {part.name: part.nbytes for part in worker.parts}
            for worker in (plan.trainer, plan.denoiser)
        ]
        if previews:
            assert checkpoint.previewer is not None
            numbers = checkpoint.previewer.parameters
    for mine, without in zip(parts[:2], parts[2:], strict=True):
        assert mine["transformer of previews"] == FLOAT32 * numbers
        assert "transformer of previews" not in without
        assert mine["denoising (about)"] > without["denoising (about)"]


def test_a_session_has_no_previews_of_another_model(folder: Path) -> None:
    data = {
        "model": {"checkpoint": str(folder / "wan")},
        "sampler": {"height": 32, "width": 64},
        "preview_checkpoint": str(folder / "anyflow"),
    }
    with pytest.raises(JobError, match=r"^preview_checkpoint: is for jobs"):
        check_work(work_from_data(data))
