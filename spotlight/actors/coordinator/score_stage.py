"""The second half of the dispatcher: denoised batches that wait for their rewards, and the reward
workers that score them.

A batch is scored where it was made; when that worker is gone, busy, or has failed to, anywhere.
Nothing here waits: every method changes state and tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from spotlight.actors.coordinator.denoise_stage import LEASE_S, URGENCY
from spotlight.actors.coordinator.dispatch_state import Worker
from spotlight.actors.protocol import PullScores, ScoreGrant
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor
from spotlight.policies.leases import Lease, LeaseBook, Saved
from spotlight.types import BundleOffer, Request, RequestKind

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ScoreTask:
    """A denoised batch that waits for its rewards; the bundle's `rows` in the order of the
    requests.
    """

    id: str
    requests: tuple[Request, ...]
    rows: tuple[int, ...]
    bundle: BundleOffer
    made_by: str

    @property
    def kind(self) -> RequestKind:
        """Of all its requests."""
        return self.requests[0].kind

    def problem_with(self, rewards: tuple[float, ...]) -> str:
        """Why these cannot be the rewards of the batch; empty if they can."""
        if len(rewards) != len(self.requests):
            return f"{len(rewards)} rewards for {len(self.requests)} images"
        if not all(0.0 <= reward <= 1.0 for reward in rewards):
            return f"rewards outside [0, 1]: {list(rewards)}"
        return ""


class ScoreStage:
    """See the module's docstring.

    Args:
        actor: tells on this stage's behalf.
        workers: by name; the dispatcher adds and removes them.
        attempts: how often a batch is scored before it is given up.
        first_lease: above all that an earlier coordinator granted.
    """

    def __init__(
        self, actor: Actor, *, workers: dict[str, Worker], attempts: int, first_lease: int
    ) -> None:
        self._actor = actor
        self._workers = workers
        self._roaming: set[str] = set()
        """Tasks that their maker failed to score."""
        self.book: LeaseBook[ScoreTask, Saved] = LeaseBook(
            order=lambda task: (URGENCY[task.kind], task.requests[0].iteration),
            batch_key=lambda task: (task.kind, task.requests[0].iteration, task.id),
            lease_s=LEASE_S,
            max_attempts=attempts,
            first_lease=first_lease,
        )

    def add(self, task: ScoreTask) -> None:
        """A batch waits for its rewards."""
        self.book.submit([task])

    def serve(self, barred: frozenset[str], now: float) -> None:
        """Grant what can be granted; least loaded workers first."""
        by_load = sorted(
            self._workers.items(),
            key=lambda entry: (self.book.held_by(entry[0]), entry[1].score_failures, entry[0]),
        )
        for name, worker in by_load:
            if name not in barred and worker.usable:
                while self._grant(name, worker, barred, now):
                    pass

    def renew(self, name: str, pull: PullScores, now: float) -> None:
        """The reward worker's loop turns."""
        for lease in pull.leases:
            self.book.renew(lease, name, now)

    def task_of(self, lease: int, name: str) -> ScoreTask | None:
        """What a reward worker scores under a lease that it has."""
        held = self.book.find(lease, name)
        return held.items[0] if held is not None else None

    def failed(self, lease: int, name: str) -> ScoreTask | None:
        """It could not be scored there; returned if it is given up."""
        task = self.task_of(lease, name)
        if task is not None:
            self._workers[name].score_failures += 1
            self._roaming.add(task.id)
        for given_up in self.book.fail(lease, name):
            self._roaming.discard(given_up.id)
            return given_up
        return None

    def complete(self, lease: int, name: str) -> ScoreTask | None:
        """The task that is scored by this; None if it counts for nothing."""
        for task in self.book.complete(lease, name):
            self._roaming.discard(task.id)
            return task
        return None

    def cancel(self, kind: RequestKind) -> list[ScoreTask]:
        """Forget the tasks of a kind; returns them."""
        cancelled: list[ScoreTask] = []

        def unwanted(task: ScoreTask) -> bool:
            if task.kind == kind and task not in cancelled:
                cancelled.append(task)
            return task.kind == kind

        self.book.cancel(unwanted)
        return cancelled

    def expire(self, now: float) -> list[Lease[ScoreTask, Saved]]:
        """Leases past their deadline: their tasks may be scored anywhere."""
        expired = self.book.expire(now)
        for lease in expired:
            self._roaming.update(task.id for task in lease.items)
            if lease.holder in self._workers:
                self._workers[lease.holder].score_failures += 1
        return expired

    def _grant(self, name: str, worker: Worker, barred: frozenset[str], now: float) -> bool:
        pull = worker.scores
        if pull is None or self.book.held_by(name) >= pull.credits:
            return False
        lease = self.book.pull(name, 1, now, lambda task: self._is_home(task, name))
        if lease is None:
            lease = self.book.pull(name, 1, now, lambda task: self._may_roam(task, barred))
        if lease is None:
            return False
        task = lease.items[0]
        prompts = tuple(request.prompt for request in task.requests)
        grant = ScoreGrant(lease.number, LEASE_S, task.bundle, task.rows, prompts)
        if not try_tell(self._actor, worker.refs.reward_worker, grant):
            self.book.give_back(lease.number, name)
            worker.scores = None
            return False
        return True

    def _is_home(self, task: ScoreTask, name: str) -> bool:
        return task.made_by == name and task.id not in self._roaming

    def _may_roam(self, task: ScoreTask, barred: frozenset[str]) -> bool:
        maker = self._workers.get(task.made_by)
        return (
            task.id in self._roaming
            or task.made_by in barred
            or maker is None
            or not maker.usable
            or maker.scores is None
            or self.book.held_by(task.made_by) >= maker.scores.credits
        )
