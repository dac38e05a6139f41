"""What the pages about rewards show works as it stands there."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from spotlight.assets.prompt_lines import parse_jsonl
from spotlight.jobs import JobSpec, job_from_data, load_job
from spotlight.permissions import Permissions
from spotlight.preflight.checks import check
from spotlight.rewards.base import Prompt, build_scorer
from spotlight.rewards.plugins import GROUP

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "own-reward"
PAGES = ("own-reward.md", "several-rewards.md")
BASE = yaml.safe_load((ROOT / "examples" / "ocr-tiny.yaml").read_text(encoding="utf-8"))


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.M)
    return found


def with_sections(text: str) -> JobSpec:
    """The example's job with the sections of a block."""
    return job_from_data({**BASE, **yaml.safe_load(text)})


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `PYTHONPATH=examples/own-reward` would have it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "ink", raising=False)
    importlib.invalidate_caches()


@pytest.mark.parametrize("page", PAGES)
def test_every_section_of_a_job_is_one(page: str) -> None:
    shown = blocks(page, "yaml")
    assert shown
    for text in shown:
        with_sections(text)


def test_the_class_of_the_page_is_that_of_the_example_and_takes_15_lines() -> None:
    _, shown, _ = blocks("own-reward.md", "python")
    example = (FOLDER / "ink.py").read_text(encoding="utf-8")
    assert example.partition('"""\n\n')[2] == shown
    assert len(shown.splitlines()) == 15


def test_the_class_of_the_page_scores_images_by_the_prompts_of_the_page(on_path: None) -> None:
    job = with_sections(blocks("own-reward.md", "yaml")[1])
    scorer = build_scorer(job.rewards[0], Permissions.of(job))
    images = np.zeros((3, 10, 10, 3), np.uint8)
    images[1, :2], images[2] = 255, 255
    assert scorer.score(images, [Prompt("a")] * 3) == pytest.approx([0.8, 1.0, 0.2])
    (lines,) = blocks("own-reward.md", "jsonl")
    prompts = parse_jsonl(lines, "the page").items
    assert scorer.score(images[:2], prompts) == pytest.approx([0.85, 0.95])


def test_the_functions_of_the_page_score_images_in_three_lines_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharpness, _, diversity = blocks("own-reward.md", "python")
    assert max(len(sharpness.splitlines()), len(diversity.splitlines())) <= 3
    (tmp_path / "my_rewards.py").write_text(sharpness + diversity)
    monkeypatch.syspath_prepend(str(tmp_path))
    sharp, _, groupwise, *_ = map(with_sections, blocks("own-reward.md", "yaml"))
    images = np.zeros((2, 4, 4, 3), np.uint8)
    images[0, :2] = 255
    wanted = ((sharp, [127.5 / 128, 0.0]), (groupwise, [0.25, 0.25]))
    for job, rewards in wanted:
        check(job)
        scorer = build_scorer(job.rewards[0], Permissions.of(job))
        assert list(scorer.score(images, [Prompt("a")] * 2)) == pytest.approx(rewards)
    monkeypatch.delitem(sys.modules, "my_rewards")


@pytest.mark.parametrize("name", ["own-reward", "two-rewards"])
def test_the_examples_pass_every_check(on_path: None, name: str) -> None:
    check(load_job(FOLDER / f"{name}.yaml"))


def test_the_entry_point_of_the_page_is_of_our_group() -> None:
    (text,) = blocks("own-reward.md", "toml")
    points: dict[str, Any] = tomllib.loads(text)["project"]["entry-points"]
    assert points == {GROUP: {"ink": "my_package.scorers:Ink"}}
    reward = msgspec.structs.replace(job_from_data(BASE).rewards[0], kind="python", python="ink")
    assert reward.python == "ink"
