"""A run that survives its machine: copied to an S3 server, and gone on with from there."""

from __future__ import annotations

import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from spotlight.store.memory_folder import remove_leftovers
from spotlight_simulation.ports import unused_port
from tests.integration.conftest import (
    SPOTLIGHT,
    Workplace,
    descendants,
    events,
    wait_for_phase,
    wait_until,
)
from tests.worker_templates import apart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]  # three whole runs


@pytest.fixture
def bucket(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket of an S3 server on this machine."""
    port = unused_port()
    server = workplace.start(
        sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)
    )
    address = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(f"{address}/runs-of-tests", method="PUT")

    def made() -> bool:
        assert server.poll() is None, "the S3 server has ended"
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(answer.status == 200)
        except urllib.error.URLError:
            return False

    wait_until(made, "the S3 server")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield "s3://runs-of-tests/some/folder"
    server.kill()  # it takes its time to end by itself


def final_checkpoint(run: Path) -> dict[str, torch.Tensor]:
    return load_file(max((run / "checkpoints").glob("*.safetensors")))


def test_a_run_whose_machine_is_lost_ends_like_an_undisturbed_one(
    workplace: Workplace, bucket: str
) -> None:
    job = workplace.job(iterations=3)
    whole, broken = workplace.folder / "whole", workplace.folder / "broken"
    assert workplace.spotlight("run", job, "--run-folder", whole).code == 0
    words = ("run", job, "--run-folder", broken, "--mirror", bucket)
    process = workplace.start(*SPOTLIGHT, *words, env=apart())
    wait_until(
        lambda: any(event["iteration"] >= 1 for event in events(broken, "run_mirrored")),
        "a copy of a checkpoint",
    )
    wait_for_phase(broken, "rollout", 1)

    everything = [psutil.Process(process.pid), *descendants(process.pid)]
    for each in everything:
        each.send_signal(signal.SIGKILL)
    psutil.wait_procs(everything, timeout=60)
    process.communicate(timeout=60)
    remove_leftovers()
    shutil.rmtree(broken)

    found = workplace.folder / "elsewhere" / "broken"
    restored = workplace.spotlight("restore", f"{bucket}/broken", found)
    assert restored.code == 0, restored.errors
    assert f"spotlight run --resume {found}" in restored.output
    resumed = workplace.spotlight("run", "--resume", found, "--mirror", bucket)
    assert resumed.code == 0, resumed.errors + resumed.output
    assert events(found, "run_started")[-1]["resumed_from_iteration"] is not None
    expected, final = final_checkpoint(whole), final_checkpoint(found)
    assert final.keys() == expected.keys()
    for name, tensor in final.items():
        assert torch.equal(tensor, expected[name]), name
    assert not events(found, "mirror_failed")

    # At its end the whole run was copied, with what it has exported.
    again = workplace.folder / "again"
    assert workplace.spotlight("restore", f"{bucket}/broken", again).code == 0
    assert events(again, "run_finished")[-1]["outcome"] == "finished"
    for path in (found / "export").iterdir():
        assert (again / "export" / path.name).read_bytes() == path.read_bytes()
