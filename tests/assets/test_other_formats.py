"""Lists of prompts that are written for another reader are told from those with a prompt a line."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
import yaml

from spotlight.assets.other_formats import is_json_lines
from spotlight.assets.prompt_lines import parse_prompts
from spotlight.errors import JobError

PROMPTS = ['a sign that says "OPEN"', "a red circle, and a blue one", 'the number "7"']


def as_csv(rows: list[list[str]], delimiter: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows(rows)
    return out.getvalue()


OTHERS = {
    "CSV with a head": as_csv([["prompt", "tag"], *([each, "x"] for each in PROMPTS)]),
    "CSV with numbers": as_csv([["id", "caption"], ["0", "a cat"]]),
    "CSV of one column": as_csv([["text"], ["a cat"]]),
    "CSV without a head": as_csv([[each, "x"] for each in PROMPTS]),
    "CSV without quotes": as_csv([["a cat", "animals"], ["a sun", "sky"]]),
    "CSV without a head, of one column": as_csv([[each] for each in PROMPTS]),
    "CSV of a spreadsheet": as_csv([[each, "x"] for each in PROMPTS], ";"),
    "TSV": as_csv([[each, "x"] for each in PROMPTS], "\t"),
    "a table with bars": "a cat | animals\na sun | sky\n",
    "a table of Markdown": "| a cat | animals |\n|---|---|\n",
    "YAML, a list": yaml.safe_dump(PROMPTS),
    "YAML, a mapping": yaml.safe_dump({"prompts": PROMPTS}),
    "YAML, a mapping of others": yaml.safe_dump({"train": PROMPTS}),
    "YAML, a list of mappings": yaml.safe_dump([{"prompt": each} for each in PROMPTS]),
    "YAML, a document": yaml.safe_dump(PROMPTS[1], explicit_start=True),
    "a numbered list": "".join(f"{n}. {each}\n" for n, each in enumerate(PROMPTS, 1)),
    "a list numbered from 0": "".join(f"{n}) {each}\n" for n, each in enumerate(PROMPTS)),
    "a numbered list under a head": "Signs\n\n1. a cat\n\n2. a dog\n",
    "numbers in brackets": "[1] a cat\n[2] a dog\n",
    "numbers with dashes": "1 - a cat\n2 - a dog\n",
    "numbered with words": "Prompt 1: a cat\nPrompt 2: a dog\n",
    "numbered as CSV": "1,a cat\n2,a dog\n",
    "cat -n": "     1\ta cat\n     2\ta dog\n",
    "bullets": "* a cat\n* a dog\n",
    "Markdown": "# Prompts\n\na cat\n",
    "JSON, a list": json.dumps(PROMPTS),
    "JSON, a list over lines": json.dumps(PROMPTS, indent=2),
    "JSON, an object over lines": json.dumps({"prompts": PROMPTS}, indent=2),
    "JSON, a text a line": "".join(json.dumps(each) + "\n" for each in PROMPTS),
    "text, then JSON lines": 'a cat\n{"prompt": "a dog"}\n',
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_format_is_refused_with_a_line_and_what_to_do(name: str) -> None:
    wanted = r'^prompts: p, line \d+: .*; such a list is not read: .* `{"prompt": "a red circle"}`$'
    with pytest.raises(JobError, match=wanted) as caught:
        parse_prompts(OTHERS[name], "p")
    assert "OPEN" not in str(caught.value)  # what stands there is never told


@pytest.mark.parametrize(
    "text",
    [
        "a cat, a dog\na red, big circle\n",
        "1,000 balloons\n2,500 coins\n",
        'a sign with the text "A,B"\na sign "C,D"\n',
        "1 cat\n2 cats\n3 cats\n",
        "1% milk\n2% milk\n",
        "2-story house\n3-story house\n",
        'a sign that says "PIZZA 12""',
        'a disk of 5", and the text "5""',
        "{red|blue} circle",
        "[1girl, cat]",
        "🐶🐶",
        "東京の夜",
        "1. e4 is a move",
        '"OPEN"\n"CLOSED"\n',
        "#sunset on a beach",
        "masterpiece,best quality\n1girl,solo,cat\n",
        "a cat,sitting\n",
        "text: a poster",
    ],
)
def test_what_people_mean_as_prompts_is_read(text: str) -> None:
    lines = text.splitlines()
    assert [each.text for each in parse_prompts(text, "p").items] == lines


def test_an_object_over_several_lines_is_no_json_line() -> None:
    assert is_json_lines('\n  {"prompt": "x"}')
    assert is_json_lines("{'prompt': 'x'}")
    assert not is_json_lines('{\n"prompt": "x"}')
    assert not is_json_lines("{red|blue} circle")


def test_what_was_meant_as_json_lines_is_refused_as_such() -> None:
    with pytest.raises(JobError, match=re.escape("p, line 1: is not JSON (")):
        parse_prompts("{'prompt': 'a cat'}", "p")


def test_a_long_line_is_looked_at_in_no_time() -> None:
    line = '"' * 2_000_001
    with pytest.raises(JobError, match="holds no words"):
        parse_prompts(line, "p")
    parse_prompts('a "' + '""x,' * 500_000, "p")
