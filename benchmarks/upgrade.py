"""A cluster is updated while a job runs: `python -m benchmarks.upgrade --json`.

A coordinator, a reserved node and a spot node of an earlier commit begin a job. Then they are
updated to this checkout as docs/running.md says: the spot node is drained, the coordinator stopped
and started anew on the same folder of runs, and then the nodes, one after the other. The job must
go on to its end by itself. One that is submitted meanwhile waits in the queue and is run after it,
by this checkout alone; both must have the same bits. It ends with code 1 where that is not so.

- `finished`: how many of the two jobs did.
- `iterations_before`: how many iterations the earlier commit had trained, of `iterations`.
- `done_again`: how many of these were trained once more.
- `bit_equal`: whether checkpoints, exports and figures of both runs are the same.
- `skipped`: why nothing was run: a shallow clone lacks the earlier commit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmarks.live.run_comparison import differences
from benchmarks.live.tiny_jobs import job_data
from benchmarks.report import Report
from spotlight.store.memory_folder import remove_leftovers
from spotlight.store.record_files import whole_event_lines
from spotlight.store.secret_files import write_secret_file
from spotlight_simulation.ports import unused_port

ROOT = Path(__file__).parents[1]
EARLIER = "53ccc6770680823ed8e4926fbebe9cedba57437c"
"""The commit before there was a queue."""
_LIMIT_S = 180.0
_POLL_S = 0.2


class Found(msgspec.Struct):
    """What came of the jobs."""

    finished: int = 0
    iterations_before: int = 0
    iterations: int = 0
    done_again: int = 0
    bit_equal: bool = False
    skipped: str = ""
    problems: list[str] = []


class Site:
    """A folder with a cluster of one build after the other."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.code = ROOT
        """The package of this folder is what is started."""
        self._ending = ending
        self._listen = f"127.0.0.1:{unused_port()}"
        self._starts = 0

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        """It listens when this returns."""
        arguments = ("--listen", self._listen, "--runs", str(self.runs))
        process = self._daemon("coordinator", *arguments)
        self.wait(lambda: self.command("nodes").returncode == 0, "the coordinator")
        return process

    def start_node(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Of one worker."""
        logs = ("--logs", str(self.folder / "logs"), "--store", str(self.folder))
        return self._daemon("node", "--name", name, *logs, *arguments)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """As an operator does."""
        process.send_signal(signal.SIGTERM)
        if process.wait(_LIMIT_S):
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Of the operator, in the folder of the coordinator."""
        argv = [sys.executable, "-m", "spotlight.cli", *arguments]
        return subprocess.run(
            argv, env=self._env(), cwd=self.folder, capture_output=True, text=True, check=False
        )

    def done(self, *arguments: str) -> str:
        """What a command prints that goes well."""
        finished = self.command(*arguments)
        if finished.returncode:
            raise RuntimeError(f"{arguments}: {finished.stderr}")
        return finished.stdout.strip()

    def joined(self) -> set[str]:
        """The names of the nodes that are there."""
        nodes = json.loads(self.done("nodes", "--json"))
        return {node["name"] for node in nodes if node["is_connected"]}

    def wait(self, is_so: Callable[[], object], what: str) -> None:
        """Until it is so."""
        deadline = time.monotonic() + _LIMIT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise RuntimeError(f"there was no {what} within {_LIMIT_S:g} s; see {self.folder}")
            time.sleep(_POLL_S)

    def _daemon(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._starts += 1
        argv = [sys.executable, str(self.code / "bin" / f"spotlight-{kind}"), *arguments]
        with (self.folder / f"{self._starts}-{kind}.log").open("wb") as log:
            process = subprocess.Popen(
                argv, env=self._env(), cwd=self.folder, stdout=log, stderr=log
            )
        self._ending.callback(_end, process)
        return process

    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.code)}


