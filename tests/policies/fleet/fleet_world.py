"""Two nodes and two tenants around a table of the fleet, with a network that may lose and delay
what they say; and what must be so after every step.

Nodes, tenants and their words are played here; the table is the real one.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from spotlight.policies.departure import SHARING
from spotlight.policies.fleet import fleet_events as event
from spotlight.policies.fleet import fleet_instructions as step
from spotlight.policies.fleet.fleet_events import Terms
from spotlight.policies.fleet.table import FleetTable
from spotlight.timings import SharingTimings
from spotlight.types import Pool, WorkerState

OWN = "coordinator"
NAMES = ("a", "b")
POOLS: dict[str, Pool] = {"a": "reserved", "b": "spot"}
TENANTS = ("one", "two")
TERMS = {"one": Terms(ranks=1), "two": Terms(weight=2.0)}
STEP_S = 0.02
SHARING_TIMINGS = SharingTimings(quantum_s=0.2, look_s=0.05)
MOST_PROCESSES = 60
"""Of a node, one after the other."""
FIRST_WAIT_S = 2.0


@dataclass(frozen=True)
class Worker:
    worker: str
    epoch: int
    leader: str


@dataclass(frozen=True)
class Notice:
    source: str = "cloud"
    lead_s: float | None = None


@dataclass(frozen=True)
class Task:
    job_id: str
    what: int = 0


@dataclass(frozen=True)
class Word:
    number: int
    node: str
    pool: Pool
    scheduler: str
    workers: tuple[Worker, ...]
    notice: Notice | None = None
    left: bool = False
    coordinator: str | None = None
    plan: int = 0
    job_id: str = ""
    size: int = 1
    troubles: tuple[()] = ()


@dataclass(frozen=True)
class Said:
    """What a worker says."""

    worker: str
    state: WorkerState
    detail: str = ""
    cannot_serve: str = ""
    ends: bool = False


@dataclass(frozen=True)
class Plan:
    """What a node follows."""

    number: int
    task: Task | None
    over: bool
    gives_back: bool


@dataclass
class Node:
    """A node's process, or none (`process` 0), and what it knows."""

    name: str
    process: int = 0
    processes: int = 0
    epoch: int = 0
    """Of its one worker; 0 while that is not up."""
    number: int = 0
    notice: bool = False
    left: bool = False
    plan: Plan | None = None
    job_id: str = ""

    @property
    def address(self) -> str:
        return f"{self.name}#{self.process}"

    @property
    def standing(self) -> Notice | None:
        """The notice that it follows."""
        if self.notice:
            return Notice()
        return Notice(SHARING) if self.plan is not None and self.plan.gives_back else None

    def stay_if_it_may(self) -> None:
        """Without a notice it comes back."""
        self.left = self.left and self.standing is not None

    def word(self) -> Word:
        """What it says now."""
        its = Worker(f"{self.name}/0", self.epoch, f"leader {self.name} {self.epoch}")
        plan = self.plan
        return Word(
            self.number,
            self.name,
            POOLS[self.name],
            self.address,
            (its,) if self.epoch else (),
            self.standing,
            self.left,
            OWN if plan is not None else None,
            plan.number if plan is not None else 0,
            self.job_id,
        )


Action = tuple[str, ...]


