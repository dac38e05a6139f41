"""A node that reaches others and that nobody reaches, as behind the address translation of a
router: it takes part, and others get weights elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotlight_simulation.ports import unused_port
from tests.integration.conftest import Workplace, events, metrics, wait_for_phase, wait_until
from tests.worker_templates import apart

pytestmark = pytest.mark.slow

WAYS = (["unshare", "--uts"], ["unshare", "--user", "--map-root-user", "--uts"])
"""To run a command under another host name, which stands for another machine: there bundles go
through ports, and are not read from the disk."""


def elsewhere(host: str) -> list[str]:
    """What a command is put behind to run on the machine of this name."""
    for way in WAYS:
        done = subprocess.run([*way, "hostname", host], capture_output=True, check=False)
        if done.returncode == 0:
            return [*way, "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
    pytest.skip("needs namespaces of host names")


def test_a_node_whose_data_port_nobody_reaches_works_and_others_pull_elsewhere(
    workplace: Workplace,
) -> None:
    address_file, runs = workplace.folder / "address", workplace.folder / "runs"
    workplace.daemon(
        "coordinator", "--listen", "127.0.0.1:0", "--address-file", address_file, "--runs", runs
    )
    wait_until(address_file.exists, "the coordinator")
    script = Path(__file__).parents[2] / "bin" / "spotlight-node"

    def node(name: str, pool: str, *options: str) -> None:
        argv = (sys.executable, script, "--name", name, "--pool", pool)
        logs = ("--logs", workplace.folder / "logs")
        workplace.start(*elsewhere(name), *argv, *logs, *options, env=apart())

    node("trainer", "reserved")
    # It says 127.0.0.1, and serves bundles on another address of loopback alone.
    port = unused_port()
    hidden = ("--host", "0.0.0.0", "--advertise", "127.0.0.1")
    node("hidden", "spot", *hidden, "--data-listen", f"127.0.0.2:{port}")
    run = runs / "run"
    job = workplace.job(iterations=1000, validation={"every": 1000})
    submitted = workplace.spotlight("submit", job, "--run-folder", run)
    assert submitted.code == 0, submitted.errors
    wait_for_phase(run, "rollout", 2)
    late = ("late-1", "late-2")
    for name in late:
        node(name, "spot")
    wait_until(lambda: bool(missing(run) & set(late)), "a node that could not pull")
    wait_until(lambda: {f"{name}/0" for name in late} <= rolling_out(run), "their work")
    seen = len(metrics(run, "iteration"))
    wait_until(lambda: len(metrics(run, "iteration")) >= seen + 2, "further iterations")
    assert workplace.spotlight("cancel").code == 0
    wait_until(lambda: bool(events(run, "run_finished")), "the end of the job")

    assert {line["samples"] for line in metrics(run, "iteration")} == {8}
    assert not events(run, "denoise_failed")
    sources = {event["source"] for event in events(run, "weights_not_fetched")}
    assert sources == {f"127.0.0.1:{port}"}
    assert "hidden/0" in rolling_out(run)


def missing(run: Path) -> set[str]:
    """Nodes that could not get weights from where they were sent first."""
    return {event["node"] for event in events(run, "weights_not_fetched")}


def rolling_out(run: Path) -> set[str]:
    """Workers that have rolled out."""
    states = events(run, "worker_state")
    return {event["worker"] for event in states if event["state"] == "rollout"}
