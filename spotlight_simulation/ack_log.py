"""Remembers what simulated coordinators have made durable, and what workers were told is durable,
across their kills, to see that nothing of it is lost or done again."""

from __future__ import annotations

from collections.abc import Mapping

from spotlight.actors.protocol.down import Grant
from spotlight.actors.protocol.gradients import GRADIENTS
from spotlight.actors.protocol.up import CommitSteps, Completed
from spotlight.policies.requests.rows import SavedRow
from spotlight_simulation.history import History

_DONE = 1 << 30
"""A mark in place of a step: denoised and scored."""

_Delivery = tuple[str, int, int, int]
"""Worker, incarnation, lease and step of what is delivered."""


class AckLog:
    """Commits and completions by request, each with the newest lease that there was when it was
    accepted: only later grants can be expected to know of it.

    It learns from two sides. What coordinators log says what they mean to have written; a receipt
    that arrives at a worker says what they have promised. The promise is held against the grants
    that follow, and against what is in the journal's file.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._committed: dict[str, tuple[int, int]] = {}
        """Step and newest lease."""
        self._completed: dict[str, int] = {}
        self._newest = 0
        """The newest lease that was seen."""
        self._durable: dict[str, int | None] = {}
        """Step of every request that was ever written; None: it was taken back since."""
        self._on_their_way: dict[_Delivery, set[str]] = {}
        """Requests that a receipt says are durable, and that were not taken back since."""
        self._promised: dict[str, tuple[int, int]] = {}
        """Step and newest lease, of which a worker has a receipt."""
        self._leases_from = 0
        """Lower ones are of weights that were trained again."""
        self._done_before: frozenset[str] = frozenset()
        """Requests that were done when they were, or should have been."""

    def granted(self, lease: int) -> None:
        """A lease begins."""
        self._newest = max(self._newest, lease)

    # --- what coordinators write ---

    def saving(self, rows: Mapping[str, SavedRow | None]) -> None:
        """A coordinator is about to write these. What it takes back is forgotten before it does,
        since it may be killed as soon as that is durable.
        """
        for request_id, row in rows.items():
            if row is None or row.commit is None:
                self._committed.pop(request_id, None)
                self._completed.pop(request_id, None)
                self._take_back(request_id)

    def saved(self, rows: Mapping[str, SavedRow | None]) -> None:
        """They are durable."""
        for request_id, row in rows.items():
            if row is None or row.commit is None:
                continue
            self._durable[request_id] = _step_in(row)
            if row.rewards is None:
                self._committed[request_id] = (row.commit.step, self._newest)
            elif request_id in self._completed:
                self._history.violation(f"{request_id} counts twice")
            else:
                self._completed[request_id] = self._newest

    def forgetting(self, prefix: str) -> None:
        """A coordinator is about to delete the rows of all requests whose ids begin so."""
        for request_id in [each for each in self._durable if each.startswith(prefix)]:
            self._take_back(request_id)

    def going_back(self) -> None:
        """A coordinator is about to go back to an earlier iteration. What it takes back is
        forgotten before it does, since it may be killed as soon as that is durable."""
        self._done_before |= {
            request_id for request_id, step in self._durable.items() if step == _DONE
        }
        self._take_all_back()

    def went_back(self, leases_from: int) -> None:
        """It has: only leases from this number on count. One that was killed before has taken back
        nothing."""
        self._leases_from = leases_from

    def _take_all_back(self) -> None:
        """Nothing of before is expected any more."""
        self._committed.clear()
        self._completed.clear()
        for request_id in self._durable:
            self._take_back(request_id)

    # --- what they promise ---

    def acknowledging(self, delivered: CommitSteps | Completed) -> None:
        """A coordinator sends the receipt of what counts: that must be durable by then, and come
        under a lease that counts."""
        step, requests = _step_of(delivered), set(delivered.requests)
        if delivered.bundle.key.startswith(f"{GRADIENTS}/"):
            return  # who trains computes itself what is lost
        for request_id in requests:
            durable = self._durable.get(request_id, 0)
            if durable is not None and durable < step:
                self._history.violation(
                    f"{request_id} is acknowledged before it is in the journal: {durable}"
                )
        if delivered.lease < self._leases_from and not requests <= self._done_before:
            self._history.violation(
                f"{delivered.worker} delivers under lease {delivered.lease}, of before the weights"
                " were trained again, and it counts"
            )
        kept = {request_id for request_id in requests if self._durable.get(request_id) is not None}
        self._on_their_way[_name_of(delivered)] = kept

    def acknowledged(self, delivered: CommitSteps | Completed) -> None:
        """The receipt is with the worker."""
        step = _step_of(delivered)
        for request_id in self._on_their_way.pop(_name_of(delivered), ()):
            before, _ = self._promised.get(request_id, (0, 0))
            if step > before:
                self._promised[request_id] = (step, self._newest)

    # --- what comes of it ---

    def check(self, granted: Grant) -> None:
        """A batch is granted, or a member begins it: what was accepted before its grant must not be
        done again."""
        for request, saved in zip(granted.requests, granted.commits, strict=True):
            step, newest = self._committed.get(request.id, (0, 0))
            if newest < granted.lease and (saved.step if saved is not None else 0) < step:
                self._history.violation(
                    f"{request.id} is granted without its commit of step {step}"
                )
            if self._completed.get(request.id, granted.lease) < granted.lease:
                self._history.violation(f"{request.id} is granted after its completion")
            promised, newest = self._promised.get(request.id, (0, 0))
            if newest < granted.lease and (saved.step if saved is not None else 0) < promised:
                self._history.violation(
                    f"{request.id} is granted without what a receipt says is durable"
                )

    def check_journal(self, rows: Mapping[str, SavedRow]) -> None:
        """What workers have receipts of must be in the journal's file. What else is there is
        durable, too: a coordinator may be killed when it has written, and before it says so."""
        for request_id, (step, _) in self._promised.items():
            if _step_in(rows.get(request_id, SavedRow())) < step:
                self._history.violation(f"{request_id} was acknowledged, and the journal lacks it")
        self._durable |= {request_id: _step_in(row) for request_id, row in rows.items()}

    def _take_back(self, request_id: str) -> None:
        if request_id in self._durable:
            self._durable[request_id] = None
        self._promised.pop(request_id, None)
        for requests in self._on_their_way.values():
            requests.discard(request_id)


def _step_in(row: SavedRow) -> int:
    if row.commit is None:
        return 0
    return row.commit.step if row.rewards is None else _DONE


def _step_of(delivered: CommitSteps | Completed) -> int:
    """That a request has at least by now; what is yet to be compared with others is not done."""
    if isinstance(delivered, CommitSteps):
        return delivered.step
    return _DONE if delivered.rewards else delivered.steps


def _name_of(delivered: CommitSteps | Completed) -> _Delivery:
    return delivered.worker, delivered.epoch, delivered.lease, _step_of(delivered)
