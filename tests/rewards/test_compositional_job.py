"""A job with the compositional reward: how it is checked, and how its scorer is built."""

from __future__ import annotations

import random
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from spotlight.assets import read_metadata, read_prompts
from spotlight.errors import JobError, MissingDependency, ScoringError
from spotlight.jobs import RewardSpec, job_from_data, load_job
from spotlight.preflight import checks as preflight
from spotlight.rewards.base import build_scorer
from tools.shape_scenes import all_prompts, render, scene_for

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "compositional-tiny.yaml"
TRAIN, VALIDATION = (f"builtin:compositional-tiny/{name}" for name in ("train", "validation"))
SPEC = RewardSpec(kind="compositional", metadata=(TRAIN, VALIDATION))


def job(**reward: Any) -> Any:
    """The example's job with another reward."""
    data = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return job_from_data({**data, "reward": {**data["reward"], **reward}})


def test_the_example_passes_every_check() -> None:
    pytest.importorskip("cv2")
    assert preflight.check(load_job(EXAMPLE)).checkpoint.pixel_space


def test_no_prompt_is_trained_on_and_validated_on_and_all_are_in_the_task() -> None:
    train, validation = read_prompts(TRAIN), read_prompts(VALIDATION)
    assert not set(train) & set(validation)
    assert {*train, *validation} == {metadata.prompt for metadata in all_prompts()}
    assert (len(train), len(validation)) == (376, 32)


def test_every_kind_of_prompt_is_validated_on() -> None:
    assert {one.tag for one in read_metadata(VALIDATION).items} == {
        one.tag for one in all_prompts()
    }


def test_the_scorer_of_a_job_scores_images() -> None:
    pytest.importorskip("cv2")
    rng = random.Random(0)
    one, other = rng.sample(read_metadata(VALIDATION).items, 2)
    images = np.stack([render(scene_for(metadata, rng)) for metadata in (one, other)])
    scorer = build_scorer(SPEC)
    assert scorer.score(images, [one.prompt, other.prompt]) == [1.0, 1.0]
    assert max(scorer.score(images, [other.prompt, one.prompt])) < 1.0
    with pytest.raises(ScoringError, match="'a red cat' has no line"):
        scorer.score(images, ["a red cat", one.prompt])


def test_metadata_must_be_named() -> None:
    with pytest.raises(JobError, match=r"^reward\.metadata: `compositional` needs files"):
        job(metadata=[])


def test_metadata_that_is_not_there_is_named() -> None:
    with pytest.raises(JobError, match=r"^reward\.metadata: /nowhere\.jsonl cannot be read"):
        preflight.check(job(metadata=["/nowhere.jsonl"]))


def test_metadata_that_does_not_ship_is_named_with_what_does() -> None:
    with pytest.raises(JobError, match=r"^reward\.metadata: .*`builtin:compositional-tiny/train`"):
        preflight.check(job(metadata=["builtin:compositional-tiny/test"]))


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"tag": "colors"}\n')
    with pytest.raises(JobError, match=r"^reward\.metadata: .*bad\.jsonl, line 1: object missing"):
        preflight.check(job(metadata=[str(tmp_path / "bad.jsonl")]))


def test_a_bad_line_of_prompts_is_named_by_the_field_of_the_prompts(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"tag": "colors"}\n')
    data = msgspec.to_builtins(load_job(EXAMPLE))
    data["prompts"]["train"] = str(tmp_path / "bad.jsonl")
    with pytest.raises(JobError, match=r"^prompts\.train: .*bad\.jsonl, line 1: object missing"):
        preflight.check(job_from_data(data))


def test_prompts_without_metadata_are_refused() -> None:
    with pytest.raises(JobError, match=r"^reward\.metadata: .* 32 prompts of `prompts\.val"):
        preflight.check(job(metadata=[TRAIN]))


@pytest.mark.parametrize(
    ("include", "problem"),
    [
        ('{"class": "bench", "count": 1}', "asks for a class that .*circle, square, triangle"),
        ('{"class": "circle", "count": 1, "color": "pink"}', "asks for a color that .* yellow"),
    ],
)
def test_what_the_detector_does_not_know_is_refused(
    tmp_path: Path, include: str, problem: str
) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text(f'{{"tag": "colors", "include": [{include}], "prompt": "a photo"}}\n')
    with pytest.raises(JobError, match=rf"^reward\.metadata: .*more\.jsonl, line 1: {problem}"):
        preflight.check(job(metadata=[TRAIN, VALIDATION, str(file)]))


def test_opencv_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_opencv(name: str) -> ModuleSpec | None:
        return None if name == "cv2" else find_spec(name)

    monkeypatch.setattr(preflight, "find_spec", without_opencv)
    with pytest.raises(MissingDependency, match=r"`reward\.kind: compositional` needs cv2"):
        preflight.check(load_job(EXAMPLE))


def test_relative_metadata_paths_start_from_the_job_file(tmp_path: Path) -> None:
    data = msgspec.to_builtins(load_job(EXAMPLE))
    data["reward"]["metadata"] = ["own.jsonl", TRAIN]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(data))
    assert load_job(tmp_path / "job.yaml").reward.metadata == (str(tmp_path / "own.jsonl"), TRAIN)