@dataclass
class World:
    """See the module's docstring."""

    now: float = 0.0
    epochs: int = 0
    table: FleetTable[Word, Task] = field(
        default_factory=lambda: FleetTable(OWN, sharing=SHARING_TIMINGS)
    )
    nodes: dict[str, Node] = field(default_factory=lambda: {name: Node(name) for name in NAMES})
    heard: dict[str, list[event.Event[Word, Task]]] = field(default_factory=dict)
    """What each tenant that there is has yet to take in, in its turns."""
    served: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """By tenant: which workers, by their epochs, it may give requests to."""
    told_to_leave: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By tenant: workers that will be gone."""
    there_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By tenant: for how long workers were served."""
    left_at: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By tenant and node: when the tenant heard that it was gone."""
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)
    """By tenant and node: the process whose token is good."""
    numbers: set[int] = field(default_factory=set)
    """Of all plans that were ever made."""

    # --- what may happen ---

    def actions(self) -> Iterator[Action]:
        """Everything that may happen next."""
        for name, node in self.nodes.items():
            if not node.process:
                if node.processes < MOST_PROCESSES:
                    yield "start", name
                continue
            yield "report", name
            yield "lose", name
            if name in self.table.nodes:
                yield "lose sight", name
            yield "withdraw" if node.notice else "notice", name
            yield "user notice", name
            yield "drain", name
            yield "undrain", name
            if node.number > 1:
                yield "report late", name
            yield "report as another", name
            if node.epoch:
                yield "worker ends", name
                yield "sick", name
            else:
                yield "worker starts", name
            if node.standing is not None and not node.left:
                yield "leave", name
        yield ("send",)
        for tenant in TENANTS:
            if tenant not in self.table.tenants:
                yield "begin", tenant
                continue
            yield "gone", tenant
            if self.heard[tenant]:
                yield "turn", tenant
            row = self.table.tenants[tenant]
            if not row.over:
                yield "over", tenant
                yield "begin", tenant
                yield "bar", tenant
            for name in NAMES:
                yield "assign", tenant, name
                yield "assign again", tenant, name
            for name in row.nodes:
                yield "says", tenant, name

    def do(self, action: Action) -> None:
        """It happens; then all that must be so is checked."""
        self.now += STEP_S
        for tenant, workers in self.served.items():
            self.there_s[tenant] += STEP_S * len(workers)
        plans = {name: (row.word.scheduler, row.plan) for name, row in self.table.nodes.items()}
        what, *args = action
        getattr(self, f"_{what.replace(' ', '_')}")(*args)
        for name, (process, plan) in plans.items():
            row = self.table.nodes.get(name)
            if row is not None and row.word.scheduler == process:
                assert row.plan >= plan, "the number of a plan fell"
        self.check()

    # --- nodes ---

    def _start(self, name: str) -> None:
        """The same name, another process, which knows nothing."""
        node, self.epochs = self.nodes[name], self.epochs + 1
        more = node.processes + 1
        self.nodes[name] = Node(name, more, more, self.epochs)

    def _report(self, name: str) -> None:
        self.nodes[name].number += 1
        self._deliver(name, self.nodes[name].word())
        row, epoch = self.table.nodes[name], self.nodes[name].epoch
        assert {sick.epoch for sick in row.sick} <= {epoch}, "a process that is gone is sick"

    def _report_late(self, name: str) -> None:
        """An older word comes again: nothing changes, and it is answered."""
        if name in self.table.nodes:
            before = self.outline()
            word = replace(self.nodes[name].word(), number=0, notice=None, workers=())
            (answer,) = self.table.handle(event.Reported(word), self.now)
            assert answer in (step.Acknowledge(name), step.AnswerWithPlan(name))
            assert self.outline() == before, "an old word changed something"

    def _report_as_another(self, name: str) -> None:
        """A second process of that name, while the first is there."""
        if name in self.table.nodes:
            before = self.outline()
            word = replace(self.nodes[name].word(), scheduler="impostor")
            found = self.table.handle(event.Reported(word), self.now)
            assert found == [step.NameTaken(name, self.table.nodes[name].word.scheduler)]
            assert self.outline() == before, "who was refused changed something"

    def _deliver(self, name: str, word: Word) -> None:
        """A report reaches the coordinator, and its answer the node."""
        found = self.table.handle(event.Reported(word), self.now)
        self._pass_on(found)
        for each in found:
            match each:
                case step.AnswerWithPlan():
                    self._follow(name, with_spec=True)
                case step.Acknowledge():
                    self._check_agreement(name)

    def _pass_on(self, found: list[step.Instruction], but: str = "") -> None:
        """Tenants hear of what concerns them, and nodes of their plans. One that is only beginning
        (`but`) asks itself."""
        for each in found:
            match each:
                case step.PassOn(name, tenant) if tenant != but:
                    row = self.table.nodes[name]
                    assert row.tenant == tenant, "it hears of a node that works for another"
                    self.heard[tenant].append(event.Heard("", row.word))
                case step.NodeLeft(name, tenant):
                    self._tell_loss(name, tenant, announced=True)
                case step.NodeGone(name, tenant, had_left=False):
                    self._tell_loss(name, tenant, announced=each.announced)
                case step.SendPlan(name):
                    self._send_plan(name)

    def _check_agreement(self, name: str) -> None:
        """Whoever is told that its report agrees does follow the plan."""
        row, plan = self.table.nodes[name], self.nodes[name].plan
        assert plan is not None and plan.number == row.plan, "it follows another plan"
        if not self.table.has_unsent:
            assert plan.gives_back == (row.next is not None), "it does not give back what it should"
        if row.task is not None and not self.table.has_unsent:
            assert plan.task == row.task, "it was told something else under that number"
            assert self.nodes[name].job_id == row.task.job_id, "it lacks the job's spec"

    def _follow(self, name: str, *, with_spec: bool) -> None:
        """A plan reaches the node; `with_spec`: and the node can do what that says."""
        row, node = self.table.nodes[name], self.nodes[name]
        if row.word.scheduler == node.address:
            node.plan = Plan(row.plan, row.task, row.over, row.next is not None)
            node.stay_if_it_may()
            if row.task is not None and with_spec:
                node.job_id = row.task.job_id
            elif row.task is None and row.over:
                node.job_id = ""

    def _tell_loss(self, name: str, tenant: str, *, announced: bool) -> None:
        if tenant:
            self.heard[tenant].append(event.HeardOfLoss("", name, "it is gone", announced))

    def _lose(self, name: str) -> None:
        """Its process is gone, and the coordinator learns of that."""
        self._lose_sight(name)
        self.nodes[name] = Node(name, 0, self.nodes[name].processes)

    def _lose_sight(self, name: str) -> None:
        """Nobody hears of its process for a while, but that goes on."""
        address = self.nodes[name].address
        self._pass_on(self.table.handle(event.OutOfReach(address, "it is gone"), self.now))
        assert name not in self.table.nodes

    def _notice(self, name: str) -> None:
        self.nodes[name].notice = True

    def _withdraw(self, name: str) -> None:
        self.nodes[name].notice = False
        self.nodes[name].stay_if_it_may()

    def _leave(self, name: str) -> None:
        self.nodes[name].left = True

    def _user_notice(self, name: str) -> None:
        row = self.table.nodes.get(name)
        there = row is not None and not row.word.left
        given = event.NoticeGiven(name, self.now + 30.0, cancel=False)
        found = self.table.handle(given, self.now)
        assert found == ([step.SendPlan(name)] if there else [])
        if row is not None and there:
            assert row.notice is not None and row.notice.number == row.plan
            self._pass_on(found)

    def _drain(self, name: str) -> None:
        self._pass_on(self.table.handle(event.Drained(name, cancel=False), self.now))
        row = self.table.nodes.get(name)
        assert row is None or row.next == "" or not row.tenant, "it goes on working"

    def _undrain(self, name: str) -> None:
        self._pass_on(self.table.handle(event.Drained(name, cancel=True), self.now))

    def _worker_ends(self, name: str) -> None:
        self.nodes[name].epoch = 0

    def _worker_starts(self, name: str) -> None:
        self.epochs += 1
        self.nodes[name].epoch = self.epochs

    def _sick(self, name: str) -> None:
        sick = event.FoundSick(name, f"{name}/0", self.nodes[name].epoch, "it fails")
        self.table.handle(sick, self.now)

    def _send(self) -> None:
        """Plans that have changed are sent; one in two is lost."""
        self._pass_on(self.table.handle(event.PlansDue(), self.now))
        assert not self.table.has_unsent

    def _send_plan(self, name: str) -> None:
        """One in two arrives."""
        plan = self.table.nodes[name].plan
        assert plan not in self.numbers, "a number was given twice"
        self.numbers.add(plan)
        if plan % 2 == 0:
            self._follow(name, with_spec=plan % 4 == 0)

    # --- tenants ---

    def _begin(self, tenant: str) -> None:
        self._forget(tenant)
        found = self.table.handle(event.TenantBegan(tenant, TERMS[tenant]), self.now)
        self._pass_on(found, but=tenant)
        self.heard[tenant] = [event.Heard("", word) for word in self.table.lent_to(tenant)]
        assert all(row.task is None for row in self.table.nodes.values() if row.tenant == tenant)

    def _over(self, tenant: str) -> None:
        self._pass_on(self.table.handle(event.TenantOver(tenant), self.now))
        assert self.table.tenants[tenant].over
        assert all(row.tenant != tenant for row in self.table.nodes.values())

    def _gone(self, tenant: str) -> None:
        self._pass_on(self.table.handle(event.TenantGone(tenant), self.now))
        self._forget(tenant)
        del self.heard[tenant]
        assert tenant not in self.table.tenants
        assert all(row.tenant != tenant for row in self.table.nodes.values())

    def _forget(self, tenant: str) -> None:
        for known in (self.served, self.told_to_leave, self.there_s):
            known.pop(tenant, None)
        for keyed in (self.left_at, self.tokens):
            for key in [key for key in keyed if key[0] == tenant]:
                del keyed[key]  # type: ignore[attr-defined]

    def _turn(self, tenant: str) -> None:
        """The tenant takes in what it heard first."""
        heard = replace(self.heard[tenant].pop(0), tenant=tenant)
        row = self.table.tenants[tenant]
        had, knew = set(row.nodes), dict(row.nodes)
        moves = {name for name, word in knew.items() if word.notice == Notice(SHARING)}
        theirs = {it: set(self.table.tenants[it].nodes) for it in self._running() - {tenant}}
        found = self.table.handle(heard, self.now)
        self._carry_out(tenant, found)
        for each in found:
            if isinstance(each, step.NodeHeard):
                more = event.HeardOfNotice(tenant, each.node, each.has_news)
                self._carry_out(tenant, self.table.handle(more, self.now))
        if isinstance(heard, event.HeardOfLoss) and heard.node in had - moves:
            self.left_at[tenant, heard.node].append(self.now)
        if isinstance(heard, event.HeardOfLoss) and heard.announced:
            assert (tenant, heard.node) not in self.tokens, "it left and may still write"
        for other, nodes in theirs.items():
            assert set(self.table.tenants[other].nodes) == nodes, "its node was taken from it"
        if isinstance(heard, event.Heard) and row.over:
            assert row.nodes == knew, "it is over and takes in what it hears"
        for name in set(row.nodes) - had:
            left = self.left_at[tenant, name]
            if len(left) > 2:
                assert self.now >= left[-1] + FIRST_WAIT_S, "it comes and goes too often"
            for other in TENANTS:
                if other != tenant:  # one that is over gives up whatever it had
                    self.served[other].pop(f"{name}/0", None)
                    self.told_to_leave[other].discard(f"{name}/0")

    def _carry_out(self, tenant: str, found: list[step.Instruction]) -> None:
        row, served = self.table.tenants[tenant], self.served[tenant]
        for each in found:
            match each:
                case step.RevokeToken(node):
                    holder = self.tokens.pop((tenant, node), None)
                    assert node not in row.nodes or row.nodes[node].scheduler != holder
                case step.AddWorkers(node, epochs):
                    process = row.nodes[node].scheduler
                    assert self.tokens.setdefault((tenant, node), process) == process
                    for worker in row.nodes[node].workers:
                        assert worker.worker not in served, "it was there before"
                        assert worker.epoch in epochs
                        served[worker.worker] = worker.epoch
                        self.told_to_leave[tenant].discard(worker.worker)
                case step.RemoveWorkers(workers):
                    for name in workers:
                        served.pop(name, None)
                        self.told_to_leave[tenant].discard(name)
                case step.SetLeaving(workers, True):
                    self.told_to_leave[tenant] |= set(workers)
                case step.SetLeaving(workers, False):
                    self.told_to_leave[tenant] -= set(workers)

    def _bar(self, tenant: str) -> None:
        barred = self.table.tenants[tenant].barred
        these = frozenset[str]() if barred else frozenset({"a/0"})
        self.table.handle(event.Barred(tenant, these), self.now)

    def _assign(self, tenant: str, name: str) -> None:
        """The tenant has the node do something else, if it may."""
        row = self.table.nodes.get(name)
        before = () if row is None else (row.task, row.tenant, row.over)
        what = row.task.what + 1 if row is not None and row.task is not None else 0
        task = Task(tenant, what % 2)
        self.table.handle(event.Assigned(tenant, name, task), self.now)
        if row is not None:
            now = row.task, row.tenant, row.over
            assert now == ((task, tenant, False) if before[1:2] == (tenant,) else before)

    def _assign_again(self, tenant: str, name: str) -> None:
        row = self.table.nodes.get(name)
        if row is not None and row.tenant == tenant and row.task is not None:
            self._send()
            self.table.handle(event.Assigned(tenant, name, row.task, again=True), self.now)
            assert self.table.has_unsent, "it was not told again"

    def _says(self, tenant: str, name: str) -> None:
        row = self.table.tenants[tenant].workers.get(f"{name}/0")
        state: WorkerState = "idle" if row is not None and row.state == "rollout" else "rollout"
        said = event.WorkerSaid(tenant, Said(f"{name}/0", state))
        found = self.table.handle(said, self.now)
        assert len(found) == (row is not None)

    # --- what must be so ---

    def check(self) -> None:
        """After every step."""
        owners: dict[str, str] = {}
        running = self._running()
        theirs = [node for name in running for node in self.table.tenants[name].nodes]
        assert len(theirs) == len(set(theirs)), "a node has two tenants"
        for name, tenant in self.table.tenants.items():
            for worker, row in tenant.workers.items():
                assert owners.setdefault(worker, name) == name, "a worker has two tenants"
                assert row.node in tenant.nodes, "the worker of a node that is gone"
            there = {w.worker: w.epoch for word in tenant.nodes.values() for w in word.workers}
            rows = {worker: row.epoch for worker, row in tenant.workers.items()}
            assert rows == there, "rows are the workers that are there, and no others"
            assert dict(self.served[name]) == there, "requests are given to other workers"
            with_notice = {name for name, word in tenant.nodes.items() if word.notice}
            assert tenant.leaving == with_notice
            leaving = {w.worker for n in tenant.nodes.values() if n.notice for w in n.workers}
            assert self.told_to_leave[name] == leaving, "others are leaving"
            free = [w for node in tenant.nodes for w in tenant.free_workers_of(node)]
            assert set(free) == there.keys() - leaving - tenant.barred, "others are free"
            assert tenant.free_workers() == len(free)
            spent = tenant.seconds_spent(self.now).values()
            total = sum(seconds for states in spent for seconds in states.values())
            assert abs(total - self.there_s[name]) < 1e-9, "states do not add up"
        assert not self.table.gone.keys() & self.table.nodes.keys(), "a node is there and gone"
        for name, node in self.table.nodes.items():
            assert self.nodes[name].address == node.word.scheduler, (
                "a row of a process that is gone"
            )
            assert node.task is None or node.tenant, "a task of nobody"
            assert not node.tenant or node.tenant in running, "it works for a tenant that is over"
            assert not node.over or not node.tenant, "it is over and works"
            assert node.over or running, "nobody runs, and it is not told"
            assert node.next is None or node.tenant, "it gives back the work of nobody"
            may_work = not node.word.left and not node.is_drained
            assert node.tenant or not (running and may_work), "it could work"

    def _running(self) -> set[str]:
        return {name for name, tenant in self.table.tenants.items() if not tenant.over}

    def settle(self) -> None:
        """When nothing is lost any more, every node soon follows its plan, whatever it is."""
        there = [name for name, node in self.nodes.items() if node.process]
        for _ in range(3):  # what one says may have others moved
            for name in there:
                self._report(name)
            self._send()
        for name in there:
            self._report(name)
        for name, node in self.nodes.items():
            if node.process:
                row, plan = self.table.nodes[name], self.nodes[name].plan
                assert plan is not None and plan.number == row.plan, "it was not told again"
                assert row.task is None or plan.task == row.task, "it does something else"
                assert plan.over or not row.over, "it does not know that its tenant is over"
                assert plan.gives_back == (row.next is not None), "it does not give its work back"
        for tenant, queue in self.heard.items():
            while queue:
                self._turn(tenant)
        for name, row in self.table.nodes.items():
            its = self.table.tenants.get(row.tenant)
            if its is not None and not row.word.left and name not in its.must_wait:
                assert row.word == its.nodes.get(name), "nobody works with what it said last"
        self.check()

    # --- for a search ---

    def copy(self) -> World:
        """Another world that is the same."""
        return copy.deepcopy(self)

    def outline(self) -> tuple[object, ...]:
        """The same for worlds in which the same can happen; numbers and times do not count."""
        nodes = tuple(
            (
                name,
                row.word.scheduler,
                row.word.notice,
                row.word.left,
                row.word.workers,
                row.tenant,
                row.over,
                row.task,
                row.sick,
                row.notice is not None,
                row.next,
                row.is_drained,
                self.nodes[name].plan == Plan(row.plan, row.task, row.over, row.next is not None),
            )
            for name, row in self.table.nodes.items()
        )
        tenants = tuple(
            (
                name,
                tenant.over,
                tenant.barred,
                tuple((n, word.scheduler, word.notice) for n, word in tenant.nodes.items()),
                tuple((w.name, w.epoch, w.state) for w in tenant.workers.values()),
                len(self.heard.get(name, ())),
            )
            for name, tenant in self.table.tenants.items()
        )
        own = tuple(
            (node.process, node.processes, bool(node.epoch), node.notice, node.left, node.job_id)
            for node in self.nodes.values()
        )
        return nodes, tenants, own, self.table.has_unsent
