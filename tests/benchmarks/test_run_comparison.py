"""Comparing what two runs came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.live.run_comparison import differences, tensors

WEIGHTS = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[0.0]])}


def _run(folder: Path, weights: dict[str, torch.Tensor] = WEIGHTS, **line: Any) -> Path:
    for name in ("checkpoints", "export"):
        (folder / name).mkdir(parents=True)
        save_file(weights, folder / name / "iteration-000002.safetensors", {"job": folder.name})
    (folder / "export" / "config.json").write_text("{}")
    lines = [
        {"kind": "iteration", "iteration": 0, "reward_mean": 0.5, "rollout_s": len(folder.name)},
        {"kind": "validation", "weights_version": 1, "score": 0.25, "time_s": len(folder.name)},
        {"kind": "iteration", "iteration": 1, "reward_mean": 0.5, **line},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


def test_runs_that_differ_in_times_and_names_alone_came_to_the_same(tmp_path: Path) -> None:
    assert differences(_run(tmp_path / "one"), _run(tmp_path / "another"), 2) == []


@pytest.mark.parametrize(
    "weights",
    [
        {**WEIGHTS, "b": torch.tensor([[-0.0]])},
        {**WEIGHTS, "b": torch.tensor([0.0])},
        {**WEIGHTS, "b": torch.tensor([[0]], dtype=torch.int32)},
        {"a": WEIGHTS["a"]},
    ],
    ids=["value", "shape", "type", "missing"],
)
def test_one_other_tensor_is_found_in_checkpoint_and_export(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    found = differences(_run(tmp_path / "one"), _run(tmp_path / "two", weights), 2)
    assert [line.partition(":")[0] for line in found] == [
        "checkpoint",
        "iteration-000002.safetensors",
    ]
    assert all("1 of 2 tensors differ: ['b']" in line for line in found)


def test_another_reward_and_another_order_of_iterations_are_found(tmp_path: Path) -> None:
    one = _run(tmp_path / "one")
    (reward,) = differences(one, _run(tmp_path / "two", reward_mean=0.6), 2)
    assert "reward_mean of iteration 1 is 0.6, not 0.5" in reward
    (order,) = differences(one, _run(tmp_path / "three", iteration=0), 2)
    assert "iterations [0, 0]" in order


def test_a_run_without_a_checkpoint_or_export_is_not_like_any(tmp_path: Path) -> None:
    one, two = _run(tmp_path / "one"), _run(tmp_path / "two")
    for file in [*two.glob("checkpoints/*"), *two.glob("export/*")]:
        file.unlink()
    assert len(differences(one, two, 2)) == 2
    assert differences(two, two, 2) == ["checkpoint: there is none"]


def test_tensors_of_a_file_are_found_whatever_its_metadata(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "file", {"a": "b"})
    assert sorted(tensors(tmp_path / "file")) == ["a", "b"]
