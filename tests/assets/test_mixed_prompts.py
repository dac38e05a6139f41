"""The prompts from solved to hopeless that ship with the tiny checkpoints."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from spotlight.assets import ASSETS, read_prompt_lines, read_prompts
from spotlight.assets.geneval import asked_of
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.rewards.quotes import quoted_text

TINY = ("ocr-tiny", "compositional-tiny")
TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.parametrize("name", TINY)
def test_nothing_is_trained_on_that_is_validated_or_was_held_back(name: str) -> None:
    trained = set(read_prompts(f"builtin:{name}/mixed-train"))
    for validated in ("validation", "mixed-validation"):
        assert not trained & set(read_prompts(f"builtin:{name}/{validated}"))


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("part", ["mixed-train", "mixed-validation"])
def test_the_checkpoint_knows_every_token(name: str, part: str) -> None:
    config = json.loads((ASSETS / name / "text_encoder" / "config.json").read_text())
    vocabulary = TokenVocabulary(
        tuple(config["words"]), config["characters"], config["length"], config["dim"]
    )
    unknown = 1
    for prompt in read_prompts(f"builtin:{name}/{part}"):
        assert unknown not in vocabulary.tokens(prompt)


@pytest.mark.parametrize("name", TINY)
def test_training_and_validation_have_the_same_categories(name: str) -> None:
    train, validation = (
        Counter(
            prompt.metadata["tag"] for prompt in read_prompt_lines(f"builtin:{name}/{part}").items
        )
        for part in ("mixed-train", "mixed-validation")
    )
    assert train.keys() == validation.keys()
    assert min(train.values()) >= 8


def test_every_prompt_can_be_scored() -> None:
    for part in ("mixed-train", "mixed-validation"):
        assert all(quoted_text(text) for text in read_prompts(f"builtin:ocr-tiny/{part}"))
        for prompt in read_prompt_lines(f"builtin:compositional-tiny/{part}").items:
            assert asked_of(prompt).asked >= 1


def test_the_tool_makes_the_very_lists_that_ship(tmp_path: Path) -> None:
    for name in TINY:
        shutil.copytree(ASSETS / name / "prompts", tmp_path / name / "prompts")
        for mixed in (tmp_path / name / "prompts").glob("mixed-*"):
            mixed.unlink()
    subprocess.run(
        [sys.executable, TOOLS / "make_mixed_prompts.py", "--folder", tmp_path],
        check=True,
        timeout=120,
    )
    for name in TINY:
        for shipped in (ASSETS / name / "prompts").iterdir():
            assert (tmp_path / name / "prompts" / shipped.name).read_bytes() == shipped.read_bytes()
