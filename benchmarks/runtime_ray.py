"""An actor of Ray that echoes in another process, for comparison."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any


@asynccontextmanager
async def ray_echo() -> AsyncIterator[Callable[[bytes], Awaitable[bytes]] | None]:
    """How to ask it; None where Ray is not installed. It ends with the context."""
    if find_spec("ray") is None:
        yield None
        return
    import ray

    class Echo:
        async def echo(self, body: bytes) -> bytes:
            return body

    with TemporaryDirectory(prefix="ray") as folder:
        await asyncio.to_thread(
            ray.init,
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        try:
            actor: Any = ray.remote(Echo).remote()

            async def ask(body: bytes) -> bytes:
                answer: bytes = await actor.echo.remote(body)
                return answer

            await ask(b"")
            yield ask
        finally:
            await asyncio.to_thread(ray.shutdown)
