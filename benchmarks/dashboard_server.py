"""A process of `spotlight dashboard`, and the memory that it takes."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

_START_S = 60.0
_END_S = 15.0


@dataclass(frozen=True)
class ServedRun:
    """The page of a run, served by a process of its own."""

    url: str
    pid: int

    def peak_mb(self) -> float:
        """The most memory that the process has had so far."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1000


@asynccontextmanager
async def served_run(folder: Path) -> AsyncIterator[ServedRun]:
    """Serve the page of a run while the context lasts."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "spotlight.cli", "dashboard", str(folder)),
        stdin=DEVNULL,
        stdout=PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            line = await process.stdout.readline()
        yield ServedRun(line.decode().strip(), process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(_END_S):
            await process.wait()
