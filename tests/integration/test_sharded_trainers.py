"""Jobs whose trainer ranks share out the model, on real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml
from safetensors.torch import load_file

from spotlight.store.run_folder import checkpoint_path
from tests.integration.conftest import (
    SPOTLIGHT,
    Workplace,
    descendants,
    events,
    open_workplace,
    wait_until,
)
from tests.training.fakes import same_bits

pytestmark = pytest.mark.slow
POOLS = {"reserved": {"nodes": 2, "workers": 1}, "spot": {"nodes": 0, "workers": 1}}
TRAINING = {"ranks": 2, "sharded": True, "rollout_decay": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    with open_workplace(tmp_path_factory.mktemp("place")) as place:
        yield place


@pytest.fixture(scope="module")
def job(place: Workplace) -> Path:
    validation = {"every": 4}
    return place.job(
        training=TRAINING, pools=POOLS, iterations=4, checkpoint_every=2, validation=validation
    )


@pytest.fixture(scope="module")
def offloaded(place: Workplace, job: Path) -> Path:
    """The same, with what training keeps in host memory."""
    data = yaml.safe_load(job.read_text())
    data["training"]["cpu_offload"] = True
    path = place.folder / "offloaded.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="module")
def calm(place: Workplace, job: Path) -> Path:
    """A run that nothing happens to."""
    done = place.spotlight("run", job, "--run-folder", "calm")
    assert done.code == 0, done.errors + done.output
    return place.folder / "calm"


def test_a_run_that_offloads_has_the_same_bits(
    place: Workplace, offloaded: Path, calm: Path
) -> None:
    run = place.folder / "offloaded"
    done = place.spotlight("run", offloaded, "--run-folder", run)
    assert done.code == 0, done.errors + done.output
    last = checkpoint_path(4)
    assert same_bits(load_file(run / last), load_file(calm / last))


@pytest.mark.parametrize("victim", ["a rank", "a node"])
def test_a_lost_part_is_had_from_another_machine(
    place: Workplace, job: Path, calm: Path, victim: str
) -> None:
    run = place.folder / victim.replace(" ", "-")
    process = place.start(*SPOTLIGHT, "run", job, "--run-folder", run)
    wait_until(lambda: len(events(run, "weights_published")) >= 4, "three iterations")
    kill("reserved-1/0" if victim == "a rank" else "reserved-1")
    assert process.wait(200) == 0
    assert [event["source"] for event in events(run, "trainers_built")][-1] == "state"
    last = checkpoint_path(4)
    assert same_bits(load_file(run / last), load_file(calm / last))


def kill(name: str) -> None:
    """All processes of a node or a worker, and what they have started."""
    found: list[psutil.Process] = []
    for process in descendants(os.getpid()):
        with suppress(psutil.Error):  # it may be over
            if name in process.cmdline():
                found += [process, *process.children(recursive=True)]
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def test_a_run_is_resumed_by_another_number_of_ranks(place: Workplace, job: Path) -> None:
    run = place.folder / "resumed"
    process = place.start(*SPOTLIGHT, "run", job, "--run-folder", run)
    wait_until(lambda: bool(events(run, "checkpoint_saved")), "a checkpoint")
    process.terminate()
    process.wait(60)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["training"] |= {"ranks": 1, "sharded": False, "cpu_offload": True}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    done = place.spotlight("run", "--resume", run)
    assert done.code == 0, done.errors + done.output
    assert [len(event["workers"]) for event in events(run, "trainers_built")] == [2, 1]
    assert events(run, "trainers_built")[-1]["source"] == "checkpoint"
    assert load_file(run / checkpoint_path(4))["updates"] == 8
