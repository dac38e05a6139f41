"""What is checked of a reward behind a server before a job starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotlight.errors import JobError
from spotlight.jobs import JobSpec, job_from_data
from spotlight.preflight import checks as preflight

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ocr-tiny.yaml"
HTTP = {"kind": "http", "http": {"url": "http://127.0.0.1:9/score"}}
JUDGE = {"kind": "judge", "judge": {"url": "http://127.0.0.1:9/v1/chat/completions", "model": "m"}}


def job(*rewards: dict[str, Any], **prompts: str) -> JobSpec:
    """The example's job with other rewards."""
    data = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return job_from_data(
        {**data, "rewards": list(rewards), "prompts": {**data["prompts"], **prompts}}
    )


@pytest.mark.parametrize("reward", [HTTP, JUDGE])
def test_a_sound_one_passes_although_nobody_answers_yet(reward: dict[str, Any]) -> None:
    preflight.check(job(reward))


@pytest.mark.parametrize(("kind", "reward"), [("http", HTTP), ("judge", JUDGE)])
def test_an_authorization_that_is_not_there_is_named_with_its_field(
    kind: str, reward: dict[str, Any]
) -> None:
    section = {**reward[kind], "authorization_variable": "NOT_THERE"}
    with pytest.raises(JobError, match="environment variable NOT_THERE") as error:
        preflight.check(job({"kind": "ocr"}, {**reward, kind: section}))
    assert error.value.path == f"rewards[1].{kind}"


def test_a_model_that_reads_needs_prompts_with_text_in_quotes(tmp_path: Path) -> None:
    prompts = tmp_path / "validation.txt"
    prompts.write_text("a cat\n")
    with pytest.raises(JobError, match=r"line 1: .* `judge` reward to look for"):
        preflight.check(job(JUDGE, validation=str(prompts)))


@pytest.mark.parametrize(
    "include",
    [
        [{"class": "dog", "count": 1}],
        [{"class": "bench", "count": 4}],
        [{"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}],
        [{"class": "circle", "count": 1, "color": "purple"}],
    ],
)
def test_objects_of_geneval_are_refused_with_what_is_missing_and_the_way_to_it(
    include: list[dict[str, Any]], tmp_path: Path
) -> None:
    prompts = tmp_path / "evaluation_metadata.jsonl"
    line = {"tag": "two_object", "include": include, "prompt": "a photo of it"}
    prompts.write_text(json.dumps(line) + "\n")
    train = "builtin:compositional-tiny/train"
    with pytest.raises(JobError, match=r"line 1: .*a detector of COCO's classes.*`kind: http`"):
        preflight.check(job({"kind": "compositional"}, train=train, validation=str(prompts)))
