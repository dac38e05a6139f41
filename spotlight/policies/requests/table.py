"""The table of requests: who may work on what, until when, and what counts.

Pure: an event goes in through a method, with the time in seconds where it matters; instructions
come out, to be carried out in their order. The rows are what a journal must hold: a table that is
given them back, and then the same requests, goes on as if nothing had happened.

What always holds:
- A request counts once: the first completion wins, every later one is refused and counted as late.
- It is queued, leased, done or given up (`RequestState`), in one lease at most, and never lost: a
  lease that expires, fails, is returned or loses its holder puts its requests back at the front,
  with their commits. Progress never goes back.
- A lease holds requests of one kind, weights version, settings and number of steps, and of the same
  failures, so that what cannot be done never takes others with it for long.
- A request that was held while several nodes were lost is leased alone, and after too many it is
  given up: it may be what ends them. A node that was lost before it said that it has a lease was
  not ended by it, and one that was only out of reach was not ended at all.
- A worker is granted only what it holds the weights for.
- Requests that are scored together are denoised anywhere, and then granted to one worker at once.
  One that is left alone is given up: there is nothing to compare its image with.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from spotlight.policies.requests.accounts import Accounts
from spotlight.policies.requests.blame import Blame
from spotlight.policies.requests.endings import Deliveries, Endings
from spotlight.policies.requests.events import (
    ONE_REWARD,
    CommittedBatch,
    FinishedBatch,
    Report,
    RewardLimits,
    problem_with,
)
from spotlight.policies.requests.gathering import Gathering
from spotlight.policies.requests.instructions import (
    Answer,
    Instruction,
    RecordEvent,
    RevokeLeases,
)
from spotlight.policies.requests.matching import SLOW, Backlog, Groups, Matching
from spotlight.policies.requests.pace import Arrival, Pace, arrivals, usual_batch_s
from spotlight.policies.requests.rows import Lease, RequestState, Row, SavedRow, Taker
from spotlight.policies.requests.waiting import Phases
from spotlight.record.run_events import WorkTakenBack
from spotlight.timings import DispatchTimings
from spotlight.types import Request, RequestKind, Result, SamplingSettings

_UNREACHABLE = 4096
"""How many workers that are out of reach are remembered."""
_ROLLOUTS: tuple[RequestKind, ...] = ("rollout",)


class RequestTable:
    """See the module's docstring.

    Args:
        pace: what is known of how fast groups work; learns more.
        first_lease: above all that an earlier table of this job granted.
        score_attempts: how often a request is scored before it is given up.
        grants_from: when the first grant may be made: groups that work on an earlier table's
            leases must be heard before.
        reward_limits: of each reward, by the kind of request.
        trained_on: kinds of requests whose samples are needed when they are done.
        timings: when the table takes something back.
    """

    def __init__(
        self,
        *,
        pace: Pace,
        first_lease: int = 1,
        score_attempts: int = 3,
        grants_from: float = -math.inf,
        reward_limits: RewardLimits = ONE_REWARD,
        trained_on: Collection[RequestKind] = _ROLLOUTS,
        timings: DispatchTimings = DispatchTimings(),
    ) -> None:
        self.unsubmitted_previews = 0
        """How many candidates may yet be previewed: only a few are queued at a time."""
        self._phases = Phases()
        self._blame = Blame(score_attempts, timings.avoid_s)
        self._reward_limits = reward_limits
        gathering = Gathering()
        self._accounts = Accounts(trained_on, gathering)
        self.counters = self._accounts.counters
        self._matching = Matching(
            phases=self._phases,
            gathering=gathering,
            pace=pace,
            first_lease=first_lease,
            grants_from=grants_from,
            timings=timings,
        )
        self._endings = Endings(self._accounts, self._matching, self._blame)
        self._deliveries = Deliveries(self._accounts, self._matching, self._phases)
        self._unsettled: set[str] = set()
        """The workers that hold leases on requests which may yet be submitted."""
        self._unreachable: dict[str, int] = {}
        """The latest workers that are gone without being known to have ended, with their epochs."""

    # --- those who want requests done ---

    def remember(self, rows: Mapping[str, SavedRow], adopts_from: int = 0) -> None:
        """Take up what earlier tables left, before anything is submitted; leases from this on."""
        self._accounts.remember(rows)
        self._matching.leases.adopts_from = adopts_from

    def submit(self, requests: Iterable[Request], now: float) -> list[Instruction]:
        """Queue requests; those that are known are ignored, and those that an earlier table
        finished or gave up are told."""
        rows = self._accounts.submit(requests, now)
        if any([self._phases.note(row.request) for row in rows]):
            self._matching.waiting.reorder()
        fresh = [row for row in rows if row.state is RequestState.QUEUED]
        self._matching.queue(fresh, ahead=False)
        for name in sorted(self._unsettled):
            self._settle(self._matching.takers[name], now)
        return self._instructions(now)

    def previewed(self, iteration: int, chosen: Iterable[Request]) -> list[Result | None]:
        """The previews of an iteration are over: how these were done, perhaps by an earlier table,
        where their samples are there."""
        if self._phases.explored(iteration):
            self._matching.waiting.reorder()
        return [self._accounts.sample_of(request) for request in chosen]

    def knows(self, request: Request) -> bool:
        """Whether a request was submitted to this table, and is not released."""
        return request.id in self._accounts.rows

    def withdraw(self, kind: RequestKind, now: float) -> tuple[list[Request], list[Instruction]]:
        """Nobody wants what is not in work of a kind, here or at a worker; returns it."""
        takers = self._matching.takers.values()
        behind = [one for each in takers for one in each.not_begun if one.request.kind == kind]
        revoked = self._revoke(behind)
        waiting = [row for row in self._accounts.open[kind].values() if not row.lease]
        self._drop(waiting)
        self._accounts.out += revoked
        return [row.request for row in waiting], self._instructions(now)

    def arrivals(self, kind: RequestKind, iteration: int, now: float) -> tuple[Arrival, ...]:
        """When what is in work of a kind and an iteration will be done."""
        return arrivals(self._matching.takers.values(), self._matching.pace, kind, iteration, now)

    def batch_s(self, settings: SamplingSettings) -> float | None:
        """How many seconds denoising and scoring a batch takes the groups that may be given one
        now, in the median; None if nothing is known of that."""
        return usual_batch_s(self._matching.pullers(), self._matching.pace, settings)

    def cancel(self, kind: RequestKind, now: float) -> list[Instruction]:
        """Nobody wants the open requests of a kind any more."""
        rows = list(self._accounts.open[kind].values())
        leases = map(self._matching.leases.get, sorted({row.lease for row in rows}))
        revoked = self._revoke([lease for lease in leases if lease is not None])
        self._drop(rows)
        self._accounts.out += revoked
        return self._instructions(now)

    def release(self, request_ids: Iterable[str], now: float) -> list[Instruction]:
        """Nobody wants these: they are dropped, with their samples. What is in work shares its
        lease with others, so it is finished and told as ever, and can be released then."""
        known = (self._accounts.rows.get(request_id) for request_id in request_ids)
        self._drop([row for row in known if row and row.state is not RequestState.LEASED])
        return self._instructions(now)

    def forget(self, kind: RequestKind, iteration: int, now: float) -> list[Instruction]:
        """Finished requests of an iteration that nobody asks for again: the journal may drop them
        all."""
        self._blame.forget(self._accounts.forget(kind, iteration))
        return self._instructions(now)

    # --- workers ---

    def add_worker(
        self, name: str, epoch: int, node: str, pool: str, leader: Hashable, now: float
    ) -> list[Instruction]:
        """A worker is there, or is back as another process."""
        known = self._matching.takers.get(name)
        if known is not None and known.epoch == epoch:
            return []
        if known is not None:
            self._unsettled.discard(name)
            self._endings.lose(
                known, "it came back as a new process", blame=known.node, ended=True, now=now
            )
        if self._unreachable.pop(name, None) == epoch:
            self._blame.absolve(node)
        self._matching.add(Taker(name, epoch, node, pool, leader))
        return self._instructions(now)

    def lose_worker(
        self, name: str, reason: str, *, announced: bool, ended: bool, now: float
    ) -> list[Instruction]:
        """A worker is gone.

        Args:
            announced: its node had notice, so nothing that it held is suspected of having ended it.
            ended: its process is known to have ended; otherwise it is out of reach.
        """
        taker = self._matching.takers.get(name)
        if taker is None:
            return []
        blame = "" if announced else taker.node
        self._unsettled.discard(name)
        self._endings.lose(taker, reason, blame, ended=ended, now=now)
        if not ended:
            self._unreachable[name] = taker.epoch
            if len(self._unreachable) > _UNREACHABLE:
                del self._unreachable[next(iter(self._unreachable))]
        return self._instructions(now)

    def set_leaving(self, names: Iterable[str], *, leaving: bool, now: float) -> list[Instruction]:
        """These get nothing more, and others go on with what they have; or they stay after all."""
        for name in names:
            taker = self._matching.takers.get(name)
            if taker is not None and taker.leaving != leaving:
                self._matching.set_leaving(taker, leaving)
                if leaving:
                    self._matching.pace.lost(taker.pool)
        return self._instructions(now)

    def bar(self, names: Collection[str], now: float) -> list[Instruction]:
        """These workers train and get nothing; all others may."""
        self._matching.bar(names)
        return self._instructions(now)

    def compute(
        self, names: Collection[str], now: float, versatile: Collection[str] = ()
    ) -> list[Instruction]:
        """The first of these workers are given gradients, all others none, but those that are
        `versatile` what the others are given while there is nothing of their own kind."""
        self._matching.compute(names, versatile)
        return self._instructions(now)

    def report(self, name: str, epoch: int, report: Report, now: float) -> list[Instruction]:
        """The latest word of a group's leader on what it can take, and on what it holds: that
        renews its leases."""
        taker = self._current(name, epoch)
        if taker is not None:
            members, taker.report = taker.members, report
            if taker.members != members:
                taker.regrouped_at = now
            self._settle(taker, now)
            self._matching.heard(taker, now)
        return self._instructions(now)

    def unreachable(self, name: str, lease: int, now: float) -> list[Instruction]:
        """A grant could not be sent."""
        taker = self._matching.takers.get(name)
        if taker is not None:
            taker.report = None
            self._unsettled.discard(name)
            held = self._matching.leases.find(lease, name)
            if held is not None:
                self._endings.take_back(held, "its grant could not be sent", now)
            self._matching.refresh(name)
        return self._instructions(now)

    def commit(self, name: str, epoch: int, batch: CommittedBatch, now: float) -> list[Instruction]:
        """The requests of a lease are saved after so many steps."""
        taker = self._current(name, epoch)
        lease = self._deliveries.lease_of(name, taker, batch, now, batch.step)
        if lease is not None and 0 < batch.step <= lease.request.settings.steps:
            self._deliveries.save(name, lease, batch, now)
            self._accounts.out.append(Answer(len(lease.rows)))
        elif lease is not None:
            self._accounts.delete_unused(batch.bundle)
        return self._instructions(now)

    def complete(
        self, name: str, epoch: int, batch: FinishedBatch, now: float
    ) -> list[Instruction]:
        """A batch is denoised, and scored unless others must be there for that."""
        if self._phases.begun and self._accounts.delivered_by(batch.requests, batch.bundle):
            self._accounts.out.append(Answer(len(batch.requests)))
            return self._instructions(now)
        taker = self._current(name, epoch)
        lease = self._deliveries.lease_of(name, taker, batch, now)
        if taker is not None and lease is not None:
            is_denoised_only = bool(lease.request.scored_with) and not batch.rewards
            limits = self._reward_limits[lease.request.kind]
            problem = "" if is_denoised_only else problem_with(batch, limits)
            if problem:
                self._accounts.delete_unused(batch.bundle)
                self._endings.fail(taker, lease, problem, "scoring", (), now)
            else:
                end = self._endings.gather if is_denoised_only else self._endings.finish
                end(taker, lease, batch, now)
                self._accounts.out.append(Answer(len(batch.requests)))
        return self._instructions(now)

    def fail(
        self,
        name: str,
        epoch: int,
        lease: int,
        error: str,
        what: str,
        failed: tuple[str, ...],
        now: float,
        *,
        traceback: str = "",
    ) -> list[Instruction]:
        """A batch could not be done there: others try it, or it is given up.

        Args:
            what: "denoising", "scoring", or "commits": those that came with it cannot be used.
            failed: ids of the requests that cannot be done, or whose commits cannot be used, when
                that is known: nothing is wrong with the others.
            traceback: where a scorer raised.
        """
        taker = self._current(name, epoch)
        held = self._matching.leases.find(lease, name) if taker else None
        if taker is not None and held is not None:
            self._endings.fail(taker, held, error, what, failed, now, traceback)
        else:
            self._accounts.late(name, lease)
        return self._instructions(now)

    def give_back(self, name: str, epoch: int, lease: int, now: float) -> list[Instruction]:
        """Another group must do it; one that was too slow with it is the last to get it again."""
        taker = self._current(name, epoch)
        held = self._matching.leases.find(lease, name) if taker else None
        if taker is not None and held is not None:
            taker.failures += held.recalled == SLOW and not taker.leaving
            self._endings.take_back(held, f"{name} gave it back", now)
        elif taker is None:
            self._accounts.late(name, lease)
        return self._instructions(now)

    def tick(self, now: float, seconds: float) -> list[Instruction]:
        """So many seconds have passed since the last one: leases end, and slow ones move."""
        self._matching.watch_pools(seconds)
        expired = self._matching.leases.expired(now)
        for lease in expired:
            taker = self._matching.takers[lease.worker]
            taker.failures += 1
            taker.silent = True
            self._unsettled.discard(taker.name)
            self._endings.take_back(
                lease, f"{taker.name} did not say in time that it still works on it", now
            )
        if expired:
            items = sum(len(lease.rows) for lease in expired)
            self._accounts.out.append(RecordEvent(WorkTakenBack(items=items)))
        for row in self._blame.pardoned(now):
            self._matching.pardon(row)
        self._matching.look_for_slow(now)
        return self._instructions(now)

    # --- what there is ---

    def backlog(self) -> tuple[Backlog, ...]:
        """What is not denoised yet, by kind and settings."""
        return self._matching.backlog()

    def backlog_outline(self) -> Hashable:
        """Its kinds, and once it is less than one batch for everyone, its order of magnitude."""
        batches = self._matching.batches_left
        scarce = batches.bit_length() if batches < len(self._matching.takers) else None
        return scarce, self._matching.kinds_left()

    @property
    def pace(self) -> Pace:
        """How fast groups work."""
        return self._matching.pace

    def leader_of(self, name: str) -> Hashable:
        """Who speaks for a worker; None if it is not here any more."""
        taker = self._matching.takers.get(name)
        return None if taker is None else taker.leader

    @property
    def next_lease(self) -> int:
        """Above every lease that was granted."""
        return self._matching.leases.next

    @property
    def has_begun(self) -> bool:
        """Whether anything was submitted: only then is it known what else may come."""
        return self._phases.begun

    @property
    def free_groups(self) -> int:
        """How many SP groups may be given requests to denoise now: their workers neither leave nor
        train, nor compute gradients."""
        return self._matching.free_groups

    def fails_gradients(self, worker: str) -> bool:
        """Whether a worker is given no more of them, as it could not compute several in a row."""
        taker = self._matching.takers.get(worker)
        return taker is not None and taker.fails_gradients

    def waits_its_turn(self, request_id: str) -> bool:
        """Whether who was given a request has something else to do before it."""
        row = self._accounts.rows.get(request_id)
        lease = self._matching.leases.get(row.lease) if row is not None else None
        return lease is not None and lease in self._matching.takers[lease.worker].not_begun

    @property
    def previewing_groups(self) -> int:
        """The same with those that preview while there is no gradient to compute."""
        return self._matching.previewing_groups

    @property
    def groups(self) -> Groups:
        """Who leads whom."""
        return self._matching.groups

    def story(self, request_id: str) -> str:
        """A request's life so far, an event a line; for errors and people."""
        row = self._accounts.rows.get(request_id)
        return f"{request_id}: not known" if row is None else row.story()

    def leases(self) -> list[Lease]:
        """Those that there are, oldest first; nobody else may change them."""
        return self._matching.leases.all()

    def steps_done(self, request_id: str) -> int:
        """How many steps of a request need not be taken again; 0 if it is not known."""
        row = self._accounts.rows.get(request_id)
        return row.steps_done if row is not None else 0

    def open(self, kind: RequestKind) -> int:
        """How many requests of a kind are submitted and not over."""
        return len(self._accounts.open[kind])

    def _instructions(self, now: float) -> list[Instruction]:
        """What the event led to, and what can be granted since."""
        self._endings.end_lone(now)
        out, self._accounts.out = self._accounts.out, []
        return out + self._matching.match(now)

    def _revoke(self, leases: Iterable[Lease]) -> list[Instruction]:
        """End leases whose rows are dropped; returns who is to be told, when they are."""
        revoked: defaultdict[str, list[int]] = defaultdict(list)
        for lease in leases:
            revoked[lease.worker].append(lease.number)
            self._matching.takers[lease.worker].revoked.add(lease.number)
            self._matching.close(lease)
        return [RevokeLeases(name, tuple(each)) for name, each in revoked.items()]

    def _drop(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.state is RequestState.QUEUED:
                self._matching.waiting.remove(row)
        self._accounts.drop(rows)

    def _current(self, name: str, epoch: int) -> Taker | None:
        """The worker, if that process is the one that is there; it is heard."""
        taker = self._matching.takers.get(name)
        if taker is None or taker.epoch != epoch:
            return None
        if taker.silent:
            taker.silent = False
            self._matching.refresh(name)
        return taker

    def _settle(self, taker: Taker, now: float) -> None:
        """What a group says it holds is its own, or may yet be submitted, or is dropped."""
        if self._deliveries.settle(taker, now):
            self._unsettled.discard(taker.name)
        else:
            self._unsettled.add(taker.name)
