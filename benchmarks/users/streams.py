"""Standard streams that are closed or gone, signals of schedulers, and images of other depths."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import psutil

from benchmarks.users.case import ROOT, Check, Ended, case, require
from benchmarks.users.waiting import LIMIT_S, until
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.store.record_files import whole_event_lines
from spotlight.transport.control.keys import KeyPair

_COMMAND = (sys.executable, "-m", "spotlight")
_NOWHERE = JoinToken("127.0.0.1:9", KeyPair.new().public, "abc123", bytes(SECRET_BYTES))
"""Where no coordinator is."""
_QUIET = {"SPOTLIGHT_METADATA_URL": "http://127.0.0.1:9"}
"""No cloud is asked for its notices."""
_JOB = """
name: small
model: {checkpoint: "builtin:ocr-tiny"}
prompts: {train: train.txt, validation: validation.txt, per_iteration: 2}
sampler: {height: 16, width: 48, steps: 2, micro_batch: 4}
iterations: ITERATIONS
group_size: 4
exploration: {mode: none}
pools: {spot: {nodes: 0}}
validation: {seeds: 1}
"""


def _environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **_QUIET, "PYTHONPATH": str(ROOT), **(more or {})}


def _shell(folder: Path, line: str, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a line of bash in which `spotlight` is the command, as a user types it."""
    words = " ".join(_COMMAND)
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; spotlight() {{ {words} "$@"; }}; {line}'],
        cwd=folder,
        env=_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(errors="replace"))


def _write_job(folder: Path, iterations: int = 1) -> None:
    (folder / "job.yaml").write_text(_JOB.replace("ITERATIONS", str(iterations)))
    (folder / "train.txt").write_text('the number "1234"\nthe number "5678"\n')
    (folder / "validation.txt").write_text('the number "4321"\n')


def _outcome(folder: Path) -> str:
    lines = whole_event_lines(folder / "run")
    found = [event for event in map(json.loads, lines) if event["event"] == "run_finished"]
    return str(found[-1]["outcome"]) if found else "no end"


def _ending_well(redirection: str, environment: Mapping[str, str]) -> Check:
    def check(folder: Path) -> None:
        _write_job(folder)
        line = f"spotlight run job.yaml --run-folder run {redirection}"
        ended = _shell(folder, line, environment)
        ended.says(0)
        require(_outcome(folder) == "finished", f"the run has {_outcome(folder)}: {ended.text}")

    return check


for _name, _redirection, _more in (
    ("a run with standard input closed", "<&-", {}),
    ("a run with standard output closed", ">&-", {}),
    ("a run with standard error closed", "2>&-", {}),
    ("a run with every standard stream closed", "<&- >&- 2>&-", {}),
    ("a run whose reader goes away after a line", "| head -1", {}),
    ("a run whose reader of both streams goes away", "2>&1 | head -1", {}),
    ("a run whose output cannot encode blocks", "", {"PYTHONIOENCODING": "ascii"}),
    ("a run in the C locale, without UTF-8", "", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}),
):
    case(_name)(_ending_well(_redirection, _more))


@case("`--help` and `init --list` without a reader", quick=True)
def _short_commands_end_quietly(folder: Path) -> None:
    for command in ("--help", "init --list"):
        ended = _shell(folder, f"spotlight {command} | true")
        ended.says(0)
        require("Broken pipe" not in ended.text and "Exception" not in ended.text, ended.text)


@case("`status` with each stream closed, without a coordinator", quick=True)
def _refusals_need_no_streams(folder: Path) -> None:
    for redirection in ("<&-", ">&-", "2>&-"):
        _shell(folder, f"spotlight status --join {_NOWHERE} {redirection}").says(2)


@case("output onto a full disk")
def _full_disk(folder: Path) -> None:
    _write_job(folder)
    _shell(folder, "spotlight plan job.yaml > /dev/full").says(
        1, "spotlight: standard output: No space left on device"
    )


@contextmanager
def _started(folder: Path, words: Sequence[str], redirection: str = "") -> Iterator[_Running]:
    """A command that runs until the context ends at the latest; its output is in a file."""
    log = folder / f"{len(list(folder.iterdir()))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" {redirection}', "bash", *words],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _Running(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT_S)


