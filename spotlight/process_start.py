"""What a process of ours does first: its standard streams are there whatever it was started with,
and a notice does not end it.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm sends some time before it ends a job (`--signal`)."""

_GONE = (errno.EPIPE, errno.EIO)
"""Nobody reads any longer: the reader of a pipe has ended, or a terminal was closed."""


def outlive_notices() -> None:
    """Ignore the signals that are notices, here and in what this process starts.

    Slurm sends them to every process of a job. Who has something to do then handles them later.
    """
    for number in NOTICE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def standard_streams(command: str) -> Iterator[None]:
    """Give this process standard streams that never fail, while a command runs.

    - A stream that is closed reads from and writes to nowhere. Otherwise the next file or socket
      would take its number, and libuv aborts when it is to close one of these.
    - What nobody reads any longer (`| head -1`) is dropped, and the command goes on to its end.
    - What the stream's encoding does not have is escaped: `\\u2581`.

    Where standard output cannot be written for another reason, such as a full disk, the command
    also goes on. It then says so, and ends with status 1 (raises `SystemExit`).
    """
    _open_closed_descriptors()
    _use_own_stream("stderr", 2)
    output = _use_own_stream("stdout", 1)
    try:
        yield
    except SystemExit as ended:
        if not ended.code:
            _require_written(command, output)
        raise
    _require_written(command, output)


def use_lossy_streams() -> None:
    """Give this process standard output and errors that never fail: what cannot be written, as on a
    full disk, is dropped, and what is written later may be there again."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        _use_own_stream(name, descriptor)


def _require_written(command: str, output: _Output | None) -> None:
    sys.stdout.flush()
    problem = output.problem if output is not None else None
    if problem is not None and problem.errno not in _GONE:
        sys.stderr.write(f"{command}: standard output: {problem.strerror}\n")
        raise SystemExit(1)


class _Output(io.RawIOBase):
    """A stream that drops what cannot be written, and remembers why the first of it could not."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data)
        try:
            return os.write(self._descriptor, view)
        except OSError as error:
            self.problem = self.problem or error
        return view.nbytes


def _open_closed_descriptors() -> None:
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process


def _use_own_stream(name: str, descriptor: int) -> _Output | None:
    """None where a program has put another stream there: that one is the program's affair."""
    stream = getattr(sys, name)
    if stream is not getattr(sys, f"__{name}__"):
        return None
    raw = _Output(descriptor)
    own = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=name == "stderr" or raw.isatty(),
    )
    setattr(sys, name, own)
    return raw
