"""What was acknowledged is there after any kill, and after anything that a disk may do.

A child process writes and tells which writes were acknowledged.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from journal_kit import OWNER, contents, opened

from spotlight.store.journal import NAME


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / NAME


WRITER = """
import os, sys
from pathlib import Path
from spotlight import failpoints
from spotlight.store import journal as journal_module
from spotlight.store.journal import Journal

path, owner = Path(sys.argv[1]), sys.argv[2]
failpoints.from_environment()

def write(journal, number):
    '''Transaction `number`: see `after`.'''
    changes = {"count": b"%d" % number, f"new/{number}": bytes([number % 251]) * 300}
    changes |= {f"new/{number - 5}": None} if number % 2 else {}
    changes |= {f"batch/{number}/{i}": b"x" * 500 for i in range(20)}
    journal.write(changes, drop=[f"batch/{number - 1}/"])

def write_on(journal, times=10**9):
    number = int(dict(journal.items()).get("count", b"0"))
    for _ in range(times):
        number += 1
        write(journal, number)
        print(number, flush=True)
"""


def after(number: int) -> dict[str, bytes]:
    """What the journal holds after that many transactions of the writer."""
    held: dict[str, bytes] = {}
    for n in range(1, number + 1):
        held["count"] = b"%d" % n
        held[f"new/{n}"] = bytes([n % 251]) * 300
        if n % 2:
            held.pop(f"new/{n - 5}", None)
    return held | {f"batch/{number}/{i}": b"x" * 500 for i in range(20) if number}


def run_child(path: Path, script: str, prefix: tuple[str, ...] = (), **environment: str):
    """Run the writer with `script` behind it, to its end, which must come soon."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", WRITER + script, str(path), OWNER],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=20,
    )


def acknowledged(output: str) -> int:
    lines = output.split()
    return int(lines[-1]) if lines else 0


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize(
    ("place", "unacknowledged"),
    [("journal.before_commit", 0), ("journal.commit", 0), ("journal.after_commit", 1)],
)
def test_a_kill_around_a_commit_loses_nothing(path, place, unacknowledged, count):
    """Opening passes the places before the commit once, and never the one after it."""
    ended = run_child(
        path, "write_on(Journal.open(path, owner))", SPOTLIGHT_FAILPOINT=f"{place}:{count}"
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    passed = count - 1 if unacknowledged else count - 2
    assert acknowledged(ended.stdout) == passed
    assert contents(path) == after(passed + unacknowledged)


def test_kills_during_opening_three_times_in_a_row_lose_nothing(path):
    run_child(path, "write_on(Journal.open(path, owner), 3); os._exit(0)")
    for place in ("journal.before_commit", "journal.commit", "journal.commit"):
        ended = run_child(path, "Journal.open(path, owner)", SPOTLIGHT_FAILPOINT=f"{place}:1")
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert contents(path) == after(3)


def test_kills_at_any_moment_lose_nothing_that_was_acknowledged(path):
    """Often enough, with a file short enough, to fall into its being written anew as well."""
    chance, acked, terms = Random(1), 0, []
    for _ in range(12):
        command = "journal_module.LEAST_WASTE = 20_000\nwrite_on(Journal.open(path, owner))"
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER + command, str(path), OWNER], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(chance.uniform(0, 0.05))
        child.kill()
        with child.stdout:  # of which some lines may have been read ahead
            acked = acknowledged((first + child.stdout.read()).decode())
        child.wait(30)
        with opened(path) as journal:
            held = dict(journal.items())
            assert held in (after(acked), after(acked + 1))
            assert journal.dropped == "" or "that a crash broke off" in journal.dropped
            terms.append(journal.term)
    assert acked > 12
    assert terms == [2 * n for n in range(1, 13)]


def test_a_second_opener_is_refused_without_waiting(path):
    with opened(path):
        second = run_child(path, "Journal.open(path, owner)")
    assert "in use by another coordinator" in second.stderr