class _Running:
    """A command that was started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def signal_all(self, number: signal.Signals) -> None:
        """To it and all below it, as Slurm does."""
        tree = psutil.Process(self._process.pid)
        for process in (*tree.children(recursive=True), tree):
            process.send_signal(number)

    def ends(self) -> Ended:
        return Ended(self._process.wait(LIMIT_S), self.text)

    @property
    def lives(self) -> bool:
        return self._process.poll() is None


def _noticed_run(folder: Path, number: signal.Signals) -> None:
    _write_job(folder, iterations=200)
    with _started(folder, [*_COMMAND, "run", "job.yaml", "--run-folder", "run"]) as run:
        until(lambda: "rollout" in run.text or not run.lives, "the first rollout")
        run.signal_all(number)
        run.ends().says(130, f"cancelled: {number.name}", "spotlight run --resume")
    require(_outcome(folder) == "cancelled", _outcome(folder))


def _noticed_node(folder: Path, number: signal.Signals, redirection: str) -> None:
    daemons = {name: str(ROOT / "bin" / f"spotlight-{name}") for name in ("coordinator", "node")}
    token = folder / "runs" / "operator.token"
    with _started(
        folder,
        [
            *(sys.executable, daemons["coordinator"], "--listen", "127.0.0.1:0"),
            *("--runs", str(folder / "runs")),
        ],
        redirection,
    ) as coordinator:
        until(token.exists, "the coordinator")
        words = [sys.executable, daemons["node"], "--join", f"@{token}", "--pool", "spot"]
        with _started(folder, [*words, "--name", "noticed"], redirection) as node:
            status = f"spotlight status --json --join @{token}"
            until(lambda: "noticed/0" in _shell(folder, status).text, "the node's worker")
            coordinator.signal_all(signal.SIGUSR1)
            node.signal_all(number)
            node.ends().says(0)
            require(not redirection or not node.text, node.text)
        require(coordinator.lives, coordinator.text)


def _to_a_run(number: signal.Signals) -> Check:
    return lambda folder: _noticed_run(folder, number)


def _to_a_node(number: signal.Signals, redirection: str = "") -> Check:
    return lambda folder: _noticed_node(folder, number, redirection)


for _number in (signal.SIGUSR1, signal.SIGUSR2):
    case(f"{_number.name} to a run")(_to_a_run(_number))
for _number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    case(f"{_number.name} to a node and all its processes")(_to_a_node(_number))
case("daemons with every standard stream closed")(_to_a_node(signal.SIGTERM, "<&- >&- 2>&-"))


@case("16-bit and clear pixels at `serve-reward`, and SIGUSR1 to it")
def _images_of_other_depths(folder: Path) -> None:
    (folder / "corner.py").write_text(
        "class Corner:\n"
        "    def score(self, images, prompts):\n"
        "        return [float(image[0, 0].mean()) for image in images]\n"
    )
    pixels: dict[str, np.ndarray] = {
        "grey of 16 bits": np.full((4, 4), 130 * 256 + 7, np.uint16),
        "clear": np.zeros((4, 4, 4), np.uint8),
    }
    words = [*_COMMAND, "serve-reward", "corner:Corner", "--port", "0"]
    with _started(folder, words) as server:
        until(lambda: "/score" in server.text or not server.lives, "the server")
        require(server.lives, server.text)
        server.signal_all(signal.SIGUSR1)
        url = server.text.split()[-1]
        images = [
            {"id": name, "prompt": "", "format": "png", "image": _base64(image)}
            for name, image in pixels.items()
        ]
        body = json.dumps({"version": 1, "images": images}).encode()
        with urllib.request.urlopen(url, data=body, timeout=LIMIT_S) as answer:
            rewards = {one["id"]: one["reward"] for one in json.load(answer)["rewards"]}
    require(rewards == {"grey of 16 bits": 130.0, "clear": 255.0}, rewards)


def _base64(pixels: np.ndarray) -> str:
    written, data = cv2.imencode(".png", pixels)
    require(written, "OpenCV wrote no PNG")
    return base64.b64encode(data.tobytes()).decode()
