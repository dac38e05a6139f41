"""How a lease ends: done, failed, given back, or with the loss of its worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from spotlight.policies.dispatch.accounts import Accounts, Counters
from spotlight.policies.dispatch.blame import Blame
from spotlight.policies.dispatch.events import FinishedBatch
from spotlight.policies.dispatch.instructions import EndWorker, RecordEvent, RevokeLeases
from spotlight.policies.dispatch.matching import Matching
from spotlight.policies.dispatch.rows import Lease, Row
from spotlight.policies.dispatch.takers import Taker
from spotlight.record.run_events import (
    DenoiseFailed,
    RequestQuarantined,
    RunEvent,
    ScorerFailed,
    WorkerLost,
    WorkerQuarantined,
)


class Endings:
    """See the module's docstring."""

    def __init__(
        self, accounts: Accounts, matching: Matching, blame: Blame, counters: Counters
    ) -> None:
        self._accounts = accounts
        self._matching = matching
        self._blame = blame
        self._counters = counters
        self._traceback = ""
        """The last one that is on record."""

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
            requests_reissued=dict(kinds),
        )
        self._accounts.out.append(RecordEvent(lost))
        for row in poisonous:
            quarantined = RequestQuarantined(request=row.request.id, prompt=row.request.prompt)
            self._accounts.out.append(RecordEvent(quarantined))
        if poisonous:
            why = "every node that took it was lost; it is quarantined"
            self._accounts.give_up(poisonous, why, now)

    def finish(self, taker: Taker, lease: Lease, done: FinishedBatch, now: float) -> None:
        """Its requests are done."""
        if not lease.is_denoised:
            taker.free_since = now
        self._matching.close(lease)
        self._matching.pace.scored(done.scoring_s)
        self._accounts.finish(lease.rows, done.bundle, done.rewards, now)
        self._counters.scoring_s += done.scoring_s
        self._counters.scoring_s_of[taker.name] += done.scoring_s
        self._blame.forget(lease.ids)
        for name, error in self._matching.suspicion.done(taker.name, lease.rows).items():
            self._quarantine(self._matching.takers[name], error, now)
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
        else:
            event = DenoiseFailed(worker=taker.name, requests=tuple(failed), error=error)
        self._accounts.out.append(RecordEvent(event))
        if what == "commits" and any(row.commit is not None for row in lease.rows):
            self._accounts.start_over(lease.rows)
            self.take_back(lease, f"its commits could not be used: {error}", now)
            return
        taker.failures += 1
        self._matching.close(lease)
        blamed = [row for row in lease.rows if row.request.id in failed] or list(lease.rows)
        for row in blamed:
            row.note(now, f"{what} failed at {taker.name}: {error}")
        spared = self._note_failure(taker, blamed, error, now) if what == "denoising" else ()
        given_up = self._blame.failed(blamed, taker.name, what, now, spared)
        self._matching.queue([row for row in lease.rows if row not in given_up], ahead=True)
        if given_up:
            self._accounts.give_up(given_up, error, now)

    def _note_failure(
        self, taker: Taker, rows: Collection[Row], error: str, now: float
    ) -> frozenset[str]:
        """A worker failed these; returns the suspects whose failures count against no request. One
        that was held back in vain, and fails again, is none of them."""
        suspicion, name = self._matching.suspicion, taker.name
        waited = name in suspicion.suspects - self._matching.held_back(now)
        suspicion.failed(name, rows, error, now)
        return self._matching.held_back(now) - ({name} if waited else frozenset())

    def _quarantine(self, taker: Taker, error: str, now: float) -> None:
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
        event = WorkerQuarantined(worker=name, reason=reason)
        self._accounts.out.append(RecordEvent(event))
        self._accounts.out.append(EndWorker(taker.node, name, taker.epoch, reason))

    def _absolve(self, rows: Iterable[Row], worker: str) -> None:
        for row in rows:
            self._matching.absolve(row, worker)
