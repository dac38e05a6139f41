"""The pull scheduler as an actor: its mailbox is the queue.

Messages in: SubmitRequests, CancelRequests, ForgetRequests, BarWorkers (coordinator side);
AddWorkers, RemoveWorkers, NodeLeaving (membership); Pull, CommitSteps, Completed, DenoiseFailed,
ReturnLease (group leaders); PullScores, Scored, ScoreFailed (reward workers).
Messages out: Grant, Revoke, Recall, ScoreGrant; RequestsFinished and RequestsGivenUp to whoever
submitted.

A request passes through two stages: it is denoised, then scored. Answers of an old epoch or without
a lease change nothing and are counted. When a worker dies, all it held is queued again, with the
steps it committed. Whatever is acknowledged is in the journal before; a request that is submitted
again after a restart goes on, or is answered, from there. Rewards are checked before they count:
nonsense is a failed attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress

import msgspec
import structlog

from spotlight import failpoints
from spotlight.actors.coordinator.denoise_stage import DenoiseStage
from spotlight.actors.coordinator.dispatch_state import DispatchStatistics, Worker
from spotlight.actors.coordinator.job_journal import Denoised, JobJournal
from spotlight.actors.coordinator.job_journal import Scored as ScoredBefore
from spotlight.actors.coordinator.score_stage import ScoreStage, ScoreTask
from spotlight.actors.coordinator.step_profile import StepProfile
from spotlight.actors.protocol import (
    Acknowledged,
    AddWorkers,
    BarWorkers,
    CancelRequests,
    CommitSteps,
    Completed,
    DenoiseFailed,
    ForgetRequests,
    NodeLeaving,
    Pull,
    PullScores,
    Receipt,
    RemoveWorkers,
    RequestsFinished,
    RequestsGivenUp,
    ReturnLease,
    Revoke,
    Scored,
    ScoreFailed,
    SubmitRequests,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, ActorRef, from_this_process, handles
from spotlight.errors import JournalError
from spotlight.types import BundleOffer, Request, Result

log = structlog.get_logger(__name__)

_TICK_S = 1.0
_HEAR_S = 3.0
"""How long a dispatcher that came back listens before it grants: nodes need a second or two to find
it, and what they work on must not be given to those that are faster."""
_RECEIPTS = 4096

_LeaseEnd = DenoiseFailed | ReturnLease


class Dispatcher(Actor):
    """See the module's docstring.

    Args:
        statistics: counters that this actor keeps up to date.
        journal: of the run.
        discard: deletes a bundle from the coordinator's store.
        record: writes an event to the run folder.
        profile: learns how long the steps take.
        backlog_changed: hears when another kind of work waits, or little of it.
        score_attempts: how often a batch is scored before it is given up.
        came_back: groups may still work on what an earlier coordinator of this run granted.
    """

    def __init__(
        self,
        *,
        statistics: DispatchStatistics,
        journal: JobJournal,
        discard: Callable[[BundleOffer], None],
        record: Callable[..., None],
        profile: StepProfile,
        backlog_changed: Callable[[], None],
        score_attempts: int,
        came_back: bool = False,
    ) -> None:
        self._statistics = statistics
        self._journal = journal
        self._discard = discard
        self._record = record
        self._backlog_changed = backlog_changed
        self._outline: Hashable = ()
        """Of the backlog, when it was told last."""
        self._workers: dict[str, Worker] = {}
        self._barred: frozenset[str] = frozenset()
        self._reply_to: dict[str, ActorRef] = {}
        self._unreachable: dict[str, int] = {}
        """Epochs of workers that are gone without being known to have ended; the latest ones."""
        self._strangers = 0
        """Answers of workers that are not there, or not under that epoch."""
        self._remembers = False
        self._denoised: dict[str, Denoised] = {}
        self._scored: dict[str, ScoredBefore] = {}
        """What an earlier coordinator of this run has, until it is submitted again."""
        self._given_up: dict[str, str] = {}
        self._accepted: dict[str, int] = {}
        """Requests that counted, by the bundle that they came in; the latest ones."""
        self._unscored: Counter[str] = Counter()
        """Requests that wait for their reward, by the bundle that holds their images."""
        self._denoising = DenoiseStage(
            self,
            workers=self._workers,
            journal=journal,
            statistics=statistics,
            discard=discard,
            profile=profile,
            grants_from=self._now() + (_HEAR_S if came_back else 0.0),
        )
        self._scoring = ScoreStage(
            self,
            workers=self._workers,
            attempts=score_attempts,
            first_lease=journal.first_lease,
        )

    # --- who may say what ---

    def _from_the_leader(self, message: Pull | CommitSteps | Completed | _LeaseEnd) -> bool:
        """Of that worker; what one says that is not here any more is counted, not refused."""
        worker = self._workers.get(message.worker)
        return worker is None or self.sender == worker.refs.leader

    def _from_the_reward_worker(self, message: PullScores | Scored | ScoreFailed) -> bool:
        worker = self._workers.get(message.worker)
        return worker is None or self.sender == worker.refs.reward_worker

    async def started(self) -> None:
        """Leases expire even when nothing else happens."""
        self.run_task(self._expire_leases())

    # --- from the coordinator side ---

    @handles(SubmitRequests, only=from_this_process)
    async def on_submit(self, message: SubmitRequests) -> None:
        """Queue requests, hand them to whoever waits, and answer what is finished already."""
        self._remember()
        for request in message.requests:
            if request.id not in self._reply_to:
                self._statistics.open[request.kind] += 1
            self._reply_to[request.id] = message.reply_to
        self._restore(message.requests)
        self._denoising.submit(message.requests)
        for name, worker in self._workers.items():
            if worker.pull is not None:
                self._denoising.reconcile(name, worker.pull, self._now())
        self._serve()

    @handles(CancelRequests, only=from_this_process)
    async def on_cancel(self, message: CancelRequests) -> None:
        """Forget a kind of request, whatever stage it is in."""
        open_ids = [key for key in self._reply_to if key.startswith(f"{message.kind}/")]
        self._denoising.forget(open_ids)
        revoked = self._denoising.book.cancel(lambda request: request.kind == message.kind)
        for name in sorted({lease.holder for lease in revoked}):
            leases = tuple(lease.number for lease in revoked if lease.holder == name)
            try_tell(self, self._workers[name].refs.leader, Revoke(leases))
        for task in self._scoring.cancel(message.kind):
            self._end_task(task, is_needed=False)
        for request_id in open_ids:
            del self._reply_to[request_id]
        self._statistics.open[message.kind] = 0
        with suppress(JournalError):  # ends the job
            self._journal.drop_requests(open_ids)
        self._serve()

    @handles(ForgetRequests, only=from_this_process)
    async def on_forget(self, message: ForgetRequests) -> None:
        """Finished requests that nobody asks for again."""
        prefix = f"{message.kind}/{message.iteration}/"
        self._denoising.forget_all(prefix)
        for request_id in [key for key in self._scored if key.startswith(prefix)]:
            del self._scored[request_id]
        for request_id in [key for key in self._denoised if key.startswith(prefix)]:
            bundle = self._denoised.pop(request_id).bundle
            self._unscored[bundle.key] -= 1
            self._discard_scored(bundle)
        with suppress(JournalError):  # ends the job
            self._journal.forget_samples(message.kind, message.iteration)

    @handles(BarWorkers, only=from_this_process)
    async def on_bar(self, message: BarWorkers) -> None:
        """Workers that train get nothing; the others may."""
        self._barred = frozenset(message.workers)
        self._serve()

    @handles(AddWorkers, only=from_this_process)
    async def on_add_workers(self, message: AddWorkers) -> None:
        """Workers join, or come back under a new epoch."""
        for refs in message.workers:
            known = self._workers.get(refs.worker)
            if known is not None and known.refs.epoch == refs.epoch:
                continue
            if known is not None:
                reason = "it came back as a new process"
                self._release(refs.worker, reason, blame=known.node, ended=True)
            if self._unreachable.pop(refs.worker, None) == refs.epoch:
                self._denoising.book.absolve(message.node)
                self._scoring.book.absolve(message.node)
            self._workers[refs.worker] = Worker(message.node, message.pool, refs)
        self._serve()

    @handles(RemoveWorkers, only=from_this_process)
    async def on_remove_workers(self, message: RemoveWorkers) -> None:
        """Workers are gone."""
        for name in message.workers:
            worker = self._workers.get(name)
            if worker is not None:
                blame = "" if message.announced else worker.node
                self._release(name, message.reason, blame, ended=message.ended)
                del self._workers[name]
                if not message.ended:
                    self._remember_unreachable(name, worker.refs.epoch)
        self._serve()

    @handles(NodeLeaving, only=from_this_process)
    async def on_node_leaving(self, message: NodeLeaving) -> None:
        """No new grants for what will be gone; others go on with what it has."""
        for name in message.workers:
            worker = self._workers.get(name)
            if worker is not None and worker.leaving == message.cancelled:
                worker.leaving = not message.cancelled
                if worker.leaving:
                    self._denoising.count_loss(worker.pool)
        self._serve()

    # --- from group leaders ---

    @handles(Pull, only=_from_the_leader)
    async def on_pull(self, message: Pull) -> None:
        """The group's latest word on what it can take and what it holds."""
        worker = self._current(message.worker, message.epoch)
        if worker is not None:
            self._denoising.hear(message.worker, message, self._now())
            self._serve()

    @handles(CommitSteps, only=_from_the_leader)
    async def on_commit(self, message: CommitSteps) -> Receipt:
        """Steps that need not be done again should the group be lost."""
        home = self._journal.at_home(message.bundle)
        message = msgspec.structs.replace(message, bundle=home)
        if not _is_own("commits", message):
            return self._refuse_bundle(message)
        if self._current(message.worker, message.epoch) is None:
            self._denoising.discard_unused(message.bundle)
            return Receipt(0)
        saved = self._denoising.commit(message)
        failpoints.reach("dispatcher.before_ack")
        return Receipt(saved)

    @handles(Completed, only=_from_the_leader)
    async def on_completed(self, message: Completed) -> Receipt:
        """A batch is denoised: queue it for scoring."""
        # It may have been uploaded to an earlier coordinator.
        home = self._journal.at_home(message.bundle)
        message = msgspec.structs.replace(message, bundle=home)
        if not _is_own("samples", message):
            return self._refuse_bundle(message)
        accepted = self._accepted.get(message.bundle.key)
        if accepted is not None:  # delivered twice: the bundle is in use
            return Receipt(accepted)
        worker = self._current(message.worker, message.epoch)
        if self._comes_too_early(message, known=worker is not None):
            return Receipt(0, ask_again=True)
        requests = self._denoising.complete(message) if worker is not None else ()
        if requests:
            rows = tuple(range(len(requests)))
            key = message.bundle.key
            self._unscored[key] = len(requests)
            self._accept(ScoreTask(key, requests, rows, message.bundle, message.worker))
        else:
            self._discard(message.bundle)
            self._record("late_results", worker=message.worker, lease=message.lease)
        failpoints.reach("dispatcher.before_ack")
        self._serve()
        return Receipt(len(requests))

    @handles(DenoiseFailed, only=_from_the_leader)
    async def on_denoise_failed(self, message: DenoiseFailed) -> None:
        """A batch could not be denoised there: try elsewhere, or give up."""
        worker = self._current(message.worker, message.epoch)
        if worker is None:
            return
        if self._denoising.book.holds(message.lease, message.worker):
            log.warning("denoise_failed", worker=message.worker, error=message.error)
            self._record(
                "denoise_failed",
                worker=message.worker,
                requests=list(message.failed),
                error=message.error,
            )
        begins_again = False
        if message.bad_commits:
            with suppress(JournalError):  # ends the job
                begins_again = self._denoising.start_over(message.lease, message.worker)
        if not begins_again:
            worker.failures += 1
            given_up = self._denoising.book.fail(message.lease, message.worker, message.failed)
            self._give_up(given_up, message.error)
        self._serve()

    @handles(ReturnLease, only=_from_the_leader)
    async def on_return(self, message: ReturnLease) -> None:
        """Others must do it."""
        if self._current(message.worker, message.epoch) is not None:
            self._denoising.give_back(message.lease, message.worker)
            self._serve()

    # --- from reward workers ---

    @handles(PullScores, only=_from_the_reward_worker)
    async def on_pull_scores(self, message: PullScores) -> None:
        """A reward worker's latest word on what it can take."""
        worker = self._current(message.worker, message.epoch)
        if worker is not None:
            worker.scores = message
            self._scoring.renew(message.worker, message, self._now())
            self._serve()

    @handles(Scored, only=_from_the_reward_worker)
    async def on_scored(self, message: Scored) -> Acknowledged:
        """Rewards of a batch: its requests are finished."""
        if self._current(message.worker, message.epoch) is None:
            return Acknowledged()
        task = self._scoring.task_of(message.lease, message.worker)
        problem = task.problem_with(message.rewards) if task is not None else ""
        if problem:
            self._score_failed(message.worker, message.lease, problem)
            return Acknowledged()
        results = []
        if task is not None:
            results = [
                Result(request, reward, task.bundle, row)
                for request, row, reward in zip(
                    task.requests, task.rows, message.rewards, strict=True
                )
            ]
            self._journal.save_scored(results)
        scored = self._scoring.complete(message.lease, message.worker)
        if scored is not None:
            self._statistics.scoring_s += message.seconds
            self._end_task(scored, is_needed=scored.kind == "rollout")
            self._finish(results)
        failpoints.reach("dispatcher.before_ack")
        self._serve()
        return Acknowledged()

    @handles(ScoreFailed, only=_from_the_reward_worker)
    async def on_score_failed(self, message: ScoreFailed) -> None:
        """A scorer failed: again, or give up; never a reward."""
        if self._current(message.worker, message.epoch) is not None:
            self._score_failed(message.worker, message.lease, message.error)

    # --- inside ---

    def _remember(self) -> None:
        """Take up what an earlier coordinator of this run left: only now is it settled from where
        the run goes on, and so what of it counts.
        """
        if self._remembers:
            return
        self._remembers = True
        self._denoised, self._scored = self._journal.denoised(), self._journal.scored()
        self._given_up = self._journal.given_up()
        known = [record.bundle.key for record in self._denoised.values()]
        known += [record.bundle.key for record in self._scored.values()]
        self._accepted.update(dict.fromkeys(known, 1))
        self._unscored.update(record.bundle.key for record in self._denoised.values())
        self._denoising.remember()

    def _restore(self, requests: Iterable[Request]) -> None:
        """Put back what an earlier coordinator of this run knew of these."""
        finished: list[Result] = []
        batches: dict[str, list[tuple[Request, Denoised]]] = defaultdict(list)
        for request in requests:
            if request.id in self._given_up:
                self._denoising.book.finish(request.id)
                self._give_up((request,), self._given_up.pop(request.id))
            scored = self._scored.pop(request.id, None)
            denoised = self._denoised.pop(request.id, None)
            if scored is not None:
                finished.append(Result(request, scored.reward, scored.bundle, scored.row))
            elif denoised is not None:
                batches[denoised.bundle.key].append((request, denoised))
            if scored is not None or denoised is not None:
                self._denoising.book.finish(request.id)
        for key, batch in batches.items():
            rows = tuple(record.row for _, record in batch)
            self._accept(
                ScoreTask(
                    f"{key} {rows}",  # the others of the batch may be submitted later
                    tuple(request for request, _ in batch),
                    rows,
                    batch[0][1].bundle,
                    made_by="",
                )
            )
        if finished:
            self._finish(finished, restored=True)
            for result in finished:
                if result.request.kind != "rollout":
                    self._discard_scored(result.bundle)

    def _comes_too_early(self, message: Completed, *, known: bool) -> bool:
        """Whether a result of an earlier coordinator's lease comes before its requests do."""
        book = self._denoising.book
        if known and book.holds(message.lease, message.worker):
            return False
        if known and book.adopt(message.lease, message.worker, message.requests, self._now()):
            return False
        return any(map(self._denoising.may_come, message.requests))

    def _score_failed(self, name: str, lease: int, error: str) -> None:
        task = self._scoring.task_of(lease, name)
        if task is not None:
            log.warning("scorer_failed", worker=name, error=error)
            self._record("scorer_failed", worker=name, request=task.requests[0].id, error=error)
        given_up = self._scoring.failed(lease, name)
        if given_up is not None:
            self._end_task(given_up, is_needed=False)
            self._give_up(given_up.requests, error)
        self._serve()

    def _accept(self, task: ScoreTask) -> None:
        self._accepted[task.bundle.key] = len(task.requests)
        if len(self._accepted) > _RECEIPTS:
            del self._accepted[next(iter(self._accepted))]
        self._scoring.add(task)

    def _end_task(self, task: ScoreTask, *, is_needed: bool) -> None:
        """A batch waits no more for its rewards; training needs it, or nobody."""
        self._unscored[task.bundle.key] -= len(task.requests)
        if not is_needed:
            self._discard_scored(task.bundle)

    def _discard_scored(self, bundle: BundleOffer) -> None:
        if self._unscored[bundle.key] <= 0:
            del self._unscored[bundle.key]
            self._discard(bundle)

    def _serve(self) -> None:
        """Grant what can be granted."""
        self._denoising.serve(self._barred, self._now())
        self._scoring.serve(self._barred, self._now())
        counters, scores = self._denoising.book.counters, self._scoring.book.counters
        self._statistics.reissued = counters.reissued + scores.reissued
        self._statistics.late = counters.late + scores.late + self._strangers
        self._tell_of_backlog()

    def _tell_of_backlog(self) -> None:
        """Its kinds, and once it is less than one batch for everyone, its order of magnitude."""
        backlog = self._statistics.backlog = self._denoising.backlog()
        batches = sum(one.batches for one in backlog)
        scarce = batches.bit_length() if batches < len(self._workers) else None
        outline = (scarce, *((one.kind, one.settings) for one in backlog))
        if outline != self._outline:
            self._outline = outline
            self._backlog_changed()

    def _finish(self, results: list[Result], *, restored: bool = False) -> None:
        by_receiver: dict[ActorRef, list[Result]] = defaultdict(list)
        for result in results:
            by_receiver[self._close(result.request)].append(result)
        for receiver, theirs in by_receiver.items():
            self.tell(receiver, RequestsFinished(tuple(theirs), restored))

    def _give_up(self, requests: tuple[Request, ...], reason: str) -> None:
        by_receiver: dict[ActorRef, list[Request]] = defaultdict(list)
        ids = [request.id for request in requests]
        self._denoising.forget(ids)
        with suppress(JournalError):  # ends the job
            self._journal.save_given_up(ids, reason)
        for request in requests:
            by_receiver[self._close(request)].append(request)
        for receiver, given_up in by_receiver.items():
            self.tell(receiver, RequestsGivenUp(tuple(given_up), reason))

    def _close(self, request: Request) -> ActorRef:
        self._statistics.open[request.kind] -= 1
        return self._reply_to.pop(request.id)

    def _remember_unreachable(self, name: str, epoch: int) -> None:
        self._unreachable[name] = epoch
        if len(self._unreachable) > _RECEIPTS:
            del self._unreachable[next(iter(self._unreachable))]

    def _release(self, name: str, reason: str, blame: str, *, ended: bool) -> None:
        worker = self._workers[name]
        self._statistics.groups.forget(name)
        requests, poisonous = self._denoising.book.lose(name, blame, ended=ended)
        tasks, poisonous_tasks = self._scoring.book.lose(name, blame, ended=ended)
        if not worker.leaving:
            self._denoising.count_loss(worker.pool)
        kinds: dict[str, int] = defaultdict(int)
        for request in requests:
            kinds[request.kind] += 1
        self._record(
            "worker_lost",
            worker=name,
            node=worker.node,
            pool=worker.pool,
            reason=reason,
            requests_reissued=dict(kinds),
            batches_to_score_again=len(tasks),
        )
        for task in poisonous_tasks:
            self._end_task(task, is_needed=False)
            poisonous += task.requests
        self._quarantine(poisonous)

    def _quarantine(self, requests: tuple[Request, ...]) -> None:
        for request in requests:
            log.error("request_quarantined", request=request.id, prompt=request.prompt)
            self._record("request_quarantined", request=request.id, prompt=request.prompt)
            self._statistics.quarantined.append(request.id)
        self._give_up(requests, "every node that took it was lost; it is quarantined")

    def _refuse_bundle(self, message: CommitSteps | Completed) -> Receipt:
        """Nothing of another one's is taken, nor deleted."""
        log.error("not_its_own_bundle", worker=message.worker, bundle=message.bundle.key)
        return Receipt(0)

    def _current(self, name: str, epoch: int) -> Worker | None:
        worker = self._workers.get(name)
        if worker is None or worker.refs.epoch != epoch:
            self._strangers += 1
            self._statistics.late += 1
            return None
        worker.silent = False
        return worker

    async def _expire_leases(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._denoising.watch_pools(_TICK_S)
            denoising = self._denoising.book.expire(self._now())
            for lease in denoising:
                worker = self._workers[lease.holder]
                worker.failures += 1
                worker.silent = True
            expired = sum(len(lease.items) for lease in denoising)
            expired += len(self._scoring.expire(self._now()))
            if expired:
                log.warning("leases_expired", items=expired)
                self._record("leases_expired", items=expired)
            self._serve()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _is_own(stage: str, message: CommitSteps | Completed) -> bool:
    """Whether a bundle's key is one of those under which that worker process leaves its work."""
    return message.bundle.key.startswith(f"{stage}/{message.worker}/{message.epoch}-")
