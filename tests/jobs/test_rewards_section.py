"""The rewards that a job may ask for: every mistake is one line with the field's path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotlight.errors import JobError
from spotlight.jobs import JobSpec, job_from_data, job_to_yaml, parse_job

BASE = {
    "name": "first",
    "model": {"checkpoint": "builtin:ocr-tiny"},
    "prompts": {"train": "builtin:ocr-tiny/train", "validation": "builtin:ocr-tiny/validation"},
    "sampler": {"height": 32, "width": 64},
}
HTTP = {"kind": "http", "http": {"url": "http://localhost:8000"}}


def job(*rewards: dict[str, Any], **more: Any) -> JobSpec:
    return job_from_data({**BASE, "rewards": list(rewards), **more})


def test_a_job_that_names_none_has_the_ocr_reward() -> None:
    (reward,) = job_from_data(BASE).rewards
    assert (reward.name, reward.kind, reward.weight, reward.limits) == ("ocr", "ocr", 1, (0, 1))


def test_a_job_that_still_says_reward_is_told_what_to_write() -> None:
    with pytest.raises(JobError) as caught:
        job_from_data({**BASE, "reward": {"kind": "ocr"}})
    assert str(caught.value).startswith("reward: is no field any more; it has become a list: write")
    assert "`rewards: [{kind: ocr}]`" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rewards", "path", "problem"),
    [
        ([], "rewards", "name at least one"),
        ([{"kind": "x"}], "rewards[0].kind", "must be `ocr`, `compositional`, `clip`, `picksc"),
        ([{}, {}], "rewards[1].name", "another reward is called `ocr` already"),
        ([{}, {"name": "a b"}], "rewards[1].name", "use letters, digits, `_` and `-` only"),
        ([{"weight": 0}], "rewards[0].weight", "sum to 0, but must sum to more than 0"),
        ([{}, {"name": "b", "weight": -1}], "rewards[0].weight", "sum to 0, but must sum"),
        ([{"weight": float("nan")}], "rewards[0].weight", "must be a finite number, not nan"),
        ([{"weight": 1e30}], "rewards[0].weight", "must be at most 1,000,000,000"),
        (
            [{"weight_by_tag": {"signs": float("nan")}}],
            "rewards[0].weight_by_tag[signs]",
            "must be a finite number, not nan",
        ),
        ([{"weight_by_tag": {"a": 1e30}}], "rewards[0].weight_by_tag[a]", "must be at most 1,00"),
        (
            [{"weight_by_tag": {"a": 1, "two words": "b"}}],
            "rewards[0].weight_by_tag[two words]",
            "must be a number, not of type `str`",
        ),
        ([{"range": [1, 0]}], "rewards[0].range", "must be two numbers, the lower one first"),
        ([{"range": [1, 1]}], "rewards[0].range", "must be two numbers, the lower one first"),
        ([{"range": [0, float("inf")]}], "rewards[0].range", "must be two numbers"),
        ([{"range": [0, float("nan")]}], "rewards[0].range", "must be two numbers"),
        ([{"range": [0]}], "rewards[0].range", "expected `array` of length 2, got 1"),
        ([{"range": "all"}], "rewards[0].range", "must be a list, not of type `str`"),
        ([{"wieght": 1}], "rewards[0].wieght", "did you mean `weight`?"),
        ([{}, {"kind": "http"}], "rewards[1].http", "is missing; `kind: http` needs it"),
        ([{**HTTP, "kind": "ocr"}], "rewards[0].http", "this reward's kind is `ocr`; remove it"),
        ([{"options": {"a": 1}}], "rewards[0].options", "belong to `kind: python`"),
        (
            [{"kind": "python", "python": "a.b:C", "options": {"big": {"x": [1, 2**70]}}}],
            "rewards[0].options.big",
            "must be a number of 64 bits at most",
        ),
        (
            [{"kind": "python", "python": "a.b:C", "options": {"a name": float("nan")}}],
            "rewards[0].options",
            "must be a finite number, not nan",
        ),
        ([{"kind": "python", "python": "a b"}], "rewards[0].python", "must be `package.module:fu"),
        ([{"kind": "python", "python": "a:b:c"}], "rewards[0].python", "must be `package.module:"),
        (["ocr"], "rewards[0]", "must be a section with fields, not of type `str`"),
        ([{"name": f"r{n}"} for n in range(17)], "rewards", "name at most 16"),
    ],
)
def test_a_mistake_is_named_with_its_place(rewards: list[Any], path: str, problem: str) -> None:
    with pytest.raises(JobError) as caught:
        job(*rewards)
    assert caught.value.path == path
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)


def test_what_is_only_measured_has_another_name_than_what_is_trained_on() -> None:
    with pytest.raises(JobError, match=r"^validation\.rewards\[0\]\.name: another reward is call"):
        job({}, validation={"rewards": [{}]})
    both = job({}, validation={"rewards": [{"name": "strict"}]})
    assert [reward.name for reward in both.measured_rewards] == ["ocr", "strict"]
    assert [reward.name for reward in both.work.rewards_of("rollout")] == ["ocr"]
    assert both.work.rewards_of("evaluation") == both.measured_rewards


def test_only_what_is_noisy_is_drawn_again_and_only_where_previews_are_trained_on() -> None:
    rewards: list[dict[str, Any]] = [{}, {**HTTP, "noisy": True}]
    for reuse, names in ((True, ["ocr", "http", "http"]), (False, ["ocr", "http"])):
        work = job(*rewards, exploration={"reuse": reuse}).work
        assert [reward.name for reward in work.rewards_of("preview")] == names
        assert [reward.name for reward in work.rewards_of("rollout")] == ["ocr", "http"]
        assert [reward.name for reward in work.rewards_of("evaluation")] == ["ocr", "http"]


def test_a_reward_may_have_any_range_or_none() -> None:
    score, free = job({**HTTP, "range": [0, 30]}, {"name": "free", "range": None}).rewards
    assert score.problem_with(20.0) == ""
    assert score.problem_with(30.5) == "30.5 is outside the range [0, 30] of `http`"
    assert free.problem_with(-1e6) == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_never_a_reward(value: float) -> None:
    for reward in job({"range": None}, {"name": "b"}).rewards:
        assert reward.problem_with(value) == f"{value} is not a valid reward"


def test_a_job_with_every_kind_is_read_back_as_it_was_written() -> None:
    rewards: list[dict[str, Any]] = [
        {"weight": 2},
        {"kind": "compositional"},
        {**HTTP, "range": None},
        {"kind": "judge", "judge": {"url": "http://localhost:8000/v1", "model": "m"}},
        {"kind": "python", "python": "a.b:C", "options": {"x": [1, {"y": None}]}},
    ]
    whole = job(*rewards, validation={"rewards": [{"name": "strict"}], "on_hacking": "stop"})
    assert parse_job(job_to_yaml(whole)) == whole


def test_a_file_with_a_secret_is_looked_for_beside_the_job_file(tmp_path: Path) -> None:
    http = {**HTTP, "http": {**HTTP["http"], "authorization_file": "token"}}  # type: ignore[dict-item]
    text = job_to_yaml(job({}, http, validation={"rewards": [{**http, "name": "other"}]}))
    for reward in parse_job(text, base=tmp_path).measured_rewards[1:]:
        assert reward.http is not None
        assert reward.http.authorization_file == str(tmp_path / "token")


COMPARES = {"kind": "python", "python": "own:compare", "groupwise": True}


@pytest.mark.parametrize(
    ("sections", "path", "problem"),
    [
        ({"validation": {"seeds": 1}}, "validation.seeds", "must be at least 2: `python` compares"),
        ({"exploration": {"mode": "bandit"}}, "exploration.mode", "a bandit asks for one at a tim"),
        ({"exploration": {"reuse": True}}, "exploration.reuse", "these rewards cannot be trained"),
        (
            {"exploration": {"weights": "fresh", "budget": "fixed"}},
            "exploration.weights",
            "must be `previous`, or `preview_steps` below 8, with `python`, which compares",
        ),
        (
            {"exploration": {"finish": "previous", "preview_steps": 4}},
            "exploration.finish",
            "must be `newest` with `python`",
        ),
    ],
)
def test_a_reward_that_compares_images_needs_some_to_compare(
    sections: dict[str, Any], path: str, problem: str
) -> None:
    with pytest.raises(JobError) as caught:
        job(COMPARES, **sections)
    assert caught.value.path == path
    assert problem in caught.value.problem
    job(COMPARES)
    job(COMPARES, exploration={"weights": "fresh", "budget": "fixed", "preview_steps": 4})


def test_what_is_only_measured_has_no_weight_for_a_tag() -> None:
    measured = {"name": "other", "weight_by_tag": {"signs": 2.0}}
    with pytest.raises(JobError) as caught:
        job({}, validation={"rewards": [measured]})
    assert caught.value.path == "validation.rewards[0].weight_by_tag"


def test_only_code_of_ones_own_compares_images() -> None:
    with pytest.raises(JobError, match=r"rewards\[0\]\.groupwise: belongs to `kind: python`"):
        job({"groupwise": True})


def test_only_kinds_with_a_clip_model_have_its_weights() -> None:
    with pytest.raises(JobError, match=r"rewards\[0\]\.clip: belongs to `clip`, `pickscore`"):
        job({"clip": {"device": "cpu"}})
