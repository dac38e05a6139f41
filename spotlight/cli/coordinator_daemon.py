"""The coordinator's process, from its open door to its end."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from spotlight import failpoints
from spotlight.actors.coordinator.coordinator import MAILBOX, Coordinator
from spotlight.actors.coordinator.door import Door
from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.runtime import garbage
from spotlight.actors.runtime.loop import until_told
from spotlight.cli.coordinator_identity import CoordinatorIdentity
from spotlight.cli.serving import actor_system, bind, control_transport, open_port
from spotlight.errors import UserError
from spotlight.permissions import Permissions
from spotlight.policies.money.prices import Prices
from spotlight.process_start import NOTICE_SIGNALS
from spotlight.resolved_structs import resolve_structs
from spotlight.store.object_store import ObjectStore
from spotlight.store.run_folder import replace_file
from spotlight.store.runs_folder import RunsFolder
from spotlight.timings import Timings
from spotlight.transport.listening import Listening
from spotlight.transport.tensors import BundleStore, DataPort

if TYPE_CHECKING:
    from spotlight.web.opening import OpenedPage

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class CoordinatorDaemon:
    """What the command line says of a coordinator."""

    identity: CoordinatorIdentity
    place: Listening
    """Control messages come here."""
    data: Listening
    """Samples and weights are served here."""
    port: DataPort
    runs: RunsFolder
    copies: ObjectStore | None
    """Runs are copied to there."""
    address_file: Path | None
    """The control address is written to this file once it can be reached."""
    permissions: Permissions
    prices: Prices = field(default_factory=Prices)
    """Those that are the same for all jobs."""
    page: OpenedPage | None = None
    """The page of the runs; None for none."""

    async def serve(self) -> None:
        """Serve until it is told to end. Raises `UserError` that names the option."""
        failpoints.from_environment()
        resolve_structs()
        async with self._serving_page():
            await self._serve()

    async def _serve(self) -> None:
        rng, timings = random.SystemRandom(), Timings()  # the tokens of stores come from it
        transport = control_transport(self.place, self.identity.pair, timings)
        keys = self.identity.open_ring(transport, timings.door)
        system = actor_system(transport, rng, timings)
        mirror = MirrorPlace(self.copies, rng) if self.copies is not None else None
        await bind(system, "--listen")
        try:
            await open_port(self.port, self.data)
            garbage.tune()
            coordinator = Coordinator(
                self.runs,
                rng,
                self._open_artifacts,
                keys,
                timings=timings,
                mirror=mirror,
                permissions=self.permissions,
                prices=self.prices,
            )
            await system.spawn(lambda: coordinator, "coordinator", linked=True, mailbox=MAILBOX)
            await system.spawn(lambda: Door(keys, coordinator), "door", linked=True)
            await self.identity.leave_operator_token(keys, system.address)
            self._leave_address(system.address)
            log.info("coordinator_listens", address=system.address)
            self._serve_on_at_notice()
            await until_told(system)
        finally:
            await system.aclose()
            await self.port.aclose()
            if mirror is not None:
                mirror.close()

    @asynccontextmanager
    async def _serving_page(self) -> AsyncIterator[None]:
        """Jobs neither wait for it nor end with it."""
        if self.page is None:
            yield
            return
        await asyncio.to_thread(self.page.server.start)
        try:
            log.info("page_serves", url=self.page.link(), fingerprint=self.page.fingerprint)
            yield
        finally:
            await asyncio.to_thread(self.page.server.close)

    def _open_artifacts(self, folder: Path, token: str) -> BundleStore:
        return BundleStore(
            folder,
            token=token,
            term=secrets.token_hex(16),
            port=self.port,
            durable=True,
            timings=Timings().transfers,
        )

    def _leave_address(self, address: str) -> None:
        if self.address_file is None:
            return
        try:
            replace_file(self.address_file, address.encode())
        except OSError as error:
            raise UserError(
                f"--address-file {self.address_file}: {error.strerror}; give a file in a folder"
                " that can be written"
            ) from error

    def _serve_on_at_notice(self) -> None:
        """Nodes that leave on this notice give their work back here: it ends when it is told to."""
        for number in NOTICE_SIGNALS:
            serve_on = partial(log.warning, "coordinator_serves_until_sigterm", notice=number.name)
            asyncio.get_running_loop().add_signal_handler(number, serve_on)
