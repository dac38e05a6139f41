from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from spotlight.assets.geneval import Exclusion, PromptMetadata, Requirement, asked_of
from spotlight.assets.prompt_lines import parse_jsonl

DOG = {"class": "dog", "count": 1}
LINES = (
    '{"tag": "single_object", "include": [{"class": "bench", "count": 1}],'
    ' "prompt": "a photo of a bench"}\n'
    '{"tag": "counting", "include": [{"class": "clock", "count": 2}],'
    ' "exclude": [{"class": "clock", "count": 3}], "prompt": "a photo of two clocks"}\n'
    "\n"
    '{"tag": "colors", "include": [{"class": "car", "count": 1, "color": "pink"}],'
    ' "prompt": "a photo of a pink car"}\n'
    '{"tag": "position", "include": [{"class": "bench", "count": 1}, {"class": "wine glass",'
    ' "count": 1, "position": ["right of", 0]}],'
    ' "prompt": "a photo of a wine glass right of a bench"}\n'
)


def line(**changes: Any) -> str:
    whole = {"tag": "single_object", "include": [DOG], "prompt": "a photo of a dog", **changes}
    return json.dumps({key: value for key, value in whole.items() if value is not None})


def asked(text: str) -> list[PromptMetadata]:
    return [asked_of(prompt) for prompt in parse_jsonl(text, "metadata.jsonl").items]


def test_lines_as_geneval_writes_them_are_read() -> None:
    bench, clocks, car, glass = asked(LINES)
    assert bench.tag == "single_object"
    assert bench.include == (Requirement(name="bench", count=1),)
    assert clocks.exclude == (Exclusion(name="clock", count=3),)
    assert clocks.asked == 2
    assert car.include[0].colour == "pink"
    assert glass.include[1].position == ("right of", 0)
    assert glass.prompt == "a photo of a wine glass right of a bench"


def test_what_is_written_is_what_was_read() -> None:
    written = [json.loads(msgspec.json.encode(one)) for one in asked(LINES)]
    assert written == [json.loads(line) for line in LINES.splitlines() if line]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (line(tag=None), "object missing required field `tag`"),
        (line(include=None), "object missing required field `include`"),
        (line(include=[{**DOG, "size": 1}]), r"`include\[0\]`: object contains a field"),
        (line(include=[]), "`include`: must ask for something"),
        (line(include=[{"class": "dog"}]), r"`include\[0\]`: object missing .* `count`"),
        (line(include=[{**DOG, "count": 0}]), r"`include\[0\]\.count`: must be at least 1;"),
        (line(include=[{**DOG, "count": 1.5}]), r"`include\[0\]\.count`: expected `int`"),
        (line(include=[{**DOG, "class": ""}]), r"`include\[0\]\.class`: must not be empty"),
        (line(include=[{**DOG, "color": "teal"}]), r"`include\[0\]\.color`: must be one of `red`"),
        (line(include=[DOG, DOG]), r"`include\[1\]\.class`: is asked for twice"),
        (line(include=[{**DOG, "position": ["above", 0]}]), r"`include\[0\]\.position\[1\]`: must"),
        (line(include=[{**DOG, "position": ["near", 0]}]), r"`include\[0\]\.position\[0\]`: must"),
        (line(exclude=[{"class": "dog", "count": 0}]), r"`exclude\[0\]\.count`: must be at least"),
        (line(exclude=[{"class": "", "count": 1}]), r"`exclude\[0\]\.class`: must not be empty"),
    ],
)  # fmt: skip
def test_what_is_not_as_geneval_writes_it_is_refused_with_its_field(bad: str, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"^{problem}"):
        asked(bad)


def test_a_target_must_come_before_the_object_that_is_seen_from_it() -> None:
    cat = {"class": "cat", "count": 1, "position": ["above", 1]}
    with pytest.raises(ValueError, match=r"index of an entry before this one, so in \[0, 1\)"):
        asked(line(include=[DOG, cat]))


def test_further_fields_are_for_other_scorers() -> None:
    assert asked(line(style="oil")) == asked(line())
