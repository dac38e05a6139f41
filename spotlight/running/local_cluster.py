"""A coordinator and nodes as daemons of this machine.

No special path: the daemons are those that a cluster runs, but for the template that workers are
forked from, which all nodes share, and for the keys: this process makes them all, and nobody has to
join. Daemons end with this process, however it ends. One that is killed is started again with the
same keys, a coordinator at the same address, and the job goes on.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from spotlight.actors.protocol.door import Pool
from spotlight.actors.runtime.launcher import LocalLauncher, ProcessHandle
from spotlight.errors import UserError
from spotlight.jobs import PoolsSpec
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.permissions import Permissions
from spotlight.running.handed_keys import CoordinatorKeys, KnownNode, NodeKeys
from spotlight.running.worker_template import worker_template
from spotlight.store import job_queue
from spotlight.store.memory_folder import remove_leftovers
from spotlight.store.runs_folder import locked
from spotlight.store.secret_files import write_secret_file
from spotlight.transport.control.keys import KeyPair, place_of

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 1.0
_RESTARTS = 5
"""How often each daemon that is killed is started again."""
_ANY_PORT = "127.0.0.1:0"
_NO_ID = "inside"
"""The id of a token that the coordinator does not know as one."""


@dataclass(frozen=True)
class LocalPlaces:
    """Where daemons of this machine keep things, besides the run folder."""

    store: Path | None = None
    """The folder in which nodes make their stores; None for shared memory."""
    mirror: str = ""
    """The URL of object storage that the run is copied to; empty for none."""
    run_folder: Path | None = None
    """The folder of the job's run, if there is one."""
    permissions: Permissions = Permissions()
    """What the job or session may do, besides what it names itself."""
    operator_token: Path | None = None
    """File for a token by which others of this user reach the coordinator; None for none."""
    prices: Path | None = None
    """File that says what GPUs cost; None for none."""


@dataclass
class Daemon:
    """One that runs, and how it is started again."""

    name: str
    kind: str
    arguments: list[str]
    keys: CoordinatorKeys | NodeKeys
    process: ProcessHandle
    ended: str = ""
    """Why it is not started again."""


@dataclass
class LocalCluster:
    """The daemons of this machine."""

    launcher: LocalLauncher
    logs: Path
    join: JoinToken
    """The token by which this process is the coordinator's operator."""
    daemons: list[Daemon] = field(default_factory=list)
    """The coordinator is the first."""

    @property
    def coordinator(self) -> Daemon:
        """The one that runs now."""
        return self.daemons[0]

    async def start(
        self, name: str, kind: str, arguments: list[str], keys: CoordinatorKeys | NodeKeys
    ) -> Daemon:
        """Start a daemon for the first time."""
        process = await _start(self.launcher, kind, arguments, keys, self.logs, name)
        self.daemons.append(Daemon(name, kind, arguments, keys, process))
        return self.daemons[-1]

    async def keep(self, daemon: Daemon) -> None:
        """Start a daemon again when a signal has ended it."""
        for _ in range(_RESTARTS):
            code = await daemon.process.wait()
            if code >= 0:
                daemon.ended = f"{daemon.name} ended by itself with {code}"
                return
            daemon.process = await _start(
                self.launcher, daemon.kind, daemon.arguments, daemon.keys, self.logs, daemon.name
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
    launcher = LocalLauncher()
    if places.store is not None:
        of_nodes = [*of_nodes, "--store", str(places.store)]
    address_file = logs / "coordinator.address"
    with locked(logs):
        address_file.unlink(missing_ok=True)
        job_queue.discard(logs)  # whoever starts the cluster says what it goes on with
    own, secret = KeyPair.new(), secrets.token_bytes(SECRET_BYTES)
    names = _node_names(pools)
    pairs = {name: KeyPair.new() for name in names}
    nodes = tuple(KnownNode(name, pool, pairs[name].public) for name, pool in names.items())
    keys = CoordinatorKeys(own, KeyPair.derived(secret).public, nodes)
    cluster = LocalCluster(launcher, logs, JoinToken("", own.public, _NO_ID, secret))
    keepers: list[asyncio.Task[None]] = []
    try:
        mirror = ["--mirror", places.mirror] if places.mirror else []
        allowed = ["--permissions", msgspec.json.encode(places.permissions).decode()]
        run = ["--run-folder", str(places.run_folder)] if places.run_folder is not None else []
        prices = ["--prices", str(places.prices)] if places.prices is not None else []
        arguments = [*mirror, *allowed, *run, *prices, "--runs", str(logs)]
        arguments += ["--address-file", str(address_file), "--listen"]
        first = await cluster.start("coordinator", "coordinator", [*arguments, _ANY_PORT], keys)
        address = await _read_address(address_file, first.process, logs)
        place = place_of(address).removeprefix("tcp://")
        cluster.join = replace(cluster.join, place=place)
        first.arguments = [*arguments, place]
        if places.operator_token is not None:
            _leave_token(places.operator_token, cluster.join)
        keepers.append(asyncio.create_task(cluster.keep(first)))
        for name, pool in names.items():
            workers = (pools.reserved if pool == "reserved" else pools.spot).workers
            arguments = ["--name", name, "--pool", pool, "--workers", str(workers)]
            arguments += ["--logs", str(logs), *of_nodes, *allowed]
            daemon = await cluster.start(name, "node", arguments, NodeKeys(pairs[name], address))
            keepers.append(asyncio.create_task(cluster.keep(daemon)))
        yield cluster
    finally:
        for file in filter(None, (address_file, places.operator_token)):
            file.unlink(missing_ok=True)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await _stop([daemon.process for daemon in cluster.daemons])
        remove_leftovers(places.store)  # of nodes that were killed


def _leave_token(file: Path, join: JoinToken) -> None:
    try:
        write_secret_file(file, str(join))
    except OSError as error:
        raise UserError(
            f"--operator-token {file}: {error.strerror}; give a file in a folder that can be"
            " written"
        ) from error


def _node_names(pools: PoolsSpec) -> dict[str, Pool]:
    """The pool of each node, by name."""
    names: dict[str, Pool] = {}
    names |= {f"reserved-{index}": "reserved" for index in range(pools.reserved.nodes)}
    names |= {f"spot-{index}": "spot" for index in range(pools.spot.nodes)}
    return names


async def _start(
    launcher: LocalLauncher,
    kind: str,
    arguments: list[str],
    keys: CoordinatorKeys | NodeKeys,
    logs: Path,
    name: str,
) -> ProcessHandle:
    call = f"from spotlight.cli.daemons import {kind}; {kind}()"
    argv = [sys.executable, "-c", call, *arguments, "--parent", str(os.getpid())]
    log_path = logs / f"{name}.log"
    return await launcher.start(argv, os.environ, name, log_path, keys.encode())


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
