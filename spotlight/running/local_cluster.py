"""A coordinator and nodes as daemons of this machine.

No special path: the daemons are those that a cluster runs, but for the template that workers are
forked from, which all nodes share. They end with this process, however it ends. One that is killed
is started again, a coordinator at the same address, and the job goes on.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from spotlight.actors.runtime.launcher import LocalLauncher, ProcessHandle
from spotlight.errors import UserError
from spotlight.jobs import PoolsSpec
from spotlight.permissions import Permissions
from spotlight.running.worker_template import worker_template
from spotlight.store.memory_folder import remove_leftovers
from spotlight.store.runs_folder import RunsFolder, locked

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 1.0
_RESTARTS = 5
"""Of each daemon that is killed."""
_ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True)
class LocalPlaces:
    """Where daemons of this machine keep things, besides the run folder."""

    store: Path | None = None
    """The folder in which nodes make their stores; None for shared memory."""
    mirror: str = ""
    """The URL of object storage that the run is copied to; empty for none."""
    run_folder: Path | None = None
    """That of the job, if there is one."""
    permissions: Permissions = Permissions()
    """What the job or session may do, besides what it names itself."""


@dataclass
class Daemon:
    """One that runs, and how it is started again."""

    name: str
    kind: str
    arguments: list[str]
    process: ProcessHandle
    ended: str = ""
    """Why it is not started again."""


@dataclass
class LocalCluster:
    """The daemons of this machine."""

    launcher: LocalLauncher
    logs: Path
    address: str = ""
    """Of the coordinator, which is the first of the daemons."""
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def coordinator(self) -> Daemon:
        """The one that runs now."""
        return self.daemons[0]

    async def start(self, name: str, kind: str, arguments: list[str]) -> Daemon:
        """Start a daemon for the first time."""
        process = await _start(self.launcher, kind, arguments, self.logs, name)
        self.daemons.append(Daemon(name, kind, arguments, process))
        return self.daemons[-1]

    async def keep(self, daemon: Daemon) -> None:
        """Start a daemon again when a signal has ended it."""
        for _ in range(_RESTARTS):
            code = await daemon.process.wait()
            if code >= 0:
                daemon.ended = f"{daemon.name} ended by itself with {code}"
                return
            daemon.process = await _start(
                self.launcher, daemon.kind, daemon.arguments, self.logs, daemon.name
            )
        daemon.ended = f"{daemon.name} was killed {_RESTARTS} times"


@asynccontextmanager
async def local_cluster(
    pools: PoolsSpec, logs: Path, places: LocalPlaces
) -> AsyncIterator[LocalCluster]:
    """A coordinator and the nodes of these pools. Ends them all at the end."""
    async with (
        worker_template(logs) as template,
        _daemons(pools, logs, places, ["--template", template]) as cluster,
    ):
        yield cluster


@asynccontextmanager
async def _daemons(
    pools: PoolsSpec, logs: Path, places: LocalPlaces, of_nodes: list[str]
) -> AsyncIterator[LocalCluster]:
    """`of_nodes` are arguments of all nodes."""
    cluster = LocalCluster(LocalLauncher(), logs)
    if places.store is not None:
        of_nodes = [*of_nodes, "--store", str(places.store)]
    address_file = logs / "coordinator.address"
    with locked(logs):
        address_file.unlink(missing_ok=True)
        RunsFolder(logs).end()  # whoever starts the cluster says what it goes on with
    keepers: list[asyncio.Task[None]] = []
    try:
        mirror = ["--mirror", places.mirror] if places.mirror else []
        allowed = ["--permissions", msgspec.json.encode(places.permissions).decode()]
        run = ["--run-folder", str(places.run_folder)] if places.run_folder is not None else []
        arguments = [*mirror, *allowed, *run, "--runs", str(logs)]
        arguments += ["--address-file", str(address_file), "--listen"]
        first = await cluster.start("coordinator", "coordinator", [*arguments, _ANY_PORT])
        cluster.address = await _read_address(address_file, first.process, logs)
        first.arguments = [*arguments, cluster.address.removeprefix("tcp://")]
        keepers.append(asyncio.create_task(cluster.keep(first)))
        for pool, spec in (("reserved", pools.reserved), ("spot", pools.spot)):
            for index in range(spec.nodes):
                name = f"{pool}-{index}"
                arguments = ["--coordinator", cluster.address, "--name", name, "--pool", pool]
                arguments += ["--workers", str(spec.workers), "--logs", str(logs)]
                arguments += [*of_nodes, *allowed]
                daemon = await cluster.start(name, "node", arguments)
                keepers.append(asyncio.create_task(cluster.keep(daemon)))
        yield cluster
    finally:
        address_file.unlink(missing_ok=True)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await _stop([daemon.process for daemon in cluster.daemons])
        remove_leftovers(places.store)  # of nodes that were killed


async def _start(
    launcher: LocalLauncher, kind: str, arguments: list[str], logs: Path, name: str
) -> ProcessHandle:
    call = f"from spotlight.cli.daemons import {kind}; {kind}()"
    argv = [sys.executable, "-c", call, *arguments, "--parent", str(os.getpid())]
    return await launcher.start(argv, env=os.environ, name=name, log_path=logs / f"{name}.log")


async def _read_address(file: Path, process: ProcessHandle, logs: Path) -> str:
    ended = asyncio.ensure_future(process.wait())
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while not file.exists():  # noqa: ASYNC240 - a tiny local file
                if ended.done():
                    raise UserError(
                        f"the coordinator did not start; see {logs / 'coordinator.log'}"
                    )
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise UserError(
            f"the coordinator does not answer; see {logs / 'coordinator.log'}"
        ) from error
    finally:
        ended.cancel()
    return file.read_text()  # noqa: ASYNC240 - a tiny local file


async def _stop(processes: list[ProcessHandle]) -> None:
    for process in reversed(processes):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_LIMIT_S):
            await asyncio.gather(*(process.wait() for process in processes))
    except TimeoutError:
        for process in processes:
            process.kill()
        await asyncio.gather(*(process.wait() for process in processes))
