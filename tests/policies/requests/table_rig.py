"""A table of requests, the journal that its instructions fill, and workers that take its grants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from spotlight.policies.requests.instructions import (
    Answer,
    DeleteBundle,
    GrantLease,
    Instruction,
    Persist,
    RecallLeases,
    RecordEvent,
    RequestsFinished,
    RequestsGivenUp,
    RevokeLeases,
)
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.rows import SavedRow
from spotlight.policies.requests.table import RequestTable
from spotlight.policies.run_tally import RunTally
from spotlight.record.run_events import RunEvent
from spotlight.types import BundleOffer, Request, RequestId, SamplingSettings, StoreEndpoint

InstructionT = TypeVar("InstructionT")
EventT = TypeVar("EventT", bound=RunEvent)

STORE = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/nowhere")
SETTINGS = SamplingSettings(
    kind="ode", steps=4, height=32, width=64, noise_level=0.0, micro_batch=4
)
STEPS = SETTINGS.steps
LEASE_S = 15.0


def bundle(key: str) -> BundleOffer:
    """A bundle that nobody fetches."""
    return BundleOffer(key, 1, 0, STORE)


def request(
    seed: int, kind: Any = "rollout", iteration: int = 0, group: int = 0, **changes: Any
) -> Request:
    """A request of the weights that belong to its iteration."""
    version = max(0, iteration - 1) if kind == "preview" else iteration
    version = changes.pop("version", version)
    name = str(RequestId(kind, iteration, version, group, seed))
    plain = Request(name, kind, iteration, group, f"prompt {group}", seed, version, SETTINGS)
    return msgspec.structs.replace(plain, **changes)


def gradients(count: int, update: int = 0, iteration: int = 0) -> tuple[Request, ...]:
    """The slices of a rank's update after so many, the last one first."""
    settings = msgspec.structs.replace(SETTINGS, steps=50)  # none of them is taken
    return tuple(
        request(update, "gradient", iteration, place, settings=settings)
        for place in reversed(range(count))
    )


def requests(count: int, kind: Any = "rollout", **options: Any) -> tuple[Request, ...]:
    """Requests with the seeds from 0 on."""
    return tuple(request(seed, kind, **options) for seed in range(count))


def ids(items: GrantLease | Iterable[Request]) -> list[str]:
    """Of the requests."""
    return [one.id for one in (items.requests if isinstance(items, GrantLease) else items)]


def steps(grant: GrantLease) -> list[int]:
    """After how many steps each request of a grant goes on."""
    return [commit.step if commit else 0 for commit in grant.commits]


def saved_steps(grant: GrantLease, step: int) -> BundleOffer:
    """Where a batch is saved: its images where the last step is taken."""
    if step == grant.requests[0].settings.steps:
        return images(grant)
    return bundle(f"commits/{grant.worker}/{grant.lease}-{step}")


def images(grant: GrantLease) -> BundleOffer:
    """Where the images of a batch are, or a gradient."""
    if grant.requests[0].kind == "gradient":
        return bundle(f"gradients/{grant.worker}/{grant.lease}")
    return bundle(f"samples/{grant.worker}/{grant.lease}")


@dataclass(frozen=True)
class Held:
    """A lease as its holder names it."""

    lease: int
    requests: tuple[str, ...]


@dataclass(frozen=True)
class GroupReport:
    """What a leader says of its group."""

    members: int = 1
    followers: tuple[str, ...] = ()
    credits: int = 2
    batch: int = 4
    rollout_versions: tuple[int, ...] = (0,)
    evaluation_versions: tuple[int, ...] = (0,)
    prompts: tuple[str, ...] = ()
    leases: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Committed:
    """What a leader says of saved steps."""

    lease: int
    requests: tuple[str, ...]
    bundle: BundleOffer
    step: int
    cost_s: float = 0.1


