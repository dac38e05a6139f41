"""A whole cluster on one event loop: the real actors of coordinator, nodes and workers, whose
engines compute fingerprints on virtual time.

Every process is an actor system of its own on a memory network. It can be killed, stopped and cut
off like one, and whatever it started goes with it.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spotlight import failpoints
from spotlight.actors.coordinator.coordinator import MAILBOX, Coordinator
from spotlight.actors.coordinator.door import Door
from spotlight.actors.coordinator.key_ring import KeyRing, door_file
from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.handed_keys import WorkerKeys
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.actors.worker.worker_actors import start_actors
from spotlight.actors.worker.worker_state import EXIT_CODE, WorkerContext
from spotlight.errors import SpotlightError
from spotlight.permissions import Permissions
from spotlight.policies.money.prices import Prices
from spotlight.store.journal import NAME as JOURNAL
from spotlight.store.runs_folder import RunsFolder
from spotlight.timings import Timings
from spotlight.transport.control import Guests
from spotlight.transport.control.keys import KeyPair
from spotlight.types import TokenRole
from spotlight_simulation.actor_logs import ActorLogs
from spotlight_simulation.addresses import address_of, is_spared
from spotlight_simulation.fake_cloud import FakeCloud
from spotlight_simulation.fake_engine import FakeEngine
from spotlight_simulation.fake_hardware import FakeHardware, HardwareTimes
from spotlight_simulation.freezing import FreezableLoop, context_of, current_process
from spotlight_simulation.history import History
from spotlight_simulation.ledger_watch import LedgerWatch
from spotlight_simulation.memory_network import Faults, MemoryNetwork, MemoryTransport
from spotlight_simulation.memory_store import SimulatedStore, Stores
from spotlight_simulation.numerics import Fingerprints, Numerics
from spotlight_simulation.processes import Launcher, NodeSpec, Process
from spotlight_simulation.saved_rows import saved_rows
from spotlight_simulation.virtual_threads import VirtualThreads
from spotlight_simulation.wiretap import WatchedSystem, Wiretap

COORDINATOR = "coordinator"
DOOR = "door"
PROGRAM = "program"
"""One with a training loop of its own."""
USER = "user"
"""Who operates the cluster."""
_SEEN_BY_PEERS = 0.5
"""How often the others of a group see at once that a process is gone; else its node tells them."""


class Killed(BaseException):
    """The process that runs was killed just now; nothing of it may go on."""


@dataclass
class Cluster:
    """See the module's docstring. Everything follows from the seed.

    Args:
        folder: for run folders.
    """

    seed: int
    folder: Path
    nodes: tuple[NodeSpec, ...]
    times: HardwareTimes = field(default_factory=HardwareTimes)
    exact_training: bool = True
    numerics: Numerics = field(default_factory=Fingerprints)
    timings: Timings = Timings()
    """The limits of its coordinators; nodes and workers have those that are shipped."""
    permissions: Permissions = Permissions()
    """What its coordinators let jobs do."""
    prices: Prices = field(default_factory=Prices)
    """What its nodes cost."""

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FreezableLoop), "processes can be stopped on a FreezableLoop only"
        self.loop = loop
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        self._context = copy_context()
        self.history = History(loop.time)
        self.ledgers = LedgerWatch(self.history, self.folder / "runs", loop.time)
        self.logs = ActorLogs(self.history, self.ledgers)
        self.tap = Wiretap(
            self.history, self.logs, self.ledgers, lambda name: self.on_failpoint(name)
        )
        self.network = MemoryNetwork(self.rng("network"), Faults(spares=is_spared))
        self.stores = Stores(
            self.rng("stores"),
            reaches=self.reaches,
            reader=lambda: _name_of(current_process()),
            transfer_s=self.times.transfer_s,
            network=self.times.network,
            missed=lambda reader, key: self.history.add("missed", reader=reader, key=key),
        )
        self.hardware = FakeHardware(
            rng=self.rng("hardware"),
            history=self.history,
            stores=self.stores,
            kill=self._kill_soon,
            incarnation=lambda name: self.processes[name].identity,
            numerics=self.numerics,
            times=self.times,
            exact_training=self.exact_training,
        )
        self.processes: dict[str, Process] = {}
        self._specs = {node.name: node for node in self.nodes}
        self._users: dict[str, TokenRole] = {USER: "operator"}
        self._keys: KeyRing | None = None
        """The keys of the latest coordinator."""
        self._pids = 0
        self._endings: set[asyncio.Task[None]] = set()
        self.cloud = FakeCloud(self.hardware.timings.departure.outlived_after_s)
        self.on_failpoint: Callable[[str], None] = lambda name: None
        """Called when the coordinator reaches a failpoint."""

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for every purpose."""
        return random.Random(f"{self.seed} {purpose}")

    async def __aenter__(self) -> Cluster:
        self._watching = ExitStack()
        self._watching.enter_context(self.logs.reading())
        failpoints.install(self._reached)
        self.loop.set_exception_handler(self._on_loop_error)
        self._user = self.system_of(USER, rng=self.rng(USER))
        await self._user.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        failpoints.install(None)
        self._watching.close()
        for name in [COORDINATOR, *self._specs, *list(self.processes)]:
            self.kill_process(name)
        await self._user.abort()
        while self._endings:
            await asyncio.wait(self._endings)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Killed):
            self.history.violation(f"nobody handled: {context['message']}: {error!r}")

    # --- starting ---

    async def start_coordinator(self) -> None:
        """Start it, or start it again; it goes on with the job that it had."""
        process = self._add(COORDINATOR)
        runs, rng = self.folder / "runs", self.rng(f"coordinator {process.pid}")

        def open_store(folder: Path, token: str) -> SimulatedStore:
            return self.stores.open(COORDINATOR, str(folder.relative_to(self.folder)), token)

        async def boot() -> None:
            transport = self.network.transport(COORDINATOR, guests=Guests())
            keys = self._keys = await self._key_ring(transport, runs, process.pid)
            coordinator = Coordinator(
                RunsFolder(runs),
                rng,
                open_store,
                keys,
                self.timings,
                permissions=self.permissions,
                prices=self.prices,
            )
            system = await self._start_system(process, transport)
            try:
                await system.spawn(lambda: coordinator, COORDINATOR, linked=True, mailbox=MAILBOX)
                await system.spawn(lambda: Door(keys, coordinator), DOOR, linked=True)
            except SpotlightError as error:
                self._crashed(process, error)

        await self._inside(process, boot())

    async def _key_ring(self, transport: MemoryTransport, runs: Path, pid: int) -> KeyRing:
        """Of the coordinator: the first lets all nodes in, the others read what it has written. All
        know the users."""
        file = door_file(runs)
        is_first, chance = not file.exists(), self.rng(f"door {pid}")
        keys = KeyRing(transport, file, clock=self.loop.time, random_bytes=chance.randbytes)
        for spec in self.nodes if is_first else ():
            keys.admit_node(spec.name, spec.name, spec.pool)
        for name, role in self._users.items():
            if keys.passport(address_of(name)) is None:
                keys.admit_user(name, name, role)
        await keys.saved()
        return keys

    async def start_node(self, name: str, machine_s: float = 0.0) -> None:
        """Start a node, or start it again; its workers follow. Its machine has been starting for so
        long, if that was for it."""
        spec, process = self._specs[name], self._add(name)
        self.ledgers.begun(process.identity, machine_s)
        folder = f"{name} {process.pid}"
        store = self.stores.open(name, folder)
        settings = NodeSettings(
            name,
            spec.pool,
            spec.workers,
            "simulated",
            address_of(COORDINATOR),
            self.folder,
            1,
            machine_s=machine_s,
        )

        async def boot() -> None:
            system = await self._start_system(process, self.network.transport(name))
            await store.start()
            await system.spawn(
                lambda: NodeScheduler(
                    settings,
                    store,  # type: ignore[arg-type]
                    Launcher(process, partial(self.start_worker, spec)),
                    lambda worker: KeyPair(worker, ""),
                    self.cloud.notices(name),
                ),
                "node",
                linked=True,
            )

        await self._inside(process, boot())

    async def run_program(
        self, name: str, main: Callable[[ActorSystem], Coroutine[Any, Any, None]]
    ) -> None:
        """Have a process of somebody else do its work, until that is done or it is killed."""
        process = self._add(name)

        async def life() -> None:
            await main(await self._start_system(process, self._users_transport(name)))

        task = self.loop.create_task(life(), context=context_of(process.identity))
        process.ended.add_done_callback(lambda _: task.cancel(), context=self._context)
        await asyncio.wait((task,))
        if not process.ended.done():
            task.result()
            self._kill(process)

    def system_of(self, name: str, *, rng: random.Random) -> ActorSystem:
        """The actor system, not started yet, of a process that nobody watches or kills: the user's
        or a program's."""
        return ActorSystem(self._users_transport(name), rng=rng, rights=MAY_SAY)

    def start_worker(self, node: NodeSpec, name: str, keys: WorkerKeys) -> Process:
        """Called by a node's launcher."""
        process = self._add(name)
        rng = self.rng(f"worker {process.pid}")

        async def boot() -> None:
            await asyncio.sleep(rng.uniform(*self.times.boot_s))
            engine, epoch = FakeEngine(self.hardware, name), rng.getrandbits(48)
            threads = VirtualThreads()
            context = process.context = WorkerContext(
                name, epoch, address_of(node.name), threads=threads, fault_of=engine.fault_of
            )
            guests = Guests(keys.guests)
            transport = self.network.transport(name, heartbeats=False, guests=guests)
            system = await self._start_system(process, transport)
            await start_actors(system, context, engine, keys.start)
            await context.ends.wait()
            await asyncio.sleep(context.timings.worker.farewell_s)
            self.loop.call_soon(self._kill, process, EXIT_CODE, context=self._context)

        booting = self.loop.create_task(boot(), context=context_of(process.identity))
        process.ended.add_done_callback(lambda _: booting.cancel(), context=self._context)
        booting.add_done_callback(lambda _: self._has_booted(process, booting))
        self._keep(booting)
        return process

    def _has_booted(self, process: Process, booting: asyncio.Task[None]) -> None:
        if not booting.cancelled() and booting.exception() is not None:
            self._crashed(process, booting.exception())

    async def _start_system(self, process: Process, transport: MemoryTransport) -> ActorSystem:
        rng = self.rng(f"{process.name} {process.pid}")
        system = WatchedSystem(transport, self.tap, process.identity, rng=rng)
        await system.start()
        process.system = system
        self._keep(self.loop.create_task(self._watch(process), context=self._context))
        self.history.add("started", process=process.name)
        return system

    def _add(self, name: str) -> Process:
        assert not self.is_up(name), f"{name} runs already"
        self._pids += 1
        ended = self.loop.create_future()
        process = self.processes[name] = Process(name, self._pids, ended, self._kill)
        return process

    async def _inside(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work, context=context_of(process.identity))
        await asyncio.wait((task,))
        if not process.ended.done():
            task.result()
        elif not task.cancelled():
            task.exception()  # it was killed as it started

    def _users_transport(self, name: str) -> MemoryTransport:
        """Of a user or a program. Whoever is not known yet may submit."""
        if name not in self._users:
            self._users[name] = "submitter"
            if self._keys is not None:
                self._keys.admit_user(name, name, "submitter")
        return self.network.transport(name, guests=Guests({COORDINATOR: "coordinator"}))

    # --- ending ---

    def is_up(self, name: str) -> bool:
        """Whether a process of that name runs."""
        process = self.processes.get(name)
        return process is not None and not process.ended.done()

    def kill_process(self, name: str) -> bool:
        """End a process at once, and with a node its workers; False if it does not run."""
        if not self.is_up(name):
            return False
        self._kill(self.processes[name])
        for worker in self._specs[name].processes[1:] if name in self._specs else ():
            self.kill_process(worker)
        return True

    def _kill_soon(self, name: str) -> None:
        """For work of that process itself."""
        self.loop.call_soon(self.kill_process, name, context=self._context)

    def _kill(self, process: Process, code: int = -9) -> None:
        if process.ended.done():
            return
        self.history.add("killed", process=process.name)
        self.logs.note_loss(process.identity, self.hardware.at_work.pop(process.name, None))
        self.hardware.lose(process.name, seen=self.hardware.rng.random() < _SEEN_BY_PEERS)
        if process.context is not None:
            process.context.close()
        system = process.system
        self._end(process, code)
        if process.name == COORDINATOR:
            self.ledgers.coordinator_ended()
        if system is not None:
            system.post.transport.abort()
            saved = self._journal_files() if process.name == COORDINATOR else {}
            self._check_journal(saved)
            ending = self._bury(process, system, saved)
            self._keep(self.loop.create_task(ending, context=self._context))

    def _end(self, process: Process, code: int) -> None:
        process.ended.set_result(code)
        self.stores.close_all_of(process.name)
        self.network.resume(address_of(process.name))
        self.loop.condemn(process.identity)
        if process.system is None:
            self.loop.call_later(1.0, self.loop.forget, process.identity, context=self._context)

    async def _bury(
        self, process: Process, system: ActorSystem, journal: dict[Path, bytes]
    ) -> None:
        """Let the kernel take back what a killed process had."""
        await system.abort()
        for path, data in journal.items():  # closing has tidied up, which a kill does not
            path.write_bytes(data)
        self.loop.forget(process.identity)

    async def _watch(self, process: Process) -> None:
        """A process that ends by itself has crashed."""
        assert process.system is not None
        closed = self.loop.create_task(process.system.wait_closed())
        await asyncio.wait((closed, process.ended), return_when=asyncio.FIRST_COMPLETED)
        if process.ended.done():
            closed.cancel()
        else:
            self._crashed(process, closed.exception())

    def _crashed(self, process: Process, error: BaseException | None) -> None:
        if process.ended.done():
            return
        cause = (process.system.failure if process.system is not None else None) or error
        while cause is not None and cause.__cause__ is not None:
            cause = cause.__cause__
        frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
        where = "; ".join(f"{frame.name}: {frame.line}" for frame in frames[-2:])
        self.history.violation(f"{process.name} crashed: {cause!r} in {where}")
        self._kill(process)

    async def buried(self) -> None:
        """Return when what killed processes left is cleared away."""
        while burying := [task for task in self._endings if "_bury" in repr(task.get_coro())]:
            await asyncio.wait(burying)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def look_into_the_journal(self) -> None:
        """Hold what workers were told is durable against the file as it is now."""
        self._check_journal(self._journal_files())

    def _check_journal(self, files: dict[Path, bytes]) -> None:
        for tenant, rows in saved_rows(files).items():
            self.logs.of(tenant).acks.check_journal(rows)

    def _journal_files(self) -> dict[Path, bytes]:
        files = sorted((self.folder / "runs").glob(f"*/{JOURNAL}"))
        return {file: file.read_bytes() for file in files}

    # --- stopping and cutting off ---

    def freeze(self, names: Sequence[str]) -> None:
        """Stop processes, as SIGSTOP does."""
        for name in names:
            self.network.pause(address_of(name))
            self.loop.freeze(self.processes[name].identity)
            if name == COORDINATOR:
                self.ledgers.frozen()

    def thaw(self, names: Sequence[str]) -> int:
        """Let them go on; returns how much was due meanwhile."""
        due = 0
        for name in names:
            self.network.resume(address_of(name))
            due += self.loop.thaw(self.processes[name].identity)
            if name == COORDINATOR:
                self.ledgers.thawed()
        return due

    def cut(self, left: str, right: str, *, one_way: bool) -> list[tuple[str, str]]:
        """Stop all frames from one machine to another; returns what `heal` needs."""
        cuts = [
            (address_of(a), address_of(b))
            for a in self._machine(left)
            for b in self._machine(right)
        ]
        if not one_way:
            cuts += [(b, a) for a, b in cuts]
        for a, b in cuts:
            self.network.partition([a], [b], one_way=True)
        return cuts

    def reaches(self, source: str, destination: str) -> bool:
        """Whether bytes get through from one process to another now."""
        return not self.network.is_cut(address_of(source), address_of(destination))

    def _machine(self, name: str) -> tuple[str, ...]:
        spec = self._specs.get(name)
        return spec.processes if spec is not None else (name,)

    # --- failpoints and users ---

    def _reached(self, name: str) -> None:
        coordinator = self.processes.get(COORDINATOR)
        if coordinator is not None and current_process() == coordinator.identity:
            self.on_failpoint(name)

    def user(self) -> ActorSystem:
        """The actor system of somebody who asks and submits."""
        return self._user

    def coordinator_actor(self) -> ActorRef:
        """The coordinator."""
        return self._user.well_known(address_of(COORDINATOR), COORDINATOR)


def _name_of(identity: str) -> str:
    return identity.partition("#")[0]
