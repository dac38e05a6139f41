"""A whole small job that trains a model to change images, on a tiny checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from spotlight.store.record_files import whole_event_lines
from spotlight_simulation.pixels import IMAGES, gradient_image, png_of

SIZE = (64, 128)
_PATIENCE_S = 500.0


def run_edit_job(checkpoint: Path, tuning: str, folder: Path) -> None:
    """Run it in a new folder; raises `AssertionError` saying what is not as it should be: it
    finishes, and its scorer got the images.
    """
    run, job = folder / "run", _job(checkpoint, tuning, folder)
    command = [sys.executable, "-m", "spotlight.cli", "run", str(job), "--run-folder", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    ended = [it for it in map(json.loads, whole_event_lines(run)) if it["event"] == "run_finished"]
    assert [it["outcome"] for it in ended] == ["finished"], ended


def _job(checkpoint: Path, tuning: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, count in (("train", 4), ("validation", 1)):
        lines = []
        for number in range(count):
            image = f"{name}-{number}.png"
            edge = IMAGES[0].width
            (folder / image).write_bytes(png_of(gradient_image(edge, edge, len(name) + number)))
            lines.append(json.dumps({"prompt": "make it brighter", "image": image}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    height, width = SIZE
    job = {
        "name": "edit",
        "model": {"checkpoint": str(checkpoint), "tuning": tuning, "lora": {"rank": 4}},
        "prompts": {
            "train": str(folder / "train.jsonl"),
            "validation": str(folder / "validation.jsonl"),
            "per_iteration": 2,
        },
        "sampler": {
            "height": height,
            "width": width,
            "kind": "flow_sde",
            "steps": 4,
            "evaluation_steps": 2,
            "window": {"length": 2, "earliest": 1, "latest": 3},
            "guidance": 2.0,
            "micro_batch": 2,
            "degree": 1,
        },
        "rewards": [
            {"kind": "python", "name": "close", "python": "benchmarks.closeness:Closeness"}
        ],
        "iterations": 2,
        "group_size": 2,
        "checkpoint_every": 1,
        "training": {"loss": "flow_grpo", "micro_batch": 2, "learning_rate": 0.003},
        "exploration": {"budget": "fixed", "candidates": 2, "preview_steps": 2},
        "validation": {"seeds": 1, "every": 1},
        "pools": {
            "reserved": {"nodes": 1, "workers": 1},
            "spot": {"nodes": 1, "workers": 1},
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path
