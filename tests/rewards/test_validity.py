"""What of a scorer's answer counts: whatever is not one valid number per image is a failure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.rewards.validity import score_with
from spotlight.types import Prompt

PROMPTS = [Prompt("a"), Prompt("b")]
PICK = RewardSpec(name="pick", range=(0.0, 30.0))


class Answers:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def score(self, images: Any, prompts: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [[20, 7.5], (20.0, 7.5), np.array([20, 7.5], np.float32), iter([20, 7.5])],
    ids=["list", "tuple", "array", "iterator"],
)
def test_any_sequence_of_numbers_will_do(answer: Any) -> None:
    assert score_with(Answers(answer), PICK, None, PROMPTS) == (20.0, 7.5)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ScoringError("the server is away"), "the server is away"),
        (ValueError("bug"), "ValueError: bug"),
        (SystemExit(3), "SystemExit: 3"),
        (None, "gave no list of numbers"),
        (0.5, "gave no list of numbers"),
        ([None, 0.5], "gave no list of numbers"),
        (["x", 0.5], "gave no list of numbers"),
        ([0.5], "gave 1 rewards for 2 images"),
        ([0.5] * 3, "gave 3 rewards for 2 images"),
        ([0.5, float("nan")], "nan is not a valid reward"),
        ([float("inf"), 0.5], "inf is not a valid reward"),
        ([0.5, 31], "31 is outside the range [0, 30] of `pick`"),
        ([-1e-9, 0.5], "-1e-09 is outside"),
    ],
    ids=repr,
)
def test_anything_else_is_a_failure_that_names_the_reward(answer: Any, problem: str) -> None:
    with pytest.raises(ScoringError) as caught:
        score_with(Answers(answer), PICK, None, PROMPTS)
    assert str(caught.value).startswith("reward `pick`: ")
    assert problem in str(caught.value)


def test_without_a_range_every_finite_number_is_a_reward() -> None:
    free = RewardSpec(range=None)
    assert score_with(Answers([-3e6, 22.0]), free, None, PROMPTS) == (-3e6, 22.0)
    with pytest.raises(ScoringError, match="nan is not a valid reward"):
        score_with(Answers([float("nan"), 22.0]), free, None, PROMPTS)


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        (["a"], "it compares images of a prompt, and there is one only"),
        (["a", "b"], "it compares images of a prompt, and these are of several"),
    ],
)
def test_what_is_no_group_is_not_compared(prompts: list[str], problem: str) -> None:
    spec = RewardSpec(kind="python", python="own:compare", groupwise=True)

    class Compares:
        def score(self, images: object, prompts: object) -> list[float]:
            pytest.fail("nothing is compared")

    with pytest.raises(ScoringError, match=problem):
        score_with(Compares(), spec, None, [Prompt(text) for text in prompts])
