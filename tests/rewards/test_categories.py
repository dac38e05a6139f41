import json
from pathlib import Path

import pytest

from spotlight.assets import read_prompts
from spotlight.errors import JobError
from spotlight.jobs import RewardSpec
from spotlight.rewards.categories import read_categories


def test_the_length_of_the_text_is_the_category_of_a_prompt_for_ocr() -> None:
    prompts = ['a sign that says "Open Now"', 'the number "1234"', 'the number "9876"']
    found = read_categories(RewardSpec(kind="ocr"), prompts)
    assert [found[prompt] for prompt in prompts] == ["7 letters", "4 letters", "4 letters"]


def test_the_tag_of_the_metadata_is_the_category_of_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "metadata.jsonl"
    entry = {"tag": "counting", "include": [{"class": "circle", "count": 3}], "prompt": "3 circles"}
    file.write_text(json.dumps(entry))
    reward = RewardSpec(kind="compositional", metadata=(str(file),))
    assert read_categories(reward, ["3 circles"]) == {"3 circles": "counting"}


def test_the_prompts_that_ship_have_more_than_one_category() -> None:
    names = ("builtin:compositional-tiny/train", "builtin:compositional-tiny/validation")
    reward = RewardSpec(kind="compositional", metadata=names)
    assert len(set(read_categories(reward, read_prompts(names[0])).values())) > 2


def test_metadata_that_is_not_there_is_named(tmp_path: Path) -> None:
    reward = RewardSpec(kind="compositional", metadata=(str(tmp_path / "none.jsonl"),))
    with pytest.raises(JobError, match=r"none\.jsonl"):
        read_categories(reward, ["a circle"])
