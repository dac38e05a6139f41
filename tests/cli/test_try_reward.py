"""`spotlight try-reward` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from spotlight.jobs import job_from_data, job_to_yaml

ROOT = Path(__file__).parents[2]
MODULE = """
import os
import signal
import sys
import time

def brightness(images, prompts):
    assert "torch" not in sys.modules
    return images.mean(axis=(1, 2, 3)) / 255

def spread(images, prompts):
    assert len({prompt.text for prompt in prompts}) == 1
    return [images.std() / 255] * len(images)

def fails(images, prompts):
    raise ValueError("no such colour")

def changed(images, prompts):
    return [len(prompt.image) / 1000 for prompt in prompts]

def waits(images, prompts):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a module of rewards, and four images."""
    (tmp_path / "bright_rewards.py").write_text(MODULE)
    (tmp_path / "images").mkdir()
    for grey in (0, 51, 102, 255):
        Image.new("RGB", (8, 8), (grey,) * 3).save(tmp_path / "images" / f"{grey:03d}.png")
    (tmp_path / "prompts.txt").write_text("dark\nlight\n")
    return tmp_path


def try_reward(
    folder: Path, *words: str, checkpoint: str = "builtin:ocr-tiny", **reward: object
) -> subprocess.CompletedProcess[str]:
    data = {
        "name": "first",
        "model": {"checkpoint": checkpoint},
        "prompts": {
            "train": "builtin:ocr-tiny/train",
            "validation": "builtin:ocr-tiny/validation",
        },
        "sampler": {"height": 32, "width": 64},
        "rewards": [{"kind": "python", **reward}],
    }
    (folder / "job.yaml").write_text(job_to_yaml(job_from_data(data)))
    command = ("-m", "spotlight.cli", "try-reward", "job.yaml", "--images", "images")
    return subprocess.run(
        [sys.executable, *command, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # A command that a shell began in the background ignores it, and so would this one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_every_image_is_shown_with_its_prompt_and_its_reward(folder: Path) -> None:
    done = try_reward(folder, "--prompts", "prompts.txt", python="bright_rewards:brightness")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["051.png", "dark", "0.2000"] in rows
    assert ["255.png", "light", "1.0000"] in rows
    assert "host memory" in done.stdout


def test_groups_are_compared_and_json_holds_every_reward(folder: Path) -> None:
    words = ("--prompts", "prompts.txt", "--json")
    done = try_reward(folder, *words, python="bright_rewards:spread", groupwise=True)
    [tried] = json.loads(done.stdout)
    assert tried["rewards"] == pytest.approx([0.1, 0.1, 0.3, 0.3])


def test_a_scorer_that_raises_is_shown_with_its_line_and_the_command_fails(folder: Path) -> None:
    done = try_reward(folder, python="bright_rewards:fails")
    assert done.returncode == 1
    assert "rewards[0] (`python`): ValueError: no such colour" in done.stdout
    assert 'raise ValueError("no such colour")' in done.stdout


def test_a_function_that_is_not_there_is_refused_with_the_field(folder: Path) -> None:
    done = try_reward(folder, python="bright_rewards:brightnes")
    assert done.returncode == 2
    assert done.stderr == (
        "spotlight: rewards[0].python: bright_rewards has no class or function brightnes; did you"
        " mean `brightness`?\n"
    )


def test_ctrl_c_ends_it_without_a_traceback(folder: Path) -> None:
    done = try_reward(folder, python="bright_rewards:waits")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_scorer_gets_the_image_that_the_job_changes(folder: Path) -> None:
    (folder / "edits").mkdir()
    index = {
        "_class_name": "QwenImageEditPlusPipeline",
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
    }
    (folder / "edits" / "model_index.json").write_text(json.dumps(index))
    (folder / "edits.jsonl").write_text('{"prompt": "warmer", "image": "images/051.png"}\n')
    words = ("--prompts", "edits.jsonl", "--json")
    done = try_reward(folder, *words, checkpoint="edits", python="bright_rewards:changed")
    [tried] = json.loads(done.stdout)
    assert tried["rewards"] == [(folder / "images" / "051.png").stat().st_size / 1000] * 4
