"""The requests of a job, from their submission to their end: what the table of requests decides is
carried out here, in its order.

Every call is done when it returns, and the journal is written before anything else follows. What is
finished or given up is handed to `ended`, which only keeps it for later: nothing here is called
again from there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress

import structlog

from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.protocol import Grant, Recall, Receipt, Revoke, WorkerRefs
from spotlight.actors.runtime import ActorRef, Message
from spotlight.errors import JournalError
from spotlight.policies.dispatch.instructions import (
    Answer,
    DeleteBundle,
    GrantLease,
    Instruction,
    Persist,
    RecallLeases,
    Record,
    RequestsFinished,
    RequestsGivenUp,
    RevokeLeases,
)
from spotlight.policies.dispatch.table import RequestTable
from spotlight.types import BundleOffer, Request, RequestKind

log = structlog.get_logger(__name__)

Ended = RequestsFinished | RequestsGivenUp


class RequestQueue:
    """See the module's docstring.

    Args:
        table: decides; nobody else changes it.
        journal: of the run.
        tell: sends a message to a group leader; False if it cannot be sent.
        ended: is given what is finished or given up.
        discard: deletes a bundle from the coordinator's store.
        record: writes an event to the run folder.
        backlog_changed: called when another kind of work waits, or little of it.
        lease_s: a lease ends so long after its holder was heard.
    """

    def __init__(
        self,
        *,
        table: RequestTable,
        journal: JobJournal,
        tell: Callable[[ActorRef, Message], bool],
        ended: Callable[[Ended], None],
        discard: Callable[[BundleOffer], None],
        record: Callable[..., None],
        backlog_changed: Callable[[], None],
        lease_s: float,
    ) -> None:
        self._table = table
        self._journal = journal
        self._tell = tell
        self._ended = ended
        self._discard = discard
        self._record = record
        self._backlog_changed = backlog_changed
        self._lease_s = lease_s
        self._outline: Hashable = ()
        """Of the backlog, when it was told last."""
        self._leaders: dict[str, ActorRef] = {}
        """By the name of the worker."""
        self._remembers = False

    # --- requests ---

    def submit(self, requests: Collection[Request]) -> None:
        """Queue requests, grant them to whoever waits, and hand out what is finished already; those
        that are known are ignored.
        """
        if not requests:
            return
        if not self._remembers:  # only now is it settled from where the run goes on
            self._remembers = True
            self._table.remember(self._journal.requests())
        self.carry_out(self._table.submit(requests, self._now()))

    def expect_previews(self, count: int) -> None:
        """So many previews may yet be submitted: nodes plan for them, too."""
        self._table.unsubmitted_previews = count

    def cancel(self, kind: RequestKind) -> None:
        """Drop the requests of a kind; leases on them are revoked, and what still comes is late."""
        self.carry_out(self._table.cancel(kind, self._now()))

    def forget(self, kind: RequestKind, iteration: int) -> None:
        """The results of a kind and iteration are used up: drop them and their bundles."""
        self.carry_out(self._table.forget(kind, iteration, self._now()))
        with suppress(JournalError):  # ends the job
            self._journal.forget_requests(kind, iteration)

    # --- workers ---

    def leader_of(self, worker: str) -> ActorRef | None:
        """Who speaks for a worker; None if it is not here any more."""
        return self._leaders.get(worker)

    def bar(self, workers: Collection[str]) -> None:
        """Grant nothing to these until the next time: they train. All others may be granted."""
        self.carry_out(self._table.bar(workers, self._now()))

    def add_workers(self, node: str, pool: str, workers: Iterable[WorkerRefs]) -> None:
        """These workers of a node may pull from now on; they may be back as other processes."""
        for refs in workers:
            instructions = self._table.add_worker(refs.worker, refs.epoch, node, pool, self._now())
            self._leaders[refs.worker] = refs.leader
            self.carry_out(instructions)

    def remove_workers(
        self,
        workers: Iterable[str],
        reason: str,
        *,
        announced: bool = False,
        ended: bool = False,
    ) -> None:
        """These workers are gone, and others are granted what they held.

        Args:
            announced: they left after a notice, so what they held is not suspected of having ended
                them.
            ended: their node says that their processes ended; else they are out of reach.
        """
        for name in workers:
            self._leaders.pop(name, None)
            self.carry_out(
                self._table.lose_worker(
                    name, reason, announced=announced, ended=ended, now=self._now()
                )
            )

    def set_leaving(self, workers: Iterable[str], *, leaving: bool) -> None:
        """Nothing more for workers that will be gone, and others go on with what they have; or they
        stay after all.
        """
        self.carry_out(self._table.set_leaving(workers, leaving=leaving, now=self._now()))

    # --- what the table says ---

    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Do what the table says, in order. A journal that cannot be written has ended the job: the
        rest is left undone then.
        """
        with suppress(JournalError):
            self.carry_out_and_answer(instructions)

    def carry_out_and_answer(self, instructions: Iterable[Instruction]) -> Receipt:
        """The same for what a worker delivered: returns its answer. Raises `JournalError`, as what
        is not durable is not acknowledged.
        """
        answer = Receipt(0)
        to_do = deque(instructions)
        while to_do:
            match to_do.popleft():
                case Persist(rows):
                    self._journal.save_requests(rows)
                case Answer(accepted, ask_again):
                    answer = Receipt(accepted, ask_again)
                case GrantLease(worker, lease, requests, commits, commit_every):
                    grant = Grant(lease, self._lease_s, requests, commits, commit_every)
                    log.debug("lease_granted", lease=lease)
                    if not self._tell(self._leaders[worker], grant):
                        to_do += self._table.unreachable(worker, lease, self._now())
                case RevokeLeases(worker, leases):
                    self._tell(self._leaders[worker], Revoke(leases))
                case RecallLeases(worker, leases):
                    self._tell(self._leaders[worker], Recall(leases))
                case RequestsFinished() | RequestsGivenUp() as ended:
                    self._ended(ended)
                case DeleteBundle(bundle):
                    self._discard(bundle)
                case Record(event, fields):
                    log.warning(event, **fields)
                    self._record(event, **fields)
        self._tell_of_backlog()
        return answer

    def _tell_of_backlog(self) -> None:
        outline = self._table.backlog_outline()
        if outline != self._outline:
            self._outline = outline
            self._backlog_changed()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
