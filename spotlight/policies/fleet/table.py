"""The fleet: every node and worker, what it has, and which tenant it works for. Pure: events in,
instructions out; times, in seconds, are handed in.

The coordinator hears of nodes first and keeps a row for each process; a tenant hears of them in its
own turn, and has the workers of those that it has taken in. What holds:

- Another process under the name of a node that is there is refused, and an old word of a node
  changes nothing.
- A plan has a number, and all numbers of a table grow. A node whose report does not agree with its
  latest plan is answered with it, so whatever is lost is sent again.
- A node works for one tenant at a time, and so do its workers.
- A node that comes and goes too often must wait before it is taken in again.
- A worker is in exactly one state, so its states add up to its time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Generic, Literal

from spotlight.policies.fleet.fleet_events import (
    Assigned,
    Barred,
    Event,
    FoundSick,
    Heard,
    HeardOfLoss,
    HeardOfNotice,
    NoticeGiven,
    OutOfReach,
    PlansDue,
    Reported,
    TaskT,
    TenantBegan,
    TenantGone,
    TenantOver,
    WordT,
    WorkerSaid,
)
from spotlight.policies.fleet.fleet_instructions import (
    Acknowledge,
    AddWorkers,
    AnswerWithPlan,
    Instruction,
    NameTaken,
    NodeCame,
    NodeGone,
    NodeHeard,
    NodeLeft,
    PassOn,
    RecordEvent,
    RemoveWorkers,
    RevokeToken,
    SendPlan,
    SetLeaving,
    StateBegan,
    Watch,
)
from spotlight.policies.fleet.fleet_rows import (
    GoneNode,
    NodeRow,
    SickProcess,
    TenantRow,
    UserNotice,
    WorkerRow,
    describe,
    others,
)
from spotlight.policies.fleet.node_words import WorkerSays
from spotlight.record.run_events import (
    NodeJoined,
    NodeLost,
    NodeMustWait,
    NoticeReceived,
    NoticeWithdrawn,
    WorkerCannotServe,
    WorkerFailed,
    WorkerJoined,
)
from spotlight.timings import RejoinTimings
from spotlight.types import WorkerState

SENT_AT_ONCE = 64
"""How many plans are sent in one turn of the loop: 3 ms."""
MOST_GONE = 64
"""Nodes that are remembered when their processes are gone."""


class FleetTable(Generic[WordT, TaskT]):
    """See the module's docstring.

    Args:
        own: the coordinator's address, which agreeing reports name.
        timings: how long nodes wait that come and go.
    """

    def __init__(self, own: Hashable, timings: RejoinTimings = RejoinTimings()) -> None:
        self._own = own
        self._timings = timings
        self._number = 0
        """The number of the latest plan of all."""
        self.nodes: dict[str, NodeRow[WordT, TaskT]] = {}
        """The nodes whose process is there, by name, also if they have left after a notice, for it
        may yet be withdrawn."""
        self.gone: dict[str, GoneNode] = {}
        """The latest whose process is gone, by name."""
        self.tenants: dict[str, TenantRow[WordT]] = {}
        """The tenants by id, from their beginning until nothing of them is wanted any more."""
        self._changed: dict[str, None] = {}
        """Nodes whose plan is another one since it was sent last."""

    @property
    def has_unsent(self) -> bool:
        """Whether plans have changed that were not sent since."""
        return bool(self._changed)

    def present(self) -> Iterator[WordT]:
        """What the nodes say that have not left."""
        return (row.word for row in self.nodes.values() if not row.word.left)

    def agrees(self, word: WordT) -> bool:
        """Whether a node that said this knows its latest plan."""
        row = self.nodes.get(word.node)
        return row is not None and word.plan == row.plan

    def why_nobody_can_train(self, tenant: TenantRow[WordT], ranks: int) -> str:
        """Why no reserved worker can work; empty while one may, or others are still to come: fewer
        are there than so many ranks, or a node may not have heard yet that it is to try again."""
        reserved = tenant.reserved_nodes()
        if sum(node.size for node in reserved) < ranks or not all(map(self.agrees, reserved)):
            return ""
        found: list[str] = []
        for node in reserved:
            hopeless = tenant.hopeless_of(node)
            if len(hopeless) < max(1, node.size):
                return ""
            found += map(describe, hopeless.values())
        return f"no reserved worker can work: {'; '.join(found)}; fix that, then resume the run"

    def handle(self, event: Event[WordT, TaskT], now: float) -> list[Instruction]:
        """What follows from an event."""
        match event:
            case Reported(word):
                return list(self._reported(word, now))
            case OutOfReach(address, reason):
                return list(self._out_of_reach(address, reason, now))
            case NoticeGiven():
                return list(self._notice_given(event))
            case PlansDue():
                return list(self._send_some())
            case TenantBegan(tenant):
                self._begin(tenant)
            case TenantOver(tenant):
                self._end(tenant)
            case TenantGone(tenant):
                self._end(tenant)
                self.tenants.pop(tenant, None)
            case Assigned():
                self._assign(event)
            case FoundSick(node, worker, epoch, reason):
                if node in self.nodes:
                    self.nodes[node].sick += (SickProcess(worker, epoch, reason),)
                    self._changed[node] = None
            case Barred(tenant, workers):
                if tenant in self.tenants:
                    self.tenants[tenant].barred = workers
            case Heard(tenant, word):
                return list(self._heard(tenant, word, now))
            case HeardOfNotice(tenant, node, has_news):
                if (its := self.tenants.get(tenant)) is not None and node in its.nodes:
                    return list(_notice_of(its, its.nodes[node], has_news=has_news))
            case HeardOfLoss():
                return list(self._lost(event, now))
            case WorkerSaid(tenant, said):
                return list(self._worker_said(tenant, said, now))
        return []

    # --- nodes ---

    def _reported(self, word: WordT, now: float) -> Iterator[Instruction]:
        name, row = word.node, self.nodes.get(word.node)
        if row is not None and row.word.scheduler != word.scheduler:
            yield NameTaken(name, row.word.scheduler)
            return
        known = None if row is None else row.word
        if row is None:
            yield Watch(word.scheduler)
            row = NodeRow(word, self._next_number(), over=not self._any_runs(), came_at=now)
            self.nodes[name] = row
            self.gone.pop(name, None)
        elif word.number < row.word.number:
            yield self._answer(row)
            return
        if known is None or known.notice != word.notice:
            row.noticed_at = now
        row.word = word
        if not word.left:
            if known is None or known.left:
                yield NodeCame(name)
            yield PassOn(name)
        elif known is None or not known.left:
            yield NodeLeft(name)
        epochs = {worker.epoch for worker in word.workers}
        row.sick = tuple(worker for worker in row.sick if worker.epoch in epochs)
        yield self._answer(row)

    def _answer(self, row: NodeRow[WordT, TaskT]) -> Instruction:
        word, job_id = row.word, row.task.job_id if row.task is not None else ""
        agrees = word.coordinator == self._own and word.plan == row.plan
        if agrees and job_id in ("", word.job_id):
            return Acknowledge(word.node)
        return AnswerWithPlan(word.node)

    def _out_of_reach(self, address: Hashable, reason: str, now: float) -> Iterator[Instruction]:
        for name, row in list(self.nodes.items()):
            if row.word.scheduler == address:
                del self.nodes[name]
                self._changed.pop(name, None)
                self._remember(name, row.word, reason, now)
                yield NodeGone(name, address, reason, row.word.left, row.word.notice is not None)

    def _remember(self, name: str, word: WordT, reason: str, now: float) -> None:
        state: Literal["left", "lost"] = "left" if word.left else "lost"
        self.gone[name] = GoneNode(word.pool, len(word.workers), state, reason, now)
        for oldest in list(self.gone)[:-MOST_GONE]:
            del self.gone[oldest]

    def _notice_given(self, given: NoticeGiven) -> Iterator[Instruction]:
        row = self.nodes.get(given.node)
        if row is not None and (given.cancel or not row.word.left):
            row.plan = self._next_number()
            row.notice = UserNotice(row.plan, given.deadline, given.cancel)
            yield SendPlan(given.node)

    def _send_some(self) -> Iterator[Instruction]:
        for name in list(islice(self._changed, SENT_AT_ONCE)):
            del self._changed[name]
            self.nodes[name].plan = self._next_number()
            yield SendPlan(name)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # --- tenants ---

    def _any_runs(self) -> bool:
        return any(not tenant.over for tenant in self.tenants.values())

    def _begin(self, tenant: str) -> None:
        for row in self.nodes.values():
            if row.tenant == tenant:
                row.tenant, row.task = "", None
            if not row.tenant:
                row.over = False  # it is told what to do, and leaves everything as it is till then
        self.tenants[tenant] = TenantRow(tenant, self._timings)

    def _end(self, tenant: str) -> None:
        row = self.tenants.get(tenant)
        if row is None or row.over:
            return
        row.over = True
        nobody_runs = not self._any_runs()
        for name, node in self.nodes.items():
            if node.tenant == tenant or (nobody_runs and not node.tenant):
                node.tenant, node.task, node.over = "", None, True
                self._changed[name] = None

    def _assign(self, event: Assigned[TaskT]) -> None:
        tenant, row = self.tenants.get(event.tenant), self.nodes.get(event.node)
        if row is None or tenant is None or tenant.over:
            return
        if event.node not in tenant.nodes and row.tenant != event.tenant:
            return  # it never had that node, or another has it; one that has left may come back
        if event.again or (row.tenant, row.task) != (event.tenant, event.task):
            row.tenant, row.task, row.over = event.tenant, event.task, False
            self._changed[event.node] = None

    # --- what tenants hear ---

    def _heard(self, tenant: str, word: WordT, now: float) -> Iterator[Instruction]:
        row, name = self.tenants.get(tenant), word.node
        if row is None or row.over or self._has_another(row, name):
            return
        if name not in row.nodes:
            wait_s = row.backoff.wait_s(name, now)
            if wait_s > 0 and word.pool == "spot":
                if name not in row.must_wait:
                    row.must_wait.add(name)
                    yield RecordEvent(NodeMustWait(node=name, seconds=round(wait_s, 1)))
                return
            row.must_wait.discard(name)
            workers = tuple(worker.worker for worker in word.workers)
            yield RecordEvent(NodeJoined(node=name, pool=word.pool, workers=workers))
        yield from self._take_in(row, word, now)

    def _has_another(self, tenant: TenantRow[WordT], node: str) -> bool:
        """Whether another tenant works with a node. One that is over gives its nodes up."""
        for other in self.tenants.values():
            if other is not tenant and node in other.nodes and not other.over:
                return True
        return False

    def _take_in(self, tenant: TenantRow[WordT], word: WordT, now: float) -> Iterator[Instruction]:
        name, known = word.node, tenant.nodes.get(word.node)
        for other in self.tenants.values():
            if other is not tenant and (old := other.nodes.pop(name, None)) is not None:
                other.leaving.discard(name)
                self._remove_workers(other, (each.worker for each in old.workers), now)
        if tenant.processes.get(name) != word.scheduler:
            yield RevokeToken(name)  # another process had that token
        tenant.processes[name] = word.scheduler
        tenant.nodes[name] = word
        before = known.workers if known is not None else ()
        came, went = others(word.workers, before), others(before, word.workers)
        if went:
            gone = tuple(each.worker for each in went)
            yield from self._remove_workers(tenant, gone, now)
            yield RemoveWorkers(gone, "its process ended", ended=True)
        for each in came:
            yield RecordEvent(WorkerJoined(worker=each.worker, node=name, pool=word.pool))
        for each in came:
            row = WorkerRow(each.worker, name, word.pool, each.epoch, each.leader, now)
            tenant.workers[each.worker] = row
            yield _began(row, row.state)
        if came:
            yield AddWorkers(name, tuple(each.epoch for each in came))
        is_new = known is None or known.scheduler != word.scheduler
        yield NodeHeard(name, bool(came or went) or is_new)

    def _lost(self, event: HeardOfLoss, now: float) -> Iterator[Instruction]:
        tenant, name = self.tenants.get(event.tenant), event.node
        if tenant is None:
            return
        if event.announced:
            yield RevokeToken(name)
        word = tenant.nodes.pop(name, None)
        if word is None:
            return
        tenant.leaving.discard(name)
        tenant.backoff.left(name, now)
        yield RecordEvent(NodeLost(node=name, pool=word.pool, reason=event.reason))
        names = tuple(worker.worker for worker in word.workers)
        yield from self._remove_workers(tenant, names, now)
        yield RemoveWorkers(names, event.reason, announced=event.announced)

    def _remove_workers(
        self, tenant: TenantRow[WordT], names: Iterable[str], now: float
    ) -> list[Instruction]:
        """Their time ends here."""
        rows = [row for name in names if (row := tenant.workers.pop(name, None)) is not None]
        for row in rows:
            _end_state(tenant, row, now)
        return [_began(row, "gone") for row in rows]

    def _worker_said(self, tenant: str, said: WorkerSays, now: float) -> Iterator[Instruction]:
        its = self.tenants.get(tenant)
        row = its.workers.get(said.worker) if its is not None else None
        if its is None or row is None:
            return
        row.detail = said.detail
        if row.state != said.state:
            _end_state(its, row, now)
            row.state, row.since = said.state, now
            yield _began(row, row.state)
        if said.cannot_serve and row.problem != said.cannot_serve:
            yield RecordEvent(WorkerCannotServe(worker=row.name, reason=said.cannot_serve))
        row.problem = said.cannot_serve
        row.ends = row.ends or said.ends


def _end_state(tenant: TenantRow[WordT], row: WorkerRow, now: float) -> None:
    tenant.spent[row.pool, row.state] += now - row.since


def _began(row: WorkerRow, state: WorkerState) -> Instruction:
    return StateBegan(row.name, row.node, row.pool, state)


def _notice_of(tenant: TenantRow[WordT], word: WordT, *, has_news: bool) -> Iterator[Instruction]:
    """Whether a node will be taken; nothing follows unless that is new, or its workers are."""
    name, notice = word.node, word.notice
    is_new = (notice is not None) != (name in tenant.leaving)
    if notice is None and is_new:
        tenant.leaving.discard(name)
        yield RecordEvent(NoticeWithdrawn(node=name))
    elif notice is not None and is_new:
        tenant.leaving.add(name)
        yield RecordEvent(NoticeReceived(node=name, source=notice.source, lead_s=notice.lead_s))
    if is_new or (notice is not None and has_news):
        names = tuple(worker.worker for worker in word.workers)
        yield SetLeaving(names, notice is not None)
        has_news = True
    yield from _new_troubles(tenant, word)
    yield NodeHeard(name, has_news)


def _new_troubles(tenant: TenantRow[WordT], word: WordT) -> Iterator[Instruction]:
    """What is wrong with workers, once for each time that it is something else."""
    for trouble in word.troubles:
        if trouble.reason and tenant.troubles_told.get(trouble.worker) != trouble:
            tenant.troubles_told[trouble.worker] = trouble
            if trouble.tries or trouble.given_up:
                yield RecordEvent(
                    WorkerFailed(
                        worker=trouble.worker,
                        reason=trouble.reason,
                        tries=trouble.tries,
                        given_up=trouble.given_up,
                    )
                )
