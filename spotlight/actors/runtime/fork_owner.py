"""The owner of a template process (`fork_template`): starts it, starts it again when a signal ended
it, and ends it.

A template that ends by itself cannot be had: its log says why, and whoever waits for it is told at
once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from spotlight.actors.runtime.launcher import PARENT, LocalLauncher, LocalProcess
from spotlight.errors import UserError

log = structlog.get_logger(__name__)

_STARTS = 6
"""How often it is started at most, as long as signals end it."""
_ROOM_FOR_ARGUMENTS = 1024
"""Characters by which the command line of a forked process may be longer than the template's."""
_WAITING_LAUNCHERS = 128


class TemplateOwner:
    """Keeps one template process running, from `start` to `aclose`; it ends with this process.

    Launchers in any process of this user and machine may connect to its address from the beginning,
    and wait until it has imported everything. The socket stays the same when the template is
    started again, and leaves no file behind.
    """

    def __init__(self, preload: str, env: Mapping[str, str], log_path: Path) -> None:
        """`preload` is the module that the template prepares itself with; see `fork_template`."""
        self._preload = preload
        self._env = env
        self._log_path = log_path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")  # Linux finds a name that is free, and no file
        self._listener.listen(_WAITING_LAUNCHERS)
        name: bytes = self._listener.getsockname()
        self.address = name.removeprefix(b"\0").decode()
        """The address that a `ForkLauncher` is given."""
        self._process: LocalProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin; it imports in the background."""
        self._keeping = asyncio.create_task(self._keep())

    async def aclose(self) -> None:
        """End it, and with it all that it forked."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()
        if self._keeping is not None:
            await self._keeping
        self._listener.close()

    async def _keep(self) -> None:
        argv = [sys.executable, "-m", "spotlight.actors.runtime.fork_template", self._preload]
        argv.append(" " * _ROOM_FOR_ARGUMENTS)
        env = {**self._env, PARENT: str(os.getpid())}
        launcher = LocalLauncher(self._listener.fileno())
        try:
            for _ in range(_STARTS):
                self._process = await launcher.start(argv, env, "template", self._log_path)
                if self._is_over:
                    self._process.kill()
                if await self._process.wait() >= 0 or self._is_over:
                    break
        except UserError as error:
            log.error("template_not_started", reason=str(error))
        self._listener.close()  # whoever waits for it learns that it does not come