BAD_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int sync_by(const char *name, int fd) {
    const char *flag = getenv("BAD_SYNC");
    if (flag && access(flag, F_OK) == 0) { errno = EIO; return -1; }
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    return real(fd);
}
int fsync(int fd) { return sync_by("fsync", fd); }
int fdatasync(int fd) { return sync_by("fdatasync", fd); }
"""


@pytest.fixture
def bad_sync(tmp_path) -> dict[str, str]:
    """Environment in which a sync fails while the file of the variable `BAD_SYNC` exists."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to let fsync fail")
    library = tmp_path / "bad_sync.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), "-xc", "-", "-ldl"],
        input=BAD_SYNC.encode(),
        check=True,
    )
    return {"LD_PRELOAD": str(library), "BAD_SYNC": str(tmp_path / "flag")}


TRY = """
from spotlight.errors import JournalError

def is_refused(journal, number):
    try:
        write(journal, number)
    except JournalError as error:
        print("refused:", error, file=sys.stderr)
        return True
    print(number, flush=True)
    return False
"""


@pytest.mark.parametrize("end", ["journal.close()", "os._exit(0)"])
def test_a_failed_fsync_loses_the_write_for_good_and_ends_all_writing(path, bad_sync, end):
    """The write stands in the file already, so it must be cut off."""
    script = f"""
journal = Journal.open(path, owner)
write_on(journal, 2)
Path(os.environ["BAD_SYNC"]).touch()
is_refused(journal, 3)
Path(os.environ["BAD_SYNC"]).unlink()
is_refused(journal, 3)
{end}
"""
    ended = run_child(path, TRY + script, **bad_sync)
    assert (ended.returncode, acknowledged(ended.stdout)) == (0, 2), ended.stderr
    assert ended.stderr.count("refused:") == ended.stderr.count("Input/output error") == 2
    assert contents(path) == after(2)


def test_a_failed_fsync_while_the_file_is_written_anew_loses_nothing(path, bad_sync):
    script = """
journal = Journal.open(path, owner)
write_on(journal, 2)
journal_module.LEAST_WASTE = -10**6
Path(os.environ["BAD_SYNC"]).touch()
is_refused(journal, 3)
os._exit(0)
"""
    ended = run_child(path, TRY + script, **bad_sync)
    assert (ended.returncode, acknowledged(ended.stdout)) == (0, 2), ended.stderr
    assert "Input/output error" in ended.stderr
    assert contents(path) == after(2)


FILL = """
import resource
journal = Journal.open(path, owner)
write_on(journal, 2)
most = os.stat(path).st_size + int(os.environ["BYTES_LEFT"])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
number = 3
while not is_refused(journal, number):
    number += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert is_refused(journal, number)
"""


@pytest.mark.parametrize("bytes_left", [0, 10, 24, 3000, 4120, 9000, 30_000, 200_000])
@pytest.mark.parametrize("end", ["journal.close()", "os._exit(0)"])
def test_a_file_that_cannot_grow_loses_only_the_write_that_is_refused(path, bytes_left, end):
    ended = run_child(path, TRY + FILL + end, BYTES_LEFT=str(bytes_left))
    assert ended.returncode == 0, ended.stderr
    assert f"{path}: " in ended.stderr
    assert "free some space" in ended.stderr
    assert acknowledged(ended.stdout) >= 2
    assert contents(path) == after(acknowledged(ended.stdout))


def test_a_full_disk_loses_only_the_write_that_is_refused(path, tmp_path):
    """A small file system of the child's own, gone with it; what was on it is copied out."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=400k none {disk}"
    alone = ("unshare", "-Urm", "sh", "-c")
    if shutil.which("unshare") is None or subprocess.run([*alone, mount]).returncode:
        pytest.skip("needs the right to mount a file system")
    script = """
import shutil
journal = Journal.open(path, owner)
number = 1
while not is_refused(journal, number):
    number += 1
for file in path.parent.iterdir():
    shutil.copy(file, path.parent.parent / file.name)
"""
    ended = run_child(disk / path.name, TRY + script, (*alone, f'{mount} && exec "$@"', "sh"))
    assert ended.returncode == 0, ended.stderr
    assert "No space left on device; free some space" in ended.stderr
    assert acknowledged(ended.stdout) > 2
    assert contents(path) == after(acknowledged(ended.stdout))
