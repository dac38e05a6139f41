"""Every worker of a node sees one accelerator only."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.actors.node.accelerators import environment_of, problem_of


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_each_worker_sees_its_own(devices: Path) -> None:
    seen = [environment_of(worker, {}, devices)["CUDA_VISIBLE_DEVICES"] for worker in range(3)]
    assert seen == ["0", "1", "2"]


def test_more_workers_than_accelerators_share(devices: Path) -> None:
    assert environment_of(3, {}, devices)["CUDA_VISIBLE_DEVICES"] == "0"


def test_only_those_that_the_node_may_use_are_given_out(devices: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-b,5"}
    seen = [
        environment_of(worker, environment, devices)["CUDA_VISIBLE_DEVICES"] for worker in range(2)
    ]
    assert seen == ["GPU-b", "5"]


def test_a_collective_that_fails_is_not_the_end_of_the_process(devices: Path) -> None:
    assert environment_of(0, {}, devices)["TORCH_NCCL_BLOCKING_WAIT"] == "1"


def test_a_node_that_may_use_none_gives_none(devices: Path) -> None:
    assert environment_of(0, {"CUDA_VISIBLE_DEVICES": ""}, devices) == {}


def test_a_machine_without_accelerators_changes_nothing(tmp_path: Path) -> None:
    assert environment_of(0, {}, tmp_path) == {}


@pytest.mark.parametrize(
    ("device", "environment", "refused"),
    [
        ("cuda", {}, False),
        ("cpu", {}, True),
        ("cpu", {"CUDA_VISIBLE_DEVICES": ""}, False),
        ("simulated", {}, False),
    ],
)
def test_a_worker_that_does_not_compute_on_its_accelerator_is_of_no_use(
    devices: Path, device: str, environment: dict[str, str], refused: bool
) -> None:
    problem = problem_of(device, environment_of(1, environment, devices))
    assert bool(problem) == refused
    assert ("given GPU 1" in problem) == refused
