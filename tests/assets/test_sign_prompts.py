"""The signs of several words that the recipes train on."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from spotlight.assets import ASSETS, read_prompt_lines
from spotlight.jobs import load_job
from spotlight.rewards.quotes import plain, quoted_text
from spotlight.rewards.recognition import RapidRecognizer

ROOT = Path(__file__).parents[2]
LISTS = ("train", "validation")
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))


def made(folder: Path, *options: str) -> list[bytes]:
    """What the tool writes."""
    tool = ROOT / "tools" / "make_sign_prompts.py"
    command = [sys.executable, tool, "--folder", folder, *options]
    subprocess.run(command, check=True, timeout=60)
    return [(folder / f"{name}.jsonl").read_bytes() for name in LISTS]


def test_the_tool_makes_the_very_lists_that_ship(tmp_path: Path) -> None:
    shipped = ASSETS / "signs" / "prompts"
    assert made(tmp_path) == [(shipped / f"{name}.jsonl").read_bytes() for name in LISTS]


def test_another_seed_makes_others(tmp_path: Path) -> None:
    one, other = made(tmp_path / "1", "--seed", "1"), made(tmp_path / "2", "--seed", "2")
    assert one != other and one == made(tmp_path / "1", "--seed", "1")


def test_both_lists_have_signs_of_one_word_to_ten() -> None:
    counts = [
        Counter(
            len(prompt.text.split('"')[1].split())
            for prompt in read_prompt_lines(f"builtin:signs/{name}").items
        )
        for name in LISTS
    ]
    assert all(set(each) == {1, 2, 3, 5, 7, 10} and min(each.values()) >= 8 for each in counts)


def test_no_text_is_both_trained_on_and_validated() -> None:
    train, validation = (
        {quoted_text(prompt.text) for prompt in read_prompt_lines(f"builtin:signs/{name}").items}
        for name in LISTS
    )
    assert not train & validation


def test_the_recogniser_can_write_every_text() -> None:
    recognizer = RapidRecognizer()
    alphabet = {plain(recognizer.decode([index])) for index in range(6625)}
    for name in LISTS:
        for prompt in read_prompt_lines(f"builtin:signs/{name}").items:
            assert set(quoted_text(prompt.text)) <= alphabet


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_trains_on_them(path: Path) -> None:
    prompts = load_job(path).prompts
    assert (prompts.train, prompts.validation) == (
        "builtin:signs/train",
        "builtin:signs/validation",
    )
