"""Whatever happens to workers and coordinators, in whatever order: what the table of requests
promises holds after every event, and when faults end everything that was asked for ends too.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pytest
from table_rig import (
    SETTINGS,
    STEPS,
    Committed,
    Finished,
    GroupReport,
    Held,
    Profile,
    bundle,
    request,
)

from spotlight.policies.dispatch.instructions import (
    Answer,
    DeleteBundle,
    GrantLease,
    Instruction,
    Persist,
    RecallLeases,
    RevokeLeases,
    TellFinished,
    TellGivenUp,
)
from spotlight.policies.dispatch.matching import micro_batches
from spotlight.policies.dispatch.pace import Pace
from spotlight.policies.dispatch.rows import SavedRow
from spotlight.policies.dispatch.table import RequestTable
from spotlight.types import Commit, Request, RequestKind

EVENTS = 250
VERSIONS = (0, 1, 2, 3)
AVOID_S = 10.0
KINDS: tuple[RequestKind, ...] = ("rollout", "preview", "evaluation")


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


class History:
    """A random sequence of events, and what must be true of each request."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = self.ticked = self.asked = 0.0
        """Now, the latest tick, and when the table had something to say for the last time."""
        self.journal: dict[str, SavedRow] = {}
        self.wanted: dict[str, Request] = {}
        self.commits: dict[str, Commit] = {}
        """Acknowledged, of what is not over."""
        self.done: dict[str, float] = {}
        self.given_up: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.failed_at: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.lost_with: defaultdict[str, set[str]] = defaultdict(set)
        self.deleted: set[str] = set()
        self.processes: dict[str, Process] = {}
        self.barred: frozenset[str] = frozenset()
        self.iteration = self.term = 0
        self.begin()

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
        self.barred = frozenset()

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
                case TellFinished(_, results, restored):
                    for result in results:
                        self.finish(result.request.id, result.reward, result.bundle.key, restored)
                case TellGivenUp(_, requests):
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
        assert not taken & set(ids), "in two leases"
        assert set(ids) <= self.submitted - self.done.keys() - self.given_up
        assert grant.commits == tuple(self.commits.get(id) for id in ids), "no step is repeated"
        (step,) = {commit.step if commit else 0 for commit in grant.commits}
        process.leases[grant.lease] = ids, step

    def finish(self, id: str, reward: float, sample: str, restored: bool) -> None:
        if restored:
            assert self.done[id] == reward, "as it was told before"
            return
        assert id not in self.done, "it counts once"
        assert id not in self.given_up
        assert not id.startswith("rollout") or sample not in self.deleted
        self.done[id] = reward
        self.commits.pop(id, None)

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
        for kind in KINDS:
            assert self.table.open(kind) == sum(self.wanted[id].kind == kind for id in open_ones)
        self.check_backlog(waiting)
        self.check_nobody_idles(waiting)

    def check_backlog(self, waiting: set[str]) -> None:
        queued = Counter(self.wanted[id].kind for id in waiting if not self.is_denoised(id))
        held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for lease in self.known.values():
            if not lease.is_denoised:
                kind = self.wanted[lease.requests[0]].kind
                held[kind][self.processes[lease.worker].node] += 1
        found = {work.kind: (work.queued, work.leased) for work in self.table.backlog()}
        assert found == {kind: (queued[kind], held[kind]) for kind in queued.keys() | held.keys()}
        assert all(
            work.batches == micro_batches(work.queued, SETTINGS) + held[work.kind].total()
            for work in self.table.backlog()
        )

    def check_nobody_idles(self, waiting: set[str]) -> None:
        busy = {lease.worker for lease in self.known.values() if not lease.is_denoised}
        for process in self.processes.values():
            if self.asked < self.grants_from or process.name in busy or not self.may_take(process):
                continue
            for id in waiting:
                failed = self.failed_at[id].get(process.name, -AVOID_S)
                able = self.wanted[id].weights_version in process.versions
                assert not able or failed > self.ticked - AVOID_S, "it could do this"

    def is_denoised(self, id: str) -> bool:
        return id in self.commits and self.commits[id].step == STEPS

    # --- what happens ---

    def step(self) -> None:
        """Something happens."""
        self.now += self.rng.random() * 2
        events = {
            self.join: 12,
            self.lose: 4,
            self.submit: 10,
            self.begin_iteration: 2,
            self.cancel: 2,
            self.notice: 3,
            self.bar: 2,
            self.tick: 10,
            self.report: 20,
            self.work: 40,
            self.restart: 1,
        }
        (event,) = self.rng.choices(list(events), list(events.values()))
        event()
        self.check()

    def anyone(self) -> Process:
        if not self.processes:
            self.join()
        return self.processes[self.rng.choice(sorted(self.processes))]

    def join(self) -> None:
        name = f"n{self.rng.randrange(4)}/{self.rng.randrange(2)}"
        versions = VERSIONS if self.rng.random() < 0.8 else VERSIONS[:2]
        self.add(Process(name, self.rng.randrange(1 << 30), versions))

    def add(self, process: Process) -> None:
        known = self.processes.get(process.name)
        may_end = self.lost(known, blamed=True) if known is not None else []
        self.processes[process.name] = process
        said = self.table.add_worker(process.name, process.epoch, process.node, "spot", self.now)
        self.happens(said, may_end)

    def lost(self, process: Process, *, blamed: bool) -> list[int]:
        leases = [number for number, it in self.known.items() if it.worker == process.name]
        for number in leases if blamed else ():
            for id in self.known[number].requests:
                self.lost_with[id].add(process.node)
        return leases

    def lose(self) -> None:
        process, announced = self.anyone(), self.rng.random() < 0.3
        ended = self.rng.random() < 0.5
        may_end = self.lost(process, blamed=not announced)
        del self.processes[process.name]
        said = self.table.lose_worker(
            process.name, "gone", announced=announced, ended=ended, now=self.now
        )
        self.happens(said, may_end)
        if not ended and self.rng.random() < 0.3:  # it was only out of reach
            process.report, process.leaving, process.silent = None, False, False
            self.add(process)

    def submit(self) -> None:
        kind = self.rng.choice(KINDS)
        iteration = self.iteration + (kind == "preview")
        group = self.rng.randrange(3)
        wanted = [
            request(self.rng.randrange(1 << 30), kind, iteration, group, version=self.iteration)
            for _ in range(self.rng.randrange(1, 9))
        ]
        self.submit_these({one.id: one for one in wanted})

    def submit_these(self, wanted: dict[str, Request]) -> None:
        self.wanted.update(wanted)
        self.submitted.update(wanted)
        self.happens(self.table.submit(wanted.values(), "owner", self.now))

    def begin_iteration(self) -> None:
        self.iteration = min(3, self.iteration + 1)

    def cancel(self) -> None:
        over = self.done.keys() | self.given_up
        previews = {id for id, one in self.wanted.items() if one.kind == "preview"} - over
        for id in previews:
            del self.wanted[id]
            self.commits.pop(id, None)
        self.submitted -= previews
        self.happens(
            self.table.cancel("preview", self.now),
            [number for number, it in self.known.items() if previews & set(it.requests)],
        )

    def notice(self) -> None:
        process, leaving = self.anyone(), self.rng.random() < 0.5
        process.leaving = leaving
        self.happens(self.table.set_leaving([process.name], leaving=leaving, now=self.now))

    def bar(self) -> None:
        names = sorted(self.processes)
        self.barred = frozenset(self.rng.sample(names, self.rng.randrange(len(names) + 1)))
        self.happens(self.table.bar(self.barred, self.now))

    def tick(self) -> None:
        expired = [number for number, it in self.known.items() if it.deadline <= self.now]
        for number in expired:
            self.processes[self.known[number].worker].silent = True
        self.ticked = self.now
        self.happens(self.table.tick(self.now, 1.0), expired)
        assert not self.known.keys() & set(expired)

    def report(self) -> None:
        process = self.anyone()
        others = [
            other.name
            for other in self.processes.values()
            if other.node == process.node and other is not process and not other.leases
        ]
        self.hear(process, tuple(others) if self.rng.random() < 0.3 else ())

    def hear(self, process: Process, followers: tuple[str, ...] = ()) -> None:
        named = tuple(Held(number, ids) for number, (ids, _) in process.leases.items())
        process.report = GroupReport(
            1 + len(followers), followers, 2, 4, process.versions, process.versions, (), named
        )
        process.silent = False
        self.happens(self.table.report(process.name, process.epoch, process.report, self.now))
        for held in named:  # it goes on, was told to stop, or what it names may yet be submitted
            goes_on = held.lease in self.known and held.lease in process.leases
            may_come = not set(held.requests) <= self.submitted
            assert goes_on or held.lease not in process.leases or may_come

    def work(self) -> None:
        process = self.anyone()
        if not process.leases:
            self.hear(process)
            return
        number = self.rng.choice(sorted(process.leases))
        what = self.rng.random()
        process.silent = False
        if what < 0.4 and process.leases[number][1] < STEPS:
            self.commit(process, number)
        elif what < 0.75:
            self.complete(process, number, nonsense=self.rng.random() < 0.05)
        elif what < 0.85:
            self.fail(process, number)
        else:
            del process.leases[number]
            said = self.table.give_back(process.name, process.epoch, number, self.now)
            self.happens(said, [number])

    def holds(self, process: Process, number: int) -> bool:
        return number in self.known and self.known[number].worker == process.name

    def commit(self, process: Process, number: int) -> None:
        ids, step = process.leases[number]
        step += 1
        where = f"commits/{process.name}/{number}-{step}-{self.rng.randrange(1 << 30)}"
        saved = bundle(where if step < STEPS else self.sample(process, number))
        self.deleted.discard(saved.key)
        process.leases[number] = ids, step
        held = self.holds(process, number)
        batch = Committed(number, ids, saved, step)
        said = list(self.table.commit(process.name, process.epoch, batch, self.now))
        accepted = sum(one.accepted for one in said if isinstance(one, Answer))
        for row, id in enumerate(ids) if accepted else ():
            if id not in self.commits or self.commits[id].step < step:
                self.commits[id] = Commit(step, saved, row)
        self.happens(said)
        assert accepted in (0, len(ids))
        assert accepted or not held

    def sample(self, process: Process, number: int) -> str:
        return f"samples/{process.name}/{process.epoch}-{number}"

    def complete(self, process: Process, number: int, *, nonsense: bool = False) -> None:
        ids, step = process.leases[number]
        rewards = tuple(self.rng.random() + 7.0 * nonsense for _ in ids)
        images = bundle(self.sample(process, number))
        if step < STEPS:  # they are not in the store yet
            self.deleted.discard(images.key)
        delivery = Finished(number, ids, images, rewards)
        if nonsense:
            self.count_failures(process, ids)
        held = self.holds(process, number)
        answer = self.deliver(process, delivery)
        if answer.ask_again:
            return
        process.leases.pop(number, None)
        assert answer.accepted in (0, len(ids))
        if answer.accepted:
            assert [self.done[id] for id in ids] == list(rewards)
            assert self.rng.random() < 0.8 or self.deliver(process, delivery) == answer, "twice"
        assert bool(answer.accepted) == (held and not nonsense) or not held

    def deliver(self, process: Process, delivery: Finished) -> Answer:
        said = self.table.complete(process.name, process.epoch, delivery, self.now)
        return self.happens(said, [delivery.lease])

    def fail(self, process: Process, number: int) -> None:
        ids, _ = process.leases.pop(number)
        what = self.rng.choice(["denoising", "scoring", "commits"])
        failed = tuple(self.rng.sample(ids, self.rng.randrange(len(ids) + 1)))
        if self.holds(process, number):
            if what == "commits" and any(id in self.commits for id in ids):
                for id in ids:
                    self.commits.pop(id, None)
            else:
                self.count_failures(process, failed or ids)
        said = self.table.fail(process.name, process.epoch, number, "boom", what, failed, self.now)
        self.happens(said, [number])

    def count_failures(self, process: Process, ids: Iterable[str]) -> None:
        for id in ids:
            self.failures[id] += 1
            self.failed_at[id][process.name] = self.now

    def restart(self) -> None:
        self.begin()
        for process in self.processes.values():
            process.report, process.leaving, process.silent = None, False, False
            self.add(process)
        for _ in range(self.rng.randrange(3)):  # some are heard before anything is submitted
            self.hear(self.anyone())
        self.submit_these(dict(self.wanted))

    def settle(self) -> None:
        """Faults are over: everybody works."""
        self.bar_nobody()
        for number in range(2):
            self.add(Process(f"new/{number}", number, VERSIONS))
        for _ in range(60):
            self.now += 1.0
            self.tick()
            for process in list(self.processes.values()):
                process.leaving = False
                self.happens(self.table.set_leaving([process.name], leaving=False, now=self.now))
                self.hear(process)
                for number in list(process.leases):
                    if number in process.leases:
                        self.complete(process, number)
                self.check()
            if self.submitted <= self.done.keys() | self.given_up:
                return
        raise AssertionError("something never ends")

    def bar_nobody(self) -> None:
        self.barred = frozenset()
        self.happens(self.table.bar((), self.now))


@pytest.mark.parametrize("seed", range(150))
def test_promises_hold_after_every_event_and_everything_ends(seed: int) -> None:
    history = History(seed)
    for _ in range(EVENTS):
        history.step()
    history.settle()
