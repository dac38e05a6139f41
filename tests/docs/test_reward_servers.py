"""Every code block of the sections about scorers that are asked over HTTP does what it says."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import yaml

from spotlight.jobs import RewardSpec
from spotlight.permissions import Permissions
from spotlight.rewards.base import build_scorer
from spotlight.rewards.schema import Refusal, decode_image, read_request, read_rewards
from spotlight.types import Prompt

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("`ocr`", "`http`", "`spotlight serve-reward`", "`judge`", "GenEval")


class Block(NamedTuple):
    section: str
    language: str
    text: str


def blocks() -> list[Block]:
    page = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
    found = []
    for part in re.split(r"^## ", page, flags=re.MULTILINE):
        section = next((name for name in SECTIONS if part.startswith(name)), None)
        if section is not None:
            for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", part, re.M | re.S):
                found.append(Block(section, language, text))
    return found


BLOCKS = blocks()
YAML = [block for block in BLOCKS if block.language == "yaml"]
JSON = [block for block in BLOCKS if block.language == "json"]
BASH = [block for block in BLOCKS if block.language == "bash"]
[PYTHON] = [block for block in BLOCKS if block.language == "python"]


def test_every_block_is_run_here() -> None:
    assert len(YAML) + len(JSON) + len(BASH) + 1 == len(BLOCKS)
    assert (len(YAML), len(JSON), len(BASH)) == (3, 3, 2)


@pytest.mark.parametrize("block", YAML)
def test_a_reward_of_the_page_can_be_built(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "authorization"
    file.write_text("Bearer sesame")
    [reward] = yaml.safe_load(block.text)["rewards"]
    spec = msgspec.convert(reward, RewardSpec)
    endpoint = spec.http or spec.judge
    assert endpoint is not None
    secret = f"{endpoint.secret}={file}@{endpoint.place[0]}"
    assert hasattr(build_scorer(spec, Permissions.parse((), [secret])), "score")


def test_the_messages_of_the_page_are_those_of_the_schema() -> None:
    request, answer, refusal = (block.text.encode() for block in JSON)
    [image] = read_request(request).images
    assert decode_image(image.image, image.format).shape == (1, 1, 3)
    assert read_rewards(answer, [image.id]) == ({}, {image.id: "the model is out of memory"})
    assert msgspec.json.decode(refusal, type=Refusal).version == 1


def test_the_class_of_the_page_is_served_by_the_command_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "brightness.py").write_text(PYTHON.text)
    [command] = [block.text for block in BASH if "brightness" in block.text]
    program, *arguments = shlex.split(command.replace("--port 8200", "--port 0"))
    assert program == "spotlight"
    process = subprocess.Popen(
        [sys.executable, "-m", "spotlight.cli", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        spec = {"kind": "http", "range": [0, 10], "http": {"url": url}}
        scorer = build_scorer(msgspec.convert(spec, RewardSpec))
        images = np.full((2, 4, 4, 3), 51, np.uint8)
        assert scorer.score(images, [Prompt("a")] * 2) == [2.0, 2.0]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_the_server_of_the_examples_takes_the_options_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [command] = [block.text for block in BASH if "geneval:" in block.text]
    change, serve = command.strip().splitlines()
    folder = ROOT / shlex.split(change)[1]
    monkeypatch.syspath_prepend(str(folder))
    words = shlex.split(serve)
    name, _, class_name = words[2].partition(":")
    options = json.loads(words[words.index("--options") + 1])
    inspect.signature(getattr(importlib.import_module(name), class_name)).bind(**options)
