"""The first half of the dispatcher: requests that wait to be denoised, and the groups that work on
them.

Decisions are the lease book's and those of `policies/`; this carries them out. Nothing here waits:
every method changes state, writes the journal, and tells.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median

import msgspec
import structlog

from spotlight.actors.coordinator.dispatch_state import Backlog, DispatchStatistics, Worker
from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.coordinator.step_profile import StepProfile
from spotlight.actors.protocol import CommitSteps, Completed, Grant, Pull, Recall, Revoke
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor
from spotlight.policies.commit_interval import commit_interval
from spotlight.policies.leases import Lease, LeaseBook
from spotlight.policies.preemption import LossRate
from spotlight.types import BundleOffer, Commit, Request, RequestKind, SamplingSettings

log = structlog.get_logger(__name__)

URGENCY: dict[RequestKind, int] = {"rollout": 0, "preview": 1, "evaluation": 2}
LEASE_S = 15.0
_MAX_ATTEMPTS = 3
_SLOW = 3.0
"""A batch that takes so many times longer than it takes others is given to another group."""
_SMOOTHING = 0.3

RequestLease = Lease[Request, Commit]


class DenoiseStage:
    """See the module's docstring.

    Args:
        actor: tells on this stage's behalf.
        workers: by name; the dispatcher adds and removes them.
        discard: deletes a bundle from the coordinator's store.
        profile: learns how long the steps take.
        grants_from: when the first grant may be made.
    """

    def __init__(
        self,
        actor: Actor,
        *,
        workers: dict[str, Worker],
        journal: JobJournal,
        statistics: DispatchStatistics,
        discard: Callable[[BundleOffer], None],
        profile: StepProfile,
        grants_from: float,
    ) -> None:
        self._actor = actor
        self._workers = workers
        self._journal = journal
        self._statistics = statistics
        self._discard = discard
        self._profile = profile
        self._grants_from = grants_from
        self._losses: defaultdict[str, LossRate] = defaultdict(LossRate)
        """By pool."""
        self._commit_s = 0.0
        self._recalled: set[int] = set()
        self._submitted: set[str] = set()
        self._chosen = -1
        """The latest iteration whose seeds are known to be chosen."""
        self._bundles: dict[str, BundleOffer] = {}
        """Where the commit of a request is, by its id."""
        self._users: Counter[str] = Counter()
        """Requests by the bundle that holds their commit."""
        self.book: LeaseBook[Request, Commit] = LeaseBook(
            order=lambda request: (URGENCY[request.kind], request.iteration),
            batch_key=lambda request: (request.kind, request.weights_version, request.settings),
            work=_work,
            lease_s=LEASE_S,
            max_attempts=_MAX_ATTEMPTS,
            first_lease=journal.first_lease,
        )

    def remember(self) -> None:
        """Take up the commits that an earlier coordinator of this run left."""
        for request_id, commit in self._journal.commits().items():
            self.book.restore(request_id, commit)
            self._keep_commit(request_id, commit.bundle)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests; those already known are ignored."""
        for request in requests:
            if request.kind != "preview":  # those come bit by bit
                self._submitted.add(request.kind)
            if request.kind == "rollout":  # its seeds are chosen
                self._chosen = max(self._chosen, request.iteration)
            self.book.submit([request])

    def may_come(self, request_id: str) -> bool:
        """Whether the coordinator has come back so lately that the request may yet be submitted."""
        kind, iteration, *_ = f"{request_id}/".split("/")
        submitted = kind in self._submitted
        if kind == "preview":
            submitted = not iteration.isdigit() or int(iteration) <= self._chosen
        return not submitted and not self.book.knows(request_id)

    def backlog(self) -> tuple[Backlog, ...]:
        """What is not denoised yet, by kind and settings, most urgent first."""
        queued: Counter[tuple[RequestKind, SamplingSettings]] = Counter()
        leased: defaultdict[tuple[RequestKind, SamplingSettings], Counter[str]]
        leased = defaultdict(Counter)
        for request, waiting in self.book.waiting():
            queued[request.kind, request.settings] += waiting
        for lease in self.book.leases():
            request = lease.items[0]
            leased[request.kind, request.settings][self._workers[lease.holder].node] += 1
        kinds = sorted(queued.keys() | leased.keys(), key=lambda kind: (URGENCY[kind[0]], kind))
        return tuple(Backlog(*kind, queued[kind], leased[kind]) for kind in kinds)

    # --- grants ---

    def serve(self, barred: frozenset[str], now: float) -> None:
        """Grant what can be granted, least loaded workers first; what is left to wish for is
        recalled from groups that leave or are far too slow.
        """
        if now < self._grants_from:
            return
        by_load = sorted(
            self._workers.items(),
            key=lambda entry: (self.book.held_by(entry[0]), entry[1].failures, entry[0]),
        )
        for name, worker in by_load:
            if name not in barred and worker.usable and not self._follows(name):
                while self._grant(name, worker, now):
                    pass
        self._recall(barred, now)

    def hear(self, name: str, pull: Pull, now: float) -> None:
        """A leader's latest word."""
        worker = self._workers[name]
        before, worker.pull = worker.members, pull
        if worker.members != before:
            worker.regrouped_at = now
        self._statistics.groups.hear(pull)
        self.reconcile(name, pull, now)

    def reconcile(self, name: str, pull: Pull, now: float) -> None:
        """Renew the leases that a group says it holds, and let it keep those that an earlier
        coordinator granted; it may drop what is done, or is with another group by now.
        """
        stale = []
        for held in pull.leases:
            if self.book.renew(held.lease, name, now):
                continue
            if self.book.adopt(held.lease, name, held.requests, now):
                log.info("lease_adopted", worker=name, lease=held.lease)
            elif not any(map(self.may_come, held.requests)):
                stale.append(held.lease)
        if stale:
            try_tell(self._actor, self._workers[name].refs.leader, Revoke(tuple(stale)))
            kept = tuple(held for held in pull.leases if held.lease not in stale)
            self._workers[name].pull = msgspec.structs.replace(pull, leases=kept)

    def _grant(self, name: str, worker: Worker, now: float) -> bool:
        pull = worker.pull
        held = self.book.held_by(name)
        if pull is None or held >= pull.credits or (held > 0 and not self._queue_is_long()):
            return False  # near the end of a phase nothing waits behind a busy worker
        warm = frozenset(pull.prompts)
        lease = self.book.pull(
            name,
            pull.batch,
            now,
            partial(_can_do, pull),
            lambda request: request.prompt in warm,
        )
        if lease is None:
            return False
        every = self._commit_every(worker, lease)
        grant = Grant(lease.number, LEASE_S, lease.items, lease.saved, every)
        if not try_tell(self._actor, worker.refs.leader, grant):
            self.book.give_back(lease.number, name)
            worker.pull = None
            return False
        self._statistics.resumed += sum(commit is not None for commit in lease.saved)
        return True

    def _queue_is_long(self) -> bool:
        """Even if every worker takes a batch. Less urgent requests do not count: for their sake
        nobody takes a second batch of what others could begin at once."""
        batch = max(
            (worker.pull.batch for worker in self._workers.values() if worker.pull), default=1
        )
        takers = sum(not self._follows(name) for name in self._workers)
        return self.book.queued_first > batch * takers

    def _follows(self, name: str) -> bool:
        return self._statistics.groups.follows(name)

    def _commit_every(self, worker: Worker, lease: RequestLease) -> int:
        settings, members = lease.items[0].settings, worker.members
        step_s = worker.step_s.get(members) or self._usual_step_s(settings, members)
        if step_s is None:
            return 0  # nothing is known yet: the first batch shows what a step takes
        per_s = self._losses[worker.pool].per_s
        return commit_interval(step_s, self._commit_s, per_s, settings.steps)

    def _usual_step_s(self, settings: SamplingSettings, members: int) -> float | None:
        """What a step takes groups of so many members; what other sizes took tells it too."""
        known = [w.step_s[members] for w in self._workers.values() if members in w.step_s]
        return median(known) if known else self._profile.step_s(settings, members)

    # --- recalls ---

    def _recall(self, barred: frozenset[str], now: float) -> None:
        """A group that is free goes on with what one that leaves, or is far too slow, holds."""
        for name, worker in sorted(self._workers.items()):
            pull = worker.pull
            free = name not in barred and worker.usable and not self._follows(name)
            if not free or self.book.held_by(name) > 0 or pull is None or pull.credits < 1:
                continue
            if self.book.is_waiting_for(partial(_can_do, pull)):
                continue
            lease = self._to_recall(name, pull, now)
            if lease is None:
                continue
            holder = self._workers[lease.holder].refs.leader
            if try_tell(self._actor, holder, Recall((lease.number,))):
                self._recalled.add(lease.number)
                self._statistics.recalled += 1

    def _to_recall(self, name: str, pull: Pull, now: float) -> RequestLease | None:
        for lease in self.book.leases():
            holder = self._workers.get(lease.holder)
            if (
                holder is None
                or lease.holder == name
                or lease.number in self._recalled
                or not _can_do(pull, lease.items[0])
            ):
                continue
            if holder.leaving or self._is_slow(lease, now):
                return lease
        return None

    def _is_slow(self, lease: RequestLease, now: float) -> bool:
        holder, settings = self._workers[lease.holder], lease.items[0].settings
        usual = self._usual_step_s(settings, holder.members)
        if usual is None or len(self._workers) < 2:
            return False
        since = max(lease.granted_at, holder.regrouped_at)  # another size, another pace
        left = settings.steps - (lease.saved[0].step if lease.saved[0] else 0)
        queue = self.book.held_by(lease.holder)
        return now - since > _SLOW * queue * left * usual + 1.0

    # --- answers ---

    def complete(self, message: Completed) -> tuple[Request, ...]:
        """The requests that this makes denoised, durably; empty if it counts for nothing."""
        lease = self.book.find(message.lease, message.worker)
        if lease is not None:
            ids = tuple(item.id for item in lease.items)
            if ids != message.requests:
                log.error("wrong_requests", worker=message.worker, lease=message.lease)
                return ()
            self._journal.save_denoised(ids, message.bundle)
            self._drop_commits(ids)
        done = self.book.complete(message.lease, message.worker)
        self._recalled.discard(message.lease)
        if done and message.steps > 0 and message.members > 0:
            self._measure(message, done[0].settings)
        return done

    def commit(self, message: CommitSteps) -> int:
        """Keep the progress of a lease; returns how many requests it saves."""
        lease = self.book.find(message.lease, message.worker)
        if lease is None:
            self.book.counters.late += 1
            self.discard_unused(message.bundle)
            return 0
        commits = {
            item.id: Commit(message.step, message.bundle, row)
            for row, item in enumerate(lease.items)
        }
        before = [self.book.saved(request_id) for request_id in commits]
        if any(saved is not None and saved.step >= message.step for saved in before):
            self.discard_unused(message.bundle)
            return len(commits)  # told twice, or overtaken by a later one
        self._journal.save_commits(commits)
        self.book.save(message.lease, message.worker, tuple(commits.values()))
        for request_id in commits:
            self._keep_commit(request_id, message.bundle)
        self._commit_s += _SMOOTHING * (message.cost_s - self._commit_s)
        self._statistics.commits += 1
        return len(commits)

    def start_over(self, lease: int, name: str) -> bool:
        """The commits that came with a lease cannot be used: do its requests from the start. False
        if none came with it.
        """
        held = self.book.find(lease, name)
        if held is None or not any(held.saved):
            return False
        ids = [item.id for item in held.items]
        self._journal.drop_requests(ids)
        self._drop_commits(ids)
        return self.book.start_over(lease, name)

    def give_back(self, lease: int, name: str) -> None:
        """Others must do it; one that was too slow with it is the last to get it again."""
        if lease in self._recalled and not self._workers[name].leaving:
            self._workers[name].failures += 1
        self._recalled.discard(lease)
        self.book.give_back(lease, name)

    def forget(self, request_ids: Iterable[str]) -> None:
        """What was saved of these is not needed any more."""
        self._drop_commits(request_ids)

    def forget_all(self, prefix: str) -> None:
        """Finished or never submitted again: ids that begin so."""
        self.book.forget(lambda request_id: request_id.startswith(prefix))
        self._drop_commits([key for key in self._bundles if key.startswith(prefix)])

    def discard_unused(self, bundle: BundleOffer) -> None:
        """A commit that does not count, unless it is one that did before."""
        if not self._users[bundle.key]:
            del self._users[bundle.key]
            self._discard(bundle)

    # --- losses ---

    def watch_pools(self, seconds: float) -> None:
        """So much time has passed: workers that live through it make losses less likely."""
        for worker in self._workers.values():
            self._losses[worker.pool].worker_s += seconds

    def count_loss(self, pool: str) -> None:
        """A worker of the pool was lost, or has notice."""
        self._losses[pool].losses += 1

    # --- inside ---

    def _measure(self, message: Completed, settings: SamplingSettings) -> None:
        worker, step_s = self._workers[message.worker], message.seconds / message.steps
        if 0 < step_s < math.inf:
            known = worker.step_s.get(message.members, step_s)
            worker.step_s[message.members] = known + _SMOOTHING * (step_s - known)
            self._profile.measure(settings, message.members, step_s)

    def _drop_commits(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            bundle = self._bundles.pop(request_id, None)
            if bundle is not None:
                self._users[bundle.key] -= 1
                self.discard_unused(bundle)

    def _keep_commit(self, request_id: str, bundle: BundleOffer) -> None:
        self._users[bundle.key] += 1
        self._drop_commits([request_id])
        self._bundles[request_id] = bundle


def _can_do(pull: Pull, request: Request) -> bool:
    """Only with the weights that the request names, and that the group has acknowledged."""
    held = pull.evaluation_versions if request.kind == "evaluation" else pull.rollout_versions
    return request.weights_version in held


def _work(request: Request) -> int:
    settings = request.settings
    passes = 2 if settings.guidance > 1 else 1
    return settings.steps * settings.height * settings.width * passes
