"""Scorers that are tried on image files."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spotlight.errors import UserError
from spotlight.jobs import RewardSpec
from spotlight.permissions import Permissions
from spotlight.rewards.trial.pairing import PromptImages
from spotlight.rewards.trial.trying import Picture, image_names, read_pictures, try_scorer
from spotlight.types import Prompt

MODULE = """
calls = []

def count(images, prompts):
    calls.append([prompt.text for prompt in prompts])
    return [len(calls) / 100] * len(images)

def fails(images, prompts):
    raise KeyError("weights")

def short(images, prompts):
    return [0.5]

def words(images, prompts):
    return ["a"] * len(images)

def none(images, prompts):
    return None

def lazy(images, prompts):
    return ({}["weights"] for image in images)

def nothing(images, prompts):
    return [float("nan")] * len(images)
"""
FIELD = "rewards[0]"
ALLOWED = Permissions(code=("tried_rewards",))


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.delitem(__import__("sys").modules, "tried_rewards", raising=False)


def spec(function: str, *, groupwise: bool = False) -> RewardSpec:
    return RewardSpec(kind="python", python=f"tried_rewards:{function}", groupwise=groupwise)


def group(text: str, *edges: int) -> list[Picture]:
    return [
        Picture(f"{text}{index}.png", np.zeros((edge, edge, 3), np.uint8), Prompt(text))
        for index, edge in enumerate(edges)
    ]


def test_images_of_one_size_are_scored_together_and_others_by_themselves() -> None:
    tried = try_scorer(FIELD, spec("count"), [group("a", 8, 8), group("b", 8, 4)], ALLOWED)
    assert tried.rewards == (0.01, 0.01, 0.01, 0.02)
    assert not tried.error


def test_a_scorer_that_compares_gets_each_group_by_itself() -> None:
    tried = try_scorer(
        FIELD, spec("count", groupwise=True), [group("a", 8, 8), group("b", 4, 4)], ALLOWED
    )
    assert tried.rewards == (0.01, 0.01, 0.02, 0.02)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("short", "rewards[0] (`python`): the scorer gave 1 rewards for 2 images"),
        ("words", "rewards[0] (`python`): the scorer gave no list of numbers (could not convert"),
        ("none", "rewards[0] (`python`): the scorer gave no list of numbers, but NoneType"),
        ("nothing", "nan is not a valid reward"),
        ("nowhere", "has no class or function nowhere"),
    ],
)
def test_what_is_no_reward_is_said(function: str, error: str) -> None:
    tried = try_scorer(FIELD, spec(function), [group("a", 8, 8)], ALLOWED)
    assert error in tried.error
    assert (tried.rewards, tried.traceback) == ((), ""), "no code of its own has raised"


@pytest.mark.parametrize(
    ("function", "line"), [("fails", 'raise KeyError("weights")'), ("lazy", '({}["weights"] for')]
)
def test_a_scorer_that_raises_is_shown_with_the_line(function: str, line: str) -> None:
    tried = try_scorer(FIELD, spec(function), [group("a", 8)], ALLOWED)
    assert tried.error == "rewards[0] (`python`): KeyError: 'weights'"
    assert line in tried.traceback


@pytest.mark.parametrize(
    ("edges", "error"),
    [((8,), "it compares images of a prompt, and there is one only"), ((8, 4), "differ in size")],
)
def test_what_cannot_be_compared_is_said(edges: tuple[int, ...], error: str) -> None:
    tried = try_scorer(FIELD, spec("count", groupwise=True), [group("a", *edges)], ALLOWED)
    assert error in tried.error


def test_images_are_read_in_the_order_of_their_names_and_others_are_left_out(
    tmp_path: Path,
) -> None:
    Image.new("RGB", (3, 2), (9, 8, 7)).save(tmp_path / "2.png")
    Image.new("RGBA", (3, 2), (0, 0, 0, 0)).save(tmp_path / "1.PNG")
    (tmp_path / "notes.txt").write_text("none")
    names = image_names(tmp_path)
    assert names == ["1.PNG", "2.png"]
    [[first, second]] = read_pictures(tmp_path, [PromptImages(Prompt("x"), tuple(names))])
    assert first.image.min() == 255, "what is clear shows white"
    assert second.image[0, 0].tolist() == [9, 8, 7]


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no images \(\.png"):
        image_names(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        image_names(tmp_path / "none")


def test_a_damaged_image_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"none")
    with pytest.raises(UserError, match=r"a\.png: is not a png file$"):
        read_pictures(tmp_path, [PromptImages(Prompt("x"), ("a.png",))])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png is a named pipe"):
        read_pictures(tmp_path, [PromptImages(Prompt("x"), ("a.png",))])
