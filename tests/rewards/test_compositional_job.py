"""A job with the compositional reward: how it is checked, and how its scorer is built."""

from __future__ import annotations

import random
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from spotlight.assets import read_prompt_lines, read_prompts
from spotlight.assets.geneval import asked_of
from spotlight.errors import JobError, MissingDependency, ScoringError
from spotlight.jobs import RewardSpec, job_from_data, load_job
from spotlight.preflight import checks as preflight
from spotlight.preflight import packages
from spotlight.rewards.base import Prompt, build_scorer
from tools.shape_scenes import all_prompts, render, scene_for

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "compositional-tiny.yaml"
TRAIN, VALIDATION = (f"builtin:compositional-tiny/{name}" for name in ("train", "validation"))
SPEC = RewardSpec(kind="compositional")


def job(**prompts: str) -> Any:
    """The example's job with other prompts."""
    data = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return job_from_data({**data, "prompts": {**data["prompts"], **prompts}})


def test_the_example_passes_every_check() -> None:
    pytest.importorskip("cv2")
    assert preflight.check(load_job(EXAMPLE)).checkpoint.pixel_space


def test_no_prompt_is_trained_on_and_validated_on_and_all_are_in_the_task() -> None:
    train, validation = read_prompts(TRAIN), read_prompts(VALIDATION)
    assert not set(train) & set(validation)
    assert {*train, *validation} == {metadata.prompt for metadata in all_prompts()}
    assert (len(train), len(validation)) == (376, 32)


def test_every_kind_of_prompt_is_validated_on() -> None:
    tags = {prompt.metadata["tag"] for prompt in read_prompt_lines(VALIDATION).items}
    assert tags == {one.tag for one in all_prompts()}


def test_the_scorer_of_a_job_scores_images() -> None:
    pytest.importorskip("cv2")
    rng = random.Random(0)
    one, other = rng.sample(read_prompt_lines(VALIDATION).items, 2)
    images = np.stack([render(scene_for(asked_of(prompt), rng)) for prompt in (one, other)])
    scorer = build_scorer(SPEC)
    assert scorer.score(images, [one, other]) == [1.0, 1.0]
    assert max(scorer.score(images, [other, one])) < 1.0
    with pytest.raises(ScoringError, match="prompt 'a red cat': object missing"):
        scorer.score(images, [Prompt("a red cat"), one])


def test_prompts_without_metadata_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "bare.txt").write_text("a purple circle\n")
    with pytest.raises(
        JobError, match=r"^prompts\.validation: .*bare\.txt, line 1: object missing"
    ):
        preflight.check(job(validation=str(tmp_path / "bare.txt")))


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
    with pytest.raises(JobError, match=rf"^prompts\.validation: .*more\.jsonl, line 1: {problem}"):
        preflight.check(job(validation=str(file)))


def test_opencv_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_opencv(name: str) -> ModuleSpec | None:
        return None if name == "cv2" else find_spec(name)

    monkeypatch.setattr(packages, "find_spec", without_opencv)
    with pytest.raises(MissingDependency, match=r"`rewards\[0\]\.kind: compositional` needs cv2"):
        preflight.check(load_job(EXAMPLE))
