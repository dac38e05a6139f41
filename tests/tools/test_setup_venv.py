"""What `make setup` installs, and what it says of it beforehand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"


@pytest.fixture(scope="module")
def tool() -> Any:
    place = ROOT / "tools" / "setup_venv.py"
    spec = importlib.util.spec_from_file_location("setup_venv", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nothing_offered(requirement: str) -> bool:
    return False


def test_without_a_gpu_the_cpu_build_is_taken_where_an_index_offers_it(tool: Any) -> None:
    asked: list[str] = []

    def offered(requirement: str) -> bool:
        asked.append(requirement)
        return True

    requirement, said = tool.chosen(TORCH, has_gpu=False, is_offered=offered)
    assert requirement == asked[0] == f"{TORCH}+cpu"
    assert "CPU build" in said and "0.2 GB" in said


def test_without_a_gpu_and_without_an_offer_the_way_to_the_cpu_build_is_said(tool: Any) -> None:
    requirement, said = tool.chosen(TORCH, has_gpu=False, is_offered=nothing_offered)
    assert requirement == TORCH
    assert "2.7 GB" in said and f"TORCH='{TORCH} --extra-index-url URL'" in said


def test_with_a_gpu_no_cpu_build_is_asked_for(tool: Any) -> None:
    def never(requirement: str) -> bool:
        raise AssertionError(requirement)

    requirement, said = tool.chosen(TORCH, has_gpu=True, is_offered=never)
    assert requirement == TORCH and "2.7 GB" in said


@pytest.mark.parametrize("words", [f"{TORCH} --extra-index-url URL", f"{TORCH}+cu130"])
def test_what_the_user_says_is_taken_as_it_is(tool: Any, words: str) -> None:
    assert tool.chosen(words, has_gpu=False, is_offered=nothing_offered)[0] == words


def test_a_gpu_is_seen_by_its_device(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not tool.has_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert tool.has_gpu(tmp_path)


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_pythons_that_were_tested_are_taken_without_a_word(
    tool: Any, version: tuple[int, int]
) -> None:
    assert tool.judged(version) == ("", "")


def test_an_older_python_is_refused_and_a_newer_one_is_named(tool: Any) -> None:
    assert "too old" in tool.judged((3, 10))[0]
    assert tool.judged((3, 14))[0] == "" and "3.14" in tool.judged((3, 14))[1]


def test_the_python_that_runs_this_is_one_that_setup_takes(tool: Any) -> None:
    assert tool.judged(sys.version_info[:2])[0] == ""
