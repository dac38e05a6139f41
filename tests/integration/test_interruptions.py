"""Runs that are interrupted: by the user, by a crash, by the loss of a node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from spotlight.assets import resolve_checkpoint
from spotlight.record.run_metrics import MEASURED_BESIDE
from spotlight.store.memory_folder import remove_leftovers
from tests.integration.conftest import (
    SPOTLIGHT,
    Workplace,
    descendants,
    events,
    metrics,
    wait_for_phase,
    wait_until,
)
from tests.worker_templates import apart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]  # several whole runs each


def _final_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(max((run / "checkpoints").glob("*.safetensors")))


def _figures(run: Path) -> list[dict[str, object]]:
    """Everything in metrics.jsonl but times, and what a restart found there."""
    lines = [*metrics(run, "iteration"), *metrics(run, "validation")]
    kept = [
        {
            key: value
            for key, value in line.items()
            if not key.endswith("_s") and key not in {"at", "samples_restored", *MEASURED_BESIDE}
        }
        for line in lines
    ]
    return sorted(kept, key=lambda line: (str(line["kind"]), int(str(line["weights_version"]))))


def test_a_run_resumed_after_ctrl_c_ends_like_an_uninterrupted_one(workplace: Workplace) -> None:
    job = workplace.job(iterations=4)
    whole, broken = workplace.folder / "whole", workplace.folder / "broken"
    assert workplace.spotlight("run", job, "--run-folder", whole).code == 0
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", broken)
    wait_for_phase(broken, "train", 2)

    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0]

    assert process.returncode == 130
    assert "Traceback" not in output
    assert f"--resume {broken}" in output
    resumed = workplace.spotlight("run", "--resume", broken)
    assert resumed.code == 0, resumed.errors + resumed.output
    assert _figures(broken) == _figures(whole)
    expected = _final_weights(whole)
    for name, tensor in _final_weights(broken).items():
        assert torch.equal(tensor, expected[name]), name


def test_slurms_notice_ends_a_run_that_can_be_resumed(workplace: Workplace) -> None:
    run = workplace.folder / "run"
    words = ("run", workplace.job(), "--run-folder", run)
    process = workplace.start(*SPOTLIGHT, *words, env=apart())
    wait_for_phase(run, "train", 1)

    for one in (*descendants(process.pid), process):
        one.send_signal(signal.SIGUSR1)
    output = process.communicate(timeout=120)[0]

    assert process.returncode == 130
    assert "cancelled: SIGUSR1" in output
    assert f"--resume {run}" in output
    assert workplace.spotlight("run", "--resume", run).code == 0


def test_a_run_whose_reader_goes_away_runs_to_its_end(workplace: Workplace) -> None:
    run = workplace.folder / "run"
    process = workplace.start(*SPOTLIGHT, "run", workplace.job(), "--run-folder", run)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()

    assert process.wait(120) == 0

    assert [event["outcome"] for event in events(run, "run_finished")] == ["finished"]


def test_a_run_whose_streams_are_closed_runs_to_its_end(workplace: Workplace) -> None:
    run = workplace.folder / "run"
    command = 'exec "$@" <&- >&- 2>&-'
    words = ["run", workplace.job(iterations=1), "--run-folder", run]
    process = workplace.start("sh", "-c", command, "sh", *SPOTLIGHT, *words)

    assert process.wait(120) == 0

    assert [event["outcome"] for event in events(run, "run_finished")] == ["finished"]


def test_a_run_whose_processes_were_all_killed_resumes(workplace: Workplace) -> None:
    job = workplace.job(iterations=3)
    whole, broken = workplace.folder / "whole", workplace.folder / "broken"
    assert workplace.spotlight("run", job, "--run-folder", whole).code == 0
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", broken, env=apart())
    wait_for_phase(broken, "rollout", 1)
    children = descendants(process.pid)

    process.kill()

    wait_until(
        lambda: not any(_runs(child) for child in children),
        "the end of every process below the one that was killed",
    )
    remove_leftovers()
    # The coordinator, two nodes with one worker each, and what both workers were forked from.
    assert len(children) == 6
    resumed = workplace.spotlight("run", "--resume", broken)
    assert resumed.code == 0, resumed.errors + resumed.output
    expected = _final_weights(whole)
    for name, tensor in _final_weights(broken).items():
        assert torch.equal(tensor, expected[name]), name


def test_a_run_interrupted_before_its_first_checkpoint_starts_again(workplace: Workplace) -> None:
    job = workplace.job(iterations=1)
    run = workplace.folder / "run"
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", run)
    wait_until(lambda: bool(events(run, "run_started")), "the start of the run")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130

    assert workplace.spotlight("run", "--resume", run).code == 0

    assert [line["iteration"] for line in metrics(run, "iteration")] == [0]


def test_a_killed_spot_node_costs_no_sample_and_is_reported(workplace: Workplace) -> None:
    job = workplace.job(
        iterations=4, group_size=8, sampler={"steps": 8}, prompts={"per_iteration": 4}
    )
    run = workplace.folder / "run"
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", run)
    wait_for_phase(run, "rollout", 1)
    spot = next(p for p in descendants(process.pid) if "spot-0" in p.cmdline())

    spot.kill()
    output = process.communicate(timeout=120)[0]

    assert process.returncode == 0, output
    assert [line["samples"] for line in metrics(run, "iteration")] == [32] * 4
    (lost,) = events(run, "node_lost")
    assert lost["node"] == "spot-0"
    (worker,) = events(run, "worker_lost")
    assert worker["worker"] == "spot-0/0"
    assert "1 node lost" in output


def test_every_process_of_a_run_may_be_killed(workplace: Workplace) -> None:
    """One after another, each an iteration later: workers, the process that they are forked from,
    nodes and the coordinator."""
    job = workplace.job(
        iterations=8, group_size=4, sampler={"steps": 8}, prompts={"per_iteration": 4}
    )
    whole, broken = workplace.folder / "whole", workplace.folder / "broken"
    assert workplace.spotlight("run", job, "--run-folder", whole).code == 0
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", broken, env=apart())
    workers, nodes = ("reserved-0/0", "spot-0/0"), ("spot-0", "reserved-0")
    victims = (*workers, "template", *nodes, "coordinator")
    struck = set[int]()

    for iteration, name in enumerate(victims, start=1):
        wait_for_phase(broken, "rollout", iteration)
        if iteration == 1:
            kinds = {_kind(child, process.pid) for child in descendants(process.pid)}
            assert kinds == {"coordinator", "node", "template", "worker"}, "there are no others"
        worker = name if name != "template" else workers[0]
        wait_until(lambda worker=worker: _is_there(process.pid, worker), f"{worker} to be there")
        victim = _process(process.pid, worker)
        victim = victim.parent() or victim if name == "template" else victim
        struck.add(victim.pid)
        victim.kill()
    output = process.communicate(timeout=240)[0]

    assert process.returncode == 0, output
    assert len(struck) == len(victims)
    assert [line["iteration"] for line in metrics(broken, "iteration")] == list(range(8))
    assert _figures(broken) == _figures(whole)
    expected = _final_weights(whole)
    for name, tensor in _final_weights(broken).items():
        assert torch.equal(tensor, expected[name]), name
    lost = [event["reason"] for event in events(broken, "trainers_lost")]
    assert len(lost) == 3, "the trainer's worker, what it was forked from, and its node"
    assert all("reserved-0/0 is lost" in reason for reason in lost)


def test_a_coordinator_that_is_merely_slow_is_waited_for(workplace: Workplace) -> None:
    job, run = workplace.job(iterations=3), workplace.folder / "run"
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", run)
    wait_for_phase(run, "rollout", 1)
    coordinator = _process(process.pid, "coordinator")
    coordinator.suspend()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(15.0)
    finally:
        coordinator.resume()
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert "the coordinator has not answered for" in output
    assert events(run, "trainers_lost") == []


def test_ctrl_c_with_a_coordinator_that_stands_still_ends_the_run_with_a_report(
    workplace: Workplace,
) -> None:
    job, run = workplace.job(iterations=30), workplace.folder / "run"
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", run)
    wait_for_phase(run, "train", 0)
    _process(process.pid, "coordinator").suspend()
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "the coordinator did not answer" in output
    assert f"--resume {run}" in output
    assert (run / "report.html").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_process_group_ends_a_run_cleanly(
    workplace: Workplace, number: signal.Signals
) -> None:
    job, run = workplace.job(iterations=30), workplace.folder / "run"
    process = workplace.start(*SPOTLIGHT, "run", job, "--run-folder", run, start_new_session=True)
    wait_for_phase(run, "train", 0)
    os.killpg(process.pid, number)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "cancelled by the user" in output
    assert (run / "report.html").exists()


def test_a_checkpoint_that_cannot_be_loaded_ends_the_job_with_that_reason(
    workplace: Workplace,
) -> None:
    checkpoint = workplace.folder / "checkpoint"
    shutil.copytree(resolve_checkpoint("builtin:ocr-tiny"), checkpoint)
    weights = checkpoint / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    del tensors["proj_out.weight"]
    save_file(tensors, weights, {"format": "pt"})
    job, run = workplace.job(model={"checkpoint": str(checkpoint)}), workplace.folder / "run"
    done = workplace.spotlight("run", job, "--run-folder", run)
    assert done.code == 1
    assert "lack proj_out.weight; copy the whole checkpoint again" in done.output
    joined = [event["worker"] for event in events(run, "worker_joined")]
    assert len(joined) == len(set(joined)), "no worker crashed and was started again"


def _process(run: int, name: str) -> psutil.Process:
    """A daemon of `spotlight run`, or a worker, by its name."""
    words = "import coordinator" if name == "coordinator" else name
    is_daemon = name == "coordinator"
    (found,) = [
        process
        for process in descendants(run)
        if (is_daemon and any(words in word for word in process.cmdline()))
        or (not is_daemon and name in process.cmdline())
    ]
    return found


def _is_there(run: int, name: str) -> bool:
    try:
        _process(run, name)
    except (ValueError, psutil.NoSuchProcess):
        return False
    return True


def _kind(process: psutil.Process, run: int) -> str:
    """Daemons, and the one template that all workers are forked from, are the run's own
    children."""
    words = " ".join(process.cmdline())
    kinds = {
        "import coordinator": "coordinator",
        "import node": "node",
        "fork_template": "template",
    }
    (parent,) = (each.pid for each in process.parents()[:1])
    if parent != run:
        return "worker"
    return next((kind for word, kind in kinds.items() if word in words), words)


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
