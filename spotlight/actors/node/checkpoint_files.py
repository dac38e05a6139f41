"""The job's checkpoint on this machine, if it is one of the hub: the workers begin with the job
once its files are there, or are to be downloaded here.

Invariants:
- What is whole in the hub's cache is used without asking anybody.
- Workers download when the plan says so, and report themselves what goes wrong.
- Others can have the files of the present job's checkpoint, as long as the job lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from spotlight.actors.node.checkpoint_transfer import fetch_files, offer_files, withdraw_files
from spotlight.actors.protocol.down import CheckpointSource
from spotlight.actors.protocol.up import NodeCheckpoint, WorkerReport
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.diffusion import hub
from spotlight.diffusion.hub_cache import shareable
from spotlight.errors import CheckpointError, MissingDependency, TransferFailed
from spotlight.jobs.hub_names import HubName
from spotlight.timings import Timings
from spotlight.transport.tensors import BundleStore
from spotlight.types import BundleOffer

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler

log = structlog.get_logger(__name__)


class CheckpointFiles:
    """See the module's docstring.

    Args:
        node: whose tasks look and fetch, and which hears when something is new of what is here, or
            may begin.
        store: of the node, which lends the files.
    """

    def __init__(self, node: NodeScheduler, store: BundleStore, timings: Timings) -> None:
        self._node = node
        self._log = LimitedLog(log)
        self._store = store
        self._timings = timings
        self._name: HubName | None = None
        self._task: asyncio.Task[None] | None = None
        self._begin_afresh("")

    def _begin_afresh(self, checkpoint: str) -> None:
        name = HubName.parse(checkpoint)
        self._name = name if name is not None and name.is_pinned else None
        self.may_begin = self._name is None
        """Whether workers can load the model, or are to download it."""
        self._is_known = False
        self._is_whole = False
        self._is_offline = False
        self._listing: BundleOffer | None = None
        self._source: CheckpointSource | None = None
        self._missed: CheckpointSource | None = None

    @property
    def state(self) -> NodeCheckpoint | None:
        """What to report."""
        if self._name is None or not self._is_known:
            return None
        return NodeCheckpoint(
            str(self._name), self._is_whole, self._listing, self._is_offline, self._missed
        )

    def begin(self, checkpoint: str) -> None:
        """Another job, or none: its checkpoint, as it names it."""
        self._begin_work(None)
        if self._listing is not None:
            withdraw_files(self._store)
        self._begin_afresh(checkpoint)
        if self._name is not None:
            self._begin_work(self._find(self._name))

    def follow(self, source: CheckpointSource | None) -> None:
        """Take it from there; None: wait. Nothing changes if that is known, or it is here."""
        if source == self._source:
            return
        self._source, self._missed = source, None
        if self._is_known:
            self._go_on()

    def note(self, report: WorkerReport) -> None:
        """A worker that cannot load the model could not download it, as far as is known here."""
        is_download = self._source is not None and self._source.listing is None
        if report.cannot_serve and is_download and not self._is_whole and self._missed is None:
            self._missed = self._source
            self._node.files_changed()

    def _go_on(self) -> None:
        """Do what the plan says."""
        name, source = self._name, self._source
        if name is None or self._is_whole:
            return
        if source is not None and source.listing is not None:
            return self._begin_work(self._take(name, source, source.listing))
        if source is not None:
            self._let_begin()
        elif self._task is not None and not self.may_begin:
            return  # a coordinator that came back knows no source yet: what is taken goes on
        self._begin_work(self._await_download(name) if self.may_begin else None)

    def _begin_work(self, work: Coroutine[Any, Any, None] | None) -> None:
        """Instead of what is under way."""
        if self._task is not None:
            self._task.cancel()
        self._task = None if work is None else self._node.run_task(work)

    def _let_begin(self) -> None:
        if not self.may_begin:
            self.may_begin = True
            self._node.files_changed()

    async def _find(self, name: HubName) -> None:
        try:
            await self._look(name)
        except MissingDependency:
            return self._let_begin()  # the workers say what is missing
        self._is_offline, self._is_known = hub.is_offline(), True
        self._node.files_changed()
        self._task = None  # this one, which must not be cancelled
        self._go_on()

    async def _look(self, name: HubName) -> bool:
        """Whether it is here. Raises `MissingDependency`."""
        folder = await asyncio.to_thread(hub.cached, name)
        if folder is None:
            return False
        files = await asyncio.to_thread(shareable, folder)
        if files is not None:
            try:
                self._listing = offer_files(self._store, files)
            except TransferFailed as error:
                self._log.warning(
                    "checkpoint_not_offered",
                    about=str(error),
                    checkpoint=str(name),
                    reason=str(error),
                )
        self._is_whole = self.may_begin = True
        return True

    async def _await_download(self, name: HubName) -> None:
        while True:
            if await self._look(name):
                return self._node.files_changed()
            await asyncio.sleep(self._timings.checkpoints.look_s)

    async def _take(self, name: HubName, source: CheckpointSource, listing: BundleOffer) -> None:
        where = f"{listing.store.host}:{listing.store.port}"
        try:
            if not await self._look(name):  # another node of this machine may share the cache
                folder = hub.folder_of(name)
                await fetch_files(listing, source.files, folder, self._timings)
                if not await self._look(name):
                    raise CheckpointError("the files of the other node are not all of it")
                log.info("checkpoint_taken", checkpoint=str(name), source=where)
        except (TransferFailed, CheckpointError) as error:
            self._log.warning(
                "checkpoint_not_taken",
                about=(where, str(error)),
                checkpoint=str(name),
                source=where,
                reason=str(error),
            )
            self._missed = source
        self._node.files_changed()
        if self._missed is not None and self.may_begin:
            await self._await_download(name)
