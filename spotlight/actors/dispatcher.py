"""The pull scheduler as an actor: its mailbox is the queue.

Messages in: SubmitRequests, CancelRequests, BarWorkers (coordinator side); AddWorker, RemoveWorker
(membership); Pull, Completed, DenoiseFailed, RenewLease (group leaders); PullScores, Scored,
ScoreFailed (reward workers).
Messages out: Grant, ScoreGrant; RequestsFinished and RequestsGivenUp to whoever submitted.

A request passes through two lease books: it is denoised, then scored. Decisions are the books';
this actor carries them out. Answers of an old epoch or without a lease change nothing and are
counted. When a worker dies, all it held is queued again. Rewards are checked before they count:
nonsense is a failed attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from spotlight.actors.delivery import try_tell
from spotlight.actors.messages import (
    Acknowledged,
    AddWorker,
    BarWorkers,
    CancelRequests,
    Completed,
    DenoiseFailed,
    Grant,
    Pull,
    PullScores,
    Receipt,
    RemoveWorker,
    RenewLease,
    Request,
    RequestKind,
    RequestsFinished,
    RequestsGivenUp,
    Result,
    Revoke,
    Scored,
    ScoreFailed,
    ScoreGrant,
    SubmitRequests,
)
from spotlight.actors.runtime import Actor, ActorRef, handles
from spotlight.policies.dispatch import Lease, LeaseBook
from spotlight.transport.tensors import BundleOffer

log = structlog.get_logger(__name__)

_URGENCY: dict[RequestKind, int] = {"rollout": 0, "preview": 1, "evaluation": 2}
_LEASE_S = 15.0
_TICK_S = 1.0
_MAX_ATTEMPTS = 3
_RECEIPTS = 4096


@dataclass(frozen=True)
class ScoreTask:
    """A denoised batch that waits for its rewards; requests in the order of the bundle's rows."""

    id: str
    requests: tuple[Request, ...]
    rows: tuple[int, ...]
    bundle: BundleOffer
    made_by: str

    def problem_with(self, rewards: tuple[float, ...]) -> str:
        """Why these cannot be the rewards of the batch; empty if they can."""
        if len(rewards) != len(self.requests):
            return f"{len(rewards)} rewards for {len(self.requests)} images"
        if not all(0.0 <= reward <= 1.0 for reward in rewards):
            return f"rewards outside [0, 1]: {list(rewards)}"
        return ""


@dataclass
class _Worker:
    node: str
    pool: str
    epoch: int
    pull: Pull | None = None
    scores: PullScores | None = None
    leases: int = 0
    failures: int = 0
    """Denoising leases that it gave back or let expire."""
    scoring: dict[int, ScoreTask] = field(default_factory=dict)
    """What it scores now, by lease."""
    score_failures: int = 0

    @property
    def load(self) -> tuple[int, int]:
        """Who has least to denoise comes first, then who has failed least."""
        return self.leases, self.failures

    @property
    def score_load(self) -> tuple[int, int]:
        """Who has least to score comes first, then whose scorer has failed least."""
        return len(self.scoring), self.score_failures


@dataclass
class DispatchStatistics:
    """Counters for the user, read by the coordinator in the same process."""

    reissued: int = 0
    late: int = 0
    open: Counter[RequestKind] = field(default_factory=Counter)
    """Requests submitted and neither finished, given up nor cancelled."""


