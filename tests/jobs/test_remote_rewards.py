"""What a job may say of a scorer or a model behind a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from smallest_job import SMALLEST

from spotlight.errors import JobError
from spotlight.jobs import RewardSpec, job_from_data
from spotlight.jobs.remote_rewards import HttpSpec

HTTP = {"url": "http://10.0.0.5:8200/score"}
JUDGE = {"url": "https://models.example.org/v1/chat/completions", "model": "some/model"}


def reward(kind: str, section: dict[str, Any], **others: Any) -> RewardSpec:
    spec = {"kind": kind, kind: section, **others}
    return job_from_data({**SMALLEST, "rewards": [spec]}).rewards[0]


@pytest.mark.parametrize(("kind", "section"), [("http", HTTP), ("judge", JUDGE)])
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("url", "10.0.0.5:8200", "http://"),
        ("url", "ftp://10.0.0.5/score", "http://"),
        ("url", "http://", "http://"),
        ("url", f"http://host/{'x' * 3000}", "url"),
        ("attempts", 0, "at least 1"),
        ("attempts", 10**6, "at most"),
        ("concurrency", 0, "at least 1"),
        ("timeout_s", 0, "must be above 0"),
        ("timeout_s", 1e9, "at most 86,400"),
        ("timeout_s", "soon", "timeout_s"),
        ("image_format", "jpeg", "image_format"),
        ("authorization_file", "", "empty"),
        ("token", "sesame", "token"),
    ],
)
def test_what_no_server_could_be_asked_with_is_refused(
    kind: str, section: dict[str, Any], field: str, value: Any, problem: str
) -> None:
    with pytest.raises(JobError, match=problem):
        reward(kind, {**section, field: value})


def test_a_file_and_a_variable_together_are_refused() -> None:
    with pytest.raises(JobError, match="name one of a secret"):
        reward("http", {**HTTP, "authorization_file": "a", "authorization_variable": "B"})


@pytest.mark.parametrize("images", [0, 10**6])
def test_the_images_of_a_request_are_bounded(images: int) -> None:
    with pytest.raises(JobError, match="images_per_request"):
        reward("http", {**HTTP, "images_per_request": images})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": " "}, "model"),
        ({"formula": "rubric"}, "say what the model should look at"),
        ({"rubric": "Is it sharp?"}, "is only used with `formula: rubric`"),
        ({"formula": "rubric", "rubric": "x" * 30_000}, "at most 20,000 characters"),
    ],
)
def test_a_judge_that_does_not_know_what_to_do_is_refused(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(JobError, match=problem):
        reward("judge", {**JUDGE, **change})


def test_a_rubric_needs_a_scale() -> None:
    section = {**JUDGE, "formula": "rubric", "rubric": "Is it sharp?"}
    with pytest.raises(JobError, match="worst and the best"):
        reward("judge", section, range=None)
    assert reward("judge", section, range=[1, 5]).range == (1, 5)


@pytest.mark.parametrize("kind", ["http", "judge"])
@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@scorer/score",
        "https://hunter2@scorer:8200/score",
        "http://scorer\\@hunter2/",
        "http://hunter2@",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(kind: str, url: str) -> None:
    fields = {"url": url} if kind == "http" else {"url": url, "model": "m"}
    with pytest.raises(JobError) as refused:
        reward(kind, fields)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://Scorer/score", ("scorer", 80)),
        ("https://scorer.example:8443?x", ("scorer.example", 8443)),
        ("http://[fd00::1]:81/", ("[fd00::1]", 81)),
        ("https://10.0.0.1", ("10.0.0.1", 443)),
    ],
)
def test_the_place_of_a_server_is_its_host_and_port(url: str, place: tuple[str, int]) -> None:
    assert HttpSpec(url=url).place == place


@pytest.mark.parametrize(("kind", "section"), [("http", HTTP), ("judge", JUDGE)])
def test_a_file_with_a_secret_starts_from_the_job_file(
    kind: str, section: dict[str, Any], tmp_path: Path
) -> None:
    data = {
        "name": "small",
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "prompts": {"train": "builtin:ocr-tiny/train", "validation": "builtin:ocr-tiny/validation"},
        "sampler": {"height": 16, "width": 48, "kind": "ode", "steps": 2},
        "rewards": [{"kind": kind, kind: {**section, "authorization_file": "token"}}],
    }
    (given,) = job_from_data(data, base=tmp_path).rewards
    endpoint = given.http or given.judge
    assert endpoint is not None and endpoint.authorization_file == str(tmp_path / "token")
