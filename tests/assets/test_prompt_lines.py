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


def test_json_lines_are_read_as_them_whatever_the_file_is_called(tmp_path: Path) -> None:
    for name in ("p.jsonl", "p.txt", "p.json", "p", "p.csv"):
        (tmp_path / name).write_text('\ufeff\n{"prompt": "a cat", "n": 1}\r\n', encoding="utf-8")
        assert read_prompt_lines(tmp_path / name).items == [Prompt("a cat", {"n": 1})]


@pytest.mark.parametrize("name", ["p.csv", "p.TSV", "p.yaml", "p.yml"])
def test_a_file_that_is_called_a_table_or_yaml_is_not_read_as_text(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("a cat\na dog, and more\n")
    with pytest.raises(JobError, match=r" by its name; such a list is not read: give a text"):
        read_prompts(tmp_path / name)


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a cat\na dog\n", encoding="utf-8-sig")
    assert read_prompts(tmp_path / "p.txt") == ["a cat", "a dog"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str) -> None:
    assert parse_text(f"a cat{end}{end}a dog{end}", "p.txt").numbers == [1, 3]


@pytest.mark.parametrize("stray", ["\0", "\x0c", "\x0b", "\x85", "\u2028", "\u2029", "\ufeff"])
def test_a_stray_character_in_a_prompt_is_refused_by_its_line(stray: str) -> None:
    code = f"U\\+{ord(stray):04X}"
    with pytest.raises(JobError, match=rf"^prompts: p\.txt, line 2: holds the character {code} "):
        parse_text(f"a cat\na{stray}dog", "p.txt")
    line = json.dumps({"prompt": f"a{stray}dog"})
    with pytest.raises(JobError, match=rf"^prompts: p, line 1: `prompt`: holds the char.* {code} "):
        parse_jsonl(line, "p")


def test_a_prompt_in_json_may_have_several_lines() -> None:
    assert parse_jsonl('{"prompt": "a cat\\n\\ta dog"}', "p").items == [Prompt("a cat\n\ta dog")]
