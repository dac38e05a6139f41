"""Lists of prompts: texts, and JSON objects whose fields reach the scorers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotlight.assets import read_prompt_lines, read_prompts
from spotlight.assets.prompt_lines import LARGEST_METADATA, metadata_json, parse_jsonl, parse_text
from spotlight.errors import JobError
from spotlight.types import Prompt


def test_a_text_has_one_prompt_a_line_and_no_metadata() -> None:
    lines = parse_text("a cat\n\n  a dog \n", "p.txt")
    assert lines.items == [Prompt("a cat"), Prompt("a dog")]
    assert lines.place(1) == "p.txt, line 3"


def test_the_fields_of_a_json_object_are_the_metadata_of_its_prompt() -> None:
    lines = parse_jsonl('{"prompt": "a cat", "tag": "x", "n": [1, {"y": null}]}\n\n', "p.jsonl")
    assert lines.items == [Prompt("a cat", {"tag": "x", "n": [1, {"y": None}]})]
    assert json.loads(metadata_json(lines.items[0])) == {"tag": "x", "n": [1, {"y": None}]}


def test_what_has_no_metadata_carries_none() -> None:
    assert metadata_json(parse_jsonl('{"prompt": "a cat"}', "p.jsonl").items[0]) == ""


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "must be an object, such as "),
        ('{"prompt": "x", "deep": ' + "[" * 100_000, "is nested too deep"),
        ("[]", "must be an object, such as "),
        ('"a cat"', "must be an object, such as "),
        ("{}", "`prompt` is missing or not text"),
        ('{"prompt": 7}', "`prompt` is missing or not text"),
        ('{"prompt": "  "}', "`prompt`: must not be empty"),
        ('{"prompt": "a dog "}', "`prompt`: must not begin or end with a space"),
        (json.dumps({"prompt": "x", "more": "y" * LARGEST_METADATA}), "its further fields have"),
        ('{"prompt": "a cat", "tag": "y"}', "its prompt occurred before with other fields"),
    ],
    ids=range(11),
)
def test_a_bad_line_is_refused_by_its_number(bad: str, problem: str) -> None:
    with pytest.raises(JobError, match=rf"^prompts: p\.jsonl, line 3: {problem}"):
        parse_jsonl(f'{{"prompt": "a cat", "tag": "x"}}\n\n{bad}\n', "p.jsonl")


def test_a_prompt_may_be_given_several_times() -> None:
    assert len(parse_jsonl('{"prompt": "a cat", "n": 1}\n' * 2, "p").items) == 2


def test_the_ending_of_a_file_says_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a cat", "n": 1}\n')
    (tmp_path / "p.txt").write_text('{"prompt": "a cat", "n": 1}\n')
    assert read_prompt_lines(tmp_path / "p.jsonl").items == [Prompt("a cat", {"n": 1})]
    assert read_prompts(tmp_path / "p.txt") == ['{"prompt": "a cat", "n": 1}']