def main() -> None:
    """Update a cluster and print what came of its jobs."""
    report = Report("upgrade", __doc__, minutes=1)
    given = report.begin()
    base = Path(tempfile.mkdtemp(prefix="upgrade-")).resolve()
    earlier = base / "earlier"
    skipped = _unpack(earlier)
    found = Found(skipped=skipped) if skipped else _update(base, earlier, quick=given.quick)
    if not found.problems:
        shutil.rmtree(base)
    remove_leftovers()
    report.add(msgspec.to_builtins(found))
    report.finish()
    sys.exit(bool(found.problems))


def _unpack(folder: Path) -> str:
    """Put the package of the earlier commit there; returns why not, if that cannot be."""
    folder.mkdir()
    command = ["git", "archive", EARLIER, "spotlight", "bin"]
    try:
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    except OSError as error:
        return f"git cannot be run ({error.strerror})"
    if archive.returncode:
        return f"this clone lacks the commit {EARLIER[:12]}: {archive.stderr.decode().strip()}"
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return ""


def _update(base: Path, earlier: Path, *, quick: bool) -> Found:
    with ExitStack() as ending:
        site = Site(base, ending)
        iterations = 5 if quick else 12
        job = base / "job.yaml"
        job.write_text(yaml.safe_dump(job_data(base, "updated", iterations=iterations)))
        updated, after = site.runs / "updated-001", site.runs / "updated-002"
        site.code = earlier
        coordinator = site.start_coordinator()
        reserved, spot = _ways_in(site)
        nodes = [site.start_node("reserved", *reserved), site.start_node("spot-1", *spot)]
        site.wait(lambda: site.joined() == {"reserved", "spot-1"}, "node")
        site.done("submit", str(job))
        site.wait(lambda: _trained(updated) >= iterations // 3, "iteration")
        site.done("preempt", "spot-1", "--notice", "60")
        site.wait(lambda: _events(updated, "node_lost"), "end of the drain")
        site.stop(coordinator)
        before = _trained(updated)
        site.code = ROOT
        site.start_coordinator()
        for node in nodes:
            site.stop(node)
        site.start_node("reserved", *reserved)
        site.start_node("spot-2", *spot)
        site.done("submit", str(job))
        site.wait(lambda: _events(after, "run_finished"), "end of the second job")
        return _compared(updated, after, before, iterations)


def _ways_in(site: Site) -> list[tuple[str, ...]]:
    """The options by which the reserved node comes in again and again, and spot nodes do."""
    ways = []
    for pool, options in (
        ("reserved", ("--key-file", str(site.folder / "reserved.key"))),
        ("spot", ()),
    ):
        token = site.folder / f"{pool}.token"
        write_secret_file(token, site.done("token", "new", "--pool", pool, "--uses", "9"))
        ways.append(("--join", f"@{token}", *options))
    return ways


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, whole_event_lines(run)) if event["event"] == kind]


def _trained(run: Path) -> int:
    """How many iterations are on record."""
    return sum(line["kind"] == "iteration" for line in _lines(run / "metrics.jsonl"))


def _told(run: Path) -> set[str]:
    """The figures of the first iteration."""
    lines = _lines(run / "metrics.jsonl")
    return set(next(line for line in lines if line["kind"] == "iteration"))


def _compared(updated: Path, after: Path, before: int, iterations: int) -> Found:
    found = Found(iterations_before=before, iterations=iterations)
    for run in (updated, after):
        ends = [event["outcome"] for event in _events(run, "run_finished")]
        is_done = ends[-1:] == ["finished"]  # a coordinator that is stopped says `cancelled`
        found.finished += is_done
        found.problems += [] if is_done else [f"{run.name} ended as {ends}"]
    resumed = [event["resumed_from_iteration"] for event in _events(updated, "run_started")]
    found.done_again = before - (resumed[-1] or 0)
    if not found.problems:
        untold = _told(after) - _told(updated)  # by the build that began the run
        found.problems += differences(after, updated, iterations, beside=untold)
        found.bit_equal = not found.problems
    return found


if __name__ == "__main__":
    main()
