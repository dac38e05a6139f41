"""The weights of a CLIP reward: looked for, and counted, before a worker loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants, errors
from preflight_kit import MakeJob, write_safetensors

from spotlight.errors import JobError, MissingDependency
from spotlight.jobs.clip_rewards import PUBLISHED
from spotlight.permissions import Permissions
from spotlight.preflight.checks import read_job_files
from spotlight.preflight.memory import memory_plan
from spotlight.preflight.scorers import check_scorers, scorer_bytes, scorer_parameters
from spotlight.rewards import hpsv3_question
from tests.rewards.hpsv3_kit import hpsv3_package

SPEC = {"kind": "pickscore"}


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def refusal(make_job: MakeJob, **clip: str) -> JobError:
    with pytest.raises(JobError) as caught:
        check_scorers(make_job(rewards=[{**SPEC, "clip": clip}]), Permissions())
    return caught.value


def test_a_folder_that_is_no_model_is_refused(make_job: MakeJob, tmp_path: Path) -> None:
    found = refusal(make_job, checkpoint=str(tmp_path))
    assert found.path == "rewards[0].clip.checkpoint"
    assert "is no folder in the layout of transformers" in found.problem


def test_a_folder_without_whole_weights_is_refused(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = refusal(make_job, checkpoint=str(tmp_path))
    assert found.path == "rewards[0].clip.checkpoint"
    assert "holds no weights" in found.problem
    (tmp_path / "model.safetensors").write_text("none")
    found = refusal(make_job, checkpoint=str(tmp_path))
    assert found.path == "rewards[0].clip.checkpoint"
    assert "model.safetensors is not a safetensors file" in found.problem


def test_a_quantised_copy_beside_the_weights_is_left_alone(
    make_job: MakeJob, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", {"a": [10, 20]})
    write_safetensors(tmp_path / "model_fp8.safetensors", {"a": [10, 20]}, dtype="F8_E4M3")
    job = make_job(rewards=[{**SPEC, "clip": {"checkpoint": str(tmp_path)}}])
    check_scorers(job, Permissions())
    assert scorer_parameters(job.rewards[0]) == 200


def test_quantised_weights_are_refused(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", {"a": [10, 20]}, dtype="F8_E4M3")
    found = refusal(make_job, checkpoint=str(tmp_path))
    assert found.path == "rewards[0].clip.checkpoint"
    assert (
        "model.safetensors holds `a` in `F8_E4M3`: quantised weights, whose scal" in found.problem
    )


@pytest.mark.usefixtures("empty_cache")
def test_weights_that_may_not_be_downloaded_are_refused(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = refusal(make_job)
    assert found.path == "rewards[0].clip.checkpoint"
    assert "yuvalkirstain/PickScore_v1" in found.problem
    assert "HF_HUB_OFFLINE forbids to download it" in found.problem


@pytest.mark.usefixtures("empty_cache")
def test_weights_that_the_hub_hides_ask_for_a_token(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise errors.GatedRepoError.__new__(errors.GatedRepoError)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", refuse)
    found = refusal(make_job, checkpoint="hf:some/gated")
    assert found.path == "rewards[0].clip.checkpoint"
    assert "give a token, with `hf auth login` or HF_TOKEN" in found.problem


def test_the_memory_of_a_scorer_is_that_of_its_file_or_of_the_published_weights(
    make_job: MakeJob, tmp_path: Path
) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": [10, 20], "b": [5]})
    own, theirs, read = make_job(
        rewards=[{**SPEC, "name": "own", "clip": {"checkpoint": str(tmp_path)}}, SPEC, {}]
    ).rewards
    assert scorer_parameters(own) == 205
    assert scorer_parameters(theirs) == PUBLISHED["pickscore"].parameters
    assert scorer_parameters(read) == 0


@pytest.mark.usefixtures("empty_cache")
def test_of_hpsv3_the_file_of_weights_and_the_folder_of_its_base_are_looked_for(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hpsv3_package(tmp_path, monkeypatch)

    def refused(**clip: str) -> JobError:
        with pytest.raises(JobError) as caught:
            check_scorers(make_job(rewards=[{"kind": "hpsv3", "clip": clip}]), Permissions())
        return caught.value

    found = refused()
    assert found.path == "rewards[0].clip.checkpoint"
    assert "MizzenAI/HPSv3" in found.problem
    found = refused(checkpoint=str(tmp_path))
    assert found.path == "rewards[0].clip.processor", "it does not come with its weights"
    assert "Qwen/Qwen2-VL-7B-Instruct" in found.problem
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("of something else")
    found = refused(checkpoint=str(tmp_path), processor=str(tmp_path))
    assert found.path == "rewards[0].clip.checkpoint"
    assert "holds no weights (HPSv3.safetensors)" in found.problem


def test_the_package_with_the_question_of_hpsv3_is_looked_for(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = hpsv3_package(tmp_path, monkeypatch, "")
    with pytest.raises(JobError, match=rf"{file} has no question") as caught:
        check_scorers(make_job(rewards=[{"kind": "hpsv3"}]), Permissions())
    assert caught.value.path == "rewards[0].kind"
    monkeypatch.setattr(hpsv3_question, "_PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(MissingDependency, match=r"^rewards\[0\]\.kind: .* pip install --no-deps"):
        check_scorers(make_job(rewards=[{"kind": "hpsv3"}]), Permissions())


def test_the_numbers_of_hpsv3_have_two_bytes(make_job: MakeJob) -> None:
    [reward] = make_job(rewards=[{"kind": "hpsv3"}]).rewards
    assert scorer_bytes(reward) == 2 * PUBLISHED["hpsv3"].parameters


@pytest.mark.parametrize(("device", "counts"), [("accelerator", True), ("cpu", False)])
def test_a_scorer_on_the_accelerator_takes_room_beside_the_model(
    make_job: MakeJob, device: str, counts: bool
) -> None:
    job = make_job(rewards=[{**SPEC, "clip": {"device": device}}])
    plan = memory_plan(job, read_job_files(job).checkpoint)
    parts = {part.name: part.nbytes for part in plan.denoiser.parts}
    wanted = 4 * PUBLISHED["pickscore"].parameters if counts else None
    assert parts.get("scorer pickscore") == wanted
