"""The fleet: every node and worker, what it has, and which tenant it works for. Pure: events in,
instructions out; times, in seconds, are handed in.

The coordinator hears of nodes first and keeps a row for each process; a tenant hears of them in its
own turn, and has the workers of those that it has taken in. What holds:

- Another process under the name of a node that is there is refused, and an old word of a node
  changes nothing.
- A plan has a number, and all numbers of a table grow. A node whose report does not agree with its
  latest plan is answered with it, so whatever is lost is sent again.
- A node works for one tenant at a time, and so do its workers; which one, `Allocation` says. On
  its way to another it gives its work back first, as after a notice, and is then lost to the one
  before; so nobody holds two tenants' models, and nothing is lost.
- A node that comes and goes too often must wait before it is taken in again.
- A worker is in exactly one state, so its states add up to its time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Generic, Literal

from spotlight.policies.departure import SHARING
from spotlight.policies.fleet.allocation import Allocation, Borrower, Lend, Lendable, Recall
from spotlight.policies.fleet.fleet_events import (
    Assigned,
    Barred,
    Drained,
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
    Terms,
    Trains,
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
from spotlight.timings import RejoinTimings, SharingTimings
from spotlight.types import WorkerState

_FEW_NODES = 64
_SHARE_PAUSE_S = 0.0002
"""Many nodes are shared out at most so often for each: that takes some tens of microseconds."""
SENT_AT_ONCE = 64
"""How many plans are sent in one turn of the loop: 3 ms."""
MOST_GONE = 64
"""Nodes that are remembered when their processes are gone."""


class FleetTable(Generic[WordT, TaskT]):
    """See the module's docstring.

    Args:
        own: the coordinator's address, which agreeing reports name.
        timings: how long nodes wait that come and go.
        sharing: how often nodes move between tenants.
    """

    def __init__(
        self,
        own: Hashable,
        timings: RejoinTimings = RejoinTimings(),
        sharing: SharingTimings = SharingTimings(),
    ) -> None:
        self._own = own
        self._timings, self._sharing = timings, sharing
        self._allocation = Allocation(sharing)
        self._shared_at = -math.inf
        """When nodes were shared out last."""
        self._share_is_due = False
        """Something has happened since that changes who has which."""
        self._begun = 0
        """How many tenants have begun."""
        self._number = 0
        """The number of the latest plan of all."""
        self.nodes: dict[str, NodeRow[WordT, TaskT]] = {}
        """The nodes whose process is there, by name, also if they have left after a notice, for it
        may yet be withdrawn."""
        self.gone: dict[str, GoneNode] = {}
        """The latest whose process is gone, by name."""
        self.tenants: dict[str, TenantRow[WordT]] = {}
        """The tenants by id, from their beginning until nothing of them is wanted any more."""
        self.drained: set[str] = set()
        """The names of nodes that a user wants to have no work, whether or not they are there."""
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
            case Drained():
                return list(self._drained(event, now))
            case PlansDue():
                return list(self._send_some())
            case TenantBegan(tenant, terms):
                return list(self._begin(tenant, terms, now))
            case TenantOver(tenant):
                return list(self._end(tenant, now))
            case TenantGone(tenant):
                over = list(self._end(tenant, now))
                self.tenants.pop(tenant, None)
                return over
            case Assigned():
                self._assign(event)
            case FoundSick(node, worker, epoch, reason):
                if node in self.nodes:
                    self.nodes[node].sick += (SickProcess(worker, epoch, reason),)
                    self._changed[node] = None
            case Barred(tenant, workers):
                if tenant in self.tenants:
                    self.tenants[tenant].barred = workers
            case Trains(tenant, workers):
                if tenant in self.tenants:
                    self.tenants[tenant].trainers = workers
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
            row.is_drained = name in self.drained
            self.nodes[name] = row
            its = self.tenants.get(word.job_id)
            if word.left and its is not None and not its.over:
                row.tenant = its.tenant  # which may still have what it left behind
            self.gone.pop(name, None)
        elif word.number < row.word.number:
            yield self._answer(row)
            return
        if known is None or known.notice != word.notice:
            row.noticed_at = now
        row.word = word
        if word.left:
            if known is None or not known.left:
                yield from self._left(name, row, now)
        else:
            came = known is None or known.left
            if came:
                yield NodeCame(name)
            if row.tenant:
                yield PassOn(name, row.tenant)
            if came or self._share_is_due or now >= self._shared_at + self._sharing.look_s:
                yield from self._share_soon(now)
        epochs = {worker.epoch for worker in word.workers}
        row.sick = tuple(worker for worker in row.sick if worker.epoch in epochs)
        yield self._answer(row)

    def _answer(self, row: NodeRow[WordT, TaskT]) -> Instruction:
        word, job_id = row.word, row.task.job_id if row.task is not None else ""
        agrees = word.coordinator == self._own and word.plan == row.plan
        gives_back = row.next is None or word.notice is not None
        if agrees and gives_back and job_id in ("", word.job_id):
            return Acknowledge(word.node)
        return AnswerWithPlan(word.node)

    def _out_of_reach(self, address: Hashable, reason: str, now: float) -> Iterator[Instruction]:
        for name, row in list(self.nodes.items()):
            if row.word.scheduler == address:
                del self.nodes[name]
                self._changed.pop(name, None)
                self._remember(name, row.word, reason, now)
                had_left, announced = row.word.left, row.word.notice is not None
                yield NodeGone(name, row.tenant, address, reason, had_left, announced)
                yield from self._share_soon(now)

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

    def _begin(self, tenant: str, terms: Terms, now: float) -> Iterator[Instruction]:
        for row in self.nodes.values():
            if row.tenant == tenant:
                row.task = None
        before = self.tenants.get(tenant)
        self._begun += 1
        order = before.order if before is not None else self._begun
        self.tenants[tenant] = TenantRow(tenant, terms, order, self._timings)
        yield from self._share(now)

    def _end(self, tenant: str, now: float) -> Iterator[Instruction]:
        row = self.tenants.get(tenant)
        if row is None or row.over:
            return
        row.over = True
        nobody_runs = not self._any_runs()
        for name, node in self.nodes.items():
            if node.tenant == tenant or (nobody_runs and not node.tenant):
                node.tenant, node.task, node.over, node.next = "", None, True, None
                self._changed[name] = None
        yield from self._share(now)

    def _assign(self, event: Assigned[TaskT]) -> None:
        row = self.nodes.get(event.node)
        if row is None or row.tenant != event.tenant:
            return
        if event.again or row.task != event.task:
            row.task = event.task
            self._changed[event.node] = None

    # --- for whom a node works ---

    def lent_to(self, tenant: str) -> list[WordT]:
        """What the nodes say that work for a tenant and have not left."""
        return [
            row.word for row in self.nodes.values() if row.tenant == tenant and not row.word.left
        ]

    def borrowers(self) -> list[Borrower]:
        """The tenants that nodes are lent to."""
        return [
            Borrower(
                id=row.tenant,
                weight=row.terms.weight,
                priority=row.terms.priority,
                order=row.order,
                ranks=row.terms.ranks,
                trains_on=row.nodes_that_train(),
                load_s=row.load_s,
            )
            for row in self.tenants.values()
            if not row.over
        ]

    def lendable(self) -> list[Lendable]:
        """The nodes, as they are lent."""
        return [
            Lendable(
                name=name,
                pool=row.word.pool,
                workers=max(row.word.size, len(row.word.workers)),
                tenant=row.tenant,
                next=row.next,
                may_be_lent=_may_be_lent(row),
                model_of=row.word.job_id,
            )
            for name, row in self.nodes.items()
        ]

    def cannot_train_without(self, node: str) -> str:
        """The tenant that has too few reserved workers without a node; empty if there is none."""
        row = self.nodes.get(node)
        tenant = self.tenants.get(row.tenant) if row is not None else None
        if tenant is None or tenant.over:
            return ""
        reserved = {
            each.name: each.workers
            for each in self.lendable()
            if each.pool == "reserved" and each.may_be_lent and each.tenant in ("", tenant.tenant)
        }
        now, ranks = sum(reserved.values()), tenant.terms.ranks
        return tenant.tenant if now - reserved.get(node, 0) < ranks <= now else ""

    def _share_soon(self, now: float) -> Iterator[Instruction]:
        """Share the nodes out, if they are few; of many that come or go at once each costs little,
        since what is due waits for a later report."""
        nodes = len(self.nodes)
        pause_s = nodes * _SHARE_PAUSE_S if nodes > _FEW_NODES else 0.0
        if now >= self._shared_at + pause_s:
            yield from self._share(now)
        else:
            self._share_is_due = True

    def _share(self, now: float) -> Iterator[Instruction]:
        self._shared_at, self._share_is_due = now, False
        for each in self._allocation.decide(now, self.borrowers(), self.lendable()):
            match each:
                case Lend(node, tenant):
                    yield from self._lend(node, tenant, now)
                case Recall(node, next):
                    self._recall(node, next, now)

    def _lend(self, name: str, tenant: str, now: float) -> Iterator[Instruction]:
        """A node works for a tenant from now on, or still does, or for nobody."""
        row = self.nodes[name]
        if row.next is not None:
            row.next = None
            self._changed[name] = None
        if row.tenant == tenant:
            return
        row.tenant, row.task, row.over = tenant, None, not tenant
        row.lent_at, row.is_ready = now, False
        if tenant and not row.word.left:
            yield PassOn(name, tenant)

    def _recall(self, name: str, next: str, now: float) -> None:
        """A node gives its work back, or works afterwards for somebody else than was said."""
        row = self.nodes[name]
        if row.next is None:
            row.give_back_by = now + self._sharing.give_back_s
            self._changed[name] = None
        row.next = next

    def _left(self, name: str, row: NodeRow[WordT, TaskT], now: float) -> Iterator[Instruction]:
        tenant, reason = row.tenant, "left after a notice"
        if row.next is None:
            yield NodeLeft(name, tenant, reason)
            return
        yield NodeLeft(name, tenant, "works for another job" if row.next else "was drained")
        heir = self.tenants.get(row.next)
        yield from self._lend(name, row.next if heir is not None and not heir.over else "", now)
        yield from self._share(now)

    def _drained(self, event: Drained, now: float) -> Iterator[Instruction]:
        (self.drained.discard if event.cancel else self.drained.add)(event.node)
        row = self.nodes.get(event.node)
        if row is None:
            return
        row.is_drained = not event.cancel
        if event.cancel and row.next == "":
            yield from self._lend(event.node, row.tenant, now)
        elif not event.cancel and row.tenant:
            self._recall(event.node, "", now)
        yield from self._share(now)

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
        if word.notice is None or word.notice.source != SHARING:
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
        if row.state == "loading" != said.state:
            self._note_load(its, row.node, now)
        if row.state != said.state:
            _end_state(its, row, now)
            row.state, row.since = said.state, now
            yield _began(row, row.state)
        if said.cannot_serve and row.problem != said.cannot_serve:
            yield RecordEvent(WorkerCannotServe(worker=row.name, reason=said.cannot_serve))
        row.problem = said.cannot_serve
        row.ends = row.ends or said.ends

    def _note_load(self, tenant: TenantRow[WordT], node: str, now: float) -> None:
        """A worker has loaded its model: the first of a node says how long that took."""
        row = self.nodes.get(node)
        if row is not None and row.tenant == tenant.tenant and not row.is_ready:
            row.is_ready = True
            tenant.load_s = max(tenant.load_s, now - row.lent_at)


def _may_be_lent(row: NodeRow[WordT, TaskT]) -> bool:
    """Whether a node stays: nobody but the table itself wants it to give its work back. One that
    has none may as well begin with some."""
    if row.is_drained or row.word.left:
        return False
    notice = row.word.notice
    return notice is None or notice.source == SHARING or not row.tenant


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
