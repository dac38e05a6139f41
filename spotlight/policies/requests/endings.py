"""What comes of a lease: which steps it saves, and how it ends: done, failed, given back, or with
the loss of its worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from spotlight.policies.requests.accounts import Accounts
from spotlight.policies.requests.blame import Blame
from spotlight.policies.requests.events import BatchEvent, CommittedBatch, FinishedBatch
from spotlight.policies.requests.instructions import Answer, EndWorker, RecordEvent, RevokeLeases
from spotlight.policies.requests.matching import Matching
from spotlight.policies.requests.rows import Lease, RequestState, Row, Taker
from spotlight.policies.requests.waiting import Phases
from spotlight.record.run_events import (
    DenoiseFailed,
    GradientFailed,
    RequestGivenUp,
    RunEvent,
    ScorerFailed,
    WorkerIsSick,
    WorkerLost,
)

_ALONE = "no other image of its prompt is left to compare it with, as a `groupwise` reward must"


class Deliveries:
    """The results that workers deliver under a lease: whether they count, and which steps they
    save."""

    def __init__(self, accounts: Accounts, matching: Matching, phases: Phases) -> None:
        self._accounts = accounts
        self._matching = matching
        self._phases = phases

    def may_come(self, request_id: str) -> bool:
        """Whether a request that is not known may yet be submitted."""
        known = request_id in self._accounts.rows
        return not known and self._phases.may_come(request_id)

    def adopt(
        self, taker: Taker, number: int, request_ids: Sequence[str], now: float
    ) -> Lease | None:
        """Let a worker keep a lease that an earlier table granted, or that expired, if all its
        requests wait here."""
        rows = [self._accounts.rows.get(request_id) for request_id in request_ids]
        waiting = [row for row in rows if row is not None and row.state is RequestState.QUEUED]
        if (
            not rows
            or len(waiting) < len(rows)
            or len(set(request_ids)) < len(rows)
            or not self._matching.leases.may_adopt(number)
        ):
            return None
        lease = self._matching.open(taker, waiting, now, number)
        lease.is_known = True
        for row in lease.rows:
            row.note(now, f"{taker.name} goes on with it under lease {number}")
        return lease

    def lease_of(
        self,
        name: str,
        taker: Taker | None,
        batch: BatchEvent,
        now: float,
        step: int | None = None,
    ) -> Lease | None:
        """The lease under which a worker has done something; without one it is told to ask again,
        while the requests may yet be submitted, or to drop it."""
        number = batch.lease
        if not self._phases.begun:  # nor is it known what earlier requests need
            self._accounts.out.append(Answer(0, ask_again=True))
            return None
        lease = self._matching.leases.find(number, taker.name) if taker is not None else None
        if lease is None and taker is not None and number not in taker.revoked:
            lease = self.adopt(taker, number, batch.requests, now)
        if lease is not None and lease.ids == batch.requests:
            return lease
        revoked = taker is not None and number in taker.revoked
        if lease is None and not revoked and any(map(self.may_come, batch.requests)):
            self._accounts.out.append(Answer(0, ask_again=True))
            return None
        if taker is not None and lease is None:
            taker.revoked.add(number)
            self._accounts.out.append(RevokeLeases(taker.name, (number,)))
        self._accounts.refuse(batch.requests, batch.bundle, step)
        self._accounts.late(name, number)
        return None

    def save(self, name: str, lease: Lease, batch: CommittedBatch, now: float) -> None:
        """Of those requests that are not further already: it may be told twice, or overtaken."""
        behind = {i: row for i, row in enumerate(lease.rows) if row.steps_done < batch.step}
        if not behind:
            self._accounts.refuse(batch.requests, batch.bundle, batch.step)
            return
        self._accounts.save(behind, batch.step, batch.bundle)
        for row in behind.values():
            row.note(now, f"{name} committed step {batch.step}")
        lease.is_known = True
        self._matching.pace.committed(batch.cost_s)
        self._accounts.counters.commits += 1
        if all(row.is_denoised for row in lease.rows):
            self._matching.takers[name].free_since = now
            self._matching.denoised(lease)

    def settle(self, taker: Taker, now: float) -> bool:
        """Renew the leases that a group says it holds, and let it keep those that an earlier table
        granted; it may drop what is done, or is with another group by now. False if it holds what
        may yet be submitted."""
        assert taker.report is not None
        stale, unknown = [], False
        taker.revoked &= {held.lease for held in taker.report.leases}
        for held in taker.report.leases:
            lease = self._matching.leases.find(held.lease, taker.name)
            if lease is not None:
                self._matching.leases.renew(lease, now)
            elif held.lease in taker.revoked:
                stale.append(held.lease)
            elif self.adopt(taker, held.lease, held.requests, now) is None:
                if any(map(self.may_come, held.requests)):
                    unknown = True
                else:
                    stale.append(held.lease)
        if stale:
            taker.revoked.update(stale)
            self._accounts.out.append(RevokeLeases(taker.name, tuple(stale)))
        return not unknown


class Endings:
    """How a lease ends, and what that says of its requests and its worker."""

    def __init__(self, accounts: Accounts, matching: Matching, blame: Blame) -> None:
        self._accounts = accounts
        self._matching = matching
        self._blame = blame
        self._traceback = ""
        """The last traceback that is on record."""

    def take_back(self, lease: Lease, why: str, now: float) -> None:
        """The lease is over, and its requests wait again, before others."""
        self._matching.takers[lease.worker].free_since = now
        self._matching.close(lease)
        for row in lease.rows:
            row.note(now, why)
        self._matching.queue(lease.rows, ahead=True)

    def lose(self, taker: Taker, reason: str, blame: str, *, ended: bool, now: float) -> None:
        """A worker is gone with all it held, perhaps because of that, unless nothing is to be
        blamed."""
        leases = list(taker.leases.values())
        poisonous = self._blame.lost(leases, blame, ended=ended) if blame else []
        for lease in leases:
            self._matching.close(lease)
        kinds: Counter[str] = Counter()
        for lease in leases:
            kept = [row for row in lease.rows if row not in poisonous]
            for row in kept:
                row.note(now, f"{taker.name} is gone: {reason}")
            kinds.update(row.request.kind for row in kept)
            self._matching.queue(kept, ahead=True)
        is_suspect = taker.name in self._matching.suspicion.suspects
        failed = self._matching.suspicion.forget(taker.name)
        self._matching.remove(taker)
        if is_suspect:  # it was lost before others could show that it was sick
            self._absolve(failed, taker.name)
        if not taker.leaving:
            self._matching.pace.lost(taker.pool)
        lost = WorkerLost(
            worker=taker.name,
            node=taker.node,
            pool=taker.pool,
            reason=reason,
            requests_handed_on=dict(kinds),
        )
        self._accounts.out.append(RecordEvent(lost))
        for row in poisonous:
            if row.is_gradient:  # its rank computes it: nothing is lost
                continue
            given_up = RequestGivenUp(request=row.request.id, prompt=row.request.prompt)
            self._accounts.out.append(RecordEvent(given_up))
        if poisonous:
            why = "every node that took it was lost"
            self._accounts.give_up(poisonous, why, now)

    def finish(self, taker: Taker, lease: Lease, done: FinishedBatch, now: float) -> None:
        """Its requests are done."""
        if not lease.is_denoised:
            taker.free_since = now
        self._matching.close(lease)
        self._accounts.finish(lease.rows, done.bundle, done.rewards, now)
        self._accounts.counters.scoring_s += done.scoring_s
        self._accounts.counters.scoring_s_of[taker.name] += done.scoring_s
        self._credit(taker, lease, now)
        if lease.rows[0].is_gradient:
            self._matching.pace.computed(done.seconds)
            self._matching.gradient_ended(taker, failed=False)
            return
        self._matching.pace.scored(done.scoring_s)
        self._measure(taker, lease, done)

    def gather(self, taker: Taker, lease: Lease, done: FinishedBatch, now: float) -> None:
        """Its requests are denoised; they are scored once those are that they are scored with."""
        taker.free_since = now
        taker.revoked.add(lease.number)  # it may still name it, and the requests wait
        self._matching.close(lease)
        steps = lease.request.settings.steps
        self._accounts.save(dict(enumerate(lease.rows)), steps, done.bundle)
        for row in lease.rows:
            row.note(now, f"{taker.name} denoised it")
        self._credit(taker, lease, now)
        self._measure(taker, lease, done)
        self._matching.queue(lease.rows, ahead=True)

    def _credit(self, taker: Taker, lease: Lease, now: float) -> None:
        """The worker did it, so neither its requests nor the worker are at fault."""
        self._blame.forget(lease.ids)
        for name, error in self._matching.suspicion.done(taker.name, lease.rows).items():
            self._end_sick(self._matching.takers[name], error, now)

    def _measure(self, taker: Taker, lease: Lease, done: FinishedBatch) -> None:
        if done.steps > 0:
            step_s = done.seconds / done.steps
            self._matching.pace.measure(taker, lease.request.settings, done.members, step_s)

    def fail(
        self,
        taker: Taker,
        lease: Lease,
        error: str,
        what: str,
        failed: Collection[str],
        now: float,
        traceback: str = "",
    ) -> None:
        """It could not be done there: its requests are tried again, or given up.

        Args:
            what: "denoising", "scoring", or "commits": those that came with it cannot be used.
            failed: ids of the requests that cannot be done; of all, if none is named.
            traceback: where a scorer raised; of failures in a row that are alike one keeps it.
        """
        event: RunEvent
        if what == "scoring":
            new = "" if traceback == self._traceback else traceback
            self._traceback = traceback
            event = ScorerFailed(
                worker=taker.name, request=lease.request.id, error=error, traceback=new
            )
        elif lease.rows[0].is_gradient:
            event = GradientFailed(worker=taker.name, request=lease.request.id, error=error)
        else:
            event = DenoiseFailed(worker=taker.name, requests=tuple(failed), error=error)
        self._accounts.out.append(RecordEvent(event))
        blamed = [row for row in lease.rows if row.request.id in failed] or list(lease.rows)
        if what == "commits" and any(row.commit is not None for row in blamed):
            self._accounts.start_over(blamed)
            self.take_back(lease, f"commits could not be used: {error}", now)
            return
        taker.failures += 1
        self._matching.close(lease)
        for row in blamed:
            row.note(now, f"{what} failed at {taker.name}: {error}")
        spared = self._note_failure(taker, blamed, error, now) if what == "denoising" else ()
        given_up = self._blame.failed(blamed, taker.name, what, now, spared)
        self._matching.queue([row for row in lease.rows if row not in given_up], ahead=True)
        if given_up:
            self._accounts.give_up(given_up, error, now)

    def end_lone(self, now: float) -> None:
        """Give up the images that were to be compared with others, of which none are left."""
        for row in self._matching.waiting.gather():
            event = ScorerFailed(request=row.request.id, error=_ALONE)
            self._accounts.out.append(RecordEvent(event))
            self._accounts.give_up([row], _ALONE, now)

    def _note_failure(
        self, taker: Taker, rows: Collection[Row], error: str, now: float
    ) -> frozenset[str]:
        """A worker failed these; returns the suspects whose failures count against no request. One
        that was held back in vain, and fails again, is none of them. Who fails gradients is no
        suspect, as it may well denoise."""
        if rows and next(iter(rows)).is_gradient:
            self._matching.gradient_ended(taker, failed=True)
            return frozenset()
        suspicion, name = self._matching.suspicion, taker.name
        waited = name in suspicion.suspects - self._matching.held_back(now)
        suspicion.failed(name, rows, error, now)
        return self._matching.held_back(now) - ({name} if waited else frozenset())

    def _end_sick(self, taker: Taker, error: str, now: float) -> None:
        """A worker fails what others can do: it gets nothing more, and its process is ended."""
        name, reason = taker.name, f"it failed what others could do: {error}"
        taker.is_sick = True
        held = list(taker.leases.values())
        for lease in held:
            taker.revoked.add(lease.number)
            self.take_back(lease, f"{name} is sick", now)
        self._absolve(self._matching.suspicion.forget(name), name)
        self._matching.refresh(name)
        if held:
            self._accounts.out.append(RevokeLeases(name, tuple(lease.number for lease in held)))
        event = WorkerIsSick(worker=name, reason=reason)
        self._accounts.out.append(RecordEvent(event))
        self._accounts.out.append(EndWorker(taker.node, name, taker.epoch, reason))

    def _absolve(self, rows: Iterable[Row], worker: str) -> None:
        for row in rows:
            self._matching.absolve(row, worker)
