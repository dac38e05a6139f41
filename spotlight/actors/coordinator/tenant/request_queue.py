"""The requests of a job, from their submission to their end: what the table of requests decides is
carried out here, in its order.

The table has decided when a call returns. The journal is written once for all calls and messages of
one turn of the loop: their rows first, then all that follows from them, in order. What is finished
or given up is handed to the owner, which only keeps it for later: nothing here is called again from
there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec
import structlog

from spotlight import failpoints
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.down import Grant, Recall, Receipt, Revoke
from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.protocol.up import WorkerRefs
from spotlight.actors.runtime import Actor, ActorRef, Message
from spotlight.errors import JournalError
from spotlight.policies.requests.instructions import (
    Answer,
    DeleteBundle,
    EndWorker,
    GrantLease,
    Instruction,
    Persist,
    RecallLeases,
    RecordEvent,
    RequestsFinished,
    RequestsGivenUp,
    RevokeLeases,
)
from spotlight.policies.requests.pace import Arrival
from spotlight.policies.requests.rows import SavedRow
from spotlight.policies.requests.table import RequestTable
from spotlight.record.run_events import RunEvent
from spotlight.types import BundleOffer, Request, RequestKind, Result, SamplingSettings

log = structlog.get_logger(__name__)

Ended = RequestsFinished | RequestsGivenUp


class _Reply(NamedTuple):
    """A receipt that is sent when all before it is done."""

    waiting: asyncio.Future[Receipt]
    receipt: Receipt


class RequestsOwner(Protocol):
    """Whose requests they are: it is told what follows from what the table decides."""

    def requests_ended(self, ended: Ended) -> None:
        """Keep for later what is finished or given up; nothing is called again from there."""

    def slice_of(self, request: Request) -> SliceOrder | None:
        """What the gradient is of that a request is for; None if it is revoked."""

    def discard(self, bundle: BundleOffer) -> None:
        """Have a bundle deleted, wherever it is."""

    def has(self, bundle: BundleOffer) -> bool:
        """Whether a bundle is in a store that is there."""

    def event(self, event: RunEvent) -> None:
        """Something happened: write it down."""

    def backlog_changed(self) -> None:
        """Another kind of work waits, or little of it."""

    def end_worker(self, end: EndWorker) -> None:
        """Have the process of a worker ended."""


class RequestQueue:
    """See the module's docstring.

    Args:
        owner: whose requests they are.
        actor: the dispatcher, which tells group leaders on its behalf.
        table: decides; nobody else changes it.
        journal: of the run.
        metadata: of prompts, by their text: it goes along with their requests.
    """

    def __init__(
        self,
        owner: RequestsOwner,
        actor: Actor,
        *,
        table: RequestTable,
        journal: JobJournal,
        metadata: Mapping[str, str],
    ) -> None:
        self._owner = owner
        self._table = table
        self._journal = journal
        self._metadata = metadata
        self._actor = actor
        self._outline: Hashable = ()
        """The outline of the backlog when it was told last."""
        self._to_do: deque[Instruction | _Reply] = deque()
        """What follows from the messages of this turn, once their rows are in the journal."""
        self._turn: asyncio.Task[None] | None = None
        self._remembers = False

    # --- requests ---

    def submit(self, requests: Collection[Request]) -> None:
        """Queue requests, grant them to whoever waits, and hand out what is finished already; those
        that are known are ignored.
        """
        if not requests:
            return
        self._remember()
        self.carry_out(self._table.submit(map(self._with_metadata, requests), self._now()))

    def previewed(self, iteration: int, chosen: Iterable[Request]) -> list[Result | None]:
        """The previews of an iteration are over: how these were done, perhaps before a restart,
        where their samples are there."""
        self._remember()
        return self._table.previewed(iteration, map(self._with_metadata, chosen))

    def knows(self, request: Request) -> bool:
        """Whether a request was submitted, and is not released."""
        return self._table.knows(request)

    def _remember(self) -> None:
        if not self._remembers:  # only now is it settled from where the run goes on
            self._remembers = True
            saved = self._journal.requests()
            there = {key: row for key, row in saved.items() if self._is_there(row)}
            if lost := saved.keys() - there.keys():
                log.debug("bundles_lost", requests=len(lost))
                # Others are made in their place, also if the node comes back with them.
                self._journal.stage_requests(dict.fromkeys(sorted(lost)))
            self._table.remember(there, self._journal.adopts_from)

    def _is_there(self, row: SavedRow) -> bool:
        """Else its request is done again: what it left was lost with the node that kept it."""
        return row.commit is None or self._owner.has(row.commit.bundle)

    def _with_metadata(self, request: Request) -> Request:
        metadata = self._metadata.get(request.prompt)
        return msgspec.structs.replace(request, metadata=metadata) if metadata else request

    def expect_previews(self, count: int) -> None:
        """So many previews may yet be submitted: nodes plan for them, too."""
        self._table.unsubmitted_previews = count

    def cancel(self, kind: RequestKind) -> None:
        """Drop the requests of a kind; leases on them are revoked, and what still comes is late."""
        self.carry_out(self._table.cancel(kind, self._now()))

    def withdraw(self, kind: RequestKind) -> list[Request]:
        """Drop the requests of a kind that are not in work; returns them."""
        withdrawn, instructions = self._table.withdraw(kind, self._now())
        self.carry_out(instructions)
        return withdrawn

    def arrivals(self, kind: RequestKind, iteration: int) -> tuple[Arrival, ...]:
        """When what is in work of a kind and an iteration will be done."""
        return self._table.arrivals(kind, iteration, self._now())

    def batch_s(self, settings: SamplingSettings) -> float | None:
        """How many seconds a batch takes the groups that may be given one now; None if nothing is
        known of that."""
        return self._table.batch_s(settings)

    def release(self, request_ids: Iterable[str]) -> None:
        """Nobody wants these any more, finished or not; what is in work is finished and told."""
        self.carry_out(self._table.release(request_ids, self._now()))

    def forget(self, kind: RequestKind, iteration: int) -> None:
        """The results of a kind and iteration are used up: drop them and their bundles."""
        self.carry_out(self._table.forget(kind, iteration, self._now()))
        self._end_turn()
        with suppress(JournalError):  # ends the job
            self._journal.forget_requests(kind, iteration)

    # --- workers ---

    def leader_of(self, worker: str) -> ActorRef | None:
        """Who speaks for a worker; None if it is not here any more."""
        leader = self._table.leader_of(worker)
        return leader if isinstance(leader, ActorRef) else None

    def free_groups(self) -> int:
        """SP groups that may be given requests now."""
        return self._table.free_groups

    def previewing_groups(self) -> int:
        """The same with those that preview while there is no gradient to compute."""
        return self._table.previewing_groups

    def bar(self, workers: Collection[str]) -> None:
        """Grant nothing to these until the next time: they train. All others may be granted."""
        self.carry_out(self._table.bar(workers, self._now()))

    def add_workers(self, node: str, pool: str, workers: Iterable[WorkerRefs]) -> None:
        """These workers of a node may pull from now on; they may be back as other processes."""
        for refs in workers:
            self._end_turn()  # what is for the process of before must not reach this one
            its = refs.worker, refs.epoch, node, pool, refs.leader
            self.carry_out(self._table.add_worker(*its, self._now()))

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
            self._end_turn()  # what is for it must not wait until it is forgotten
            self.carry_out(
                self._table.lose_worker(
                    name, reason, announced=announced, ended=ended, now=self._now()
                )
            )

    def compute(self, workers: Collection[str], versatile: Collection[str] = ()) -> None:
        """Grant gradients to these until the next time, to all others none; but to the `versatile`
        what the others are granted, while there is nothing of their own kind."""
        self.carry_out(self._table.compute(workers, self._now(), versatile))

    def set_leaving(self, workers: Iterable[str], *, leaving: bool) -> None:
        """Nothing more for workers that will be gone, and others go on with what they have; or they
        stay after all.
        """
        self.carry_out(self._table.set_leaving(workers, leaving=leaving, now=self._now()))

    # --- what the table says ---

    def carry_out(self, instructions: Iterable[Instruction], *then: _Reply) -> None:
        """Do what the table says when this turn of the loop ends, then send the receipts."""
        for each in instructions:
            if isinstance(each, Persist):
                self._journal.stage_requests(each.rows)
            else:
                self._to_do.append(each)
        self._to_do.extend(then)
        if self._turn is None:
            self._turn = self._actor.run_task(self._end_turn_soon())

    def receipt_after(self, instructions: Iterable[Instruction]) -> asyncio.Future[Receipt]:
        """The same for what a worker delivered: its receipt comes when that is done, or the
        `JournalError` for which it is not.
        """
        receipt, others = Receipt(0), []
        for each in instructions:
            if isinstance(each, Answer):
                receipt = Receipt(each.accepted, each.ask_again)
            else:
                others.append(each)
        waiting: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.carry_out(others, _Reply(waiting, receipt))
        return waiting

    def close(self) -> None:
        """No receipt is sent any more."""
        for each in self._to_do:
            if isinstance(each, _Reply):
                each.waiting.cancel()

    async def _end_turn_soon(self) -> None:
        self._turn = None
        self._end_turn()

    def _end_turn(self) -> None:
        """Write the rows, then do what follows from them, and what follows from that."""
        while True:
            try:
                self._journal.commit_staged()
            except JournalError as error:  # ends the job
                for each in self._to_do:
                    if isinstance(each, _Reply) and not each.waiting.done():
                        each.waiting.set_exception(error)
                self._to_do.clear()
                return
            if not self._to_do:
                break
            to_do, self._to_do = self._to_do, deque()
            for instruction in to_do:
                self._do(instruction)
        self._tell_of_backlog()

    def _do(self, instruction: Instruction | _Reply) -> None:
        match instruction:
            case GrantLease():
                self._grant(instruction)
            case RevokeLeases(worker, leases):
                self._tell(worker, Revoke(leases))
            case RecallLeases(worker, leases):
                self._tell(worker, Recall(leases))
            case EndWorker() as end:
                self._owner.end_worker(end)
            case RequestsFinished() | RequestsGivenUp() as ended:
                self._owner.requests_ended(ended)
            case DeleteBundle(bundle):
                self._owner.discard(bundle)
            case RecordEvent(event):
                self._owner.event(event)
            case _Reply(waiting, receipt):
                failpoints.reach("dispatcher.before_ack")
                if not waiting.done():
                    waiting.set_result(receipt)

    def _grant(self, granted: GrantLease) -> None:
        requests, its_slice = granted.requests, None
        if requests[0].kind == "gradient":
            its_slice = self._owner.slice_of(requests[0])
            if its_slice is None:
                return  # it was revoked in this turn
        grant = Grant(granted.lease, requests, granted.commits, granted.commit_every, its_slice)
        log.debug("lease_granted", worker=granted.worker, lease=granted.lease)
        if not self._tell(granted.worker, grant):
            self.carry_out(self._table.unreachable(granted.worker, granted.lease, self._now()))

    def _tell(self, worker: str, message: Message) -> bool:
        leader = self.leader_of(worker)
        return leader is not None and try_tell(self._actor, leader, message)

    def _tell_of_backlog(self) -> None:
        outline = self._table.backlog_outline()
        if outline != self._outline:
            self._outline = outline
            self._owner.backlog_changed()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
