"""What benchmarks of transfers hold theirs against, and how they see that a loop turns."""

from __future__ import annotations

import asyncio
import mmap
import socket
from pathlib import Path


def receive(port: int, path: Path, nbytes: int) -> None:
    """Take what a process of this machine sends over a blocking socket, unchecked, into a new
    mapped file. Raises `SystemExit` if it breaks off.
    """
    with socket.create_connection(("127.0.0.1", port)) as connection, path.open("w+b") as file:
        file.truncate(nbytes)
        with mmap.mmap(file.fileno(), nbytes) as mapped, memoryview(mapped) as into:
            done = 0
            while done < nbytes:
                count = connection.recv_into(into[done:])
                if not count:
                    raise SystemExit("the raw connection broke off")
                done += count


async def note_lags(found: list[float]) -> None:
    """Until it is cancelled: every millisecond, the seconds that the loop wakes up too late."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 1e-3
        await asyncio.sleep(1e-3)
        found.append(loop.time() - due)
