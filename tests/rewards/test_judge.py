"""A vision-language model as a judge; a real process stands in for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from spotlight.errors import JobError, ScoringError
from spotlight.jobs import RewardSpec
from spotlight.jobs.remote_rewards import JudgeSpec
from spotlight.permissions import Permissions, RewardSecret
from spotlight.rewards.base import Scorer, build_scorer
from spotlight.rewards.judge import Rubric
from spotlight.rewards.schema import encode_image
from spotlight.types import Prompt

ANSWERS = {
    **{0: "OPEN", 1: "open\n", 2: "OPAN", 3: "", 4: "4", 5: "Score: 7/10", 6: None},
    "9-4": "3",
}
ECHO = 7
SIGN = Prompt('a sign that says "Open"')


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    answers = json.dumps({**ANSWERS, ECHO: "{question}"})
    script = Path(__file__).with_name("stand_in_model.py")
    process = subprocess.Popen(
        [sys.executable, str(script), answers], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_AUTHORIZATION", "Bearer sesame")


def judge(
    url: str, rubric: str = "", range_: tuple[float, float] = (0, 1), **options: str
) -> Scorer:
    spec = JudgeSpec(
        url=url,
        model=options.pop("model", "tiny-vl"),
        formula="rubric" if rubric else "ocr",
        rubric=rubric,
        attempts=1,
        authorization_variable=options.pop("variable", "JUDGE_AUTHORIZATION"),
        **options,  # type: ignore[arg-type]
    )
    secret = RewardSecret(host="127.0.0.1", variable=spec.authorization_variable)
    return build_scorer(
        RewardSpec(kind="judge", judge=spec, range=range_), Permissions(secrets=(secret,))
    )


def images(*reds: int) -> np.ndarray:
    made = np.zeros((len(reds), 8, 8, 3), np.uint8)
    made[:, :, :, 0] = np.array(reds)[:, None, None]
    return made


@pytest.mark.parametrize("image_format", ["png", "webp"])
def test_what_the_model_reads_is_worth_what_the_ocr_reward_says(
    url: str, image_format: str
) -> None:
    scorer = judge(url, image_format=image_format)
    assert scorer.score(images(0, 1, 2, 3), [SIGN] * 4) == [1.0, 1.0, 0.75, 0.0]


def test_the_model_is_not_told_what_it_should_read(url: str) -> None:
    assert judge(url).score(images(ECHO), [Prompt('"xylophone"')]) == [0.0]


def test_a_prompt_without_quoted_text_cannot_be_judged_by_reading(url: str) -> None:
    with pytest.raises(ScoringError, match="no text in quotes"):
        judge(url).score(images(0), [Prompt("a cat")])


def test_a_rubric_gives_the_number_in_the_answer(url: str) -> None:
    scorer = judge(url, "Is it beautiful?", (0, 10))
    assert scorer.score(images(4, 5), [SIGN] * 2) == [4.0, 7.0]


def test_a_rubric_compares_the_result_with_the_image_that_was_to_be_changed(url: str) -> None:
    changed = Prompt("make it red", image=encode_image(images(9)[0], "png"))
    scorer = judge(url, "Is only that changed?", (0, 10))
    assert scorer.score(images(4, 5), [changed, SIGN]) == [3.0, 7.0]
    asked = Rubric("Is only that changed?", 0, 10).ask(changed)
    assert "judge the second one, which is what came of it:\nmake it red" in asked


def test_text_is_read_in_the_result_alone(url: str) -> None:
    changed = msgspec.structs.replace(SIGN, image=encode_image(images(9)[0], "png"))
    assert judge(url).score(images(0), [changed]) == [1.0]


def test_a_grade_outside_the_scale_is_no_reward(url: str) -> None:
    with pytest.raises(ScoringError, match=r"image 0-\w+: the model's grade 4 is not from 0 to 1"):
        judge(url, "Is it beautiful?", (0, 1)).score(images(4), [SIGN])


def test_an_answer_without_a_number_is_no_reward_and_is_quoted(url: str) -> None:
    with pytest.raises(ScoringError, match=r"1 of 2 images .* 1-\w+: .* 0 numbers .*: OPEN"):
        judge(url, "Is it beautiful?", (0, 10)).score(images(4, 0), [SIGN] * 2)


def test_a_model_that_says_nothing_gives_no_reward(url: str) -> None:
    with pytest.raises(ScoringError, match="gave no answer"):
        judge(url).score(images(6), [SIGN])


def test_what_the_endpoint_refuses_is_told(url: str) -> None:
    with pytest.raises(ScoringError, match=r"status 400: .*AssertionError"):
        judge(url, model="other-model").score(images(0), [SIGN])


def test_a_missing_authorization_is_refused_with_the_name_of_the_variable(url: str) -> None:
    with pytest.raises(JobError, match="environment variable NOT_THERE"):
        judge(url, variable="NOT_THERE")


@pytest.mark.parametrize(
    ("answer", "grade"),
    [("8", 8), (" 8.5\n", 8.5), ("8/10", 8), ("**8**", 8), ("I give it 8 / 10.", 8), ("0", 0)],
)
def test_a_grade_may_be_dressed_up(answer: str, grade: float) -> None:
    assert Rubric("", 0, 10).reward(answer, SIGN) == grade


@pytest.mark.parametrize("answer", ["", "good", "7 or 8", "8 out of 10", "-1", "11", "1e3"])
def test_nobody_guesses_what_another_answer_means(answer: str) -> None:
    with pytest.raises(ScoringError):
        Rubric("", 0, 10).reward(answer, SIGN)


def test_a_rubric_names_the_scale_and_the_prompt() -> None:
    asked = Rubric("Is it sharp?", 1, 5).ask(SIGN)
    assert "Is it sharp?" in asked
    assert SIGN.text in asked
    assert "from 1 (worst) to 5 (best)" in asked