@dataclass(frozen=True)
class Finished:
    """What a leader says of a batch that is done."""

    lease: int
    requests: tuple[str, ...]
    bundle: BundleOffer
    rewards: tuple[tuple[float, ...], ...]
    steps: int = STEPS
    seconds: float = 4.0
    members: int = 1
    scoring_s: float = 0.1


class Profile:
    """Knows what a test tells it of the model's steps."""

    def __init__(self) -> None:
        self.known: dict[int, float] = {}
        self.measured: list[tuple[int, float]] = []

    def measure(self, settings: SamplingSettings, members: int, step_s: float) -> None:
        self.measured.append((members, step_s))

    def step_s(self, settings: SamplingSettings, members: int) -> float | None:
        return self.known.get(members)


class Rig:
    """A table, its journal, and workers that do what a test says."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.profile = Profile()
        self.journal: dict[str, SavedRow] = {}
        self.epochs: dict[str, int] = {}
        self.terms = 0
        self.said: list[Instruction] = []
        self._options = options
        self._begin()

    def _begin(self, **options: Any) -> None:
        self.terms += 1
        options = {"first_lease": 1000 * self.terms, **self._options, **options}
        self.table = RequestTable(pace=Pace(self.profile), **options)

    def restart(self, listen_s: float = 0.0) -> None:
        """The coordinator comes back with its journal; no worker has been heard yet."""
        self._begin(grants_from=self.now + listen_s)
        self.table.remember(dict(self.journal))
        self.said.clear()

    def carry_out(self, instructions: Iterable[Instruction]) -> Answer:
        """Write what is to be journalled, keep the rest in `said`; returns the answer."""
        answer = Answer(0)
        for instruction in instructions:
            self.said.append(instruction)
            if isinstance(instruction, Persist):
                for key, row in instruction.rows.items():
                    if row is None:
                        self.journal.pop(key, None)
                    else:
                        self.journal[key] = row
            elif isinstance(instruction, Answer):
                answer = instruction
        return answer

    # --- what happens ---

    def submit(self, *wanted: Request) -> None:
        self.carry_out(self.table.submit(wanted, self.now))

    def join(self, name: str, epoch: int = 1, node: str = "", pool: str = "spot") -> None:
        """A worker is there; it takes nothing before it reports."""
        self.epochs[name] = epoch
        its = name, epoch, node or f"{name}'s", pool, name
        self.carry_out(self.table.add_worker(*its, self.now))

    def add(self, name: str, epoch: int = 1, node: str = "", **report: Any) -> None:
        """A worker is there and takes work."""
        self.join(name, epoch, node)
        self.report(name, **report)

    def report(self, name: str, *holds: GrantLease, **fields: Any) -> None:
        leases = tuple(Held(grant.lease, tuple(ids(grant))) for grant in holds)
        report = GroupReport(leases=leases, **fields)
        self.carry_out(self.table.report(name, self.epochs[name], report, self.now))

    def lead(self, name: str, *followers: str, holds: Sequence[GrantLease] = (), **f: Any) -> None:
        """A worker leads a group of itself and these."""
        for one in (name, *followers):
            if one not in self.epochs:
                self.join(one)
        self.report(name, *holds, members=1 + len(followers), followers=followers, **f)

    def lose(self, name: str, *, announced: bool = False, ended: bool = False) -> None:
        said = self.table.lose_worker(name, "gone", announced=announced, ended=ended, now=self.now)
        self.carry_out(said)

    def leave(self, name: str, *, leaving: bool = True) -> None:
        self.carry_out(self.table.set_leaving([name], leaving=leaving, now=self.now))

    def bar(self, *names: str) -> None:
        self.carry_out(self.table.bar(names, self.now))

    def compute(self, *names: str, versatile: Collection[str] = ()) -> None:
        """These compute gradients; the versatile ones do the other thing while there is nothing of
        what they do."""
        self.carry_out(self.table.compute(names, self.now, versatile))

    def computed(self, grant: GrantLease, seconds: float = 4.0, **changes: Any) -> Answer:
        """Deliver a gradient."""
        return self.complete(grant, rewards=((),), steps=0, seconds=seconds, **changes)

    def cancel(self, kind: Any = "preview") -> None:
        self.carry_out(self.table.cancel(kind, self.now))

    def forget(self, kind: Any, iteration: int) -> None:
        self.carry_out(self.table.forget(kind, iteration, self.now))

    def commit(self, grant: GrantLease, step: int, cost_s: float = 0.1, **who: Any) -> Answer:
        name, epoch, lease = self._of(grant, **who)
        saved = Committed(lease, tuple(ids(grant)), saved_steps(grant, step), step, cost_s)
        return self.carry_out(self.table.commit(name, epoch, saved, self.now))

    def complete(self, grant: GrantLease, *rewards: float, **changes: Any) -> Answer:
        """Deliver a batch; every reward is 0.5 unless some are given."""
        who = {key: changes.pop(key) for key in ("name", "epoch") if key in changes}
        name, epoch, lease = self._of(grant, **who)
        of_each = tuple((reward,) for reward in rewards or (0.5,) * len(grant.requests))
        of_each = changes.pop("rewards", of_each)
        done = Finished(lease, tuple(ids(grant)), images(grant), of_each, **changes)
        return self.carry_out(self.table.complete(name, epoch, done, self.now))

    def fail(
        self,
        grant: GrantLease,
        *failed: str,
        what: str = "denoising",
        traceback: str = "",
        **who: Any,
    ) -> None:
        failure = "broken", what, failed
        said = self.table.fail(*self._of(grant, **who), *failure, self.now, traceback=traceback)
        self.carry_out(said)

    def give_back(self, grant: GrantLease, **who: Any) -> None:
        self.carry_out(self.table.give_back(*self._of(grant, **who), self.now))

    def wait(self, seconds: float, *holding: GrantLease, **fields: Any) -> None:
        """Time passes, second by second; who holds one of these says so each time."""
        for _ in range(round(seconds)):
            self.now += 1.0
            for name in dict.fromkeys(grant.worker for grant in holding):
                mine = [grant for grant in holding if grant.worker == name]
                self.report(name, *mine, **fields)
            self.carry_out(self.table.tick(self.now, 1.0))

    def _of(self, grant: GrantLease, name: str = "", epoch: int = 0) -> tuple[str, int, int]:
        name = name or grant.worker
        return name, epoch or self.epochs[name], grant.lease

    # --- what the table said ---

    def all(self, kind: type[InstructionT]) -> list[InstructionT]:
        return [one for one in self.said if isinstance(one, kind)]

    def grants(self, worker: str = "") -> list[GrantLease]:
        return [grant for grant in self.all(GrantLease) if worker in ("", grant.worker)]

    def last(self, worker: str = "") -> GrantLease:
        return self.grants(worker)[-1]

    def recalled(self) -> list[int]:
        return [number for recall in self.all(RecallLeases) for number in recall.leases]

    def revoked(self) -> list[int]:
        return [number for revoke in self.all(RevokeLeases) for number in revoke.leases]

    def finished(self) -> dict[str, float]:
        """Rewards by request; each is told once."""
        results = [result for told in self.all(RequestsFinished) for result in told.results]
        rewards = {it.request.id: it.rewards[0] if it.rewards else 0.0 for it in results}
        assert len(rewards) == len(results), "told twice"
        return rewards

    def given_up(self) -> list[str]:
        return [one.id for told in self.all(RequestsGivenUp) for one in told.requests]

    def deleted(self) -> list[str]:
        return [one.bundle.key for one in self.all(DeleteBundle)]

    def events(self, kind: type[EventT]) -> list[EventT]:
        return [one.event for one in self.all(RecordEvent) if isinstance(one.event, kind)]

    @property
    def tally(self) -> RunTally:
        tally = RunTally()
        for one in self.all(RecordEvent):
            tally.note(one.event)
        return tally

    def saved(self) -> dict[str, int]:
        """Steps of what the journal holds a commit of."""
        return {key: row.commit.step for key, row in self.journal.items() if row.commit}
