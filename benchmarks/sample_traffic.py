"""How many bytes the coordinator receives for an image, and whether the run is the same:
`python -m benchmarks.sample_traffic --json [--quick]`.

A coordinator, a reserved node that trains and two spot nodes, as real processes, run a small job
twice. Each node is in a network namespace of its own, and has a hostname of its own, so no file is
shared. Samples and commits are kept by the reserved node (`kept`). In the other run that node has
the coordinator's hostname: nothing is kept for a coordinator on its own machine, so the spot nodes
leave everything in the coordinator's store (`left`). Bytes are those that the spot nodes send to
the coordinator, with all headers, control messages and pictures; images are all that were denoised,
some of them by the reserved node.

`bit_equal` is 1 if both runs end with the same checkpoint and figures. Needs `iptables`, `unshare`,
`ip` and root, or user namespaces.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.live.cluster import LiveCluster, one_reserved
from benchmarks.live.network import Attachment, Namespaces, namespace_command
from benchmarks.live.run import LiveRun, until_all_there
from benchmarks.live.run_comparison import differences
from benchmarks.live.tiny_jobs import job_data
from benchmarks.report import Report
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.jobs import JobSpec, job_from_data
from spotlight.record.run_metrics import IterationMetrics, decode_metrics
from spotlight.running.client import connect

_INSIDE = "SPOTLIGHT_SAMPLE_TRAFFIC_INSIDE"
_LIMIT_S = 240.0
_RENAME = 'hostname "$1" && shift && read go && exec "$@"'


class Machines(Namespaces):
    """Nodes in network namespaces, each with a hostname of its own.

    Args:
        beside: the node that has the coordinator's hostname; none if it is empty.
    """

    beside = ""

    def __init__(self) -> None:
        super().__init__()
        self._starting = ""
        """The node that is being started."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """See `LiveNetwork`."""
        node = self._starting = argv[argv.index("--name") + 1]
        if node == self.beside:
            return super().command(argv)
        return ["unshare", "--net", "--uts", "sh", "-c", _RENAME, "sh", node, *argv]

    async def attach(self, host: str, pid: int) -> Attachment:
        """See `LiveNetwork`. What comes from spot nodes is counted."""
        if self._starting.startswith("spot"):
            _iptables("-A", "INPUT", "-s", host)
        return await super().attach(host, pid)

    def received(self) -> int:
        """Bytes that have come to the coordinator from spot nodes."""
        rules = _iptables("-nvxL", "INPUT").splitlines()[2:]
        return sum(int(rule.split()[1]) for rule in rules)


def _iptables(*words: str) -> str:
    done = subprocess.run(["iptables", *words], capture_output=True, check=True, text=True)
    return done.stdout


def what_is_missing() -> str:
    """Why this cannot be measured here; empty if it can."""
    if shutil.which("iptables") is None:
        return "there is no `iptables`"
    return namespace_command()[1]


async def _run_job(job: JobSpec, folder: Path, network: Machines) -> tuple[int, int, list[str]]:
    """Bytes received, images denoised, and problems."""
    cluster = LiveCluster(folder, network, one_reserved(1, [1, 1]))
    async with cluster, connect(cluster.join) as client:
        await until_all_there(client, 3, _LIMIT_S)
        began = network.received()
        await client.submit(job, str(folder / "run"), resume=False)
        ran = LiveRun(folder / "run")
        await ran.follow(client, _LIMIT_S)
        received = network.received() - began
    return received, _images(folder / "run", job), [*ran.problems, *cluster.problems]


def _images(folder: Path, job: JobSpec) -> int:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    found = [decode_metrics(line) for line in lines]
    iterations = [each for each in found if isinstance(each, IterationMetrics)]
    validations = len(found) - len(iterations)
    of_iterations = sum(each.samples + each.previews for each in iterations)
    return of_iterations + validations * 4 * job.validation.seeds


async def _compare(base: Path, iterations: int) -> dict[str, Any]:
    network = Machines()
    job = job_from_data(job_data(base, "traffic", iterations=iterations))
    figures: dict[str, Any] = {}
    problems: list[str] = []
    for way, beside in (("left", "reserved"), ("kept", "")):
        network.beside = beside
        received, images, wrong = await _run_job(job, base / way, network)
        figures[f"{way}_bytes_per_image"] = round(received / images)
        figures[f"{way}_images"] = images
        problems += wrong
    problems += differences(base / "left" / "run", base / "kept" / "run", iterations)
    ratio = figures["kept_bytes_per_image"] / figures["left_bytes_per_image"]
    return {**figures, "kept_vs_left": round(ratio, 3), "bit_equal": int(not problems)} | (
        {"problems": problems} if problems else {}
    )


def main() -> None:
    """Print the figures."""
    report = Report("sample_traffic", __doc__, minutes=2)
    if _INSIDE not in os.environ:
        if problem := what_is_missing():
            sys.exit(problem)
        prefix, _ = namespace_command()
        os.environ[_INSIDE] = "yes"
        command = [*prefix, sys.executable, "-m", "benchmarks.sample_traffic", *sys.argv[1:]]
        os.execvp(command[0], command)
    report.begin()
    log_as_json_lines(logging.CRITICAL)
    base = Path(tempfile.mkdtemp(prefix="sample-traffic-")).resolve()
    try:
        report.add(run(_compare(base, report.times(8, quick=3))))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    report.finish()


if __name__ == "__main__":
    main()
