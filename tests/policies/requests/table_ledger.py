"""What must be true of every request, told by what a table of requests says and by what became of
its leases.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from table_rig import SETTINGS, STEPS, GroupReport, Profile

from spotlight.policies.requests.instructions import (
    Answer,
    DeleteBundle,
    GrantLease,
    Instruction,
    Persist,
    RecallLeases,
    RequestsFinished,
    RequestsGivenUp,
    RevokeLeases,
)
from spotlight.policies.requests.matching import micro_batches
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.rows import SavedRow
from spotlight.policies.requests.table import RequestTable
from spotlight.types import Commit, Request, RequestKind

AVOID_S = 10.0
KINDS: tuple[RequestKind, ...] = ("rollout", "preview", "evaluation", "gradient")


@dataclass
class Process:
    """A worker: what it works on, as it knows it."""

    name: str
    epoch: int
    versions: tuple[int, ...]
    leases: dict[int, tuple[tuple[str, ...], int]] = field(default_factory=dict)
    """Requests and steps taken, by lease."""
    report: GroupReport | None = None
    """The latest that this table had from it."""
    leaving: bool = False
    silent: bool = False

    @property
    def node(self) -> str:
        return self.name.split("/")[0]


@dataclass(frozen=True)
class Known:
    """A lease in the table."""

    worker: str
    requests: tuple[str, ...]
    deadline: float
    is_denoised: bool


class Ledger:
    """Follows a table through its restarts."""

    def __init__(self) -> None:
        self.now = self.ticked = self.asked = 0.0
        """Now, the latest tick, and when the table had something to say for the last time."""
        self.journal: dict[str, SavedRow] = {}
        self.wanted: dict[str, Request] = {}
        self.commits: dict[str, Commit] = {}
        """Acknowledged, of what is not over."""
        self.done: dict[str, tuple[float, ...]] = {}
        self.given_up: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.failed_at: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.lost_with: defaultdict[str, set[str]] = defaultdict(set)
        self.deleted: set[str] = set()
        self.processes: dict[str, Process] = {}
        self.barred: frozenset[str] = frozenset()
        self.computing: frozenset[str] = frozenset()
        self.versatile: frozenset[str] = frozenset()
        self.iteration = self.term = 0
        self.begin()

    def lost(self, process: Process, *, blamed: bool) -> list[int]:
        leases = [number for number, it in self.known.items() if it.worker == process.name]
        for number in leases if blamed else ():
            for id in self.known[number].requests:
                self.lost_with[id].add(process.node)
        return leases

    def count_failures(self, process: Process, ids: Iterable[str]) -> None:
        for id in ids:
            self.failures[id] += 1
            self.failed_at[id][process.name] = self.now

    def holds(self, process: Process, number: int) -> bool:
        return number in self.known and self.known[number].worker == process.name

    def begin(self) -> None:
        """A coordinator on what the journal holds."""
        self.term += 1
        self.grants_from = self.now + 3.0 * (self.term > 1)
        self.table = RequestTable(
            pace=Pace(Profile()), first_lease=1000 * self.term, grants_from=self.grants_from
        )
        self.table.remember(dict(self.journal))
        self.submitted: set[str] = set()
        self.known: dict[int, Known] = {}
        self.barred = self.computing = self.versatile = frozenset()
        self.given_up = {id for id in self.given_up if not self.is_gradient(id)}
        self.done = {id: said for id, said in self.done.items() if not self.is_gradient(id)}

    # --- what holds ---

    def happens(self, said: Iterable[Instruction], may_end: Collection[int] = ()) -> Answer:
        """Take in what the table says to an event; only such leases may have ended by it."""
        before, self.asked = self.known, self.now
        self.known = {
            it.number: Known(it.worker, it.ids, it.deadline, it.is_denoised)
            for it in self.table.leases()
        }
        ended = before.keys() - self.known.keys()
        assert ended <= set(may_end), "leases end only when they are done, or lost"
        still = {id for n in before.keys() - ended for id in before[n].requests}
        granted: set[int] = set()
        answer = Answer(0)
        for one in said:
            match one:
                case Persist(rows):
                    for key, saved in rows.items():
                        self.journal[key] = saved or SavedRow()
                        assert not self.is_gradient(key), "it is computed again if it is lost"
                        if saved is None:
                            del self.journal[key]
                case GrantLease():
                    granted.add(one.lease)
                    self.check_grant(one, still)
                    still |= {request.id for request in one.requests}
                case RevokeLeases(worker, leases):
                    for number in leases:
                        assert number not in self.known
                        self.processes[worker].leases.pop(number, None)
                case RecallLeases(worker, leases):
                    assert all(self.known[number].worker == worker for number in leases)
                case RequestsFinished(results, restored):
                    for result in results:
                        self.finish(result.request.id, result.rewards, result.bundle.key, restored)
                case RequestsGivenUp(requests):
                    for request in requests:
                        assert request.id not in self.done
                        assert self.failures[request.id] >= 3 or len(self.lost_with[request.id]) > 2
                        self.given_up.add(request.id)
                        self.commits.pop(request.id, None)
                case DeleteBundle(gone):
                    self.deleted.add(gone.key)
                case Answer():
                    answer = one
        for number in self.known.keys() - before.keys() - granted:
            lease = self.known[number]  # its holder goes on with it
            assert self.processes[lease.worker].leases[number][0] == lease.requests
            assert not still & set(lease.requests), "somebody has it"
        return answer

    def check_grant(self, grant: GrantLease, taken: set[str]) -> None:
        """Whether the worker can do it, nobody else does, and it goes on from where it must."""
        process, report = self.processes[grant.worker], self.processes[grant.worker].report
        assert report is not None and self.may_take(process)
        assert self.now >= self.grants_from
        ids = tuple(request.id for request in grant.requests)
        (key,) = {(it.kind, it.weights_version, it.settings, it.is_probe) for it in grant.requests}
        assert key[1] in process.versions
        assert len(ids) <= report.batch
        assert self.does(process, key[0]), "it does nothing else"
        assert key[0] != "gradient" or (len(ids), report.members) == (1, 1), "a slice, alone"
        assert not taken & set(ids), "in two leases"
        assert set(ids) <= self.submitted - self.done.keys() - self.given_up
        assert grant.commits == tuple(self.commits.get(id) for id in ids), "no step is repeated"
        (step,) = {commit.step if commit else 0 for commit in grant.commits}
        process.leases[grant.lease] = ids, step

    def finish(self, id: str, reward: tuple[float, ...], sample: str, restored: bool) -> None:
        if restored:
            assert self.done[id] == reward, "as it was told before"
            return
        assert id not in self.done, "it counts once"
        assert id not in self.given_up
        assert not id.startswith("rollout") or sample not in self.deleted
        self.done[id] = reward
        self.commits.pop(id, None)

    def does(self, process: Process, kind: str) -> bool:
        """Whether it may be given requests of a kind, perhaps while there are none of its own."""
        computes = process.name in self.computing
        if process.name not in self.versatile:
            return computes == (kind == "gradient")
        return kind != "evaluation" or not computes

    def may_take(self, process: Process) -> bool:
        report = process.report
        return (
            report is not None
            and report.credits > 0
            and not (process.leaving or process.silent or process.name in self.barred)
            and not self.table.groups.follows(process.name)
        )

    def check(self) -> None:
        """What must hold after every event."""
        leased = Counter(id for lease in self.known.values() for id in lease.requests)
        assert all(count == 1 for count in leased.values()), "in two leases"
        over = self.done.keys() | self.given_up
        assert not leased.keys() & over
        open_ones = self.submitted - over
        assert leased.keys() <= open_ones
        waiting = open_ones - leased.keys()
        for id in open_ones:
            commit = self.commits.get(id)
            assert self.table.steps_done(id) == (commit.step if commit else 0)
            if commit is not None:
                assert self.journal[id].commit == commit, "what is acknowledged is written down"
                assert commit.bundle.key not in self.deleted
        kinds = Counter(self.wanted[id].kind for id in open_ones)
        assert all(self.table.open(kind) == kinds[kind] for kind in KINDS)
        assert self.table.free_groups == sum(
            not (it.leaving or it.name in self.barred | self.computing)
            and not self.table.groups.follows(it.name)
            for it in self.processes.values()
        )
        self.check_backlog(waiting)
        assert self.table.previewing_groups == self.table.free_groups + sum(
            it.name in self.computing & self.versatile - self.barred
            and not (it.leaving or self.table.groups.follows(it.name))
            for it in self.processes.values()
        )
        self.check_nobody_idles(waiting)

    def check_backlog(self, waiting: set[str]) -> None:
        queued = Counter(
            self.wanted[id].kind
            for id in waiting
            if not (self.is_denoised(id) or self.is_gradient(id))
        )
        held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for lease in self.known.values():
            if not (lease.is_denoised or self.is_gradient(lease.requests[0])):
                kind = self.wanted[lease.requests[0]].kind
                held[kind][self.processes[lease.worker].node] += 1
        backlog = self.table.backlog()
        found = {work.kind: (work.queued, work.leased) for work in backlog}
        assert found == {kind: (queued[kind], held[kind]) for kind in queued.keys() | held.keys()}
        left = sum(work.batches for work in backlog)
        scarce = left.bit_length() if left < len(self.processes) else None
        assert self.table.backlog_outline() == (
            scarce,
            frozenset((work.kind, work.settings) for work in backlog),
        )
        for work in backlog:
            batches = micro_batches(work.queued, SETTINGS) + held[work.kind].total()
            assert work.batches == batches

    def check_nobody_idles(self, waiting: set[str]) -> None:
        busy = {lease.worker for lease in self.known.values() if not lease.is_denoised}
        for process in self.processes.values():
            if self.asked < self.grants_from or process.name in busy or not self.may_take(process):
                continue
            assert process.report is not None
            for id in waiting:
                failed = self.failed_at[id].get(process.name, -AVOID_S)
                able = self.wanted[id].weights_version in process.versions
                able &= self.does(process, self.wanted[id].kind)
                able &= not self.is_gradient(id) or process.report.members == 1
                held = sum(lease.worker == process.name for lease in self.known.values())
                most = process.report.credits * (1 if self.is_denoised(id) else 2)
                able &= held < most or self.is_gradient(id)
                assert not able or failed > self.ticked - AVOID_S, "it could do this"

    @staticmethod
    def is_gradient(id: str) -> bool:
        return id.startswith("gradient/")

    def is_denoised(self, id: str) -> bool:
        return id in self.commits and self.commits[id].step == STEPS
