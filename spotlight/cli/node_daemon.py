"""The process of a node, from its joining to its end."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.door import Pool
from spotlight.actors.runtime import garbage
from spotlight.actors.runtime.fork_launcher import ForkLauncher
from spotlight.actors.runtime.loop import ending_signals, until_told
from spotlight.cli import machine_age
from spotlight.cli.node_identity import NodeIdentity
from spotlight.cli.serving import actor_system, bind, control_transport, open_port
from spotlight.cloud.detect import detect, metadata_urls
from spotlight.cloud.file import NoticeFile
from spotlight.cloud.installed import installed_sources
from spotlight.cloud.notices import NoticeBook, watch_notices
from spotlight.cloud.signals import grace_s, signals_as_notice
from spotlight.errors import UserError
from spotlight.permissions import Permissions
from spotlight.policies.notices import Notice
from spotlight.process_start import NOTICE_SIGNALS
from spotlight.record.ledger import Price
from spotlight.resolved_structs import resolve_structs
from spotlight.running.worker_template import LOG as TEMPLATE_LOG
from spotlight.running.worker_template import worker_template
from spotlight.store.log_folder import bound
from spotlight.timings import Timings
from spotlight.transport.control import KeyPair
from spotlight.transport.listening import Listening
from spotlight.transport.tensors import BundleStore, DataPort


@dataclass
class NodeDaemon:
    """What the command line says of a node, and how the process is to end."""

    name: str
    workers: int
    identity: NodeIdentity
    place: Listening
    """Control messages come here."""
    data: Listening
    """Samples and weights are served here."""
    port: DataPort
    logs: Path
    """The logs of the workers lie in this folder."""
    memory: Path
    """The node keeps its copies of the weights in this folder."""
    permissions: Permissions
    watched: bool
    """Whether it looks itself for what cloud and signals say; else another process started it for
    itself, which tells it."""
    notice_file: Path | None
    """The launcher gives notice in this file."""
    template: str
    """Workers are forked from this template; from one of its own if it is empty."""
    price: Price | None = None
    """What a GPU of it costs, if that was said."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _problem: UserError | None = None

    async def serve(self) -> None:
        """Serve until it is told to end, or has left. Raises `UserError` if it cannot join."""
        resolve_structs()
        timings = Timings()
        token = secrets.token_hex(16)
        store = BundleStore(self.memory, token=token, port=self.port, timings=timings.transfers)
        try:
            async with AsyncExitStack() as stack:
                await self._serve_with(store, stack, timings)
        finally:
            await store.aclose()
            await self.port.aclose()
        if self._problem is not None:
            raise self._problem

    async def _serve_with(
        self, store: BundleStore, stack: AsyncExitStack, timings: Timings
    ) -> None:
        transport = control_transport(self.place, self.identity.pair, timings)
        system = actor_system(transport, random.Random(secrets.randbits(64)), timings)
        await bind(system, "--host")
        stack.push_async_callback(system.aclose)
        await open_port(self.port, self.data)
        await store.start()
        garbage.tune()
        forked_from = await stack.enter_async_context(worker_template(self.logs, self.template))
        pool = await self.identity.settled_pool()
        if pool is None:
            return
        notices = await stack.enter_async_context(self._notices())
        launcher = ForkLauncher(forked_from, timings.runtime)
        stack.push_async_callback(launcher.aclose)
        stack.push_async_callback(system.aclose)  # who reads the notices ends before they do
        scheduler = NodeScheduler(
            self._settings(pool),
            store,
            launcher,
            lambda worker: KeyPair.new(),
            notices,
            self.identity.enrolment,
            self._left,
            timings,
        )
        await system.spawn(lambda: scheduler, "node", linked=True)
        bounding = asyncio.create_task(self._bound_logs(pool, timings.node.logs_s))
        stack.callback(bounding.cancel)
        await until_told(system, self._stop)

    async def _bound_logs(self, pool: Pool, pause_s: float) -> None:
        """For as long as the node runs."""
        settings = self._settings(pool)
        logs = [settings.log_of(worker) for worker in settings.workers_by_name]
        if not self.template:
            logs.append(self.logs / TEMPLATE_LOG)
        while True:
            await asyncio.sleep(pause_s)
            await asyncio.to_thread(bound, logs)

    def _settings(self, pool: Pool) -> NodeSettings:
        return NodeSettings(
            self.name,
            pool,
            self.workers,
            self.place.host,
            self.identity.coordinator,
            self.logs,
            os.getpid(),
            self.place.advertised_host,
            self.permissions,
            machine_s=machine_age.machine_s() if self.watched else 0.0,
            process_s=machine_age.process_s(),
            price=self.price,
        )

    def _left(self, error: UserError | None) -> None:
        self._problem = error
        self._stop.set()

    @asynccontextmanager
    async def _notices(self) -> AsyncIterator[AsyncIterator[Notice] | None]:
        """What this machine's cloud, launcher and signals say. A node that is not `watched` ends on
        SIGTERM.
        """
        numbers = [each for each in ending_signals() if each != signal.SIGINT]
        if not self.watched:
            for number in numbers:
                asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
            yield None
            return
        sources = [*await detect(metadata_urls(os.environ)), *installed_sources()]
        if self.notice_file is not None:
            sources.append(NoticeFile(self.notice_file))
        with signals_as_notice(
            numbers, NOTICE_SIGNALS, grace_s(os.environ), again=self._stop.set
        ) as signals:
            async with aclosing(watch_notices([*sources, signals], NoticeBook())) as notices:
                yield notices
