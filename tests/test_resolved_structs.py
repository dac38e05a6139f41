"""Typed data are read in several threads at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_run import write_run

TWO_THREADS = """
import sys, threading
from spotlight.jobs import parse_job
from spotlight.resolved_structs import resolve_structs
resolve_structs()
sys.setswitchinterval(1e-6)
text = open(sys.argv[1]).read()
begin, jobs = threading.Barrier(2), []
def read():
    begin.wait()
    jobs.append(parse_job(text, source="job"))
threads = [threading.Thread(target=read) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(jobs) == 2 and jobs[0] == jobs[1]
"""


@pytest.mark.parametrize("time", range(4))
def test_two_threads_read_their_first_job_at_the_same_time(tmp_path: Path, time: int) -> None:
    config = write_run(tmp_path / "run") / "config.yaml"
    command = [sys.executable, "-c", TWO_THREADS, str(config)]
    subprocess.run(command, check=True, timeout=30)