class Dispatcher(Actor):
    """See the module's docstring.

    Args:
        statistics: counters that this actor keeps up to date.
        discard: deletes a bundle from the coordinator's store.
        record: writes an event to the run folder.
        score_attempts: how often a batch is scored before it is given up.
    """

    def __init__(
        self,
        *,
        statistics: DispatchStatistics,
        discard: Callable[[BundleOffer], None],
        record: Callable[..., None],
        score_attempts: int,
    ) -> None:
        self._statistics = statistics
        self._discard = discard
        self._record = record
        self._workers: dict[str, _Worker] = {}
        self._barred: frozenset[str] = frozenset()
        self._reply_to: dict[str, ActorRef] = {}
        self._accepted: dict[int, int] = {}
        """Receipts of the last completed leases: a completion may be delivered twice."""
        self._to_score: dict[str, ScoreTask] = {}
        self._roaming: set[str] = set()
        """Score tasks that one worker could not do: any other may."""
        self._strangers = 0
        """Answers of workers and epochs that are not, or no longer, there."""
        self._requests: LeaseBook[Request] = LeaseBook(
            order=lambda request: (_URGENCY[request.kind], request.iteration),
            batch_key=lambda request: (request.kind, request.weights_version, request.settings),
            lease_s=_LEASE_S,
            max_attempts=_MAX_ATTEMPTS,
        )
        self._scores: LeaseBook[ScoreTask] = LeaseBook(
            order=lambda task: (_URGENCY[task.requests[0].kind], task.requests[0].iteration),
            batch_key=lambda task: task.id,
            lease_s=_LEASE_S,
            max_attempts=score_attempts,
        )

    async def started(self) -> None:
        """Leases expire even when nothing else happens."""
        self.run_task(self._expire_leases())

    # --- from the coordinator side ---

    @handles(SubmitRequests)
    async def on_submit(self, message: SubmitRequests) -> None:
        """Queue requests and hand them to whoever waits."""
        for request in message.requests:
            if request.id not in self._reply_to:
                self._statistics.open[request.kind] += 1
            self._reply_to[request.id] = message.reply_to
        self._requests.submit(message.requests)
        self._serve()

    @handles(CancelRequests)
    async def on_cancel(self, message: CancelRequests) -> None:
        """Forget a kind of request, whatever stage it is in."""
        revoked = self._requests.cancel(lambda request: request.kind == message.kind)
        for name in {lease.holder for lease in revoked}:
            pull = self._workers[name].pull
            if pull is not None:
                leases = tuple(lease.number for lease in revoked if lease.holder == name)
                try_tell(self, pull.leader, Revoke(leases))
        self._scores.cancel(lambda task: task.requests[0].kind == message.kind)
        for task in list(self._to_score.values()):
            if task.requests[0].kind == message.kind:
                self._drop(task)
        for request_id in [key for key in self._reply_to if key.startswith(f"{message.kind}/")]:
            del self._reply_to[request_id]
        self._statistics.open[message.kind] = 0
        self._recount_leases()
        self._serve()

    @handles(BarWorkers)
    async def on_bar(self, message: BarWorkers) -> None:
        """Workers that train get nothing; the others may."""
        self._barred = frozenset(message.workers)
        self._serve()

    @handles(AddWorker)
    async def on_add_worker(self, message: AddWorker) -> None:
        """A worker joins, or comes back under a new epoch."""
        known = self._workers.get(message.worker)
        if known is not None and known.epoch == message.epoch:
            return
        if known is not None:
            self._release(message.worker, "it came back as a new process")
        self._workers[message.worker] = _Worker(message.node, message.pool, message.epoch)
        self._serve()

    @handles(RemoveWorker)
    async def on_remove_worker(self, message: RemoveWorker) -> None:
        """A worker is gone."""
        if message.worker in self._workers:
            self._release(message.worker, message.reason)
            del self._workers[message.worker]
            self._serve()

    # --- from group leaders ---

    @handles(Pull)
    async def on_pull(self, message: Pull) -> None:
        """The group's latest word on what it can take."""
        worker = self._current(message.worker, message.epoch)
        if worker is not None:
            worker.pull = message
            self._serve()

    @handles(RenewLease)
    async def on_renew(self, message: RenewLease) -> None:
        """The holder works on it."""
        book = self._requests if message.book == "denoise" else self._scores
        book.renew(message.lease, message.worker, self._now())

    @handles(Completed)
    async def on_completed(self, message: Completed) -> Receipt:
        """A batch is denoised: queue it for scoring."""
        if message.lease in self._accepted:  # delivered twice: the bundle is in use
            return Receipt(self._accepted[message.lease])
        worker = self._current(message.worker, message.epoch)
        requests = self._requests.complete(message.lease, message.worker) if worker else ()
        self._recount_leases()
        if requests:
            task = ScoreTask(
                id=f"{message.worker}/{message.epoch}/{message.lease}",
                requests=requests,
                rows=tuple(range(len(requests))),
                bundle=message.bundle,
                made_by=message.worker,
            )
            self._accept(message.lease, task)
        else:
            self._discard(message.bundle)
            self._record("late_results", worker=message.worker, lease=message.lease)
        self._serve()
        return Receipt(len(requests))

    @handles(DenoiseFailed)
    async def on_denoise_failed(self, message: DenoiseFailed) -> None:
        """A batch could not be denoised there: try elsewhere, or give up."""
        worker = self._current(message.worker, message.epoch)
        if worker is None:
            return
        if self._requests.holds(message.lease, message.worker):
            worker.failures += 1
            log.warning("denoise_failed", worker=message.worker, error=message.error)
            self._record("denoise_failed", worker=message.worker, error=message.error)
        self._give_up(self._requests.fail(message.lease, message.worker), message.error)
        self._recount_leases()
        self._serve()

    # --- from reward workers ---

    @handles(PullScores)
    async def on_pull_scores(self, message: PullScores) -> None:
        """A reward worker's latest word on what it can take."""
        worker = self._current(message.worker, message.epoch)
        if worker is not None:
            worker.scores = message
            self._serve()

    @handles(Scored)
    async def on_scored(self, message: Scored) -> Acknowledged:
        """Rewards of a batch: its requests are finished."""
        worker = self._current(message.worker, message.epoch)
        if worker is None:
            return Acknowledged()
        task = worker.scoring.get(message.lease)
        problem = task.problem_with(message.rewards) if task is not None else ""
        if problem:
            self._score_failed(message.worker, message.lease, problem)
            return Acknowledged()
        for done in self._scores.complete(message.lease, message.worker):
            self._finish(done, message.rewards)
        self._recount_leases()
        self._serve()
        return Acknowledged()

    @handles(ScoreFailed)
    async def on_score_failed(self, message: ScoreFailed) -> None:
        """A scorer failed: again, or give up; never a reward."""
        if self._current(message.worker, message.epoch) is not None:
            self._score_failed(message.worker, message.lease, message.error)

    # --- inside ---

    def _score_failed(self, name: str, lease: int, error: str) -> None:
        worker = self._workers[name]
        task = worker.scoring.get(lease)
        if task is not None:
            worker.score_failures += 1
            log.warning("scorer_failed", worker=name, error=error)
            self._record("scorer_failed", worker=name, request=task.requests[0].id, error=error)
            self._roaming.add(task.id)
        for given_up in self._scores.fail(lease, name):
            self._drop(given_up)
            self._give_up(given_up.requests, error)
        self._recount_leases()
        self._serve()

    def _accept(self, lease: int, task: ScoreTask) -> None:
        self._accepted[lease] = len(task.requests)
        if len(self._accepted) > _RECEIPTS:
            del self._accepted[next(iter(self._accepted))]
        self._to_score[task.id] = task
        self._scores.submit([task])

    def _drop(self, task: ScoreTask) -> None:
        """Nobody wants its rewards, or its images, any more."""
        self._forget(task)
        self._discard(task.bundle)

    def _forget(self, task: ScoreTask) -> None:
        self._to_score.pop(task.id, None)
        self._roaming.discard(task.id)

    def _serve(self) -> None:
        """Grant what can be granted; least loaded workers first."""
        for name, worker in sorted(self._workers.items(), key=lambda entry: entry[1].load):
            if name not in self._barred:
                while self._grant(name, worker):
                    pass
        for name, worker in sorted(self._workers.items(), key=lambda entry: entry[1].score_load):
            if name not in self._barred:
                while self._grant_scores(name, worker):
                    pass
        self._statistics.reissued = (
            self._requests.counters.reissued + self._scores.counters.reissued
        )
        self._count_late()

    def _grant(self, name: str, worker: _Worker) -> bool:
        pull = worker.pull
        if pull is None or worker.leases >= pull.credits:
            return False
        if worker.leases > 0 and not self._queue_is_long():
            return False  # near the end of a phase nothing waits behind a busy worker
        lease = self._requests.pull(
            name, pull.batch, self._now(), lambda request: _can_do(pull, request)
        )
        if lease is None:
            return False
        worker.leases += 1
        grant = Grant(lease.number, _LEASE_S, lease.items)
        return self._deliver(pull.leader, grant, lease, self._requests)

    def _grant_scores(self, name: str, worker: _Worker) -> bool:
        pull = worker.scores
        if pull is None or len(worker.scoring) >= pull.credits:
            return False
        lease = self._scores.pull(name, 1, self._now(), lambda task: self._is_home(task, name))
        if lease is None:
            lease = self._scores.pull(name, 1, self._now(), self._may_roam)
        if lease is None:
            return False
        task = lease.items[0]
        worker.scoring[lease.number] = task
        prompts = tuple(request.prompt for request in task.requests)
        grant = ScoreGrant(lease.number, _LEASE_S, task.bundle, task.rows, prompts)
        return self._deliver(pull.reward_worker, grant, lease, self._scores)

    def _is_home(self, task: ScoreTask, name: str) -> bool:
        return task.made_by == name and task.id not in self._roaming

    def _may_roam(self, task: ScoreTask) -> bool:
        """Batches are scored where they were made; when that worker is gone, busy, or has failed
        to, anywhere.
        """
        maker = self._workers.get(task.made_by)
        return (
            task.id in self._roaming
            or task.made_by in self._barred
            or maker is None
            or maker.scores is None
            or len(maker.scoring) >= maker.scores.credits
        )

    def _deliver(
        self, to: ActorRef, grant: Grant | ScoreGrant, lease: Lease[Any], book: LeaseBook[Any]
    ) -> bool:
        if not try_tell(self, to, grant):
            book.withdraw(lease.number, lease.holder)
            self._workers[lease.holder].pull = None
            self._workers[lease.holder].scores = None
            self._recount_leases()
            return False
        return True

    def _queue_is_long(self) -> bool:
        batch = max(
            (worker.pull.batch for worker in self._workers.values() if worker.pull), default=1
        )
        return self._requests.queued > batch * len(self._workers)

    def _finish(self, task: ScoreTask, rewards: tuple[float, ...]) -> None:
        self._forget(task)
        by_receiver: dict[ActorRef, list[Result]] = defaultdict(list)
        for request, row, reward in zip(task.requests, task.rows, rewards, strict=True):
            receiver = self._close(request)
            by_receiver[receiver].append(Result(request, reward, task.bundle, row))
        for receiver, results in by_receiver.items():
            self.tell(receiver, RequestsFinished(tuple(results)))
        if task.requests[0].kind != "rollout":
            self._discard(task.bundle)

    def _give_up(self, requests: tuple[Request, ...], reason: str) -> None:
        by_receiver: dict[ActorRef, list[Request]] = defaultdict(list)
        for request in requests:
            by_receiver[self._close(request)].append(request)
        for receiver, given_up in by_receiver.items():
            self.tell(receiver, RequestsGivenUp(tuple(given_up), reason))

    def _close(self, request: Request) -> ActorRef:
        self._statistics.open[request.kind] -= 1
        return self._reply_to.pop(request.id)

    def _release(self, name: str, reason: str) -> None:
        requests = self._requests.lose(name)
        tasks = self._scores.lose(name)
        kinds: dict[str, int] = defaultdict(int)
        for request in requests:
            kinds[request.kind] += 1
        self._record(
            "worker_lost",
            worker=name,
            node=self._workers[name].node,
            pool=self._workers[name].pool,
            reason=reason,
            requests_reissued=dict(kinds),
            batches_to_score_again=len(tasks),
        )

    def _recount_leases(self) -> None:
        for name, worker in self._workers.items():
            worker.leases = self._requests.held_by(name)
            worker.scoring = {
                lease: task
                for lease, task in worker.scoring.items()
                if self._scores.holds(lease, name)
            }

    def _current(self, name: str, epoch: int) -> _Worker | None:
        worker = self._workers.get(name)
        if worker is None or worker.epoch != epoch:
            self._strangers += 1
            self._count_late()
            return None
        return worker

    def _count_late(self) -> None:
        late = self._requests.counters.late + self._scores.counters.late
        self._statistics.late = late + self._strangers

    async def _expire_leases(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            requests, tasks = self._requests.expire(self._now()), self._scores.expire(self._now())
            self._roaming.update(task.id for task in tasks)
            for name, worker in self._workers.items():
                worker.failures += worker.leases - self._requests.held_by(name)
                worker.score_failures += len(worker.scoring) - self._scores.held_by(name)
            expired = len(requests) + len(tasks)
            if expired:
                log.warning("leases_expired", items=expired)
                self._record("leases_expired", items=expired)
                self._recount_leases()
                self._serve()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _can_do(pull: Pull, request: Request) -> bool:
    """Only with the weights that the request names, and that the group has acknowledged."""
    held = pull.evaluation_versions if request.kind == "evaluation" else pull.rollout_versions
    return request.weights_version in held
