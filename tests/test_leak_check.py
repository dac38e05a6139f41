"""The check that a test leaves nothing behind sees what the test made, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import asyncio, os, subprocess, sys, threading
from pathlib import Path
from tests import conftest

conftest.SHARED_MEMORY = Path(__file__).parent

def segment(pid):
    made = conftest.SHARED_MEMORY / f"spotlight-{pid}-leak"
    made.mkdir()
    return made

def test_leaks():
    threading.Timer(8.0, str).start()
    code = "import subprocess; subprocess.Popen(['sleep', '60']); input()"
    test_leaks.child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    print("made", segment(os.getpid()).name, segment(ended.pid).name)

async def test_leaks_a_task():
    test_leaks_a_task.task = asyncio.create_task(asyncio.sleep(60), name="leak")

def test_tidies_up():
    thread = threading.Thread(target=subprocess.run, args=([sys.executable, "-c", ""],))
    thread.start()
    segment(f"{os.getpid()}-tidy").rmdir()
    thread.join()

def test_sees_what_another_process_does():
    segment(os.getppid())
"""


def test_what_a_test_leaves_fails_it_and_what_others_leave_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["--config-file", "pyproject.toml", "--rootdir", str(tmp_path), "-s", str(tmp_path)]
    impatient = {**os.environ, "SPOTLIGHT_TEST_ENDED_S": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=impatient)
    lines = done.stdout.splitlines()
    assert "4 passed, 2 errors" in lines[-1], done.stdout
    assert "ERROR at teardown of test_leaks " in done.stdout
    assert "ERROR at teardown of test_leaks_a_task " in done.stdout
    leaked = next(line for line in lines if "AssertionError: the test left behind" in line)
    segments = next(line for line in lines if "made" in line).split()[-2:]
    for what in ("Timer", "sleep 60", "input()", *segments):
        assert what in leaked
    assert any("left tasks behind" in line and "name='leak'" in line for line in lines)
