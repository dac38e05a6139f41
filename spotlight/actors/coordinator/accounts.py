"""What every second of every worker went to: takes what nodes say of it, and writes it down for
each job, and for the time without one.

The ledger of a job is in its run folder, with the roll-ups. What sessions had, whose folders are
gone after them, is with the time that nobody had in the folder of all runs. They are written every
few seconds. What is not written is said again by the nodes, whichever coordinator is there then: a
kill loses nothing, and nothing counts twice. A ledger that cannot be written costs its job nothing,
and is written as soon as it can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from spotlight.actors.coordinator.tenant.tenant import Tenant
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import RunFolderError, UnknownJob
from spotlight.policies.ledger.book import Book, Said
from spotlight.policies.money.prices import Prices
from spotlight.record.ledger import Ledger, Milliseconds, RollupLine, WorkerTimes
from spotlight.store.job_queue import JobQueue
from spotlight.store.ledger_file import read_ledger, set_ledger_aside, write_ledger
from spotlight.store.rollups import FOLDER, Rollups
from spotlight.timings import CoordinatorTimings

log = structlog.get_logger(__name__)

_BOOT = -1
"""The number under which the time counts in which the machine of a node started."""


@dataclass
class _OpenBook:
    book: Book
    folder: Path
    has_rollups: bool
    rollups: Rollups | None = None
    """None until something was written, and after an error."""
    told_at: float = 0.0
    """When anything was said of it last, in seconds since 1970."""
    prices: Prices | None = None
    """Those of the job, as they were last: what its nodes say after its end costs as much."""

    def save(self, ledger: Ledger, line: RollupLine) -> None:
        """Write a draft. Raises `RunFolderError`."""
        try:
            if self.has_rollups:
                if self.rollups is None:
                    self.rollups = Rollups(self.folder / FOLDER)
                    self.rollups.drop_after(ledger.number - 1)
                self.rollups.append(line)
            write_ledger(self.folder, ledger)
        except RunFolderError:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        if self.rollups is not None:
            rollups, self.rollups = self.rollups, None
            with suppress(RunFolderError):  # of a write that failed
                rollups.close()


class Accounts:
    """See the module's docstring.

    Args:
        runs: the folder of all runs.
        queue: knows where the runs of jobs lie.
        tenants: the jobs and sessions that run, by id.
        prices: those that are the same for all jobs.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        runs: Path,
        queue: JobQueue,
        tenants: Mapping[str, Tenant],
        prices: Prices,
        clock: Callable[[], float],
        timings: CoordinatorTimings,
    ) -> None:
        self._runs, self._queue, self._tenants = runs, queue, tenants
        self._prices, self._clock, self._timings = prices, clock, timings
        self._books: dict[str, _OpenBook] = {}
        """Those that may change, by job; empty for none."""
        self._works_for: dict[str, str] = {}
        """The job of the latest stretch of each process that is there."""
        self._has_left_job = asyncio.Event()
        """A process works for another job than before, or is gone."""
        self._writing = asyncio.Lock()
        self._troubles = LimitedLog(log)

    # --- what nodes say ---

    def report(self, report: NodeReport) -> None:
        """What a node says of its time."""
        said = Said(report.node, report.pool, _process(report.scheduler), len(report.workers))
        self._begin(said, report)
        for times in report.times:
            self._add(said, times, report)
        if report.times and self._works_for.get(said.process) != report.times[-1].job_id:
            self._works_for[said.process] = report.times[-1].job_id
            self._has_left_job.set()

    def gone(self, scheduler: ActorRef) -> None:
        """A node's process is gone, as far as is known."""
        process = _process(scheduler)
        if self._works_for.pop(process, None) is not None:
            for each in self._books.values():
                each.book.gone(process)
            self._has_left_job.set()

    def _begin(self, said: Said, report: NodeReport) -> None:
        """The start of a machine is paid for as well, once: as far as no other process of the node
        was there."""
        if said.process in self._works_for or not report.machine_s:
            return
        book = self._open("").book
        if not book.knows(said.process, _BOOT):
            free_s = self._clock() - _age_s(report) - book.seen_until(said.node)
            boot_ms = round(1000 * min(report.machine_s, max(0.0, free_s)))
            workers: dict[str, Milliseconds]
            workers = {worker.worker: {"starting": boot_ms} for worker in report.workers}
            self._add(said, WorkerTimes(_BOOT, "", workers), report)

    def _add(self, said: Said, times: WorkerTimes, report: NodeReport) -> None:
        opened, at = self._open(times.job_id), self._clock()
        own = {
            worker: states
            for worker, states in times.workers.items()
            if worker.rpartition("/")[0] == said.node
        }
        if self._is_after_its_end(times, opened) and opened.book.knows(said.process, times.number):
            price = opened.book.price_of(said.process, times.number)
        else:
            prices = self._prices_of(times.job_id, opened)
            price = prices.of(said.node, said.pool, report.price, at)
        opened.book.add(said, WorkerTimes(times.number, times.job_id, own), price, at)
        opened.told_at = at

    def _is_after_its_end(self, times: WorkerTimes, opened: _OpenBook) -> bool:
        """Whether nobody knows the prices of its job any more: an earlier coordinator ended it."""
        has_job = bool(times.job_id) and times.job_id not in self._tenants
        return has_job and opened.prices is None

    def _prices_of(self, job_id: str, opened: _OpenBook) -> Prices:
        tenant = self._tenants.get(job_id)
        if tenant is None:
            return opened.prices or self._prices
        if opened.has_rollups:
            opened.prices = tenant.prices
        return tenant.prices

    # --- what is written ---

    async def keep(self) -> None:
        """Write what is new every few seconds."""
        while True:
            await asyncio.sleep(self._timings.ledger_s)
            await self.write()
            self._close_old()

    async def write(self, *jobs: str) -> None:
        """Write what is new, of these jobs or of all."""
        async with self._writing:
            for job_id in jobs or list(self._books):
                opened = self._books.get(job_id)
                if opened is not None and opened.book.has_news:
                    await self._write(job_id, opened)

    async def settle(self, job_id: str) -> None:
        """A job has ended: write what its nodes say of it in the end, which they do at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timings.ledger_settles_s):
                while job_id in self._works_for.values():
                    self._has_left_job.clear()
                    await self._has_left_job.wait()
        await self.write(job_id)

    async def close(self) -> None:
        """Write what is new, and close the files."""
        await self.write()
        self.abort()

    def abort(self) -> None:
        """Close the files as a kill does."""
        for opened in self._books.values():
            opened.close()

    async def _write(self, job_id: str, opened: _OpenBook) -> None:
        book, tenant, at = opened.book, self._tenants.get(job_id), self._clock()
        before = book.written
        since_s = max(0.0, at - before.at) if before.number else 0.0
        time_s = tenant.run_time_s() if tenant is not None else before.time_s + since_s
        ledger, line = book.draft(at, time_s, self._currency_of(job_id, opened))
        try:
            await asyncio.to_thread(opened.save, ledger, line)
        except RunFolderError as error:
            reason = str(error)
            self._troubles.error("ledger_not_written", about=reason, job=job_id, reason=reason)
            return
        book.keep(ledger, line)
        if tenant is not None:
            tenant.spent(sum(line.spent.values()) if line.spent else None, time_s)

    def _currency_of(self, job_id: str, opened: _OpenBook) -> str:
        if opened.prices is None and opened.book.written.number:
            return opened.book.written.currency
        return self._prices_of(job_id, opened).currency

    def _close_old(self) -> None:
        """The books of jobs that run no more, and of which nothing more is said."""
        for job_id, opened in list(self._books.items()):
            is_quiet = self._clock() - opened.told_at > self._timings.ledger_quiet_s
            if is_quiet and job_id not in self._tenants and not opened.book.has_news:
                opened.close()
                del self._books[job_id]

    # --- where it is written ---

    def _open(self, job_id: str) -> _OpenBook:
        """The book of a job; else that of the folder of all runs."""
        opened = self._books.get(job_id)
        if opened is None:
            folder = self._folder_of(job_id)
            if folder is None or not folder.is_dir():
                return self._open("")
            opened = _OpenBook(Book(self._read(folder)), folder, has_rollups=bool(job_id))
            self._books[job_id] = opened
        return opened

    def _folder_of(self, job_id: str) -> Path | None:
        if not job_id:
            return self._runs
        try:
            job = self._queue.find(job_id)
        except UnknownJob:
            return None
        return Path(job.run_folder) if job.kind == "job" else None

    def _read(self, folder: Path) -> Ledger:
        """A ledger that cannot be read is set aside, so that what comes now is written."""
        try:
            return read_ledger(folder)
        except RunFolderError as error:
            log.error("ledger_not_read", reason=str(error))
            set_ledger_aside(folder)
            return Ledger()


def _process(scheduler: ActorRef) -> str:
    return f"{scheduler.process:x}"


def _age_s(report: NodeReport) -> float:
    """For how long the process is there."""
    each = (times.workers.values() for times in report.times)
    return max((sum(its.values()) for its in next(each, ())), default=0) / 1000
