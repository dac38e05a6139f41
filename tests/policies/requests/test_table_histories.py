"""Whatever happens to workers and coordinators, in whatever order: what the table of requests
promises holds after every event, and when faults end everything that was asked for ends too.
"""

from __future__ import annotations

import random

import pytest
from table_ledger import KINDS, Ledger, Process
from table_rig import STEPS, Committed, Finished, GroupReport, Held, bundle, request

from spotlight.policies.requests.instructions import Answer
from spotlight.types import Commit, Request, RequestKind

EVENTS = 200
VERSIONS = (0, 1, 2, 3)


class History(Ledger):
    """A random sequence of events."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)

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
            self.compute: 3,
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
        its = process.name, process.epoch, process.node, "spot", process.name
        said = self.table.add_worker(*its, self.now)
        self.happens(said, may_end)

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
        self.happens(self.table.submit(wanted.values(), self.now))

    def begin_iteration(self) -> None:
        self.iteration = min(3, self.iteration + 1)

    def cancel(self) -> None:
        kind: RequestKind = self.rng.choice(["preview", "gradient"])
        over = self.done.keys() | self.given_up
        unwanted = {id for id, one in self.wanted.items() if one.kind == kind} - over
        for id in unwanted:
            del self.wanted[id]
            self.commits.pop(id, None)
        self.submitted -= unwanted
        self.happens(
            self.table.cancel(kind, self.now),
            [number for number, it in self.known.items() if unwanted & set(it.requests)],
        )

    def notice(self) -> None:
        process, leaving = self.anyone(), self.rng.random() < 0.5
        process.leaving = leaving
        self.happens(self.table.set_leaving([process.name], leaving=leaving, now=self.now))

    def bar(self) -> None:
        names = sorted(self.processes)
        self.barred = frozenset(self.rng.sample(names, self.rng.randrange(len(names) + 1)))
        self.happens(self.table.bar(self.barred, self.now))

    def compute(self) -> None:
        names = sorted(self.processes)
        computing, versatile = (
            self.rng.sample(names, self.rng.randrange(len(names) + 1)) for _ in range(2)
        )
        self.set_computing(computing, versatile)

    def set_computing(self, names: list[str], versatile: list[str]) -> None:
        self.computing, self.versatile = frozenset(names), frozenset(versatile)
        self.happens(self.table.compute(self.computing, self.now, self.versatile))

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
        ids, step = process.leases[number]
        if what < 0.4 and step < STEPS and not self.is_gradient(ids[0]):
            self.commit(process, number)
        elif what < 0.75:
            self.complete(process, number, nonsense=self.rng.random() < 0.05)
        elif what < 0.85:
            self.fail(process, number)
        else:
            del process.leases[number]
            said = self.table.give_back(process.name, process.epoch, number, self.now)
            self.happens(said, [number])

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
        rewards: tuple[tuple[float, ...], ...]
        rewards = tuple((self.rng.random() + 7.0 * nonsense,) for _ in ids)
        if self.is_gradient(ids[0]) and not nonsense:
            rewards = ((),)
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
            blamed = failed or ids
            if what == "commits" and any(id in self.commits for id in blamed):
                for id in blamed:
                    self.commits.pop(id, None)
            else:
                self.count_failures(process, blamed)
        said = self.table.fail(process.name, process.epoch, number, "boom", what, failed, self.now)
        self.happens(said, [number])

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
        self.set_computing(["new/0"], [])
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


@pytest.mark.parametrize("first", range(0, 150, 10))
def test_promises_hold_after_every_event_and_everything_ends(first: int) -> None:
    for seed in range(first, first + 10):
        history = History(seed)
        try:
            for _ in range(EVENTS):
                history.step()
            history.settle()
        except Exception as error:
            error.add_note(f"with the seed {seed}")
            raise
