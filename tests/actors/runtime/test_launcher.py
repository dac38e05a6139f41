"""Child processes: their start, their end, and that they do not outlive their parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from spotlight.actors.runtime.launcher import (
    LONGEST_SECRET,
    LocalLauncher,
    _exit_with,
    die_with_parent,
)
from spotlight.errors import UserError

WITHIN_S = 20.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


@pytest.mark.both_loops
async def test_a_process_runs_with_the_given_environment_and_log(tmp_path: Path) -> None:
    log_path = tmp_path / "logs" / "worker.log"
    argv = python("""
        import os, sys
        print(os.environ["GREETING"], sorted(os.environ))
        print("and errors", file=sys.stderr)
        sys.exit(7)
    """)
    process = await LocalLauncher().start(argv, {"GREETING": "hello"}, "worker", log_path)
    async with asyncio.timeout(WITHIN_S):
        assert await process.wait() == 7
    assert process.name == "worker"
    text = log_path.read_text()
    assert "hello" in text
    assert "PATH" not in text
    assert "and errors" in text


@pytest.mark.both_loops
async def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for word in ("one", "two"):
        process = await LocalLauncher().start(
            python(f"print('{word}')"), os.environ, "worker", tmp_path / "log"
        )
        await process.wait()
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("end", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)]
)
async def test_a_signal_ends_a_process(tmp_path: Path, end: str, number: signal.Signals) -> None:
    argv = python("import time; time.sleep(600)")
    process = await LocalLauncher().start(argv, os.environ, "worker", tmp_path / "log")
    getattr(process, end)()
    async with asyncio.timeout(WITHIN_S):
        assert await process.wait() == -number
    getattr(process, end)()  # once more does no harm


@pytest.mark.both_loops
async def test_what_is_sent_to_the_group_of_a_process_does_not_reach_its_children(
    tmp_path: Path,
) -> None:
    argv = python("import os; print(os.getpgid(0), os.getsid(0))")
    process = await LocalLauncher().start(argv, os.environ, "worker", tmp_path / "log")
    await process.wait()
    group, session = map(int, (tmp_path / "log").read_text().split())
    assert group == session == process.pid


SECRET = b"what nobody else may see"
READER = """
    import os, sys
    from spotlight.actors.runtime.launcher import read_secret
    print(read_secret(), read_secret(), os.read(0, 9))
    print(b"nobody else" in open("/proc/self/environ", "rb").read(), *sys.argv)
"""


@pytest.mark.both_loops
@pytest.mark.parametrize(("secret", "read"), [(SECRET, SECRET), (b"", b"")], ids=["some", "none"])
async def test_a_secret_is_read_once_and_stands_nowhere_else(
    tmp_path: Path, secret: bytes, read: bytes
) -> None:
    process = await LocalLauncher().start(
        python(READER), os.environ, "worker", tmp_path / "log", secret
    )
    async with asyncio.timeout(WITHIN_S):
        assert await process.wait() == 0
    assert (tmp_path / "log").read_text() == f"{read!r} b'' b''\nFalse -c\n"


async def test_a_secret_of_any_allowed_length_is_handed_over_whole(tmp_path: Path) -> None:
    argv = python("""
        from spotlight.actors.runtime.launcher import read_secret
        print(len(read_secret()))
    """)
    launcher, log_path = LocalLauncher(), tmp_path / "log"
    process = await launcher.start(argv, os.environ, "worker", log_path, bytes(LONGEST_SECRET))
    await process.wait()
    assert log_path.read_text() == f"{LONGEST_SECRET}\n"
    with pytest.raises(ValueError, match="65537 bytes"):
        await launcher.start(argv, os.environ, "worker", log_path, bytes(LONGEST_SECRET + 1))


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such-program"):
        await LocalLauncher().start(["no-such-program"], os.environ, "worker", tmp_path / "log")


async def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="worker"):
        await LocalLauncher().start(["true"], os.environ, "worker", tmp_path / "file" / "log")


GRANDCHILD = """
    import os, sys, time
    from spotlight.actors.runtime.launcher import die_with_parent
    die_with_parent(int(sys.argv[1]))
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
CHILD = """
    import os, subprocess, sys
    subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid())])
"""


def test_a_process_dies_with_its_killed_parent() -> None:
    argv = [*python(CHILD), textwrap.dedent(GRANDCHILD)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = psutil.Process(int(child.stdout.readline()))
        child.kill()
        grandchild.wait(WITHIN_S)
    assert not grandchild.is_running()


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    with pytest.raises(SystemExit, match="999999999"):
        die_with_parent(999999999)


def test_without_the_kernel_s_help_a_thread_notices_the_parent_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    _exit_with(999999999)
    assert codes == [1]
