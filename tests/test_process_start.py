"""Standard streams that are closed, gone or full, and signals that are notices: in processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotlight.process_start import NOTICE_SIGNALS

_BEGIN = "from spotlight.process_start import *; import os, signal, sys\n"
_SHELL = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-", "all": "<&- >&- 2>&-"}


def begun(
    body: str, redirection: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program whose body runs within `standard_streams`, as a shell starts it."""
    program = f"{_BEGIN}with standard_streams('tried'):\n" + "".join(
        f"    {line}\n" for line in body.splitlines()
    )
    return subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable, program],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("closed", _SHELL)
def test_a_file_never_gets_the_number_of_a_closed_stream(closed: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f"file = open({str(seen)!r}, 'w')\nfile.write(str(file.fileno()))\nprint('said')"
    assert begun(body, _SHELL[closed]).returncode == 0
    assert int(seen.read_text()) > 2


@pytest.mark.parametrize("closed", _SHELL)
def test_a_uvloop_runs_with_closed_streams(closed: str) -> None:
    pytest.importorskip("uvloop")
    body = (
        "import asyncio, uvloop\n"
        "async def main():\n"
        "    process = await asyncio.create_subprocess_exec('cat')\n"
        "    await process.wait()\n"
        "asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())"
    )
    assert begun(body, _SHELL[closed]).returncode == 0


def test_standard_input_that_was_closed_is_empty() -> None:
    assert begun("print(repr(sys.stdin.read()))", "<&-").stdout == "''\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_away_does_not_end_the_work(stream: str, tmp_path: Path) -> None:
    done = tmp_path / "done"
    body = (
        f"for number in range(100_000):\n    sys.{stream}.write('line\\n')\n"
        f"open({str(done)!r}, 'w').write('done')"
    )
    ended = begun(body, "| head -1" if stream == "stdout" else "2>&1 >/dev/null | head -1")
    assert (ended.stdout, ended.stderr) == ("line\n", "")
    assert done.read_text() == "done"


def test_a_full_disk_is_said_and_ends_the_command_with_1_after_its_work() -> None:
    ended = begun("print('lost')\nsys.stderr.write('worked\\n')\nsys.exit(0)", ">/dev/full")
    assert ended.returncode == 1
    assert ended.stderr.startswith("worked\ntried: standard output: ")
    assert "Traceback" not in ended.stderr


def test_an_error_keeps_its_exit_code() -> None:
    assert begun("sys.exit(3)", ">/dev/full").returncode == 3


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_encoding_does_not_have_is_escaped(encoding: str) -> None:
    ended = begun("print('\u2581 done')", environment={"PYTHONIOENCODING": encoding})
    assert (ended.returncode, ended.stdout) == (0, "\\u2581 done\n")


def test_a_stream_that_the_program_put_there_stays() -> None:
    program = (
        f"{_BEGIN}import io\nsys.stdout = mine = io.StringIO()\n"
        "with standard_streams('tried'):\n    print('said')\nassert mine.getvalue() == 'said\\n'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("number", NOTICE_SIGNALS)
def test_a_notice_ends_neither_a_process_nor_what_it_starts(number: signal.Signals) -> None:
    program = (
        f"{_BEGIN}import subprocess\noutlive_notices()\nos.kill(os.getpid(), {int(number)})\n"
        f"code = 'import os; os.kill(os.getpid(), {int(number)})'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_a_worker_prints_on_a_full_disk_is_dropped_and_what_follows_is_there(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    program = f"""{_BEGIN}import resource
use_lossy_streams()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))
for _ in range(50):
    print("x" * 20, file=sys.stderr)
    print("y" * 20, flush=True)
os.truncate({str(log)!r}, 0)
print("there is room again", flush=True)
"""
    with open(log, "ab") as output:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=output, stderr=output, check=False
        )
    assert done.returncode == 0
    assert log.read_text() == "there is room again\n"
