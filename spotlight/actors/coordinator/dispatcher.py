"""The pull scheduler as an actor: its mailbox is the queue, and the table of requests decides.

Messages in: SubmitRequests, CancelRequests, ForgetRequests, BarWorkers (coordinator side);
AddWorkers, RemoveWorkers, NodeLeaving (membership); Pull, CommitSteps, Completed, LeaseFailed,
ReturnLease (group leaders).
Messages out: Grant, Revoke, Recall (group leaders); RequestsFinished and RequestsGivenUp to whoever
submitted.

Whatever is acknowledged is in the journal before; a request that is submitted again after a restart
goes on, or is answered, from there. The journal is written once for all messages of one turn of the
loop: their rows first, then all that follows from them, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from spotlight import failpoints
from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.protocol import (
    AddWorkers,
    BarWorkers,
    CancelRequests,
    CommitSteps,
    Completed,
    ForgetRequests,
    Grant,
    LeaseFailed,
    NodeLeaving,
    Pull,
    Recall,
    Receipt,
    RemoveWorkers,
    RequestsFinished,
    RequestsGivenUp,
    ReturnLease,
    Revoke,
    SubmitRequests,
    WorkerRefs,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, from_this_process, handles
from spotlight.errors import JournalError
from spotlight.policies.dispatch.instructions import (
    Answer,
    DeleteBundle,
    GrantLease,
    Instruction,
    Persist,
    RecallLeases,
    Record,
    RevokeLeases,
    TellFinished,
    TellGivenUp,
)
from spotlight.policies.dispatch.table import RequestTable
from spotlight.timings import DispatchTimings
from spotlight.transport.control import ActorRef
from spotlight.types import BundleOffer

log = structlog.get_logger(__name__)

DeliveryT = TypeVar("DeliveryT", CommitSteps, Completed)
_FromLeader = Pull | CommitSteps | Completed | LeaseFailed | ReturnLease


class _Reply(NamedTuple):
    """A receipt that is sent when all before it is done."""

    waiting: asyncio.Future[Receipt]
    receipt: Receipt


class Dispatcher(Actor):
    """See the module's docstring.

    Args:
        table: decides; nobody else changes it.
        journal: of the run.
        discard: deletes a bundle from the coordinator's store.
        record: writes an event to the run folder.
        backlog_changed: hears when another kind of work waits, or little of it.
    """

    def __init__(
        self,
        *,
        table: RequestTable,
        journal: JobJournal,
        discard: Callable[[BundleOffer], None],
        record: Callable[..., None],
        backlog_changed: Callable[[], None],
        timings: DispatchTimings = DispatchTimings(),
    ) -> None:
        self._table = table
        self._timings = timings
        self._journal = journal
        self._discard = discard
        self._record = record
        self._backlog_changed = backlog_changed
        self._outline: Hashable = ()
        """Of the backlog, when it was told last."""
        self._workers: dict[str, WorkerRefs] = {}
        self._remembers = False
        self._to_do: deque[Instruction | _Reply] = deque()
        """What follows from the messages of this turn, once their rows are in the journal."""
        self._turn: asyncio.Task[None] | None = None

    def _from_its_leader(self, message: _FromLeader) -> bool:
        """Of that worker; what one says that is not here any more is counted, not refused."""
        worker = self._workers.get(message.worker)
        return worker is None or self.sender == worker.leader

    async def started(self) -> None:
        """Leases expire even when nothing else happens."""
        self.run_task(self._tick())

    async def stopping(self, reason: str) -> None:
        """Who waits for a receipt hears that there will be none."""
        for each in self._to_do:
            if isinstance(each, _Reply):
                each.waiting.cancel()

    # --- from the coordinator side ---

    @handles(SubmitRequests, only=from_this_process)
    async def on_submit(self, message: SubmitRequests) -> None:
        """Queue requests, hand them to whoever waits, and answer what is finished already."""
        assert self.sender is not None
        if not self._remembers:  # only now is it settled from where the run goes on
            self._remembers = True
            self._table.remember(self._journal.requests())
        self._carry_out(self._table.submit(message.requests, self.sender, self._now()))

    @handles(CancelRequests, only=from_this_process)
    async def on_cancel(self, message: CancelRequests) -> None:
        """Forget a kind of request, wherever it is."""
        self._carry_out(self._table.cancel(message.kind, self._now()))

    @handles(ForgetRequests, only=from_this_process)
    async def on_forget(self, message: ForgetRequests) -> None:
        """Finished requests that nobody asks for again."""
        self._carry_out(self._table.forget(message.kind, message.iteration, self._now()))
        self._end_turn()
        with suppress(JournalError):  # ends the job
            self._journal.forget_requests(message.kind, message.iteration)

    @handles(BarWorkers, only=from_this_process)
    async def on_bar(self, message: BarWorkers) -> None:
        """Workers that train get nothing; the others may."""
        self._carry_out(self._table.bar(message.workers, self._now()))

    @handles(AddWorkers, only=from_this_process)
    async def on_add_workers(self, message: AddWorkers) -> None:
        """Workers join, or come back as other processes."""
        for refs in message.workers:
            self._end_turn()  # what is for the process of before must not reach this one
            instructions = self._table.add_worker(
                refs.worker, refs.epoch, message.node, message.pool, self._now()
            )
            self._workers[refs.worker] = refs
            self._carry_out(instructions)

    @handles(RemoveWorkers, only=from_this_process)
    async def on_remove_workers(self, message: RemoveWorkers) -> None:
        """Workers are gone."""
        for name in message.workers:
            self._end_turn()  # what is for it must not wait until it is forgotten
            self._workers.pop(name, None)
            self._carry_out(
                self._table.lose_worker(
                    name,
                    message.reason,
                    announced=message.announced,
                    ended=message.ended,
                    now=self._now(),
                )
            )

    @handles(NodeLeaving, only=from_this_process)
    async def on_node_leaving(self, message: NodeLeaving) -> None:
        """No new grants for what will be gone; others go on with what it has."""
        leaving = not message.cancelled
        self._carry_out(self._table.set_leaving(message.workers, leaving=leaving, now=self._now()))

    # --- from group leaders ---

    @handles(Pull, only=_from_its_leader)
    async def on_pull(self, message: Pull) -> None:
        """The group's latest word on what it can take and what it holds."""
        self._carry_out(self._table.report(message.worker, message.epoch, message, self._now()))

    @handles(CommitSteps, only=_from_its_leader)
    async def on_commit(self, message: CommitSteps) -> Receipt | asyncio.Future[Receipt]:
        """Steps that need not be done again should the group be lost."""
        if not _is_own(message, "commits", "samples"):
            return self._refuse_bundle(message)
        return self._receipt_after(
            self._table.commit(message.worker, message.epoch, self._at_home(message), self._now())
        )

    @handles(Completed, only=_from_its_leader)
    async def on_completed(self, message: Completed) -> Receipt | asyncio.Future[Receipt]:
        """A batch is denoised and scored: its requests are finished."""
        if not _is_own(message, "samples"):
            return self._refuse_bundle(message)
        return self._receipt_after(
            self._table.complete(message.worker, message.epoch, self._at_home(message), self._now())
        )

    @handles(LeaseFailed, only=_from_its_leader)
    async def on_lease_failed(self, message: LeaseFailed) -> None:
        """A batch could not be done there: try elsewhere, or give up; never a reward."""
        log.warning("lease_failed", worker=message.worker, error=message.error, what=message.what)
        who = message.worker, message.epoch, message.lease
        failure = message.error, message.what, message.failed
        self._carry_out(self._table.fail(*who, *failure, self._now()))

    @handles(ReturnLease, only=_from_its_leader)
    async def on_return(self, message: ReturnLease) -> None:
        """Others must do it."""
        who = message.worker, message.epoch, message.lease
        self._carry_out(self._table.give_back(*who, self._now()))

    # --- inside ---

    def _receipt_after(self, instructions: Iterable[Instruction]) -> asyncio.Future[Receipt]:
        """Carry out what the table says; the receipt comes when it is done."""
        receipt, others = Receipt(0), []
        for each in instructions:
            if isinstance(each, Answer):
                receipt = Receipt(each.accepted, each.ask_again)
            else:
                others.append(each)
        waiting: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._carry_out(others, _Reply(waiting, receipt))
        return waiting

    def _carry_out(self, instructions: Iterable[Instruction], *then: _Reply) -> None:
        """Do what the table says when this turn of the loop ends."""
        for each in instructions:
            if isinstance(each, Persist):
                self._journal.stage_requests(each.rows)
                continue
            if isinstance(each, GrantLease):
                log.debug("lease_granted", lease=each.lease)
            self._to_do.append(each)
        self._to_do.extend(then)
        if self._turn is None:
            self._turn = self.run_task(self._end_turn_soon())

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
            case GrantLease(worker, lease, requests, commits, commit_every):
                grant = Grant(lease, self._timings.lease_s, requests, commits, commit_every)
                if not try_tell(self, self._workers[worker].leader, grant):
                    self._carry_out(self._table.unreachable(worker, lease, self._now()))
            case RevokeLeases(worker, leases):
                try_tell(self, self._workers[worker].leader, Revoke(leases))
            case RecallLeases(worker, leases):
                try_tell(self, self._workers[worker].leader, Recall(leases))
            case TellFinished(owner, results, restored):
                self._tell(owner, RequestsFinished(results, restored))
            case TellGivenUp(owner, requests, reason):
                self._tell(owner, RequestsGivenUp(requests, reason))
            case DeleteBundle(bundle):
                self._discard(bundle)
            case Record(event, fields):
                log.warning(event, **fields)
                self._record(event, **fields)
            case _Reply(waiting, receipt):
                failpoints.reach("dispatcher.before_ack")
                if not waiting.done():
                    waiting.set_result(receipt)

    def _tell(self, owner: Hashable, message: RequestsFinished | RequestsGivenUp) -> None:
        assert isinstance(owner, ActorRef)
        self.tell(owner, message)

    def _tell_of_backlog(self) -> None:
        outline = self._table.backlog_outline()
        if outline != self._outline:
            self._outline = outline
            self._backlog_changed()

    def _at_home(self, message: DeliveryT) -> DeliveryT:
        """It may have been uploaded to an earlier coordinator."""
        return msgspec.structs.replace(message, bundle=self._journal.at_home(message.bundle))

    def _refuse_bundle(self, message: CommitSteps | Completed) -> Receipt:
        """Nothing of another one's is taken, nor deleted."""
        log.error("not_its_own_bundle", worker=message.worker, bundle=message.bundle.key)
        return Receipt(0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._timings.tick_s)
            self._carry_out(self._table.tick(self._now(), self._timings.tick_s))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _is_own(message: CommitSteps | Completed, *places: str) -> bool:
    """Whether a bundle's key is one of those under which that worker process leaves its work."""
    own = f"{message.worker}/{message.epoch}-{message.lease}"
    return any(
        message.bundle.key == f"{place}/{own}" or message.bundle.key.startswith(f"{place}/{own}-")
        for place in places
    )
