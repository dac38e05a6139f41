"""The results that workers deliver under a lease: whether they count, and which steps they save."""

from __future__ import annotations

from collections.abc import Sequence

from spotlight.policies.dispatch.accounts import Accounts, Counters
from spotlight.policies.dispatch.events import BatchEvent, CommittedBatch
from spotlight.policies.dispatch.instructions import Answer, RevokeLeases
from spotlight.policies.dispatch.matching import Matching
from spotlight.policies.dispatch.phases import Phases
from spotlight.policies.dispatch.rows import Lease, RequestState
from spotlight.policies.dispatch.takers import Taker


class Deliveries:
    """See the module's docstring."""

    def __init__(
        self, accounts: Accounts, matching: Matching, phases: Phases, counters: Counters
    ) -> None:
        self._accounts = accounts
        self._matching = matching
        self._phases = phases
        self._counters = counters

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
        self._counters.commits += 1
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
